"""Whole runs over sparse rows with many columns, against Newton's method in float64.

Both ways: by dual coordinate ascent where the loss and the penalty allow it, else by conjugate
gradients.
"""

import numpy as np
import pytest
from provenglm.model.losses import Huber, Logistic, Poisson, Softmax, Squared
from provenglm.model.problem import Problem
from provenglm.model.solution import Settings, StopReason
from provenglm.solve import solve
from scipy import sparse
from scipy.sparse.linalg import LinearOperator, cg

N, P, K = 3200, 2600, 3
LOSSES = [Logistic(), Softmax(K), Squared(), Huber(0.5), Poisson()]
ids = [loss.name for loss in LOSSES]


def make(loss, seed=0, weighted=False, l2=1e-3, scales=False):
    rng = np.random.default_rng(seed)
    frequency = 1 / (np.arange(P) + 10.0)
    frequency /= frequency.sum()
    rows = np.repeat(np.arange(N), 12)
    columns = rng.choice(P, size=len(rows), p=frequency)
    matrix = sparse.csr_array((rng.uniform(0.2, 1, len(rows)), (rows, columns)), shape=(N, P))
    matrix.sum_duplicates()
    norms = np.sqrt(np.asarray(matrix.multiply(matrix).sum(axis=1)).ravel())
    matrix.data /= np.repeat(norms, np.diff(matrix.indptr))
    if scales:
        factor = 10.0 ** rng.uniform(-1, 1, P)
        matrix.data *= factor[matrix.indices]
    matrix.indices = matrix.indices.astype(np.int32)
    matrix.indptr = matrix.indptr.astype(np.int32)
    outputs = loss.outputs
    truth = rng.normal(size=(P, outputs)) * 2
    scores = matrix @ truth / (10 if scales else 1)
    if isinstance(loss, Softmax):
        target = np.argmax(scores + rng.gumbel(size=scores.shape), axis=1)
    elif isinstance(loss, Logistic):
        target = (scores[:, 0] + rng.logistic(size=N) > 1).astype(float)
    elif isinstance(loss, Poisson):
        target = rng.poisson(np.exp(np.clip(scores[:, 0], -3, 2))).astype(float)
    else:
        target = scores[:, 0] + rng.standard_t(3, N) + 1
    weight = rng.exponential(size=N) * (rng.random(N) > 0.1) if weighted else None
    return Problem(matrix, target, loss, l2, weight)


def exact(problem):
    """Return weights, intercept and objective of the optimum: Newton, conjugate gradients."""
    loss, share, target = problem.loss, problem.shares(), problem.target
    rows = sparse.hstack(
        [problem.features, np.full((N, 1), float(problem.fit_intercept))], format="csr"
    )
    theta = np.zeros((P + 1, loss.outputs))
    penalty = np.append(np.full(P, problem.l2), 0.0 if problem.fit_intercept else 1.0)
    penalty = penalty[:, None]

    def value(at):
        scores = rows @ at
        return share @ loss.value(scores, target) + 0.5 * (penalty * at * at).sum()

    for _ in range(60):
        scores = rows @ theta
        gradient = rows.T @ (loss.residual(scores, target).T * share).T + penalty * theta
        if np.abs(gradient).max() < 1e-14:
            break

        def times(vector, scores=scores, shape=theta.shape):
            vector = vector.reshape(shape)
            change = rows @ vector
            if loss.outputs > 1:
                p = loss.probability(scores)
                change = p * (change - (p * change).sum(axis=1, keepdims=True))
            else:
                curvature = loss.curvature(scores, target)
                change = np.maximum(curvature, 1e-6) * change
            return (rows.T @ (change.T * share).T + penalty * vector + 1e-13 * vector).ravel()

        operator = LinearOperator((theta.size, theta.size), matvec=times, dtype=np.float64)
        step = cg(operator, gradient.ravel(), rtol=1e-4, maxiter=300)[0].reshape(theta.shape)
        length = 1.0
        now = value(theta)
        while value(theta - length * step) > now + 1e-15 and length > 1e-6:
            length /= 2
        theta = theta - length * step
    return theta[:-1], theta[-1], value(theta)


def run(problem, **settings):
    records = []
    solution = solve(problem, Settings(watch=records.append, **settings))
    return solution, records


def ways(loss):
    """Return the methods that a fit may end by: the dual hands over near the optimum."""
    return (
        ("dual-coordinate-ascent", "newton-cg")
        if isinstance(loss, Logistic | Softmax)
        else ("newton-cg",)
    )


@pytest.mark.slow
@pytest.mark.parametrize("loss", LOSSES, ids=ids)
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("l2", [1e-3, 4e-6])
def test_the_optimum_of_another_solver(loss, weighted, l2):
    problem = make(loss, weighted=weighted, l2=l2)
    weights, intercept, objective = exact(problem)
    # The dual ends as soon as it is near enough, Newton's steps much nearer.
    tol = 1e-14 if isinstance(loss, Logistic | Softmax) else 1e-13
    solution, records = run(problem, tol=tol, max_iter=400)
    assert solution.method in ways(loss)
    assert solution.reason.is_success, solution.reason
    np.testing.assert_allclose(solution.coef, weights, atol=1e-6 * np.abs(weights).max())
    shift = intercept - solution.intercept
    shift = shift - shift.mean() * (len(shift) > 1)
    np.testing.assert_allclose(shift, 0, atol=1e-6 * np.abs(weights).max())
    assert solution.objective <= objective + 1e-12
    # The certificate is proven at each snapshot, and the first tol is kept.
    for record in records:
        distance = record.objective - objective
        assert record.gap >= distance - 1e-8 * abs(objective)


@pytest.mark.parametrize("loss", LOSSES, ids=ids)
@pytest.mark.parametrize("l2", [1e-3, 1e-5])
def test_the_default_tolerance_is_kept(loss, l2):
    problem = make(loss, seed=3, l2=l2)
    objective = exact(problem)[2]
    solution, records = run(problem)
    assert solution.reason is StopReason.CONVERGED
    gained = records[0].objective - objective
    assert solution.objective - objective <= 1e-6 * gained
    assert len(records) < 60


@pytest.mark.parametrize("loss", LOSSES[:3], ids=ids[:3])
def test_without_an_intercept(loss):
    problem = make(loss)
    problem = Problem(problem.features, problem.target, loss, problem.l2, None, False)
    weights, _, _ = exact(problem)
    solution, _ = run(problem, tol=1e-12)
    assert np.all(solution.intercept == 0)
    np.testing.assert_allclose(solution.coef, weights, atol=1e-6 * np.abs(weights).max())


def test_scales_that_are_apart():
    problem = make(Logistic(), scales=True, l2=1e-4)
    objective = exact(problem)[2]
    solution, records = run(problem)
    assert len(records) < 30
    assert solution.reason is StopReason.CONVERGED
    assert solution.objective - objective <= 1e-6 * (records[0].objective - objective)


def test_the_same_seed_gives_the_same_bits_and_another_one_the_same_optimum():
    problem = make(Softmax(K))
    given = {"tol": 1e-10}
    first, again, other = (run(problem, seed=seed, **given)[0] for seed in (1, 1, 2))
    np.testing.assert_array_equal(first.coef, again.coef)
    assert np.any(first.coef != other.coef)
    np.testing.assert_allclose(first.coef, other.coef, atol=1e-4 * np.abs(first.coef).max())


def test_rows_that_are_sorted_by_class():
    problem = make(Logistic())
    order = np.argsort(problem.target, kind="stable")
    moved = Problem(
        sparse.csr_array(problem.features[order]), problem.target[order], problem.loss, problem.l2
    )
    solution, _ = run(moved, tol=1e-10)
    reference, _ = run(problem, tol=1e-10)
    np.testing.assert_allclose(
        solution.coef, reference.coef, atol=1e-4 * np.abs(reference.coef).max()
    )
    # The scores are those of the rows as they were given.
    scores = moved.features @ solution.coef + solution.intercept
    np.testing.assert_allclose(solution.scores, scores, atol=1e-6)


def test_a_start_is_kept():
    problem = make(Logistic())
    solution, records = run(problem, tol=1e-8)
    again = solve(problem, Settings(tol=1e-6), (solution.coef, solution.intercept))
    assert len(again.history) <= 3
    assert again.history[0].objective <= records[0].objective


@pytest.mark.parametrize("loss", [Logistic(), Softmax(K)], ids=["logistic", "softmax"])
def test_float32_features_are_as_good(loss):
    problem = make(loss)
    single = Problem(problem.features.astype(np.float32), problem.target, problem.loss, problem.l2)
    solution, _ = run(single)
    assert solution.reason is StopReason.CONVERGED
    double = solve(problem, Settings(tol=1e-8))
    assert abs(solution.objective - double.objective) <= solution.gap + 1e-7 * double.objective


def test_columns_of_zeros_have_no_weight():
    problem = make(Squared(), l2=0.0)
    features = problem.features.tolil()
    features[:, 5] = 0
    features = sparse.csr_array(features)
    features.eliminate_zeros()
    problem = Problem(features, problem.target, problem.loss, 1e-3)
    solution, _ = run(problem)
    assert np.all(solution.coef[5] == 0)


@pytest.mark.slow
@pytest.mark.parametrize("loss", LOSSES, ids=ids)
def test_the_score_table_is_that_of_the_weights_to_the_end(loss):
    problem = make(loss, l2=1e-4)
    solution, records = run(problem, tol=1e-8, max_iter=40)
    scores = problem.features @ solution.coef + solution.intercept
    np.testing.assert_allclose(solution.scores, scores, atol=2e-5 * np.abs(scores).max())
    value = loss.value(scores, problem.target).mean() + 0.5e-4 * np.square(solution.coef).sum()
    np.testing.assert_allclose(solution.objective, value, rtol=1e-7)
    least = exact(problem)[2]
    assert all(record.gap >= record.objective - least - 1e-7 * abs(least) for record in records)
    assert all(record.objective >= least - 1e-7 * abs(least) for record in records)
