"""Search for the length of a step on the scores alone, without reading the rows."""

from __future__ import annotations

import numpy as np

from provenglm import constants
from provenglm.model.objective import Objective, Snapshot, of_rows
from provenglm.rows.blocks import parts_of
from provenglm.types import NumPyArray

_SHORTEST, _ROUNDING = 1e-10, 1e-16
"""Steps are not tried if they are shorter than this part and promise less than this part of F."""


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
    along: NumPyArray,
    fall: float,
    end: float | None = None,
) -> float:
    """Return the approximate length that minimises the objective along a step.

    A length is accepted if the slope is at most `SLOPE` times the initial slope.

    Parameters
    ----------
    change : numpy.ndarray, theta's shape
        The step.
    along : numpy.ndarray, the scores' shape
        The change of the scores by the whole step.
    fall : float
        Minus the slope at the beginning.
    end : float, optional
        The slope at the end of the whole step, if it is known.

    Returns
    -------
    float
        The length, which may exceed 1. It is 0 if no part of the step leads lower.
    """
    theta, penalty = point.theta, objective.used(point.theta)
    at_start = 0.5 * float((penalty * theta * theta).sum())
    of_penalty = float((penalty * theta * change).sum())
    square = float((penalty * change * change).sum())
    l1 = None if objective.l1 is None else of_rows(objective.l1, theta)
    parts = parts_of(objective.n, objective.loss.outputs)

    def at(length: float) -> tuple[float, float]:
        """Return the objective and the slope."""

        def of_part(part: slice) -> NumPyArray:
            share, step = objective.share[part], along[part]
            with np.errstate(over="ignore", invalid="ignore"):
                value, residual = objective.loss.value_and_residual(
                    point.scores[part] + length * step, objective.target[part]
                )
                residual *= step
                rise = residual.reshape(len(share), -1).sum(axis=1)
                return np.array([share @ value, share @ rise])

        value = at_start + length * (of_penalty + 0.5 * length * square)
        slope = of_penalty + length * square
        for of_value, of_slope in objective.workers.map(of_part, parts):
            value, slope = value + of_value, slope + of_slope
        if l1 is not None:
            there = theta + length * change
            value += float((l1 * np.abs(there)).sum())
            slope += float((l1 * np.sign(there) * change).sum())
        return value, slope

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
        value, here = at(length)
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


def _between(low: tuple[float, float], high: tuple[float, float]) -> float:
    """Return the next length between two lengths, each given with its slope."""
    (start, falls), (end, rises) = low, high
    if end == np.inf:
        return 2 * start
    if rises == np.inf:
        return start + 0.1 * (end - start)
    return start + (end - start) * float(np.clip(falls / (falls - rises), 0.05, 0.95))
