"""MXNet's update operators in place, on a convolution's weight after an inference pass.

An inference pass leaves the weight in oneDNN's private layout. An operator then works on a copy of
it; else it works in place. An operator that reads the weight after it has written it gives two
results.
"""

import pickle
from typing import NamedTuple

import gluon_svrg as gs
import mxnet as mx
import numpy as np
import pytest
from mxnet import nd
from mxnet.gluon import nn

SHAPE = (32, 32, 3, 3)
RATES = {"lr": 0.1, "wd": 0.5}
MOMENTUM = {**RATES, "momentum": 0.9}
LISTS = {"lrs": [0.1], "wds": [0.5]}
MOMENTUM_LISTS = {**LISTS, "momentum": 0.9}
LAMB = {**LISTS, "step_count": [2]}


class Case(NamedTuple):
    """An operator on one weight, its states and its arguments."""

    name: str
    states: int
    arguments: dict
    float16: bool = False  # the last state is the float32 copy of a float16 weight
    call: str = "one"


CASES = [
    Case("sgd_update", 0, RATES),
    Case("sgd_mom_update", 1, MOMENTUM),
    Case("mp_sgd_update", 0, RATES, True),
    Case("mp_sgd_mom_update", 1, MOMENTUM, True),
    Case("signsgd_update", 0, RATES),
    Case("signum_update", 1, MOMENTUM),
    Case("adam_update", 2, RATES),
    Case("ftml_update", 3, {**RATES, "t": 2}),
    Case("ftrl_update", 2, RATES),
    Case("rmsprop_update", 1, RATES),
    Case("rmspropalex_update", 3, RATES),
    Case("multi_sgd_update", 0, LISTS, call="flat"),
    Case("multi_sgd_mom_update", 1, MOMENTUM_LISTS, call="flat"),
    Case("multi_mp_sgd_update", 0, LISTS, True, call="flat"),
    Case("multi_mp_sgd_mom_update", 1, MOMENTUM_LISTS, True, call="flat"),
    Case("preloaded_multi_sgd_update", 0, {}, call="preloaded"),
    Case("preloaded_multi_sgd_mom_update", 1, {"momentum": 0.9}, call="preloaded"),
    Case("preloaded_multi_mp_sgd_update", 0, {}, True, call="preloaded"),
    Case("preloaded_multi_mp_sgd_mom_update", 1, {"momentum": 0.9}, True, call="preloaded"),
    Case("contrib.adamw_update", 2, {**RATES, "eta": 1.0}, call="scaled"),
    Case("contrib.mp_adamw_update", 2, {**RATES, "eta": 1.0}, True, call="scaled"),
    Case("contrib.multi_adamw_update", 2, {**LISTS, "etas": [1.0]}, call="scaled lists"),
    Case("contrib.multi_mp_adamw_update", 2, {**LISTS, "etas": [1.0]}, True, call="scaled lists"),
    Case("contrib.multi_lamb_update", 2, LAMB, call="lists"),
    Case("contrib.multi_mp_lamb_update", 2, LAMB, True, call="lists"),
    Case("lamb_update_phase1", 2, {"wd": 0.5, "t": 2}),
    Case("mp_lamb_update_phase1", 2, {"wd": 0.5, "t": 2}, True),
]
DEFECTIVE = {
    "nag_mom_update": Case("nag_mom_update", 1, MOMENTUM),
    "mp_nag_mom_update": Case("mp_nag_mom_update", 1, MOMENTUM, True),
}
# Of sparse gradients only (tests/test_sparse_training.py), or of a weight and its norms.
OTHER = {
    "sparse.adagrad_update",
    "contrib.group_adagrad_update",
    "lamb_update_phase2",
    "mp_lamb_update_phase2",
}


def operator(name):
    owner = nd
    for part in name.split("."):
        owner = getattr(owner, part)
    return owner


def weight_in_private_layout(value, dtype):
    """Return a convolution's weight after an inference pass, in which oneDNN has reordered it."""
    layer = nn.Conv2D(SHAPE[0], 3, padding=1, in_channels=SHAPE[1], use_bias=False)
    layer.initialize()
    layer.weight.set_data(nd.array(value))
    layer.hybridize(static_alloc=True)
    layer(nd.ones((8, SHAPE[1], 8, 8))).wait_to_read()
    if dtype == "float16":  # convolutions in float16 do not run on CPUs
        layer.cast("float16")
    return layer.weight.data()


def updated(case, rng, in_place, layout="plain"):
    """Return weight and states after the operator, as NumPy arrays."""
    dtype = "float16" if case.float16 else "float32"
    value = rng.normal(size=SHAPE).astype(dtype)
    weight = nd.array(value, dtype=dtype)
    if layout == "private":
        weight = weight_in_private_layout(value.astype("float32"), dtype)
    grad = nd.array(rng.normal(size=SHAPE), dtype=dtype)
    # The first is a second moment where there is one: more than the square of any mean.
    states = [nd.array(rng.uniform(size=SHAPE) + 2 * (i == 0)) for i in range(case.states)]
    if case.float16:
        states.append(nd.array(value.astype("float32")))
    phase1 = "phase1" in case.name
    is_half_out = case.float16 and not phase1
    out = weight if in_place else nd.zeros(SHAPE, dtype="float16" if is_half_out else "float32")
    if phase1:
        out = nd.zeros(SHAPE)
        if in_place and not case.float16:
            out = weight
    function = operator(case.name)
    if case.call == "one":
        function(weight, grad, *states, out=out, **case.arguments)
    elif case.call == "flat":
        function(weight, grad, *states, num_weights=1, out=out, **case.arguments)
    elif case.call == "preloaded":
        rates = nd.array([0.1]), nd.array([0.5])
        function(weight, grad, *states, *rates, num_weights=1, out=out, **case.arguments)
    elif case.call == "scaled":
        function(weight, grad, *states, nd.ones((1,)), out=out, **case.arguments)
    else:
        lists = [[array] for array in (weight, grad, *states)]
        scale = [nd.ones((1,))] if case.call == "scaled lists" else []
        function(*lists, *scale, out=[out], **case.arguments)
    return [array.asnumpy() for array in (out, *states)]


def results(case):
    return {
        key: updated(case, np.random.default_rng(0), *key)
        for key in ((False, "plain"), (True, "plain"), (True, "private"))
    }


def are_equal(one, other):
    return all(np.array_equal(a, b, equal_nan=True) for a, b in zip(one, other, strict=True))


def test_every_update_operator_of_mxnet_is_in_the_table():
    names = {name for name in dir(nd) if name.endswith("_update") or "_update_phase" in name}
    names |= {f"contrib.{name}" for name in dir(nd.contrib) if name.endswith("_update")}
    names |= {f"sparse.{name}" for name in dir(nd.sparse) if name.endswith("adagrad_update")}
    tried = {case.name for case in CASES} | set(DEFECTIVE) | OTHER
    assert {n for n in names if not n.startswith("_")} <= tried


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_an_update_in_place_is_the_one_out_of_place(case):
    out_of_place, *in_place = results(case).values()
    assert all(np.isfinite(array).all() for array in out_of_place)
    assert all(are_equal(result, out_of_place) for result in in_place)


def test_mxnets_nag_depends_on_the_layout():
    out_of_place, plain, private = results(DEFECTIVE["nag_mom_update"]).values()
    assert are_equal(private, out_of_place)
    assert not are_equal(plain, out_of_place)


def test_mxnets_nag_of_float16_is_another_formula_everywhere():
    arrays = [nd.ones((1,), dtype="float16") for _ in range(2)] + [nd.ones((1,)) for _ in range(2)]
    nd.mp_nag_mom_update(*arrays, lr=0.1, wd=1, momentum=0.9, out=arrays[0])
    assert arrays[2].asscalar() == pytest.approx(0.657, rel=1e-3)
    weight, mom = nd.ones((1,)), nd.ones((1,))
    gs.NAG(0.1, 0.9, wd=1).update([0], [weight], [nd.ones((1,))], [mom])
    assert mom.asscalar() == pytest.approx(0.7, rel=1e-6)
    assert weight.asscalar() == pytest.approx(1.43, rel=1e-6)


@pytest.mark.parametrize("layout", ["plain", "private"])
@pytest.mark.parametrize("clip", [None, 0.3])
def test_nag_is_mxnets_kernel_out_of_place_to_the_bit(clip, layout):
    rng = np.random.default_rng(0)
    value, mom, grad = (rng.normal(size=SHAPE).astype("float32") for _ in range(3))
    theirs, their_mom = nd.zeros(SHAPE), nd.array(mom)
    clipped = {} if clip is None else {"clip_gradient": clip}
    nd.nag_mom_update(nd.array(value), nd.array(grad), their_mom, **MOMENTUM, **clipped, out=theirs)
    weight = nd.array(value) if layout == "plain" else weight_in_private_layout(value, "float32")
    ours = nd.array(mom)
    gs.NAG(0.1, 0.9, wd=0.5, clip_gradient=clip).update([0], [weight], [nd.array(grad)], [ours])
    assert np.array_equal(ours.asnumpy(), their_mom.asnumpy())
    assert np.array_equal(weight.asnumpy(), theirs.asnumpy())


def test_weights_of_one_shape_share_an_array():
    """Some have no decay; what one step leaves in the array is not read by another."""
    rng = np.random.default_rng(0)
    shapes = [(3,), (4, 5), (4, 5), (3,)]
    arrays = [[rng.normal(size=shape).astype("float32") for shape in shapes] for _ in range(3)]
    together, alone = ([[nd.array(a) for a in part] for part in arrays] for _ in range(2))
    optimizer = gs.NAG(0.1, 0.9, wd=0.5)
    optimizer.set_wd_mult({1: 0.0})
    optimizer.update(list(range(4)), *together)
    for i in range(4):
        optimizer.update([i], *([part[i]] for part in alone))
    assert len(pickle.loads(pickle.dumps(optimizer))._scratch) == 0
    for ours, theirs in zip(together[0] + together[2], alone[0] + alone[2], strict=True):
        assert np.array_equal(ours.asnumpy(), theirs.asnumpy())


def test_the_name_nag_is_this_packages():
    net = nn.Dense(2, in_units=2)
    net.initialize()
    assert type(gs.SVRGTrainer(net.collect_params(), "nag").optimizer) is gs.NAG
    assert type(mx.optimizer.create("nag")) is mx.optimizer.NAG
