import logging

import gluon_svrg as gs
import mxnet as mx
import numpy as np
import problems
import pytest
import runs
from gluon_svrg.data import ArrayLoader
from gluon_svrg.data.transforms import Compose, RandomFlipLeftRight, ToFloat
from gluon_svrg.events import BatchEnd
from mxnet import gluon
from mxnet.gluon import nn
from scripted import Corrections, Scripted


def estimator_of(problem):
    return runs.estimator_of(problem, logger="test_payoff")


def run(ratios, epochs, **arguments):
    """Run over 10 batches an epoch; return the corrected batches of each, and the handler."""
    problem = problems.make("softmax", samples=80)
    corrections, meter = Corrections(), Scripted(ratios)
    svrg = gs.SVRGHandler(**arguments)
    estimator_of(problem).fit(
        problem.ndarrays(), epochs=epochs, event_handlers=[svrg, meter, corrections]
    )
    return corrections.counts, svrg, meter


AGAIN = {"max_variance_ratio": 0.3}
ABOVE = {"max_variance_ratio": 1 / 3}


@pytest.mark.parametrize(
    ("ratios", "arguments", "expected"),
    [
        # The first point is at half of an epoch: with 0 at the snapshot, 0.2 averages to 0.15.
        # Until then the first epoch is plain.
        ([0.2] * 4, ABOVE, [5, 10, 10, 10]),
        # 0.4 averages to 0.3: too much to start SVRG, at first or later, but not to stop it.
        ([0.4] * 4, ABOVE, [0, 0, 0, 0]),
        ([0.2, 0.4, 0.4], ABOVE, [5, 10, 10]),
        ([0.6, 0.4, 0.2, 0.2], ABOVE | {"recheck_every_n_epochs": 2}, [0, 0, 0, 10]),
        ([0.6] * 4, ABOVE, [0, 0, 0, 0]),
        ([0.1, 0.6, 0.1, 0.1], ABOVE, [5, 5, 0, 10]),
        ([0.6, 0.1, 0.1, 0.6, 0.1, 0.1], ABOVE, [0, 0, 10, 5, 0, 0]),
        ([0.1, 0.6, 0.6, 0.1, 0.1], ABOVE, [5, 5, 0, 0, 0]),
        ([0.6] * 4, {}, [10] * 4),
        ([0.6] * 4, {"max_variance_ratio": 2}, [5, 10, 10, 10]),
        ([0.6] * 5, {"max_variance_ratio": 1 / 3, "start_epoch": 2}, [0, 0, 0, 0, 0]),
        ([0.1] * 5, {"max_variance_ratio": 1 / 3, "start_epoch": 2}, [0, 0, 5, 10, 10]),
        ([0.6, 0.6, 0.1, 0.1, 0.1], AGAIN | {"recheck_every_n_epochs": 2}, [0, 0, 0, 10, 10]),
        ([0.6] * 7, AGAIN | {"recheck_every_n_epochs": 2}, [0, 0, 0, 0, 0, 0, 0]),
        ([0.6, 0.1, 0.6, 0.1, 0.1], AGAIN | {"recheck_every_n_epochs": 1}, [0, 0, 5, 0, 10]),
    ],
)  # fmt: skip
def test_it_acts_as_the_ratio_says(ratios, arguments, expected):
    assert run(ratios, len(ratios), **arguments)[0] == expected


def test_after_a_second_look_nothing_is_computed_for_it():
    _, svrg, meter = run([0.6] * 5, 5, max_variance_ratio=1 / 3, gradient_table=False)
    assert svrg.gradient_evaluations == 0  # no full pass, and nothing corrected
    # One point of the first epoch and one of the next, which say enough: 2 batches, 2 gradients.
    assert meter.gradient_evaluations == 32 + 32
    assert [(r.epoch, r.at) for r in meter.records] == [(0, 0.5), (1, 0.5)]
    assert svrg.criterion.off_since == 0
    assert svrg.table is None


def test_to_look_again_takes_no_full_pass():
    _, svrg, meter = run(
        [0.6] * 5, 5, max_variance_ratio=1 / 3, recheck_every_n_epochs=2, gradient_table=False
    )
    assert svrg.gradient_evaluations == 0
    assert [(r.epoch, r.at) for r in meter.records] == [
        (0, 0.5), (1, 0.5), (2, 0.5), (4, 0.5)
    ]  # fmt: skip
    assert meter.gradient_evaluations == 4 * 32


def test_after_it_gave_up_the_run_is_the_plain_one():
    """From the weights at which it gave up on, bit for bit."""

    class GivesUp(BatchEnd):
        priority = 700

        def batch_end(self, estimator, *args, **kwargs):
            if estimator.position.batch == 14:
                self.weights = problems.weights_of(estimator.net)

    problem = problems.make("mlp", samples=80)
    batches, at = problem.ndarrays(), GivesUp()
    svrg = gs.SVRGHandler(max_variance_ratio=1 / 3)
    estimator_of(problem).fit(
        batches, epochs=3, event_handlers=[svrg, Scripted([0.1, 0.6, 0.6]), at]
    )
    plain = problems.make("mlp", samples=80)
    for param, value in zip(plain.net.collect_params().values(), at.weights, strict=True):
        param.set_data(mx.nd.array(value, dtype="float64"))
    estimator_of(plain).fit(batches[5:] + batches, epochs=1)
    assert problems.same(problem.params, plain.params)


def test_points_on_one_batch():
    """Of two batches, 75 and 100 % are the last one: it decides."""
    problem = problems.make("softmax", samples=16)
    corrections = Corrections()
    meter = Scripted([0.6, 0.1, 0.1, 0.1], at=(50, 75, 100))
    handlers = [gs.SVRGHandler(max_variance_ratio=1 / 3), meter, corrections]
    estimator_of(problem).fit(problem.ndarrays(), epochs=4, event_handlers=handlers)
    assert corrections.counts == [0, 0, 2, 2]


def test_it_does_not_look_where_svrg_has_ended():
    counts, _, meter = run([0.6, 0.1, 0.1], 3, max_variance_ratio=1 / 3, stop_epoch=2)
    assert counts == [0, 0, 0]
    assert [record.epoch for record in meter.records] == [0]


def test_an_estimated_coefficient_is_in_the_row_of_the_epoch_that_gave_up():
    problem = problems.make("softmax", samples=80)
    handlers = [gs.SVRGHandler(coefficient="auto", max_variance_ratio=1 / 3)]
    handlers.append(Scripted([0.1, 0.6, 0.6]))
    result = estimator_of(problem).fit(problem.ndarrays(), epochs=3, event_handlers=handlers)
    assert 0 < result.history[0]["coefficient"] <= 1  # SVRG began in the middle of it
    assert 0 < result.history[1]["coefficient"] <= 1
    assert "coefficient" not in result.history[2]


@pytest.mark.parametrize("at", [(50,), (30, 100)])
def test_the_last_point_decides_whether_svrg_begins_again(at):
    problem = problems.make("softmax", samples=80)
    corrections = Corrections()
    handlers = [
        gs.SVRGHandler(max_variance_ratio=1 / 3),
        Scripted([0.6, 0.1, 0.1], at=at),
        corrections,
    ]
    estimator_of(problem).fit(problem.ndarrays(), epochs=3, event_handlers=handlers)
    assert corrections.counts == [0, 0, 10]


def test_the_log_says_when_and_why(caplog):
    caplog.set_level(logging.INFO)
    run([0.6, 0.1, 0.6, 0.6], 4, max_variance_ratio=1 / 3, recheck_every_n_epochs=1)
    assert (
        "epoch 2, 50 %: SVRG is switched off: the variance ratio, averaged over the epoch, is "
        "0.45, above max_variance_ratio=0.333; the plain optimizer continues; next measurement in "
        "epoch 3"
    ) in caplog.messages
    assert any(
        m.startswith("epoch 1, 50 %: SVRG is switched on again, with its next snapshot: the")
        for m in caplog.messages
    )
    assert any(m.startswith("epoch 3, 50 %: SVRG stays off: the variance") for m in caplog.messages)


def test_the_log_says_that_it_is_not_clear(caplog):
    caplog.set_level(logging.INFO)
    run([0.4, 0.4], 2, max_variance_ratio=1 / 3)
    why = (
        "averaged over the epoch, is 0.3, not clearly under "
        "max_variance_ratio=0.333: it is more than half of it"
    )
    assert sum(why in message for message in caplog.messages) == 2


def test_what_is_decided_is_not_measured_again():
    """At the only point of the second epoch it is switched on: nothing more is asked in it."""
    _, svrg, meter = run([0.6, 0.1], 2, max_variance_ratio=1 / 3)
    assert [(r.epoch, r.at) for r in meter.records] == [(0, 0.5), (1, 0.5)]
    assert svrg.criterion.off_since is None


def test_the_estimator_adds_a_meter():
    problem = problems.make("softmax", samples=80)
    estimator = estimator_of(problem)
    estimator.fit(
        problem.ndarrays(), epochs=1, event_handlers=gs.SVRGHandler(max_variance_ratio=0.5)
    )
    assert sum(isinstance(h, gs.VarianceHandler) for h in estimator.handlers) == 1
    estimator.fit(problem.ndarrays(), epochs=1, event_handlers=gs.SVRGHandler())
    assert not any(isinstance(h, gs.VarianceHandler) for h in estimator.handlers)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (
            {"max_variance_ratio": 0},
            ValueError,
            "max_variance_ratio must be a number above 0, got 0",
        ),
        (
            {"max_variance_ratio": "1/3"},
            TypeError,
            "max_variance_ratio must be a number above 0, got '1/3'",
        ),
        (
            {"max_variance_ratio": 1, "recheck_every_n_epochs": 0},
            ValueError,
            "recheck_every_n_epochs must be",
        ),
        (
            {"recheck_every_n_epochs": 2},
            ValueError,
            "recheck_every_n_epochs=2 needs max_variance_ratio",
        ),
        ({"coefficient": "Auto"}, TypeError, "got 'Auto': 1 is SVRG, 0 .*, and 'auto' estimates"),
        ({"lock": "yes"}, ValueError, "lock must be 'auto', 'require' or 'off', got 'yes'"),
    ],
)
def test_bad_arguments_are_errors(arguments, error, message):
    with pytest.raises(error, match=message):
        gs.SVRGHandler(**arguments)


@pytest.mark.slow
def test_a_second_run_begins_without_a_decision():
    problem = problems.make("softmax", samples=80)
    estimator, svrg = estimator_of(problem), gs.SVRGHandler(max_variance_ratio=1 / 3)
    counts = []
    for _ in range(2):
        corrections = Corrections()
        handlers = [svrg, Scripted([0.1, 0.6, 0.6]), corrections]
        estimator.fit(problem.ndarrays(), epochs=3, event_handlers=handlers)
        counts.append(corrections.counts)
    assert counts == [[5, 5, 0], [5, 5, 0]]


@pytest.mark.parametrize("ratio", [float("nan"), 0.0])
def test_a_ratio_that_is_no_number_decides_nothing(ratio):
    assert run([ratio] * 2, 2, max_variance_ratio=1 / 3)[0] == [5, 10]


@pytest.mark.slow
@pytest.mark.parametrize("stop", [4, 6, 9, 12, 25])
def test_resume(tmp_path, stop):
    """Also from the epoch in which it gave up, whose data stays locked to its end."""

    def run(*handlers, resume=None, seed=0):
        gs.seed_everything(seed)
        net = nn.HybridSequential(prefix="net_")
        with net.name_scope():
            net.add(nn.Dense(3, in_units=18))
        net.initialize(mx.init.Normal(0.5))
        problem = problems.Problem([], net, gluon.loss.SoftmaxCELoss(), None)
        rng = np.random.default_rng(0)
        images = rng.integers(0, 256, (80, 1, 3, 6)).astype("uint8")
        data = ArrayLoader(
            images,
            rng.integers(0, 3, 80).astype("float32"),
            batch_size=8,
            shuffle=True,
            seed=3,
            transform=Compose(RandomFlipLeftRight(), ToFloat()),
        )
        svrg = gs.SVRGHandler(max_variance_ratio=1 / 3, recheck_every_n_epochs=2)
        scripted = Scripted([0.6, 0.6, 0.1, 0.1])
        estimator_of(problem).fit(
            data, epochs=4, event_handlers=[svrg, scripted, *handlers], resume=resume
        )
        return problems.weights_of(net), scripted.records, svrg.gradient_evaluations

    class Stop(BatchEnd):
        def batch_end(self, estimator, *args, **kwargs):
            if estimator.position.batch + 1 == stop:
                estimator.stop()

    whole = run()
    run(Stop(), gs.CheckpointHandler(tmp_path))
    resumed = run(gs.CheckpointHandler(tmp_path), resume="auto", seed=1)
    assert problems.same(whole[0], resumed[0])
    assert whole[1:] == resumed[1:]
