"""What holds for every handler that the package exports."""

import inspect
import logging
import numbers
import re
import shutil
from typing import Any, NamedTuple

import gluon_svrg as gs
import mxnet as mx
import numpy as np
import problems
import pytest
from gluon_svrg import events
from gluon_svrg.arrays.encoding import decode, from_bytes
from gluon_svrg.checkpoint import storage
from gluon_svrg.events import BatchBegin, BatchEnd, Stateful
from gluon_svrg.reporting.history import MEASURED
from mxnet import gluon
from mxnet.gluon import nn
from mxnet.gluon.contrib import estimator as mx_estimator
from mxnet.gluon.contrib.estimator import event_handler

pytestmark = pytest.mark.usefixtures("mode")

RNG = np.random.default_rng(0)
BATCHES = [(RNG.normal(size=(4, 6)), RNG.integers(0, 3, 4)) for _ in range(4)]
LOSS = "training loss"


class Entry(NamedTuple):
    """How a handler is made (from the estimator and a folder), and whether it trains otherwise."""

    arguments: Any
    changes_weights: bool


TABLE = {
    gs.CheckpointHandler: Entry(lambda e, path: {"directory": path, "monitor": LOSS}, False),
    gs.EMAHandler: Entry(lambda e, path: {"decay": 0.9, "keep": True}, True),
    gs.EarlyStoppingHandler: Entry(lambda e, path: {"monitor": LOSS, "restore_best": True}, False),
    gs.GradientUpdateHandler: Entry(lambda e, path: {"accumulate": 3, "clip_norm": 0.1}, True),
    gs.HistoryHandler: Entry(lambda e, path: {}, False),
    gs.HistoryFileHandler: Entry(
        lambda e, path: {"path": path / "log.csv", "overwrite": True}, False
    ),
    # Beside the folder, which a test empties between two runs.
    gs.MLflowHandler: Entry(lambda e, path: {"tracking_uri": f"sqlite:///{path}.db"}, False),
    gs.MetricHandler: Entry(lambda e, path: {"metrics": e.train_metrics}, False),
    gs.NaNGuardHandler: Entry(lambda e, path: {"every_n_batches": 3}, False),
    gs.PlateauHandler: Entry(
        lambda e, path: {"monitor": LOSS, "patience": 1, "min_delta": 10.0}, True
    ),
    gs.ProfilerHandler: Entry(
        lambda e, path: {"trace": path / "t.json", "trace_batches": (1, 3), "overwrite": True},
        False,
    ),
    gs.ProgressHandler: Entry(lambda e, path: {}, False),
    gs.RandomStateHandler: Entry(lambda e, path: {}, False),
    gs.SVRGHandler: Entry(lambda e, path: {"update_freq": 2}, True),
    gs.SanityCheckHandler: Entry(lambda e, path: {}, False),
    gs.ScheduleHandler: Entry(
        lambda e, path: {"hyperparameter": "learning_rate", "schedule": lambda t: 0.1 * (1 - t)},
        True,
    ),
    gs.SignalHandler: Entry(lambda e, path: {}, False),
    gs.TensorBoardHandler: Entry(lambda e, path: {"log_dir": path}, False),
    gs.TimeLimitHandler: Entry(lambda e, path: {"seconds": 3600}, False),
    gs.ValidationHandler: Entry(lambda e, path: {"val_data": BATCHES, "every_n_batches": 3}, False),
    gs.VarianceHandler: Entry(lambda e, path: {"at": (10, 50), "batches": 3}, False),
}
EXPORTED = [
    value
    for value in (getattr(gs, name) for name in gs.__all__)
    if isinstance(value, type) and issubclass(value, events.EventHandler)
]
STATEFUL = [handler for handler in EXPORTED if issubclass(handler, Stateful)]
EVENT_CLASSES = {
    *events.EVENTS.values(),
    *(Stateful, events.EventHandler),
    *(events.HasExclusiveTasks, events.EvaluationEnd, events.RequiresRun),
}


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path_factory, monkeypatch):
    """MLflow makes a folder for artifacts where it is."""
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))


each = pytest.mark.parametrize("cls", EXPORTED, ids=lambda cls: cls.__name__)


def estimator_of(seed=0):
    gs.seed_everything(seed)
    net = nn.HybridSequential(prefix="net_")
    with net.name_scope():
        net.add(nn.Dense(4, in_units=6), nn.BatchNorm(in_channels=4), nn.Dense(3, in_units=4))
    net.initialize(mx.init.Normal(0.5))
    trainer = gs.SVRGTrainer(net.collect_params(), "sgd", {"learning_rate": 0.1, "momentum": 0.9})
    loss = mx.metric.Loss("loss")
    estimator = gs.Estimator(net, gluon.loss.SoftmaxCELoss(), [loss], trainer=trainer)
    estimator.logger = logging.getLogger("test_contract")
    return estimator


def made(cls, estimator, path, **others):
    if cls is gs.MLflowHandler:
        pytest.importorskip("mlflow", reason="the extra mlflow is not installed")
    return cls(**TABLE[cls].arguments(estimator, path), **others)


def fit(estimator, *handlers, **arguments):
    result = estimator.fit(BATCHES, epochs=3, event_handlers=list(handlers), **arguments)
    rows = [{k: v for k, v in row.items() if k not in MEASURED} for row in result.history]
    return problems.weights_of(estimator.net), rows, result.stop_reason, result.epochs_run


@pytest.fixture(scope="module")
def _plain_runs():
    return {}


@pytest.fixture
def plain(_plain_runs, mode):
    """The weights of a run with the default handlers."""
    if mode not in _plain_runs:
        _plain_runs[mode] = fit(estimator_of())[0]
    return _plain_runs[mode]


def test_only_a_users_handler_requests_something_at_a_safe_point():
    """So workers exchange requests after this event only if there is such a handler."""
    listeners = [cls for cls in EXPORTED if issubclass(cls, events.SafePoint)]
    assert listeners
    assert not any(cls.may_request for cls in listeners)
    assert gs.on("safe_point", print).may_request


def test_a_method_of_ones_own_may_request():
    class Same(gs.CheckpointHandler):
        pass

    class Own(gs.CheckpointHandler):
        def safe_point(self, estimator, *args, **kwargs):
            super().safe_point(estimator, *args, **kwargs)

    class OwnThatDoesNot(Own):
        may_request = False

        def safe_point(self, estimator, *args, **kwargs):
            pass

    assert [kind.may_request for kind in (Same, Own, OwnThatDoesNot)] == [False, True, False]


def test_every_exported_handler_is_in_the_table():
    assert set(EXPORTED) == set(TABLE)
    assert len(EXPORTED) >= 17


@each
def test_it_inherits_events_only(cls):
    for base in cls.__mro__[1:]:
        is_mxnets = base.__module__ == event_handler.__name__
        assert base in EVENT_CLASSES or is_mxnets or base is object


@each
def test_it_hears_exactly_what_it_inherits(cls):
    for event, hears in events.EVENTS.items():
        assert hasattr(cls, event) == issubclass(cls, hears)
        if hears in cls.__bases__:
            assert event in vars(cls)
        if event in vars(cls):
            assert issubclass(cls, hears)
    for name in ("state_dict", "load_state_dict"):
        assert (name in vars(cls)) == issubclass(cls, Stateful)


def test_each_that_has_a_state_has_a_key_of_its_own():
    keys = [cls.state_key for cls in STATEFUL]
    assert None not in keys
    assert len(set(keys)) == len(keys)


@each
def test_its_methods_take_an_estimator_and_anything_else(cls):
    for event in events.EVENTS:
        if hasattr(cls, event):
            signature = inspect.signature(getattr(cls, event))
            assert list(signature.parameters)[:2] == ["self", "estimator"]
            signature.bind("self", "estimator", batch=1, anything=2)
            assert inspect.getdoc(getattr(cls, event)) or event not in vars(cls)
    for name, arguments in {
        "state_dict": ["estimator"],
        "load_state_dict": ["estimator", "state"],
    }.items():
        if issubclass(cls, Stateful):
            assert list(inspect.signature(getattr(cls, name)).parameters) == ["self", *arguments]


@each
def test_it_has_a_priority_or_the_default(cls, tmp_path):
    estimator = estimator_of()
    handler = made(cls, estimator, tmp_path)
    assert isinstance(getattr(handler, "priority", 0), numbers.Real)
    without = {gs.TimeLimitHandler, gs.SignalHandler, gs.SanityCheckHandler}
    assert ("priority" in inspect.signature(cls).parameters) == (cls not in without)
    if cls not in without:
        assert made(cls, estimator, tmp_path, priority=7).priority == 7


@each
def test_an_unknown_argument_is_an_error(cls, tmp_path):
    with pytest.raises(TypeError, match="unexpected keyword argument 'unknown'"):
        made(cls, estimator_of(), tmp_path, unknown=1)


@each
def test_its_docstring_has_each_parameter(cls):
    text = inspect.cleandoc(cls.__doc__)
    described = re.findall(r"^(\w+(?:, \w+)*)(?: :.*)?$", text, re.MULTILINE)
    names = {name for line in described for name in line.split(", ")}
    assert set(inspect.signature(cls).parameters) <= names


@pytest.mark.slow
@each
def test_it_trains_otherwise_only_where_it_is_meant_to(cls, plain, tmp_path):
    estimator = estimator_of()
    weights = fit(estimator, made(cls, estimator, tmp_path))[0]
    assert problems.same(weights, plain) != TABLE[cls].changes_weights


@pytest.mark.slow
@each
def test_a_second_fit_is_like_the_first(cls, tmp_path):
    estimator = estimator_of()
    handler = made(cls, estimator, tmp_path / "folder")
    first = fit(estimator, handler)
    shutil.rmtree(tmp_path / "folder", ignore_errors=True)
    second_estimator = estimator_of()
    if cls is gs.MetricHandler:
        handler.metrics = second_estimator.train_metrics
    second = fit(second_estimator, handler)
    assert problems.same(second[0], first[0])
    assert second[1:] == first[1:]


class Probe(BatchBegin):
    """Keeps the state of a handler as it is before anything else happens; then ends the run."""

    priority = -float("inf")

    def __init__(self, handler):
        self.handler = handler
        self.state = None

    def batch_begin(self, estimator, *args, **kwargs):
        if self.state is None:
            self.state = self.handler.state_dict(estimator)
            estimator.stop()


class StopAt(BatchEnd):
    def __init__(self, batch):
        self.batch = batch

    def batch_end(self, estimator, *args, **kwargs):
        if estimator.position.batch + 1 == self.batch:
            estimator.stop()


def equal(ours, theirs):
    """Compare plain data; clocks do not count."""
    if ours is None or theirs is None:
        return ours is theirs
    if isinstance(theirs, dict):
        names = [name for name in theirs if "seconds" not in str(name)]
        return ours.keys() == theirs.keys() and all(equal(ours[n], theirs[n]) for n in names)
    if isinstance(theirs, list | tuple):
        pairs = zip(ours, theirs, strict=False)
        return len(ours) == len(theirs) and all(equal(a, b) for a, b in pairs)
    if isinstance(theirs, mx.nd.NDArray | np.ndarray):
        ours, theirs = (a.asnumpy() if isinstance(a, mx.nd.NDArray) else a for a in (ours, theirs))
        return ours.dtype == theirs.dtype and np.array_equal(ours, theirs)
    return type(ours) is type(theirs) and ours == theirs


@pytest.mark.slow
@pytest.mark.parametrize("cls", STATEFUL, ids=lambda cls: cls.__name__)
def test_its_state_comes_back(cls, tmp_path):
    """Through the files of a checkpoint, into a handler that has seen nothing."""
    estimator = estimator_of()
    handlers = [made(cls, estimator, tmp_path), gs.CheckpointHandler(tmp_path), StopAt(6)]
    fit(estimator, *handlers)
    written = storage.read(tmp_path / "epoch-1-batch-6")
    meta, arrays = from_bytes(written.files["run.npz"])
    parts = decode(meta["state"], arrays, mx.cpu())
    assert cls.state_key
    ((name, state),) = parts["handlers"][cls.state_key]
    assert name == cls.__name__

    estimator = estimator_of()
    handler = made(cls, estimator, tmp_path)
    probe = Probe(handler)
    fit(estimator, handler, probe, resume=written.path)
    if cls is gs.SVRGHandler:
        # Computing the table again moves the snapshot's running statistics, which are never read.
        for snapshot in (probe.state["pass"]["weights"], state["pass"]["weights"]):
            params = estimator.net.collect_params().values()
            trained = [param.grad_req != "null" for param in params]
            snapshot[:] = [a for a, is_trained in zip(snapshot, trained, strict=True) if is_trained]
            assert len(snapshot) == 6
    assert equal(probe.state, state)
    if state and cls is not gs.NaNGuardHandler:  # the comparison would see a difference
        another = estimator_of(1)
        other = made(cls, another, tmp_path)
        other_probe = Probe(other)
        fit(another, other, other_probe)
        assert not equal(other_probe.state, state)


IN_MXNETS = {gs.MetricHandler}


@pytest.mark.slow
@each
def test_in_mxnets_estimator_it_works_or_says_what_it_needs(cls, mode, tmp_path):
    """Fails on 0.1 with an AttributeError for most of them."""
    if mode == "numpy" and cls in IN_MXNETS:
        pytest.skip("in NumPy mode MXNet's own Estimator cannot update its metrics")
    own = estimator_of()
    estimator = mx_estimator.Estimator(
        own.net, own.loss, [mx.metric.Loss("loss")], trainer=own.trainer
    )
    estimator.logger.handlers.clear()
    dataset = gluon.data.ArrayDataset(*(np.concatenate(x, 0) for x in zip(*BATCHES, strict=True)))
    data = gluon.data.DataLoader(dataset.transform_first(np.float32), batch_size=4)
    arguments = TABLE[cls].arguments(estimator, tmp_path)
    if cls in IN_MXNETS:
        estimator.fit(data, epochs=2, event_handlers=[cls(**arguments)])
        return
    with pytest.raises(ValueError, match=f"^{cls.__name__} does not work with mxnet.*: use gluon"):
        estimator.fit(data, epochs=2, event_handlers=[cls(**arguments)])
