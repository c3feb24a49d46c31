"""MARS: its identities, where it is stable, the cut of the norm, the exemptions."""

import gluon_svrg as gs
import mxnet as mx
import numpy as np
import optimizer_oracle as oracle
import pytest
from gluon_svrg.optimizer.mars import norm_scale

SHAPES = {0: (4, 3), 1: (5,), 2: (2, 2)}
NAMES = {0: "a_weight", 1: "a_bias", 2: "b_gamma"}


def arrays(seed, dtype="float64"):
    rng = np.random.default_rng(seed)
    return [mx.nd.array(rng.normal(size=shape), dtype=dtype) for shape in SHAPES.values()]


class Stepper:
    """An optimizer on some arrays, whose states are at hand."""

    def __init__(self, optimizer, dtype="float64"):
        self.optimizer, self.dtype = optimizer, dtype
        self.weights = arrays(0, dtype)
        self.states = [optimizer.create_state(i, w) for i, w in enumerate(self.weights)]

    def step(self, grads):
        """Take a step with these gradients."""
        grads = [mx.nd.array(grad, dtype=self.dtype) for grad in grads]
        self.optimizer.update(list(SHAPES), self.weights, grads, self.states)

    def values(self):
        """Weights and states."""
        return [array.asnumpy() for arrays in [self.weights, *self.states] for array in arrays]


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("clip", [None, 0.3])
def test_gamma_0_without_a_cut_is_adamw_bit_for_bit(dtype, fused, clip):
    rates = {"learning_rate": 0.1, "beta1": 0.9, "beta2": 0.98, "wd": 0.1, "clip_gradient": clip}
    rates |= {"use_fused_step": fused, "rescale_grad": 0.3}
    ours = Stepper(gs.MARS(gamma=0, max_norm=None, **rates), dtype)
    theirs = Stepper(gs.AdamW(**rates), dtype)
    for seed in range(1, 20):
        for stepper in (ours, theirs):
            stepper.step([grad.asnumpy() for grad in arrays(seed)])
        for a, b in zip(ours.values(), theirs.values(), strict=True):
            assert np.array_equal(a, b)


@pytest.mark.parametrize("gamma", [0.025, 0.5])
def test_without_a_cut_it_is_quasi_hyperbolic_momentum(gamma):
    """m = (1 - gamma) u + gamma g, where u is the plain moving average (from c_1 = g_1 on)."""
    beta = 0.95
    stepper = Stepper(gs.MARS(0.1, beta, gamma=gamma, max_norm=None))
    averages = [np.zeros(shape) for shape in SHAPES.values()]
    first = None
    for t in range(50):
        grads = [grad.asnumpy() for grad in arrays(1 + t)]
        stepper.step(grads)
        first = first or grads
        for u, g, g1, state in zip(averages, grads, first, stepper.states, strict=True):
            u[:] = beta * u + (1 - beta) * g
            # With a first gradient before of 0 it would hold from the first step on; as it is, what
            # the first change of g would have added fades.
            expected = (1 - gamma) * u + gamma * g - gamma * beta ** (t + 1) * g1
            assert np.abs(state[0].asnumpy() - expected).max() < 1e-12


def test_gamma_1_with_the_same_batchs_gradient_is_storm():
    """d = g + (1 - a) (d - p), where p is the gradient of this batch at the last weights."""
    rng = np.random.default_rng(0)
    a = 0.1
    stepper = Stepper(gs.MARS(0.01, 1 - a, gamma=1.0, max_norm=None))
    estimates = [np.zeros(shape) for shape in SHAPES.values()]
    before = [weight.asnumpy() for weight in stepper.weights]
    for t in range(50):
        # The gradient of half (w - x)' H (w - x), of each batch another H and x.
        curvatures = [rng.uniform(0.5, 2, shape) for shape in SHAPES.values()]
        targets = [rng.normal(size=shape) for shape in SHAPES.values()]
        weights = [weight.asnumpy() for weight in stepper.weights]
        grads = [h * (w - x) for h, w, x in zip(curvatures, weights, targets, strict=True)]
        past = [h * (w - x) for h, w, x in zip(curvatures, before, targets, strict=True)]
        for state, p in zip(stepper.states, past, strict=True):
            state[2][:] = mx.nd.array(p, dtype="float64")
        stepper.step(grads)
        before = weights
        for d, g, p, state in zip(estimates, grads, past, stepper.states, strict=True):
            d[:] = a * g if t == 0 else g + (1 - a) * (d - p)
            assert np.abs(state[0].asnumpy() - d).max() < 1e-12 * np.abs(d).max() + 1e-14


@pytest.mark.parametrize("gamma", [0.025, 1.0])
def test_without_noise_it_is_exact_mars(gamma):
    """The last gradient is that of the same (the only) batch at the last weights."""
    h = [np.random.default_rng(i).uniform(0.1, 2, shape) for i, shape in SHAPES.items()]
    stepper = Stepper(gs.MARS(0.02, gamma=gamma, max_norm=1.0, wd=0.01))
    rule = oracle.MARS(0.02, gamma=gamma, max_norm=1.0, wd=0.01)
    weights = [weight.asnumpy() for weight in stepper.weights]
    before, states = list(weights), [oracle.AdamState(shape) for shape in SHAPES.values()]
    for _ in range(50):
        stepper.step([c * w.asnumpy() for c, w in zip(h, stepper.weights, strict=True)])
        for i, state in enumerate(states):
            state.last = h[i] * before[i]
            before[i] = weights[i]
            weights[i] = rule.step(weights[i], h[i] * weights[i], state)
            np.testing.assert_allclose(stepper.weights[i].asnumpy(), weights[i], rtol=1e-10)


def growth(eta, beta, gamma, steps=200):
    """By how much the distance to the optimum of half x^2 grows, from the middle to the end."""
    # With so large an epsilon the root counts for nothing: the step is eta times the mean.
    optimizer = gs.MARS(eta * 1e50, beta, 0.0, 1e50, gamma=gamma, max_norm=None)
    x = mx.nd.array([1.0], dtype="float64")
    state = optimizer.create_state(0, x)
    distances = []
    for _ in range(steps):
        optimizer.update([0], [x], [x.copy()], [state])
        distances.append(x.copy())
    distances = np.abs([x.asscalar() for x in distances])
    return distances[-20:].max() / distances[steps // 2 - 20 : steps // 2].max()


@pytest.mark.slow
@pytest.mark.parametrize(("beta", "gamma"), [(0.9, 0.0), (0.9, 1.0), (0.95, 0.025)])
def test_the_limit_of_stability_from_both_sides(beta, gamma):
    limit = 2 * (1 + beta) / (1 - beta + 2 * gamma * beta)
    if gamma == 1:
        assert limit == pytest.approx(2)  # that of gradient descent
    assert growth(0.99 * limit, beta, gamma) < 0.8
    assert growth(1.01 * limit, beta, gamma) > 1.2


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("rescale", [1.0, 0.125])
def test_the_first_step_is_that_of_the_plain_gradient(dtype, fused, rescale):
    """Also where counting begins later, and for a parameter that begins later than the others."""
    optimizer = gs.MARS(0.1, begin_num_update=7, use_fused_step=fused, rescale_grad=rescale)
    first, _, late = Stepper(optimizer, dtype), None, mx.nd.ones((3,), dtype=dtype)
    first.step([grad.asnumpy() for grad in arrays(1)])
    optimizer.update([9], [late], [late], [state := optimizer.create_state(9, late)])
    for grad, (mean, _, last) in zip(arrays(1), first.states, strict=True):
        grad = rescale * grad.asnumpy()
        np.testing.assert_allclose(last.asnumpy(), grad, rtol=1e-6)
        c = grad / max(1, np.sqrt((grad**2).sum()))
        np.testing.assert_allclose(mean.asnumpy(), 0.05 * c, rtol=1e-5)
    norm = max(1, rescale * np.sqrt(3))
    np.testing.assert_allclose(state[0].asnumpy(), 0.05 * rescale / norm, rtol=1e-5)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_scale_of_the_norm(dtype):
    norms = np.array([0.0, 1.0, 2.0, 2.5, 1e10, np.inf, np.nan])
    scale = norm_scale(mx.nd.array(norms**2, dtype=dtype), 2.0)
    assert np.dtype(scale.dtype) == dtype
    np.testing.assert_allclose(scale.asnumpy(), [1, 1, 1, 0.8, 2e-10, 1, 1], rtol=1e-6)


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize(
    "exempt", ["(bias|gamma)$", ["a_bias", "b_gamma"], lambda name: "weight" not in name]
)
def test_exempt_parameters_take_adamws_step_and_have_its_state(exempt, fused):
    names = {"param_idx2name": NAMES, "use_fused_step": fused}
    ours = Stepper(gs.MARS(0.1, gamma=0.5, max_norm=0.5, exempt=exempt, **names), "float32")
    theirs = Stepper(gs.AdamW(0.1, 0.95, 0.99, **names), "float32")
    for seed in range(1, 5):
        for stepper in (ours, theirs):
            stepper.step([grad.asnumpy() for grad in arrays(seed)])
    assert [len(state) for state in ours.states] == [3, 2, 2]
    equal = [
        np.array_equal(a.asnumpy(), b.asnumpy())
        for a, b in zip(ours.weights, theirs.weights, strict=True)
    ]
    assert equal == [False, True, True]


def test_an_exemption_that_exempts_nothing_is_told():
    stepper = Stepper(gs.MARS(exempt=["bias"], param_idx2name=NAMES))
    with pytest.warns(UserWarning, match=r"MARS\(exempt=...\): no parameter matches 'bias'"):
        stepper.step([grad.asnumpy() for grad in arrays(1)])


@pytest.mark.parametrize("fused", [False, True])
def test_gamma_and_max_norm_may_change_in_mid_run(fused):
    """With gamma 0 the last gradient is kept all the same: it may rise again."""
    rules = [(0.1, 1.0), (0.0, None), (0.0, 0.5), (0.3, None), (0.1, 2.0)]
    optimizer = gs.MARS(0.1, gamma=0.1, use_fused_step=fused)
    stepper = Stepper(optimizer, "float32")
    weights = [weight.asnumpy() for weight in stepper.weights]
    states = [oracle.AdamState(shape) for shape in SHAPES.values()]
    for seed, (gamma, max_norm) in enumerate(rules, 1):
        optimizer.gamma, optimizer.max_norm = gamma, max_norm
        grads = [grad.asnumpy() for grad in arrays(seed)]
        stepper.step(grads)
        rule = oracle.MARS(0.1, gamma=gamma, max_norm=max_norm or np.inf)
        for i, grad in enumerate(grads):
            weights[i] = rule.step(weights[i], grad, states[i])
            np.testing.assert_allclose(
                stepper.weights[i].asnumpy(), weights[i], rtol=1e-4, atol=1e-5
            )
    stepper = Stepper(gs.MARS(gamma=0))
    stepper.optimizer.gamma = 0.1
    with pytest.raises(ValueError, match="MARS needs mean, variance, last gradient of shape"):
        stepper.step([grad.asnumpy() for grad in arrays(1)])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"gamma": -0.1}, r"gamma must be in \[0, 1\], got -0.1: 0 is AdamW"),
        ({"gamma": 1.5}, r"gamma must be in \[0, 1\], got 1.5: "),
        ({"gamma": float("nan")}, r"gamma must be a number, got nan: "),
        ({"max_norm": 0}, r"max_norm must be a number above 0, got 0: None is no limit"),
        ({"max_norm": -1.0}, r"max_norm must be a number above 0, got -1.0"),
        ({"max_norm": float("inf")}, r"max_norm must be a finite number, got inf: None"),
        ({"exempt": "(gamma"}, r"exempt='\(gamma' is no regular expression"),
        ({"exempt": 5}, r"exempt must be a regular expression, a predicate .* got 5"),
    ],
)
def test_bad_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        gs.MARS(**arguments)
