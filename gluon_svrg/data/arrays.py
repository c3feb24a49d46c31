"""The arrays that a loader takes its batches from."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import repeat
from typing import Any, TypeAlias

import mxnet as mx
import numpy as np
from gluon_svrg._compat import NumPyArray
from gluon_svrg.data.csr import CsrArray, csr_array, is_csr
from mxnet.ndarray import NDArray
from mxnet.util import is_np_shape

_DTYPES = ("float16", "float32", "float64", "uint8", "int8", "int32", "int64", "bool")

Source: TypeAlias = "NDArray | NumPyArray | CsrArray"
"""What rows are taken from."""

Arrays: TypeAlias = "Source | tuple[Arrays, ...] | dict[str, Arrays]"
"""An array, or arrays in tuples and dicts: several inputs, several labels."""


def sources_of(arrays: Sequence[Arrays]) -> list[Source]:
    """Return the arrays in tuples and dicts, in order; those that are CSR as CsrArray.

    Raises
    ------
    TypeError, ValueError
        If they do not fit each other or MXNet.
    """
    flat: list[Source] = [
        csr_array(f"array {position}", array) if is_csr(array) else array
        for position, array in enumerate(unnested(arrays))
    ]
    check_arrays(flat)
    return flat


def unnested(arrays: Sequence[Arrays]) -> list[Source]:
    """Return the arrays in tuples and dicts, in order."""
    flat: list[Source] = []
    for item in arrays:
        if isinstance(item, tuple | dict):
            flat += unnested(tuple(item.values()) if isinstance(item, dict) else item)
        else:
            flat.append(item)
    return flat


def nesting_of(arrays: Sequence[Arrays]) -> Sequence[Any] | None:
    """Return how the arrays are nested, without them; None if none is."""
    if not any(isinstance(item, tuple | dict) for item in arrays):
        return None
    return list(nested_as(arrays, repeat(None)))


def nested_as(nesting: Sequence[Any] | None, flat: Iterator[Any]) -> Iterable[Any]:
    """Return what `flat` yields, nested so."""
    return flat if nesting is None else [_nested_as(item, flat) for item in nesting]


def _nested_as(item: object, flat: Iterator[Any]) -> Any:
    if isinstance(item, dict):
        return {key: _nested_as(value, flat) for key, value in item.items()}
    if isinstance(item, tuple):
        return tuple(_nested_as(value, flat) for value in item)
    return next(flat)


def check_arrays(arrays: Sequence[Source]) -> None:
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
    if not isinstance(array, NDArray) and array.dtype.name not in _DTYPES:
        raise ValueError(
            f"{name} has dtype {array.dtype}, which MXNet does not have: convert it with "
            f"x.astype(...) to one of {', '.join(_DTYPES)}"
        )


def take(array: Source, rows: slice | NumPyArray) -> NDArray:
    """Take rows of an array: an NDArray of the same dtype, a view if that is possible."""
    if isinstance(array, CsrArray):
        return array.take(rows)
    if isinstance(array, np.ndarray):
        # The context is named: a thread that prefetches does not have the caller's default.
        return mx.nd.array(array[rows], dtype=array.dtype, ctx=mx.cpu())
    if isinstance(rows, slice):
        return array[rows]
    return mx.nd.take(array, mx.nd.array(rows, dtype="int64", ctx=array.context))


def take_as_numpy(array: Source, rows: slice | NumPyArray) -> NumPyArray:
    """Take rows of an array: a NumPy array of the same dtype, a view if that is possible."""
    if not isinstance(array, np.ndarray):
        return take(array, rows).asnumpy()
    return np.asarray(array[rows], dtype=array.dtype.newbyteorder("="))


def as_ndarray(array: NumPyArray, source: Source) -> NDArray:
    """Return an NDArray of the same dtype, on the context of `source`."""
    context = mx.cpu() if isinstance(source, np.ndarray) else source.context
    return mx.nd.array(array, dtype=array.dtype, ctx=context)
