"""Dual coordinate ascent: the same steps in NumPy, and runs from every kind of start."""

import time
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
from provenglm import constants
from provenglm.methods import dual as dual_module
from provenglm.methods.base import Target
from provenglm.methods.dual import DualCoordinateAscent
from provenglm.methods.newton_cg import NewtonCG
from provenglm.model.losses import Logistic, Softmax
from provenglm.model.problem import Problem
from provenglm.model.solution import Settings, StopReason
from provenglm.plan import TABLE, Shape, choose
from provenglm.proof.duality import duality_gap
from provenglm.solve import Session, solve
from scipy.sparse import csr_array
from scipy.special import logsumexp

LOSSES = [Logistic(), Softmax(2), Softmax(5)]
ids = ["logistic", "two classes", "five classes"]
KINDS = [*((loss, False) for loss in LOSSES), (Softmax(2), True), (Softmax(5), True)]
kinds = [*ids, "dense, two classes", "dense, five classes"]


def made(loss, n=90, p=40, l2=1e-2, intercept=True, weighted=True, seed=0, dense=False):
    """Return a problem with an empty row, an empty column and rows of no weight.

    Dense features are far from 0 where there is an intercept.
    """
    rng = np.random.default_rng(seed)
    X = np.where(rng.random((n, p)) < 0.2, rng.normal(size=(n, p)) * np.exp(rng.normal(size=p)), 0)
    X[3], X[:, 2] = 0, 0
    scores = X @ rng.normal(size=(p, loss.outputs)) + rng.gumbel(size=(n, loss.outputs))
    y = scores.argmax(axis=1) if loss.outputs > 1 else (scores[:, 0] > 0).astype(float)
    weight = rng.exponential(size=n) * (rng.random(n) > 0.1) if weighted else None
    if dense:
        return Problem(X + 3 * rng.normal(size=p) * intercept, y, loss, l2, weight, intercept)
    X = csr_array(X)
    X.indices, X.indptr = X.indices.astype(np.int32), X.indptr.astype(np.int32)
    return Problem(X, y, loss, l2, weight, intercept)


class Whole:
    """The method with whole arrays: one row of two classes is one of softmax with half of the way.

    Of the logistic loss it is written down for classes 0 and 1 with the scores (0, z): the step in
    the mean of class 1 is the same, with half of the curvature for each class.
    """

    def __init__(self, problem, theta, center):
        self.problem, self.share = problem, problem.shares()
        X = problem.features
        self.X = X - center if isinstance(X, np.ndarray) else X.toarray()
        self.K = max(2, problem.loss.outputs)
        self.observed = np.eye(self.K)[problem.target.astype(int)]
        self.is_two = problem.loss.outputs == 1
        squares = np.square(self.X).sum(axis=1)
        of_weights = self.share**2 @ squares / problem.l2
        self.of_bias = 0.0
        if problem.fit_intercept:
            self.of_bias = max(0.1, 0.005 * of_weights) / (self.share @ self.share)
        self.curvature = self.share * (squares / problem.l2 + self.of_bias)
        self.b0 = theta[-1].astype(float)
        self.mean = self.observed.copy()
        if theta[:-1].any():
            self.mean = self.probability(self.X @ theta[:-1] + self.b0)

    @property
    def residual(self):
        """Return shares times residuals, (n, K), of the logistic loss (n, 1)."""
        weighted = self.share[:, None] * (self.mean - self.observed)
        return weighted[:, 1:] if self.is_two else weighted

    @property
    def weights(self):
        return -self.X.T @ self.residual / self.problem.l2

    @property
    def bias(self):
        return self.b0 - self.of_bias * self.residual.sum(axis=0)

    def probability(self, scores):
        scores = np.atleast_2d(scores)
        if self.is_two:
            scores = np.hstack([np.zeros_like(scores), scores])
        e = np.exp(scores - scores.max(axis=1, keepdims=True))
        return e / e.sum(axis=1, keepdims=True)

    def step(self, i):
        """Return loss and both distances that were met; weights follow from the means."""
        score = self.X[i] @ self.weights + self.bias
        c, q = self.curvature[i], self.mean[i].copy()
        rest = self.probability(score)[0] - q
        h = np.maximum(np.maximum(q + rest, q), 1e-30)
        if self.is_two:
            of_dual = rest[1] ** 2 / (h[0] * h[1] / (h[0] + h[1]))
            met = of_dual + c * rest[1] ** 2
        else:
            of_dual = float((rest**2 / h).sum())
            met = of_dual + c * float((rest**2).sum())
        scores = np.append(0.0, score) if self.is_two else score
        value = self.share[i] * (logsumexp(scores) - scores @ self.observed[i])
        each = c / 2 if self.is_two else c
        for _ in range(10):
            p = self.probability(score)[0]
            h = np.maximum(p, q)
            # (1 + c h) s = p - q + lambda h, and the sum of s is 0.
            matrix = np.zeros((self.K + 1, self.K + 1))
            matrix[:-1, :-1] = np.diag(1 + each * h)
            matrix[:-1, -1], matrix[-1, :-1] = -h, 1
            step = np.linalg.solve(matrix, np.append(p - q, 0.0))[:-1]
            new = np.maximum(q + step, 1e-3 * q)
            new /= new.sum()
            if self.is_two:
                second = np.clip(q[1] + step[1], 1e-3 * q[1], 1 - 1e-3 * q[0])
                new = np.array([1 - second, second])
            moved = c * (new - q)
            score = score - (moved[1:] if self.is_two else moved)
            q = new
            if np.abs(moved).max() < 0.25:
                break
        self.mean[i] = q
        return value, self.share[i] * met / 2, self.share[i] * of_dual / 2

    def epoch(self, blocks):
        size = 1 if len(blocks) == len(self.share) else 8
        order = [i for b in blocks for i in range(size * b, min(size * (b + 1), len(self.share)))]
        value, distance, of_dual = np.sum([self.step(i) for i in order], axis=0)
        value += 0.5 * self.problem.l2 * np.square(self.weights).sum()
        self.b0 = self.bias
        return value, distance, of_dual


def means(dual, whole):
    """The means of a run, and those of its NumPy version."""
    residual = dual._residual
    if whole.is_two:
        return residual + whole.observed[:, 1:], whole.mean[:, 1:]
    return residual + whole.observed, whole.mean


def prepared(problem, theta, seed=0):
    """Return the method in float64 from a start, and its NumPy version."""
    session = Session(problem, Settings())
    objective = session.prepare()[0]
    with session.running():
        first = objective.snapshot(theta)
    rng = np.random.default_rng(seed)
    weights, bias = objective.scaling.to_user(theta)
    center = objective.scaling.center * isinstance(problem.features, np.ndarray)
    bias = bias + center @ weights
    whole = Whole(problem, np.concatenate([weights, bias[None]]), center)
    return dual_module._Dual(objective, first, True, rng), whole


def starts(problem, kind):
    rng = np.random.default_rng(5)
    p, K = problem.features.shape[1], problem.loss.outputs
    theta = np.zeros((p + 1, K))
    theta[-1] = rng.normal(size=theta[-1:].shape[1:]) * problem.fit_intercept
    if kind == "warm":
        theta[:-1] = rng.normal(size=theta[:-1].shape)
    return theta


@pytest.fixture(autouse=True)
def _compiled_for_nothing(monkeypatch):
    """Have the dual cost nothing on few numbers."""
    monkeypatch.setattr("provenglm.constants.COMPILED", 0)


@pytest.fixture
def _narrow(monkeypatch):
    """Have few columns count as many."""
    monkeypatch.setattr("provenglm.constants.MOST_WEIGHTS", 10)
    monkeypatch.setattr("provenglm.solve.in_memory_if_small", lambda problem: problem)


@pytest.mark.usefixtures("_narrow")
@pytest.mark.parametrize(("loss", "dense"), KINDS, ids=kinds)
@pytest.mark.parametrize("kind", ["cold", "warm"])
@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("l2", [1e-4, 1e-2, 1.0])
def test_epochs_are_those_of_numpy(loss, dense, kind, intercept, l2):
    problem = made(loss, intercept=intercept, l2=l2, dense=dense)
    theta = starts(problem, kind)
    dual, whole = prepared(problem, theta)
    np.testing.assert_allclose(*means(dual, whole), rtol=1e-12, atol=1e-14)
    for _ in range(4):
        got = dual.epoch()
        wanted = whole.epoch(dual._order.astype(int))
        np.testing.assert_allclose(got[:2], wanted[:2], rtol=1e-7)
        # The residual of an own mean next to 0 is next to -1, and has few of its digits.
        np.testing.assert_allclose(got[2], wanted[2], rtol=1e-3)
        np.testing.assert_allclose(*means(dual, whole), rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(dual._bias, whole.bias, rtol=1e-9, atol=1e-11)
        scale = np.abs(whole.weights).max()
        weights = dual._weights.T if dense else dual._weights
        np.testing.assert_allclose(weights, whole.weights, atol=1e-12 * scale)


@pytest.mark.usefixtures("_narrow")
@pytest.mark.parametrize(("loss", "dense"), KINDS, ids=kinds)
@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("l2", [1e-4, 1e-2, 1.0])
def test_a_run_ends_at_the_optimum(loss, dense, intercept, l2):
    l2 = 10 * np.sqrt(l2) if dense else l2
    problem = made(loss, n=400, intercept=intercept, l2=l2, dense=dense)
    solution = solve(problem, Settings(tol=1e-10, method="dual-coordinate-ascent"))
    # Sparse rows with a weak penalty are left to conjugate gradients after some epochs.
    has_gained = "gained too little" not in solution.why
    assert solution.method == ("dual-coordinate-ascent" if has_gained else "newton-cg")
    assert has_gained or not dense
    assert solution.reason is StopReason.CONVERGED
    assert solution.gap <= 1e-10 * (solution.history[0].objective - solution.objective)
    # Without a bound of the solver's own: the gradient is 0.
    scores = problem.features @ solution.coef + solution.intercept
    weighted = problem.shares()[:, None] * loss.residual(scores, problem.target)
    gradient = problem.features.T @ weighted + l2 * solution.coef
    np.testing.assert_allclose(gradient, 0, atol=1e-5 * np.sqrt(l2))
    if intercept:
        np.testing.assert_allclose(weighted.sum(axis=0), 0, atol=1e-9)
    else:
        assert not solution.intercept.any()


@pytest.mark.usefixtures("_narrow")
@pytest.mark.parametrize("loss", LOSSES, ids=ids)
def test_the_estimate_is_of_the_size_of_the_distance(loss):
    problem = made(loss, n=400)
    best = solve(problem, Settings(tol=1e-13)).objective
    dual, _ = prepared(problem, starts(problem, "cold"))
    for _ in range(8):
        value, distance, _ = dual.epoch()
        objective = dual._objective.snapshot(dual.theta()).objective
        assert objective >= best * (1 - 1e-14)
        # The mean over the epoch, and what is left at its end.
        assert distance >= 0.5 * (objective - best)
        assert abs(value - objective) <= 4 * distance + 1e-12


@pytest.mark.usefixtures("_narrow")
@pytest.mark.parametrize(("loss", "dense"), KINDS, ids=kinds)
@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("l2", [1e-4, 1e-2])
def test_the_residuals_of_the_dual_prove_sooner(loss, dense, intercept, l2):
    problem = made(loss, n=60, intercept=intercept, l2=l2, dense=dense)
    best = solve(problem, Settings(tol=1e-13)).objective
    dual, _ = prepared(problem, starts(problem, "cold"))
    parts = []
    for count in range(40):
        _, _, of_dual = dual.epoch()
        snapshot = dual._objective.snapshot(dual.theta())
        gap = dual.gap(snapshot)
        assert gap >= snapshot.objective - best - 1e-14
        if count >= 30:
            parts.append((gap / duality_gap(dual._objective, snapshot), gap / of_dual))
    of_scores, of_estimate = np.median(parts, axis=0)
    assert of_scores < (0.5 if l2 < 1e-3 else 1)
    assert of_estimate < 3


@pytest.mark.usefixtures("_narrow")
@pytest.mark.parametrize("loss", LOSSES, ids=ids)
def test_the_intercept_is_the_best_of_the_weights(loss):
    problem = made(loss, n=400)
    dual, _ = prepared(problem, starts(problem, "warm"))
    for count in range(30):
        dual.epoch()
        snapshot = dual._objective.snapshot(dual.theta())
        weights = dual._objective.scaling.to_user(snapshot.theta)[0]
        np.testing.assert_allclose(weights, dual._weights, rtol=1e-14)
        # Never worse than the intercept of the dual.
        bias = dual._bias.reshape(snapshot.theta.shape[1:])
        theta = dual._objective.scaling.from_user(dual._weights, bias)
        other = dual._objective.snapshot(theta).gradient[-1]
        assert np.abs(snapshot.gradient[-1]).max() <= np.abs(other).max() + dual_module._BALANCED
        if count > 20:
            assert np.abs(snapshot.gradient[-1]).max() <= dual_module._BALANCED


@pytest.mark.usefixtures("_narrow")
@pytest.mark.parametrize("loss", LOSSES, ids=ids)
def test_another_method_goes_on_where_epochs_gain_too_little(loss, monkeypatch):
    monkeypatch.setattr(dual_module, "_SLOW", 0.0)
    monkeypatch.setattr(dual_module, "_SLOW_EPOCHS", 1)
    taken = []
    step = NewtonCG.step

    def spied(method, point, target):
        taken.append(point.objective)
        return step(method, point, target)

    monkeypatch.setattr(NewtonCG, "step", spied)
    problem = made(loss, n=400)
    solution = solve(problem, Settings(method="dual-coordinate-ascent"))
    assert solution.reason is StopReason.CONVERGED
    assert solution.method == "newton-cg"
    assert "gained too little after 2 epochs" in solution.why
    # From where the epochs came to.
    assert taken[0] == pytest.approx(solution.history[1].objective, rel=1e-13)
    assert taken[0] < solution.history[0].objective


@pytest.mark.usefixtures("_narrow")
def test_a_weak_penalty_is_for_another_method():
    problem = made(Softmax(3))
    square = np.square(problem.features.data).sum() / 90**2
    for factor, method in [(1.01, "dual-coordinate-ascent"), (0.99, "newton-cg")]:
        l2 = factor * square / constants.DUAL_CURVATURE
        given = Problem(problem.features, problem.target, problem.loss, l2)
        assert choose(given).name == method
    # On a path, the strength of a later point decides.
    session = Session(made(Softmax(3), n=400), Settings())
    assert session.plan.name == "dual-coordinate-ascent"
    with session.running():
        solution = session.solve(l2=1e-2 * square / constants.DUAL_CURVATURE)
    assert solution.reason is StopReason.CONVERGED


@pytest.mark.usefixtures("_narrow")
def test_time_that_is_over_ends_the_epochs():
    problem = made(Softmax(5), n=400)
    solution = solve(problem, Settings(max_time=1e-9))
    assert solution.reason is StopReason.MAX_TIME
    objective, _ = Session(problem, Settings()).prepare()
    objective.deadline = time.perf_counter()
    with objective.workers.running():
        method = DualCoordinateAscent(objective, True, np.random.default_rng(0))
        start = method.objective.snapshot(objective.null()[0])
        before = method.objective.passes
        step = method.step(start, Target(1e-6, 0.0, np.inf))
        point = method.objective.snapshot(start.theta + step.change)
    assert step.is_whole
    assert method.objective.passes - before < 3
    assert point.objective < start.objective


DUAL = next(row for row in TABLE if row.name == "dual-coordinate-ascent")


def test_classes_of_dense_rows_with_a_strong_penalty():
    def is_for(curvature, classes=10, **given):
        rng = np.random.default_rng(0)
        n = constants.MEASURED_ROWS
        X = rng.normal(size=(n, 20)) * np.exp(rng.normal(size=20)) + 9
        problem = Problem(X, np.arange(n) % classes, Softmax(classes), 1.0)
        l2 = X.var(axis=0).sum() / n / curvature
        return DUAL.can(Shape(replace(problem, l2=l2, **given)))

    assert is_for(0.99 * constants.DUAL_CURVATURE_OF_DENSE)
    assert not is_for(1.01 * constants.DUAL_CURVATURE_OF_DENSE)
    assert not is_for(np.inf)
    assert not is_for(1.0, target=np.zeros(constants.MEASURED_ROWS), loss=Logistic())


@pytest.mark.parametrize("classes", [3, 60])
def test_few_rows_of_each_of_many_clusters(classes):
    rng = np.random.default_rng(0)
    target = np.repeat(np.arange(classes), 600 // classes)
    X = (rng.normal(size=(classes, 80))[target] + rng.normal(size=(600, 80))).astype(np.float32)
    settings = Settings(method="dual-coordinate-ascent")
    solution = solve(Problem(X, target, Softmax(classes), 0.1), settings)
    assert solution.method == "dual-coordinate-ascent"
    assert solution.reason is StopReason.CONVERGED
    assert solution.gap <= 1e-6 * (solution.history[0].objective - solution.objective)
    scores = X @ solution.coef + solution.intercept
    residual = Softmax(classes).residual(scores, target) / 600
    gradient = X.T @ residual + 0.1 * solution.coef
    # At most the duality gap, but for the intercept's part: the dual's residuals may prove more.
    assert solution.gap <= 1.1 * np.square(gradient).sum() / 2 / 0.1


@pytest.mark.slow
def test_arrays_with_a_number_for_each_row_and_class_are_few(monkeypatch):
    monkeypatch.setattr(dual_module, "_SLOW", 0.0)  # another method continues
    rng = np.random.default_rng(0)
    target = np.arange(12_000) % 300
    X = rng.normal(size=(12_000, 45))
    tracemalloc.start()
    try:
        settings = Settings(tol=1e-4, method="dual-coordinate-ascent")
        solution = solve(Problem(X, target, Softmax(300), 1 / 12_000), settings)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert "of single rows in the dual, which gained too little" in solution.why
    assert solution.method == "newton-cg"
    assert peak < 7 * 8 * 12_000 * 300


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_bits_do_not_depend_on_where_memory_lies_or_what_was_in_it(dtype):
    rng = np.random.default_rng(0)
    target = rng.integers(0, 7, 1500)
    X = (rng.normal(size=(7, 33))[target] + rng.normal(size=(1500, 33))).astype(dtype)
    settings = Settings(method="dual-coordinate-ascent")
    found = set()
    for start in range(0, 64, X.itemsize):
        space = np.empty(X.nbytes + 128, np.uint8)
        start += -space.ctypes.data % 64
        moved = space[start : start + X.nbytes].view(dtype).reshape(X.shape)
        moved[:] = X
        # Freed at once, so that the fit gets some of it.
        for size in rng.integers(1, X.size, 50):
            np.full(size, np.nan)
        held = [bytearray(size) for size in rng.integers(1, 400, 100)]
        solution = solve(Problem(moved, target, Softmax(7), 0.03), settings)
        assert solution.method == "dual-coordinate-ascent"
        found.add(solution.coef.tobytes() + solution.intercept.tobytes())
        del held
    assert len(found) == 1


@pytest.mark.parametrize("loss", [Logistic(), Softmax(5)], ids=["logistic", "classes"])
def test_few_numbers_do_not_load_numba(loss, monkeypatch):
    n, p = 400, 3000
    rng = np.random.default_rng(0)
    X = csr_array(
        (rng.random(10 * n), rng.integers(0, p, 10 * n), np.arange(0, 10 * n + 1, 10)), (n, p)
    )
    target = rng.integers(0, max(2, loss.outputs), n)
    problem = Problem(X, target, loss, 1 / n)
    for compiled, method in [(5e-3, "newton-cg"), (0, "dual-coordinate-ascent")]:
        monkeypatch.setattr("provenglm.constants.COMPILED", compiled)
        assert choose(problem).name == method
