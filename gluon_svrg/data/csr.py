"""CsrArray: the samples of a matrix in compressed sparse rows, as a loader takes them."""

from __future__ import annotations

from typing import Any

import mxnet as mx
import numpy as np
from gluon_svrg._compat import NumPyArray
from mxnet.ndarray import NDArray
from mxnet.ndarray.sparse import CSRNDArray


class CsrArray:
    """A matrix in compressed sparse rows (CSR), of which rows are taken.

    Parameters
    ----------
    values, columns, starts : numpy.ndarray
        What is stored, row by row; its columns; where each row begins, and the last one ends.
    width : int
        The number of columns.
    context : Context
        Where the batches are.
    """

    def __init__(
        self,
        values: NumPyArray,
        columns: NumPyArray,
        starts: NumPyArray,
        width: int,
        context: mx.Context,
    ) -> None:
        self._values, self._columns, self._starts = values, columns, starts
        self.shape = len(starts) - 1, width
        self.dtype = values.dtype
        self.ndim = 2
        self.context = context

    def __len__(self) -> int:
        """Return the number of rows."""
        return self.shape[0]

    def take(self, rows: slice | NumPyArray) -> NDArray:
        """Return these rows as a CSRNDArray."""
        numbers = np.arange(len(self))[rows] if isinstance(rows, slice) else rows
        lengths = np.diff(self._starts)[numbers]
        starts = np.concatenate([[0], np.cumsum(lengths)])
        shape = len(numbers), self.shape[1]
        if not starts[-1]:
            return mx.nd.sparse.zeros("csr", shape, self.context, self.dtype)
        # The place of each stored number: its row's begin, and how far it is in the row.
        places = np.arange(starts[-1]) + np.repeat(self._starts[numbers] - starts[:-1], lengths)
        return mx.nd.sparse.csr_matrix(
            (self._values[places], self._columns[places], starts),
            shape=shape,
            ctx=self.context,
            dtype=self.dtype,
        )


def is_csr(array: object) -> bool:
    """Return whether `array` is CSR: SciPy's, of which nothing is imported here, or MXNet's."""
    if isinstance(array, NDArray):
        return isinstance(array, CSRNDArray)
    return getattr(array, "format", None) == "csr" and hasattr(array, "indptr")


def csr_array(name: str, array: Any) -> CsrArray:
    """Return a CSR matrix as a CsrArray, each number of which is stored once.

    Parameters
    ----------
    name : str
        What an error calls it.
    array : scipy.sparse.csr_array, csr_matrix or CSRNDArray
        The matrix; it is not changed.

    Raises
    ------
    ValueError
        If it is no matrix, or a column is out of range.
    """
    if len(array.shape) != 2:
        raise ValueError(f"{name} must be a matrix, got shape {array.shape}: give one row a sample")
    if isinstance(array, CSRNDArray):
        parts = array.data, array.indices, array.indptr
        values, columns, starts = (part.asnumpy() for part in parts)
        check_columns(name, columns, array.shape[1])
        return CsrArray(values, columns, starts, array.shape[1], array.context)
    check_columns(name, array.indices, array.shape[1])
    if not array.has_canonical_format:
        array = array.copy()
        array.sum_duplicates()
    starts = np.asarray(array.indptr, "int64")
    return CsrArray(array.data, array.indices, starts, array.shape[1], mx.cpu())


def check_columns(name: str, columns: NumPyArray, width: int) -> None:
    """Raise ValueError if a column is not in [0, width)."""
    if len(columns) and not (columns.min() >= 0 and columns.max() < width):
        bad = columns[(columns < 0) | (columns >= width)][0]
        raise ValueError(
            f"{name} has a number in column {bad}, and {width} columns, from 0: give the matrix "
            "the shape that its data need"
        )


def check_batch(index: int, leaf: object) -> None:
    """Raise ValueError if an array of a batch is CSR with a column that is out of range."""
    if isinstance(leaf, CSRNDArray):
        check_columns(f"batch {index} (the first is 0)", leaf.indices.asnumpy(), int(leaf.shape[1]))
