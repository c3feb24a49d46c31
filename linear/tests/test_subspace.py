"""Newton's method over all directions so far, on dense rows: beside matrices and other methods."""

import time
from dataclasses import replace

import numpy as np
import pytest
from linear_oracle import prepared
from provenglm import GLMClassifier
from provenglm.methods.newton_cg import NewtonCG
from provenglm.methods.subspace import SubspaceNewton, _Preconditioner, _Span
from provenglm.model.losses import Huber, Logistic, Poisson, Squared
from provenglm.model.objective import Objective
from provenglm.model.problem import Problem
from provenglm.model.solution import Settings, StopReason
from provenglm.model.tweedie import Gamma, Tweedie
from provenglm.solve import solve
from test_newton_cg import made, objective_of, targets
from walking import take, walk

LOSSES = [Logistic(), Squared(), Huber(0.7), Poisson(), Tweedie(1.6), Gamma()]


def by_directions(problem, settings=Settings()):  # noqa: B008
    """Solve by this method, whatever the problem's size."""
    return solve(problem, replace(settings, method="subspace-newton"))


def test_the_points_of_a_quadratic_function_are_those_of_conjugate_gradients(monkeypatch):
    """Also when the oldest directions are dropped: there is room for 8."""
    problem = made(Squared(), n=200, p=20, dense=True)
    objective = objective_of(problem, 200, monkeypatch)
    share, penalty = objective.share, objective.penalty[:-1]
    X = (problem.features - objective.scaling.center) * objective.scaling.inverse
    X -= share @ X
    hessian = X.T @ (share[:, None] * X) + np.diag(penalty)
    metric = 1 + penalty
    theta, rest = np.zeros(20), X.T @ (share * problem.target)
    direction = scaled = rest / metric
    monkeypatch.setattr(_Preconditioner, "_is_slow", lambda *_: False)
    steps = walk(SubspaceNewton(objective, True, np.random.default_rng(0)), objective.null()[0])
    next(steps)
    for _ in range(12):
        square = rest @ scaled
        length = square / (direction @ hessian @ direction)
        theta = theta + length * direction
        rest = rest - length * hessian @ direction
        scaled = rest / metric
        direction = scaled + (rest @ scaled) / square * direction
        point, _ = next(steps)
        np.testing.assert_allclose(point.theta[:-1, 0], theta, atol=1e-7 * np.abs(theta).max())


def test_the_least_ritz_value_over_all_directions(monkeypatch):
    problem = made(Logistic(), n=200, p=4, dense=True)
    objective = objective_of(problem, 200, monkeypatch)
    snapshot = objective.snapshot(np.arange(5)[:, None] / 10)
    weight = objective.loss.curvature(snapshot.scores, problem.target)[:, 0]
    share, penalty = objective.share, objective.penalty[:-1]
    metric = share @ weight + penalty
    span = _Span(objective)
    # More than there are dimensions: they depend on each other, as rounding makes them.
    for direction in np.random.default_rng(0).normal(size=(6, 4)):
        span.add(direction, metric * direction)
        span.step(snapshot.gradient[:, 0], weight)
    X = (problem.features - objective.scaling.center) * objective.scaling.inverse
    hessian = X.T @ ((share * weight)[:, None] * X) + np.diag(penalty)
    values = np.linalg.eigvalsh(hessian / np.sqrt(np.multiply.outer(metric, metric)))
    assert span.least() == pytest.approx(values[0])


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.name)
@pytest.mark.parametrize("intercept", [True, False], ids=["intercept", "none"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_every_loss_ends_proven(loss, intercept, dtype):
    rng = np.random.default_rng(0)
    X = (3 + rng.normal(size=(400, 60)) * np.logspace(0, -2, 60)).astype(dtype)
    scores = (X - 3) @ rng.normal(size=60)
    y = targets(loss, scores / scores.std(), rng)
    problem = Problem(X, y, loss, 1e-4, rng.exponential(size=400), intercept)
    best = solve(problem, Settings(tol=1e-11))
    for tol in (1e-6, 1e-10):
        found = by_directions(problem, Settings(tol=tol))
        gained = found.history[0].objective - best.objective
        assert found.method == "subspace-newton"
        assert found.reason is StopReason.CONVERGED
        assert found.gap <= tol * gained
        rounding = 1e-13 * abs(best.objective)
        assert -best.gap - rounding <= found.objective - best.objective <= found.gap + rounding


@pytest.mark.slow
@pytest.mark.parametrize("loss", [Logistic(), Poisson()], ids=lambda loss: loss.name)
def test_fewer_passes_than_newtons_steps_by_conjugate_gradients(loss):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(1500, 20)) @ rng.normal(size=(20, 600)) / 4 + rng.normal(size=(1500, 600))
    scores = X @ rng.normal(size=600)
    problem = Problem(X, targets(loss, 2 * scores / scores.std(), rng), loss, 1e-3)
    objective, _, _ = prepared(problem)
    method = NewtonCG(objective, False, True)
    for point, step in walk(method, objective.null()[0], 1e-6):
        if step.decrement <= 1e-6 * point.objective:
            break
    found = by_directions(problem)
    assert found.reason is StopReason.CONVERGED
    assert found.history[-1].passes < 0.7 * method.objective.passes


@pytest.mark.slow
def test_few_ill_conditioned_rows_have_a_factor_too():
    """Three rows for each feature took 3,000 passes."""
    rng = np.random.default_rng(0)
    n, p = 900, 300
    turn, _ = np.linalg.qr(rng.normal(size=(p, p)))
    X = (rng.normal(size=(n, p)) * np.logspace(0, -3, p)) @ turn * np.sqrt(p)
    scores = X @ rng.normal(size=p)
    y = (3 * scores / scores.std() + rng.logistic(size=n) > 0).astype(float)
    found = by_directions(Problem(X, y, Logistic(), 1 / n))
    assert found.reason is StopReason.CONVERGED
    assert found.history[-1].passes < 100


@pytest.mark.slow
def test_max_time_ends_the_iterations(monkeypatch):
    problem = made(Logistic(), n=500, p=100, dense=True)
    at_scores = Objective.at_scores

    def slow(*args):
        time.sleep(0.02)
        return at_scores(*args)

    monkeypatch.setattr(Objective, "at_scores", slow)
    begin = time.perf_counter()
    solution = by_directions(problem, Settings(max_time=0.3, tol=1e-14))
    assert solution.reason is StopReason.MAX_TIME
    assert time.perf_counter() - begin < 1.5


@pytest.mark.parametrize("intercept", [False, True])
def test_the_hessian_of_some_rows(intercept, monkeypatch):
    monkeypatch.setattr("provenglm.rows.blocks.constants.BLOCK_BYTES", 4096)
    monkeypatch.setattr("provenglm.rows.blocks.constants.LEAST_BLOCK_ROWS", 8)
    monkeypatch.setattr("provenglm.constants.BLOCK_ROWS", 64)
    problem = made(Logistic(), n=300, p=20, dense=True, intercept=intercept)
    objective = objective_of(problem, 300, monkeypatch)
    rng = np.random.default_rng(1)
    drawn = np.sort(rng.integers(0, 300, size=120))  # one may be drawn several times
    drawn = drawn[(drawn < 100) | (drawn > 130)]  # and none of some blocks
    weight = rng.random(len(drawn))
    X = ((problem.features - objective.scaling.center) * objective.scaling.inverse)[drawn]
    if intercept:
        X = X - np.average(X, axis=0, weights=weight)
    np.testing.assert_allclose(
        _Preconditioner(objective, rng)._gram(drawn, weight),
        X.T @ (weight[:, None] * X),
        atol=1e-11,
    )


@pytest.mark.slow
@pytest.mark.parametrize("loss", [Logistic(), Poisson()], ids=["logistic", "poisson"])
def test_a_sample_preconditions_where_the_diagonal_is_slow(loss, monkeypatch):
    """Columns whose singular values span 1e4, mixed: a fifth of the passes to the same optimum."""
    rng = np.random.default_rng(0)
    n, p = 4000, 150
    turn, _ = np.linalg.qr(rng.normal(size=(p, p)))
    X = (rng.normal(size=(n, p)) * np.logspace(0, -4, p)) @ turn
    scores = X @ rng.normal(size=p)
    y = targets(loss, scores / scores.std(), rng)
    problem = Problem(X, y, loss, 1e-2 / n)
    monkeypatch.setattr("provenglm.constants.MOST_WEIGHTS", 100)
    with_a_sample = by_directions(problem)
    monkeypatch.setattr(_Preconditioner, "_is_slow", lambda *_: False)
    without = by_directions(problem)
    assert with_a_sample.reason is StopReason.CONVERGED
    assert with_a_sample.history[-1].passes < 0.2 * without.history[-1].passes
    apart = abs(with_a_sample.objective - without.objective)
    assert apart <= max(with_a_sample.gap, without.gap)


def test_a_sample_that_overflows_is_left_out(monkeypatch):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(4000, 120)) * np.exp(rng.normal(size=120))
    y = (X[:, 0] + rng.logistic(size=4000) > 0).astype(float)
    problem = Problem(X, y, Logistic(), 1e-4)
    monkeypatch.setattr("provenglm.constants.MOST_WEIGHTS", 100)
    monkeypatch.setattr(_Preconditioner, "_is_slow", lambda *_: False)
    expected = by_directions(problem)
    calls = []

    def infinite(rows, drawn, weight):
        calls.append(len(drawn))
        return np.full((120, 120), np.inf, np.float32)

    monkeypatch.setattr(_Preconditioner, "_is_slow", lambda *_: True)
    monkeypatch.setattr(_Preconditioner, "_gram", infinite)
    solution = by_directions(problem)
    assert set(calls) == {480}
    np.testing.assert_array_equal(solution.coef, expected.coef)


def test_weights_whose_gradient_is_0_have_no_direction(monkeypatch):
    """Classes that are alike on both sides of a feature: steps are those of the intercept alone."""
    take(monkeypatch, "subspace-newton")
    y = np.repeat([0, 1], [30, 210])
    X = np.tile([-1.0, 1.0], 120)[:, None]
    # A null model a little off: the first step is one of the intercept alone.
    monkeypatch.setattr(Logistic, "null_score", lambda *_: 1.9)
    model = GLMClassifier(tol=1e-13).fit(X, y)
    assert model.solver_ == "subspace-newton"
    assert model.coef_[0, 0] == pytest.approx(0, abs=1e-12)
    assert model.intercept_[0] == pytest.approx(np.log(7), rel=1e-9)
