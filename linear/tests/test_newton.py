"""Newton's method, step by step, against the textbook's on whole arrays."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from linear_oracle import LOSSES, NAMES, Dense, prepared, problem_of
from provenglm import constants
from provenglm.methods.newton import Newton
from provenglm.model.losses import Huber, Logistic, Poisson, Softmax, Squared
from provenglm.solve import minimise
from walking import walk

MANY = pytest.mark.parametrize("loss", LOSSES, ids=NAMES)
SMOOTH = [Logistic(), Softmax(3), Squared(), Poisson()]


def case(problem):
    objective, null, sample = prepared(problem)
    dense = Dense.of(problem, objective.scaling.center, objective.scaling.inverse)
    return Newton(objective, sample), null.theta, dense


def centred(theta):
    return np.vstack([theta[:-1], theta[-1:] - theta[-1].mean()])


@pytest.mark.parametrize("weights", [False, True])
@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("loss", SMOOTH, ids=lambda loss: loss.name)
def test_every_step(loss, intercept, weights):
    method, theta, dense = case(
        problem_of(loss, n=60, l2=1e-2, weights=weights, intercept=intercept)
    )
    if not intercept:
        # Its row has a penalty of its own there, which holds it at 0.
        dense = replace(dense, penalty=method.objective.penalty)
    steps = zip(walk(method, theta), dense.newton(theta, 2.0**-52), strict=False)
    for (point, step), (expected, value, decrement) in itertools.islice(steps, 6):
        if decrement < 1e-14:
            # Rounding from here on.
            break
        got = point.theta
        if isinstance(loss, Softmax):
            # Nothing but rounding says where the common shift of the intercepts is.
            got, expected = centred(got), centred(expected)
        np.testing.assert_allclose(got, expected, rtol=0, atol=1e-11)
        assert point.objective == pytest.approx(value, rel=1e-12)
        assert step.decrement == pytest.approx(decrement, rel=1e-8, abs=1e-15)
        assert step.fall == 2 * step.decrement
        np.testing.assert_allclose(point.gradient, dense.gradient(expected), atol=1e-11)
        scores = dense.scores(point.theta)
        np.testing.assert_allclose(point.scores, scores, atol=1e-11)


@pytest.mark.parametrize("l2", [1e-8, 1e-2])
def test_the_intercepts_of_all_classes_do_not_drift(l2):
    """The loss does not see a shift of all of them; rounding would add up to one."""
    method, theta, _ = case(problem_of(Softmax(3), n=60, l2=l2))
    for point, _ in itertools.islice(walk(method, theta), 30):
        assert abs(point.theta[-1].mean()) <= 1e-13 * np.abs(point.theta).max()


@MANY
def test_ends_at_the_optimum(loss):
    method, theta, dense = case(problem_of(loss, n=60, l2=1e-2))
    points = [point for point, _ in itertools.islice(walk(method, theta), 60)]
    _, least = dense.minimum(theta)
    assert points[-1].objective == pytest.approx(least, rel=1e-12)
    assert np.abs(points[-1].gradient).max() < 1e-7
    values = [point.objective for point in points]
    assert all(new <= old + 1e-13 * abs(old) for old, new in itertools.pairwise(values))


@pytest.mark.parametrize("far", [3.0, 30.0])
@MANY
def test_from_far_away(loss, far):
    if isinstance(loss, Poisson):
        far /= 5
    method, theta, dense = case(problem_of(loss, n=60, l2=1e-3))
    start = theta + far * np.random.default_rng(0).normal(size=theta.shape)
    best = minimise(method, start, 1e-13)
    _, least = dense.minimum(theta)
    assert dense.value(best) == pytest.approx(least, rel=1e-9)


def test_quadratic_convergence():
    method, theta, _ = case(problem_of(Poisson(), n=200, l2=1e-2))
    decrements = [step.decrement for _, step in itertools.islice(walk(method, theta), 8)]
    small = [d for d in decrements if 1e-13 < d < 1e-2]
    assert len(small) >= 2
    for old, new in itertools.pairwise(small):
        assert new < 100 * old**2


def test_a_quadratic_takes_one_step():
    method, theta, dense = case(problem_of(Squared(), n=60))
    points = walk(method, theta)
    next(points)
    _, least = dense.minimum(theta)
    assert next(points)[0].objective == pytest.approx(least, rel=1e-13)


def test_minimise_stops_at_the_decrement_and_at_its_steps(monkeypatch):
    method, theta, _ = case(problem_of(Logistic(), n=60, l2=1e-3))
    points = list(itertools.islice(walk(method, theta), 3))
    assert np.array_equal(minimise(method, theta, points[2][1].decrement), points[2][0].theta)
    for count in (0, 1, 2):
        monkeypatch.setattr(constants, "MOST_STEPS", count)
        assert np.array_equal(minimise(method, theta, 0.0), points[count][0].theta)


@pytest.mark.parametrize("loss", [Squared(), Logistic(), Softmax(3)], ids=lambda loss: loss.name)
def test_a_singular_hessian(loss):
    # Duplicate columns, no penalty, and softmax's own shift: optima are many, and all as good.
    problem = problem_of(loss, n=60, l2=0.0)
    X = np.column_stack([problem.features, problem.features[:, :2]])
    method, theta, dense = case(replace(problem, features=X))
    best = minimise(method, theta, 1e-14)
    _, least = dense.minimum(theta)
    assert dense.value(best) == pytest.approx(least, rel=1e-10)
    assert np.abs(best).max() < 100


def test_all_of_huber_outside_epsilon():
    # No curvature at all at the start: the parabola above the loss has to lead.
    problem = problem_of(Huber(0.01), n=60, l2=0.0)
    method, theta, dense = case(replace(problem, target=problem.target * 1e4))
    values = []
    for start in (theta, theta + 1e6):
        best = minimise(method, start, 1e-10)
        values.append(dense.value(best))
    # Nearly least absolute deviations, where reweighted least squares are slow at the end.
    assert values[1] == pytest.approx(values[0], rel=1e-3)
