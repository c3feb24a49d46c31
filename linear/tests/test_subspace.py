"""The optimum of a span: derivatives against differences, the optimum against a dense solver."""

import numpy as np
import pytest
from provenglm.losses import Huber, Logistic, Poisson, Softmax, Squared
from provenglm.sparse.subspace import Direction, Setting, minimise, moved
from scipy.optimize import minimize

N, P, K = 80, 7, 3
LOSSES = [Logistic(), Softmax(K), Squared(), Huber(2.0), Poisson()]


def make(loss, count=2, intercept=True, seed=0):
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(N, P))
    outputs = (K,) if loss.outputs > 1 else ()
    if outputs:
        target = rng.integers(K, size=N)
    elif isinstance(loss, Logistic):
        target = rng.integers(2, size=N).astype(float)
    else:
        target = rng.poisson(1.0, N).astype(float)
    share = rng.exponential(size=N)
    share /= share.sum()
    penalty = np.append(np.full(P, 0.05), 0.0)
    setting = Setting(loss, target, share, penalty, intercept)
    dense = np.column_stack([rows, np.full(N, float(intercept))])
    theta = 0.2 * rng.normal(size=(P + 1, *outputs))
    directions = []
    for _ in range(count):
        direction = rng.normal(size=theta.shape)
        directions.append(Direction(direction, dense @ direction))
    return setting, setting.at(theta, dense @ theta), directions


@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.name)
def test_derivatives_equal_differences(loss, intercept):
    setting, point, directions = make(loss, intercept=intercept)
    size = len(directions) + (loss.outputs if intercept else 0)
    slopes = setting.slopes(point, directions)
    matrix = setting.curvature(point.scores, directions)
    assert slopes.shape == (size,)
    assert matrix.shape == (size, size)
    h = 1e-5
    for k in range(size):
        step = h * np.eye(size)[k]
        up = moved(setting, point, step, directions)
        down = moved(setting, point, -step, directions)
        slope = (up.objective - down.objective) / (2 * h)
        np.testing.assert_allclose(slopes[k], slope, rtol=1e-6, atol=1e-8)
        if isinstance(loss, Huber):
            continue  # its curvature jumps
        change = setting.slopes(up, directions) - setting.slopes(down, directions)
        np.testing.assert_allclose(matrix[k], change / (2 * h), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.name)
def test_the_optimum_of_the_span(loss, intercept):
    setting, point, directions = make(loss, count=3, intercept=intercept)
    slopes = setting.slopes(point, directions)
    size = len(slopes)
    for _ in range(20):
        new, lengths = minimise(setting, point, slopes, directions)
        assert new.objective <= point.objective
        np.testing.assert_allclose(
            new.objective, moved(setting, point, lengths, directions).objective, rtol=1e-12
        )
        point, slopes = new, setting.slopes(new, directions)
    start = point
    best = minimize(
        lambda length: moved(setting, start, length, directions).objective,
        np.zeros(size),
        method="BFGS",
        options={"gtol": 1e-9},
    )
    assert point.objective <= best.fun + 1e-9


def test_parallel_directions_are_one():
    setting, point, (first, _) = make(Logistic())
    again = Direction(2 * first.theta, 2 * first.scores)
    twice, _ = minimise(setting, point, setting.slopes(point, [first, again]), [first, again])
    once, _ = minimise(setting, point, setting.slopes(point, [first]), [first])
    np.testing.assert_allclose(twice.objective, once.objective, rtol=1e-6)


def test_a_direction_without_a_gain_leaves_the_point():
    setting, point, (first, _) = make(Squared(), intercept=False)
    for _ in range(3):
        point, _ = minimise(setting, point, setting.slopes(point, [first]), [first])
    again, lengths = minimise(setting, point, setting.slopes(point, [first]), [first])
    assert again.objective <= point.objective
    np.testing.assert_allclose(lengths, 0, atol=1e-6)


def test_a_direction_that_overflows_is_shortened():
    setting, point, (first, _) = make(Poisson(), intercept=False)
    far = Direction(1e6 * first.theta, 1e6 * first.scores)
    new, _ = minimise(setting, point, setting.slopes(point, [far]), [far])
    assert np.isfinite(new.objective)
    assert new.objective < point.objective
