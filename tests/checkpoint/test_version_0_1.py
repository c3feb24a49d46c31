"""What version 0.1.0 wrote is read as it was, to the bit."""

import copy
import json
import shutil
from pathlib import Path

import exact_runs
import gluon_svrg as gs
import mxnet as mx
import numpy as np
import pytest
from gluon_svrg.arrays.encoding import decode, from_bytes
from gluon_svrg.checkpoint import storage, version_0_1
from gluon_svrg.checkpoint.run_state import parts_of
from gluon_svrg.checkpoint.state_keys import class_key, class_path, state_key
from gluon_svrg.events import BatchBegin, Stateful
from mxnet.gluon.contrib import estimator as mx_estimator

FILES = Path(__file__).parents[1] / "data" / "version_0_1"


def resumed(kind, checkpoint, tmp_path, *extra):
    """Go on from a checkpoint of version 0.1.0; return the Estimator at the run's end."""
    folder = tmp_path / kind
    shutil.copytree(FILES / kind, folder)
    estimator, data = getattr(exact_runs, f"{kind}_estimator")()
    handlers = [*getattr(exact_runs, f"{kind}_handlers")(folder), *extra]
    estimator.fit(
        data, epochs=exact_runs.EPOCHS, event_handlers=handlers, resume=folder / checkpoint
    )
    return estimator


def test_a_run_goes_on_to_the_same_bits(tmp_path):
    estimator = resumed("exact", "epoch-1-batch-6", tmp_path)
    assert exact_runs.bits_of(estimator) == json.loads((FILES / "exact.json").read_text())


@pytest.mark.slow
def test_a_run_with_every_kind_of_state_goes_on(tmp_path):
    estimator = resumed("full", "epoch-1-batch-7", tmp_path)
    expected = json.loads((FILES / "full.json").read_text())
    for name, values in exact_runs.bits_of(estimator).items():
        if "running" in name:
            continue  # version 0.1 did not even out those of the two devices
        # Another machine's kernels add up in another order: float32, 5 steps of lr 0.1. And its
        # coefficient, 'auto', was each device's own: that alone makes 3e-3.
        assert [float.fromhex(v) for v in values] == pytest.approx(
            [float.fromhex(v) for v in expected[name]], rel=1e-3, abs=5e-3
        )


@pytest.mark.parametrize("kind", ["exact", "full"])
def test_states_are_read_and_written_again_as_they_were(kind, tmp_path):
    estimator, data = getattr(exact_runs, f"{kind}_estimator")()
    if kind == "full":  # it infers its shapes
        estimator.fit(data, batches=1)
    estimator.trainer.load_states(FILES / f"{kind}.states")
    estimator.trainer.save_states(tmp_path / "again")
    estimator.trainer.load_states(tmp_path / "again")
    updater = estimator.trainer._updaters[0]
    assert updater.optimizer.num_update == {"exact": 12, "full": 6}[kind]


class Look(BatchBegin):
    """Keeps the states of all parts as they are right after the resume; then ends the run."""

    priority = -float("inf")
    states = None

    def batch_begin(self, estimator, *args, **kwargs):
        if self.states is None:
            states = {name: part.state_dict() for name, part in parts_of(estimator).items()}
            states["trainer"]["states"] = states["trainer"]["states"].to_bytes()
            # A copy: what is trained now must not show.
            self.states = copy.deepcopy(states)
            estimator.stop()


def saved_by_0_1(kind, checkpoint):
    """What the files of version 0.1 hold."""
    found = storage.read(FILES / kind / checkpoint)
    meta, arrays = from_bytes(found.files["run.npz"])
    return found, decode(meta["state"], arrays, mx.cpu())


NEW = {"grad_reqs", "nested_schedules", "monitor", "mode"}
"""What no state had then."""


def check_same(ours, theirs, where):
    """Compare plain data bit for bit, but for clocks and what is new."""
    if isinstance(theirs, dict):
        names = [name for name in theirs if "seconds" not in str(name)]
        assert ours.keys() - NEW == theirs.keys(), where
        for name in names:
            check_same(ours[name], theirs[name], f"{where}.{name}")
    elif isinstance(theirs, list | tuple):
        assert len(ours) == len(theirs), where
        for index, (own, other) in enumerate(zip(ours, theirs, strict=True)):
            check_same(own, other, f"{where}[{index}]")
    elif isinstance(theirs, mx.nd.NDArray | np.ndarray):
        own, other = (x.asnumpy() if isinstance(x, mx.nd.NDArray) else x for x in (ours, theirs))
        assert own.dtype == other.dtype, where
        assert own.tobytes() == other.tobytes(), where
    elif where.endswith(".decision"):  # of old the line of the log
        assert ours is theirs.startswith("SVRG keeps"), where
    else:
        assert (type(ours), ours) == (type(theirs), theirs), where


CHECKPOINTS = {"exact": "epoch-1-batch-6", "full": "epoch-1-batch-7"}


@pytest.mark.slow
@pytest.mark.parametrize("kind", CHECKPOINTS)
def test_every_state_arrives_in_its_handler(kind, tmp_path):
    """What each handler gives after the resume is what the old file holds for its class."""
    look = Look()
    estimator = resumed(kind, CHECKPOINTS[kind], tmp_path, look)
    _, saved = saved_by_0_1(kind, CHECKPOINTS[kind])
    filed = {**look.states["handlers"], **look.states["random_state"]}
    ours = {key: state for key, ((_, state),) in filed.items()}
    paths = {class_path(h): state_key(h) for h in estimator.handlers}
    assert len(saved["handlers"]) == {"exact": 7, "full": 12}[kind]
    for name, state in saved["handlers"]:
        own = ours.pop(paths.get(name, version_0_1.HANDLERS[name]))
        if name.endswith(".SVRGHandler"):
            check_counts(state, saved["position"])
            # To compute the table again moves the snapshot's running statistics, which nobody
            # reads.
            own, state = (
                without_running_statistics(s, estimator.net) for s in (own, as_it_is_now(state))
            )
        if name.endswith(".RandomStateHandler"):
            state = with_arrays(state)
        if name.endswith(".HistoryHandler"):
            # It is a figure of the epoch now: see test_every_other_part_arrives.
            state = {name: value for name, value in state.items() if name != "coefficient"}
        check_same(own, state, name)
    assert ours == {}


def check_counts(state, position):
    """What SVRG counted by itself in 0.1 is what the position of the run says."""
    assert state["epoch"] == position["epoch"] + position["is_in_epoch"]
    assert state["batch"] == position["batch_in_epoch"]
    assert state["total_batches"] == position["batch"]
    assert state["is_loader"]  # it is an ArrayLoader in both runs


def as_it_is_now(state):
    """The same values where they are today: two of them are the interval's."""
    moved = {name: state[name] for name in ("is_at_snapshot", "gradient_evaluations")}
    gone = {*moved, "epoch", "batch", "total_batches", "is_loader"}
    rest = {name: value for name, value in state.items() if name not in gone}
    return {**rest, "pass": {**state["pass"], **moved}}


def with_arrays(state):
    """Up to version 0.7 the numbers of Python's generator were a tuple."""
    states = {name: state[name] for name in ("at_epoch_begin", "now")}
    for name, host in states.items():
        version, numbers, gauss = host["python"]
        states[name] = {**host, "python": (version, np.array(numbers, "uint32"), gauss)}
    return {**state, **states}


def without_running_statistics(state, net):
    params = net.collect_params().values()
    pairs = zip(state["pass"]["weights"], params, strict=True)
    trained = [weight for weight, param in pairs if param.grad_req != "null"]
    assert len(trained) in (2, 6)
    return {**state, "pass": {**state["pass"], "weights": trained}}


def with_new_names(saved):
    """Version 0.1 called the loss, without a metric of one's own, by the name of its class."""
    if isinstance(saved, dict):
        return {with_new_names(name): with_new_names(value) for name, value in saved.items()}
    if isinstance(saved, list):
        return [with_new_names(item) for item in saved]
    return saved.replace(" l2loss", " loss") if isinstance(saved, str) else saved


@pytest.mark.parametrize("kind", CHECKPOINTS)
def test_every_other_part_arrives(kind, tmp_path):
    look = Look()
    resumed(kind, CHECKPOINTS[kind], tmp_path, look)
    found, saved = saved_by_0_1(kind, CHECKPOINTS[kind])
    ours = look.states
    (tmp_path / "net.params").write_bytes(found.files["net.params"])
    weights = {n: a.asnumpy() for n, a in mx.nd.load(str(tmp_path / "net.params")).items()}
    for place, copies in saved["replicas"].items():
        # Version 0.1 wrote the first device's running statistics, today's is the mean.
        mean = np.mean(copies, axis=0, dtype="float64")
        check_same(ours["net"]["weights"].pop(place).asnumpy(), mean.astype("float32"), place)
        weights.pop(place)
    check_same(ours["net"]["weights"], weights, "weights")
    for name in ("contexts", "replicas", "outside"):
        check_same(ours["net"][name], saved[name], name)
    saved["history"] = [{**row, "complete": True} for row in saved["history"]]
    for name in ("history", "last_evaluation"):
        check_same(ours["history"][name], with_new_names(saved[name]), name)
    coefficient = dict(saved["handlers"])["gluon_svrg.reporting.history_handler.HistoryHandler"][
        "coefficient"
    ]
    assert coefficient == {"exact": 1.0, "full": None}[kind]
    kept = {} if coefficient is None else {"coefficient": coefficient}
    check_same(ours["history"]["figures"], {**saved["figures"], **kept}, "figures")
    check_same(ours["position"], saved["position"], "position")
    check_same(ours["data"], saved["data"], "data")
    saved["metrics"] = with_new_names(saved["metrics"])
    added = set(ours["metrics"]) - set(saved["metrics"])  # the loss is always there today
    assert added <= {"training loss", "validation loss"}
    metrics = {name: state for name, state in ours["metrics"].items() if name not in added}
    check_same(metrics, saved["metrics"], "metrics")
    check_same(ours["loss_scale"], saved["loss_scaler"], "loss scale")
    check_same(ours["trainer"]["places"], saved["trained"], "places")
    (meta, arrays), (old_meta, old_arrays) = (
        from_bytes(content) for content in (ours["trainer"]["states"], found.files["trainer.npz"])
    )
    check_same(arrays, old_arrays, "trainer")
    check_same(meta, {**version_0_1.states_meta(old_meta), "format": meta["format"]}, "trainer")


def test_what_is_written_now_has_a_format_of_its_own(tmp_path):
    """Version 0.1 reads up to format 1, and refuses a greater number as a later version's."""
    estimator = resumed("exact", CHECKPOINTS["exact"], tmp_path)
    estimator.trainer.save_states(tmp_path / "states")
    new, old = tmp_path / "exact" / "epoch-3-batch-12", FILES / "exact" / CHECKPOINTS["exact"]
    assert (storage.read(new).manifest["format"], storage.read(old).manifest["format"]) == (4, 1)
    formats = [from_bytes(p.read_bytes())[0]["format"] for p in (tmp_path / "states", *STATES)]
    assert formats == ["gluon_svrg.states/2", *["gluon_svrg.states/1"] * 2]


STATES = sorted(FILES.glob("*.states"))


NEWER = {"MLflowHandler"}  # 0.1 had none


def test_the_table_has_every_class_that_is_here():
    """The keys of 0.1's classes as they are declared today; none may ever change."""
    found = [getattr(gs, name) for name in gs.__all__ if name not in NEWER]
    classes = [value for value in found if isinstance(value, type)]
    stateful = [cls for cls in classes if issubclass(cls, Stateful)]
    keys = {
        name.rpartition(".")[2]: key
        for name, key in version_0_1.HANDLERS.items()
        if name.startswith("gluon_svrg.")
    }
    for cls in stateful:
        assert cls.state_key == keys[cls.__name__], cls
        assert cls.state_key is not None
    for name in ("StoppingHandler", "LoggingHandler", "ValidationHandler"):
        handler = object.__new__(getattr(mx_estimator, name))
        assert version_0_1.HANDLERS[class_path(handler)] == state_key(handler) == f"mxnet.{name}"
    for optimizer in (gs.LARS, gs.Signum):
        value = object.__new__(optimizer)
        assert class_key(value) in version_0_1.OPTIMIZERS.values()
    assert state_key(object.__new__(gs.ValidationHandler)) in version_0_1.HANDLERS.values()


class Counts(Stateful):
    """A handler of a user's own, which declares no key."""

    def __init__(self):
        self.number = 0

    def state_dict(self, estimator):
        return {"number": self.number}

    def load_state_dict(self, estimator, state):
        self.number = state["number"]


class Keyed(Counts):
    state_key = "user.counts"


@pytest.mark.parametrize("cls", [Counts, Keyed])
def test_a_handler_of_a_users_own_is_found_by_its_class(cls, tmp_path):
    """Also one that has declared a key since."""
    handler = cls()
    saved = dict.fromkeys(("contexts", "replicas", "outside", "trained", "loss_scaler"))
    saved |= dict.fromkeys(("position", "history", "figures", "last_evaluation", "metrics", "data"))
    saved["figures"] = {}
    saved["handlers"] = [[class_path(handler), {"number": 3}]]
    states = version_0_1.run_states(saved, [handler])
    assert states["handlers"] == {state_key(handler): [[cls.__name__, {"number": 3}]]}
    assert state_key(Counts()) == f"{__name__}.Counts"
    assert state_key(Keyed()) == "user.counts"
