"""Coordinates of sparse columns: the user's own, but for columns that would outweigh the others."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.sparse import csr_array

from provenglm.model.objective import Scaling
from provenglm.rows.csr import made_of
from provenglm.rows.far import AnyTable
from provenglm.rows.products import column_moments, column_squares
from provenglm.rows.table import Block
from provenglm.types import NumPyArray

_HEAVY = 0.3
"""A column with more than this part of the total variance of all lighter ones would set the length
of every step alone. Such columns have much more, so that half or twice of it is the same."""

_LEAST_DEVIATION = 1e-7
"""Of a column's size: less is rounding."""

_LARGEST = 1e100
"""Whose square and whose sum of squares are numbers, too."""


def coordinates(table: AnyTable, intercept: bool) -> Scaling:
    """Return the coordinates in which no column outweighs all the others.

    Text has columns of one kind: there it is the identity, and nothing is copied. A time in seconds
    beside it has more variance than all words, and a step that does not overshoot along it leads
    nowhere else. Such columns are divided by a power of two, and centred where they have no zeros.
    """
    p = table.rows.shape[1]
    scaling = Scaling(np.zeros(p), np.ones(p))
    unit = max(1.0, max(table.sum(_largest)) / _LARGEST)
    size = table.sum(_squares, unit)
    rising = np.sort(size[size > 0])
    lighter = np.concatenate([[0.0], np.cumsum(rising)[:-1]])
    # Among the lightest each may be much heavier than those before it.
    is_heavy = rising > _HEAVY * lighter
    is_heavy[: (len(rising) + 1) // 2] = False
    if not is_heavy.any():
        return scaling
    first = int(np.argmax(is_heavy))
    wanted = np.sqrt(_HEAVY * lighter[first]) / 2
    heavy = np.flatnonzero(size >= rising[first])
    square, is_full = size[heavy], np.zeros(len(heavy), bool)
    if intercept:
        mean = np.zeros(p)
        stored, mean[heavy], _ = table.sum(_moments, unit, mean, heavy)
        square = table.sum(_moments, unit, mean, heavy)[2]
        square = np.maximum(square, np.square(_LEAST_DEVIATION * mean[heavy]))
        is_full = stored == table.n
        scaling.center[heavy] = np.where(is_full, mean[heavy] * unit, 0)
    is_wide = (square > wanted**2) & (wanted > 0)
    ratio = wanted / np.sqrt(square[is_wide])
    scaling.inverse[heavy[is_wide]] = np.exp2(np.ceil(np.log2(ratio)))
    return scaling


def _largest(block: Block) -> list[float]:
    raw: Any = block.raw
    data = raw.data
    return [max(float(data.max(initial=0)), -float(data.min(initial=0)))]


def _squares(block: Block, unit: float) -> NumPyArray:
    """Return the sums of the columns' squares times the shares, in units."""
    return column_squares(_in_units(block, unit), block.share)


def _moments(
    block: Block, unit: float, center: NumPyArray, wanted: NumPyArray
) -> tuple[NumPyArray, NumPyArray, NumPyArray]:
    """Return how many numbers some columns store, and `column_moments`, in units."""
    rows = _in_units(block, unit)
    stored = np.bincount(rows.indices, minlength=rows.shape[1])[wanted]
    return stored, *column_moments(rows, block.share, center, wanted)


def _in_units(block: Block, unit: float) -> csr_array:
    """Return sparse features divided by a number, in float64."""
    raw: Any = block.raw
    data = np.divide(raw.data, unit, dtype=np.float64)
    return made_of(data, raw.indices, raw.indptr, raw.shape)
