"""Steps in a Kronecker product's metric, against dense inverses and other solvers."""

import numpy as np
import pytest
from linear_oracle import Dense, bfgs, curvatures, prepared, problem_of
from provenglm import constants
from provenglm.kronecker import Kronecker, SecondMoments, left_by_gains
from provenglm.losses import Softmax
from provenglm.newton import of_no_shift
from provenglm.problem import Problem
from provenglm.solution import Settings
from provenglm.solve import solve

CASES = [
    {},
    {"weights": True},
    {"intercept": False},
    {"l2": 0.0},
    {"l2": 1e-9, "scales": (-3, 3)},
]


def case(K=4, n=300, p=5, rare=False, **how):
    problem = problem_of(Softmax(K), n=n, p=p, **{"l2": 1e-2, **how})
    objective, null, sample = prepared(problem)
    sample.rare = objective.rare = np.arange(p) == 1 if rare else None
    return problem, objective, null, sample


def dense_metric(objective, sample, classes):
    """The matrix itself, theta raveled; any curvature along a shift of all classes."""
    moments = (sample.rows.T * sample.share) @ sample.rows + np.diag(sample.unseen())
    if not objective.intercept:
        moments[-1, -1] = 1.0
    K = len(classes)
    classes = classes + np.ones((K, K)) / K
    return np.kron(moments, classes) + np.kron(np.diag(sample.penalty), np.eye(K))


@pytest.mark.parametrize("rare", [False, True])
@pytest.mark.parametrize("how", CASES, ids=str)
def test_the_inverse_is_that_of_the_matrix(how, rare):
    _, objective, null, sample = case(rare=rare, **how)
    rng = np.random.default_rng(1)
    steps = Kronecker(objective, sample, SecondMoments(sample, objective.intercept, 0.2), True)
    snapshot = objective.snapshot(of_no_shift(null.theta + rng.normal(size=null.theta.shape)))
    gradient = of_no_shift(rng.normal(size=null.theta.shape))
    got = steps._metric(snapshot).solve(gradient)
    # The mean of diag p - p p^T over all rows: there are fewer than are asked for.
    h = curvatures(objective.loss, snapshot.scores, objective.target)
    classes = np.einsum("ikl,i->kl", h, objective.share)
    exact = np.linalg.solve(dense_metric(objective, sample, classes), gradient.ravel())
    exact = of_no_shift(exact.reshape(gradient.shape))
    np.testing.assert_allclose(got, exact, rtol=1e-6, atol=1e-7 * np.abs(exact).max())


@pytest.mark.parametrize("how", CASES, ids=str)
def test_inverse_and_effective_dimension(how):
    _, objective, _, sample = case(**how)
    second = SecondMoments(sample, objective.intercept, 0.3)
    data = 0.3 * (sample.rows.T * sample.share) @ sample.rows
    if not objective.intercept:
        data[-1, -1] = 0.3
    exact = np.linalg.inv(data + np.diag(sample.penalty))
    inverse = second.inverse()
    np.testing.assert_allclose(inverse, exact, rtol=1e-6, atol=1e-7 * np.abs(exact).max())
    assert second.dimension(inverse) == pytest.approx(np.trace(data @ exact), rel=1e-6)


def test_every_step():
    problem, objective, null, sample = case(n=400, l2=1e-1)
    dense = Dense.of(problem, objective.scaling.center, objective.scaling.inverse)
    steps = Kronecker(objective, sample, SecondMoments(sample, True, 0.2), True)
    theta, pairs, last, metric = of_no_shift(null.theta), [], None, None
    values = []
    for state in steps.states(null.theta):
        values.append(state.snapshot.objective)
        np.testing.assert_allclose(state.theta, theta, rtol=0, atol=1e-7)
        assert state.snapshot.objective == pytest.approx(dense.value(theta), rel=1e-10)
        h = curvatures(dense.loss, dense.scores(theta), dense.target)
        classes = np.einsum("ikl,i->kl", h, dense.share)
        if last is None or abs(np.trace(classes) - last) > 4 * constants.CHANGED * last:
            last = np.trace(classes)
            metric = np.linalg.inv(dense_metric(objective, sample, classes))
        gradient = dense.gradient(theta)
        scaled = metric
        if pairs:
            step, change = (array.ravel() for array in pairs[-1])
            scaled = metric * (step @ change / (change @ metric @ change))
        step = of_no_shift((bfgs(scaled, pairs) @ gradient.ravel()).reshape(theta.shape))
        decrement = max(0.5 * np.vdot(gradient, step), left_by_gains(values))
        assert state.decrement == pytest.approx(decrement, rel=1e-3, abs=1e-14)
        if state.decrement < 1e-12:
            break
        # No step of this problem has to be shortened.
        assert dense.value(theta - step) < dense.value(theta)
        pairs.append((-step, dense.gradient(theta - step) - gradient))
        theta = theta - step
    assert 3 < len(pairs) < 40


def test_theta_never_shifts_all_classes():
    _, objective, null, sample = case(weights=True)
    steps = Kronecker(objective, sample, SecondMoments(sample, True, 0.2), True)
    start = null.theta + 1.0
    for state, _ in zip(steps.states(start), range(6), strict=False):
        assert np.abs(state.theta.mean(axis=1)).max() < 1e-12


@pytest.mark.parametrize("dtype", ["float64", "float32", "uint8"])
@pytest.mark.parametrize("weights", [False, True])
@pytest.mark.parametrize("classes", [3, 20])
def test_arrives(monkeypatch, classes, weights, dtype):
    monkeypatch.setattr(constants, "SMALL_HESSIAN", 0)
    monkeypatch.setattr(constants, "ROWS_OF_A_DIMENSION", np.inf)
    rng = np.random.default_rng(3)
    X = rng.normal(size=(3000, 30)) @ rng.normal(size=(30, 30))
    X = (X - X.min()) * 255 / np.ptp(X) if dtype == "uint8" else X
    X = X.astype(dtype)
    Z = (X - X.mean(axis=0)) / X.std(axis=0)
    scores = Z @ rng.normal(size=(30, classes)) / 3 + rng.gumbel(size=(3000, classes))
    target = scores.argmax(axis=1)
    target[:classes] = np.arange(classes)
    weight = rng.random(3000) if weights else None
    problem = Problem(X, target, Softmax(classes), 1 / 3000, weight)
    solution = solve(problem, Settings(tol=1e-6))
    assert solution.method == "kronecker"
    assert solution.reason.is_success
    best = solve(problem, Settings(tol=1e-11, metric="hessian"))
    gained = solution.history[0].objective - best.objective
    distance = solution.objective - best.objective
    assert distance <= 1e-6 * gained
    assert distance <= solution.gap + 1e-12


def test_columns_that_the_sample_does_not_know():
    # Scales of the coordinates far apart: a mean of the penalty over the features would be that of
    # the rare ones alone.
    rng = np.random.default_rng(0)
    X = rng.normal(size=(9000, 12))
    X[:, 8:] = 0
    for j in range(8, 12):
        X[rng.choice(9000, 5, replace=False), j] = 1e-3
    target = (X[:, :5] + rng.gumbel(size=(9000, 5))).argmax(axis=1)
    problem = Problem(X, target, Softmax(5), 1e-5)
    objective, sample = prepared(problem, size=1000)[::2]
    assert objective.rare[8:].any()
    second = SecondMoments(sample, True, 0.16)
    values = []
    for state, _ in zip(
        Kronecker(objective, sample, second, True).states(objective.null()[0]),
        range(25),
        strict=False,
    ):
        values.append(state.snapshot.objective)
    best = solve(problem, Settings(tol=1e-11, metric="hessian")).objective
    assert values[-1] - best < 1e-9
    assert np.all(np.diff(values) < 0)


def test_class_curvature_of_rows_at_even_distances(monkeypatch):
    monkeypatch.setattr(constants, "LEAST_ROWS", 50)
    _, objective, null, sample = case(n=600)
    steps = Kronecker(objective, sample, SecondMoments(sample, True, 0.2), True)
    snapshot = objective.snapshot(null.theta)
    first = steps._metric(snapshot)
    # The same point, so the same metric.
    assert steps._metric(snapshot) is first
    settled = objective.snapshot(null.theta + 3 * np.random.default_rng(0).normal(size=(6, 4)))
    assert steps._metric(settled) is not first


@pytest.mark.parametrize("count", [21, 35])
@pytest.mark.parametrize("rate", [0.2, 0.5, 0.9])
def test_left_by_gains_is_exact_where_gains_fall_by_a_factor(rate, count):
    least = 0.5
    values = [least + rate**k for k in range(count)]
    assert left_by_gains(values) == pytest.approx(rate ** (count - 1), rel=1e-6, abs=1e-14)


def test_left_by_gains_where_the_rate_is_not_known():
    assert left_by_gains([3.0]) == left_by_gains(list(range(20, 0, -1))) == 0
    # Nothing gained: rounding.
    assert left_by_gains([3.0] * 10 + [2.0] * 11) == 0
    # It falls ever faster: as if at the largest rate.
    assert left_by_gains([3.0] * 10 + [2.0] * 10 + [0.0]) == pytest.approx(2 * 0.95 / 0.05)


def test_nearly_separable_classes_are_not_called_solved_too_soon(monkeypatch):
    rng = np.random.default_rng(0)
    X = rng.integers(0, 256, (2000, 60)).astype(np.uint8)
    scores = (X / 255.0 - 0.5) @ rng.normal(size=(60, 20))
    target = (8 * scores / scores.std() + rng.gumbel(size=scores.shape)).argmax(axis=1)
    precise = Problem(X.astype(float), target, Softmax(20), 1 / 2000)
    best = solve(precise, Settings(tol=1e-10, metric="hessian"))
    monkeypatch.setattr(constants, "SMALL_HESSIAN", 0)
    monkeypatch.setattr(constants, "ROWS_OF_A_DIMENSION", np.inf)
    # As with more weights: the estimate decides, not a proof.
    monkeypatch.setattr(constants, "MOST_WEIGHTS", 0)
    solution = solve(Problem(X, target, Softmax(20), 1 / 2000), Settings(tol=1e-6))
    assert solution.method == "kronecker"
    assert solution.reason.is_success
    assert len(solution.history) > 100
    gained = solution.history[0].objective - best.objective
    # The metric's own decrement ended the run at 1.3e-6.
    assert solution.objective - best.objective <= 1e-6 * gained
