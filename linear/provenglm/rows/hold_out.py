"""Split chunks into a training set and a test set."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.random import RandomState
from sklearn.utils import check_random_state

from provenglm.arguments import check_finite
from provenglm.rows.chunks import Chunks
from provenglm.rows.disk_checks import joined
from provenglm.rows.non_numeric import array_of
from provenglm.rows.parts import Part, cut
from provenglm.types import NumPyArray

_STRIPS = 400
"""The number of strips. A test set with a quarter of the rows then comes from a hundred places."""


def split(
    chunks: Chunks,
    arrays: Sequence[object],
    test_size: float,
    random_state: int | RandomState | None,
) -> list[Any]:
    """Return the result of :meth:`Chunks.train_test_split`."""
    meaning = "the share of the rows that are held out, below 1"
    size = check_finite("test_size", test_size, meaning, 0, above=True)
    if size >= 1:
        raise ValueError(f"test_size must be a number between 0 and 1, got {size:g}: {meaning}")
    n = len(chunks)
    if n < 2:
        raise ValueError(f"{chunks!r} has one row, and a split needs two: give more rows")
    row_arrays = [_row_array(k, array, chunks) for k, array in enumerate(arrays)]
    step = max(1, n // _STRIPS)
    starts = np.cumsum([0, *chunks.lengths])
    bounds = np.unique(np.concatenate([np.arange(0, n, step), starts]))
    strips = len(bounds) - 1
    count = min(max(1, round(size * strips)), strips - 1)
    chosen = check_random_state(random_state).permutation(strips)[:count]
    is_test = np.repeat(np.isin(np.arange(strips), chosen), np.diff(bounds))
    found: list[Any] = [chunks.made_of(_parts(chunks, kept)) for kept in (~is_test, is_test)]
    for array in row_arrays:
        found += [array[~is_test], array[is_test]]
    return found


def _row_array(k: int, array: object, chunks: Chunks) -> NumPyArray:
    values = array_of(joined(f"array {k}", array, chunks))
    if values.shape[:1] != (len(chunks),):
        raise ValueError(
            f"array {k} has the shape {values.shape}, and there are {len(chunks)} rows: give one "
            "value for each row"
        )
    return values


def _parts(chunks: Chunks, kept: NumPyArray) -> list[Part]:
    """Return the rows that are kept, as parts of consecutive rows."""
    found, first = [], 0
    for part in chunks.parts:
        own = kept[first : first + part.shape[0]].astype(np.int8)
        edges = np.diff(own, prepend=0, append=0)
        for start, stop in zip(np.flatnonzero(edges > 0), np.flatnonzero(edges < 0), strict=True):
            found.append(cut(part, int(start), int(stop)))
        first += part.shape[0]
    return found
