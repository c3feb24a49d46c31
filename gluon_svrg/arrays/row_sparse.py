"""Functions on row_sparse arrays, which store some rows and their indices; the others are zero."""

from __future__ import annotations

from typing import TypeGuard

import mxnet as mx
import numpy as np
from gluon_svrg._mxnet.array_mode import to_active_mode, to_nd
from gluon_svrg._typing import NumPyArray
from mxnet.ndarray import NDArray
from mxnet.ndarray.sparse import RowSparseNDArray


def is_row_sparse(array: NDArray) -> TypeGuard[RowSparseNDArray]:
    """Return whether `array` stores some of its rows only."""
    return array.stype == "row_sparse"


def row_sparse(
    values: NumPyArray, rows: NumPyArray, shape: tuple[int, ...], context: mx.Context
) -> NDArray:
    """Return the array of this shape with these rows, of the values' dtype.

    Parameters
    ----------
    values : numpy.ndarray
        One row each.
    rows : numpy.ndarray of int64
        Their numbers, in ascending order.
    shape, context
        Those of the array.
    """
    if not len(rows):
        return mx.nd.zeros(shape, context, values.dtype, stype="row_sparse")
    return mx.nd.sparse.row_sparse_array(
        (values, rows), shape=shape, ctx=context, dtype=values.dtype
    )


def row_indices(array: NDArray) -> NumPyArray:
    """Return the indices of the rows that a row_sparse array stores, ascending; waits for it."""
    return np.asarray(row_indices_nd(array).asnumpy())


def row_indices_nd(array: NDArray) -> NDArray:
    """Return the indices of the rows that a row_sparse array stores, as an array on its device."""
    assert is_row_sparse(array)
    return array.indices


def stored_values(array: NDArray) -> NumPyArray:
    """Return the rows that an array stores (all rows of a dense one); waits for it."""
    return np.asarray((array.data if is_row_sparse(array) else array).asnumpy())


def set_to_zero(array: NDArray) -> None:
    """Make an array zero in place; a row_sparse one stores no row then."""
    if is_row_sparse(array):  # array[:] = 0 would store all rows
        mx.nd.zeros_like(array, out=array)
    else:
        to_nd(array)[:] = 0


def zeros_for(data: NDArray, stype: str) -> NDArray:
    """Return zeros as a network takes them, like `data` but for the storage type."""
    if stype == "default":
        return to_active_mode(mx.nd.zeros_like(to_nd(data)))
    return mx.nd.zeros(data.shape, data.ctx, data.dtype, stype=stype)


def stored_nbytes(array: NDArray) -> int:
    """Return the size of what is stored, in bytes; waits for a row_sparse array."""
    if is_row_sparse(array):
        rows = int(array.indices.size)
        width = int(np.prod(array.shape[1:]))
        return rows * (8 + width * np.dtype(array.dtype).itemsize)
    return int(array.size * np.dtype(array.dtype).itemsize)


def max_abs_values(first: NDArray, second: NDArray) -> tuple[float, float]:
    """Return the largest absolute values of `first` and of ``second - first``; waits for them."""
    if not is_row_sparse(first):
        values = first.asnumpy()
        return float(np.abs(values).max()), float(np.abs(second.asnumpy() - values).max())
    return _largest(stored_values(first)), _largest(stored_values(second - first))


def are_close(array: NDArray, reference: NDArray, tolerance: float) -> bool:
    """Return whether the arrays are equal to `tolerance`, relative to a value or to the largest."""
    if is_row_sparse(array) and is_row_sparse(reference):
        rows, reference_rows = row_indices(array), row_indices(reference)
        if len(rows) != len(reference_rows) or (rows != reference_rows).any():
            return False
    a, b = stored_values(array), stored_values(reference)
    return bool(np.allclose(a, b, rtol=tolerance, atol=tolerance * _largest(b)))


def _largest(values: NumPyArray) -> float:
    return float(np.abs(values).max()) if values.size else 0.0
