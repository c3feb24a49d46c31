"""Huber's regression with its scale: the scale by itself, the bound, the search."""

import math
import warnings
from contextlib import contextmanager

import numpy as np
import pytest
from provenglm import Chunks, GLMRegressor, constants
from provenglm.huber_scale import (
    best_scale,
    bound_without_penalty,
    joint_objective,
    lower_bound,
    moved,
    solve_with_scale,
    weighted_median,
)
from provenglm.model.losses import Huber
from provenglm.model.problem import Problem
from provenglm.model.solution import Settings, StopReason
from scipy.optimize import brentq, minimize
from scipy.sparse import csr_array
from sklearn.exceptions import ConvergenceWarning

SEEDS = range(8)


def problem_of(seed, l2=None, n=60, p=3):
    """A random problem: weights in half of them, an intercept in half, heavy tails in all."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, p)) * 10.0 ** rng.uniform(-1, 1, p)
    y = X @ rng.normal(size=p) + rng.standard_t(1.5, size=n) + 5 * (seed % 2)
    return Problem(
        features=X,
        target=y,
        loss=Huber(epsilon_of(seed)),
        l2=10.0 ** rng.uniform(-4, 0) if l2 is None else l2,
        sample_weight=rng.integers(0, 4, n).astype(float) if seed % 4 < 2 else None,
        fit_intercept=seed % 2 == 1,
    )


def epsilon_of(seed):
    return (1.05, 1.35, 3.0)[seed % 3]


def value(problem, v, epsilon):
    """The objective by its definition, at ``[coef, intercept, log(scale)]``."""
    scale = math.exp(v[-1])
    z = (problem.target - problem.features @ v[:-2] - v[-2] * problem.fit_intercept) / scale
    h = np.where(np.abs(z) <= epsilon, z**2 / 2, epsilon * (np.abs(z) - epsilon / 2))
    mean = np.average(scale / 2 + scale * h, weights=problem.sample_weight)
    return mean + problem.l2 / 2 * v[:-2] @ v[:-2]


def optimum(problem, epsilon):
    """The least value that a method which knows nothing of all this finds."""
    start = np.append(np.zeros(problem.features.shape[1] + 1), math.log(np.std(problem.target)))
    for _ in range(4):
        found = minimize(lambda v: value(problem, v, epsilon), start, method="BFGS", tol=1e-12)
        start = found.x
    return found


@pytest.mark.parametrize("seed", SEEDS)
def test_the_best_scale_is_the_root(seed):
    rng = np.random.default_rng(seed)
    residual = rng.standard_t(1, size=30) * 10.0 ** rng.uniform(-200, 200)
    weight = None if seed % 2 else rng.integers(0, 3, 30).astype(float)
    epsilon = epsilon_of(seed)
    unit = np.abs(residual).max()

    def above_one(log_scale):
        z = np.minimum(np.abs(residual / unit) / math.exp(log_scale), epsilon)
        return np.average(z**2, weights=weight) - 1

    expected = unit * math.exp(brentq(above_one, -30, 5, xtol=1e-14))
    assert best_scale(residual, epsilon, weight) == pytest.approx(expected, rel=1e-11)


def test_the_best_scale_of_a_perfect_fit():
    assert best_scale(np.zeros(5), 1.35, None) == 0
    # Two outliers of five: 1.35^2 * 2/5 is below 1, whatever the scale.
    assert best_scale(np.array([0, 0, 0, 1.0, -7]), 1.35, None) == 0
    assert best_scale(np.array([0, 0, 0, 1.0, -7]), 1.6, None) > 0


def test_weighted_medians():
    values = np.array([3.0, 1.0, 2.0])
    assert weighted_median(values, None) == 2
    assert weighted_median(values, np.array([5.0, 1.0, 1.0])) == 3
    assert weighted_median(values, np.array([0.0, 2.0, 1.0])) == 1


@pytest.mark.parametrize("seed", SEEDS)
def test_the_objective_is_its_definition(seed):
    problem, epsilon = problem_of(seed), epsilon_of(seed)
    coef = np.random.default_rng(seed).normal(size=3)
    residual = problem.target - problem.features @ coef
    expected = value(problem, np.append(coef, [0, math.log(0.7)]), epsilon)
    assert joint_objective(problem, coef, residual, 0.7, epsilon) == pytest.approx(expected)
    tiny = value(problem, np.append(coef, [0, math.log(1e-12)]), epsilon)
    assert joint_objective(problem, coef, residual, 0.0, epsilon) == pytest.approx(tiny)


@pytest.mark.parametrize("seed", SEEDS)
def test_no_bound_is_above_the_optimum(seed):
    problem, epsilon = problem_of(seed), epsilon_of(seed)
    found = optimum(problem, epsilon)
    rng = np.random.default_rng(seed)
    for distance in (0, 1e-6, 1e-3, 0.1, 1.0):
        v = found.x + distance * rng.normal(size=len(found.x))
        residual = problem.target - problem.features @ v[:-2] - v[-2] * problem.fit_intercept
        bound = lower_bound(problem, residual, math.exp(v[-1]), epsilon)
        assert 0 <= bound <= found.fun * (1 + 1e-12)
        if distance == 0:  # and at the optimum it is tight, as far as BFGS went
            assert bound == pytest.approx(found.fun, rel=1e-6)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_search_finds_the_optimum(seed):
    problem, epsilon = problem_of(seed), epsilon_of(seed)
    solution, scale = solve_with_scale(problem, Settings(tol=1e-9))
    found = optimum(problem, epsilon)
    assert solution.reason is StopReason.CONVERGED
    assert solution.objective <= found.fun * (1 + 1e-8)
    assert solution.objective - found.fun <= solution.gap + 1e-13 * found.fun
    assert solution.gap <= 1e-4 * found.fun
    v = np.append(solution.coef[:, 0], [solution.intercept[0], math.log(scale)])
    assert value(problem, v, epsilon) == pytest.approx(solution.objective, rel=1e-12)
    assert scale == pytest.approx(math.exp(found.x[-1]), rel=1e-3)


@pytest.mark.parametrize("seed", SEEDS)
def test_moved_residuals_prove_more_and_no_falsehood(seed):
    problem, epsilon = problem_of(seed, l2=1e-6, n=120), epsilon_of(seed)
    exact, _ = solve_with_scale(problem, Settings(tol=1e-13))
    rng = np.random.default_rng(seed)
    for distance in (1e-4, 1e-2, 1.0):
        coef = exact.coef[:, 0] * (1 + distance * rng.normal(size=3))
        bias = exact.intercept[0] + distance * rng.normal() * problem.fit_intercept
        residual = problem.target - problem.features @ coef - bias
        best = best_scale(residual, epsilon, problem.sample_weight)
        bound, dual = lower_bound(problem, residual, best, epsilon), residual
        for _ in range(3):
            dual = moved(problem, coef, dual, best, epsilon)
            nearer = lower_bound(problem, dual, best, epsilon)
            assert nearer <= exact.objective * (1 + 1e-12)
        if distance < 1:
            value = joint_objective(problem, coef, residual, best, epsilon)
            assert value - nearer <= 20 * (value - exact.objective) + 1e-10 * value
            assert value - bound > 100 * (value - nearer)


@pytest.mark.parametrize("kind", ["dense", "sparse", "chunks", "far off", "few of the rows"])
def test_a_gap_is_near_the_distance_with_next_to_no_penalty(monkeypatch, kind):
    if kind == "few of the rows":
        monkeypatch.setattr(constants, "LARGEST_PROOF", 50 * 6**2)
    problem = problem_of(1, n=400, p=4)
    X, y = problem.features, problem.target
    if kind == "far off":
        X = X / X.std(axis=0) + 1e5
    form = {"sparse": csr_array(X), "chunks": Chunks([X[:100], X[100:]])}.get(kind, X)
    model = GLMRegressor("huber", alpha=1e-8, tol=1e-7).fit(form, y)
    assert model.gap_ <= 1e-7 * model.objective_
    exact = GLMRegressor("huber", alpha=1e-8, tol=1e-12).fit(X, y)
    assert -1e-12 <= model.objective_ - exact.objective_ <= model.gap_ + 1e-12


def test_records_go_on_from_solve_to_solve():
    seen = []
    solution, _ = solve_with_scale(problem_of(1), Settings(tol=1e-9, watch=seen.append))
    assert seen == solution.history
    for name in ("iteration", "passes", "seconds"):
        values = [getattr(record, name) for record in seen]
        assert values == sorted(values)
    objectives = [record.objective for record in seen]
    assert objectives[-1] == pytest.approx(min(objectives), rel=1e-12)
    assert seen[-1].objective == solution.objective
    assert seen[-1].gap == solution.gap
    # Between two solves nothing is proven for all scales.
    assert sum(math.isfinite(record.gap) for record in seen) < len(seen)


def test_a_limit_is_that_of_the_whole_search():
    solution, _ = solve_with_scale(problem_of(1), Settings(tol=1e-13, max_iter=3))
    assert solution.reason is StopReason.MAX_ITER
    assert solution.history[-1].iteration <= 4


# The target; what the objective is at a point that is easily seen.
TARGETS = {
    "constant": (lambda X: np.full(len(X), 7.0), 0.0),
    "zero": (lambda X: np.zeros(len(X)), 0.0),
    "nearly constant": (lambda X: np.where(np.arange(len(X)) < 5, 1.0, 0.0), 1.35 * 5 / 60),
    "two values": (lambda X: np.arange(len(X)) % 2.0, 0.5),
    "linear": (lambda X: X @ [1.0, -2.0, 3.0] + 4, 0.0),
    "linear but for outliers": (
        lambda X: X @ [1.0, -2.0, 3.0] + 50.0 * (np.arange(len(X)) % 9 == 0),
        1.35 * 50 * 7 / 60,
    ),
}


@contextmanager
def allowed(alpha):
    """Without a penalty nothing is proven, and a warning says so."""
    with warnings.catch_warnings():
        if alpha == 0:
            warnings.filterwarnings("ignore", ".*nothing proves it", ConvergenceWarning)
        yield


@pytest.mark.parametrize("outlier", [1e3, 1e5, 1e9, -999.0, 1e11])
@pytest.mark.parametrize("share", [0.02, 0.1])
def test_far_outliers_cost_no_precision(outlier, share):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(500, 3))
    y = X @ [3.0, -2.0, 1.0] + 1 + 0.5 * rng.normal(size=500)
    is_far = rng.random(500) < share
    model = GLMRegressor("huber", alpha=1e-6).fit(X, np.where(is_far, outlier, y))
    # Beyond epsilon it does not matter how far an outlier is: the optimum is the same.
    near = GLMRegressor("huber", alpha=1e-6).fit(X, np.where(is_far, np.sign(outlier) * 500, y))
    np.testing.assert_allclose(model.coef_, near.coef_, atol=0.01)
    assert model.stop_reason_ == "the optimum is as near as tol asks"


@pytest.mark.parametrize("alpha", [0.0, 1e-3])
@pytest.mark.parametrize(("make", "expected"), TARGETS.values(), ids=TARGETS)
def test_perfect_fits(make, expected, alpha):
    X = np.random.default_rng(0).normal(size=(60, 3))
    y = make(X)
    with allowed(alpha):
        model = GLMRegressor("huber", alpha=alpha).fit(X, y)
    if alpha:
        assert model.stop_reason_ == "the optimum is as near as tol asks"
    assert 0 <= model.scale_ < 1
    # The relative tol of the fit; the penalty of the coefficients 1, -2 and 3.
    spread = np.abs(y - np.median(y)).mean()
    assert 0 <= model.objective_ <= expected + 1e-5 * spread + alpha / 2 * 14 * (expected != 0.5)


@pytest.mark.parametrize("unit", [1e-100, 1e100])
def test_the_unit_of_the_target_is_no_matter(unit):
    problem = problem_of(2, l2=0.01)
    X, y = problem.features, problem.target
    with allowed(alpha=0):
        model = GLMRegressor("huber", alpha=0, tol=1e-10).fit(X, y)
        scaled = GLMRegressor("huber", alpha=0, tol=1e-10).fit(X, y * unit)
    np.testing.assert_allclose(scaled.coef_ / unit, model.coef_, rtol=1e-4)
    assert scaled.scale_ / unit == pytest.approx(model.scale_, rel=1e-4)


def test_the_scale_of_an_earlier_fit_does_not_stay():
    X = np.random.default_rng(0).normal(size=(60, 3))
    model = GLMRegressor("huber").fit(X, X[:, 0])
    assert hasattr(model, "scale_")
    model.set_params(loss="squared").fit(X, X[:, 0])
    assert not hasattr(model, "scale_")


def test_a_column_that_only_an_outlier_tells_from_a_constant_is_no_sum_of_others():
    # The third row has no weight to speak of. The line through the other two has an objective of
    # 1e-60.
    X, y = np.array([[0.0], [1.0], [0.3]]), np.array([1.0, 1e6, 0.0])
    weight = np.array([1.0, 1e-2, 1e-60])
    problem = Problem(X, y, Huber(1.1), 0.0, weight)
    residual = y - 1.5
    dual = np.array([-1.1e-2, 1.1, -1.1])
    assert bound_without_penalty(problem, np.zeros(1), residual, dual, 1.1, np.zeros(1)) == 0
