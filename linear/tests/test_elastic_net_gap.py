"""The duality gap with corners in the penalty: never below the distance, and 0 at the optimum."""

import numpy as np
import pytest
from elastic_net_oracle import objective as value_of, proximal_gradient
from provenglm import GLMRegressor
from provenglm.model.losses import Logistic, Poisson, Softmax, Squared
from provenglm.model.problem import Problem
from provenglm.model.sampling import prepare
from provenglm.model.tweedie import Gamma, Tweedie
from provenglm.proof.duality import _divergence, _dual, _shrunk, _terms_with_l1, duality_gap
from provenglm.workers import Workers

LOSSES = [Logistic(), Softmax(3), Squared(), Poisson(), Tweedie(1.5), Gamma()]
NAMES = [loss.name for loss in LOSSES]
MANY = pytest.mark.parametrize("loss", LOSSES, ids=NAMES)


def problem_of(loss, seed):
    """Random; those with an even number have weights, two of three an intercept, a third no l2."""
    rng = np.random.default_rng(seed)
    n, p = int(rng.integers(8, 40)), int(rng.integers(1, 7))
    X = rng.normal(size=(n, p)) + rng.normal(size=p)
    z = X @ rng.normal(size=(p, 3)) / 2
    if isinstance(loss, Softmax):
        y = (z + rng.gumbel(size=z.shape)).argmax(axis=1)
        y[:3] = [0, 1, 2]
    elif isinstance(loss, Logistic):
        y = (z[:, 0] + rng.logistic(size=n) > 0).astype(int)
        y[:2] = [0, 1]
    elif isinstance(loss, Squared):
        y = z[:, 0] + rng.normal(size=n) + 1
    elif isinstance(loss, Tweedie):
        y = rng.gamma(2, np.exp(np.clip(z[:, 0], -3, 2)))
        y *= 1 if isinstance(loss, Gamma) else rng.random(n) < 0.8
    else:
        y = rng.poisson(np.exp(np.clip(z[:, 0], -3, 2))).astype(float)
        y[0] = 1.0
    strength = 10 ** rng.uniform(-2.5, -0.5)
    ratio = [1.0, 0.5, 0.05][seed % 3]
    weight = rng.integers(1, 4, n).astype(float) if seed % 2 == 0 else None
    return Problem(X, y, loss, strength * (1 - ratio), weight, seed % 4 != 1, l1=strength * ratio)


def exact(problem):
    """The optimum, (p, K) and (K,), and its value."""
    arguments = problem.features, problem.target, problem.sample_weight, problem.l1, problem.l2
    coef, intercept = proximal_gradient(
        problem.loss.name, *arguments, problem.loss.outputs, problem.fit_intercept
    )
    return coef, intercept, value_of(problem.loss.name, *arguments, coef, intercept)


def bound(problem, objective, coef, intercept):
    theta = objective.scaling.from_user(coef, intercept)
    snapshot = objective.snapshot(theta)
    return duality_gap(objective, snapshot), snapshot.objective


@pytest.mark.slow
@MANY
def test_gap_bounds_the_distance_and_vanishes(loss):
    tight = 0
    for seed in range(18):
        problem = problem_of(loss, seed)
        n = len(problem.target)
        rng = np.random.default_rng(seed)
        # Of coordinates from half of the rows the features' means are not 0.
        size = n if seed % 2 else n // 2 + 1
        objective, _ = prepare(problem, Workers(1), size, rng, precise=True)
        coef, intercept, least = exact(problem)
        rounding = 1e-13 * (1 + abs(least))
        gap, value = bound(problem, objective, coef, intercept)
        assert value == pytest.approx(least, rel=1e-12, abs=1e-13)
        assert gap <= 1e-8 * (1 + abs(least)), (seed, gap)
        for far in (1e-6, 1e-4, 1e-2, 1.0, 10.0):
            away = rng.normal(size=coef.shape) * (rng.random(coef.shape) < 0.7)
            off = rng.normal(size=intercept.shape) * problem.fit_intercept
            gap, value = bound(problem, objective, coef + far * away, intercept + far * off)
            assert np.isfinite(gap)
            assert gap >= value - least - rounding, (seed, far)
            tight += gap <= 100 * (value - least) + rounding
        for way in (0.0, 0.5, 0.99):
            gap, value = bound(problem, objective, way * coef, way * intercept)
            assert gap >= value - least - rounding, (seed, way)
    assert tight > 18


@MANY
def test_gap_where_nothing_is_left(loss):
    # The null model is the optimum of a penalty that is great enough, and proven to be.
    for seed in range(6):
        problem = problem_of(loss, seed)
        great = Problem(
            problem.features,
            problem.target,
            loss,
            0.0,
            problem.sample_weight,
            problem.fit_intercept,
            l1=1e3,
        )
        rng = np.random.default_rng(seed)
        objective, _ = prepare(great, Workers(1), len(great.target), rng, precise=True)
        theta, value = objective.null()
        gap = duality_gap(objective, objective.snapshot(theta))
        assert gap <= 1e-14 * (1 + abs(value))


@pytest.mark.parametrize("loss", [Logistic(), Softmax(3)], ids=lambda loss: loss.name)
def test_the_divergence_of_shrunk_residuals_has_a_bound(loss):
    for seed in range(12):
        problem = problem_of(loss, seed)
        rng = np.random.default_rng(seed)
        objective, _ = prepare(problem, Workers(1), len(problem.target), rng, precise=True)
        theta, _ = objective.null()
        theta = theta + 10 ** rng.uniform(-3, 0.5) * rng.normal(size=theta.shape)
        theta[-1] *= problem.fit_intercept
        snapshot = objective.snapshot(theta)
        dual = _dual(objective, snapshot.gradient[-1])
        of_dual, spread = _terms_with_l1(objective, snapshot, dual, 0.5)
        mixed = 1 - dual.kept
        for factor in (0.01, 0.3, 0.9, 0.99, 1 - 1e-4, 1 - 1e-7):
            exact = _divergence(objective, snapshot, dual, factor)
            bound = _shrunk(factor, spread, of_dual, mixed)
            assert bound >= exact - 1e-15
            if mixed == 0 and factor > 0.9999:
                assert bound <= 1.1 * exact + 1e-15


@pytest.mark.parametrize("l1_ratio", [0.5, 1.0])
def test_no_row_without_weight_makes_a_bound_of_nothing(l1_ratio):
    # Its loss is infinite: 0 times that was NaN, and then 0.
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 5))
    y = rng.gamma(1, np.exp(X @ [1, -1, 0.5, 0, 0])) + 1e-3
    X[0] = 1e4
    model = GLMRegressor("tweedie", alpha=0.01, l1_ratio=l1_ratio, tol=1e-10)
    least = model.fit(X[1:], y[1:]).objective_
    model.fit(X, y, np.arange(60) > 0)
    for row in model.history_:
        assert row["objective"] - least <= row["gap"] + 1e-12
