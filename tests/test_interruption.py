"""What takes long is broken off by a stop, and a resume ends as if nothing had happened."""

import logging
import os
import signal

import gluon_svrg as gs
import mxnet as mx
import numpy as np
import problems
import pytest
from gluon_svrg.checkpoint import storage
from gluon_svrg.reporting.history import MEASURED
from gluon_svrg.stops import StopReason
from mxnet import gluon
from mxnet.gluon import nn

pytestmark = [pytest.mark.full, pytest.mark.long]

X = np.random.default_rng(0).normal(size=(24, 6)).astype("float32")
Y = np.random.default_rng(1).integers(0, 3, 24).astype("float32")
BATCHES = 6


class Processor(gs.BatchProcessor):
    """Does something once, in the middle of one of its batches; counts those that follow."""

    def __init__(self, kind=None, number=0, action=None):
        self.counts = {"fit": 0, "evaluate": 0}
        self._at = kind, number
        self._action = action
        self.after = None

    def _count(self, kind, estimator):
        self.counts[kind] += 1
        if self.after is not None:
            self.after += 1
        if self.after is None and (kind, self.counts[kind]) == self._at:
            self.after = 0
            self._action(estimator)

    def fit_batch(self, estimator, *args, **kwargs):
        self._count("fit", estimator)
        return super().fit_batch(estimator, *args, **kwargs)

    def evaluate_batch(self, estimator, *args, **kwargs):
        self._count("evaluate", estimator)
        return super().evaluate_batch(estimator, *args, **kwargs)


def over(estimator):
    estimator.state.stops._deadline = 0.0


WAYS = {
    "ctrl_c": (lambda e: os.kill(os.getpid(), signal.SIGINT), StopReason.SIGNAL),
    "sigterm": (lambda e: os.kill(os.getpid(), signal.SIGTERM), StopReason.SIGNAL),
    "stop": (lambda e: e.stop(), StopReason.REQUESTED),
    "time_limit": (over, StopReason.TIME_LIMIT),
}

# The kind and number of the current batch, the rows that there are then, and the checkpoint that is
# there: an epoch has 6 batches of a full pass and 6 of the training, and 2 evaluations of 6.
MOMENTS = {
    "first_full_pass": ("fit", 3, [], "epoch-0-batch-0"),
    "first_batch_of_a_full_pass": ("fit", 13, [0], "epoch-1-batch-6"),
    "full_pass": ("fit", 15, [0], "epoch-1-batch-6"),
    "last_batch_of_a_full_pass": ("fit", 18, [0], "epoch-1-batch-6-begun"),
    "evaluation_after_4_batches": ("evaluate", 1, [0], "epoch-0-batch-4"),
    "evaluation": ("evaluate", 8, [0], "epoch-0-batch-6"),
    "first_batch_of_an_evaluation": ("evaluate", 7, [0], "epoch-0-batch-6"),
    "a_later_evaluation": ("evaluate", 19, [0, 1], "epoch-1-batch-12"),
    "the_last_evaluation": ("evaluate", 37, [0, 1, 2], "epoch-2-batch-18"),
}


def fit(folder, processor, resume=None, seed=0, data="loader", table="auto", every=2, **handler):
    gs.seed_everything(seed)
    net = nn.HybridSequential(prefix="net_")
    with net.name_scope():
        net.add(nn.Dense(5, in_units=6), nn.BatchNorm(in_channels=5))
        net.add(nn.Dropout(0.3), nn.Dense(3, in_units=5))
    net.initialize(mx.init.Normal(0.5))
    trainer = gs.SVRGTrainer(net.collect_params(), "sgd", {"learning_rate": 0.1, "momentum": 0.9})
    estimator = gs.Estimator(
        net,
        gluon.loss.SoftmaxCELoss(),
        mx.metric.Accuracy(),
        trainer=trainer,
        batch_processor=processor,
    )
    estimator.logger = logging.getLogger("test_interruption")
    if data == "loader":
        train_data = gs.data.ArrayLoader(X, Y, batch_size=4, shuffle=True, seed=3)
    else:  # which draws from NumPy's generator
        dataset = gluon.data.ArrayDataset(X, Y)
        train_data = gluon.data.DataLoader(dataset, batch_size=4, shuffle=True)
    val_data = gluon.data.DataLoader(gluon.data.ArrayDataset(X, Y), batch_size=4, shuffle=True)
    result = estimator.fit(
        train_data,
        epochs=3,
        event_handlers=[
            gs.SVRGHandler(gradient_table=table, progress_bar=False, **handler),
            gs.GradientUpdateHandler(accumulate=4),
            gs.EMAHandler(0.9),
            gs.EarlyStoppingHandler("validation accuracy", patience=None, restore_best=True),
            gs.ValidationHandler(val_data, every_n_epochs=1, every_n_batches=4),
            gs.TimeLimitHandler(3600),
            gs.CheckpointHandler(folder, every_n_epochs=every),
        ],
        resume=resume,
    )
    rows = [{k: v for k, v in row.items() if k not in MEASURED} for row in result.history]
    states = [array.asnumpy() for array in _arrays_in(trainer._updaters[0].states)]
    drawn = np.random.uniform(size=3), mx.nd.random.uniform(shape=(3,)).asnumpy()
    return result, [*problems.weights_of(net), *states, *drawn], rows


def _arrays_in(states):
    for state in states.values() if isinstance(states, dict) else states:
        if isinstance(state, mx.nd.NDArray):
            yield state
        elif state is not None:
            yield from _arrays_in(state)


_WHOLE = {}


def whole_run(tmp_path_factory, **settings):
    key = tuple(sorted(settings.items()))
    if key not in _WHOLE:
        folder = tmp_path_factory.mktemp("whole")
        _WHOLE[key] = fit(folder, Processor(), **settings)[1:]
    return _WHOLE[key]


@pytest.mark.parametrize(
    ("moment", "way"),
    [
        *(("full_pass", way) for way in WAYS),
        *(("evaluation", way) for way in ("sigterm", "stop", "time_limit")),
        ("first_full_pass", "sigterm"),
        ("first_batch_of_a_full_pass", "stop"),
        ("last_batch_of_a_full_pass", "time_limit"),
        ("evaluation_after_4_batches", "ctrl_c"),
        ("first_batch_of_an_evaluation", "time_limit"),
        ("a_later_evaluation", "stop"),
        ("the_last_evaluation", "sigterm"),
    ],
)
def test_it_is_broken_off_and_the_resume_ends_as_the_whole_run(
    moment, way, tmp_path, tmp_path_factory
):
    kind, number, epochs, name = MOMENTS[moment]
    action, reason = WAYS[way]
    processor = Processor(kind, number, action)
    result, _, rows = fit(tmp_path, processor)
    assert processor.after == 0  # not one batch more
    assert result.stop_reason is reason
    assert result.epochs_run == len(rows)
    assert [row["epoch"] for row in rows] == epochs
    assert all(row["samples"] > 0 for row in rows)
    assert all(row["training accuracy"] == row["training accuracy"] for row in rows)
    assert max(storage.list_checkpoints(tmp_path)).name == name
    resumed, arrays, rows = fit(tmp_path, Processor(), "auto", seed=9)
    expected, expected_rows = whole_run(tmp_path_factory)
    assert resumed.stop_reason is StopReason.EPOCHS_DONE
    assert rows == expected_rows
    assert problems.same(arrays, expected)


@pytest.mark.parametrize(
    ("settings", "number"),
    [
        ({"data": "DataLoader"}, 3),
        ({"data": "DataLoader"}, 20),
        ({"table": False}, 20),
        ({"coefficient": "auto"}, 15),
        ({"start_epoch": 1}, 8),
    ],
    ids=str,
)
def test_full_passes_of_all_kinds(settings, number, tmp_path, tmp_path_factory):
    fit(tmp_path, Processor("fit", number, lambda e: e.stop()), **settings)
    _, arrays, rows = fit(tmp_path, Processor(), "auto", seed=9, **settings)
    expected, expected_rows = whole_run(tmp_path_factory, **settings)
    assert rows == expected_rows
    assert problems.same(arrays, expected)


def test_again_and_again(tmp_path, tmp_path_factory):
    """Each process gets two batches further, in training, full pass or evaluation."""
    for number in range(60):
        resume = "auto" if number else None
        kind = "fit" if number % 2 else "evaluate"
        result, arrays, rows = fit(
            tmp_path, Processor(kind, 9, lambda e: e.stop()), resume, seed=number
        )
        if result.stop_reason is StopReason.EPOCHS_DONE:
            break
    assert 3 < number < 20
    expected, expected_rows = whole_run(tmp_path_factory)
    assert rows == expected_rows
    assert problems.same(arrays, expected)


@pytest.mark.parametrize("way", ["sigterm", "time_limit"])
def test_the_table_that_is_computed_again_at_a_resume(way, tmp_path, tmp_path_factory):
    fit(tmp_path, Processor("fit", 9, lambda e: e.stop()))
    (key, *_) = reversed(storage.list_checkpoints(tmp_path))
    assert key.name == "epoch-0-batch-3"
    action, reason = WAYS[way]
    processor = Processor("fit", 2, action)
    result, _, rows = fit(tmp_path, processor, "auto", seed=9)
    assert processor.counts == {"fit": 2, "evaluate": 0}
    assert result.stop_reason is reason
    assert [row["samples"] for row in rows] == [12]
    assert max(storage.list_checkpoints(tmp_path)) == key
    _, arrays, rows = fit(tmp_path, Processor(), "auto", seed=8)
    expected, expected_rows = whole_run(tmp_path_factory)
    assert rows == expected_rows
    assert problems.same(arrays, expected)


def test_a_checkpoint_that_is_being_written_is_finished(tmp_path, tmp_path_factory, monkeypatch):
    written = storage.write_through
    sent = []

    def write(path, content):
        if path.name == "run.npz" and not sent:
            sent.append(os.kill(os.getpid(), signal.SIGTERM))
        written(path, content)

    monkeypatch.setattr(storage, "write_through", write)
    processor = Processor()
    result, _, rows = fit(tmp_path, processor, every=1)
    assert result.stop_reason is StopReason.SIGNAL
    assert processor.counts["fit"] == 2 * BATCHES
    assert [path.name for path in tmp_path.iterdir()] == ["epoch-1-batch-6"]
    _, arrays, rows = fit(tmp_path, Processor(), "auto", seed=9, every=1)
    expected, expected_rows = whole_run(tmp_path_factory)
    assert rows == expected_rows
    assert problems.same(arrays, expected)


@pytest.mark.parametrize("way", ["ctrl_c", "time_limit", "stop"])
def test_after_a_batch_an_evaluation_begins_only_if_there_is_time(way, tmp_path):
    action, reason = WAYS[way]
    processor = Processor("fit", 9, action)
    result, _, rows = fit(tmp_path, processor)
    assert result.stop_reason is reason
    assert processor.counts["evaluate"] == (BATCHES if way == "stop" else 0)
    assert ("validation accuracy" in rows[-1]) == (way == "stop")


def test_outside_of_fit_an_evaluation_is_the_callers(tmp_path):
    net = nn.Dense(3, in_units=6)
    net.initialize()

    def interrupt(estimator):
        assert not estimator.stop_requested
        raise KeyboardInterrupt

    estimator = gs.Estimator(
        net,
        gluon.loss.SoftmaxCELoss(),
        trainer=mx.gluon.Trainer(net.collect_params(), "sgd"),
        batch_processor=Processor("evaluate", 2, interrupt),
    )
    estimator.stop()
    with pytest.raises(KeyboardInterrupt):
        estimator.evaluate(gs.data.ArrayLoader(X, Y, batch_size=4))
