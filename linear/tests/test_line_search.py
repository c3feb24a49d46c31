"""The line search beside the minimum along a step, which SciPy finds on whole arrays."""

from dataclasses import replace

import numpy as np
import pytest
from linear_oracle import LOSSES, NAMES, Dense, problem_of
from provenglm.model.line_search import length_of, slope_at
from provenglm.model.losses import Logistic, Poisson, Softmax
from provenglm.model.objective import Objective, Scaling, Snapshot
from provenglm.model.sampling import prepare
from provenglm.rows.dense import DenseRows
from provenglm.rows.table import Kept, Table
from provenglm.workers import Workers
from scipy.optimize import minimize_scalar

MANY = pytest.mark.parametrize("loss", LOSSES, ids=NAMES)


class Along:
    """A point, a step from it, and the objective along it by the oracle."""

    def __init__(self, loss, l1, factor, seed=0):
        problem = replace(problem_of(loss, seed=seed, n=60, p=4, l2=1e-2, weights=True), l1=l1)
        rng = np.random.default_rng(seed)
        self.objective, _ = prepare(problem, Workers(0), 60, rng, precise=True)
        theta = self.objective.null()[0]
        theta = theta + 0.3 * rng.normal(size=theta.shape)
        self.point = self.objective.snapshot(theta)
        scaling = self.objective.scaling
        self.dense = Dense.of(problem, scaling.center, scaling.inverse)
        self.l1 = np.zeros((5, 1)) if self.objective.l1 is None else self.objective.l1[:, None]
        # Newton's step, or where there is no curvature a multiple of the gradient.
        gradient = self.gradient(theta)
        hessian = self.dense.hessian(theta)
        hessian += 1e-2 * np.trace(hessian) / len(hessian) * np.eye(len(hessian))
        step = -np.linalg.solve(hessian, gradient.ravel()).reshape(theta.shape)
        self.change = factor * step
        self.along = self.dense.X @ self.change
        self.fall = -self.slope(0.0)

    def gradient(self, theta):
        """The gradient, with that of the sizes."""
        return self.dense.gradient(theta) + self.l1 * np.sign(theta)

    def value(self, length):
        theta = self.point.theta + length * self.change
        with np.errstate(all="ignore"):
            value = self.dense.value(theta) + float((self.l1 * np.abs(theta)).sum())
        return value if np.isfinite(value) else np.inf

    def slope(self, length):
        theta = self.point.theta + length * self.change
        with np.errstate(all="ignore"):
            return float(np.vdot(self.gradient(theta), self.change))

    def found(self, end=None):
        return length_of(self.objective, self.point, self.change, self.along, self.fall, end)

    def best(self, longest):
        """The length with the least value: SciPy's, in parts that a long step has of all sizes."""
        tried = longest * 10.0 ** np.linspace(-9, 0, 91)
        values = [self.value(length) for length in tried]
        k = int(np.argmin(values))
        bounds = tried[max(0, k - 1)] if k else 0.0, tried[min(90, k + 1)]
        options = {"xatol": 1e-9 * bounds[1]}
        least = minimize_scalar(self.value, bounds=bounds, method="bounded", options=options).x
        return min((least, tried[k]), key=self.value)


def is_good(case, length, longest):
    """Whether a length is one that the search promises, beside the brute-force minimum."""
    best = case.best(longest)
    least, value = case.value(best), case.value(length)
    rounding = 1e-12 * abs(case.value(0.0))
    assert value < case.value(0.0)
    assert least <= value + rounding
    # The function is convex: what is left is at most the slope at its end times the way.
    return value - least <= 0.3 * case.fall * abs(length - best) + rounding


@pytest.mark.parametrize("factor", [1e-3, 0.1, 1.0, 30.0, 1e4])
@MANY
def test_the_end_is_near_the_minimum(loss, factor):
    case = Along(loss, 0.0, factor)
    length = case.found()
    assert abs(case.slope(length)) <= 0.3 * case.fall * (1 + 1e-9)
    assert is_good(case, length, 1e5)


@pytest.mark.parametrize("factor", [0.5, 2.0, 30.0, 1e4])
@MANY
def test_a_known_end_is_where_it_begins(loss, factor):
    case = Along(loss, 0.0, factor)
    with np.errstate(all="ignore"):
        end = case.objective.snapshot(case.point.theta + case.change)
        slope = slope_at(case.objective, end.gradient, end.theta, case.change)
    if not np.isfinite(end.objective):
        pytest.skip("the loop does not know the slope of what overflows")
    expected = case.slope(1.0)
    # Beside exponentials near the largest number the oracle's own sums are infinite.
    assert slope == pytest.approx(expected, rel=1e-8, abs=1e-10 * case.fall) or slope > 1e200
    length = case.found(slope)
    assert abs(case.slope(length)) <= 0.3 * case.fall * (1 + 1e-9)
    assert is_good(case, length, 1e5)


@pytest.mark.parametrize("l1", [1e-3, 0.05])
@pytest.mark.parametrize("factor", [0.1, 1.0, 3.0, 30.0, 1e4])
@MANY
def test_with_a_penalty_on_sizes_no_step_is_lengthened(loss, l1, factor):
    case = Along(loss, l1, factor)
    length = case.found()
    assert 0 < length <= 1
    if length == 1:
        # Lower than any part of it, but for what a corner or the bound of the slope leaves.
        assert case.value(1.0) < case.value(0.0)
        assert case.slope(1 - 1e-9) <= 0.3 * case.fall
    else:
        best = case.best(1.0)
        at_best = abs(case.slope(length)) <= 0.3 * case.fall * (1 + 1e-9)
        # Or right at a corner, where the slope jumps from one side to the other.
        assert at_best or abs(length - best) <= 1e-6 * best
        assert case.value(length) <= case.value(0.0)


@pytest.mark.parametrize("loss", [Poisson(), LOSSES[-1], LOSSES[-2]], ids=lambda loss: loss.name)
def test_an_end_that_is_infinite(loss):
    case = Along(loss, 0.0, 1e6)
    assert case.value(1.0) == np.inf
    length = case.found()
    assert 0 < length < 1e-3
    assert abs(case.slope(length)) <= 0.3 * case.fall * (1 + 1e-9)
    assert is_good(case, length, 1.0)


@pytest.mark.parametrize("loss", [Logistic(), Softmax(3), Poisson()], ids=lambda loss: loss.name)
def test_no_part_of_a_step_that_leads_up(loss):
    case = Along(loss, 0.0, -1.0)
    assert case.fall < 0
    case.fall = 1.0
    assert case.found() == 0


def test_the_slope_just_before_a_corner():
    case = Along(Logistic(), 0.05, 1.0)
    theta = case.point.theta.copy()
    theta[1] = 0.0
    end = case.objective.snapshot(theta)
    for sign in (1, -1):
        change = sign * np.arange(1.0, 6.0)[:, None]
        before = case.gradient(theta - 1e-9 * change)
        expected = float(np.vdot(before, change))
        assert slope_at(case.objective, end.gradient, theta, change) == pytest.approx(expected)


def test_the_length_of_a_step_that_is_far_too_long():
    """One row is done after 1e-5 of the step, another one is wrong from 2.5e-3 of it on."""
    loss, target = Logistic(), np.array([1.0, 1.0])
    scores, along, share = np.array([[-50.0], [50.0]]), np.array([[5e6], [-2e4]]), np.full(2, 0.5)
    theta = np.zeros((1, 1))
    table = Table(DenseRows(np.zeros((2, 0))), target, share, Workers(0))
    scaling = Scaling(np.zeros(0), np.zeros(0))
    objective = Objective(table, loss, scaling, np.zeros(1), True)
    start = share @ loss.value(scores, target)
    fall = -float((share @ (loss.residual(scores, target) * along))[0])
    point = Snapshot(theta, start, theta, Kept(scores))
    length = length_of(objective, point, theta, along, fall)
    assert share @ loss.value(scores + length * along, target) < 0.5 * start
