"""How often each event fires, in which order, and what fires after each way to stop."""

import gluon_svrg as gs
import mxnet as mx
import numpy as np
import problems
import pytest
from gluon_svrg import events
from gluon_svrg.stops import StopReason
from mxnet.gluon.contrib.estimator import LoggingHandler, MetricHandler

ALL = tuple(events.EVENTS.values())


class Listener(*ALL):
    """Writes down every event; does at one of them what it is told."""

    def __init__(self, at=None, action=None, priority=0):
        self.priority = priority
        self.heard = []
        self._at = at
        self._action = action

    def _hear(self, event, estimator):
        self.heard.append(event)
        if event == self._at:
            return self._action(estimator)
        return None

    def count(self, event):
        return self.heard.count(event)


for name in events.EVENTS:
    setattr(Listener, name, lambda self, estimator, *a, _n=name, **k: self._hear(_n, estimator))


def estimator_for(problem):
    trainer = mx.gluon.Trainer(problem.net.collect_params(), "sgd", {"learning_rate": 0.1})
    return gs.Estimator(problem.net, problem.loss, trainer=trainer)


def run(listeners, **duration):
    problem = problems.make("softmax")  # 5 batches an epoch
    return estimator_for(problem).fit(
        problem.ndarrays(), event_handlers=listeners, **(duration or {"epochs": 3})
    )


@pytest.mark.parametrize(
    ("duration", "epochs", "batches"),
    [
        ({"epochs": 1}, 1, 5),
        ({"epochs": 4}, 4, 20),
        ({"batches": 3}, 1, 3),
        ({"batches": 5}, 1, 5),
        ({"batches": 12}, 3, 12),
    ],
)
def test_event_counts(duration, epochs, batches):
    listener = Listener()
    result = run([listener], **duration)
    whole = epochs if "epochs" in duration else (batches - 1) // 5
    assert {event: listener.count(event) for event in events.EVENTS} == {
        "train_begin": 1,
        "epoch_begin": epochs,
        "batch_begin": batches,
        "gradient_ready": batches,
        "batch_end": batches,
        # After each begin of an epoch, each batch; twice at the end of each whole epoch.
        "safe_point": epochs + batches + 2 * whole,
        "steps_due": epochs,
        "epoch_end": epochs,
        "train_end": 1,
        "exception_raised": 0,
    }
    assert result.epochs_run == len(result.history) == epochs
    reason = StopReason.EPOCHS_DONE if "epochs" in duration else StopReason.BATCHES_DONE
    assert result.stop_reason is reason


def test_the_order_of_events():
    listener = Listener()
    run([listener], batches=6)
    begin, batch = ["epoch_begin", "safe_point"], BATCH
    first = [*begin, *batch * 5, "steps_due", "safe_point", "epoch_end", "safe_point"]
    second = [*begin, *batch, "steps_due", "epoch_end"]
    assert listener.heard == ["train_begin", *first, *second, "train_end"]


def test_evaluation_has_epoch_and_batch_events():
    problem = problems.make("softmax")
    listener = Listener()
    estimator_for(problem).evaluate(problem.ndarrays(), event_handlers=[listener])
    assert listener.heard == ["epoch_begin", *["batch_begin", "batch_end"] * 5, "epoch_end"]


BATCH = ["batch_begin", "gradient_ready", "batch_end", "safe_point"]


def true(estimator):
    return True


def stop(estimator):
    estimator.stop()


def fail(estimator):
    raise KeyError("broken")


END = ["safe_point", "epoch_end", "safe_point"]

# (at which event, what it does) -> which events follow the first time it happens, and the reason.
# "tail" are the events after the one at which it happens, as the docstring of `events` tells.
REST_OF_BATCH = {
    "batch_begin": ["gradient_ready", "batch_end", "safe_point"],
    "gradient_ready": ["batch_end", "safe_point"],
    "batch_end": ["safe_point"],
}
CELLS = [
    *(
        (event, stop, [*rest, "steps_due", "epoch_end", "train_end"], StopReason.REQUESTED)
        for event, rest in REST_OF_BATCH.items()
    ),
    # The epoch's end comes before the next moment at which the run may end.
    (
        "steps_due",
        stop,
        ["safe_point", "epoch_end", "safe_point", "train_end"],
        StopReason.REQUESTED,
    ),
    # Once more: a handler that writes a last checkpoint needs to know that it is the last.
    # Before its first batch, there is no epoch to end.
    ("safe_point", stop, ["safe_point", "train_end"], StopReason.REQUESTED),
    ("train_begin", stop, ["train_end"], StopReason.REQUESTED),
    ("epoch_begin", stop, ["safe_point", "train_end"], StopReason.REQUESTED),
    ("epoch_end", stop, ["safe_point", "train_end"], StopReason.REQUESTED),
    ("epoch_end", true, ["safe_point", "train_end"], StopReason.HANDLER),
]


@pytest.mark.parametrize(("event", "action", "tail", "reason"), CELLS)
def test_truth_table_of_stops(event, action, tail, reason):
    listener = Listener(event, action)
    result = run([listener])
    assert listener.heard[listener.heard.index(event) + 1 :] == tail
    assert result.stop_reason is reason
    assert str(reason.value) in {"stop() was called", "a handler asked to stop"}


def test_truth_table_batch_end_true_ends_each_epoch_but_not_the_run():
    listener = Listener("batch_end", true)
    result = run([listener])
    end = ["steps_due", "safe_point", "epoch_end", "safe_point"]
    epoch = ["epoch_begin", "safe_point", *BATCH, *end]
    assert listener.heard == ["train_begin", *epoch * 3, "train_end"]
    assert result.stop_reason is StopReason.EPOCHS_DONE


@pytest.mark.parametrize("event", [name for name in events.EVENTS if name != "exception_raised"])
def test_truth_table_exception(event):
    listener = Listener(event, fail)
    with pytest.raises(KeyError, match="broken"):
        run([listener])
    assert listener.heard[listener.heard.index(event) + 1 :] == ["exception_raised"]


def test_ctrl_c_is_an_exception_too():
    def interrupt(estimator):
        raise KeyboardInterrupt

    listener = Listener("gradient_ready", interrupt)
    with pytest.raises(KeyboardInterrupt):
        run([listener])
    assert listener.heard[-1] == "exception_raised"


class Interrupts(*events.EVENTS.values()):
    """Raises at an event, and again when it is told of that."""

    def __init__(self, event, first, second, priority):
        self.event, self.first, self.second, self.priority = event, first, second, priority


def _interrupts(name):
    def hear(self, estimator, *args, **kwargs):
        if name == "exception_raised":
            raise self.second
        if name == self.event:
            raise self.first

    return hear


for name in events.EVENTS:
    setattr(Interrupts, name, _interrupts(name))


@pytest.mark.parametrize("event", [name for name in events.EVENTS if name != "exception_raised"])
@pytest.mark.parametrize("second", [KeyboardInterrupt, SystemExit, GeneratorExit])
@pytest.mark.parametrize("first", [KeyboardInterrupt, ValueError])
def test_every_handler_is_told_of_the_end_however_often_it_is_interrupted(event, first, second):
    one = Interrupts(event, first("first"), second("second"), -1e9)
    other = Interrupts(event, first("of other"), second("third"), 1e9)
    before, between, after = (Listener() for _ in range(3))
    before.priority, after.priority = -2e9, 2e9
    with pytest.raises(second, match="third"):  # the last
        run([one, between, other, before, after])
    for listener in (before, between, after):
        assert listener.heard.count("exception_raised") == 1


@pytest.mark.parametrize("second", [KeyboardInterrupt, SystemExit])
def test_after_two_interruptions_the_next_fit_is_as_the_first(second):
    """With handlers that hold something during a run."""
    weights = []
    for is_interrupted in (False, True):
        problem = problems.make("softmax")
        trainer = gs.SVRGTrainer(problem.net.collect_params(), "sgd", {"learning_rate": 0.05})
        estimator = gs.Estimator(problem.net, problem.loss, trainer=trainer)
        x, y = (np.concatenate(arrays) for arrays in zip(*problem.batches, strict=True))
        data = gs.data.ArrayLoader(x, y, batch_size=4, shuffle=True, seed=1)
        before = problems.weights_of(problem.net)
        if is_interrupted:
            for event in ("epoch_begin", "gradient_ready", "batch_end", "epoch_end"):
                handlers = [Interrupts(event, KeyboardInterrupt(), second(), -1e9)]
                handlers += [gs.SVRGHandler(), gs.EMAHandler(0.9), gs.VarianceHandler(batches=2)]
                with pytest.raises(second):
                    estimator.fit(data, epochs=1, event_handlers=handlers)
                assert trainer.full_gradient is None
                assert data.locked_draw is None
                assert estimator.train_data is None
                assert estimator.data is None
            for param, array in zip(problem.net.collect_params().values(), before, strict=True):
                param.set_data(mx.nd.array(array, dtype=array.dtype))
        gs.seed_everything(0)
        fresh = [gs.SVRGHandler(), gs.EMAHandler(0.9)]
        estimator.fit(data, epochs=2, event_handlers=fresh)
        weights.append(problems.weights_of(problem.net))
    assert problems.same(*weights)


@pytest.mark.parametrize("event", ["batch_end", "epoch_end"])
def test_handlers_after_the_one_that_stops_still_hear_the_event(event):
    first, second = Listener(event, true), Listener()
    run([first, second])
    assert first.heard == second.heard


def test_priority_decides_the_order_then_the_list():
    heard = []

    class Handler(events.EpochBegin):
        def __init__(self, label, priority):
            self.label = label
            self.priority = priority

        def epoch_begin(self, estimator, *args, **kwargs):
            heard.append(self.label)

    class Unranked(events.EpochBegin):
        def epoch_begin(self, estimator, *args, **kwargs):
            heard.append("unranked")

    run([Handler("b", 1), Unranked(), Handler("c", 1), Handler("a", -1)], epochs=1)
    assert heard == ["a", "unranked", "b", "c"]


def test_describe_prints_the_loop(capsys, root_logger):
    problem = problems.make("softmax")
    estimator = estimator_for(problem)
    text = estimator.describe(problem.ndarrays(), [gs.SVRGHandler()])
    printed = capsys.readouterr().out
    assert printed == text + "\n"
    assert (
        printed
        == """\
train_begin
  - SanityCheckHandler (priority -6000)
  - SVRGHandler (priority -3000)
  - GradientUpdateHandler (priority -2000)
  - MetricHandler (priority -1000)
  - ValidationHandler (priority -1000)
  - HistoryHandler (priority 1000)
  - ProgressHandler (priority inf)
  epoch_begin
    - SVRGHandler (priority -3000)
    - MetricHandler (priority -1000)
    - ProgressHandler (priority inf)
    batch_begin
      - SanityCheckHandler (priority -6000)
      - SVRGHandler (priority -3000)
    forward and backward pass
    gradient_ready
      - SVRGHandler (priority -3000)
    batch_end
      - GradientUpdateHandler (priority -2000)
      - MetricHandler (priority -1000)
      - HistoryHandler (priority 1000)
      - ProgressHandler (priority inf)
    evaluate, if it is due
      - ValidationHandler (priority -1000)
    safe_point
  steps_due
    - GradientUpdateHandler (priority -2000)
  evaluate, if it is due
    - ValidationHandler (priority -1000)
  epoch_end
    - SVRGHandler (priority -3000)
    - MetricHandler (priority -1000)
    - HistoryHandler (priority 1000)
    - ProgressHandler (priority inf)
train_end
  - SVRGHandler (priority -3000)
  - GradientUpdateHandler (priority -2000)
  - MetricHandler (priority -1000)
  - ProgressHandler (priority inf)
exception_raised
  - SVRGHandler (priority -3000)
  - GradientUpdateHandler (priority -2000)
  - MetricHandler (priority -1000)
  - ProgressHandler (priority inf)
"""
    )


def test_a_logger_runs_after_the_metric_that_it_shows():
    """MXNet's LoggingHandler, given first, still sees the metrics of its own epoch."""
    problem = problems.make("softmax")
    estimator = estimator_for(problem)
    logged = []

    class Logger(LoggingHandler):
        def epoch_end(self, estimator, *args, **kwargs):
            logged.append([metric.get()[1] for metric in self.metrics])

    result = estimator.fit(
        problem.ndarrays(),
        epochs=3,
        event_handlers=[
            Logger(metrics=estimator.train_metrics),
            MetricHandler(estimator.train_metrics),
        ],
    )
    names = [metric.name for metric in estimator.train_metrics]
    assert logged == [[row[name] for name in names] for row in result.history]
    assert logged[0] != logged[1]


def test_something_else_than_a_handler_is_an_error():
    with pytest.raises(ValueError, match="must hold EventHandlers, got 'svrg': inherit from"):
        run(["svrg"])
    with pytest.raises(ValueError, match=r"the class SVRGHandler: make one, SVRGHandler\(...\)"):
        run([gs.SVRGHandler])
