"""The rows of a sparse matrix (CSR), and statistics of its columns.

No array of the size n x p is ever created. Blocks are CSR matrices that share the values and the
column indices with the whole matrix. SciPy's products release Python's lock, so that threads can
work on several blocks.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.sparse import csc_array, csr_array

from provenglm import constants
from provenglm.types import NumPyArray


class CsrRows:
    """The rows of a CSR matrix; each block is a CSR matrix.

    Parameters
    ----------
    features : scipy.sparse.csr_array, (n, p)
        A float32 or float64 matrix with sorted columns and without duplicates.
    dtype : numpy dtype, optional
        The dtype of the blocks: float64 if float32 is too imprecise; by default that of the data.
    """

    is_sparse, is_on_disk = True, False

    def __init__(self, features: csr_array, dtype: np.dtype[Any] | None = None) -> None:
        self.features = features
        self.shape: tuple[int, ...] = features.shape
        single = np.dtype(np.float32)
        self.dtype = dtype or (single if features.dtype == single else np.dtype(np.float64))
        self._slices: list[slice] | None = None
        self._whole: frozenset[tuple[int, int]] = frozenset()
        self._blocks: dict[tuple[int, int], csr_array] = {}

    def slices(self) -> list[slice]:
        """Return the blocks of one pass, in order."""
        if self._slices is None:
            n, p = self.shape
            indptr = self.features.indptr
            # A gradient has p numbers, which are added to the others.
            size = max(constants.BLOCK_BYTES // 8, 4 * p)
            ends = np.searchsorted(indptr, np.arange(size, int(indptr[-1]), size))
            starts = [0]
            for end in ends.tolist():
                if starts[-1] + constants.LEAST_BLOCK_ROWS <= end <= n - constants.LEAST_BLOCK_ROWS:
                    starts.append(end)
            self._slices = [slice(*ends) for ends in zip(starts, [*starts[1:], n], strict=True)]
            self._whole = frozenset((part.start, part.stop) for part in self._slices)
        return self._slices

    def block(self, rows: slice) -> csr_array:
        """Return the rows of a slice, converted. The result must not be modified.

        The blocks of a full pass are created once. They share the values unless these are
        converted.
        """
        whole = self.features
        indptr = whole.indptr
        start, stop, _ = rows.indices(self.shape[0])
        block = self._blocks.get((start, stop))
        if block is None:
            entries = slice(int(indptr[start]), int(indptr[stop]))
            block = csr_from_parts(
                whole.data[entries],
                whole.indices[entries],
                (indptr[start : stop + 1] - indptr[start]).astype(whole.indices.dtype, copy=False),
                (stop - start, self.shape[1]),
            )
            block.has_canonical_format = True
            if (start, stop) in self._whole:
                self._blocks[start, stop] = block
        return block if block.dtype == self.dtype else block.astype(self.dtype)

    @property
    def numbers(self) -> int:
        """The number of stored entries."""
        return int(self.features.indptr[-1])

    def pick(self, rows: NumPyArray) -> csr_array:
        """Return rows by their indices, converted."""
        return self.features[rows].astype(self.dtype, copy=False)

    def precise(self) -> CsrRows:
        """Return the same rows with blocks in float64."""
        return CsrRows(self.features, np.dtype(np.float64))

    def columns(self) -> csc_array:
        """Return a copy by columns, in the stored dtype."""
        return self.features.tocsc()

    def parts_by_rows(self) -> tuple[NumPyArray, NumPyArray, NumPyArray]:
        """Return values, columns and row starts for compiled loops, in the stored dtype.

        Indices are unsigned, because signed ones cost a test for wrap-around at each access.
        """
        data, indices, indptr = (getattr(self.features, of) for of in ("data", "indices", "indptr"))
        return data, indices.view(f"u{indices.itemsize}"), indptr.view(f"u{indptr.itemsize}")


def csr_from_parts(
    data: NumPyArray, indices: NumPyArray, indptr: NumPyArray, shape: tuple[int, ...]
) -> csr_array:
    """Return a CSR matrix that shares the given arrays.

    SciPy's constructor copies arrays that are views of much larger arrays.
    """
    matrix = csr_array(shape, dtype=data.dtype)
    matrix.data, matrix.indices, matrix.indptr = data, indices, indptr
    return matrix


def transposed(block: csr_array) -> csc_array:
    """Return the transposed matrix, which shares all arrays and is kept with the block.

    SciPy's constructor takes as long as three products with 10,000 numbers.
    """
    columns: csc_array | None = vars(block).get("_transposed")
    if columns is None:
        columns = csc_array(block.shape[::-1], dtype=block.dtype)
        columns.data, columns.indices, columns.indptr = block.data, block.indices, block.indptr
        block._transposed = columns
    return columns
