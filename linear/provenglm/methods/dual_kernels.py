"""Epochs of dual coordinate ascent, compiled by Numba.

A row's step is the optimum of the dual along its own residual, by Newton's method: with the mean q
of the row and the curvature c of its dual, it solves q' = mean(z - c (q' - q)). The Hessian uses
the larger of q and mean(z) for each class: with mean(z) alone, a row that is far on the wrong side
would overshoot; with q alone, a row whose mean is near 0 would not move.

Residuals are stored, u = q - y, because 1 - mean loses all digits in float32 if the mean is close
to 1.

Indices are unsigned, so that they are not tested for negative values.
"""

from __future__ import annotations

import numpy as np

from provenglm.compiled import njit
from provenglm.types import NumPyArray

ROWS = 8
"""Number of consecutive rows in a block; the blocks are visited in random order. Single rows took
1.4 times as long because they wait for memory; with 32 rows an epoch gained less."""

_CLOSE = 0.25
"""The inner iteration of a row stops after a step that moves no score by more than this. Text of
two classes with C = 100 took 70 epochs with this value and with half of it, and 77 with twice as
much."""

_STEPS = 10
"""The largest number of Newton steps per row. One is enough after the first epochs; with a limit of
one, text of two classes with C = 10 took 2 epochs more."""

_LEAST = 1e-3
"""One step leaves at least this part of a mean."""

_TINY = 1e-30


@njit(nogil=True, error_model="numpy")
def logistic(
    data: NumPyArray,
    indices: NumPyArray,
    indptr: NumPyArray,
    target: NumPyArray,
    share: NumPyArray,
    curvature: NumPyArray,
    blocks: NumPyArray,
    residual: NumPyArray,
    weights: NumPyArray,
    bias: NumPyArray,
    offset: NumPyArray,
    weight_rate: float,
    bias_rate: float,
) -> tuple[float, float, float]:
    """Take a step for each row, in place; return the mean loss and two distances.

    The loss and the distances are measured at each row before its step. A distance is the duality
    gap that a proof would find, by the residuals at the scores or by those of the dual. The second
    is smaller, by a factor that grows with the curvature of the dual.

    Parameters
    ----------
    curvature : numpy.ndarray, (n,)
        The curvature of the dual: the decrease of a row's score if its own residual grows by 1.
    blocks : numpy.ndarray
        The order of the blocks of rows.
    residual : numpy.ndarray, (n,)
        The rows' residuals in the dual. Times the sign of its target, each is the probability of
        the other class.
    weights : numpy.ndarray, (p,)
        The weights of the dual's residuals.
    bias : numpy.ndarray, (1,)
        The intercept, in float64 because it is the sum of many small steps.
    offset : numpy.ndarray, (n,) or (0,)
        The offsets of the scores in float64; empty if there are none.
    weight_rate, bias_rate : float
        The decrease of the weights and of the intercept per residual times its share.
    """
    number, has_offset = weights.dtype.type, len(offset) > 0
    one, least, tiny = number(1), number(_LEAST), number(_TINY)
    value = distance = dual_distance = 0.0
    intercept = bias[0]
    n = np.uint64(len(share))
    for block in blocks:
        begin = np.uint64(block) * np.uint64(ROWS)
        for i in range(begin, min(begin + np.uint64(ROWS), n)):
            start, stop = np.uint64(indptr[i]), np.uint64(indptr[i + np.uint64(1)])
            score = number(intercept + offset[i]) if has_offset else number(intercept)
            for at in range(start, stop):
                score += data[at] * weights[np.uint64(indices[at])]
            c, sign = curvature[i], one - target[i] - target[i]
            score, q = sign * score, sign * residual[i]
            for step in range(_STEPS):
                small = np.exp(-abs(score))
                p = (one if score >= 0 else small) / (one + small)
                first, second = max(p, q), max(one - p, one - q)
                h = first * second / (first + second)
                rest = p - q
                if step == 0:
                    value += share[i] * (np.log1p(small) + max(score, number(0)))
                    square = share[i] * rest * rest / 2
                    dual_distance += square / (h + tiny)
                    distance += square * (one / (h + tiny) + c)
                new = q + rest / (one + c * h)
                new = min(max(new, least * q), one - least * (one - q))
                moved = c * (new - q)
                score -= moved
                q = new
                if abs(moved) < number(_CLOSE):
                    break
            change = share[i] * (sign * q - residual[i])
            residual[i] = sign * q
            intercept -= bias_rate * change
            change *= number(-weight_rate)
            for at in range(start, stop):
                weights[np.uint64(indices[at])] += data[at] * change
    bias[0] = intercept
    return value, distance, dual_distance


@njit(nogil=True, error_model="numpy")
def _best(
    score: NumPyArray, u: NumPyArray, step: NumPyArray, slope: NumPyArray, c: float, own: np.uint64
) -> tuple[float, float, float]:
    """Move a row's residuals u to the optimum of the dual, in place; all arrays are (K,).

    The residual of the row's own class is minus the sum of the others. If a row is on the right
    side, its mean is close to 1, and the mean alone would lose the digits of the difference.

    Returns
    -------
    tuple of float
        The loss and twice both distances, at the scores before the step.
    """
    number = score.dtype.type
    one, zero, least, tiny = number(1), number(0), number(_LEAST), number(_TINY)
    outputs = np.uint64(len(score))
    loss = first = first_dual = zero
    u_own, u[own] = u[own], zero
    for count in range(_STEPS):
        top = score[0]
        for k in range(outputs):
            top = max(top, score[k])
        for k in range(outputs):
            slope[k] = np.exp(score[k] - top)
        p_own, slope[own] = slope[own], zero
        others = zero
        for k in range(outputs):
            others += slope[k]
        inverse = one / (others + p_own)
        if count == 0 and p_own > tiny:
            loss = np.log1p(others / p_own)
        elif count == 0:
            loss = np.log(others) + top - score[own]
        p_own *= inverse
        # (diag(1 / h) + c) step = (p - q) / h + a constant, chosen such that the step sums to 0.
        q_own = one + u_own
        rest, h_own = -others * inverse - u_own, max(p_own, q_own)
        damping = one / (one + c * h_own)
        square, dual_distance = rest * rest, rest * rest / (h_own + tiny)
        step_own, slope_own = rest * damping, h_own * damping
        shift, sum_of_slopes = step_own, slope_own
        for k in range(outputs):
            p = slope[k] * inverse
            rest, h = p - u[k], max(p, u[k])
            damping = one / (one + c * h)
            square += rest * rest
            dual_distance += rest * rest / (h + tiny)
            step[k], slope[k] = rest * damping, h * damping
            shift += step[k]
            sum_of_slopes += slope[k]
        if count == 0:
            first, first_dual = dual_distance + c * square, dual_distance
        shift /= sum_of_slopes
        others = zero
        for k in range(outputs):
            step[k] = max(u[k] + step[k] - shift * slope[k], least * u[k])
            others += step[k]
        new_own = max(q_own + step_own - shift * slope_own, least * q_own)
        inverse = one / (others + new_own)
        farthest = zero
        for k in range(outputs):
            new = step[k] * inverse
            moved = c * (new - u[k])
            score[k] -= moved
            u[k] = new
            farthest = max(farthest, abs(moved))
        moved = c * (-others * inverse - u_own)
        score[own] -= moved
        u_own = -others * inverse
        if max(farthest, abs(moved)) < number(_CLOSE):
            break
    u[own] = u_own
    return loss, first, first_dual


@njit(nogil=True, error_model="numpy")
def softmax(
    data: NumPyArray,
    indices: NumPyArray,
    indptr: NumPyArray,
    target: NumPyArray,
    share: NumPyArray,
    curvature: NumPyArray,
    blocks: NumPyArray,
    residual: NumPyArray,
    weights: NumPyArray,
    bias: NumPyArray,
    offset: NumPyArray,
    weight_rate: float,
    bias_rate: float,
) -> tuple[float, float, float]:
    """Run `logistic` for classes: `residual` and `offset` are (n, K), `weights` is (p, K)."""
    number, has_offset = weights.dtype.type, len(offset) > 0
    outputs = np.uint64(len(bias))
    score, u = np.empty(len(bias), weights.dtype), np.empty(len(bias), weights.dtype)
    step, slope = np.empty(len(bias), weights.dtype), np.empty(len(bias), weights.dtype)
    value = distance = dual_distance = 0.0
    n = np.uint64(len(share))
    for block in blocks:
        begin = np.uint64(block) * np.uint64(ROWS)
        for i in range(begin, min(begin + np.uint64(ROWS), n)):
            start, stop = np.uint64(indptr[i]), np.uint64(indptr[i + np.uint64(1)])
            for k in range(outputs):
                score[k] = number(bias[k] + offset[i, k]) if has_offset else number(bias[k])
                u[k] = residual[i, k]
            for at in range(start, stop):
                x, j = data[at], np.uint64(indices[at])
                for k in range(outputs):
                    score[k] += x * weights[j, k]
            loss, square, dual_square = _best(
                score, u, step, slope, curvature[i], np.uint64(target[i])
            )
            value += share[i] * loss
            distance += share[i] * square / 2
            dual_distance += share[i] * dual_square / 2
            for k in range(outputs):
                change = share[i] * (u[k] - residual[i, k])
                residual[i, k] = u[k]
                bias[k] -= bias_rate * change
                step[k] = number(-weight_rate) * change
            for at in range(start, stop):
                x, j = data[at], np.uint64(indices[at])
                for k in range(outputs):
                    weights[j, k] += x * step[k]
    return value, distance, dual_distance


@njit(nogil=True, error_model="numpy", fastmath={"reassoc", "contract"})
def softmax_dense(
    rows: NumPyArray,
    target: NumPyArray,
    share: NumPyArray,
    curvature: NumPyArray,
    order: NumPyArray,
    residual: NumPyArray,
    weights: NumPyArray,
    bias: NumPyArray,
    offset: NumPyArray,
    weight_rate: float,
    bias_rate: float,
) -> tuple[float, float, float]:
    """Run `softmax` for dense rows (n, p), one by one; `weights` is (K, p).

    The weights of a class are contiguous, so that its score is a dot product of contiguous vectors:
    for ten classes an epoch takes a third of the time, and less time than BLAS needs for a
    gradient.
    """
    number, has_offset = weights.dtype.type, len(offset) > 0
    outputs, columns = weights.shape
    score, u = np.empty(outputs, weights.dtype), np.empty(outputs, weights.dtype)
    step, slope = np.empty(outputs, weights.dtype), np.empty(outputs, weights.dtype)
    value = distance = dual_distance = 0.0
    for i in order:
        for k in range(outputs):
            total = number(0)
            for j in range(columns):
                total += rows[i, j] * weights[k, j]
            score[k] = total + number(bias[k] + offset[i, k] if has_offset else bias[k])
            u[k] = residual[i, k]
        loss, square, dual_square = _best(score, u, step, slope, curvature[i], np.uint64(target[i]))
        value += share[i] * loss
        distance += share[i] * square / 2
        dual_distance += share[i] * dual_square / 2
        for k in range(outputs):
            change = share[i] * (u[k] - residual[i, k])
            residual[i, k] = u[k]
            bias[k] -= bias_rate * change
            change *= number(-weight_rate)
            for j in range(columns):
                weights[k, j] += rows[i, j] * change
    return value, distance, dual_distance
