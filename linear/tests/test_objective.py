"""The full pass against the textbook's on whole arrays, for every kind of features."""

import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
from linear_oracle import LOSSES, NAMES, Dense, prepared, problem_of, residuals, values
from provenglm.constants import BLOCK_BYTES
from provenglm.model.losses import Logistic, Poisson, Softmax, Squared
from provenglm.model.objective import Scaling
from provenglm.model.problem import Problem
from provenglm.model.sampling import prepare
from provenglm.rows.products import dense_products
from provenglm.workers import Workers

MANY = pytest.mark.parametrize("loss", LOSSES, ids=NAMES)


def _plain(problem):
    return problem


def _small_numbers(problem):
    """As uint8 would have them: 0 to 5."""
    X = np.clip(np.round(problem.features), 0, 5)
    return replace(problem, features=X.astype(np.uint8))


def _read_only(problem):
    X = problem.features.copy()
    X.flags.writeable = False
    return replace(problem, features=X)


def _with(problem, columns):
    return replace(problem, features=np.column_stack([problem.features, *columns]))


KINDS = {
    "float64": _plain,
    "float32": lambda q: replace(q, features=q.features.astype(np.float32)),
    "float16": lambda q: replace(q, features=q.features.astype(np.float16)),
    "uint8": _small_numbers,
    "int64": lambda q: replace(q, features=np.round(q.features).astype(np.int64)),
    "bool": lambda q: replace(q, features=q.features > 0.5),
    "F-order": lambda q: replace(q, features=np.asfortranarray(q.features)),
    "strided": lambda q: replace(q, features=np.repeat(q.features, 2, axis=1)[::-1, ::2][::-1]),
    "read-only": _read_only,
    "offset": lambda q: replace(q, features=1.7e9 + 1e5 * q.features),
    "offset, narrow": lambda q: replace(q, features=1.7e9 + q.features),
    "offset, float32": lambda q: replace(q, features=(1e3 + q.features).astype(np.float32)),
    "constant": lambda q: _with(q, [np.full(len(q.target), 3.25), np.zeros(len(q.target))]),
    "duplicate": lambda q: _with(q, [q.features[:, 0], -2 * q.features[:, 1]]),
    "scales": lambda q: replace(q, features=q.features * 10.0 ** np.arange(-4, 5, 4)),
    "weights": lambda q: replace(q, sample_weight=np.random.default_rng(5).random(len(q.target))),
    "weights and zeros": lambda q: replace(q, sample_weight=np.arange(len(q.target)) % 3.0),
    "no intercept": lambda q: replace(q, fit_intercept=False),
    "no intercept, offset": lambda q: replace(
        q, features=100 + q.features, fit_intercept=False, l2=1e-2
    ),
    "no penalty": lambda q: replace(q, l2=0.0),
}


def eps_of(problem):
    """The rounding of the dtype in which the pass reads the features."""
    exact = np.can_cast(problem.features.dtype, np.float32)
    return np.finfo(np.float32 if exact else np.float64).eps


def some_theta(objective, null, seed=1):
    rng = np.random.default_rng(seed)
    theta = null.theta + 0.5 * rng.normal(size=null.theta.shape)
    theta[:-1] *= objective.scaling.inverse[:, None] > 0
    if not objective.intercept:
        theta[-1] = 0
    return theta


def naive(problem, objective, theta):
    """Value, gradient and scores at theta; the value's terms and the sizes of the gradient's."""
    scaling = objective.scaling
    dense = Dense.of(problem, scaling.center, scaling.inverse)
    r = residuals(problem.loss, dense.scores(theta), problem.target)
    size = np.abs(dense.X).T @ np.abs(r * dense.share[:, None])
    size += dense.penalty[:, None] * np.abs(theta)
    terms = dense.share * values(problem.loss, dense.scores(theta), problem.target)
    return dense.value(theta), dense.gradient(theta), dense.scores(theta), terms, size


@pytest.mark.parametrize("kind", KINDS)
@MANY
def test_full_pass(loss, kind):
    problem = KINDS[kind](problem_of(loss, n=300, p=3, l2=1e-2))
    objective, null, _ = prepared(problem)
    theta = some_theta(objective, null)
    snapshot = objective.snapshot(theta)
    value, gradient, scores, terms, size = naive(problem, objective, theta)
    of_value, dense_value = np.abs(terms).sum(), terms.sum()
    # A score is a sum of x w and of the offset's c w, which cancel: rounding is relative to those.
    eps = eps_of(problem) if objective.rows.dtype == np.float32 else np.finfo(np.float64).eps
    X = np.abs(problem.features.astype(np.float64))
    cancelled = 1.0
    if not objective.centered:
        weights = np.abs(objective.scaling.to_user(theta)[0])
        cancelled += (X @ weights).max() + (np.abs(objective.scaling.center) @ weights).max()
    tol = 20 * eps * cancelled
    np.testing.assert_allclose(snapshot.scores, scores, rtol=0, atol=tol)
    # A change of the scores changes the loss by at most its slope, the residual by its curvature.
    bend = np.abs(residuals(loss, scores, problem.target)).max() + 1
    of_penalty = value - dense_value
    assert abs(snapshot.objective - value) <= tol * (of_value + bend + of_penalty)
    relative = np.abs(snapshot.gradient - gradient) / (size + 1e-300)
    used = np.append(objective.scaling.inverse > 0, objective.intercept)
    # The sums of x r lose what the centre's share cancels, once more.
    lost = 1.0
    if not objective.centered:
        lost += (np.abs(objective.scaling.center) * objective.scaling.inverse).max(initial=0)
    assert relative[used].max() <= tol * (bend + lost)
    assert np.all(snapshot.gradient[~used] == 0)


@pytest.mark.parametrize("kind", KINDS)
@MANY
def test_null_model(loss, kind):
    problem = KINDS[kind](problem_of(loss, n=300, p=3, l2=1e-2))
    objective, snapshot, _ = prepared(problem)
    theta, value = objective.null()
    assert not theta[:-1].any()
    assert snapshot.objective == pytest.approx(value, rel=float(20 * eps_of(problem)))
    # It has the best intercept.
    assert np.abs(snapshot.gradient[-1]).max() < 50 * eps_of(problem)


@pytest.mark.parametrize("kind", KINDS)
@MANY
def test_moments_come_with_the_first_pass(loss, kind):
    problem = KINDS[kind](problem_of(loss, n=300, p=3, l2=1e-2))
    objective, _, _ = prepared(problem)
    dense = Dense.of(problem, objective.scaling.center, objective.scaling.inverse)
    target = problem.target
    target = np.eye(loss.outputs)[target] if loss.outputs > 1 else target[:, None]
    mean, of_target = dense.share @ dense.X[:, :-1], (dense.X[:, :-1].T * dense.share) @ target
    lost = 1.0
    if not objective.centered:
        lost += (np.abs(objective.scaling.center) * objective.scaling.inverse).max()
    eps = np.finfo(objective.rows.dtype).eps
    tol = 20 * eps * lost * (1 + np.abs(target).max())
    np.testing.assert_allclose(objective.moments[0], mean, rtol=0, atol=tol)
    np.testing.assert_allclose(objective.moments[1], of_target, rtol=0, atol=tol)


@pytest.mark.parametrize("kind", KINDS)
def test_scaling_is_mean_and_deviation(kind):
    problem = KINDS[kind](problem_of(Squared(), n=300, p=3))
    objective, _, _ = prepared(problem)
    X, share = problem.features.astype(np.float64), problem.shares()
    mean = share @ X if problem.fit_intercept else np.zeros(X.shape[1])
    scale = np.sqrt(share @ (X - mean) ** 2)
    constant = np.ptp(X, axis=0) == 0 if problem.fit_intercept else scale == 0
    np.testing.assert_array_equal(objective.scaling.inverse == 0, constant)
    used = ~constant
    # The mean of numbers of 1.7e9 is good to 2e-7.
    tol = 1e-6 if "offset" in kind else 1e-12
    np.testing.assert_allclose(objective.scaling.inverse[used] * scale[used], 1, rtol=tol)
    np.testing.assert_allclose(objective.scaling.center[used], mean[used], rtol=tol, atol=tol)


@MANY
def test_coordinates_there_and_back(loss):
    problem = KINDS["offset"](problem_of(loss, p=3))
    objective, null, _ = prepared(problem)
    theta = some_theta(objective, null)
    again = objective.scaling.from_user(*objective.scaling.to_user(theta))
    # The intercept for rows with an offset of 1.7e4 deviations.
    np.testing.assert_allclose(again, theta, atol=1e-11)


def test_a_column_that_is_left_out_has_no_weight():
    scaling = Scaling(np.array([1.0, 2.0]), np.array([0.0, 0.5]))
    weights, intercept = scaling.to_user(np.array([[3.0], [4.0], [5.0]]))
    assert weights.tolist() == [[0.0], [2.0]]
    assert intercept == [5.0 - 4.0]
    theta = scaling.from_user(np.array([[7.0], [2.0]]), np.ones(1))
    assert theta[0] == 0


@pytest.mark.parametrize("dtype", ["uint8", "float32", "float64"])
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("loss", [Logistic(), Squared(), Softmax(3)], ids=lambda one: one.name)
def test_rows_are_never_copied_whole(loss, dtype, order):
    rng = np.random.default_rng(0)
    X = np.asarray(rng.integers(0, 200, (100_000, 40)), dtype, order=order)
    target = rng.integers(0, loss.outputs, len(X)) if loss.outputs > 1 else (X[:, 0] > 99) * 1.0
    problem = Problem(X, target, loss, 1e-3)
    tracemalloc.start()
    objective, null, _ = prepared(problem, size=1000)
    objective.snapshot(null.theta)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    # What is left has a number or a few for each row: targets, shares, scores and their moments.
    of_rows = len(X) * 8 * (8 + 4 * loss.outputs)
    assert peak < of_rows + 6 * BLOCK_BYTES
    assert peak < 32e6 / 2 + 1e6 * loss.outputs


@MANY
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_two_threads_give_the_bits_of_one(loss, dtype):
    rng = np.random.default_rng(0)
    problem = problem_of(loss, n=60_000, p=20, weights=True, dtype=dtype)
    results = []
    for count in (1, 2):
        workers = Workers(problem.features.size, threads=count)
        with workers.running():
            assert (workers._pool is not None) == (count == 2)
            objective, null, _ = prepared(problem, workers)
            theta = null.theta + rng.normal(size=null.theta.shape) * 0.0 + 0.1
            results.append([null, objective.snapshot(theta)])
    for one, two in zip(*results, strict=True):
        assert one.objective == two.objective
        assert np.array_equal(one.gradient, two.gradient)
        assert np.array_equal(one.scores, two.scores)


def test_passes_are_counted():
    # The sample, here of all rows, and a snapshot.
    objective, null, _ = prepared(problem_of(Poisson(), n=40), size=10)
    assert objective.passes == 1.25
    objective.snapshot(null.theta)
    assert objective.passes == 2.25


@pytest.mark.parametrize("p", [1, 7, 1499, 1500, 1601])
@pytest.mark.parametrize("layout", ["rows", "columns", "read only"])
def test_products_of_dense_rows_with_several_numbers(p, layout):
    rng = np.random.default_rng(p)
    X, numbers = rng.normal(size=(11, p)), rng.normal(size=(3, 22))[:, ::2]
    X = np.asfortranarray(X) if layout == "columns" else X
    X.flags.writeable = layout != "read only"
    expected = [
        [sum(r * x for r, x in zip(row, X[:, j], strict=True)) for j in range(p)] for row in numbers
    ]
    np.testing.assert_allclose(dense_products(X, numbers), expected, rtol=0, atol=1e-13)


@pytest.mark.parametrize("intercept", [True, False])
def test_a_snapshot_at_known_scores(intercept):
    rng = np.random.default_rng(0)
    X, weight = rng.normal(size=(50, 4)) + 3, rng.random(50)
    problem = Problem(X, rng.normal(size=50) + 5, Squared(), 0.1, weight, intercept, l1=0.01)
    theta = np.append(rng.normal(size=4), 0.5 if intercept else 0.0)[:, None]
    snapshots, moments = [], []
    for knows_scores in (False, True):
        objective, _ = prepare(problem, Workers(1), 20, np.random.default_rng(0), precise=True)
        scores = objective.snapshot(theta).scores
        if knows_scores:
            objective.moments = None
            snapshots.append(objective.at_scores(theta, scores))
        else:
            snapshots.append(objective.snapshot(theta))
        moments.append(objective.moments)
    first, second = snapshots
    assert second.objective == pytest.approx(first.objective, rel=1e-14)
    np.testing.assert_allclose(second.gradient, first.gradient, rtol=0, atol=1e-13)
    for own, other in zip(*moments, strict=True):
        np.testing.assert_allclose(own, other, rtol=0, atol=1e-13)
