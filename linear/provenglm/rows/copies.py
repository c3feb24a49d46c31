"""Copies of rows in coordinates, as a whole or a part at a time."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.sparse import csr_array, issparse

from provenglm.rows import reading
from provenglm.rows.base import Features, Rows
from provenglm.rows.blocks import slices_of
from provenglm.rows.centred import (
    Coordinates,
    Scaled,
    in_coordinates,
    is_identity,
    write_centred,
)
from provenglm.rows.csr import CsrRows, csr_from_parts
from provenglm.rows.dense import DenseRows
from provenglm.types import NumPyArray
from provenglm.workers import Workers

_FAR_OUT = 1e30
"""Larger numbers are cut in float32: they are so extreme that any such number will do."""


class ScaledRows:
    """Rows in coordinates. A block is computed each time it is read.

    Parameters
    ----------
    rows : Rows
    coordinates : Coordinates
    dtype : numpy dtype
        The dtype of the blocks.
    """

    is_on_disk = False

    def __init__(self, rows: Rows, coordinates: Coordinates, dtype: np.dtype[Any]) -> None:
        self._rows, self._coordinates, self.dtype = rows, coordinates, dtype
        self.shape, self.is_sparse = rows.shape, rows.is_sparse

    def slices(self) -> list[slice]:
        """Return the blocks of one pass, in order."""
        n, p = self.shape
        return (
            reading.slices(self._rows) if self.is_sparse else slices_of(n, p, self.dtype.itemsize)
        )

    def block(self, rows: slice) -> Features:
        """Return the rows of a slice in coordinates."""
        block = reading.block(self._rows, rows)
        if isinstance(block, csr_array):
            data = in_coordinates(block.data, block.indices, self._coordinates)
            data = data.astype(self.dtype, copy=False)
            return csr_from_parts(data, block.indices, block.indptr, block.shape)
        return self._write(block, np.empty(block.shape, self.dtype))

    def precise(self) -> ScaledRows:
        """Return the same rows with blocks in float64."""
        return ScaledRows(self._rows, self._coordinates, np.dtype(np.float64))

    def copied(self, workers: Workers) -> Features:
        """Return all rows of data in memory; sparse rows without a change are not copied."""
        if not isinstance(self._rows, CsrRows):
            copy = np.empty(self.shape, self.dtype)

            def fill(part: slice) -> None:
                self._write(reading.block(self._rows, part), copy[part])

            for _ in workers.map(fill, reading.slices(self._rows)):
                pass
            return copy
        whole = self._rows.features
        if is_identity(self._coordinates):
            data = whole.data.astype(self.dtype, copy=False)
        else:
            blocks = workers.map(lambda part: self.block(part).data, self.slices())
            data = np.concatenate(list(blocks))
        return csr_from_parts(data, whole.indices, whole.indptr, whole.shape)

    def _write(self, block: NumPyArray, out: NumPyArray) -> NumPyArray:
        with np.errstate(over="ignore"):
            write_centred(block, self._coordinates, out)
        if out.dtype == np.float32:
            np.clip(out, -_FAR_OUT, _FAR_OUT, out=out)
        return out


def dense_part(
    rows: Rows,
    part: slice,
    coordinates: Coordinates,
    beside: int = 0,
    chosen: NumPyArray | None = None,
) -> NumPyArray:
    """Return consecutive rows in coordinates, dense and in float64.

    Parameters
    ----------
    beside : int
        The number of further columns, which are unset.
    chosen : numpy.ndarray, (c,), optional
        The indices of the columns to copy; by default all of them.
    """
    count, width = part.stop - part.start, rows.shape[1]
    if chosen is not None:
        coordinates, width = _some(coordinates, chosen), len(chosen)
    found = np.empty((count, width + beside))
    for piece in slices_of(count, rows.shape[1], rows.dtype.itemsize):
        block: Any = reading.block(rows, slice(part.start + piece.start, part.start + piece.stop))
        block = block.toarray() if issparse(block) else block
        block = block if chosen is None else block[:, chosen]
        write_centred(block, coordinates, found[piece, :width])
    return found


def write_columns(
    rows: Rows, chosen: NumPyArray, coordinates: Coordinates, out: NumPyArray, workers: Workers
) -> None:
    """Write some columns of dense rows in coordinates to `out`, (c, n)."""

    def fill(part: slice) -> None:
        if isinstance(rows, DenseRows):
            out[:, part] = rows.columns(part, chosen)
        else:
            out[:, part] = np.asarray(reading.block(rows, part))[:, chosen].T

    for _ in workers.map(fill, reading.slices(rows)):
        pass
    center, inverse = _some(coordinates, chosen)
    out -= center[:, None]
    out *= inverse[:, None]


def _some(coordinates: Coordinates, chosen: NumPyArray) -> Scaled:
    return Scaled(coordinates.center[chosen], coordinates.inverse[chosen])


def arrays_of(rows: Rows) -> tuple[NumPyArray, ...]:
    """Return the arrays of rows in memory for compiled loops, in the stored dtype.

    They are one array (n, p), or the values, columns and row starts of sparse rows.
    """
    if isinstance(rows, CsrRows):
        return rows.parts_by_rows()
    assert isinstance(rows, DenseRows)
    return (rows.features,)
