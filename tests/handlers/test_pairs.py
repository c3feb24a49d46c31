"""Every pair of handlers: may both be in one run, or do they do the same thing twice?"""

import itertools
import os
import threading

import gluon_svrg as gs
import mxnet as mx
import problems
import pytest
from gluon_svrg.events import BatchEnd, HandlerList, HasExclusiveTasks
from handlers.test_contract import BATCHES, EXPORTED, estimator_of, made
from mxnet.gluon.contrib import estimator as mx_estimator
from runs import estimator_of as small_estimator

MXNETS = {
    mx_estimator.StoppingHandler: lambda e, path: {"max_epoch": 1},
    mx_estimator.GradientUpdateHandler: lambda e, path: {},
    mx_estimator.MetricHandler: lambda e, path: {"metrics": e.train_metrics},
    mx_estimator.ValidationHandler: lambda e, path: {"val_data": BATCHES, "eval_fn": e.evaluate},
    mx_estimator.LoggingHandler: lambda e, path: {},
    mx_estimator.CheckpointHandler: lambda e, path: {"model_dir": str(path)},
    mx_estimator.EarlyStoppingHandler: lambda e, path: {
        "monitor": e.train_metrics[0],
        "mode": "min",
    },
}
KINDS = [*EXPORTED, *MXNETS]

# What only one handler of a run may do, and which do it as they are made here. Two of the same
# class that are in no row may stand side by side.
SAME = {
    "write checkpoints into '{path}'": {gs.CheckpointHandler},
    "give the evaluations their weights": {gs.EMAHandler},
    "set the network's weights when the run ends": {gs.EarlyStoppingHandler},
    "take the optimizer's step": {gs.GradientUpdateHandler, mx_estimator.GradientUpdateHandler},
    "append rows to the history": {gs.HistoryHandler},
    "write '{path}/log.csv'": {gs.HistoryFileHandler},
    "update the metric 'training loss'": {gs.MetricHandler, mx_estimator.MetricHandler},
    "decide what a NaN does": {gs.NaNGuardHandler},
    "set 'learning_rate'": {gs.PlateauHandler, gs.ScheduleHandler},
    "measure the time of the other handlers": {gs.ProfilerHandler},
    "show the progress": {gs.ProgressHandler},
    "seed the random numbers": {gs.RandomStateHandler},
    "correct the gradients": {gs.SVRGHandler},
    "handle SIGINT": {gs.SignalHandler},
    "write events into '{path}'": {gs.TensorBoardHandler},
    "compute the validation figures": {gs.ValidationHandler, mx_estimator.ValidationHandler},
    "measure the variance ratio": {gs.VarianceHandler},
    "write 'model' into '{path}'": {mx_estimator.CheckpointHandler},
}
SIDE_BY_SIDE = {
    gs.MLflowHandler: "each begins a run of MLflow of its own",
    gs.SanityCheckHandler: "it looks only",
    gs.TimeLimitHandler: "the shorter time ends the run",
    mx_estimator.StoppingHandler: "the smaller number ends the run",
    mx_estimator.EarlyStoppingHandler: "the first to stop ends the run",
    mx_estimator.LoggingHandler: "each writes lines of its own",
}


def one(kind, estimator, path):
    if kind in MXNETS:
        return kind(**MXNETS[kind](estimator, path))
    return made(kind, estimator, path)


def test_every_handler_is_in_a_table():
    assert {*set().union(*SAME.values()), *SIDE_BY_SIDE} == set(KINDS)
    assert not set().union(*SAME.values()) & SIDE_BY_SIDE.keys()
    mxnets = {value for name, value in vars(mx_estimator).items() if name.endswith("Handler")}
    assert mxnets == set(MXNETS)


@pytest.mark.parametrize(
    "kinds",
    list(itertools.combinations_with_replacement(KINDS, 2)),
    ids=lambda kinds: "-".join(f"{kind.__module__[:2]}.{kind.__name__}" for kind in kinds),
)
def test_a_pair(kinds, tmp_path):
    estimator = small_estimator(problems.make("softmax"), train_metrics=mx.metric.Loss())
    handlers = [one(kind, estimator, tmp_path) for kind in kinds]
    tasks = [task for task, owners in SAME.items() if owners.issuperset(kinds)]
    if not tasks:
        assert len(list(HandlerList(handlers))) == 2
        return
    path = os.path.realpath(tmp_path)
    sentences = [
        f"{kinds[0].__name__} and {kinds[1].__name__} both {task.format(path=path)}: give one "
        "of them only" + (", or another name" if hasattr(handlers[1], "name") else "")
        for task in tasks
    ]
    with pytest.raises(ValueError, match="both") as error:
        HandlerList(handlers)
    assert str(error.value) in sentences


def average(**arguments):
    return gs.EMAHandler(**arguments)


def stopping(**arguments):
    return gs.EarlyStoppingHandler("training loss", **arguments)


def log(path, name="log.csv"):
    return gs.HistoryFileHandler(path / name, overwrite=True)


def trace(path, name="trace.json"):
    return gs.ProfilerHandler(trace=path / name, overwrite=True)


def linked(path):
    (path / "link").symlink_to(path, target_is_directory=True)
    return path / "link"


class OwnStep(mx_estimator.GradientUpdateHandler):
    pass


class OwnTask(BatchEnd, HasExclusiveTasks):
    def exclusive_tasks(self):
        return ["set 'wd'"]


def schedule(name):
    return gs.ScheduleHandler(name, gs.schedules.constant(0.1))


def plateau(name):
    return gs.PlateauHandler("training loss", hyperparameter=name)


# The same classes with other arguments; and handlers of the user's own.
ARGUMENTS = {
    "averages to export": (lambda p: [average(evaluate=False), average(evaluate=False)], None),
    "one is kept, one is evaluated": (
        lambda p: [average(keep=True, evaluate=False), average(keep=False)],
        None,
    ),
    "both are kept": (
        lambda p: [average(keep=True, evaluate=False), average(keep=True)],
        "leave an average in the network",
    ),
    "the best average is restored": (
        lambda p: [average(keep=True), stopping(restore_best=True)],
        None,
    ),
    "best weights or their average": (
        lambda p: [average(keep=True, evaluate=False), stopping(restore_best=True)],
        "set the network's weights when the run ends",
    ),
    "one restores, one stops": (lambda p: [stopping(restore_best=True), stopping()], None),
    "two folders": (
        lambda p: [gs.CheckpointHandler(p / "a"), gs.CheckpointHandler(p / "b")],
        None,
    ),
    "one folder by two names": (
        lambda p: [gs.CheckpointHandler(p / "a"), gs.CheckpointHandler(linked(p) / "a")],
        "write checkpoints into",
    ),
    "two files": (lambda p: [log(p), log(p, "log.jsonl")], None),
    "one file by two names": (lambda p: [log(p), log(linked(p))], "write"),
    "one file of two kinds of handlers": (
        lambda p: [trace(p), Writer(os.path.realpath(p / "trace.json"))],
        "write",
    ),
    "two folders of events": (
        lambda p: [gs.TensorBoardHandler(p / "a"), gs.TensorBoardHandler(p / "b")],
        None,
    ),
    "two numbers": (lambda p: [schedule("wd"), schedule("momentum")], None),
    "a number of two kinds of handlers": (lambda p: [schedule("wd"), plateau("wd")], "set 'wd'"),
    "a user's step": (
        lambda p: [OwnStep(), gs.GradientUpdateHandler()],
        "take the optimizer's step",
    ),
    "a user's task": (lambda p: [OwnTask(), schedule("wd")], "set 'wd'"),
}


class Writer(OwnTask):
    def __init__(self, path):
        self.path = path

    def exclusive_tasks(self):
        return [f"write {self.path!r}"]


@pytest.mark.parametrize("name", ARGUMENTS)
def test_other_arguments(name, tmp_path):
    make, task = ARGUMENTS[name]
    first, second = make(tmp_path)
    for handlers in ([first, second], [second, first]):
        if task is None:
            HandlerList(handlers)
        else:
            with pytest.raises(ValueError, match=f"both {task}"):
                HandlerList(handlers)


@pytest.mark.slow
def test_fit_refuses_before_anything_is_done(tmp_path):
    estimator = estimator_of()
    before = problems.weights_of(estimator.net)
    folder = tmp_path / "checkpoints"
    handlers = [gs.CheckpointHandler(folder), gs.SVRGHandler(), gs.SVRGHandler()]
    with pytest.raises(ValueError, match="both correct the gradients: give one of them only"):
        estimator.fit(BATCHES, epochs=1, event_handlers=handlers)
    assert problems.same(problems.weights_of(estimator.net), before)
    assert not folder.exists()
    estimator.fit(BATCHES, epochs=1, event_handlers=handlers[:2])


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: f"{kind.__module__[:2]}.{kind.__name__}")
def test_one_object_twice(kind, tmp_path):
    estimator = small_estimator(problems.make("softmax"), train_metrics=mx.metric.Loss())
    handler = one(kind, estimator, tmp_path)
    with pytest.raises(ValueError, match=f"the same {kind.__name__} is among the handlers twice"):
        HandlerList([handler, handler])


class Inner(BatchEnd):
    """Trains another network with the handlers of the run, in the middle of a batch."""

    def __init__(self, estimator=None, handlers=()):
        self.estimator, self.handlers, self.error = estimator, handlers, None

    def batch_end(self, estimator, *args, **kwargs):
        if self.error is None:
            try:
                inner = self.estimator or estimator
                inner.fit(BATCHES, epochs=1, event_handlers=list(self.handlers))
            except RuntimeError as error:
                self.error = str(error)


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind",
    [kind for kind in EXPORTED if kind is not gs.MetricHandler],  # its metrics have an Estimator
    ids=lambda kind: kind.__name__,
)
def test_a_handler_of_a_run_that_has_not_ended(kind, tmp_path):
    estimator = estimator_of()
    handler = one(kind, estimator, tmp_path)
    inner = Inner(estimator_of(1), [handler])
    estimator.fit(BATCHES, epochs=1, event_handlers=[handler, inner])
    assert inner.error == (
        f"this {kind.__name__} belongs to a fit that has not ended yet: make another one for this "
        "fit"
    )


@pytest.mark.slow
def test_a_fit_inside_a_fit_of_the_same_estimator():
    estimator, inner = estimator_of(), Inner()
    estimator.fit(BATCHES, epochs=1, event_handlers=[inner])
    assert inner.error.startswith("a fit of this Estimator has not ended yet: make another")
    plain = estimator_of()
    plain.fit(BATCHES, epochs=1)
    ours, theirs = (problems.weights_of(e.net) for e in (estimator, plain))
    assert problems.same(ours, theirs)


@pytest.mark.slow
def test_a_handler_of_two_threads():
    begun, may_end = threading.Event(), threading.Event()

    class Wait(BatchEnd):
        def batch_end(self, estimator, *args, **kwargs):
            begun.set()
            may_end.wait(60)

    handler = gs.EMAHandler()
    first = threading.Thread(
        target=lambda: estimator_of().fit(BATCHES, epochs=1, event_handlers=[handler, Wait()])
    )
    first.start()
    try:
        assert begun.wait(60)
        with pytest.raises(RuntimeError, match="this EMAHandler belongs to a fit"):
            estimator_of(1).fit(BATCHES, epochs=1, event_handlers=[handler])
    finally:
        may_end.set()
        first.join()
    estimator_of(1).fit(BATCHES, epochs=1, event_handlers=[handler])


@pytest.mark.slow
def test_after_an_exception_the_handler_is_free():
    class Fails(BatchEnd):
        def batch_end(self, estimator, *args, **kwargs):
            raise KeyError("no")

    handler = gs.EMAHandler()
    with pytest.raises(KeyError):
        estimator_of().fit(BATCHES, epochs=1, event_handlers=[handler, Fails()])
    estimator_of(1).fit(BATCHES, epochs=1, event_handlers=[handler])
