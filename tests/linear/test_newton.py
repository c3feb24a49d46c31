"""Newton's method, step by step, against the textbook's on whole arrays."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from gluon_svrg.linear import newton
from gluon_svrg.linear.losses import Huber, Logistic, Poisson, Softmax, Squared
from gluon_svrg.linear.objective import prepare
from gluon_svrg.linear.sample import Sample
from gluon_svrg.linear.workers import Workers
from linear.oracle import LOSSES, NAMES, Dense, problem_of, to_columns

MANY = pytest.mark.parametrize("loss", LOSSES, ids=NAMES)
SMOOTH = [Logistic(), Softmax(3), Squared(), Poisson()]


def case(problem):
    objective, null = prepare(problem, Workers(0))
    sample = Sample(
        objective.sample(np.arange(objective.n)),
        objective.target,
        objective.share,
        objective.loss,
        objective.penalty,
        objective.workers,
    )
    dense = Dense.of(problem, objective.scaling.center, objective.scaling.inverse)
    return sample, null.theta, dense


@pytest.mark.parametrize("weights", [False, True])
@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("loss", SMOOTH, ids=lambda loss: loss.name)
def test_every_step(loss, intercept, weights):
    sample, theta, dense = case(
        problem_of(loss, n=60, l2=1e-2, weights=weights, intercept=intercept)
    )
    if not intercept:
        # Its row has a penalty of its own there, which holds it at 0.
        dense = replace(dense, penalty=sample.penalty)
    steps = zip(newton.iterate(sample, theta), dense.newton(to_columns(theta)), strict=False)
    for point, (expected, value, decrement) in itertools.islice(steps, 6):
        if decrement < 1e-14:
            # Rounding from here on.
            break
        np.testing.assert_allclose(to_columns(point.theta), expected, rtol=0, atol=1e-11)
        assert point.objective == pytest.approx(value, rel=1e-12)
        assert point.decrement == pytest.approx(decrement, rel=1e-8, abs=1e-15)
        np.testing.assert_allclose(to_columns(point.gradient), dense.gradient(expected), atol=1e-11)
        np.testing.assert_allclose(to_columns(point.scores), dense.scores(expected), atol=1e-11)


@MANY
def test_ends_at_the_optimum(loss):
    sample, theta, dense = case(problem_of(loss, n=60, l2=1e-2))
    points = list(itertools.islice(newton.iterate(sample, theta), 60))
    _, least = dense.minimum(to_columns(theta))
    assert points[-1].objective == pytest.approx(least, rel=1e-12)
    assert np.abs(points[-1].gradient).max() < 1e-7
    values = [point.objective for point in points]
    assert all(new <= old + 1e-13 * abs(old) for old, new in itertools.pairwise(values))
    # It ends by itself: no step leads lower.
    assert len(points) < 60


@pytest.mark.parametrize("far", [30.0, 100.0])
@MANY
def test_from_far_away(loss, far):
    if isinstance(loss, Poisson):
        far /= 5
    sample, theta, dense = case(problem_of(loss, n=60, l2=1e-3))
    start = theta + far * np.random.default_rng(0).normal(size=theta.shape)
    best = newton.minimise(sample, start, 1e-13, 200)
    _, least = dense.minimum(to_columns(theta))
    assert sample.value(best, sample.rows @ best) == pytest.approx(least, rel=1e-9)


def test_quadratic_convergence():
    sample, theta, _ = case(problem_of(Poisson(), n=200, l2=1e-2))
    decrements = [point.decrement for point in itertools.islice(newton.iterate(sample, theta), 8)]
    small = [d for d in decrements if 1e-13 < d < 1e-2]
    assert len(small) >= 2
    for old, new in itertools.pairwise(small):
        # The curvature's floor keeps a share of a thousandth linear.
        assert new < max(100 * old**2, 1e-4 * old)


def test_a_quadratic_takes_one_step():
    sample, theta, dense = case(problem_of(Squared(), n=60))
    points = newton.iterate(sample, theta)
    next(points)
    _, least = dense.minimum(to_columns(theta))
    assert next(points).objective == pytest.approx(least, rel=1e-13)


def test_minimise_stops_at_tol_and_at_its_steps():
    sample, theta, _ = case(problem_of(Logistic(), n=60, l2=1e-3))
    points = list(newton.iterate(sample, theta))
    for count in (0, 1, 2):
        assert np.array_equal(newton.minimise(sample, theta, 0.0, count), points[count].theta)
    tol = points[2].decrement
    assert np.array_equal(newton.minimise(sample, theta, tol, 99), points[2].theta)


@pytest.mark.parametrize("loss", [Squared(), Logistic(), Softmax(3)], ids=lambda loss: loss.name)
def test_a_singular_hessian(loss):
    # Duplicate columns, no penalty, and softmax's own shift: optima are many, and all as good.
    problem = problem_of(loss, n=60, l2=0.0)
    X = np.column_stack([problem.features, problem.features[:, :2]])
    sample, theta, dense = case(replace(problem, features=X))
    best = newton.minimise(sample, theta, 1e-14, 50)
    _, least = dense.minimum(to_columns(theta))
    assert sample.value(best, sample.rows @ best) == pytest.approx(least, rel=1e-10)
    assert np.abs(best).max() < 100


def test_all_of_huber_outside_epsilon():
    # No curvature at all at the start: the parabola above the loss has to lead.
    problem = problem_of(Huber(0.01), n=60, l2=0.0)
    sample, theta, _ = case(replace(problem, target=problem.target * 1e4))
    start = theta + 1e6
    best = newton.minimise(sample, start, 1e-10, 300)
    again = newton.minimise(sample, theta, 1e-10, 300)
    assert sample.value(best, sample.rows @ best) == pytest.approx(
        sample.value(again, sample.rows @ again), rel=1e-6
    )


def test_factor_takes_the_ridge_that_it_needs():
    singular = np.ones((4, 4))
    chol = newton.factor(singular.copy(), 0.0 + 1e-18)
    lower = np.tril(chol[0])
    np.testing.assert_allclose(lower @ lower.T, singular, atol=1e-6)


def test_factor_of_what_is_not_finite():
    with pytest.raises(FloatingPointError, match="no Cholesky factor"):
        newton.factor(np.full((3, 3), np.nan))
