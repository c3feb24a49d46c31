"""Every argument of every handler is in the settings, and a resume tells that it has changed."""

import functools
import inspect
import io
import logging
import re
import signal

import gluon_svrg as gs
import mxnet as mx
import numpy as np
import pytest
from gluon_svrg import events, schedules
from gluon_svrg.settings import differences, scheduled_in
from mxnet import gluon
from mxnet.gluon import nn
from mxnet.lr_scheduler import FactorScheduler

RNG = np.random.default_rng(0)
BATCHES = [
    (mx.nd.array(RNG.normal(size=(4, 6))), mx.nd.array(RNG.integers(0, 3, 4))) for _ in range(8)
]
EXPORTED = [
    value
    for value in (getattr(gs, name) for name in gs.__all__)
    if isinstance(value, type) and issubclass(value, events.EventHandler)
]
LOSS, ACCURACY = "training loss", "training accuracy"


def estimator_of(learning_rate=0.1, **params):
    gs.seed_everything(0)
    net = nn.HybridSequential(prefix="net_")
    with net.name_scope():
        net.add(nn.Dense(4, in_units=6), nn.Dropout(0.1), nn.Dense(3, in_units=4))
    net.initialize(mx.init.Normal(0.5))
    params = {"learning_rate": learning_rate, "momentum": 0.9, **params}
    trainer = gs.SVRGTrainer(net.collect_params(), "sgd", params)
    metrics = [mx.metric.Loss("loss"), mx.metric.Accuracy()]
    return gs.Estimator(net, gluon.loss.SoftmaxCELoss(), metrics, trainer=trainer)


# What a handler needs, by class; what is given in place of its defaults, by class and argument.
NEEDED = {
    gs.CheckpointHandler: {"directory": "first", "every_n_batches": 8, "monitor": LOSS},
    gs.EarlyStoppingHandler: {"monitor": LOSS, "patience": 5, "restore_best": True},
    gs.HistoryFileHandler: {"path": "first.csv"},
    gs.MLflowHandler: {"tracking_uri": "sqlite:///first.db"},
    gs.NaNGuardHandler: {"every_n_batches": 3},
    gs.PlateauHandler: {"monitor": LOSS},
    gs.SVRGHandler: {"max_variance_ratio": 0.5, "recheck_every_n_epochs": 3},
    gs.ScheduleHandler: {"hyperparameter": "learning_rate", "schedule": schedules.cosine(0.1)},
    gs.TensorBoardHandler: {"log_dir": "first"},
    gs.TimeLimitHandler: {"seconds": 3600},
    gs.ValidationHandler: {"val_data": BATCHES},
}
OTHERS = {
    "action": "stop",
    "at": (5, 50),
    "clip_norm": 0.5,
    "clip_value": 0.5,
    "directory": "second",
    "epochs": [0, 1],
    "evaluate": False,
    "every_n_batches": 4,
    "event_handlers": [gs.HistoryHandler()],
    "experiment": "another",
    "export_sample": mx.nd.ones((2, 6)),
    "file": io.StringIO(),
    "gradient_table": False,
    "hyperparameter": "wd",
    "keep": False,
    "lock": "off",
    "log_dir": "second",
    "metrics": None,  # those of the estimator, which makes them
    "mode": "max",
    "monitor": ACCURACY,
    "name": "test",
    "path": "second.csv",
    "per": "epoch",
    "run_name": "another",
    "schedule": schedules.linear(0.1, 0.01),
    "signals": [signal.SIGTERM],
    "sparse_correction": "sparse",
    "stop_epoch": 7,
    "tags": {"of": "me"},
    "trace": "trace.json",
    "trace_batches": (2, 3),
    "tracking_uri": "sqlite:///second.db",
    "train_data": BATCHES[:4],
    "val_data": BATCHES[:5],
    "baseline": 3.0,
}
# An argument that the handler does not take beside its other needed ones.
WITHOUT = {
    (gs.SVRGHandler, "sparse_correction"): {
        "max_variance_ratio": None,
        "recheck_every_n_epochs": None,
    },
}


def arguments_of(cls):
    """Return the arguments of a handler by name, with their defaults."""
    defaults = {
        name: parameter.default
        for name, parameter in inspect.signature(cls.__init__).parameters.items()
        if name != "self"
    }
    return {**defaults, **NEEDED.get(cls, {})}


def other_value(cls, name):
    value = arguments_of(cls)[name]
    if name in OTHERS:
        return OTHERS[name]
    if isinstance(value, bool):
        return not value
    if name == "priority":
        return float(value) + 1 if np.isfinite(float(value)) else 9000.0
    assert isinstance(value, int | float), f"give another value of {name} in OTHERS"
    return value + 1 if isinstance(value, int) else value / 2 or 0.25


CASES = [(cls, name) for cls in EXPORTED for name in arguments_of(cls)]


def made(cls, estimator, **arguments):
    if cls is gs.MLflowHandler:
        pytest.importorskip("mlflow", reason="the extra mlflow is not installed")
    if cls is gs.MetricHandler:
        arguments.setdefault("metrics", estimator.train_metrics)
        if arguments["metrics"] is None:
            arguments["metrics"] = estimator.train_metrics[:1]
    return cls(**{**NEEDED.get(cls, {}), **arguments})


def fit(estimator, epochs, handler, folder, resume=None):
    handlers = [handler]
    if not isinstance(handler, gs.CheckpointHandler):
        handlers.append(gs.CheckpointHandler(folder))
    estimator.fit(BATCHES, epochs=epochs, event_handlers=handlers, resume=resume)
    return estimator.settings


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("cls", EXPORTED, ids=lambda cls: cls.__name__)
def test_every_argument_is_in_the_settings_as_plain_data(cls):
    estimator = estimator_of()
    settings = fit(estimator, 1, made(cls, estimator), "checkpoints")[cls.__name__]
    assert list(settings) == list(arguments_of(cls))
    assert not re.search(r"0x[0-9a-f]{6}", str(settings))
    assert all(
        item is None or isinstance(item, str | bool | int | float)
        for value in settings.values()
        for item in (value if isinstance(value, list) else [value])
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cls", "name"), CASES, ids=[f"{cls.__name__}-{name}" for cls, name in CASES]
)
def test_a_resume_tells_every_argument_that_has_changed(cls, name, caplog):
    estimator = estimator_of()
    before = WITHOUT.get((cls, name), {})
    fit(estimator, 1, made(cls, estimator, **before), "first")
    caplog.set_level(logging.INFO)
    estimator = estimator_of()
    value = other_value(cls, name)
    caplog.clear()
    settings = fit(estimator, 2, made(cls, estimator, **{**before, name: value}), "first", "first")
    new = settings[cls.__name__][name]
    assert re.search(rf"{cls.__name__}: [^;]*{name} {re.escape(str(new))} \(not ", caplog.text)
    is_place = name in ("directory", "path", "log_dir", "trace", "file")
    levels = {r.levelname for r in caplog.records if "other settings" in r.getMessage()}
    assert levels == {"INFO" if is_place else "WARNING"}


@pytest.mark.parametrize("cls", EXPORTED, ids=lambda cls: cls.__name__)
def test_a_resume_with_the_same_arguments_tells_nothing(cls, caplog):
    for epochs in (1, 2):
        estimator = estimator_of()
        fit(estimator, epochs, made(cls, estimator), "first", "first" if epochs == 2 else None)
    assert "other settings" not in caplog.text


class Half:
    """A schedule that is an object."""

    def __init__(self, value):
        self.value = value

    def __call__(self, progress):
        return self.value * (1 - progress / 2)


def halved(value, progress):
    return Half(value)(progress)


MADE = {
    "constant": lambda v: schedules.constant(v),
    "linear": lambda v: schedules.linear(v, 0.01),
    "step": lambda v: schedules.step(v, (0.25, 0.5), factor=0.2),
    "cosine": lambda v: schedules.cosine(v),
    "poly": lambda v: schedules.poly(v, power=1.5),
    "one_cycle": lambda v: schedules.one_cycle(v),
    "warm_up": lambda v: schedules.warm_up(schedules.poly(v), 0.1),
    "linear_decay": lambda v: gs.linear_decay(v, 0.01),
    "a function of the user's in a warm-up": lambda v: schedules.warm_up(lambda p: v, 0.1),
    "a function of the user's": lambda v: lambda p: v * (1 - p),
    "an object of the user's": lambda v: Half(v),
    "a part of a function": lambda v: functools.partial(halved, v),
    "a method of an object": lambda v: Half(v).__call__,
    "other code": lambda v: (lambda p: 0.3 - 0.1 * p) if v == 0.3 else (lambda p: 0.2 - 0.1 * p),
}


def test_all_schedules_are_among_them():
    assert {*schedules.__all__, "linear_decay"} <= set(MADE)


@pytest.mark.parametrize("name", [*schedules.__all__, "linear_decay"])
def test_a_schedule_is_told_as_the_call_that_makes_it(name):
    schedule = MADE[name](0.3)
    names = {**vars(schedules), "linear_decay": gs.linear_decay}
    again = eval(repr(schedule), names)
    progress = np.linspace(0, 1, 21)
    assert [again(p) for p in progress] == [schedule(p) for p in progress]
    assert repr(schedule).startswith(f"{name}(")


@pytest.mark.parametrize("kind", MADE)
@pytest.mark.parametrize(
    ("handler_of", "argument"),
    [
        (lambda schedule: gs.ScheduleHandler("learning_rate", schedule), "schedule"),
        (lambda schedule: gs.ScheduleHandler("wd", schedule, per="epoch"), "schedule"),
        (lambda schedule: gs.SVRGHandler(coefficient=schedule), "coefficient"),
    ],
    ids=["learning rate", "wd", "coefficient"],
)
def test_another_schedule_is_told(handler_of, argument, kind, caplog):
    settings = fit(estimator_of(), 1, handler_of(MADE[kind](0.3)), "first")
    handler = handler_of(MADE[kind](0.3))
    fit(estimator_of(), 2, handler, "first", "first")
    assert "other settings" not in caplog.text
    handler = handler_of(MADE[kind](0.2))
    new = fit(estimator_of(), 3, handler, "first", "first")
    owner = type(handler).__name__
    told = f"{owner}: {argument} {new[owner][argument]} (not {settings[owner][argument]})"
    assert f"keeps its own: {told}" in caplog.text
    assert "0x" not in told
    if owner == "ScheduleHandler":
        name = {"learning_rate": "lr"}.get(handler.hyperparameter, handler.hyperparameter)
        assert new["optimizer"][name] == new[owner]["schedule"]


def test_a_schedule_that_is_new_in_the_resume_is_told(caplog):
    fit(estimator_of(), 1, gs.HistoryHandler(), "first")
    handler = gs.ScheduleHandler("learning_rate", schedules.cosine(0.3))
    fit(estimator_of(), 2, handler, "first", "first")
    assert "its own: optimizer: lr cosine(start=0.3, end=0.0) (not 0.1)" in caplog.text


class OwnSchedule(gs.ScheduleHandler):
    """A handler of the user's that sets the learning rate."""

    def __init__(self, value):
        super().__init__("learning_rate", schedules.constant(value))


def test_a_handler_of_the_users_that_inherits(caplog):
    settings = fit(estimator_of(), 1, OwnSchedule(0.3), "first")
    assert settings["ScheduleHandler"]["class"].endswith("test_settings.OwnSchedule")
    assert settings["optimizer"]["lr"] == "constant(value=0.3)"
    fit(estimator_of(), 2, OwnSchedule(0.2), "first", "first")
    assert "ScheduleHandler: schedule constant(value=0.2) (not constant(value=0.3))" in caplog.text
    caplog.clear()
    fit(estimator_of(), 3, gs.HistoryHandler(), "first", "first")
    assert "had a ScheduleHandler for learning_rate and this one has none" in caplog.text


def test_the_learning_rate_of_mxnets_scheduler(caplog):
    def resumed(epochs, factor):
        scheduler = FactorScheduler(4, factor, base_lr=0.1)
        estimator = estimator_of(lr_scheduler=scheduler)
        return fit(estimator, epochs, gs.HistoryHandler(), "first", "first" if epochs > 1 else None)

    settings = resumed(1, 0.5)
    name = "mxnet.lr_scheduler.FactorScheduler"
    assert settings["optimizer"]["lr"] == settings["lr_scheduler"]["class"] == name
    assert settings["lr_scheduler"]["base_lr"] == 0.1
    resumed(2, 0.9)
    assert "its own: lr_scheduler: factor 0.9 (not 0.5)" in caplog.text


def test_a_learning_rate_that_0_8_has_measured_is_no_other_setting():
    saved = {
        "optimizer": {"lr": "0.526738, measured by AutoLearningRateHandler", "wd": 0.1},
        "AutoLearningRateHandler": {"samples": 1024},
    }
    changed = differences(saved, {"optimizer": {"lr": 0.1, "wd": 0.2}})
    assert changed == {"optimizer": {"wd": (0.1, 0.2)}}
    assert scheduled_in(saved) == {"AutoLearningRateHandler": "learning_rate"}


def test_the_report_and_mlflow_tell_them(tmp_path):
    mlflow = pytest.importorskip("mlflow", reason="the extra mlflow is not installed")
    uri = "sqlite:///mlflow.db"
    handlers = [
        gs.MLflowHandler(tracking_uri=uri),
        gs.ScheduleHandler("learning_rate", schedules.cosine(0.3)),
        gs.EarlyStoppingHandler(ACCURACY, patience=3),
        gs.CheckpointHandler("checkpoints", monitor=LOSS),
    ]
    result = estimator_of().fit(BATCHES, epochs=1, event_handlers=handlers)
    expected = {
        "optimizer.lr": "cosine(start=0.3, end=0.0)",
        "ScheduleHandler.schedule": "cosine(start=0.3, end=0.0)",
        "EarlyStoppingHandler.monitor": ACCURACY,
        "EarlyStoppingHandler.mode": "max",
        "CheckpointHandler.monitor": LOSS,
    }
    params = mlflow.MlflowClient(uri).get_run(handlers[0].run_id).data.params
    assert expected.items() <= params.items()
    result.report("report.html")
    page = re.sub(r"<.*?>", " ", (tmp_path / "report.html").read_text().replace("<wbr>", ""))
    assert all(value in page for value in expected.values())


@pytest.mark.parametrize("is_changed", [False, True])
@pytest.mark.parametrize(
    "handler_of",
    [
        lambda monitor: gs.EarlyStoppingHandler(monitor, patience=9, restore_best=True),
        lambda monitor: gs.PlateauHandler(monitor),
    ],
    ids=["early stopping", "plateau"],
)
def test_a_best_value_of_another_figure_does_not_count(handler_of, is_changed, caplog):
    """A loss of 1.5 is no accuracy to be beaten."""
    fit(estimator_of(), 1, handler_of(LOSS), "first")
    monitor = ACCURACY if is_changed else LOSS
    estimator, handler = estimator_of(), handler_of(monitor)
    fit(estimator, 2, handler, "first", "first")
    figures = (
        estimator.history.column(monitor)[1:] if is_changed else estimator.history.column(LOSS)
    )
    best = max(figures) if is_changed else min(figures)
    assert handler.state_dict(estimator)["best"] == best
    told = f"is the min of '{LOSS}', and {type(handler).__name__} watches the max of '{ACCURACY}'"
    assert (told in caplog.text) == is_changed


class Slotted:
    __slots__ = ("peak",)

    def __init__(self, peak):
        self.peak = peak

    def __call__(self, progress):
        return self.peak


def test_objects_that_refer_to_much_or_have_no_attributes():
    estimator = estimator_of()
    schedule = Half(0.3)
    schedule.itself, schedule.estimator, schedule.net = schedule, estimator, estimator.net
    handlers = [gs.ScheduleHandler("wd", schedule), gs.ScheduleHandler("momentum", Slotted(0.9))]
    estimator.fit(BATCHES, epochs=1, event_handlers=handlers)
    assert estimator.settings["ScheduleHandler"]["schedule"].endswith(
        "test_settings.Half(value=0.3)"
    )
    assert estimator.settings["ScheduleHandler 2"]["schedule"].endswith("test_settings.Slotted()")
