"""AdamW: what is its own: the decay, the kernel beside MXNet's Adam, bad arguments and states."""

import pickle

import gluon_svrg as gs
import mxnet as mx
import numpy as np
import optimizer_oracle as oracle
import pytest
from gluon_svrg.optimizer import exclude_from_decay
from mxnet import autograd, gluon
from mxnet.gluon import nn
from mxnet.lr_scheduler import CosineScheduler

KINDS = [gs.AdamW, gs.MARS]
SHAPES = [(4, 3), (5,)]


def arrays(seed, dtype="float32", scale=1.0):
    rng = np.random.default_rng(seed)
    return [mx.nd.array(scale * rng.normal(size=shape), dtype=dtype) for shape in SHAPES]


def run(optimizer, steps=5, dtype="float32", scale=1.0):
    """Return the weights after some steps with the same weights and gradients for everyone."""
    updater = mx.optimizer.get_updater(optimizer)
    weights = arrays(0, dtype)
    for seed in range(1, steps + 1):
        updater([0, 1], arrays(seed, dtype, scale), weights)
    return [weight.asnumpy() for weight in weights]


@pytest.mark.parametrize("fused", [False, True])
def test_without_decay_it_is_mxnets_adam_but_for_the_place_of_epsilon(fused):
    rates = {"learning_rate": 0.01, "epsilon": 1e-12, "rescale_grad": 0.5, "clip_gradient": 0.3}
    ours, theirs = run(gs.AdamW(use_fused_step=fused, **rates)), run(mx.optimizer.Adam(**rates))
    for a, b in zip(ours, theirs, strict=True):
        # MXNet's corrects the bias by 1 - 0.999, its kernel takes 1 minus 0.999 in float32.
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_zero_gradient_and_a_zero_weight_give_no_nan_and_the_decay_alone(kind, fused, dtype):
    """The decay is multiplied by the rate; wd_mult = 0 leaves a weight where it is."""
    optimizer = kind(0.1, wd=0.5, use_fused_step=fused, param_idx2name={0: "a", 1: "b"})
    optimizer.set_wd_mult({"b": 0.0})
    start, found = arrays(0, dtype), run(optimizer, steps=2, dtype=dtype, scale=0.0)
    np.testing.assert_allclose(found[0], start[0].asnumpy() * (1 - 0.1 * 0.5) ** 2, rtol=1e-6)
    assert np.array_equal(found[1], start[1].asnumpy())
    zero = mx.nd.zeros((3,), dtype=dtype)
    optimizer.update(
        [2], [zero], [mx.nd.zeros((3,), dtype=dtype)], [optimizer.create_state(2, zero)]
    )
    assert zero.asnumpy().tolist() == [0, 0, 0]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("rescale", [0.0, float("nan"), float("inf")])
def test_a_rescale_grad_that_mxnets_kernel_would_leave_out(kind, fused, rescale):
    optimizer = kind(0.1, wd=0.5, use_fused_step=fused, rescale_grad=rescale)
    (found, _), (start, _) = run(optimizer, steps=1), arrays(0)
    if rescale == 0:
        np.testing.assert_allclose(found, start.asnumpy() * 0.95, rtol=1e-6)
    else:
        assert np.isnan(found).all()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("fused", [False, True])
def test_a_gradient_that_is_not_finite_is_seen_in_the_weights(kind, fused):
    weight, grad = mx.nd.ones((2,)), mx.nd.array([np.nan, 1.0])
    optimizer = kind(0.1, use_fused_step=fused)
    optimizer.update([0], [weight], [grad], [optimizer.create_state(0, weight)])
    assert np.isnan(weight.asnumpy()[0])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_the_gradient_stays_as_it_is(kind, fused, dtype):
    """MXNet's adamw_update overwrites the gradient, to which grad_req='add' would add."""
    weight, grad = mx.nd.ones((40,), dtype=dtype), mx.nd.ones((40,), dtype=dtype)
    optimizer = kind(use_fused_step=fused, rescale_grad=0.25, clip_gradient=0.1)
    state = optimizer.create_state(0, weight)
    for _ in range(3):
        optimizer.update([0], [weight], [grad], [state])
        assert (grad.asnumpy() == 1).all()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_step_never_waits_for_the_device(kind, fused, dtype, monkeypatch):
    updater = mx.optimizer.get_updater(kind(0.1, use_fused_step=fused, clip_gradient=1.0, wd=0.1))
    weights, grads = arrays(0, dtype), arrays(1, dtype)

    def wait(*args):
        raise AssertionError("a host round trip")

    for name in ("asnumpy", "asscalar", "wait_to_read", "__bool__"):
        monkeypatch.setattr(mx.nd.NDArray, name, wait)
    for _ in range(2):
        updater([0, 1], grads, weights)


def test_the_default_rate_is_adams_and_a_schedulers_base_stays():
    for kind in KINDS:
        assert kind().learning_rate == 0.001
        assert kind(lr_scheduler=CosineScheduler(10, base_lr=0.5)).learning_rate == 0.5
        assert kind(0.2).learning_rate == 0.2


def test_they_are_found_by_name():
    assert type(gs.optimizer.create("adamw", beta1=0.8)) is gs.AdamW
    assert type(gs.optimizer.create("mars")) is gs.MARS


def test_what_is_excluded_from_decay_is_not_decayed():
    net = nn.HybridSequential()
    net.add(nn.Dense(3, in_units=2), nn.BatchNorm(in_channels=3))
    net.initialize(mx.init.One())
    names = exclude_from_decay(net)
    trainer = gs.SVRGTrainer(net.collect_params(), "adamw", {"learning_rate": 0.5, "wd": 0.5})
    before = {name: param.data().asnumpy() for name, param in net.collect_params().items()}
    with autograd.record():
        loss = 0 * net(mx.nd.ones((4, 2))).sum()
    loss.backward()
    trainer.step(4)
    for name, param in net.collect_params().items():
        if param.grad_req != "null":
            factor = 1 if name in names else 0.75
            np.testing.assert_allclose(param.data().asnumpy(), factor * before[name], rtol=1e-6)


def test_with_svrg_the_step_is_that_of_the_corrected_gradient():
    param = gluon.Parameter("w", shape=(3,), dtype="float64")
    param.initialize(mx.init.One())
    trainer = gs.SVRGTrainer([param], "mars", {"learning_rate": 0.1})
    rule, state, weight = oracle.MARS(0.1, gamma=0.025, max_norm=1.0), oracle.AdamState(3), 1.0
    rng = np.random.default_rng(0)
    for _ in range(5):
        grad, snapshot, mean = rng.normal(size=(3, 3))
        full = gs.svrg.FullGradient({"w": mx.nd.array(mean, dtype="float64")}, 8)
        trainer.set_control_variate(full)
        with autograd.record():
            loss = (param.data() * mx.nd.array(grad, dtype="float64")).sum()
        loss.backward()
        snapshot_gradient = {"w": [mx.nd.array(snapshot, dtype="float64")]}
        trainer.correct(gs.svrg.BatchGradient(snapshot_gradient, [2]))
        trainer.step(2)
        weight = rule.step(weight, (grad - snapshot + 2 * mean) / 2, state)
        np.testing.assert_allclose(param.data().asnumpy(), weight, rtol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"beta1": 1.0}, r"beta1 must be in \[0, 1\), got 1.0: from 1 on"),
        ({"beta1": -0.1}, r"beta1 must be in \[0, 1\), got -0.1: "),
        ({"beta2": 1}, r"beta2 must be in \[0, 1\), got 1: "),
        ({"beta2": float("nan")}, r"beta2 must be a number, got nan: "),
        ({"epsilon": 0}, r"epsilon must be a number above 0, got 0: with 0 a weight"),
        ({"epsilon": float("inf")}, r"epsilon must be a finite number, got inf: "),
        ({"clip_gradient": 0}, r"clip_gradient must be positive"),
    ],
)
def test_bad_arguments(kind, arguments, message):
    with pytest.raises(ValueError, match=message):
        kind(**arguments)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"betas": (0.9, 0.99)}, "has no argument 'betas': give beta1 and beta2"),
        ({"lr": 0.1}, "has no argument 'lr': give learning_rate"),
        ({"weight_decay": 0.1}, "has no argument 'weight_decay': give wd"),
        ({"beta1": "0.9"}, "beta1 must be a number, got '0.9': how much of a moving average"),
        ({"epsilon": None}, "epsilon must be a number above 0, got None: "),
    ],
)
def test_arguments_of_other_names_and_types(kind, arguments, message):
    with pytest.raises(TypeError, match=message):
        kind(**arguments)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("fused", [False, True])
def test_a_sparse_gradient_is_an_error_that_names_the_optimizer(kind, fused):
    net = nn.Embedding(6, 3, sparse_grad=True, prefix="words_")
    net.initialize()
    trainer = gluon.Trainer(net.collect_params(), kind(use_fused_step=fused))
    with autograd.record():
        loss = net(mx.nd.array([1, 4])).sum()
    loss.backward()
    message = rf"'words_weight' is row_sparse, and this update of {kind.__name__} is dense: create"
    with pytest.raises(ValueError, match=message):
        trainer.step(1)
    assert trainer.optimizer.num_update == 0


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("state", [None, (), "momentum", "one", "shape"])
def test_a_state_that_does_not_fit_is_an_error(kind, fused, state):
    weight = mx.nd.ones((3,))
    states = {
        "momentum": mx.nd.zeros((3,)),
        "one": (mx.nd.zeros((3,)),),
        "shape": tuple(mx.nd.zeros((n,)) for n in (3, 3, 2)),
    }
    optimizer = kind(use_fused_step=fused)
    needed = {gs.AdamW: "AdamW needs mean, variance of", gs.MARS: "variance, last gradient of"}
    with pytest.raises(ValueError, match=rf"the state of '0' has .*{needed[kind]} shape \(3,\)"):
        optimizer.update([0], [weight], [weight], [states.get(state, state)])
    assert optimizer.num_update == 0
    assert weight.asnumpy().tolist() == [1, 1, 1]


@pytest.mark.parametrize("kind", KINDS)
def test_a_pickled_optimizer_goes_on(kind):
    """As it reaches the server of a dist kvstore; by protocol 0, as MXNet sends it."""
    optimizer = kind(0.1, wd=0.1)
    run(optimizer, steps=2)
    arrived = pickle.loads(pickle.dumps(optimizer, 0))
    assert all(np.array_equal(a, b) for a, b in zip(run(arrived), run(optimizer), strict=True))
