import mxnet as mx
import numpy as np
import oracle
import problems
import pytest
from gluon_svrg.svrg import GradientMoments, Snapshot, VarianceMeter
from gluon_svrg.svrg.payoff import average_if_constant
from mxnet.gluon import nn

COEFFICIENTS = [0.0, 0.3, 0.75, 1.0]


def moved(problem, seed=5):
    """Move the weights; return the snapshot of before, and its parameters in NumPy."""
    snapshot = Snapshot(problem.net)
    snapshot.take()
    before = problem.params
    rng = np.random.default_rng(seed)
    for param in problem.net.collect_params().values():
        step = mx.nd.array(0.5 * rng.normal(size=param.shape), dtype="float64")
        for data in param.list_data():
            data += step.as_in_context(data.context)
    return snapshot, before


def measured(problem, snapshot, batches):
    backward = problems.backward_of(problem.net, problem.loss)
    return VarianceMeter(problem.net).measure(
        backward, batches, lambda batch: snapshot.gradient(backward, batch)
    )


def flat(gradients, samples):
    return np.concatenate([g.ravel() for g in gradients]) / samples


def brute_force(problem, before, batches):
    """Return the gradients of all batches, at the weights and at the snapshot, as rows."""
    here = [flat(problem.gradient(problem.params, x, y), len(x)) for x, y in batches]
    there = [flat(problem.gradient(before, x, y), len(x)) for x, y in batches]
    return np.array(here), np.array(there)


def total_variance(rows):
    return np.var(rows, axis=0, ddof=1).sum()


@pytest.mark.parametrize("kind", ["linear", "softmax", "mlp"])
@pytest.mark.parametrize("batch_size", [1, 8])
def test_it_agrees_with_all_gradients_by_numpy(kind, batch_size):
    problem = problems.make(kind, samples=40, batch_size=batch_size)
    snapshot, before = moved(problem)
    moments = measured(problem, snapshot, problem.ndarrays())
    here, there = brute_force(problem, before, problem.batches)
    assert moments.batches == len(problem.batches)
    assert moments.samples == 40
    for alpha in COEFFICIENTS:
        expected = total_variance(here - alpha * there)
        assert moments.variance(alpha) == pytest.approx(expected, rel=1e-10)
        assert moments.ratio(alpha) == pytest.approx(expected / total_variance(here), rel=1e-10)


def test_the_best_coefficient_is_the_one_of_numpy():
    problem = problems.make("mlp", samples=40)
    snapshot, before = moved(problem)
    moments = measured(problem, snapshot, problem.ndarrays())
    here, there = brute_force(problem, before, problem.batches)
    covariance = ((here - here.mean(0)) * (there - there.mean(0))).sum(0)
    variance = ((there - there.mean(0)) ** 2).sum(0)
    one = covariance.sum() / variance.sum()
    assert 0.1 < one < 0.99
    assert moments.optimal_coefficient() == pytest.approx(one)
    sizes = [param.size for param in problem.params]
    parts = np.split(np.arange(sum(sizes)), np.cumsum(sizes)[:-1])
    expected = [np.clip(covariance[p].sum() / variance[p].sum(), 0, 1) for p in parts]
    assert list(moments.optimal_coefficients().values()) == pytest.approx(expected, rel=1e-9)
    best = moments.variance(moments.optimal_coefficient())
    assert best < min(moments.variance(alpha) for alpha in np.linspace(0, 1, 12))
    assert moments.variance(moments.optimal_coefficients()) < best


def test_a_coefficient_for_each_parameter():
    problem = problems.make("softmax", samples=40)
    snapshot, before = moved(problem)
    moments = measured(problem, snapshot, problem.ndarrays())
    here, there = brute_force(problem, before, problem.batches)
    weight, bias = problem.net.collect_params()
    alphas = np.r_[np.full(18, 0.25), np.full(3, 0.5)]
    expected = total_variance(here - alphas * there)
    assert moments.variance({weight: 0.25, bias: 0.5}) == pytest.approx(expected, rel=1e-10)


def test_at_the_snapshot_nothing_is_left():
    problem = problems.make("mlp", samples=40)
    snapshot = Snapshot(problem.net)
    snapshot.take()
    moments = measured(problem, snapshot, problem.ndarrays())
    assert moments.ratio(1.0) < 1e-15
    assert moments.ratio(0.0) == 1
    assert moments.ratio(0.5) == pytest.approx(0.25)
    assert moments.optimal_coefficient() == pytest.approx(1)


def test_the_mean_does_not_matter():
    """A gradient of 1e6 beside a deviation of 1 leaves the variance exact."""
    moments = GradientMoments()
    rng = np.random.default_rng(0)
    rows = 1e6 + rng.normal(size=(9, 4))
    for row in rows:
        gradient = _gradient(row)
        moments.add(gradient, gradient)
    assert moments.variance() == pytest.approx(total_variance(rows), rel=1e-8)


def _gradient(row, devices=1, samples=1):
    from gluon_svrg.svrg import BatchGradient

    parts = [mx.nd.array(row / devices, mx.cpu(i), "float64") for i in range(devices)]
    return BatchGradient({"w": parts}, [samples] * devices)


@pytest.mark.parametrize("devices", [1, 2])
def test_scales_and_devices_are_taken_out(devices):
    rng = np.random.default_rng(1)
    here, there = rng.normal(size=(2, 6, 5))
    moments = GradientMoments()
    for a, c in zip(here, there, strict=True):
        moments.add(_gradient(128 * a, devices), _gradient(4 * c, devices), 128, 4)
    expected = total_variance((here - 0.5 * there) / devices)
    assert moments.variance(0.5) == pytest.approx(expected, rel=1e-12)


def test_one_batch_has_no_variance():
    moments = GradientMoments()
    moments.add(_gradient(np.ones(2)), _gradient(np.ones(2)))
    with pytest.raises(ValueError, match="a variance needs at least two batches, got 1"):
        moments.variance()


def test_gradients_that_do_not_vary():
    moments = GradientMoments()
    for _ in range(3):
        moments.add(_gradient(np.ones(2)), _gradient(np.ones(2)))
    assert moments.ratio() == 1
    assert moments.optimal_coefficient() == 1


def test_nan_stays_nan():
    moments = GradientMoments()
    for value in (1.0, np.nan, 2.0):
        moments.add(_gradient(np.array([value])), _gradient(np.array([1.0])))
    assert np.isnan(moments.variance())
    assert np.isnan(moments.ratio())


def test_a_measurement_leaves_no_trace():
    net = nn.HybridSequential()
    net.add(nn.Dense(4, in_units=6), nn.BatchNorm(in_channels=4), nn.Dense(3, in_units=4))
    net.initialize(mx.init.Normal(0.5))
    loss = mx.gluon.loss.SoftmaxCELoss()
    problem = problems.make("softmax")._replace(net=net, loss=loss)
    backward = problems.backward_of(net, loss)
    batches = problem.ndarrays("float32")
    snapshot = Snapshot(net)
    snapshot.take()
    backward(batches[0])
    params = [p for p in net.collect_params().values() if p.grad_req != "null"]
    state = [
        [a.asnumpy() for a in problems_arrays(net)],
        [p.grad().asnumpy() for p in params],
        [p.data()._fresh_grad for p in params],
    ]
    moments = measured(problem, snapshot, batches)
    assert moments.variance() > 0
    assert problems.same(state[0], [a.asnumpy() for a in problems_arrays(net)])
    assert problems.same(state[1], [p.grad().asnumpy() for p in params])
    assert state[2] == [p.data()._fresh_grad for p in params] == [True] * len(params)


def problems_arrays(net):
    return [param.data() for param in net.collect_params().values()]


@pytest.mark.parametrize(
    ("points", "ratios", "at_snapshot", "expected"),
    [
        ([1.0], [1.0], 0.0, 0.5),
        ([0.5], [1.0], 0.0, 0.75),
        ([0.5, 1.0], [1.0, 1.0], 0.0, 0.75),
        ([0.25, 0.75], [0.4, 0.8], 0.0, 0.05 + 0.3 + 0.2),
        ([0.02], [0.3], 0.25, 0.02 * 0.275 + 0.98 * 0.3),
    ],
)
def test_the_average_over_an_epoch(points, ratios, at_snapshot, expected):
    assert average_if_constant(points, ratios, at_snapshot) == pytest.approx(expected)


def test_the_oracle_has_no_such_variance_at_other_weights():
    """Guards the tests above: the brute force is not the same at any weights."""
    problem = problems.make("mlp", samples=40)
    _, before = moved(problem)
    here, there = brute_force(problem, before, problem.batches)
    assert total_variance(here) != pytest.approx(total_variance(there), rel=1e-3)
    assert oracle.full_gradient(problem.gradient, before, problem.batches)[0].shape == (5, 6)


def test_a_parameter_that_was_frozen_at_the_snapshot_is_not_corrected():
    moments = GradientMoments()
    rng = np.random.default_rng(2)
    here, there, other = rng.normal(size=(3, 6, 5))
    for a, c, b in zip(here, there, other, strict=True):
        both = _gradient(a)
        both.sums["b"] = [mx.nd.array(b, dtype="float64")]
        moments.add(both, _gradient(c))
    expected = total_variance(here - there) + total_variance(other)
    assert moments.variance(1.0) == pytest.approx(expected)
    assert moments.variance({"w": 1.0}) == pytest.approx(expected)
