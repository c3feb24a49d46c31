"""Epochs of dual coordinate ascent, compiled by Numba.

A row's step is the optimum of the dual along its own residual, by Newton's method: with the mean q
that the row had and the curvature c of its dual, it solves q' = mean(z - c (q' - q)). The Hessian
is that of the larger of q and mean(z) for each class: with mean(z) alone a row that is far on the
wrong side would overshoot, with q alone one whose mean is next to 0 would not move.

Indices are unsigned, so that none is tested for being negative.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from provenglm.types import NumPyArray

ROWS = 8
"""Rows that follow each other in a block; the blocks come in random order. Rows one by one took 1.4
times as long, for they wait for memory; with 32 an epoch gained less."""

_CLOSE = 0.25
"""A step that moves no score by more is the last of a row. Text of two classes with C = 100 took 70
epochs with this and with half of it, and 77 with twice as much."""

_STEPS = 10
"""Of Newton's method for a row, at most. One is enough but in the first epochs; with no more than
one there, text of two classes with C = 10 took 2 epochs more."""

_LEAST = 1e-3
"""Of a mean: what is left of it, at least, by one step."""

_TINY = 1e-30


@njit(cache=True, nogil=True, error_model="numpy")
def logistic(
    data: NumPyArray,
    indices: NumPyArray,
    indptr: NumPyArray,
    target: NumPyArray,
    share: NumPyArray,
    curvature: NumPyArray,
    blocks: NumPyArray,
    mean: NumPyArray,
    weights: NumPyArray,
    bias: NumPyArray,
    of_weights: float,
    of_bias: float,
) -> tuple[float, float]:
    """Take a step for each row, in place; return mean loss and distance, as they were met.

    Parameters
    ----------
    curvature : numpy.ndarray, (n,)
        Of the dual: by how much a row's score falls if its own residual grows by 1.
    blocks : numpy.ndarray
        The order of the blocks of rows.
    mean : numpy.ndarray, (n,)
        Each row's probability of class 1: its residual in the dual, plus its target.
    weights : numpy.ndarray, (p,)
        Those of the dual's residuals.
    bias : numpy.ndarray, (1,)
        In float64: it is the sum of many small steps.
    of_weights, of_bias : float
        By how much weights and bias fall with a residual times its share.
    """
    number = weights.dtype.type
    one, least, tiny = number(1), number(_LEAST), number(_TINY)
    value = distance = 0.0
    intercept = bias[0]
    n = np.uint64(len(share))
    for block in blocks:
        begin = np.uint64(block) * np.uint64(ROWS)
        for i in range(begin, min(begin + np.uint64(ROWS), n)):
            start, stop = np.uint64(indptr[i]), np.uint64(indptr[i + np.uint64(1)])
            score = number(intercept)
            for at in range(start, stop):
                score += data[at] * weights[np.uint64(indices[at])]
            c, q = curvature[i], mean[i]
            for step in range(_STEPS):
                small = np.exp(-abs(score))
                p = (one if score >= 0 else small) / (one + small)
                first, second = max(p, q), max(one - p, one - q)
                h = first * second / (first + second)
                rest = p - q
                if step == 0:
                    loss = np.log1p(small) + max(score, number(0)) - target[i] * score
                    value += share[i] * loss
                    distance += share[i] * rest * rest * (one / (h + tiny) + c) / 2
                new = q + rest / (one + c * h)
                new = min(max(new, least * q), one - least * (one - q))
                moved = c * (new - q)
                score -= moved
                q = new
                if abs(moved) < number(_CLOSE):
                    break
            change = share[i] * (q - mean[i])
            mean[i] = q
            intercept -= of_bias * change
            change *= number(-of_weights)
            for at in range(start, stop):
                weights[np.uint64(indices[at])] += data[at] * change
    bias[0] = intercept
    return value, distance


@njit(cache=True, nogil=True, error_model="numpy")
def _best(
    score: NumPyArray, q: NumPyArray, step: NumPyArray, slope: NumPyArray, c: float, own: np.uint64
) -> tuple[float, float]:
    """Move a row's mean q to the optimum of the dual, in place; all (K,).

    Returns
    -------
    tuple of float
        Of the scores as they came: the loss, and twice the distance.
    """
    number = score.dtype.type
    one, least, tiny = number(1), number(_LEAST), number(_TINY)
    outputs = np.uint64(len(score))
    loss = square_at_first = number(0)
    for count in range(_STEPS):
        top = score[0]
        for k in range(outputs):
            top = max(top, score[k])
        total = number(0)
        for k in range(outputs):
            slope[k] = np.exp(score[k] - top)
            total += slope[k]
        # (diag(1 / h) + c) step = (p - q) / h + a constant, so that the step's sum is 0.
        shift = sum_of_slopes = square = number(0)
        inverse = one / total
        for k in range(outputs):
            p = slope[k] * inverse
            rest, h = p - q[k], max(p, q[k])
            part = one / (one + c * h)
            square += rest * rest * (one / (h + tiny) + c)
            step[k], slope[k] = rest * part, h * part
            shift += step[k]
            sum_of_slopes += slope[k]
        if count == 0:
            loss, square_at_first = np.log(total) + top - score[own], square
        shift /= sum_of_slopes
        total = number(0)
        for k in range(outputs):
            step[k] = max(q[k] + step[k] - shift * slope[k], least * q[k])
            total += step[k]
        inverse = one / total
        farthest = number(0)
        for k in range(outputs):
            new = step[k] * inverse
            moved = c * (new - q[k])
            score[k] -= moved
            q[k] = new
            farthest = max(farthest, abs(moved))
        if farthest < number(_CLOSE):
            break
    return loss, square_at_first


@njit(cache=True, nogil=True, error_model="numpy")
def softmax(
    data: NumPyArray,
    indices: NumPyArray,
    indptr: NumPyArray,
    target: NumPyArray,
    share: NumPyArray,
    curvature: NumPyArray,
    blocks: NumPyArray,
    mean: NumPyArray,
    weights: NumPyArray,
    bias: NumPyArray,
    of_weights: float,
    of_bias: float,
) -> tuple[float, float]:
    """Do what `logistic` does, of classes: `mean` is (n, K), `weights` (p, K), `bias` (K,)."""
    number = weights.dtype.type
    outputs = np.uint64(len(bias))
    score, q = np.empty(len(bias), weights.dtype), np.empty(len(bias), weights.dtype)
    step, slope = np.empty(len(bias), weights.dtype), np.empty(len(bias), weights.dtype)
    value = distance = 0.0
    n = np.uint64(len(share))
    for block in blocks:
        begin = np.uint64(block) * np.uint64(ROWS)
        for i in range(begin, min(begin + np.uint64(ROWS), n)):
            start, stop = np.uint64(indptr[i]), np.uint64(indptr[i + np.uint64(1)])
            for k in range(outputs):
                score[k] = number(bias[k])
                q[k] = mean[i, k]
            for at in range(start, stop):
                x, j = data[at], np.uint64(indices[at])
                for k in range(outputs):
                    score[k] += x * weights[j, k]
            loss, square = _best(score, q, step, slope, curvature[i], np.uint64(target[i]))
            value += share[i] * loss
            distance += share[i] * square / 2
            for k in range(outputs):
                change = share[i] * (q[k] - mean[i, k])
                mean[i, k] = q[k]
                bias[k] -= of_bias * change
                step[k] = number(-of_weights) * change
            for at in range(start, stop):
                x, j = data[at], np.uint64(indices[at])
                for k in range(outputs):
                    weights[j, k] += x * step[k]
    return value, distance


@njit(cache=True, nogil=True, error_model="numpy", fastmath={"reassoc", "contract"})
def softmax_dense(
    rows: NumPyArray,
    target: NumPyArray,
    share: NumPyArray,
    curvature: NumPyArray,
    order: NumPyArray,
    mean: NumPyArray,
    weights: NumPyArray,
    bias: NumPyArray,
    of_weights: float,
    of_bias: float,
) -> tuple[float, float]:
    """Do what `softmax` does, for dense rows (n, p) one by one; `weights` is (K, p).

    A class's weights lie side by side, so that its score is a sum of products of vectors: for ten
    classes an epoch takes a third of the time, and less than BLAS needs for a gradient.
    """
    number = weights.dtype.type
    outputs, columns = weights.shape
    score, q = np.empty(outputs, weights.dtype), np.empty(outputs, weights.dtype)
    step, slope = np.empty(outputs, weights.dtype), np.empty(outputs, weights.dtype)
    value = distance = 0.0
    for i in order:
        for k in range(outputs):
            total = number(0)
            for j in range(columns):
                total += rows[i, j] * weights[k, j]
            score[k] = total + number(bias[k])
            q[k] = mean[i, k]
        loss, square = _best(score, q, step, slope, curvature[i], np.uint64(target[i]))
        value += share[i] * loss
        distance += share[i] * square / 2
        for k in range(outputs):
            change = share[i] * (q[k] - mean[i, k])
            mean[i, k] = q[k]
            bias[k] -= of_bias * change
            change *= number(-of_weights)
            for j in range(columns):
                weights[k, j] += rows[i, j] * change
    return value, distance
