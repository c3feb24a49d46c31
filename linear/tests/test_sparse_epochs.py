"""Epochs of sparse rows against a dense loop in float64, step by step."""

import numpy as np
import pytest
from provenglm.constants import Constants
from provenglm.losses import Huber, Logistic, Poisson, Softmax, Squared
from provenglm.sparse.sparse_epochs import Batch, Frame, Measure, Start, compact, run_epoch
from provenglm.workers import Workers
from scipy import sparse

N, P, K = 60, 23, 4
LOSSES = [Logistic(), Softmax(K), Squared(), Huber(0.7), Poisson()]


def make(loss, seed=0, dtype=np.float64):
    rng = np.random.default_rng(seed)
    matrix = sparse.random_array((N, P), density=0.2, rng=rng, format="csr")
    matrix = sparse.csr_array(matrix.astype(dtype))
    if isinstance(loss, Softmax):
        target = rng.integers(K, size=N)
    elif isinstance(loss, Logistic):
        target = rng.integers(2, size=N).astype(float)
    elif isinstance(loss, Poisson):
        target = rng.poisson(1.0, N).astype(float)
    else:
        target = rng.normal(size=N)
    share = rng.exponential(size=N)
    share /= share.sum()
    outputs = (K,) if loss.outputs > 1 else ()
    theta = 0.3 * rng.normal(size=(P + 1, *outputs))
    return matrix, target, share, theta


def full(loss, matrix, target, share, theta, penalty):
    """Return scores, residuals and gradient, dense."""
    dense = np.column_stack([matrix.toarray(), np.ones(N)])
    scores = dense @ theta
    residual = loss.residual(scores, target)
    gradient = dense.T @ (residual.T * share).T + (theta.T * np.append(penalty, 0)).T
    return scores, residual, gradient


def naive(loss, matrix, target, share, theta, penalty, parts, frame, numbers):
    """Yield the displacement after each step: the rows centred, dense, theta itself moved."""
    dense = matrix.toarray() - frame.center
    inverse = np.ones(P) if frame.inverse is None else frame.inverse
    _, _, gradient = full(loss, matrix, target, share, theta, penalty)
    drift = gradient[:-1] - np.multiply.outer(frame.center, gradient[-1])
    # In the centred coordinates: beta = b + c W.
    start = theta.copy()
    start[-1] += frame.center @ theta[:-1]
    ahead, last = start.copy(), start.copy()
    for j, part in enumerate(parts):
        rows = dense[part]
        old = loss.residual(rows @ start[:-1] + start[-1], target[part])
        new = loss.residual(rows @ ahead[:-1] + ahead[-1], target[part])
        weight = share[part] * N / len(rows)
        change = ((new - old).T * weight).T
        of_weights = rows.T @ change + (penalty * (ahead[:-1] - start[:-1]).T).T + drift
        of_bias = change.sum(axis=0) + gradient[-1]
        after = ahead.copy()
        after[:-1] -= numbers.step_size * (inverse * of_weights.T).T
        after[-1] -= frame.intercept * of_bias
        momentum = min((j + 1) / (j + 4), numbers.momentum)
        ahead = after + momentum * (after - last)
        last = after
        moved = last - start
        moved[-1] -= frame.center @ moved[:-1]
        yield moved


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.name)
@pytest.mark.parametrize("metric", ["identity", "diagonal"])
@pytest.mark.parametrize("intercept", [True, False])
def test_each_step_equals_a_dense_loop(loss, metric, intercept):
    matrix, target, share, theta = make(loss)
    rng = np.random.default_rng(1)
    penalty = np.full(P, 0.01) if metric == "identity" else rng.uniform(0.001, 0.02, P)
    if not intercept:
        theta[-1] = 0
    scores, residual, gradient = full(loss, matrix, target, share, theta, penalty)
    if not intercept:
        gradient[-1] = 0
    outputs = theta.shape[1:]
    frame = Frame(
        center=rng.normal(size=P) * 0.1 if intercept else np.zeros(P),
        inverse=None if metric == "identity" else rng.uniform(0.5, 2, P),
        intercept=np.full(outputs, 0.7) if intercept else np.zeros(outputs),
    )
    numbers = Constants(1.0, 1.0, 12, 5, 0.3, 0.6)
    parts = [slice(12 * k, 12 * k + 12) for k in (3, 0, 4, 1, 2)]

    def batch(first, end):
        part = slice(first, end)
        return Batch(part, matrix[part], matrix[part].T, target[part], share[part] * N / 12)

    whole = [[batch(part.start, part.stop)] for part in parts]
    cut = [[batch(part.start, part.start + 5), batch(part.start + 5, part.stop)] for part in parts]
    expected = naive(loss, matrix, target, share, theta, penalty, parts, frame, numbers)
    if not intercept:
        expected = (without_drift(each) for each in expected)
    for count, moved in enumerate(expected, 1):
        start = Start(scores, residual, gradient)
        for batches in (whole, cut):
            result = run_epoch(loss, batches[:count], start, frame, penalty, numbers, Workers(0))
            np.testing.assert_allclose(result, moved, rtol=1e-10, atol=1e-12)


def without_drift(moved):
    assert np.all(moved[-1] == 0)
    return moved


def test_float32_stays_near_float64():
    loss = Softmax(K)
    matrix, target, share, theta = make(loss)
    penalty = np.full(P, 0.01)
    scores, residual, gradient = full(loss, matrix, target, share, theta, penalty)
    frame = Frame(np.full(P, 0.05), None, np.full(K, 0.5))
    numbers = Constants(1.0, 1.0, 20, 3, 0.3, 0.6)
    results = []
    for dtype in (np.float64, np.float32):
        x = sparse.csr_array(matrix.astype(dtype))
        batches = []
        for k in range(3):
            part = slice(20 * k, 20 * k + 20)
            weight = (share[part] * N / 20).astype(dtype)
            batches.append([Batch(part, x[part], x[part].T, target[part], weight)])
        start = Start(scores.astype(dtype), residual.astype(dtype), gradient)
        results.append(run_epoch(loss, batches, start, frame, penalty, numbers, Workers(0)))
    assert results[1].dtype == np.float64
    np.testing.assert_allclose(results[1], results[0], atol=2e-6)


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.name)
@pytest.mark.parametrize("diagonal", [False, True])
def test_smoothness_is_that_of_the_dense_hessian(loss, diagonal):
    matrix, target, share, theta = make(loss)
    penalty = np.full(P, 0.01)
    scores = matrix @ theta[:-1] + theta[-1]
    weight = share * N
    measure = Measure(loss, matrix, target, weight, scores)
    frame = measure.frame(True, penalty, diagonal)
    gradient = np.random.default_rng(2).normal(size=theta.shape)
    found = measure.smoothness(frame, penalty, gradient)
    inverse = np.ones(P) if frame.inverse is None else frame.inverse
    assert np.all(inverse > 0)
    root = np.sqrt(inverse)
    rows = (matrix.toarray() - frame.center) * root
    if isinstance(loss, Softmax):
        probability = loss.probability(scores)
        hessian = np.zeros((P * K, P * K))
        of_a_row = []
        for row, p, s in zip(rows, probability, share, strict=True):
            block = np.kron(np.outer(row, row), np.diag(p) - np.outer(p, p))
            hessian += s * block
            of_a_row.append(N * s * np.linalg.eigvalsh(block)[-1])
    else:
        curvature = loss.weight_in_hessian(scores, target)
        hessian = (rows.T * (share * curvature)) @ rows
        of_a_row = N * share * curvature * np.square(rows).sum(axis=1)
    exact = np.linalg.eigvalsh(hessian)[-1]
    most = float((penalty * inverse).max())
    assert 0.8 * exact <= found <= 1.0001 * (exact + most)
    largest = measure.largest_of_a_row(frame)
    # For classes a bound.
    assert np.max(of_a_row) <= 1.0001 * largest
    if loss.outputs == 1:
        np.testing.assert_allclose(largest, np.max(of_a_row), rtol=1e-10)


def test_compact_leaves_out_empty_columns():
    dense = np.zeros((5, 9))
    dense[1, 3], dense[4, 7], dense[4, 0] = 1, 2, 3
    matrix, columns = compact(sparse.csr_array(dense))
    np.testing.assert_array_equal(columns, [0, 3, 7])
    np.testing.assert_array_equal(matrix.toarray(), dense[:, [0, 3, 7]])
