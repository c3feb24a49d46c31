"""ScheduleHandler and PlateauHandler: the value at every batch, and after a resume."""

import logging
import re
from fractions import Fraction

import gluon_svrg as gs
import mxnet as mx
import numpy as np
import oracle
import problems
import pytest
from gluon_svrg import schedules
from gluon_svrg.events import BatchEnd, EpochBegin, EpochEnd
from gluon_svrg.handlers.schedule import PlateauHandler, ScheduleHandler
from mxnet import gluon
from problems import ONE, TWO

BATCHES = 5  # an epoch of problems.make()
SCHEDULES = {
    "learning_rate": schedules.warm_up(schedules.cosine(0.3, 0.01), 0.2, 0.05),
    "wd": schedules.linear(0.0, 0.1),
    "momentum": schedules.step(0.9, (0.5,), factor=0.5),
}


class Values(BatchEnd):
    """Keeps the optimizer's values that each step has used."""

    def __init__(self, names=("lr",)):
        self.names = names
        self.seen = []

    def batch_end(self, estimator, *args, **kwargs):
        self.seen.append([vars(estimator.trainer.optimizer)[name] for name in self.names])

    @property
    def first(self):
        return [row[0] for row in self.seen]


class StopAfter(BatchEnd, EpochEnd):
    """Stops after some batches; at an epoch's last batch, or only when the epoch is at its end."""

    def __init__(self, batches, event="batch_end"):
        self.batches = batches
        self.event = event

    def batch_end(self, estimator, *args, **kwargs):
        if self.event == "batch_end" and estimator.position.batch + 1 == self.batches:
            estimator.stop()

    def epoch_end(self, estimator, *args, **kwargs):
        if self.event == "epoch_end" and estimator.position.batch == self.batches:
            estimator.stop()


class Unsized:
    """Batches whose number is not known before."""

    def __init__(self, batches):
        self.batches = batches

    def __iter__(self):
        return iter(self.batches)


def estimator_of(problem, optimizer="sgd", optimizer_params=None, metrics=None, **arguments):
    """An Estimator with SGD of momentum 0.9."""
    if optimizer_params is None:
        optimizer_params = {"learning_rate": 9.0, "momentum": 0.9}
    trainer = gs.SVRGTrainer(problem.net.collect_params(), optimizer, optimizer_params, **arguments)
    return gs.Estimator(problem.net, problem.loss, metrics, trainer=trainer)


def fit(handlers, data=None, **arguments):
    """Train a new softmax regression; return what the estimator has become."""
    problem = problems.make("softmax")
    estimator = estimator_of(problem)
    arguments = arguments or {"epochs": 4}
    estimator.fit(data or problem.ndarrays(), event_handlers=handlers, **arguments)
    return estimator


@pytest.mark.parametrize("trainer_class", [gluon.Trainer, gs.SVRGTrainer])
@pytest.mark.parametrize(
    ("contexts", "update_on_kvstore"), [(ONE, None), (TWO, False), (TWO, True)]
)
def test_every_step_agrees_with_numpy(trainer_class, contexts, update_on_kvstore):
    problem = problems.make("mlp", contexts)
    params, velocity = problem.params, [np.zeros_like(p) for p in problem.params]
    expected = []
    for update in range(4 * BATCHES):
        x, y = problem.batches[update % BATCHES]
        at = update / (4 * BATCHES)
        lr, momentum, wd = (SCHEDULES[name](at) for name in ("learning_rate", "momentum", "wd"))
        oracle.SGD(lr, momentum, wd).step(params, velocity, problem.gradient(params, x, y), len(x))
        expected.append([param.copy() for param in params])
    trainer = trainer_class(
        problem.net.collect_params(),
        "sgd",
        {"learning_rate": 9.0, "momentum": 0.1, "wd": 9.0},
        update_on_kvstore=update_on_kvstore,
    )
    recorder = problems.Recorder()
    gs.Estimator(problem.net, problem.loss, trainer=trainer).fit(
        problem.ndarrays(),
        epochs=4,
        event_handlers=[recorder, *(ScheduleHandler(*item) for item in SCHEDULES.items())],
    )
    assert trainer._update_on_kvstore is update_on_kvstore or contexts is ONE
    for step, (weights, reference) in enumerate(zip(recorder.weights, expected, strict=True)):
        assert problems.relative_difference(weights, reference) < 1e-10, step


def by_batch(epochs, batches=BATCHES):
    return [Fraction(i, epochs * batches) for i in range(epochs * batches)]


def by_epoch(epochs):
    return [Fraction(epoch, epochs) for epoch in range(epochs) for _ in range(BATCHES)]


@pytest.mark.parametrize(
    ("arguments", "sized", "per", "expected"),
    [
        ({"epochs": 3}, True, "batch", by_batch(3)),
        ({"epochs": 3}, True, "epoch", by_epoch(3)),
        ({"epochs": 3}, False, "batch", by_epoch(3)),
        ({"epochs": 3}, False, "epoch", by_epoch(3)),
        ({"batches": 13}, True, "batch", by_batch(1, 13)),
        ({"batches": 13}, False, "batch", by_batch(1, 13)),
        ({"batches": 13}, True, "epoch", [Fraction(i // 5 * 5, 13) for i in range(13)]),
        ({"batches": 1}, True, "batch", [0]),
    ],
)
def test_the_progress_that_is_asked_for(arguments, sized, per, expected):
    data = problems.make("softmax").ndarrays()
    values = Values()
    handler = ScheduleHandler("learning_rate", lambda progress: 1e-3 + progress, per)
    fit([handler, values], data if sized else Unsized(data), **arguments)
    assert values.first == pytest.approx([1e-3 + float(p) for p in expected], rel=1e-14)


@pytest.mark.parametrize(
    ("optimizer", "name", "before"),
    [
        ("adam", "beta1", 0.9),
        ("rmsprop", "gamma1", 0.9),
        ("lars", "eta", 1e-3),
        ("ftrl", "beta", 1),
    ],
)
def test_any_number_of_the_optimizer(optimizer, name, before):
    problem = problems.make("softmax", dtype="float32")
    estimator = estimator_of(problem, optimizer, {})
    assert vars(estimator.trainer.optimizer)[name] == before
    values = Values([name])
    handlers = [ScheduleHandler(name, schedules.linear(0.5, 0.25)), values]
    estimator.fit(problem.ndarrays("float32"), epochs=1, event_handlers=handlers)
    assert values.first == pytest.approx([0.5 - 0.05 * i for i in range(5)])


def test_a_second_fit_starts_from_the_beginning():
    problem = problems.make("softmax")
    estimator = estimator_of(problem)
    values, handler = Values(), ScheduleHandler("learning_rate", schedules.linear(0.1, 0.0))
    for _ in range(2):
        estimator.fit(problem.ndarrays(), epochs=2, event_handlers=[handler, values])
    assert (
        values.first[:10] == values.first[10:] == pytest.approx([0.1 - 0.01 * i for i in range(10)])
    )


def resumed(directory, stop, make_handlers, epochs=4, make_metric=lambda: None):
    """Train with a break by `stop`; return estimator and values of the second part."""
    for part in (1, 2):
        net = gluon.nn.Dense(3, in_units=6, prefix="net_")
        net.cast("float64")
        mx.random.seed(part)  # the second net is to get the first one's weights
        net.initialize(mx.init.Normal(0.5))
        problem = problems.make("softmax")._replace(net=net)
        estimator = estimator_of(problem, metrics=make_metric())
        values = Values(("lr", "wd", "momentum"))
        handlers = [*make_handlers(), values]
        if directory is not None:
            handlers.append(gs.CheckpointHandler(directory))
        if directory is not None and part == 1:
            handlers.append(stop)
        estimator.fit(
            problem.ndarrays(),
            epochs=epochs,
            event_handlers=handlers,
            resume="auto" if directory is not None and part == 2 else None,
        )
        if directory is None:
            return estimator, values.seen
    return estimator, values.seen


@pytest.mark.parametrize("per", ["batch", "epoch"])
@pytest.mark.parametrize(
    "stop",
    [StopAfter(1), StopAfter(5), StopAfter(10, "epoch_end"), StopAfter(12), StopAfter(19)],
    ids=["1", "5", "epoch 2", "12", "19"],
)
def test_a_resumed_run_has_the_values_of_an_uninterrupted_one(tmp_path, per, stop):
    def make_handlers():
        return [ScheduleHandler(name, schedule, per) for name, schedule in SCHEDULES.items()]

    whole, all_values = resumed(None, None, make_handlers)
    estimator, values = resumed(tmp_path, stop, make_handlers)
    assert len(values) == 20 - stop.batches
    assert values == all_values[stop.batches :]
    assert problems.same(problems.weights_of(estimator.net), problems.weights_of(whole.net))


@pytest.mark.parametrize("value", [None, "0.1", True, 1j, [0.1]])
def test_a_schedule_that_gives_no_number(value):
    message = (
        r"the schedule's value of 'wd' at progress 0\.25 must be a number, got .*: "
        "look at the schedule"
    )
    with pytest.raises(TypeError, match=message):
        fit([ScheduleHandler("wd", lambda progress: value if progress >= 0.25 else 0.1)])


@pytest.mark.parametrize("value", [float("nan"), float("inf"), np.float32("-inf")])
def test_a_schedule_that_gives_no_finite_number(value):
    message = rf"the schedule's value of 'wd' at progress 0 must be a finite number, got .*{value}"
    with pytest.raises(ValueError, match=message):
        fit([ScheduleHandler("wd", lambda progress: value)])


@pytest.mark.parametrize("value", [np.float32(0.5), np.float64(0.5), np.int64(1), 1])
def test_numbers_of_numpy_are_numbers(value):
    estimator = fit([ScheduleHandler("wd", lambda progress: value)])
    assert estimator.trainer.optimizer.wd == value
    assert type(estimator.trainer.optimizer.wd) is float


NOT_THERE = (
    r"hyperparameter '{}' is no number of this optimizer that can be set, a SGD, which has "
    r"'learning_rate', 'momentum', 'wd'$"
)


@pytest.mark.parametrize("make", [ScheduleHandler, lambda name, _: plateau(hyperparameter=name)])
@pytest.mark.parametrize(
    "name", ["beta1", "lr", "num_update", "rescale_grad", "clip_gradient", "lazy_update"]
)
def test_a_hyperparameter_that_is_not_there(make, name):
    problem = problems.make("softmax")
    before = problem.params
    with pytest.raises(ValueError, match=NOT_THERE.format(name)):
        estimator_of(problem).fit(
            problem.ndarrays(),
            epochs=1,
            event_handlers=[make(name, schedules.constant(1.0))],
        )
    assert problems.same(problem.params, before)


def plateau(**arguments):
    return PlateauHandler("training accuracy", **arguments)


@pytest.mark.parametrize(
    "make", [lambda: ScheduleHandler("learning_rate", schedules.cosine(0.1)), plateau]
)
def test_an_lr_scheduler_is_a_second_owner(make):
    problem = problems.make("softmax")
    scheduler = mx.lr_scheduler.FactorScheduler(5, 0.5)
    estimator = estimator_of(problem, optimizer_params={"lr_scheduler": scheduler})
    handler = make()
    message = (
        "the learning rate has two owners, the optimizer's lr_scheduler and "
        f"{type(handler).__name__}: remove one of them"
    )
    with pytest.raises(ValueError, match=message):
        estimator.fit(problem.ndarrays(), epochs=1, event_handlers=[handler])
    # Of another hyper-parameter it is none.
    other = ScheduleHandler("wd", schedules.constant(0.1))
    estimator.fit(problem.ndarrays(), epochs=1, event_handlers=[other])


def test_two_handlers_of_one_hyperparameter():
    rate = ScheduleHandler("learning_rate", schedules.cosine(0.1))
    message = "ScheduleHandler and PlateauHandler both set 'learning_rate': give one of them"
    with pytest.raises(ValueError, match=message):
        fit([rate, plateau()])


def test_momentum_cannot_begin_with_nothing():
    problem = problems.make("softmax")
    estimator = estimator_of(problem, optimizer_params={"learning_rate": 0.1})
    handler = ScheduleHandler("momentum", schedules.constant(0.9))
    with pytest.raises(
        ValueError, match=r"momentum is 0 and cannot be scheduled: .* make no state"
    ):
        estimator.fit(problem.ndarrays(), epochs=1, event_handlers=[handler])
    rising = schedules.warm_up(schedules.constant(0.9), 0.5)
    message = r"value of 'momentum' at progress 0 must be above 0, got 0\.0: optimizers keep no"
    with pytest.raises(ValueError, match=message):
        fit([ScheduleHandler("momentum", rising)])


ERRORS = [
    (lambda: ScheduleHandler("wd", 0.1), TypeError, r"schedule must be a callable .* got 0\.1"),
    (
        lambda: ScheduleHandler("wd", schedules.constant(1), per="step"),
        ValueError,
        r"per must be 'batch' or 'epoch', got 'step'",
    ),
    (
        lambda: ScheduleHandler(0.1, schedules.constant(1)),
        TypeError,
        r"hyperparameter must be 'learning_rate' or the name .* got 0\.1",
    ),
    (
        lambda: ScheduleHandler("coefficient", schedules.constant(1)),
        ValueError,
        r"is SVRG's, .* SVRGHandler\(coefficient=schedule\)",
    ),
    (lambda: plateau(hyperparameter="coefficient"), ValueError, r"SVRGHandler\(coefficient=sch"),
    (lambda: plateau(factor=1), ValueError, r"factor must be below 1, got 1"),
    (lambda: plateau(factor=0), ValueError, r"factor must be a number above 0, got 0"),
    (lambda: plateau(patience=0), ValueError, r"patience must be a positive integer, got 0"),
    (lambda: plateau(patience=1.0), TypeError, r"patience must be a positive integer, got 1\.0"),
    (lambda: plateau(cooldown=-1), ValueError, r"cooldown must be a non-negative integer, got -1"),
    (lambda: plateau(min_delta=-1), ValueError, r"min_delta must be a number of at least 0"),
    (lambda: plateau(minimum="0"), TypeError, r"minimum must be a number of at least 0, got '0'"),
    (lambda: plateau(mode="least"), ValueError, r"mode must be 'auto', 'min' or 'max'"),
]


@pytest.mark.parametrize(("make", "error", "message"), ERRORS)
def test_wrong_arguments(make, error, message):
    with pytest.raises(error, match=message):
        make()


class Turn(EpochBegin):
    """Tells the metric which epoch it is."""

    def epoch_begin(self, estimator, *args, **kwargs):
        for metric in estimator.train_metrics:
            metric.epoch = estimator.position.epoch


class Rates(EpochEnd):
    """Keeps the rate after each epoch."""

    priority = 3000

    def __init__(self):
        self.seen = []

    def epoch_end(self, estimator, *args, **kwargs):
        self.seen.append(estimator.trainer.learning_rate)


def rates_of(values, **arguments):
    """Return the learning rate, from 1, after each epoch with those figures."""
    problem = problems.make("softmax", samples=8)
    estimator = estimator_of(
        problem, optimizer_params={"learning_rate": 1.0}, metrics=problems.Scripted(values)
    )
    handler = PlateauHandler("training figure", **{"mode": "min", "factor": 0.5, **arguments})
    rates = Rates()
    estimator.fit(problem.ndarrays(), epochs=len(values), event_handlers=[handler, Turn(), rates])
    return rates.seen


PLATEAUS = {
    "each epoch": ([1, 1, 1, 1], {"patience": 1}, [1, 0.5, 0.25, 0.125]),
    "in a row": ([5, 6, 4, 4, 4, 4, 4], {"patience": 2}, [1, 1, 1, 1, 0.5, 0.5, 0.25]),
    "never": ([5, 4, 3, 2], {"patience": 1}, [1, 1, 1, 1]),
    "max": ([1, 2, 1, 3, 3], {"patience": 1, "mode": "max"}, [1, 1, 0.5, 0.5, 0.25]),
    "min_delta": ([1, 0.9, 0.8, 0.5], {"patience": 1, "min_delta": 0.25}, [1, 0.5, 0.25, 0.25]),
    "exactly min_delta": ([1, 0.75], {"patience": 1, "min_delta": 0.25}, [1, 0.5]),
    "nan is no improvement": ([1, None, 1, None, 1], {"patience": 2}, [1, 1, 0.5, 0.5, 0.25]),
    "nan at first": ([None, 2, 2], {"patience": 1}, [0.5, 0.5, 0.25]),
    "cooldown 1": ([1] * 6, {"patience": 1, "cooldown": 1}, [1, 0.5, 0.5, 0.25, 0.25, 0.125]),
    "cooldown 2": ([1] * 7, {"patience": 2, "cooldown": 2}, [1, 1, 0.5, 0.5, 0.5, 0.5, 0.25]),
    "better in the cooldown": (
        [3, 3, 2, 2, 2],
        {"patience": 1, "cooldown": 2},
        [1, 0.5, 0.5, 0.5, 0.25],
    ),
    "minimum": ([1] * 4, {"patience": 1, "minimum": 0.3}, [1, 0.5, 0.3, 0.3]),
    "minimum is above": ([1] * 3, {"patience": 1, "minimum": 2}, [1, 1, 1]),
    "factor": ([1] * 3, {"patience": 1, "factor": 0.25}, [1, 0.25, 0.0625]),
}


@pytest.mark.parametrize("name", PLATEAUS)
def test_when_the_rate_is_reduced(name):
    values, arguments, expected = PLATEAUS[name]
    assert rates_of(values, **arguments) == expected


@pytest.mark.slow
def test_patience_is_pytorchs_plus_one():
    """PyTorch's ReduceLROnPlateau, written down: its patience of 1 is 2 here."""

    def pytorch(values, patience, cooldown):
        rate, best, bad, left, rates = 1.0, float("inf"), 0, 0, []
        for value in values:
            bad = 0 if value < best else bad + 1
            best = min(value, best)
            if left > 0:
                left, bad = left - 1, 0
            if bad > patience:
                rate, left, bad = rate * 0.5, cooldown, 0
            rates.append(rate)
        return rates

    values = list(np.random.default_rng(1).integers(0, 20, 40).astype(float))
    for patience in (1, 2):
        for cooldown in (0, 1, 3):
            ours = rates_of(values, patience=patience + 1, cooldown=cooldown)
            assert ours == pytorch(values, patience, cooldown)
            assert ours[-1] < 1


def test_a_plateau_of_another_hyperparameter_and_a_line_in_the_log(caplog):
    problem = problems.make("softmax", samples=8)
    estimator = estimator_of(problem, metrics=problems.Scripted([0.5, 0.5, 0.5]))
    estimator.logger = logging.getLogger("test_schedule")
    handler = PlateauHandler("training figure", "max", "momentum", patience=2, factor=0.5)
    with caplog.at_level(logging.INFO, logger="test_schedule"):
        estimator.fit(problem.ndarrays(), epochs=3, event_handlers=[handler, Turn()])
    assert estimator.trainer.optimizer.momentum == 0.45
    lines = [record.getMessage() for record in caplog.records if "improved" in record.getMessage()]
    assert lines == [
        "epoch 2: training figure has not improved on 0.5 for 2 epochs: momentum 0.9 -> 0.45"
    ]


def test_a_plateau_without_its_figure():
    message = r"monitor='validation accuracy' is no metric of this run, which has 'training accur"
    with pytest.raises(ValueError, match=message):
        fit([PlateauHandler("validation accuracy")])


def test_a_second_fit_counts_from_zero():
    problem = problems.make("softmax", samples=8)
    estimator = estimator_of(
        problem, optimizer_params={"learning_rate": 1.0}, metrics=problems.Scripted([1, 1, 1])
    )
    handler, rates = PlateauHandler("training figure", "min", patience=3), Rates()
    for _ in range(2):
        estimator.fit(problem.ndarrays(), epochs=3, event_handlers=[handler, Turn(), rates])
    assert rates.seen == [1.0] * 6


@pytest.mark.slow
@pytest.mark.parametrize(
    "stop",
    [StopAfter(2), *(StopAfter(n, "epoch_end") for n in (10, 15, 20)), StopAfter(20)],
    ids=["2", "epoch 2", "epoch 3", "epoch 4", "20"],
)
def test_a_plateau_goes_on_after_a_resume(tmp_path, stop):
    def make_handlers():
        return [PlateauHandler("training figure", "min", patience=2, cooldown=1), Turn()]

    def run(directory):
        def make_metric():
            return problems.Scripted([3] * 7)

        return resumed(directory, stop, make_handlers, epochs=7, make_metric=make_metric)

    whole, all_values = run(None)
    rates = [lr for lr, *_ in all_values[::BATCHES]]
    assert rates == pytest.approx([9, 9, 9, 0.9, 0.9, 0.9, 0.09])
    estimator, values = run(tmp_path)
    assert values == all_values[stop.batches :]
    assert problems.same(problems.weights_of(estimator.net), problems.weights_of(whole.net))


@pytest.mark.parametrize(
    "scheduler",
    [
        mx.lr_scheduler.CosineScheduler(50, base_lr=0.1, final_lr=0),
        mx.lr_scheduler.FactorScheduler(10, 0.5),
    ],
)
def test_mxnets_lr_scheduler_is_no_schedule(scheduler):
    name = type(scheduler).__name__
    message = rf"got MXNet's {name}, a function of the number of updates: .*schedules.*lr_scheduler"
    for make in (
        lambda: ScheduleHandler("learning_rate", scheduler),
        lambda: schedules.warm_up(scheduler, 0.1),
    ):
        with pytest.raises(TypeError, match=message):
            make()


FACTOR = mx.lr_scheduler.FactorScheduler(10, 0.5)


def fits(caplog, handlers_of_fits, between=lambda trainer: None):
    """The warnings of each of several calls of `fit` with one estimator."""
    problem = problems.make("softmax")
    estimator = estimator_of(problem)
    warnings = []
    for handlers in handlers_of_fits:
        caplog.clear()
        estimator.fit(problem.ndarrays(), epochs=2, event_handlers=handlers)
        warnings.append([r.getMessage() for r in caplog.records if r.levelno == logging.WARNING])
        between(estimator.trainer)
    return warnings


def constant(trainer):
    """An lr_scheduler that gives the rate that the trainer has."""
    return mx.lr_scheduler.FactorScheduler(10**6, base_lr=trainer.learning_rate)


def rate(start, end):
    return ScheduleHandler("learning_rate", schedules.linear(start, end))


def test_describe_tells_nothing_that_fit_is_to_tell(caplog):
    problem = problems.make("softmax")
    estimator = estimator_of(problem)
    estimator.fit(problem.ndarrays(), epochs=2, event_handlers=[rate(0.1, 0.0)])
    estimator.describe()
    assert "earlier fit" not in caplog.text
    estimator.fit(problem.ndarrays(), epochs=1)
    assert "earlier fit" in caplog.text


def test_a_rate_that_an_earlier_schedule_left_is_told_once(caplog):
    first, plain, again = fits(caplog, [[rate(0.1, 0.0)], [], []])
    assert (first, again) == ([], [])
    (line,) = plain
    assert re.match(
        r"learning_rate is 0\.01, as the ScheduleHandler of an earlier fit has left it, and .*"
        r"begin with trainer\.set_learning_rate\(9\)",
        line,
    )


def test_after_two_schedules_the_first_rate_is_named(caplog):
    handler = [rate(0.1, 0.0)]
    assert "set_learning_rate(9)" in fits(caplog, [handler, handler, []])[2][0]


def test_of_a_rate_that_was_set_between_two_schedules_that_one_is_named(caplog):
    handler, rates = [rate(0.1, 0.0)], [0.5]

    def set_once(trainer):
        if rates:
            trainer.set_learning_rate(rates.pop())

    assert "set_learning_rate(0.5)" in fits(caplog, [handler, handler, []], set_once)[2][0]


def test_another_number_that_was_left_is_told_with_its_attribute(caplog):
    decay = ScheduleHandler("wd", schedules.linear(0.1, 0.2))
    (line,) = fits(caplog, [[decay, rate(0.1, 0.0)], [rate(0.1, 0.0)]])[1]
    assert line.startswith("wd is 0.19, ")
    assert "trainer.optimizer.wd = 0," in line


@pytest.mark.parametrize(
    ("handlers", "between"),
    [
        ([], lambda trainer: trainer.set_learning_rate(0.5)),
        ([rate(0.3, 0.1)], lambda trainer: None),
        ([], lambda trainer: setattr(trainer.optimizer, "lr_scheduler", FACTOR)),
        ([], lambda trainer: setattr(trainer.optimizer, "lr_scheduler", constant(trainer))),
    ],
)
def test_a_rate_that_is_set_again_is_not_told(caplog, handlers, between):
    assert fits(caplog, [[rate(0.1, 0.0)], handlers], between)[1] == []


def test_a_schedule_that_ends_where_it_began_is_not_told(caplog):
    assert fits(caplog, [[rate(9, 9)], []])[1] == []
