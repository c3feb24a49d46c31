"""Coordinates of sparse columns: only columns that outweigh all others are scaled."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.sparse import csr_array

from provenglm.model.objective import Scaling
from provenglm.rows.csr import csr_from_parts
from provenglm.rows.products import column_moments, column_squares
from provenglm.rows.remote import AnyTable
from provenglm.rows.table import Block
from provenglm.types import NumPyArray

_HEAVY = 0.3
"""A column with more than this part of the total variance of all lighter columns would alone set
the length of every step. Such columns usually have far more, so that half or twice this value makes
no difference."""

_LEAST_DEVIATION = 1e-7
"""A smaller deviation, relative to the column's mean, is rounding and is replaced by this."""

_LARGEST = 1e100
"""Numbers up to this size have squares, and sums of squares, that do not overflow."""


def as_they_are(table: AnyTable) -> Scaling:
    """Return the user's coordinates, with the size of each column."""
    p = table.rows.shape[1]
    unit = max(1.0, max(table.sum(_largest)) / _LARGEST)
    size = np.sqrt(table.sum(_squares, unit)) * unit
    return Scaling(np.zeros(p), np.ones(p), size)


def coordinates(table: AnyTable, user: Scaling, intercept: bool) -> Scaling:
    """Return coordinates in which no column outweighs all others.

    For text alone they are the identity, and nothing is copied. But a column with a time in seconds
    has more variance than all words together: a step that is short enough for this column hardly
    moves along any other. Such columns are divided by a power of two, and centred if they have no
    zeros.

    Parameters
    ----------
    table : Table
    user : Scaling
        The result of `as_they_are`.
    intercept : bool
    """
    scaling = Scaling(user.center.copy(), user.inverse.copy(), user.known_size)
    assert user.known_size is not None
    p = len(user.center)
    unit = max(1.0, float(user.known_size.max()) / _LARGEST)
    size = np.square(user.known_size / unit)
    rising = np.sort(size[size > 0])
    lighter = np.concatenate([[0.0], np.cumsum(rising)[:-1]])
    # The lightest columns are not compared: each may be much heavier than those before it.
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
    return csr_from_parts(data, raw.indices, raw.indptr, raw.shape)
