"""Signum equals MXNet's kernels bit for bit."""

import gluon_svrg as gs
import mxnet as mx
import numpy as np
import pytest

SHAPES = [(4, 3, 2), (5,), (7, 2)]
SCALARS = {"learning_rate": 0.01, "wd": 0.02, "rescale_grad": 0.3}


def arrays(seed):
    rng = np.random.default_rng(seed)
    return [mx.nd.array(rng.normal(size=shape)) for shape in SHAPES]


def run(optimizer):
    updater = mx.optimizer.get_updater(optimizer)
    weights = arrays(0)
    for seed in range(1, 6):
        updater([0, 1, 2], arrays(seed), weights)
    return [weight.asnumpy() for weight in weights]


@pytest.mark.parametrize("clip", [{}, {"clip_gradient": 0.2}])
@pytest.mark.parametrize("momentum", [{"momentum": 0.0}, {"momentum": 0.9, "wd_lh": 0.05}])
@pytest.mark.parametrize("aggregate", [1, 2, np.inf])
def test_it_is_mxnets_bit_for_bit(clip, momentum, aggregate):
    ours = run(gs.Signum(**SCALARS, **clip, **momentum, aggregate_num=aggregate))
    theirs = run(mx.optimizer.Signum(**SCALARS, **clip, **momentum))
    assert all(np.array_equal(a, b) for a, b in zip(ours, theirs, strict=True))


def test_with_momentum_it_is_the_kernel_signum_update():
    (weight, *_), (grad, *_) = arrays(0), arrays(1)
    ours, mom, state = weight.copy(), mx.nd.zeros_like(weight), mx.nd.zeros_like(weight)
    gs.Signum(0.01, 0.9, 0.05, wd=0.02).update([0], [ours], [grad], [state])
    mx.nd.signum_update(weight, grad, mom, lr=0.01, momentum=0.9, wd=0.02, wd_lh=0.05, out=weight)
    assert np.array_equal(ours.asnumpy(), weight.asnumpy())
    assert np.array_equal(state.asnumpy(), mom.asnumpy())


def test_without_momentum_it_is_the_kernel_signsgd_update():
    """1.9.1's Signum gives wd_lh to this kernel, which has no such argument; 2.0 adds it to wd."""
    (weight, *_), (grad, *_) = arrays(0), arrays(1)
    ours = weight.copy()
    gs.Signum(0.01, 0.0, 0.25, wd=0.25).update([0], [ours], [grad], [None])
    mx.nd.signsgd_update(weight, grad, lr=0.01, wd=0.5, out=weight)
    assert np.array_equal(ours.asnumpy(), weight.asnumpy())


def test_an_entry_whose_momentum_is_0_stays():
    for fused in (False, True):
        weight = mx.nd.ones((3,))
        gs.Signum(0.5, 0.9, use_fused_step=fused).update(
            [0], [weight], [mx.nd.array([1, 0, -1])], [mx.nd.zeros((3,))]
        )
        assert weight.asnumpy().tolist() == [0.5, 1.0, 1.5]


@pytest.mark.parametrize("momentum", [1, 1.5, -0.1, float("nan")])
def test_bad_momentum(momentum):
    with pytest.raises(ValueError, match=rf"momentum must be in \[0, 1\), got {momentum}: "):
        gs.Signum(momentum=momentum)
