"""Search for the length of a step on the scores alone, without reading the rows.

Far rows have no scores. There one pass evaluates the objective at many lengths.
"""

from __future__ import annotations

import numpy as np

from provenglm import constants
from provenglm.model.losses import Loss
from provenglm.model.objective import Objective, Snapshot
from provenglm.rows.table import Block, Linear
from provenglm.types import NumPyArray

_SHORTEST, _ROUNDING = 1e-10, 1e-16
"""Steps are not tried if they are shorter than this part and promise less than this part of F."""

_LENGTHS = 2.0 ** np.arange(3, -17, -1)
"""The lengths at which the objective is evaluated in one pass, if rows are not in memory."""


def slope_at(
    objective: Objective, gradient: NumPyArray, theta: NumPyArray, change: NumPyArray
) -> float:
    """Return the slope of the objective along `change`, just before `theta`.

    Parameters
    ----------
    gradient : numpy.ndarray, theta's shape
        The gradient of the smooth part at `theta`.
    """
    if objective.l1 is None:
        return float(np.vdot(gradient, change))
    # Most features do not move.
    moves = np.nonzero(change)
    l1, theta, change = objective.l1[moves[0]], theta[moves], change[moves]
    sign = np.where(theta == 0, -np.sign(change), np.sign(theta))
    return float(gradient[moves] @ change + (l1 * sign) @ change)


def length_of(
    objective: Objective,
    point: Snapshot,
    change: NumPyArray,
    along: NumPyArray | None,
    fall: float,
    end: float | None = None,
) -> float:
    """Return the approximate length that minimises the objective along a step.

    A length is accepted if the slope is at most `SLOPE` times the initial slope.

    Parameters
    ----------
    change : numpy.ndarray, theta's shape
        The step.
    along : numpy.ndarray, (n, K), optional
        The change of the scores by the whole step; None if rows are not in memory.
    fall : float
        Minus the slope at the beginning.
    end : float, optional
        The slope at the end of the whole step, if it is known.

    Returns
    -------
    float
        The length, which may exceed 1. It is 0 if no part of the step leads lower.
    """
    theta, penalty = point.theta, objective.penalty[:, None]
    at_start = 0.5 * float((penalty * theta * theta).sum())
    penalty_slope = float((penalty * theta * change).sum())
    square = float((penalty * change * change).sum())
    l1 = None if objective.l1 is None else objective.l1[:, None]

    def at(lengths: NumPyArray) -> tuple[NumPyArray, NumPyArray]:
        """Return the objective and the slope at each length."""
        if along is None:
            found = objective.sum(
                far_values, objective.loss, objective.model(change), lengths, at=point
            )
        else:
            found = objective.sum(values, lengths, at=point)
        value = found[0] + at_start + lengths * (penalty_slope + 0.5 * lengths * square)
        slope = found[1] + penalty_slope + lengths * square
        if l1 is not None:
            for k, length in enumerate(lengths):
                there = theta + length * change
                value[k] += float((l1 * np.abs(there)).sum())
                slope[k] += float((l1 * np.sign(there) * change).sum())
        return value, slope

    def values(block: Block, lengths: NumPyArray) -> NumPyArray:
        assert along is not None
        return _values(block, objective.loss, along[block.part], lengths)

    if along is None:
        most = 1.0 if objective.l1 is not None else np.inf
        return _best_of(*at(_LENGTHS[most >= _LENGTHS]), point.objective, -fall)
    low, high = (0.0, -fall), (np.inf, np.inf)
    length = 1.0
    if end is not None and not end < 0:
        high = 1.0, end
        length = _between(low, high)
    elif end is not None:
        low, length = (1.0, end), 2.0
    if objective.l1 is not None and length > 1:
        return 1.0
    best, least, rose = 0.0, point.objective, None
    for _ in range(constants.MOST_STEPS):
        value, here = (float(each[0]) for each in at(np.array([length])))
        if value < least:
            best, least = length, value
        is_lower = value <= point.objective
        if abs(here) <= constants.SLOPE * fall and (here <= 0 or is_lower):
            return length
        # The slope of an end that stays twice is halved (Illinois): it may be much steeper, and the
        # interval would shrink by only a few per cent at a time.
        if here < 0 and is_lower:
            low = length, here
            if rose is False:
                high = high[0], 0.5 * high[1]
        else:
            high = length, here if 0 <= here < np.inf else np.inf
            if rose:
                low = low[0], 0.5 * low[1]
        rose = not here < 0
        length = _between(low, high)
        if length < _SHORTEST and not length * fall > _ROUNDING * abs(point.objective):
            break
        if objective.l1 is not None and length > 1:
            return 1.0
    return best


def _values(block: Block, loss: Loss, step: NumPyArray, lengths: NumPyArray) -> NumPyArray:
    """Return the sums of the losses and of their slopes along a step of the scores, (2, m)."""
    found = np.empty((2, len(lengths)))
    for k, length in enumerate(lengths.tolist()):
        with np.errstate(over="ignore", invalid="ignore"):
            value, residual = loss.value_and_residual(
                block.scores + length * step, block.exact_target
            )
            residual *= step
            found[:, k] = block.share @ value, block.share @ residual.sum(axis=1)
    return found


def far_values(block: Block, loss: Loss, change: Linear, lengths: NumPyArray) -> NumPyArray:
    """Return the result of the function above for a step of the model."""
    return _values(block, loss, block.products(change), lengths)


def _best_of(values: NumPyArray, slopes: NumPyArray, start: float, slope: float) -> float:
    """Return the best of `_LENGTHS`, or a length between it and the next; 0 if none is lower.

    Parameters
    ----------
    values, slopes : numpy.ndarray
        The objective and its slope at the last of `_LENGTHS`.
    start, slope : float
        The objective and its slope at length 0.
    """
    lengths = _LENGTHS[len(_LENGTHS) - len(values) :]
    values = np.where(np.isnan(values), np.inf, values)
    best = int(np.argmin(values))
    if not values[best] < start:
        return 0.0
    here = float(lengths[best]), float(slopes[best])
    if here[1] < 0:
        further = best - 1
        if further < 0 or not np.isfinite(slopes[further]) or slopes[further] <= 0:
            return here[0]
        return _between(here, (float(lengths[further]), float(slopes[further])))
    shorter = best + 1
    low = (0.0, slope) if shorter == len(lengths) else (lengths[shorter], slopes[shorter])
    return _between((float(low[0]), float(low[1])), here) if low[1] < 0 else here[0]


def _between(low: tuple[float, float], high: tuple[float, float]) -> float:
    """Return the next length between two lengths, each given with its slope."""
    (start, falls), (end, rises) = low, high
    if end == np.inf:
        return 2 * start
    if rises == np.inf:
        return start + 0.1 * (end - start)
    return start + (end - start) * float(np.clip(falls / (falls - rises), 0.05, 0.95))
