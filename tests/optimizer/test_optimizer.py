"""The contract of the base class: what MXNet 2 promises, under 1.9.1's Updater and Trainer."""

import inspect
import math
import pickle
import re
import sys

import gluon_svrg as gs
import mxnet as mx
import numpy as np
import pytest
from gluon_svrg import optimizer as package
from mxnet import autograd, gluon
from mxnet.lr_scheduler import CosineScheduler, FactorScheduler, LRScheduler, PolyScheduler
from problems import ONE, TWO


class OnlyStep(package.Optimizer):
    """Plain SGD: the one method that a subclass has to write."""

    def step(self, indices, weights, grads, states):
        self.calls = [*getattr(self, "calls", []), list(indices)]
        self._update_count(indices)
        lrs, wds = self._get_lrs(indices), self._get_wds(indices)
        for weight, grad, lr, wd in zip(weights, grads, lrs, wds, strict=True):
            weight -= lr * (self.preprocess(grad) + wd * weight)


def parameters(contexts=ONE, dtype="float32", names=("a_weight", "b_bias")):
    params = [gluon.Parameter(name, shape=(2,), dtype=dtype) for name in names]
    for param in params:
        param.initialize(mx.init.One(), ctx=contexts)
    return params


def step(trainer, params, grad=1.0, batch_size=1):
    with autograd.record():
        losses = [(data * grad).sum() for param in params for data in param.list_data()]
    autograd.backward(losses)
    trainer.step(batch_size)


def values(params):
    return [data.asnumpy()[0].item() for param in params for data in param.list_data()]


@pytest.fixture
def registry(monkeypatch):
    """A copy of the registry, to register into."""
    copied = dict(package.Optimizer.opt_registry)
    monkeypatch.setattr(package.Optimizer, "opt_registry", copied)
    return copied


def test_names_are_looked_up_here_first_and_then_in_mxnet():
    assert type(package.create("lars")) is gs.LARS
    assert type(package.create_optimizer("SigNum", momentum=0.5)) is gs.Signum
    assert type(package.Optimizer.create_optimizer("adam")) is mx.optimizer.Adam
    assert type(mx.optimizer.create("lars")) is mx.optimizer.LARS


def test_a_registered_optimizer_has_the_name_of_its_class(registry):
    assert package.register(OnlyStep) is OnlyStep
    assert type(package.create("onlystep", learning_rate=2.0)) is OnlyStep
    assert type(gs.SVRGTrainer(parameters(), "OnlyStep").optimizer) is OnlyStep


def test_a_second_optimizer_of_the_same_name_is_told(registry):
    package.register(OnlyStep)
    with pytest.warns(UserWarning, match=r"OnlyStep replaces .*OnlyStep"):
        package.register(OnlyStep)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("lasr", r"there is no optimizer named 'lasr': did you mean lars"),
        ("Signun", r"there is no optimizer named 'Signun': did you mean signum"),
        ("adaam", r"did you mean adam or nadam or adamw\?"),
        ("zzzz", r"there is no optimizer named 'zzzz': known are .*'adadelta', .*'signum'"),
    ],
)
def test_an_unknown_name_is_answered_with_the_near_ones(name, message):
    with pytest.raises(ValueError, match=message):
        package.create(name)
    with pytest.raises(ValueError, match=message):
        gs.SVRGTrainer(parameters(), name)


@pytest.mark.parametrize(
    ("name", "argument", "message"),
    [
        ("sgd", "lr", r"SGD has no argument 'lr': did you mean learning_rate\?"),
        ("lars", "weight_decay", r"LARS has no argument 'weight_decay': did you mean wd\?"),
        ("adam", "eps", r"Adam has no argument 'eps': did you mean epsilon\?"),
        ("sgd", "momentun", r"SGD has no argument 'momentun': did you mean momentum\?"),
        ("sgd", "eps", r"SGD has no argument 'eps': it has momentum, lazy_update, .*learning_rate"),
    ],
)
def test_an_unknown_argument_is_answered_with_the_near_one(name, argument, message):
    with pytest.raises(TypeError, match=message):
        gs.SVRGTrainer(parameters(), name, {argument: 0.1})


def numbers_of(name):
    """The arguments of an optimizer that are a number, or the learning rate, by its signatures."""
    for base in ALL[name].__mro__:
        for argument in inspect.signature(
            vars(base).get("__init__", lambda: 0)
        ).parameters.values():
            default = argument.default
            is_number = isinstance(default, int | float) and not isinstance(default, bool)
            if is_number or argument.name in ("learning_rate", "clip_gradient"):
                yield argument.name
        if base in (mx.optimizer.Optimizer, package.Optimizer):
            return


ALL = {**mx.optimizer.Optimizer.opt_registry, **package.Optimizer.opt_registry}
NUMBERS = sorted({(name, argument) for name in ALL for argument in numbers_of(name)})


@pytest.mark.parametrize(("name", "argument"), NUMBERS)
def test_what_is_no_number(name, argument):
    """0.8 took them, and the first step failed inside MXNet."""
    start = f"{argument} of {ALL[name].__name__} must be a"
    for value in ("0.1", "", [0.1], (0.1,), {"a": 1}, True, 1j, object()):
        with pytest.raises(TypeError) as error:
            gs.SVRGTrainer(parameters(), name, {argument: value})
        assert str(error.value) == f"{start} number, got {value!r}: give it as a float"
    with pytest.raises(ValueError, match=f"^{start} finite number, got nan: all"):
        gs.SVRGTrainer(parameters(), name, {argument: math.nan})


@pytest.mark.parametrize("name", sorted(ALL))
def test_the_learning_rate_is_none_or_infinite(name):
    """MXNet takes 0.01 for None, also for Adam, whose default is 0.001."""
    message = f"learning_rate is None, and {ALL[name].__name__} has no lr_scheduler .*: give a numb"
    for more in ({}, {"lr_scheduler": None}):
        with pytest.raises(ValueError, match=message):
            package.create(name, learning_rate=None, **more)
    with pytest.raises(ValueError, match=r"learning_rate of .* must be a finite number, got inf"):
        package.create(name, learning_rate=math.inf)
    schedule = mx.lr_scheduler.PolyScheduler(9, base_lr=0.5)
    assert package.create(name, learning_rate=None, lr_scheduler=schedule).learning_rate == 0.5
    assert package.create(name, learning_rate=np.float32(0.5)).learning_rate == 0.5


@pytest.mark.parametrize(
    ("given", "way_out"),
    [
        ((("learning_rate", 0.025),), r"give \{'learning_rate': 0.025\}"),
        ([("learning_rate", 0.5), ("wd", 0.1)], r"give \{'learning_rate': 0.5, 'wd': 0.1\}"),
        (0.1, r"give \{'learning_rate': 0.1\}, for example"),
        ("learning_rate", r"give \{'learning_rate': 0.1\}, for example"),
        ([0.1], r"give \{'learning_rate': 0.1\}, for example"),
        (0, r"give \{'learning_rate': 0.1\}, for example"),
    ],
    ids=repr,
)
def test_arguments_that_are_no_dict(given, way_out):
    """Such as the pairs that Module takes."""
    start = re.escape(f"optimizer_params must be a dict, got {given!r}: ")
    with pytest.raises(TypeError, match=f"^{start}{way_out}$"):
        gs.SVRGTrainer(parameters(), "sgd", given)


@pytest.mark.parametrize("name", sorted(mx.optimizer.Optimizer.opt_registry))
def test_what_all_optimizers_take_is_taken(name):
    made = package.create(name, learning_rate=0.5, wd=0.25, clip_gradient=1.0, rescale_grad=2.0)
    assert (made.wd, made.clip_gradient, made.rescale_grad) == (0.25, 1.0, 2.0)


def test_the_trainer_gives_the_optimizer_its_parameters():
    trainer = gs.SVRGTrainer(parameters(), "signum", {"learning_rate": 0.5, "momentum": 0.0})
    assert type(trainer.optimizer) is gs.Signum
    assert trainer.learning_rate == 0.5
    assert type(gs.SVRGTrainer(parameters(), "sgd").optimizer) is mx.optimizer.SGD


def test_the_learning_rate_where_there_is_no_scheduler_either():
    """It is MXNet's, and that of MXNet 2 for LARS."""
    rates = {package.Optimizer: 0.01, gs.LARS: 0.1, gs.NAG: 0.01, gs.Signum: 0.01}
    for make, rate in rates.items():
        assert make().learning_rate == rate
        assert make(lr_scheduler=FactorScheduler(5, base_lr=3.0)).learning_rate == 3.0


@pytest.mark.parametrize("make", [package.Optimizer, gs.LARS, gs.NAG, gs.Signum])
@pytest.mark.parametrize(
    "scheduler",
    [
        lambda lr: FactorScheduler(2, 0.5, base_lr=lr),
        lambda lr: PolyScheduler(10, base_lr=lr),
        lambda lr: CosineScheduler(10, base_lr=lr),
        lambda lr: CosineScheduler(10, base_lr=lr, warmup_steps=4),
    ],
    ids=["factor", "poly", "cosine", "warmup"],
)
def test_a_given_learning_rate_replaces_the_schedulers_base(make, scheduler, caplog):
    """In MXNet the schedules that keep base_lr_orig continue from their own base."""
    ours, right = make(learning_rate=0.3, lr_scheduler=scheduler(0.01)), scheduler(0.3)
    for update in range(12):
        ours.num_update = update
        assert ours.learning_rate == right(update)
    assert "learning_rate=0.3 replaces the base_lr=0.01 of the lr_scheduler" in caplog.text


def test_an_equal_learning_rate_is_not_worth_a_word(caplog):
    package.Optimizer(learning_rate=0.3, lr_scheduler=FactorScheduler(2, base_lr=0.3))
    assert caplog.text == ""


def test_the_learning_rate_is_set_only_without_a_scheduler():
    optimizer = package.Optimizer()
    optimizer.set_learning_rate(0.7)
    assert optimizer.learning_rate == 0.7
    with pytest.raises(UserWarning, match="LRScheduler of the optimizer has already been"):
        package.Optimizer(lr_scheduler=LRScheduler()).set_learning_rate(0.7)


def test_multipliers_come_from_param_dict_then_the_index_then_the_name():
    (param,) = parameters(names=("a",))
    param.lr_mult, param.wd_mult = 2.0, 3.0
    optimizer = package.Optimizer(
        learning_rate=1.0,
        wd=1.0,
        param_dict={0: param},
        param_idx2name={0: "a", 1: "b", 2: "c", 3: "d"},
    )
    optimizer.set_lr_mult({0: 7.0, 1: 5.0, "b": 7.0, "c": 11.0})
    optimizer.set_wd_mult({0: 7.0, 1: 0.5, "b": 7.0, "c": 0.25})
    assert optimizer._get_lrs([0, 1, 2, 3, 4]) == [2.0, 5.0, 11.0, 1.0, 1.0]
    assert optimizer._get_wds([0, 1, 2, 3, 4]) == [3.0, 0.5, 0.25, 1.0, 1.0]
    param.lr_mult = 4.0
    assert optimizer._get_lrs([0]) == [4.0]


def test_no_multiplier_is_guessed_from_a_name():
    """1.9.1 sets wd_mult = 0 for biases and betas that are named by idx2name; 2.0 does not."""
    names = {0: "x_bias", 1: "x_beta"}
    assert package.Optimizer(wd=0.5, param_idx2name=names)._get_wds([0, 1]) == [0.5, 0.5]
    assert mx.optimizer.Optimizer(wd=0.5, param_idx2name=names)._get_wds([0, 1]) == [0.0, 0.0]


def test_multipliers_of_a_symbol():
    sym = mx.sym.var("a", lr_mult=2.0, wd_mult=3.0) + mx.sym.var("b")
    optimizer = package.Optimizer(
        sym=sym, learning_rate=1.0, wd=1.0, param_idx2name={0: "a", 1: "b"}
    )
    assert optimizer._get_lrs([0, 1]) == [2.0, 1.0]
    assert optimizer._get_wds([0, 1]) == [3.0, 1.0]


@pytest.mark.parametrize("optimizer", ["lars", "nag", "signum"])
@pytest.mark.parametrize("fused", [False, True])
def test_lr_mult_changed_in_mid_run_changes_the_next_step(optimizer, fused):
    params = parameters(names=("a_bias",))
    trainer = gs.SVRGTrainer(
        params, optimizer, {"learning_rate": 0.5, "momentum": 0.0, "use_fused_step": fused}
    )
    step(trainer, params)
    assert values(params) == [0.5]
    params[0].lr_mult = 0.5
    step(trainer, params)
    assert values(params) == [0.25]
    params[0].lr_mult = 0.0
    step(trainer, params)
    assert values(params) == [0.25]


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("aggregate", [1, 2, np.inf])
@pytest.mark.parametrize(
    ("contexts", "update_on_kvstore"), [(ONE, None), (TWO, False), (TWO, True)]
)
def test_a_subclass_with_step_alone_works_everywhere(
    contexts, update_on_kvstore, aggregate, dtype, fused
):
    params = parameters(contexts, dtype, names=("a", "b", "c"))
    optimizer = OnlyStep(
        learning_rate=0.5,
        wd=0.25,
        clip_gradient=1.5,
        aggregate_num=aggregate,
        use_fused_step=fused,
        multi_precision=dtype == "float16",
    )
    trainer = gluon.Trainer(params, optimizer, update_on_kvstore=update_on_kvstore)
    step(trainer, params, grad=4.0, batch_size=4 * len(contexts))  # clip(1) + 0.25 * 1 = 1.25
    step(trainer, params, grad=8.0, batch_size=4 * len(contexts))  # clip(2) = 1.5
    first = 1 - 0.5 * 1.25
    second = first - 0.5 * (1.5 + 0.25 * first)
    assert values(params) == pytest.approx([second] * 3 * len(contexts), rel=1e-3)
    assert optimizer.num_update == 2


def test_multi_precision_keeps_what_float16_would_lose():
    params = parameters(dtype="float16", names=("a",))
    trainer = gluon.Trainer(params, OnlyStep(learning_rate=1.0, multi_precision=True))
    for _ in range(8):
        step(trainer, params, grad=1 / 8192)  # half of float16's spacing below 1 is 1 / 4096
    assert values(params) == [1 - 8 / 8192]


def test_without_multi_precision_float16_is_warned_of():
    params = parameters(dtype="float16", names=("a",))
    trainer = gluon.Trainer(params, OnlyStep(learning_rate=1.0))
    with pytest.warns(UserWarning, match="multi_precision=True"):
        step(trainer, params)


@pytest.mark.parametrize(
    ("aggregate", "groups"),
    [(1, [[0], [1], [2]]), (2, [[0, 1], [2]]), (np.inf, [[0, 1, 2]]), (None, [[0], [1], [2]])],
)
def test_aggregate_num_is_how_many_parameters_a_step_gets(aggregate, groups):
    params = parameters(names=("a", "b", "c"))
    optimizer = OnlyStep(aggregate_num=aggregate)
    step(gluon.Trainer(params, optimizer), params)
    assert optimizer.calls == groups


@pytest.mark.parametrize("aggregate", [0, -1, 1.5, "4", float("nan")])
def test_a_bad_aggregate_num(aggregate):
    with pytest.raises(ValueError, match=r"aggregate_num must be a positive integer, or numpy.inf"):
        package.Optimizer(aggregate_num=aggregate)


@pytest.mark.parametrize("clip", [0, -1.0])
def test_a_bad_clip_gradient(clip):
    with pytest.raises(ValueError, match=rf"clip_gradient must be positive, .* got {clip}"):
        package.Optimizer(clip_gradient=clip)


@pytest.mark.parametrize("make", [package.Optimizer, gs.LARS, gs.NAG, gs.Signum, gs.AdamW, gs.MARS])
@pytest.mark.parametrize("name", ["learning_rate", "wd"])
@pytest.mark.parametrize("value", [-1e-9, float("nan"), float("inf")])
def test_rates_that_lead_nowhere(make, name, value):
    with pytest.raises(ValueError, match=rf"{name} must be a .*number.*, got {value}"):
        make(**{name: value})
    assert getattr(make(**{name: 0}), "lr" if name == "learning_rate" else name) == 0


def test_aggregate_num_inf_is_the_largest_integer_that_slices():
    assert package.Optimizer(aggregate_num=np.inf).aggregate_num == sys.maxsize


@pytest.mark.parametrize("method", ["update", "update_multi_precision"])
def test_one_parameter_can_come_without_a_list(method):
    weight, grad = mx.nd.ones((2,)), mx.nd.ones((2,))
    getattr(OnlyStep(learning_rate=0.5), method)(0, weight, grad, None)
    assert weight.asnumpy().tolist() == [0.5, 0.5]


def test_without_a_step_it_says_so():
    class Nothing(package.Optimizer):
        pass

    with pytest.raises(NotImplementedError, match=r"Nothing has to define step\(\)"):
        Nothing().update([0], [mx.nd.ones(1)], [mx.nd.ones(1)], [None])


def test_clipping_is_exact_in_float64():
    """nd.clip rounds its bounds to float32."""
    optimizer = package.Optimizer(clip_gradient=0.1)
    assert optimizer.preprocess(mx.nd.array([3, -3], dtype="float64")).asnumpy().tolist() == [
        0.1,
        -0.1,
    ]


def test_a_step_leaves_the_gradient_as_it_is():
    for optimizer in (gs.LARS(0.1, 0.9), gs.NAG(0.1, 0.9), gs.Signum(0.1, 0.9)):
        for fused in (False, True):
            optimizer.use_fused_step = fused
            optimizer.rescale_grad = 0.5
            grad = mx.nd.ones((3,))
            optimizer.update([0], [mx.nd.ones((3,))], [grad], [mx.nd.zeros((3,))])
            assert grad.asnumpy().tolist() == [1.0, 1.0, 1.0]


def test_begin_num_update_is_where_the_schedule_begins():
    params = parameters(names=("a",))
    optimizer = OnlyStep(begin_num_update=7)
    step(gluon.Trainer(params, optimizer), params)
    assert optimizer.num_update == 8


def test_a_pickled_optimizer_knows_names_and_multipliers_without_the_parameters():
    """As it reaches the server of a dist kvstore; by protocol 0, as MXNet sends it."""
    params = parameters(names=("a_weight", "b_gamma"))
    params[0].lr_mult, params[1].wd_mult = 0.5, 0.0
    trainer = gluon.Trainer(params, gs.LARS(1.0, wd=2.0, aggregate_num=np.inf))
    arrived = pickle.loads(pickle.dumps(trainer.optimizer, 0))
    assert arrived.param_dict == {}
    assert [arrived.is_exempt(arrived._name(i)) for i in (0, 1)] == [False, True]
    assert arrived._get_lrs([0, 1]) == [0.5, 1.0]
    assert arrived._get_wds([0, 1]) == [2.0, 0.0]


@pytest.mark.parametrize("contexts", [[mx.cpu(1)], [mx.cpu(3), mx.cpu(1)]])
def test_gluons_own_load_states_goes_on_counting_on_another_device(contexts, tmp_path):
    """MXNet issue 17357: num_update stands still until the new device has caught up."""
    old, new = parameters(ONE), parameters(contexts)
    schedule = FactorScheduler(4, 0.5, base_lr=1.0)
    trainer = gluon.Trainer(old, gs.LARS(lr_scheduler=schedule, momentum=0.9))
    for _ in range(10):
        step(trainer, old)
    trainer.save_states(str(tmp_path / "states"))
    loaded = gluon.Trainer(new, gs.LARS(momentum=0.9), update_on_kvstore=False)
    loaded.load_states(str(tmp_path / "states"))
    assert loaded.optimizer.num_update == 10
    step(loaded, new)
    assert loaded.optimizer.num_update == 11


class NeverCounts(package.Optimizer):
    """SGD without a word about the number of updates."""

    def step(self, indices, weights, grads, states):
        for index, weight, grad in zip(indices, weights, grads, strict=True):
            weight -= self._get_lr(index) * (self.preprocess(grad) + self._get_wd(index) * weight)


class CountsEach(package.Optimizer):
    """SGD that counts as MXNet's own optimizers of one parameter do."""

    def step(self, indices, weights, grads, states):
        for index, weight, grad in zip(indices, weights, grads, strict=True):
            self._update_count(index)
            weight -= self._get_lr(index) * (self.preprocess(grad) + self._get_wd(index) * weight)


class HasUpdate(package.Optimizer):
    """SGD as one of MXNet 1.9.1: `update` itself."""

    def update(self, indices, weights, grads, states):
        if not isinstance(indices, list | tuple):
            indices, weights, grads = [indices], [weights], [grads]
        self._update_count(indices)
        for index, weight, grad in zip(indices, weights, grads, strict=True):
            weight -= self._get_lr(index) * (self.preprocess(grad) + self._get_wd(index) * weight)


def trained(optimizer, contexts, update_on_kvstore, dtype):
    """The learning rates over six steps, the counts of each device, and the weights."""
    params = parameters(contexts, dtype, ("a", "b", "c"))
    trainer = gluon.Trainer(params, optimizer, update_on_kvstore=update_on_kvstore)
    rates = []
    for number in range(6):
        step(trainer, params, grad=0.1 * (number + 1))
        rates.append(trainer.learning_rate)
    counts = trainer.optimizer._all_index_update_counts
    return (
        rates,
        {d: c for d, c in counts.items() if c},
        trainer.optimizer.num_update,
        values(params),
    )


@pytest.mark.parametrize(
    ("contexts", "update_on_kvstore"), [(ONE, None), (TWO, False), (TWO, True)]
)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("kind", [OnlyStep, NeverCounts, CountsEach, HasUpdate])
@pytest.mark.parametrize("aggregate_num", [1, np.inf])
def test_updates_are_counted_once_wherever_they_are_counted(
    kind, dtype, contexts, update_on_kvstore, aggregate_num
):
    def rates(**more):
        schedule = FactorScheduler(2, 0.5, base_lr=1.0)
        return {"lr_scheduler": schedule, "begin_num_update": 1, "wd": 0.1, **more}

    multi = {"multi_precision": dtype == "float16"}
    ours = kind(aggregate_num=aggregate_num, **rates(**multi))
    theirs = mx.optimizer.SGD(**rates(**multi))
    result = trained(ours, contexts, update_on_kvstore, dtype)
    expected = trained(theirs, contexts, update_on_kvstore, dtype)
    assert result[:3] == expected[:3]
    np.testing.assert_allclose(result[3], expected[3], rtol=1e-3 if dtype == "float16" else 1e-6)
    assert len(set(result[0])) == 4  # the schedule moves


@pytest.mark.parametrize("kind", ["lars", "nag", "signum", "adamw", "mars"])
@pytest.mark.parametrize("fused", [False, True])
def test_this_packages_optimizers_are_counted_once(kind, fused):
    def rates():
        return {"lr_scheduler": FactorScheduler(2, 0.5, base_lr=1.0)}

    ours = trained(package.create(kind, use_fused_step=fused, **rates()), TWO, False, "float32")
    assert ours[:3] == trained(mx.optimizer.SGD(**rates()), TWO, False, "float32")[:3]


def test_a_step_that_is_called_by_itself_counts_itself():
    optimizer = OnlyStep(lr_scheduler=FactorScheduler(1, 0.5, base_lr=1.0))
    for _ in range(2):
        optimizer.step([0], [mx.nd.ones(2)], [mx.nd.ones(2)], [None])
    assert optimizer.num_update == 2


class Fails(package.Optimizer):
    def step(self, indices, weights, grads, states):
        raise RuntimeError("no step")


def test_a_step_that_fails_is_not_counted():
    optimizer = Fails(begin_num_update=3)
    with pytest.raises(RuntimeError, match="no step"):
        optimizer.update([0], [mx.nd.ones(2)], [mx.nd.ones(2)], [None])
    assert (optimizer.num_update, optimizer._index_update_count) == (3, {})
