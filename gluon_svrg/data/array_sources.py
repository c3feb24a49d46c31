"""The arrays that an ArrayLoader takes its rows from: NDArrays, NumPy arrays, CSR matrices."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import repeat
from typing import Any, TypeAlias

import mxnet as mx
import numpy as np
from gluon_svrg._typing import NumPyArray
from gluon_svrg.arrays.nested import check_no_mask
from mxnet.ndarray import NDArray
from mxnet.ndarray.sparse import CSRNDArray
from mxnet.util import is_np_shape

_DTYPES = ("float16", "float32", "float64", "uint8", "int8", "int32", "int64", "bool")

ArraySource: TypeAlias = "NDArray | NumPyArray | CsrArray"
"""An array whose first axis counts the samples."""

NestedArrays: TypeAlias = "ArraySource | tuple[NestedArrays, ...] | dict[str, NestedArrays]"
"""An array, or arrays in tuples and dicts: several inputs, several labels."""


def flatten_sources(arrays: Sequence[NestedArrays]) -> list[ArraySource]:
    """Return the arrays in tuples and dicts, in order; those that are CSR as CsrArray.

    Raises
    ------
    TypeError, ValueError
        If they do not fit each other or MXNet.
    """
    flat: list[ArraySource] = [
        csr_array(f"array {position}", array) if is_csr(array) else array
        for position, array in enumerate(flatten(arrays))
    ]
    check_arrays(flat)
    return flat


def flatten(arrays: Sequence[NestedArrays]) -> list[ArraySource]:
    """Return the arrays in tuples and dicts, in order."""
    flat: list[ArraySource] = []
    for item in arrays:
        if isinstance(item, tuple | dict):
            flat += flatten(tuple(item.values()) if isinstance(item, dict) else item)
        else:
            flat.append(item)
    return flat


def nesting_of(arrays: Sequence[NestedArrays]) -> Sequence[Any] | None:
    """Return how the arrays are nested, without them; None if none is."""
    if not any(isinstance(item, tuple | dict) for item in arrays):
        return None
    return list(nest(arrays, repeat(None)))


def nest(nesting: Sequence[Any] | None, flat: Iterator[Any]) -> Iterable[Any]:
    """Return what `flat` yields, nested so."""
    return flat if nesting is None else [_nest(item, flat) for item in nesting]


def _nest(item: object, flat: Iterator[Any]) -> Any:
    if isinstance(item, dict):
        return {key: _nest(value, flat) for key, value in item.items()}
    if isinstance(item, tuple):
        return tuple(_nest(value, flat) for value in item)
    return next(flat)


def check_arrays(arrays: Sequence[ArraySource]) -> None:
    """Raise TypeError or ValueError if the arrays do not fit each other or MXNet."""
    if not arrays:
        raise ValueError("ArrayLoader got no array: give at least one, normally data and label")
    for position, array in enumerate(arrays):
        _check_array(f"array {position}", array)
    lengths = [len(array) for array in arrays]
    if len(set(lengths)) > 1:
        raise ValueError(
            f"all arrays must have the same length along axis 0, got {lengths}: look at how data "
            "and label were paired"
        )


def _check_array(name: str, array: object) -> None:
    if not isinstance(array, (NDArray, np.ndarray, CsrArray)):
        raise TypeError(
            f"{name} must be an NDArray, a numpy.ndarray or a sparse matrix in CSR, got a "
            f"{type(array).__name__}: make it an array, with np.asarray(x), or x.tocsr() if it is "
            "sparse"
        )
    if isinstance(array, NDArray) and array.stype != "default":
        raise TypeError(
            f"{name} must be dense, got an NDArray of storage type {array.stype!r}, whose rows "
            "cannot be taken: make it dense with x.tostype('default'), or CSR with "
            "x.tostype('csr')"
        )
    if array.ndim == 0 or len(array) == 0 or (0 in array.shape and not is_np_shape()):
        raise ValueError(
            f"{name} must have samples along axis 0, got shape {array.shape}: give at least one"
        )
    check_no_mask(name, array)
    if not isinstance(array, NDArray) and array.dtype.name not in _DTYPES:
        raise ValueError(
            f"{name} has dtype {array.dtype}, which MXNet does not have: convert it with "
            f"x.astype(...) to one of {', '.join(_DTYPES)}"
        )


def take(array: ArraySource, rows: slice | NumPyArray) -> NDArray:
    """Take rows of an array: an NDArray of the same dtype, a view if that is possible."""
    if isinstance(array, CsrArray):
        return array.take(rows)
    if isinstance(array, np.ndarray):
        # The context is named: a thread that prefetches does not have the caller's default.
        return mx.nd.array(array[rows], dtype=array.dtype, ctx=mx.cpu())
    if isinstance(rows, slice):
        return array[rows]
    return mx.nd.take(array, mx.nd.array(rows, dtype="int64", ctx=array.context))


def take_as_numpy(array: ArraySource, rows: slice | NumPyArray) -> NumPyArray:
    """Take rows of an array: a NumPy array of the same dtype, a view if that is possible."""
    if not isinstance(array, np.ndarray):
        return take(array, rows).asnumpy()
    return np.asarray(array[rows], dtype=array.dtype.newbyteorder("="))


def as_ndarray(array: NumPyArray, source: ArraySource) -> NDArray:
    """Return an NDArray of the same dtype, on the context of `source`."""
    context = mx.cpu() if isinstance(source, np.ndarray) else source.context
    return mx.nd.array(array, dtype=array.dtype, ctx=context)


class CsrArray:
    """A matrix in compressed sparse rows (CSR) whose rows can be taken.

    Parameters
    ----------
    values, columns, starts : numpy.ndarray
        The stored numbers, row by row; their columns; the begin of each row, and the end of the
        last.
    width : int
        The number of columns.
    context : Context
        Where the batches are.

    Attributes
    ----------
    shape, dtype, ndim
        As those of a NumPy array.
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
    """Return whether `array` is a CSR matrix of SciPy (which is not imported) or of MXNet."""
    if isinstance(array, NDArray):
        return isinstance(array, CSRNDArray)
    return getattr(array, "format", None) == "csr" and hasattr(array, "indptr")


def csr_array(name: str, array: Any) -> CsrArray:
    """Return a CSR matrix as a CsrArray, without duplicate entries.

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
