"""The copies of an array on several devices, as NumPy arrays and back."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import mxnet as mx
import numpy as np
from mxnet.ndarray import NDArray


def by_device(replicas: Iterable[Sequence[NDArray]]) -> list[list[NDArray]]:
    """Return lists with one array per device, one list for each parameter, as one per device."""
    return [list(arrays) for arrays in zip(*replicas, strict=True)]


def replicas_of(arrays: Sequence[NDArray]) -> list[np.ndarray]:
    """Return the contents of the arrays of all contexts, or of one where all are equal."""
    first, *others = (array.asnumpy() for array in arrays)
    if all(np.array_equal(first, other, equal_nan=True) for other in others):
        return [first]
    return [first, *others]


def write_replicas(values: Sequence[Any], arrays: Sequence[NDArray]) -> None:
    """Write what :func:`replicas_of` returned into the arrays of all contexts.

    For another number of contexts, their mean, as Gluon saves parameters of several.
    """
    values = [np.asarray(v.asnumpy() if isinstance(v, NDArray) else v) for v in values]
    if len(values) not in (1, len(arrays)):
        values = [np.mean(values, axis=0, dtype="float64").astype(values[0].dtype)]
    for index, array in enumerate(arrays):
        array[:] = mx.nd.array(values[index % len(values)], dtype=array.dtype)
