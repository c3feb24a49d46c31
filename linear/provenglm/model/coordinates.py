"""Coordinates of sparse columns: the user's own, but for columns that would outweigh the others."""

from __future__ import annotations

import numpy as np

from provenglm.model.objective import Scaling
from provenglm.rows.csr import CsrRows, made_of, transposed
from provenglm.types import NumPyArray

_HEAVY = 0.3
"""A column with more than this part of the total variance of all lighter ones would set the length
of every step alone. Such columns have much more, so that half or twice of it is the same."""

_LEAST_DEVIATION = 1e-7
"""Of a column's size: less is rounding."""

_LARGEST = 1e100
"""Whose square and whose sum of squares are numbers, too."""


def coordinates(rows: CsrRows, share: NumPyArray, intercept: bool) -> Scaling:
    """Return the coordinates in which no column outweighs all the others.

    Text has columns of one kind: there it is the identity, and nothing is copied. A time in seconds
    beside it has more variance than all words, and a step that does not overshoot along it leads
    nowhere else. Such columns are divided by a power of two, and centred where they have no zeros.
    """
    p = rows.shape[1]
    scaling = Scaling(np.zeros(p), np.ones(p))
    size, unit = _mean_squares(rows, share)
    rising = np.sort(size[size > 0])
    lighter = np.concatenate([[0.0], np.cumsum(rising)[:-1]])
    # Among the lightest each may be much heavier than those before it.
    is_heavy = rising > _HEAVY * lighter
    is_heavy[: (len(rising) + 1) // 2] = False
    if not is_heavy.any():
        return scaling
    first = int(np.argmax(is_heavy))
    wanted = np.sqrt(_HEAVY * lighter[first]) / 2 * unit
    for column in np.flatnonzero(size >= rising[first]).tolist():
        center, deviation = _moments(rows, share, column, intercept)
        scaling.center[column] = center
        if deviation > wanted > 0:
            scaling.inverse[column] = np.exp2(np.ceil(np.log2(wanted / deviation)))
    return scaling


def _mean_squares(rows: CsrRows, share: NumPyArray) -> tuple[NumPyArray, float]:
    """Return the mean square of each column, and the unit in which it is."""
    parts = rows.slices()
    largest = 0.0
    for part in parts:
        data = rows.block(part).data
        largest = max(largest, float(data.max(initial=0)), -float(data.min(initial=0)))
    unit = max(1.0, largest / _LARGEST)
    total = np.zeros(rows.shape[1])
    for part in parts:
        block = rows.block(part)
        data = block.data if unit == 1 else block.data / unit
        numbers = np.square(data, dtype=np.float64)
        total += (
            transposed(made_of(numbers, block.indices, block.indptr, block.shape)) @ share[part]
        )
    return total, unit


def _moments(rows: CsrRows, share: NumPyArray, column: int, intercept: bool) -> tuple[float, float]:
    """Return what is to be taken off a column, and its deviation from its mean."""
    values = np.zeros(rows.shape[0])
    stored = 0
    for part in rows.slices():
        block = rows.block(part)
        at = np.flatnonzero(block.indices == column)
        where = np.searchsorted(block.indptr, at, side="right") - 1
        values[part.start + where] = block.data[at]
        stored += len(at)
    total = float(share.sum()) or 1.0
    largest = float(np.abs(values).max(initial=0))
    if not intercept or not largest > 0:
        return 0.0, largest * float(np.sqrt(share @ np.square(values / (largest or 1)) / total))
    values /= largest
    mean = float(share @ values) / total
    deviation = max(
        float(np.sqrt(share @ np.square(values - mean) / total)), _LEAST_DEVIATION * abs(mean)
    )
    is_far = stored == len(values)
    return (mean * largest if is_far else 0.0), deviation * largest


def are_of_the_user(scaling: Scaling) -> bool:
    """Whether theta is what the user calls coefficients."""
    return bool((scaling.inverse == 1).all()) and not scaling.center.any()


def in_coordinates(values: NumPyArray, columns: NumPyArray, scaling: Scaling) -> NumPyArray:
    """Return stored numbers, (q,), in the coordinates; those that are not stored stay 0."""
    if are_of_the_user(scaling):
        return values
    return np.asarray((values - scaling.center[columns]) * scaling.inverse[columns])
