"""SVRGHandler and the gradient table: when it is used, and that nothing wrong comes out of it."""

import logging

import gluon_svrg as gs
import numpy as np
import problems
import pytest
from gluon_svrg.data import ArrayLoader
from gluon_svrg.events import EpochBegin, EpochEnd, GradientReady
from mxnet import gluon
from mxnet.gluon.contrib import estimator as mx_estimator

MLP_BYTES = 8 * (5 * 6 + 5 + 3 * 5 + 3)  # float64


def fit(problem, data, handler, epochs=2, extra=(), log=None):
    estimator = gs.Estimator(
        problem.net,
        problem.loss,
        trainer=gs.SVRGTrainer(problem.net.collect_params(), "sgd", {"learning_rate": 0.1}),
    )
    if log is not None:
        estimator.logger.addHandler(log)
    estimator.fit(data, epochs=epochs, event_handlers=[handler, *extra])


def arrays_of(problem):
    return [np.concatenate(parts) for parts in zip(*problem.batches, strict=True)]


def loader_of(problem, **arguments):
    return ArrayLoader(*arrays_of(problem), batch_size=8, **arguments)


class Lines(logging.Handler):
    def __init__(self):
        super().__init__()
        self.lines = []

    def emit(self, record):
        if record.getMessage().startswith("SVRG: gradient table"):
            self.lines.append(record.getMessage())


class OnceOnly:
    """Any iterable that promises nothing."""

    def __init__(self, batches):
        self.batches = batches

    def __iter__(self):
        return iter(self.batches)


def flip(data, label):
    """Augments at random."""
    return (data if np.random.random() < 0.5 else -data), label


DATA = {
    "list": (lambda p: p.ndarrays(), True),
    "tuple": (lambda p: tuple(p.ndarrays()), True),
    "numpy": (lambda p: p.batches, True),
    "loader": (loader_of, True),
    "shuffled loader": (lambda p: loader_of(p, shuffle=True), True),
    "loader with a fixed transform": (
        lambda p: loader_of(p, transform=lambda data, label: (data * 2, label)),
        True,
    ),
    "loader that augments": (lambda p: loader_of(p, transform=flip), False),
    "DataLoader": (
        lambda p: gluon.data.DataLoader(gluon.data.ArrayDataset(*arrays_of(p)), 8),
        False,
    ),
    "iterable": (lambda p: OnceOnly(p.ndarrays()), False),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", DATA)
def test_auto_keeps_gradients_where_batches_repeat(kind):
    make_data, repeats = DATA[kind]
    problem = problems.make("mlp")
    handler = gs.SVRGHandler()
    log = Lines()
    fit(problem, make_data(problem), handler, log=log)
    assert (handler.table is not None) == repeats
    assert handler.gradient_evaluations == 37 * 2 * (1 if repeats else 2)
    assert len(log.lines) == 1
    if repeats:
        size = 5 * MLP_BYTES / 2**20
        assert log.lines[0] == (
            f"SVRG: gradient table on: 5 batches take {size:.1f} MiB; an epoch with a snapshot "
            "costs 2 gradients per sample, not 3"
        )
    else:
        assert log.lines[0].startswith("SVRG: gradient table off: ")


@pytest.mark.slow
@pytest.mark.parametrize("kind", [kind for kind, (_, repeats) in DATA.items() if not repeats])
def test_true_is_an_error_where_batches_may_not_repeat(kind):
    problem = problems.make("mlp")
    message = (
        "gradient_table=True needs batches that repeat exactly, but (a |the loader's transform).*"
        "give a list of batches or a gluon_svrg.data.ArrayLoader, or gradient_table='auto'"
    )
    with pytest.raises(ValueError, match=message):
        fit(problem, DATA[kind][0](problem), gs.SVRGHandler(gradient_table=True))


@pytest.mark.parametrize(("table", "budget", "is_used"), [
    ("auto", 5 * MLP_BYTES, True),
    ("auto", 5 * MLP_BYTES - 1, False),
    ("auto", 0, False),
    (True, 0, True),
    (False, 2**30, False),
])  # fmt: skip
def test_the_memory_budget(table, budget, is_used):
    problem = problems.make("mlp")
    handler = gs.SVRGHandler(gradient_table=table, table_memory=budget)
    log = Lines()
    fit(problem, problem.ndarrays(), handler, log=log)
    assert (handler.table is not None) == is_used
    if is_used:
        assert handler.table.nbytes == 5 * MLP_BYTES
    elif table == "auto":
        assert "more than table_memory=" in log.lines[0]
    else:
        assert log.lines == ["SVRG: gradient table off: gradient_table=False"]


class Change(EpochBegin):
    """Changes the data after the full pass of an epoch, behind the handler's back."""

    priority = 0

    def __init__(self, change):
        self._change = change

    def epoch_begin(self, estimator, *args, **kwargs):
        self._change(estimator.train_data)


def replace(batches):
    batches[2] = tuple(array.copy() for array in batches[2])


def reverse(batches):
    batches.reverse()


def add(batches):
    batches.append(batches[0])


def overwrite(batches):
    batches[0][0][:] = 1


@pytest.mark.parametrize(("change", "message"), [
    (replace, "batch 2 .* has other arrays than it had in the full pass"),
    (reverse, "batch 0 .* has other arrays than it had in the full pass"),
    (add, "has the 5 batches of the full pass, and this is batch 5"),
    (overwrite, "the gradient of batch 0 is not the one that the table holds"),
])  # fmt: skip
def test_batches_that_change_after_the_full_pass_are_an_error(change, message):
    problem = problems.make("mlp")
    before = problem.params
    with pytest.raises(ValueError, match=message):
        fit(problem, problem.ndarrays(), gs.SVRGHandler(), extra=[Change(change)])
    if change is overwrite:
        assert problems.same(before, problem.params)


def test_a_transform_that_hides_its_randomness_is_an_error():
    """From a generator of its own, and too rarely to be noticed beforehand."""
    calls = []

    def transform(data, label):
        calls.append(1)
        return (data if len(calls) < 12 else -data), label

    problem = problems.make("mlp")
    # Four calls to try it out, then five in the full pass and one and a half in the epoch.
    with pytest.raises(ValueError, match=r"batch 2 .* has other values than it had in the full"):
        fit(problem, loader_of(problem, transform=transform), gs.SVRGHandler(), epochs=3)


def test_fewer_batches_than_in_the_full_pass_are_fine():
    """A run that stops in the middle of an epoch."""
    problem = problems.make("mlp")
    handler = gs.SVRGHandler()
    estimator = gs.Estimator(
        problem.net,
        problem.loss,
        trainer=gs.SVRGTrainer(problem.net.collect_params(), "sgd", {"learning_rate": 0.1}),
    )
    estimator.fit(problem.ndarrays(), batches=7, event_handlers=[handler])
    assert handler.gradient_evaluations == 2 * 37


def test_a_second_snapshot_drops_the_first_ones_gradients():
    problem = problems.make("mlp")
    handler = gs.SVRGHandler()
    tables = []

    class Watch(EpochEnd):
        def epoch_end(self, estimator, *args, **kwargs):
            tables.append(
                [
                    g.asnumpy()
                    for g in handler.table.gradient(0, estimator.train_data[0]).sums[
                        next(iter(handler.table._gradients[0].sums))
                    ]
                ]
            )

    fit(problem, problem.ndarrays(), handler, extra=[Watch()])
    assert len(handler.table) == 5
    assert not problems.same(*tables)


def test_with_accumulated_gradients():
    """grad_req='add': two batches a step; the table gives what recomputing gives."""
    weights = []
    for table in (False, True):
        problem = problems.make("mlp", samples=32)
        problem.net.collect_params().setattr("grad_req", "add")
        trainer = gs.SVRGTrainer(problem.net.collect_params(), "sgd", {"learning_rate": 0.1})

        class Step(mx_estimator.GradientUpdateHandler):
            batches = 0

            def batch_end(self, estimator, *args, **kwargs):
                self.batches += 1
                if self.batches % 2 == 0:
                    estimator.trainer.step(16)
                    estimator.net.collect_params().zero_grad()

        estimator = gs.Estimator(problem.net, problem.loss, trainer=trainer)
        handler = gs.SVRGHandler(gradient_table=table)
        estimator.fit(problem.ndarrays(), epochs=3, event_handlers=[handler, Step()])
        weights.append(problem.params)
    assert problems.same(*weights)


def test_the_first_step_is_checked_and_the_check_changes_nothing():
    problem = problems.make("mlp")
    seen = []

    class Watch(GradientReady):
        priority = -4000  # before the correction

        def gradient_ready(self, estimator, *args, **kwargs):
            param = next(iter(estimator.net.collect_params().values()))
            seen.append(param.grad().asnumpy())
            kept.append(next(iter(handler.table._gradients[0].sums.values()))[0].asnumpy())

    handler = gs.SVRGHandler(gradient_table=True)
    kept = []
    fit(problem, problem.ndarrays(), handler, epochs=1, extra=[Watch()])
    assert np.array_equal(seen[0], kept[0])
    assert np.abs(kept[0]).sum() > 0
