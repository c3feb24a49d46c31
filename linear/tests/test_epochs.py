"""SVRG epochs against the rule written out: two gradients a batch, no table, dense matrices."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from linear_oracle import LOSSES, NAMES, Dense, Draws, epoch, prepared, problem_of, to_columns
from provenglm import SVRGClassifier, epochs
from provenglm.constants import Constants, constants
from provenglm.epochs import (
    Choice,
    Curvature,
    EpochSteps,
    Series,
    corrected_gradient,
    head,
    run_epoch,
    shuffled,
)
from provenglm.losses import Logistic, Softmax, Squared
from provenglm.metric import HessianMetric
from provenglm.newton import factor
from provenglm.objective import Scaling
from provenglm.rule import correct

MANY = pytest.mark.parametrize("loss", LOSSES, ids=NAMES)


def shuffled_case(problem, seed=0):
    """The objective on shuffled rows in float64, and the dense one in the same order."""
    objective, null, sample = prepared(problem)
    moved = shuffled(objective, np.random.default_rng(seed), np.float64)
    dense = Dense.of(problem, objective.scaling.center, objective.scaling.inverse)
    return moved, null.theta, sample, dense.part(moved.order)


def matrix_of(metric, theta):
    """The inverse of a metric as a matrix over theta raveled."""
    return np.array([metric.solve(one.reshape(theta.shape)).ravel() for one in np.eye(theta.size)])


@pytest.mark.parametrize("weights", [False, True])
@MANY
def test_shuffled_is_the_same_objective(loss, weights):
    problem = problem_of(loss, n=50, weights=weights)
    moved, null, _, dense = shuffled_case(problem)
    objective, _, _ = prepared(problem)
    theta = null + 0.3
    one, two = objective.snapshot(theta), moved.snapshot(theta)
    assert sorted(moved.order) == list(range(50))
    assert two.objective == pytest.approx(one.objective, rel=1e-13)
    np.testing.assert_allclose(two.gradient, one.gradient, atol=1e-13)
    np.testing.assert_allclose(two.scores, one.scores[moved.order], atol=1e-12)
    np.testing.assert_allclose(to_columns(two.scores), dense.scores(to_columns(theta)), atol=1e-12)


@pytest.mark.parametrize("batch", [1, 5, 25])
@pytest.mark.parametrize("weights", [False, True])
@MANY
def test_correction_is_unbiased(loss, weights, batch):
    objective, null, _, _ = shuffled_case(problem_of(loss, n=50, weights=weights))
    snapshot = objective.snapshot(null)
    theta = null + 0.2 * np.random.default_rng(1).normal(size=null.shape)
    exact = objective.snapshot(theta).gradient
    if objective.probability is not None:
        # By what each batch of one row is drawn with: the mean over all draws.
        drawn = [
            chance * corrected_gradient(objective, snapshot, theta, np.array([row]))
            for row, chance in enumerate(objective.probability)
            if chance > 0
        ]
        np.testing.assert_allclose(sum(drawn), exact, rtol=0, atol=1e-12)
        objective.probability = None
    batches = [slice(start, start + batch) for start in range(0, 50, batch)]
    gradients = [corrected_gradient(objective, snapshot, theta, rows) for rows in batches]
    np.testing.assert_allclose(np.mean(gradients, axis=0), exact, rtol=0, atol=1e-12)
    if batch < 25:
        # Not because all of them are the full gradient.
        assert np.std(gradients, axis=0).max() > 1e-3


@pytest.mark.parametrize("weights", [False, True])
@MANY
def test_correction_is_the_packages_rule(loss, weights):
    objective, null, _, dense = shuffled_case(problem_of(loss, n=50, weights=weights))
    snapshot = objective.snapshot(null)
    theta = null + 0.2 * np.random.default_rng(1).normal(size=null.shape)
    rows = slice(10, 25)
    expected = correct(
        dense.gradient(to_columns(theta), np.arange(10, 25), objective.probability),
        dense.gradient(to_columns(null), np.arange(10, 25), objective.probability),
        dense.gradient(to_columns(null)),
    )
    got = corrected_gradient(objective, snapshot, theta, rows)
    np.testing.assert_allclose(to_columns(got), expected, rtol=0, atol=1e-12)


@MANY
def test_at_the_snapshot_any_batch_has_the_full_gradient(loss):
    objective, null, _, _ = shuffled_case(problem_of(loss, n=50))
    snapshot = objective.snapshot(null + 0.1)
    got = corrected_gradient(objective, snapshot, snapshot.theta, slice(7, 8))
    np.testing.assert_allclose(got, snapshot.gradient, rtol=0, atol=1e-12)


def test_parts_of_a_batch_add_up(monkeypatch):
    objective, null, _, _ = shuffled_case(problem_of(Logistic(), n=50))
    snapshot, theta = objective.snapshot(null), null + 0.2
    whole = corrected_gradient(objective, snapshot, theta, slice(3, 50))
    monkeypatch.setattr(epochs, "_PART", 10)
    parts = corrected_gradient(objective, snapshot, theta, slice(3, 50))
    np.testing.assert_allclose(parts, whole, rtol=0, atol=1e-14)


@pytest.mark.parametrize("weights", [False, True])
@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("kind", ["identity", "diagonal", "hessian"])
@pytest.mark.parametrize("loss", [Logistic(), Softmax(3)], ids=["logistic", "softmax"])
def test_every_step_of_epochs(loss, kind, intercept, weights):
    problem = problem_of(loss, n=50, l2=1e-2, weights=weights, intercept=intercept)
    objective, theta, sample, dense = shuffled_case(problem)
    dense = replace(dense, penalty=objective.penalty)
    curvature = Curvature(sample, theta)
    if kind == "hessian":
        metric = HessianMetric(factor(sample.hessian(sample.rows @ theta), 1e-4))
    else:
        metric = curvature.metric(kind, objective.scaling)
    smoothness = curvature.smoothness(metric, objective.snapshot(theta).gradient)
    numbers = Constants(smoothness, 1.0, 8, 6, 0.4 / smoothness, 0.8)
    seen = []

    class Watched:
        def solve(self, gradient):
            seen.append(to_columns(gradient))
            return metric.solve(gradient)

    draws, expected = Draws(), to_columns(theta)
    inverse = matrix_of(metric, theta)
    start = objective.snapshot(theta).objective
    for _ in range(4):
        seen.clear()
        theta = run_epoch(objective, objective.snapshot(theta), Watched(), numbers, draws)
        expected, gradients = epoch(dense, inverse, numbers, expected, draws, objective.probability)
        assert len(seen) == numbers.steps
        for got, exact in zip(seen, gradients, strict=True):
            np.testing.assert_allclose(got, exact, rtol=0, atol=1e-12)
        # Of softmax the Hessian leaves the intercepts' common shift to rounding.
        tol = 1e-10 if (kind, loss.name) == ("hessian", "softmax") else 1e-12
        np.testing.assert_allclose(to_columns(theta), expected, rtol=0, atol=tol)
    assert objective.snapshot(theta).objective < start


@pytest.mark.parametrize("weights", [False, True])
@pytest.mark.parametrize("kind", ["identity", "diagonal"])
@pytest.mark.parametrize("loss", [Logistic(), Softmax(3)], ids=["logistic", "softmax"])
def test_every_snapshot_of_a_run(loss, kind, weights, monkeypatch):
    # In float64, with batches of 16; metric and constants are taken as measured.
    problem = problem_of(loss, n=200, l2=1e-2, weights=weights)
    monkeypatch.setattr(epochs, "constants", partial(constants, least_batch=16))
    given = shuffled
    monkeypatch.setattr(epochs, "shuffled", lambda one, rng, _: given(one, rng, np.float64))
    objective, null, sample = prepared(problem)
    draws, measured = Draws(), []
    steps = EpochSteps(objective, kind, draws)
    measure = steps._measure

    def keep(*args):
        measured.append(measure(*args))
        return measured[-1]

    monkeypatch.setattr(steps, "_measure", keep)
    states = steps.states(sample, null.theta)
    first = next(states)
    order = draws.permutations[0]
    dense = Dense.of(problem, objective.scaling.center, objective.scaling.inverse).part(order)
    expected = to_columns(null.theta)
    np.testing.assert_allclose(to_columns(first.theta), expected, atol=1e-13)
    values = [first.snapshot.objective]
    for _ in range(6):
        state = next(states)
        metric, numbers = measured[-1]
        assert numbers.batch < 50
        inverse = matrix_of(metric, null.theta)
        expected, _ = epoch(dense, inverse, numbers, expected, draws, state.objective.probability)
        np.testing.assert_allclose(to_columns(state.theta), expected, rtol=0, atol=1e-11)
        assert state.snapshot.objective == pytest.approx(dense.value(expected), rel=1e-12)
        values.append(state.snapshot.objective)
    assert np.all(np.diff(values) < 0)
    # Measured at the beginning and after the fourth epoch.
    assert len(measured) == 2


def test_a_step_too_long_is_taken_back(monkeypatch):
    # Constants a hundred times too bold: the objective never rises, and the run goes on.
    problem = problem_of(Logistic(), n=200, l2=1e-2)
    monkeypatch.setattr(epochs, "constants", partial(constants, least_batch=16))
    objective, null, sample = prepared(problem)
    steps = EpochSteps(objective, "diagonal", np.random.default_rng(0))
    measure = steps._measure
    slowness = []

    def bold(kind, objective, sample, snapshot, slower):
        metric, numbers = measure(kind, objective, sample, snapshot, slower)
        slowness.append(slower)
        return metric, replace(numbers, step_size=30 * numbers.step_size)

    monkeypatch.setattr(steps, "_measure", bold)
    states = steps.states(sample, null.theta)
    values = [next(states).snapshot.objective for _ in range(5)]
    # The same snapshot again, until the step is short enough.
    assert np.all(np.diff(values) <= 0)
    assert values[-1] < values[0]
    assert max(slowness) >= 8


def test_a_run_ends_where_no_step_leads_lower():
    problem = problem_of(Squared(), n=600, l2=1e-2)
    objective, null, sample = prepared(problem)
    steps = EpochSteps(objective, "diagonal", np.random.default_rng(0))
    last = None
    for _, state in zip(range(300), steps.states(sample, null.theta), strict=False):
        last = state
    dense = Dense.of(problem, objective.scaling.center, objective.scaling.inverse)
    _, least = dense.minimum(to_columns(null.theta))
    # The rows are float32 there: 1e-7 of the objective.
    assert last.snapshot.objective == pytest.approx(least, rel=1e-6)


@MANY
def test_head_is_the_objective_of_the_first_rows(loss):
    objective, null, _, dense = shuffled_case(problem_of(loss, n=50, weights=True))
    part = head(objective, 20)
    theta = null + 0.1
    snapshot = part.snapshot(theta)
    exact = dense.part(np.arange(20))
    assert snapshot.objective == pytest.approx(exact.value(to_columns(theta)), rel=1e-12)
    np.testing.assert_allclose(
        to_columns(snapshot.gradient), exact.gradient(to_columns(theta)), atol=1e-12
    )
    # The whole one is as before.
    assert len(objective.target) == 50


def test_series_is_exact_for_a_geometric_one():
    series = Series()
    assert series.rest == np.inf
    for gain in (8.0, 4.0, 2.0):
        series.add(gain)
    assert series.rest == pytest.approx(2.0)


def test_series_believes_the_slower_of_two_ratios_and_none_too_good():
    slow, fast = Series(), Series()
    for gain in (8.0, 6.0, 0.6):
        slow.add(gain)
    assert slow.rest == pytest.approx(0.6 * 0.75 / 0.25)
    for gain in (8.0, 1e-3, 1e-9):
        fast.add(gain)
    assert fast.rest == pytest.approx(1e-9 / 9)


def test_choice_tries_the_other_metric_when_one_is_slow():
    scaling = Scaling(np.zeros(10), np.ones(10))
    choice = Choice("auto", scaling)
    assert choice.kind == "identity"
    for gain in (1.0, 0.9):
        choice.add(gain)
    assert choice.kind == "diagonal"
    for gain in (0.3, 0.1):
        choice.add(gain)
    # It halves the gain and more: it stays.
    assert choice.kind == "diagonal"


@pytest.mark.parametrize("wanted", ["identity", "diagonal"])
def test_choice_that_is_asked_for_stays(wanted):
    choice = Choice(wanted, Scaling(np.zeros(10), np.ones(10)))
    for gain in (1.0, 0.99, 0.98, 0.97):
        choice.add(gain)
        assert choice.kind == wanted


def test_choice_begins_with_the_diagonal_where_scales_are_far_apart():
    scaling = Scaling(np.zeros(100), np.append(1e-6, np.ones(99)))
    assert Choice("auto", scaling).kind == "diagonal"


def least_objective(features, target, strength):
    """Return the least value of the logistic objective, by Newton's method over the rows' span."""
    n = len(target)
    # The optimum is in the span of the rows: there it has n numbers, with the same norm.
    basis = np.linalg.qr(features.T)[0]
    reduced = np.column_stack([features @ basis, np.ones(n)])
    penalty = np.append(np.full(n, strength), 0.0)
    sign, theta = 2 * target - 1, np.zeros(n + 1)

    def objective(theta):
        loss = np.logaddexp(0, -sign * (reduced @ theta)).mean()
        return loss + 0.5 * penalty @ np.square(theta)

    for _ in range(60):
        probability = 1 / (1 + np.exp(-(reduced @ theta)))
        gradient = reduced.T @ (probability - target) / n + penalty * theta
        weight = probability * (1 - probability) / n
        hessian = (reduced.T * weight) @ reduced + np.diag(penalty)
        step = np.linalg.solve(hessian, gradient)
        length = 1.0
        while objective(theta - length * step) > objective(theta) and length > 1e-9:
            length /= 2
        theta = theta - length * step
        if gradient @ step < 1e-13:
            break
    return objective(theta)


@pytest.mark.full
@pytest.mark.parametrize("scale", [1.0, 1e3, 1e6])
@pytest.mark.parametrize(("n", "way"), [(400, "newton, rotated"), (1500, "newton-cg")])
def test_one_column_is_far_larger_than_the_others(n, way, scale):
    """Epochs in between gain next to nothing; the rows' products lose what is small."""
    rng = np.random.default_rng(0)
    p, C = 2600, 30.0
    features = np.where(rng.random((n, p)) < 0.01, rng.random((n, p)), 0)
    features[:, 0] = rng.random(n)
    truth = 0.7 * rng.normal(size=p)
    truth[0] = 6
    target = (features @ truth - 3 + rng.logistic(size=n) > 0).astype(int)
    features[:, 0] *= scale
    model = SVRGClassifier(C=C, random_state=0).fit(features, target)
    least = least_objective(features, target, 1 / (C * n))
    assert model.solver_ == way
    assert model.objective_ - least <= 2e-6 * (np.log(2) - least)
    assert model.gap_ >= model.objective_ - least - 1e-12
