"""HistoryHandler: one row an epoch, of this epoch's figures."""

from types import SimpleNamespace

import gluon_svrg as gs
import mxnet as mx
import numpy as np
import problems
import pytest
import runs
from gluon_svrg.events import BatchEnd, EpochBegin, EpochEnd, SafePoint
from gluon_svrg.reporting.history import MEASURED
from mxnet.gluon import nn
from mxnet.gluon.contrib.estimator import ValidationHandler


def fit(epochs, lr_scheduler=None, handlers=None, trainer=gs.SVRGTrainer):
    problem = problems.make("softmax")
    parameters = {"learning_rate": 0.1, "lr_scheduler": lr_scheduler}
    trainer = trainer(problem.net.collect_params(), "sgd", parameters)
    estimator = gs.Estimator(problem.net, problem.loss, mx.metric.Accuracy(), trainer=trainer)
    given = handlers(estimator, problem) if handlers else []
    return estimator.fit(problem.ndarrays(), epochs=epochs, event_handlers=given).history


def repeating(history):
    """The figures that are the same in every run."""
    return [{name: row[name] for name in row if name not in MEASURED} for row in history]


class Clock:
    """Stands in for the module `time`: a second is a second only where a test says so."""

    def __init__(self):
        self.now = 100.0

    def perf_counter(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr("gluon_svrg.reporting.history_handler.time", clock)
    return clock


def test_a_row_has_these_figures():
    (row,) = fit(1)
    assert list(row) == [
        "epoch",
        "seconds",
        "samples",
        "samples_per_second",
        "batches",
        "complete",
        "learning_rate",
        "peak_memory_mib",
        "training accuracy",
        "training loss",
    ]


def test_the_learning_rate_is_the_one_at_the_epochs_end():
    scheduler = mx.lr_scheduler.FactorScheduler(step=5, factor=0.5)  # 5 batches an epoch
    assert [row["learning_rate"] for row in fit(3, scheduler)] == [0.1, 0.05, 0.025]


def test_validation_figures_are_in_the_epochs_that_have_them_only():
    history = fit(
        4,
        handlers=lambda estimator, problem: [
            ValidationHandler(problem.ndarrays(), estimator.evaluate, epoch_period=2)
        ],
    )
    assert ["validation accuracy" in row for row in history] == [False, True, False, True]


def test_an_evaluation_before_the_run_is_not_in_its_history():
    def evaluate_first(estimator, problem):
        estimator.evaluate(problem.ndarrays())
        return []

    (row,) = fit(1, handlers=evaluate_first)
    assert "validation accuracy" not in row


class Busy(EpochBegin, BatchEnd, EpochEnd, SafePoint):
    """Takes its time: as SVRG's full pass, a step, an evaluation, and a checkpoint do."""

    priority = -3000

    def __init__(self, clock):
        self.clock = clock

    def epoch_begin(self, estimator, *args, **kwargs):
        self.clock.now += 7

    def batch_end(self, estimator, *args, **kwargs):
        self.clock.now += 2

    def epoch_end(self, estimator, *args, **kwargs):
        self.clock.now += 20
        estimator.evaluation_seconds += 20  # as Estimator.evaluate does

    def safe_point(self, estimator, *args, **kwargs):
        if not estimator.position.is_in_epoch:
            self.clock.now += 1


def test_the_seconds_are_those_of_the_whole_epoch_and_the_rate_is_that_of_the_training(clock):
    history = fit(2, handlers=lambda *_: [Busy(clock)])
    # 5 batches an epoch; the checkpoint's second is the next epoch's.
    assert [row["seconds"] for row in history] == [7 + 5 * 2 + 20, 1 + 7 + 5 * 2 + 20]
    assert [row["samples_per_second"] for row in history] == [37 / 17, 37 / 18]


def test_no_time_at_all_is_no_error(clock):
    assert fit(1)[0]["samples_per_second"] == 0


def test_the_seconds_of_another_run_do_not_count(clock):
    problem = problems.make("softmax")
    estimator = runs.estimator_of(problem, lr=0.01)
    handlers = [gs.HistoryHandler(), Busy(clock)]
    for _ in range(2):
        clock.now += 1000
        (row,) = estimator.fit(problem.ndarrays(), epochs=1, event_handlers=handlers).history
        assert (row["seconds"], row["samples_per_second"]) == (37, 37 / 17)


@pytest.mark.parametrize(
    ("platform", "peak", "mebibytes"), [("linux", 3 * 2**10, 3), ("darwin", 3 * 2**20, 3)]
)
def test_the_peak_is_in_mebibytes(platform, peak, mebibytes, monkeypatch):
    import gluon_svrg.reporting.history_handler as module

    monkeypatch.setattr(
        module,
        "resource",
        SimpleNamespace(RUSAGE_SELF=0, getrusage=lambda who: SimpleNamespace(ru_maxrss=peak)),
    )
    monkeypatch.setattr(module, "sys", SimpleNamespace(platform=platform))
    assert fit(1)[0]["peak_memory_mib"] == mebibytes


def test_the_peak_never_falls_and_is_that_of_a_process_with_mxnet():
    peaks = fit(2).column("peak_memory_mib")
    assert 20 < peaks[0] <= peaks[1] < 2**20


@pytest.mark.parametrize(
    ("arguments", "coefficients"),
    [
        ({}, [1, 1, 1, 1]),
        ({"coefficient": 0.0}, None),
        ({"start_epoch": 1, "stop_epoch": 3, "coefficient": 0.5}, [None, 0.5, 0.5, None]),
        ({"update_freq": 2, "coefficient": gs.linear_decay(1.0, 0.0)}, [1, 1, 0.5, 0.5]),
        ({"coefficient": lambda progress: float(progress < 0.5)}, [1, 1, None, None]),
    ],
)
def test_the_coefficient_is_there_while_svrg_is_on(arguments, coefficients):
    history = fit(4, handlers=lambda *_: [gs.SVRGHandler(**arguments)])
    if coefficients is None:
        assert "coefficient" not in history.names()
    else:
        assert history.column("coefficient") == coefficients


@pytest.mark.parametrize("trainer", [gs.SVRGTrainer, mx.gluon.Trainer])
def test_without_svrg_there_is_no_coefficient(trainer):
    assert "coefficient" not in fit(1, trainer=trainer).names()


def test_a_control_variate_that_an_epoch_has_had_counts():
    class ClearInEpoch(BatchEnd):
        def batch_end(self, estimator, *args, **kwargs):
            if estimator.position.batch == 2:
                estimator.trainer.clear_control_variate()

    history = fit(2, handlers=lambda *_: [gs.SVRGHandler(update_freq=2), ClearInEpoch()])
    assert history.column("coefficient") == [1, None]


def resumable():
    """An estimator whose parameters have the same names each time, and its data."""
    net = nn.Dense(3, in_units=6, prefix="dense_")
    mx.random.seed(3)
    net.initialize(mx.init.Normal(0.5))
    estimator = runs.estimator_of(net, train_metrics=mx.metric.Accuracy())
    return estimator, problems.make("softmax").ndarrays("float32")


class StopAfter(BatchEnd):
    def __init__(self, batches):
        self.batches = batches

    def batch_end(self, estimator, *args, **kwargs):
        if estimator.position.batch + 1 == self.batches:
            estimator.stop()


@pytest.mark.slow
@pytest.mark.parametrize("batches", [3, 5, 8])
def test_after_a_resume_the_history_goes_on(batches, tmp_path):
    estimator, data = resumable()
    expected = estimator.fit(data, data, 3, [gs.SVRGHandler(stop_epoch=2)]).history

    def handlers():
        return [gs.SVRGHandler(stop_epoch=2), gs.CheckpointHandler(tmp_path)]

    estimator, data = resumable()
    estimator.fit(data, data, 3, [*handlers(), StopAfter(batches)])
    estimator, data = resumable()
    history = estimator.fit(data, data, 3, handlers(), resume="auto").history
    assert repeating(history) == repeating(expected)
    assert all(row["seconds"] > 0 < row["samples_per_second"] for row in history)


def test_after_a_resume_the_clock_goes_on_where_it_was(clock, tmp_path):
    def handlers():
        return [Busy(clock), gs.CheckpointHandler(tmp_path)]

    estimator, data = resumable()
    estimator.fit(data, epochs=2, event_handlers=[*handlers(), StopAfter(8)])
    clock.now += 1000
    estimator, data = resumable()
    history = estimator.fit(data, epochs=2, event_handlers=handlers(), resume="auto").history
    assert history.column("seconds") == [37, 38]
    assert history.column("samples_per_second") == [37 / 17, 37 / 18]


def test_the_coefficient_stands_after_the_learning_rate_and_other_figures_last():
    class Figures(BatchEnd):
        def batch_end(self, estimator, *args, **kwargs):
            estimator.figures |= {"mine": 1, "coefficient": 0.25}

    history = fit(2, handlers=lambda *_: [Figures()])
    for row in history:
        assert list(row)[6:] == [
            "learning_rate",
            "coefficient",
            "peak_memory_mib",
            "training accuracy",
            "training loss",
            "mine",
        ]
    assert history.column("coefficient") == [0.25, 0.25]


def test_arrays_among_the_figures_are_numbers_or_lists_in_the_row():
    class Figures(BatchEnd):
        def batch_end(self, estimator, *args, **kwargs):
            estimator.figures |= {"one": mx.nd.array([0.5]), "two": np.array([1.0, 2.0])}

    (row,) = fit(1, handlers=lambda *_: [Figures()])
    assert (type(row["one"]), row["one"]) == (float, 0.5)
    assert (type(row["two"]), row["two"]) == (list, [1.0, 2.0])
