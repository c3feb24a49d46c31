"""Newton's method by conjugate gradients: a version with whole matrices, step by step."""

import time
from dataclasses import replace
from itertools import islice

import numpy as np
import pytest
from linear_oracle import curvatures, length_along, prepared, problem_of
from provenglm import constants
from provenglm.methods import newton_cg
from provenglm.methods.newton_cg import NewtonCG
from provenglm.model import cholesky
from provenglm.model.losses import Huber, Logistic, Poisson, Softmax, Squared
from provenglm.model.problem import Problem
from provenglm.model.solution import Settings, StopReason
from provenglm.model.tweedie import Gamma, Tweedie
from provenglm.plan import choose
from provenglm.solve import Session, solve
from scipy.sparse import csr_array
from walking import walk

LOSSES = [Logistic(), Softmax(3), Squared(), Huber(0.7), Poisson(), Tweedie(1.6), Gamma()]
ids = [loss.name for loss in LOSSES]


def targets(loss, scores, rng):
    noise = rng.logistic(size=scores.shape)
    if loss.outputs > 1:
        return np.argmax(scores + noise, axis=1)
    if isinstance(loss, Logistic):
        return (scores + noise > 0).astype(float)
    if isinstance(loss, Poisson):
        return rng.poisson(np.exp(np.clip(scores, -3, 2))).astype(float)
    if isinstance(loss, Tweedie):
        y = rng.gamma(2, np.exp(np.clip(scores, -3, 2)) / 2)
        return y if isinstance(loss, Gamma) else y * (rng.random(len(y)) < 0.8)
    return scores + noise


def made(loss, n=120, p=15, seed=0, dense=False, intercept=True):
    rng = np.random.default_rng(seed)
    X = np.where(rng.random((n, p)) < 0.4, rng.normal(size=(n, p)) * np.exp(rng.normal(size=p)), 0)
    truth = rng.normal(size=(p, loss.outputs)) if loss.outputs > 1 else rng.normal(size=p)
    weight = rng.exponential(size=n) * (rng.random(n) > 0.1)
    y = targets(loss, X @ truth, rng)
    return Problem(X if dense else csr_array(X), y, loss, 1e-2, weight, intercept)


class Whole:
    """The same method with X, H and M as matrices, in the user's coordinates, theta raveled."""

    def __init__(self, problem):
        X = problem.features
        self.X = np.asarray(X.toarray() if hasattr(X, "toarray") else X)
        self.problem, self.share = problem, problem.shares()
        self.K = problem.loss.outputs
        self.has_intercept = problem.fit_intercept
        self.common = self.weight = None

    def scores(self, W, b):
        return self.X @ W + b

    def value(self, W, b):
        problem = self.problem
        value = problem.loss.value(self.scores(W, b), problem.target)
        return float(self.share @ value) + 0.5 * problem.l2 * float(np.square(W).sum())

    def gradient(self, W, b):
        problem = self.problem
        residual = problem.loss.residual(self.scores(W, b), problem.target)
        weighted = self.share[:, None] * residual
        of_b = weighted.sum(0) if self.has_intercept else np.zeros(self.K)
        return self.X.T @ weighted + problem.l2 * W, of_b

    def of_scores(self, W, b, curvature_shift):
        """Return the second derivatives with respect to the scores, (n, K, K)."""
        loss, target = self.problem.loss, self.problem.target
        scores = self.scores(W, b)
        if isinstance(loss, Softmax):
            mean = np.exp(scores - scores.max(1, keepdims=True))
            mean /= mean.sum(1, keepdims=True)
            mean = (1 - curvature_shift) * mean + curvature_shift * np.eye(self.K)[target]
            return np.stack([np.diag(row) - np.outer(row, row) for row in mean])
        scores = scores[:, 0]
        if isinstance(loss, Logistic):
            mean = (1 - curvature_shift) / (1 + np.exp(-scores)) + curvature_shift * target
            curvature = mean * (1 - mean)
        elif isinstance(loss, Poisson):
            curvature = (1 - curvature_shift) * np.exp(scores) + curvature_shift * target
        elif isinstance(loss, Tweedie):
            curvature = (1 - curvature_shift) * loss.curvature_at(scores, target)
            # At a mean that is the target; none where it is 0.
            curvature += curvature_shift * np.where(target > 0, target ** (2 - loss.power), 0)
        else:
            curvature = loss.curvature_in_hessian_at(scores, target, 0.0)
            if isinstance(loss, Huber):
                above = np.minimum(1, loss.epsilon / np.maximum(np.abs(scores - target), 1e-300))
                curvature = (1 - curvature_shift) * curvature + curvature_shift * above
        return curvature[:, None, None]

    def step(self, W, b, last, curvature_shift):
        X, K, p = self.X, self.K, self.X.shape[1]
        of_scores = self.share[:, None, None] * self.of_scores(W, b, curvature_shift)
        hessian = np.einsum("ij,ikl,im->jkml", X, of_scores, X).reshape(p * K, p * K)
        hessian += self.problem.l2 * np.eye(p * K)
        cross = np.einsum("ij,ikl->jkl", X, of_scores).reshape(p * K, K)
        corner = np.linalg.pinv(of_scores.sum(0), rcond=1e-10) * self.has_intercept
        g_w, g_b = self.gradient(W, b)
        reduced = (g_w.ravel() - cross @ (corner @ g_b)).reshape(p, K)
        schur = hessian - cross @ corner @ cross.T
        diagonal = np.einsum("ij,ikk->jk", np.square(X), of_scores)
        if self.has_intercept:
            total = np.einsum("ikk->k", of_scores)
            mean = np.einsum("ij,ikk->jk", X, of_scores)
            diagonal = np.maximum(diagonal - mean**2 / total, 1e-3 * diagonal)
        diagonal += self.problem.l2
        self.preconditioner = [np.diag(1 / column) for column in diagonal.T]
        if self.common is not None:
            matrix = self.of_the_mean(np.einsum("ikk->i", of_scores) / K)
            of_class = np.einsum("ikk->k", of_scores)
            self.preconditioner = [matrix * np.sqrt(of_class.mean() / own) for own in of_class]

        def centred(v):
            return v - v.mean(1, keepdims=True) if K > 1 else v

        # Conjugate gradients as in the textbook.
        v, r = np.zeros((p, K)), -centred(reduced)
        s = centred(self.scaled(r))
        d, rho = s, np.vdot(r, s)
        first = rho
        forcing = np.clip(0.3 * np.sqrt(first) / max(last, 1e-300), 0.02, 0.3)
        if isinstance(self.problem.loss, Squared):
            forcing = 0.0
        while rho > max(forcing**2, 1e-30) * first:  # the rest is rounding
            q = (schur @ d.ravel()).reshape(p, K)
            length = rho / np.vdot(d, q)
            v, r = v + length * d, r - length * q
            s = centred(self.scaled(r))
            new = np.vdot(r, s)
            d, rho = s + new / rho * d, new
        self.first = first
        return v, -corner @ (g_b + cross.T @ v.ravel())

    def scaled(self, r):
        """Return each class's preconditioner times its column."""
        return np.stack([P @ r[:, k] for k, P in enumerate(self.preconditioner)], axis=1)

    def of_the_mean(self, weight):
        """Return the inverse of the mean Hessian over the classes, if a fifth of it has changed."""
        if self.weight is None or np.abs(weight - self.weight).sum() > 0.2 * self.weight.sum():
            matrix = (self.X.T * weight) @ self.X
            if self.has_intercept:
                mean = weight @ self.X
                matrix -= np.outer(mean, mean) / weight.sum()
            self.weight = weight
            self.common = np.linalg.inv(matrix + self.problem.l2 * np.eye(len(matrix)))
        return self.common

    def length(self, W, b, v, c):
        """Return how far a step goes."""

        def slope(t):
            g_w, g_b = self.gradient(W + t * v, b + t * c)
            return np.vdot(g_w, v) + g_b @ c

        return length_along(lambda t: self.value(W + t * v, b + t * c), slope)


@pytest.mark.parametrize("loss", LOSSES, ids=ids)
@pytest.mark.parametrize("dense", [False, True], ids=["sparse", "dense"])
@pytest.mark.parametrize("intercept", [True, False], ids=["intercept", "none"])
def test_each_step_is_that_of_whole_matrices(monkeypatch, loss, dense, intercept):
    follow(monkeypatch, made(loss, dense=dense, intercept=intercept), dense)


@pytest.mark.parametrize("classes", [3, 12])
@pytest.mark.parametrize("intercept", [True, False], ids=["intercept", "none"])
def test_each_step_of_classes_of_dense_rows(monkeypatch, classes, intercept):
    problem = made(Softmax(classes), dense=True, intercept=intercept)
    monkeypatch.setattr(cholesky, "_RIDGE_OF_FLOAT32", 0.0)
    follow(monkeypatch, problem, dense=True, has_common=True)


def follow(monkeypatch, problem, dense, has_common=False):
    whole, loss = Whole(problem), problem.loss
    whole.common = has_common or None
    settings = Settings(tol=1e-12)
    session = Session(problem, settings)
    monkeypatch.setattr(session, "_problem", problem)  # not made dense
    plan = choose(problem)
    session.plan = replace(plan, sample_size=len(problem.target) if dense else 0)
    objective, sample = session.prepare()
    start, _ = objective.null()
    W, b = (np.asarray(part) for part in objective.scaling.to_user(start))
    last = curvature_shift = 0.0
    lengths = []
    method = NewtonCG(objective, True, True, sample if has_common else None)
    for point, _ in walk(method, start):
        got_W, got_b = objective.scaling.to_user(point.theta)
        size = max(1.0, np.abs(W).max())
        np.testing.assert_allclose(got_W, W, atol=1e-9 * size)
        np.testing.assert_allclose(got_b, b, atol=1e-9 * size)
        assert point.objective == pytest.approx(whole.value(W, b), rel=1e-12)
        v, c = whole.step(W, b, last, curvature_shift)
        if whole.first < 1e-10:
            break
        t = whole.length(W, b, v, c)
        W, b = W + t * v, b + t * c
        last = np.sqrt(whole.first)
        if t < 0.3:
            curvature_shift = min(max(2 * curvature_shift, 0.05), 0.5)
        elif t > 0.7:
            curvature_shift = curvature_shift / 4 if curvature_shift >= 0.05 else 0.0
        lengths.append(t)
    assert len(lengths) >= (1 if isinstance(loss, Squared) else 3)


@pytest.mark.parametrize("loss", LOSSES, ids=ids)
@pytest.mark.parametrize("curvature_shift", [0.0, 0.3])
def test_second_derivatives(loss, curvature_shift):
    problem = made(loss, dense=True)
    rng = np.random.default_rng(1)
    n, K = len(problem.target), loss.outputs
    scores = rng.normal(size=(n, K)) * 3
    whole = Whole(problem)
    whole.scores = lambda W, b: scores
    full = whole.of_scores(None, None, curvature_shift)
    got = loss.second_derivative(scores, problem.target, curvature_shift)
    step = rng.normal(size=(n, K))
    expected = np.einsum("ikl,il->ik", full, step)
    np.testing.assert_allclose(got.times(step), expected, rtol=1e-12, atol=1e-14)
    of_diagonal = np.einsum("ikk->ik", full)
    np.testing.assert_allclose(got.diagonal, of_diagonal, rtol=1e-12, atol=1e-14)
    share = problem.shares()
    total = np.einsum("i,ikl->kl", share, full)
    np.testing.assert_allclose(got.total(share), total, rtol=1e-12, atol=1e-15)
    single = got.astype(np.float32)
    assert single.times(step.astype(np.float32)).dtype == np.float32


def words(n=1500, p=6000, seed=0, classes=2):
    """Return raw counts: columns as words are, rows as long as texts; too many to be made dense."""
    rng = np.random.default_rng(seed)
    frequency = 1 / (np.arange(p) + 5.0)
    frequency /= frequency.sum()
    lengths = rng.lognormal(4.5, 0.7, n).astype(int) + 5
    rows = np.repeat(np.arange(n), lengths)
    columns = rng.choice(p, size=len(rows), p=frequency)
    X = csr_array((np.ones(len(rows)), (rows, columns)), shape=(n, p))
    X.sum_duplicates()
    X.indices, X.indptr = X.indices.astype(np.int32), X.indptr.astype(np.int32)
    scores = X @ rng.normal(size=(p, classes)) + rng.gumbel(size=(n, classes)) * 3
    return X, np.argmax(scores, axis=1)


@pytest.mark.full
@pytest.mark.parametrize("strength", [1, 10, 100])
@pytest.mark.parametrize("classes", [2, 5])
def test_raw_counts_are_solved_and_proven(strength, classes):
    X, y = words(classes=classes)
    loss = Softmax(classes) if classes > 2 else Logistic()
    target = y if classes > 2 else y.astype(float)
    problem = Problem(X, target, loss, 1 / (strength * len(y)))
    settings = Settings()
    solution = solve(problem, replace(settings, method="newton-cg"))
    other = solve(problem, settings)
    assert solution.method == "newton-cg"
    assert other.method == ("dual-coordinate-ascent" if strength < 100 else "newton-cg")
    for one, another in [(solution, other), (other, solution)]:
        assert one.reason is StopReason.CONVERGED
        assert one.gap <= 1e-6 * (one.history[0].objective - one.objective)
        # No way is lower than another is proven to be.
        assert another.objective >= one.objective - one.gap


@pytest.mark.slow
def test_wide_rows_of_an_unbounded_loss():
    """Epochs stopped at the first snapshot here, 33 million times what they had gained away."""
    X, _ = words()
    rng = np.random.default_rng(3)
    scores = X @ rng.normal(size=X.shape[1]) * 0.06
    problem = Problem(X, np.floor(np.exp(np.clip(scores, -5, 5))), Poisson(), 1e-4)
    solution = solve(problem, Settings())
    gained = solution.history[0].objective - solution.objective
    assert solution.reason is StopReason.CONVERGED
    assert solution.gap <= 1e-6 * gained


def test_more_digits_than_float32_has():
    X, y = words()
    problem = Problem(X, y.astype(float), Logistic(), 1e-3)
    near = solve(problem, Settings(tol=1e-12))
    rough = solve(problem, Settings(tol=1e-7))
    gained = near.history[0].objective - near.objective
    assert near.gap <= 1e-12 * gained
    assert 0 <= rough.objective - near.objective <= rough.gap <= 1e-7 * gained


@pytest.mark.slow
def test_max_time_ends_conjugate_gradients(monkeypatch):
    X, y = words()
    problem = Problem(X, y.astype(float), Logistic(), 1e-9)
    image = newton_cg._Rows.image

    def slow(rows, weights, each):
        time.sleep(0.02)
        return image(rows, weights, each)

    monkeypatch.setattr(newton_cg._Rows, "image", slow)
    begin = time.perf_counter()
    solution = solve(problem, Settings(max_time=0.5, tol=1e-12))
    assert solution.reason is StopReason.MAX_TIME
    assert time.perf_counter() - begin < 2.0


@pytest.mark.parametrize("loss", [Logistic(), Softmax(3)], ids=["logistic", "softmax"])
@pytest.mark.parametrize("dense", [False, True], ids=["sparse", "dense"])
def test_without_room_for_a_copy_the_steps_are_the_same(monkeypatch, loss, dense):
    problem = made(loss, n=600, p=30, dense=dense)
    ends = []
    for has_room in (True, False):
        objective = objective_of(problem, 600 * dense, monkeypatch)
        start, _ = objective.null()
        steps = walk(NewtonCG(objective, False, has_room), start, 1e-6)
        ends.append([point.theta for point, _ in islice(steps, 5)])
    for with_copy, without in zip(*ends, strict=True):
        np.testing.assert_array_equal(with_copy, without)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("loss", [Logistic(), Squared()], ids=["logistic", "squared"])
def test_without_a_penalty_nothing_is_said_by_numpy(loss):
    X, y = words()
    solution = solve(Problem(X, y.astype(float), loss, 0.0), Settings(max_iter=10))
    assert np.isfinite(solution.objective)


@pytest.mark.slow
def test_classes_begin_anywhere():
    """What is added to all classes alike goes, whatever the start has of it."""
    X, y = words(classes=3)
    problem = Problem(X, y, Softmax(3), 1e-4)
    solution = solve(problem, Settings(tol=1e-11))
    start = solution.coef + 0.5, solution.intercept + 3
    again = solve(problem, Settings(tol=1e-11), start)
    assert again.objective == pytest.approx(solution.objective, rel=1e-9)
    assert np.abs(again.coef.mean(axis=1)).max() < 1e-9


def objective_of(problem, size, monkeypatch):
    settings = Settings()
    session = Session(problem, settings, choose(problem))
    monkeypatch.setattr(session, "_problem", problem)  # not made dense
    session.plan = replace(session.plan, sample_size=size)
    return session.prepare()[0]


@pytest.mark.parametrize("dense", [False, True], ids=["sparse", "dense"])
def test_products_of_one_look_at_the_rows_are_those_of_the_whole_matrix(dense, monkeypatch):
    monkeypatch.setattr("provenglm.rows.blocks.constants.BLOCK_BYTES", 4096)
    monkeypatch.setattr("provenglm.rows.blocks.constants.LEAST_BLOCK_ROWS", 8)
    problem = made(Logistic(), n=300, p=20, dense=dense)
    objective = objective_of(problem, 300 * dense, monkeypatch)
    rows = newton_cg._Rows(objective, np.dtype(np.float64), True)
    assert len(rows._table.sizes) > 3
    X = np.asarray(problem.features if dense else problem.features.toarray())
    X = (
        X * objective.scaling.inverse
        - (objective.scaling.center * objective.scaling.inverse) * dense
    )
    rng = np.random.default_rng(1)
    weights, each = rng.normal(size=(20, 1)), rng.random((300, 1))
    scores, products = rows.image(weights, each)
    np.testing.assert_allclose(scores, X @ weights, atol=1e-12)
    np.testing.assert_allclose(products, X.T @ (each * (X @ weights)), atol=1e-11)
    sums, squares = rows.moments(each)
    np.testing.assert_allclose(sums, X.T @ each, atol=1e-12)
    np.testing.assert_allclose(squares, np.square(X).T @ each, rtol=1e-12)


@pytest.mark.parametrize("loss", [Squared(), Poisson()], ids=lambda loss: loss.name)
def test_a_hessian_is_not_factored_where_a_pass_is_cheaper(loss):
    rng = np.random.default_rng(0)
    n, p = 9000, 1000
    X = csr_array((np.ones(4 * n), rng.integers(0, p, 4 * n), np.arange(0, 4 * n + 1, 4)), (n, p))
    y = rng.poisson(np.exp(X @ rng.normal(size=p) * 0.4)).astype(float)
    few, many = (Problem(rows, y, loss, 1e-4) for rows in (X, csr_array((X @ X.T @ X)[:, :400])))
    assert choose(few).name == "newton-cg"
    classes = replace(few, target=(y > 0).astype(float), loss=Logistic())
    assert choose(classes).name == "newton-cg"
    assert choose(many).name == "sampled-newton"
    assert choose(replace(few, l2=0.0)).name == "sampled-newton"
    by_gradients = solve(few, Settings(tol=1e-8))
    by_a_hessian = solve(few, Settings(tol=1e-8, method="sampled-newton"))
    assert by_gradients.gap <= 1e-8 * by_gradients.history[0].objective
    assert by_gradients.objective == pytest.approx(by_a_hessian.objective, rel=1e-7)


def classes_of_dense_rows(n, p, K, strength, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.integers(0, 256, (n, p)).astype(np.uint8)
    scores = (X / 255.0 - 0.5) @ rng.normal(size=(p, K))
    return X, (strength * scores / scores.std() + rng.gumbel(size=(n, K))).argmax(axis=1)


@pytest.mark.parametrize("intercept", [True, False], ids=["intercept", "none"])
def test_the_mean_of_the_classes_hessians_on_a_sample(intercept):
    problem = problem_of(Softmax(4), n=300, p=5, l2=1e-2, weights=True, intercept=intercept)
    objective, _, sample = prepared(problem, size=80)
    sample.rare = np.arange(5) == 2
    rng = np.random.default_rng(0)
    scores = rng.normal(size=(300, 4))
    common = newton_cg._Common(sample)
    h = curvatures(objective.loss, scores, objective.target)[sample.indices]
    weight = sample.share * np.einsum("ikk->i", h) / 4
    matrix = (sample.rows.T * weight) @ sample.rows + np.diag(sample.penalty)
    matrix[2, 2] += weight.sum()
    if not intercept:
        matrix[-1, -1] = 1.0
    exact = np.linalg.inv(matrix)[:-1, :-1]
    second = objective.loss.second_derivative(scores, objective.target)
    got, longer = common.inverse(second)
    of_class = sample.share @ np.einsum("ikk->ik", h)
    np.testing.assert_allclose(longer, np.sqrt(of_class.mean() / of_class))
    np.testing.assert_allclose(got, exact, rtol=1e-8, atol=1e-9 * np.abs(exact).max())
    # Next to the same curvature: the same matrix.
    near = objective.loss.second_derivative(1.01 * scores, objective.target)
    assert common.inverse(near)[0].base is got.base
    settled = objective.loss.second_derivative(5 * scores, objective.target)
    assert common.inverse(settled)[0].base is not got.base


@pytest.mark.parametrize("dtype", ["float64", "float32", "uint8"])
@pytest.mark.parametrize("weights", [False, True])
@pytest.mark.parametrize("classes", [3, 20])
def test_classes_of_dense_rows_arrive_and_are_proven(classes, weights, dtype):
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
    solution = solve(problem, Settings(tol=1e-6, method="newton-cg"))
    best = solve(problem, Settings(tol=1e-11, method="sampled-newton"))
    gained = solution.history[0].objective - best.objective
    assert solution.gap <= 1e-6 * gained
    assert -1e-12 <= solution.objective - best.objective <= solution.gap + 1e-12


@pytest.mark.slow
def test_nearly_separable_classes_are_proven(monkeypatch):
    X, target = classes_of_dense_rows(2000, 60, 20, 8)
    problem = Problem(X, target, Softmax(20), 1 / 2000)
    best = solve(
        replace(problem, features=X.astype(float)), Settings(1e-10, method="sampled-newton")
    )
    # As with more weights: only the duality gap proves.
    monkeypatch.setattr(constants, "MOST_WEIGHTS", 0)
    solution = solve(problem, Settings(tol=1e-6, method="newton-cg"))
    gained = solution.history[0].objective - best.objective
    assert solution.gap <= 1e-6 * gained
    assert -1e-12 <= solution.objective - best.objective <= solution.gap


def test_columns_of_classes_that_the_sample_does_not_know():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(9000, 12))
    X[:, 8:] = 0
    for j in range(8, 12):
        X[rng.choice(9000, 5, replace=False), j] = 1e-3
    target = (X[:, :5] + rng.gumbel(size=(9000, 5))).argmax(axis=1)
    problem = Problem(X, target, Softmax(5), 1e-5)
    objective, null, sample = prepared(problem, size=1000)
    assert objective.rare[8:].any()
    steps = walk(NewtonCG(objective, False, True, sample), null.theta, 1e-6)
    values = [point.objective for point, _ in islice(steps, 8)]
    best = solve(problem, Settings(tol=1e-11, method="sampled-newton")).objective
    assert values[-1] - best < 1e-9
    assert np.all(np.diff(values) <= 0)
