"""The copies of an array on several devices, as NumPy arrays and back."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import mxnet as mx
import numpy as np
from gluon_svrg._mxnet.array_mode import kept_as_nd, to_nd
from gluon_svrg._mxnet.block import array_from_numpy
from gluon_svrg._typing import NumPyArray
from gluon_svrg.arrays.row_sparse import is_row_sparse, row_sparse
from mxnet.ndarray import NDArray


def by_device(replicas: Iterable[Sequence[NDArray]]) -> list[list[NDArray]]:
    """Return lists with one array per device, one list for each parameter, as one per device.

    All as NDArrays, that share the memory of what they are given. Those are the arrays of
    parameters, which stay the same over the batches.
    """
    return [list(map(kept_as_nd, arrays)) for arrays in zip(*replicas, strict=True)]


def distinct_replicas(arrays: Sequence[NDArray]) -> list[NumPyArray]:
    """Return the contents of each context's array; only the first, if all are equal."""
    first, *others = (array.asnumpy() for array in arrays)
    if all(np.array_equal(first, other, equal_nan=True) for other in others):
        return [first]
    return [first, *others]


def mean_replicas(copies: Sequence[Sequence[NumPyArray]]) -> Sequence[NumPyArray]:
    """Return one for all workers of what :func:`distinct_replicas` returned on each.

    That is the first worker's, if all have the same; else the mean of all, as one array.
    """
    first, *others = copies
    if all(_are_equal(first, other) for other in others):
        return first
    mean = np.mean([np.mean(c, axis=0, dtype="float64") for c in copies], axis=0)
    return [np.asarray(mean).astype(first[0].dtype)]


def write_replicas(values: Sequence[NumPyArray | NDArray], arrays: Sequence[NDArray]) -> None:
    """Write what :func:`distinct_replicas` returned into the arrays of all contexts.

    If there are several values, and not one for each context, write their mean: Gluon saves the
    mean of a parameter's contexts, too.
    """
    contents = [np.asarray(v.asnumpy() if isinstance(v, NDArray) else v) for v in values]
    if len(contents) not in (1, len(arrays)):
        contents = [np.mean(contents, axis=0, dtype="float64").astype(contents[0].dtype)]
    for index, array in enumerate(arrays):
        content = contents[index % len(contents)]
        if is_row_sparse(array):  # with its zeros: an optimizer wants all rows there
            rows = np.arange(len(content))
            whole = row_sparse(content.astype(array.dtype), rows, array.shape, array.ctx)
            whole.copyto(array)
        else:
            # oneDNN may keep a convolution's weights in a layout of its own. An assignment converts
            # them; bytes copied into such an array are an error.
            typed = content.astype(array.dtype, copy=False)
            to_nd(array)[:] = array_from_numpy(typed, mx.cpu())


def _are_equal(first: Sequence[NumPyArray], second: Sequence[NumPyArray]) -> bool:
    return len(first) == len(second) and all(
        np.array_equal(a, b, equal_nan=True) for a, b in zip(first, second, strict=True)
    )
