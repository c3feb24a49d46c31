"""States of a trainer on disk: any optimizer, onto other devices, without pickle."""

import json
import logging
import os
import pickle

import gluon_svrg as gs
import mxnet as mx
import numpy as np
import problems
import pytest
from gluon_svrg.arrays import encoding
from gluon_svrg.optimizer import states as optimizer_states
from gluon_svrg.optimizer.states import TrainerStates
from mxnet import autograd, gluon
from mxnet.gluon import nn
from mxnet.lr_scheduler import CosineScheduler, FactorScheduler, MultiFactorScheduler, PolyScheduler
from problems import ONE, TWO, same

OTHER = [mx.cpu(1)]
THREE = [mx.cpu(3), mx.cpu(1), mx.cpu(2)]
SHAPES = {"a_weight": (3, 2), "b_gamma": (2,), "c_bias": (4,)}

# As in test_trainer.py; SGLD draws noise, which has no state.
OPTIMIZERS = sorted(
    ({*mx.optimizer.Optimizer.opt_registry, "lars", "signum", "adamw", "mars"})
    - {"test", "ccsgd", "groupadagrad", "sgld", "_svrgoptimizer", "_assignmentoptimizer"}
)
ARGUMENTS = {
    "lars": {"momentum": 0.9, "wd": 0.01},
    "mars": {"exempt": "bias$", "wd": 0.01},
    "sgd": {"momentum": 0.9},
    "nag": {"momentum": 0.9},
    "rmsprop": {"centered": True},
    "lbsgd": {"momentum": 0.9, "warmup_epochs": 1, "updates_per_epoch": 12, "batch_scale": 2},
}


def parameters(contexts, dtype="float32", shapes=SHAPES):
    rng = np.random.default_rng(0)
    params = [gluon.Parameter(name, shape=shape, dtype=dtype) for name, shape in shapes.items()]
    for param in params:
        param.initialize(ctx=contexts)
        param.set_data(mx.nd.array(rng.normal(size=param.shape), dtype=dtype))
    return params


def steps(trainer, params, numbers):
    """Take the steps with these numbers; each device but the first has a gradient of zeros."""
    for number in numbers:
        rng = np.random.default_rng(number)
        losses = []
        with autograd.record():
            for param in params:
                grad = rng.normal(size=param.shape)
                for k, data in enumerate(param.list_data()):
                    factor = mx.nd.array(grad * (k == 0), ctx=data.context, dtype=param.dtype)
                    losses.append((data * factor).sum())
        autograd.backward(losses)
        trainer.step(4)


def values(params):
    return [data.asnumpy() for param in params for data in param.list_data()]


def make_trainer(params, optimizer, update_on_kvstore=None, **arguments):
    store = mx.kv.create("local") if update_on_kvstore and len(params[0].list_ctx()) == 1 else None
    return gs.SVRGTrainer(
        params,
        optimizer,
        ARGUMENTS.get(optimizer, {}) | arguments,
        kvstore=store or "device",
        update_on_kvstore=update_on_kvstore,
    )


def resumed(path, contexts, optimizer, update_on_kvstore, dtype="float32", **arguments):
    """Return the weights after 10 steps, a file, and 10 more on `contexts`; and without a file."""
    params = parameters(ONE, dtype)
    trainer = make_trainer(params, optimizer, update_on_kvstore, **arguments)
    steps(trainer, params, range(10))
    trainer.save_states(path)

    others = parameters(contexts, dtype)
    for other, param in zip(others, params, strict=True):
        other.set_data(param.data())
    loaded = make_trainer(others, optimizer, update_on_kvstore, **arguments)
    loaded.load_states(path)
    assert loaded.optimizer.num_update == trainer.optimizer.num_update
    assert loaded.learning_rate == trainer.learning_rate

    steps(trainer, params, range(10, 20))
    steps(loaded, others, range(10, 20))
    assert loaded.optimizer.num_update == trainer.optimizer.num_update
    assert loaded.learning_rate == trainer.learning_rate
    ours = values(others)
    return ours, [value for value in values(params) for _ in contexts]


# Not there: LBSGD adds up the gradients of all devices in one place, unless a kvstore runs it; and
# DCASGD has no momentum, with which 1.9.1's raises.
CASES = [
    (optimizer, update_on_kvstore, contexts)
    for optimizer in OPTIMIZERS
    for update_on_kvstore in (False, True)
    for contexts in (OTHER, TWO, THREE)
    if optimizer != "lbsgd" or update_on_kvstore or contexts == OTHER
]


@pytest.mark.slow
@pytest.mark.parametrize(("optimizer", "update_on_kvstore", "contexts"), CASES)
def test_every_optimizer_goes_on_exactly_on_other_devices(
    optimizer, update_on_kvstore, contexts, tmp_path
):
    ours, uninterrupted = resumed(tmp_path / "a.states", contexts, optimizer, update_on_kvstore)
    assert same(ours, uninterrupted)


@pytest.mark.parametrize("before", [False, True])
@pytest.mark.parametrize("optimizer", ["lars", "signum", "adam", "mars"])
def test_from_two_devices_to_one_and_from_or_to_the_kvstore(optimizer, before, tmp_path):
    params, others = parameters(TWO), parameters(ONE)
    trainer = make_trainer(params, optimizer, update_on_kvstore=before)
    steps(trainer, params, range(10))
    trainer.save_states(tmp_path / "a.states")
    for other, param in zip(others, params, strict=True):
        other.set_data(param.data(TWO[0]))
    loaded = make_trainer(others, optimizer, update_on_kvstore=not before)
    loaded.load_states(tmp_path / "a.states")
    steps(trainer, params, range(10, 20))
    steps(loaded, others, range(10, 20))
    assert loaded.optimizer.num_update == 20
    assert same([v for v in values(others) for _ in TWO], values(params))


def schedules():
    return {
        "factor": FactorScheduler(3, 0.5, base_lr=0.5),
        "multifactor": MultiFactorScheduler([4, 13], 0.1, base_lr=0.5),
        "poly": PolyScheduler(18, base_lr=0.5, warmup_steps=2),
        "cosine": CosineScheduler(15, base_lr=0.5),
    }


@pytest.mark.parametrize("contexts", [OTHER, TWO], ids=["cpu(1)", "two"])
@pytest.mark.parametrize("optimizer", ["lars", "signum", "sgd"])
@pytest.mark.parametrize("schedule", schedules())
def test_the_schedule_goes_on_exactly(schedule, optimizer, contexts, tmp_path):
    """A run to step 10 on cpu(0), then another device or two; each run has its own schedule."""
    made = []

    def fresh():
        made.append(schedules()[schedule])
        return made[-1]

    path = tmp_path / "a.states"
    params = parameters(ONE)
    trainer = make_trainer(params, optimizer, lr_scheduler=fresh())
    steps(trainer, params, range(10))
    trainer.save_states(path)
    others = parameters(contexts)
    for other, param in zip(others, params, strict=True):
        other.set_data(param.data())
    loaded = make_trainer(others, optimizer, lr_scheduler=fresh())
    loaded.load_states(path)
    for number in range(10, 20):
        steps(trainer, params, [number])
        steps(loaded, others, [number])
        assert loaded.learning_rate == trainer.learning_rate
        assert same(values(others), [v for v in values(params) for _ in contexts])
    assert made[0] is not made[1]
    assert vars(made[0]) == vars(made[1])


def test_loading_goes_back_to_an_earlier_step(tmp_path):
    """MXNet's schedules move their own base_lr on, so that num_update alone is not enough."""
    params = parameters(ONE)
    trainer = make_trainer(params, "lars", lr_scheduler=FactorScheduler(3, 0.5, base_lr=0.5))
    steps(trainer, params, range(5))
    trainer.save_states(tmp_path / "a.states")
    before, rate = values(params), trainer.learning_rate
    steps(trainer, params, range(5, 12))
    after = values(params)
    for param, value in zip(params, before, strict=True):
        param.set_data(mx.nd.array(value))
    trainer.load_states(tmp_path / "a.states")
    assert trainer.learning_rate == rate
    steps(trainer, params, range(5, 12))
    assert same(values(params), after)


@pytest.mark.parametrize("update_on_kvstore", [False, True])
@pytest.mark.parametrize("optimizer", ["lars", "nag", "signum", "sgd", "adam", "adamw", "mars"])
@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_master_copies_and_float64_go_on_exactly(optimizer, dtype, update_on_kvstore, tmp_path):
    ours, uninterrupted = resumed(
        tmp_path / "a.states",
        TWO,
        optimizer,
        update_on_kvstore,
        dtype,
        multi_precision=dtype == "float16",
    )
    assert same(ours, uninterrupted)


def test_the_optimizer_and_its_rate_are_the_files(tmp_path):
    """As with gluon.Trainer, but the optimizer stays the object that the user holds."""
    params = parameters(ONE)
    trainer = make_trainer(params, "lars")
    trainer.set_learning_rate(0.125)
    trainer.save_states(tmp_path / "a.states")
    mine = gs.LARS(learning_rate=0.5)
    loaded = gs.SVRGTrainer(params, mine)
    loaded.load_states(str(tmp_path / "a.states"))
    assert loaded.optimizer is mine
    assert (loaded.learning_rate, mine.momentum, mine.wd) == (0.125, 0.9, 0.01)


def test_who_is_exempt_is_not_in_the_file(tmp_path):
    """Names differ from one process to the next; they belong to the run that loads."""
    trainer = gs.SVRGTrainer(parameters(ONE), gs.LARS(exempt=["old"]))
    trainer.save_states(tmp_path / "a.states")
    loaded = gs.SVRGTrainer(parameters(ONE), gs.LARS(exempt=["new"]))
    loaded.load_states(tmp_path / "a.states")
    assert loaded.optimizer.is_exempt("new")
    assert not loaded.optimizer.is_exempt("old")


def test_a_lazily_updated_weight_keeps_its_momentum(tmp_path):
    net = nn.Embedding(6, 3, sparse_grad=True)
    net.initialize()
    trainer = gs.SVRGTrainer(net.collect_params(), gs.LARS(0.1, 0.9, lazy_update=True))
    with autograd.record():
        loss = net(mx.nd.array([1, 4])).sum()
    loss.backward()
    trainer.step(1)
    trainer.save_states(tmp_path / "a.states")
    before = trainer._updaters[0].states[0].asnumpy()
    trainer.load_states(tmp_path / "a.states")
    assert np.array_equal(trainer._updaters[0].states[0].asnumpy(), before)


def test_states_that_are_sparse_or_nested_come_back_as_they_were():
    arrays = {}
    sparse = mx.nd.sparse.row_sparse_array((np.ones((1, 2)), [1]), shape=(3, 2))
    value = {3: (sparse, None, [mx.nd.ones((2,), dtype="float64"), 0.1]), "a": True}
    text = json.loads(json.dumps(encoding.encode(value, arrays)))
    back = encoding.decode(text, arrays, mx.cpu(1))
    assert (back["a"], back[3][1], back[3][2][1]) == (True, None, 0.1)
    assert back[3][0].stype == "row_sparse"
    assert np.array_equal(back[3][0].asnumpy(), sparse.asnumpy())
    assert back[3][2][0].context == mx.cpu(1)
    assert np.dtype(back[3][2][0].dtype) == "float64"


def without(name):
    return {key: shape for key, shape in SHAPES.items() if key != name}


MISFITS = {
    "another optimizer": (
        lambda: gs.SVRGTrainer(parameters(ONE), "sgd", {"lr_scheduler": FactorScheduler(9)}),
        r"of the optimizer gluon_svrg.LARS, .* has .*SGD: make the trainer with",
    ),
    "MXNet's optimizer of the same name": (
        lambda: gs.SVRGTrainer(parameters(ONE), mx.optimizer.LARS()),
        r"of the optimizer gluon_svrg.LARS, .* has mxnet.optimizer.optimizer.LARS",
    ),
    "another number of parameters": (
        lambda: misfit(parameters(ONE, shapes=without("c_bias"))),
        r"of 3 parameters, and this trainer has 2: give the trainer those that it had",
    ),
    "another shape": (
        lambda: misfit(parameters(ONE, shapes=SHAPES | {"b_gamma": (5,)})),
        r"states of 'b_gamma' are of .* shape \(2,\) .*, and it has shape \(5,\)",
    ),
    "another number of dimensions": (
        lambda: misfit(parameters(ONE, shapes=SHAPES | {"b_gamma": (2, 1)})),
        r"it has shape \(2, 1\)",
    ),
    "another dtype": (
        lambda: misfit(parameters(ONE, "float64")),
        r"dtype float32, and it has shape \(3, 2\) and dtype float64",
    ),
    "another schedule": (
        lambda: misfit(parameters(ONE), CosineScheduler(10)),
        r"of the lr_scheduler mxnet.lr_scheduler.FactorScheduler, .* has mxnet.lr_scheduler.Cosine"
        r"Scheduler: make the trainer with such a schedule, or load only the weights by net.load_p",
    ),
    "no schedule": (
        lambda: misfit(parameters(ONE), None),
        r"of the lr_scheduler mxnet.lr_scheduler.FactorScheduler, and this trainer has None: "
        r"make the trainer with such a schedule",
    ),
}


def misfit(params, schedule="another"):
    schedule = FactorScheduler(9) if schedule == "another" else schedule
    return gs.SVRGTrainer(params, gs.LARS(momentum=0.9, lr_scheduler=schedule))


@pytest.mark.parametrize("kind", MISFITS)
def test_states_that_do_not_fit_are_told_apart_and_change_nothing(kind, tmp_path):
    params = parameters(ONE)
    trainer = misfit(params, FactorScheduler(9, base_lr=0.5))
    steps(trainer, params, range(3))
    trainer.save_states(tmp_path / "a.states")
    make, message = MISFITS[kind]
    other = make()
    steps(other, other._params, range(1))
    before, updater = dict(vars(other.optimizer)), other._updaters[0]
    counts, states = dict(other.optimizer._index_update_count), dict(updater.states)
    with pytest.raises(ValueError, match=message):
        other.load_states(tmp_path / "a.states")
    assert vars(other.optimizer) == before
    assert other.optimizer._index_update_count == counts
    assert updater.states.keys() == states.keys()
    assert all(updater.states[i] is states[i] for i in states)


class Bomb:
    def __reduce__(self):
        return os.abort, ()


def truncated(good):
    return good[: len(good) // 2]


def flipped(good):
    half = len(good) // 3
    return good[:half] + bytes([good[half] ^ 255]) + good[half + 1 :]


@pytest.mark.parametrize(
    "content",
    [
        lambda good: pickle.dumps(Bomb()),
        lambda good: b"",
        lambda good: b"text",
        truncated,
        flipped,
    ],
    ids=["a pickle", "empty", "text", "truncated", "one byte flipped"],
)
def test_a_file_that_is_none_is_told_and_nothing_in_it_is_run(content, tmp_path):
    path = tmp_path / "a.states"
    trainer = make_trainer(parameters(ONE), "lars")
    trainer.save_states(path)
    path.write_bytes(content(path.read_bytes()))
    with pytest.raises(ValueError, match=r"a.states' is no states file .* a damaged one .*pickles"):
        trainer.load_states(path)


def test_an_array_of_objects_is_not_unpickled(tmp_path):
    np.savez(tmp_path / "a.npz", meta=np.array([Bomb()], dtype=object))
    with pytest.raises(ValueError, match="is no states file"):
        make_trainer(parameters(ONE), "lars").load_states(tmp_path / "a.npz")


def test_another_format_is_told(tmp_path):
    meta = np.frombuffer(json.dumps({"format": "else/7"}).encode(), dtype=np.uint8)
    np.savez(tmp_path / "a.npz", meta=meta)
    with pytest.raises(ValueError, match="its format is 'else/7'"):
        make_trainer(parameters(ONE), "lars").load_states(tmp_path / "a.npz")


def test_a_missing_file_is_a_missing_file(tmp_path):
    with pytest.raises(FileNotFoundError):
        make_trainer(parameters(ONE), "lars").load_states(tmp_path / "none.states")


def test_a_write_that_fails_leaves_the_old_file_and_no_other(tmp_path, monkeypatch):
    path = tmp_path / "a.states"
    trainer = make_trainer(parameters(ONE), "lars")
    trainer.save_states(path)
    old = path.read_bytes()

    def fail(*args):
        raise OSError("no space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="no space left"):
        trainer.save_states(path)
    assert path.read_bytes() == old
    assert os.listdir(tmp_path) == ["a.states"]


def test_saving_says_that_a_control_variate_is_left_out(tmp_path, caplog):
    net = nn.Dense(1, in_units=2)
    net.initialize()
    trainer = gs.SVRGTrainer(net.collect_params(), "lars")
    trainer.save_states(tmp_path / "a.states")
    assert caplog.text == ""

    def backward(batch):
        with autograd.record():
            loss = net(batch)
        loss.backward()
        return loss

    snapshot = gs.Snapshot(net)
    snapshot.take()
    trainer.set_control_variate(snapshot.full_gradient(backward, [mx.nd.ones((1, 2))]))
    trainer.save_states(tmp_path / "a.states")
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "the control variate is not part of the saved states" in record.getMessage()


def test_scalars_and_tables_of_numpy_are_saved(tmp_path):
    class Table(mx.lr_scheduler.LRScheduler):
        def __init__(self, rates):
            super().__init__()
            self.rates = np.array(rates)

        def __call__(self, num_update):
            return float(self.rates[num_update % 2])

    def make(lr, wd, begin, rates):
        params = parameters(ONE)
        arguments = {"wd": wd, "begin_num_update": begin, "lr_scheduler": Table(rates)}
        trainer = gs.SVRGTrainer(params, "lars", arguments)
        return params, trainer

    params, saved = make(0.5, np.float32(0.25), np.int64(100), [0.5, 0.125])
    steps(saved, params, range(2))
    saved.save_states(tmp_path / "states")
    params, loaded = make(0.01, 0.0, 0, [1.0, 1.0])
    loaded.load_states(tmp_path / "states")
    assert loaded.optimizer.wd == 0.25
    assert loaded.optimizer.num_update == 102
    assert loaded.learning_rate == 0.5
    steps(loaded, params, [2])
    assert loaded.learning_rate == 0.125

    plain = gs.SVRGTrainer(parameters(ONE), "sgd", {"learning_rate": 0.1})
    plain.set_learning_rate(np.float32(0.25))
    plain.save_states(tmp_path / "states")
    other = gs.SVRGTrainer(parameters(ONE), "sgd", {"learning_rate": 0.1})
    other.load_states(tmp_path / "states")
    assert other.learning_rate == 0.25


class Wrapper(mx.lr_scheduler.LRScheduler):
    """A schedule that is made of others, which count; kept as `kind` says."""

    def __init__(self, kind):
        super().__init__()
        inner = FactorScheduler(2, 0.5, base_lr=1.0)
        deep = Wrapper("attribute") if kind == "nested" else None
        self.kept = {"list": [inner], "tuple": (inner,), "dict": {"a": inner}}.get(kind, inner)
        self.kept = deep or self.kept
        self.one = inner if deep is None else deep.one  # a second way to it
        self.itself = self

    def __call__(self, num_update):
        return self.one(num_update)


@pytest.mark.parametrize("kind", ["attribute", "list", "tuple", "dict", "nested"])
def test_schedules_in_a_schedule_come_back(kind, tmp_path, caplog):
    """Up to 0.8 they started from zero, with a line for each checkpoint."""

    def make():
        params = parameters(ONE)
        return params, gs.SVRGTrainer(params, "sgd", {"lr_scheduler": Wrapper(kind)})

    params, whole = make()
    steps(whole, params, range(5))
    with caplog.at_level(logging.WARNING):
        whole.save_states(tmp_path / "states")
    assert caplog.records == []
    _, loaded = make()
    loaded.load_states(tmp_path / "states")
    one = loaded.optimizer.lr_scheduler.one
    assert (one.base_lr, one.count) == (0.25, 4)
    assert loaded.learning_rate == whole.learning_rate == 0.25


class Odd(mx.lr_scheduler.LRScheduler):
    """A schedule with what no file can hold, and with functions, which need not be in it."""

    def __init__(self):
        super().__init__(0.1)
        self.odd = object()
        self.functions = [abs, max]
        self.function = min
        self.nothing = []

    def __call__(self, num_update):
        return self.base_lr


@pytest.mark.slow
def test_what_a_schedule_has_and_a_file_has_not_is_told_once_in_a_run(tmp_path, caplog):
    problem = problems.make("softmax")
    trainer = gs.SVRGTrainer(problem.net.collect_params(), "sgd", {"lr_scheduler": Odd()})
    estimator = gs.Estimator(problem.net, problem.loss, trainer=trainer)
    for resume in (None, "auto"):
        caplog.clear()
        handlers = [gs.CheckpointHandler(tmp_path / "checkpoints", every_n_batches=1)]
        epochs = 2 if resume is None else 3
        estimator.fit(problem.ndarrays(), epochs=epochs, event_handlers=handlers, resume=resume)
        told = [r.getMessage() for r in caplog.records if "cannot be saved" in r.getMessage()]
        assert len(told) == 1
        assert "Odd.odd (a object) cannot be saved: after a resume or load_states() it" in told[0]
    caplog.clear()
    trainer.save_states(tmp_path / "states")
    assert caplog.text.count("cannot be saved") == 1


def test_the_same_parameters_in_another_order_are_an_error(tmp_path):
    shapes = {"a_weight": (2,), "b_weight": (2,)}
    params = parameters(ONE, shapes=shapes)
    gs.SVRGTrainer(params, "sgd").save_states(tmp_path / "states")
    trainer = gs.SVRGTrainer(parameters(ONE, shapes=shapes)[::-1], "sgd")
    with pytest.raises(ValueError, match=r"same parameters in another order, \['a_weight', 'b_we"):
        trainer.load_states(tmp_path / "states")


def test_a_folder_that_is_not_there_is_named(tmp_path):
    trainer = gs.SVRGTrainer(parameters(ONE), "sgd")
    with pytest.raises(FileNotFoundError, match=r"there is no folder '.*nowhere'; make it first"):
        trainer.save_states(tmp_path / "nowhere" / "states")


@pytest.mark.slow
def test_edited_bytes_never_raise_another_error(tmp_path):
    path = tmp_path / "states"
    params = parameters(ONE)
    trainer = gs.SVRGTrainer(params, "sgd", {"momentum": 0.9})
    steps(trainer, params, range(1))
    trainer.save_states(path)
    content = path.read_bytes()
    rng = np.random.default_rng(0)
    refused = 0
    for _ in range(300):
        damaged = bytearray(content)
        for position in rng.integers(0, len(content), 3):
            damaged[position] ^= 1 << int(rng.integers(0, 8))
        path.write_bytes(damaged)
        try:
            TrainerStates.read(path)
        except ValueError:
            refused += 1
    assert refused > 150  # the others are changes of what zip does not look at, such as dates


@pytest.mark.parametrize("number", [1, 3])
def test_states_of_another_version_are_said(number, tmp_path):
    states = TrainerStates({"format": f"gluon_svrg.states/{number}"}, {})
    (tmp_path / "other.states").write_bytes(states.to_bytes())
    message = rf"the format 'gluon_svrg\.states/{number}', and .* reads 'gluon_svrg\.states/2' only"
    with pytest.raises(ValueError, match=message):
        TrainerStates.read(tmp_path / "other.states")


def test_the_key_of_an_optimizer_does_not_depend_on_its_module(monkeypatch, tmp_path):
    before = gs.SVRGTrainer(parameters(ONE), "lars")
    before.save_states(tmp_path / "states")
    monkeypatch.setattr(gs.LARS, "__module__", "gluon_svrg.somewhere.else")
    after = gs.SVRGTrainer(parameters(ONE), "lars")
    after.load_states(tmp_path / "states")


# Edits in a file of states, as functions of its text.
EDITS = {
    "no attributes": lambda meta: meta.update(attributes=None),
    "an attribute of no array": lambda meta: meta["attributes"].update(momentum={"zzz": 1}),
    "a rate that is text": lambda meta: meta["attributes"].update(lr="abc"),
    "a limit that is text": lambda meta: meta["attributes"].update(clip_gradient="x"),
    "a method": lambda meta: meta["attributes"].update(create_state=None),
    "no states": lambda meta: meta.update(states=None),
    "counts": lambda meta: meta.update(update_counts=7),
    "a count that is text": lambda meta: meta["update_counts"]["dict"][0].__setitem__(1, "x"),
    "no parameters": lambda meta: meta.update(params=None),
    "an array that is not there": lambda meta: meta.update(
        states={"dict": [[0, {"array": "zzz", "stype": "default"}]]}
    ),
    "another array": lambda meta: meta["states"]["dict"][0].__setitem__(
        1, meta["states"]["dict"][1][1]
    ),
    "a schedule": lambda meta: meta.update(schedule={"a": 1}),
}


@pytest.mark.parametrize("edit", EDITS.values(), ids=EDITS)
def test_edited_states(edit, tmp_path):
    """One sentence each, and the trainer is as it was."""

    def trained():
        net = nn.Dense(3, in_units=6, prefix="dense_")
        net.initialize(mx.init.One())
        trainer = gs.SVRGTrainer(net.collect_params(), "sgd", {"momentum": 0.9, "wd": 0.5})
        with mx.autograd.record():
            loss = net(mx.nd.ones((2, 6))).sum()
        loss.backward()
        trainer.step(2)
        return trainer

    trainer = trained()
    states = optimizer_states.trainer_states(trainer)
    before = states.to_bytes()
    meta, arrays = encoding.from_bytes(before)
    edit(meta)
    (tmp_path / "states").write_bytes(encoding.to_bytes(meta, arrays))
    with pytest.raises(ValueError, match=r"^[^\n]+$"):
        trainer.load_states(tmp_path / "states")
    assert optimizer_states.trainer_states(trainer).to_bytes() == before
