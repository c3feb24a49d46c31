"""How arrays are grouped for a sum over workers: large ones in place, small ones in a buffer."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import NamedTuple

import mxnet as mx
import numpy as np
from gluon_svrg._mxnet.array_mode import to_nd
from gluon_svrg._mxnet.mapped_array import MappedArray
from gluon_svrg._typing import NumPyArray
from mxnet.ndarray import NDArray

MIN_IN_PLACE = 1 << 16
"""Arrays with at least this many numbers are summed in their own memory."""
BUCKET_SIZE = 1 << 19
"""The maximum size of the common buffer of smaller arrays, in numbers."""


class ArraySpec(NamedTuple):
    """The properties of an array that a `SumPlan` depends on."""

    shape: tuple[int, ...]
    size: int
    dtype: str
    stype: str
    context: mx.Context

    @classmethod
    def of(cls, array: NDArray) -> ArraySpec:
        """Return the properties of `array`."""
        shape = array.shape
        dtype = np.dtype(array.dtype).name
        return cls(shape, math.prod(shape), dtype, array.stype, array.ctx)


class _InPlace(MappedArray):
    """An array on the CPU: its own memory is summed."""

    def write_back(self) -> None:
        """Do nothing: the sums are in the array."""


class _HostCopy:
    """An array on another device, and its copy in the CPU's memory."""

    def __init__(self, array: NDArray) -> None:
        self._array = array
        self._numbers: NumPyArray = np.empty(0)

    def numbers(self) -> NumPyArray:
        """Wait for the array and return a flat copy of it."""
        self._numbers = self._array.asnumpy().ravel()
        return self._numbers

    def write_back(self) -> None:
        """Write the copy, as it is now, into the array."""
        values = self._numbers.reshape(self._array.shape)
        to_nd(self._array)[:] = mx.nd.array(values, dtype=values.dtype)


class Bucket(NamedTuple):
    """Arrays that are summed together: one large array, or several small ones."""

    arrays: Sequence[_InPlace | _HostCopy]
    ends: Sequence[int]
    buffer: NumPyArray | None  # for several arrays

    def all_reduce(self, all_reduce: Callable[[NumPyArray], None]) -> None:
        """Wait for the arrays and replace them by their sums.

        Parameters
        ----------
        all_reduce : callable
            Replaces a flat NumPy array by its sum over all workers.
        """
        numbers = [array.numbers() for array in self.arrays]
        if self.buffer is None:
            all_reduce(numbers[0])
        else:
            all_reduce(np.concatenate(numbers, out=self.buffer))
            begin = 0
            for array, end in zip(numbers, self.ends, strict=True):
                array[:] = self.buffer[begin:end]
                begin = end
        for memory in self.arrays:
            memory.write_back()


class _Cache(NamedTuple):
    """The buckets of the last sum, and its arrays, which are kept so that their ids stay valid."""

    ids: tuple[int, ...]
    arrays: list[NDArray]
    buckets: list[Bucket]


class SumPlan:
    """The division of arrays with certain properties into buckets.

    Parameters
    ----------
    specs : sequence of ArraySpec
        The properties of all arrays.
    number : int
        The number of this plan on this worker.
    """

    def __init__(self, specs: Sequence[ArraySpec], number: int) -> None:
        self.label = str(number).encode()
        self._last_ids: tuple[int, ...] = ()
        self._cache: _Cache | None = None
        self._members = _bucket_members(specs)
        self._ends = [[*accumulate(specs[i].size for i in members)] for members in self._members]
        self._buffers = [
            np.empty(ends[-1], specs[members[0]].dtype) if len(members) > 1 else None
            for members, ends in zip(self._members, self._ends, strict=True)
        ]

    def has_cached(self, ids: tuple[int, ...]) -> bool:
        """Return whether the buckets of the arrays with these ids are cached."""
        return self._cache is not None and self._cache.ids == ids

    def buckets(self, arrays: Sequence[NDArray], ids: tuple[int, ...]) -> list[Bucket]:
        """Return the buckets of these arrays.

        Creating them costs more than the sum itself. So they are cached when the same arrays, such
        as gradients, are summed for the second time. Arrays that are summed once are not kept
        alive.
        """
        if self._cache is not None and self._cache.ids == ids:
            return self._cache.buckets
        kind = _InPlace if arrays[0].ctx.device_type == "cpu" else _HostCopy
        buckets = [
            Bucket([kind(arrays[i]) for i in members], ends, buffer)
            for members, ends, buffer in zip(self._members, self._ends, self._buffers, strict=True)
        ]
        if self._last_ids == ids:
            self._cache = _Cache(ids, list(arrays), buckets)
        self._last_ids = ids
        return buckets


def _bucket_members(specs: Sequence[ArraySpec]) -> list[list[int]]:
    """Return the indices of the arrays in each bucket: consecutive arrays of the same dtype."""
    buckets: list[list[int]] = []
    remaining = 0
    for i, spec in enumerate(specs):
        if not spec.size:
            continue
        remaining -= spec.size
        if remaining < 0 or spec.size >= MIN_IN_PLACE or spec.dtype != specs[buckets[-1][0]].dtype:
            buckets.append([])
            remaining = 0 if spec.size >= MIN_IN_PLACE else BUCKET_SIZE - spec.size
        buckets[-1].append(i)
    return buckets


def check_summable(specs: Sequence[ArraySpec], dtypes: Sequence[str]) -> None:
    """Raise ValueError if workers cannot sum arrays with these properties."""
    for i, spec in enumerate(specs):
        if spec.stype != "default":
            raise ValueError(
                f"array {i} of a sum is {spec.stype}: workers add dense arrays only; let its layer "
                "make dense gradients (sparse_grad=False, grad_stype='default')"
            )
        if spec.context != specs[0].context:
            raise ValueError(
                f"the arrays of a sum are on {specs[0].context} and {spec.context}: pass those of "
                "one context, and copy the sums to the others"
            )
        if spec.dtype not in dtypes:
            raise ValueError(
                f"array {i} of a sum is {spec.dtype}: workers add {', '.join(dtypes)}; convert it"
            )
