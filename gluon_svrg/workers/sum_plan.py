"""Plan: where in memory a sum over workers is taken: large arrays in place, small ones together."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import NamedTuple

import mxnet as mx
import numpy as np
from gluon_svrg import _mxnet
from gluon_svrg._typing import NumPyArray
from mxnet.ndarray import NDArray

_WHOLE = 1 << 16
"""Numbers from which on an array is added up where it is; smaller ones are copied together."""
_TOGETHER = 1 << 19
"""Numbers that are copied together at most."""


class Description(NamedTuple):
    """Shape, dtype and place of an array: what the plan of a sum depends on."""

    shape: tuple[int, ...]
    size: int
    dtype: str
    stype: str
    context: mx.Context

    @classmethod
    def of(cls, array: NDArray) -> Description:
        """Return that of `array`."""
        shape = array.shape
        dtype = np.dtype(array.dtype).name
        return cls(shape, math.prod(shape), dtype, array.stype, array.ctx)


class _Memory(_mxnet.MappedArray):
    """An array whose own memory is added up."""

    def put_back(self) -> None:
        """Do nothing: the numbers are where they belong."""


class _Copy:
    """A copy of an array that is not in the CPU's memory."""

    def __init__(self, array: NDArray) -> None:
        self._array = array
        self._numbers: NumPyArray = np.empty(0)

    def numbers(self) -> NumPyArray:
        """Wait for the array and return a copy of it, flat."""
        self._numbers = self._array.asnumpy().ravel()
        return self._numbers

    def put_back(self) -> None:
        """Write the numbers that `numbers` has returned, as they are now, into the array."""
        values = self._numbers.reshape(self._array.shape)
        _mxnet.as_legacy(self._array)[:] = mx.nd.array(values, dtype=values.dtype)


class Group(NamedTuple):
    """Arrays that are added up together, and where: one big array, or several small ones."""

    memories: Sequence[_Memory | _Copy]
    ends: Sequence[int]
    own: NumPyArray | None  # where small ones are copied together

    def add_up(self, add: Callable[[NumPyArray], None]) -> None:
        """Wait for the arrays and let `add` replace their numbers, flat, by the sums."""
        numbers = [memory.numbers() for memory in self.memories]
        if self.own is None:
            add(numbers[0])
        else:
            add(np.concatenate(numbers, out=self.own))
            begin = 0
            for array, end in zip(numbers, self.ends, strict=True):
                array[:] = self.own[begin:end]
                begin = end
        for memory in self.memories:
            memory.put_back()


class _Kept(NamedTuple):
    """The arrays of the last sum, by which they are recognised, and their groups."""

    ids: tuple[int, ...]
    arrays: list[NDArray]
    groups: list[Group]


class Plan:
    """How arrays of certain descriptions are added up.

    Parameters
    ----------
    key : sequence of Description
        Of all arrays.
    number : int
        Which plan of the workers this is.
    """

    def __init__(self, key: Sequence[Description], number: int) -> None:
        self.label = str(number).encode()
        self._last_ids: tuple[int, ...] = ()
        self._kept: _Kept | None = None
        self._members = _members(key)
        self._ends = [[*accumulate(key[i].size for i in some)] for some in self._members]
        self._own = [
            np.empty(ends[-1], key[some[0]].dtype) if len(some) > 1 else None
            for some, ends in zip(self._members, self._ends, strict=True)
        ]

    def knows(self, ids: tuple[int, ...]) -> bool:
        """Return whether the arrays of these identities were the last that were added up."""
        return self._kept is not None and self._kept.ids == ids

    def groups_of(self, arrays: Sequence[NDArray], ids: tuple[int, ...]) -> list[Group]:
        """Return the groups of these arrays.

        To make them costs more than the sum itself. What comes for the second time comes again, as
        gradients do; what comes once is not kept alive.
        """
        if self._kept is not None and self._kept.ids == ids:
            return self._kept.groups
        kind = _Memory if arrays[0].ctx.device_type == "cpu" else _Copy
        groups = [
            Group([kind(arrays[i]) for i in some], ends, own)
            for some, ends, own in zip(self._members, self._ends, self._own, strict=True)
        ]
        if self._last_ids == ids:
            self._kept = _Kept(ids, list(arrays), groups)
        self._last_ids = ids
        return groups


def _members(key: Sequence[Description]) -> list[list[int]]:
    """Return which arrays are added up together: neighbours of one dtype."""
    members: list[list[int]] = []
    room = 0
    for i, array in enumerate(key):
        if not array.size:
            continue
        room -= array.size
        if room < 0 or array.size >= _WHOLE or array.dtype != key[members[-1][0]].dtype:
            members.append([])
            room = 0 if array.size >= _WHOLE else _TOGETHER - array.size
        members[-1].append(i)
    return members


def check_can_be_summed(key: Sequence[Description], dtypes: Sequence[str]) -> None:
    """Raise ValueError if arrays of these descriptions cannot be added up over workers."""
    for i, array in enumerate(key):
        if array.stype != "default":
            raise ValueError(
                f"array {i} of a sum is {array.stype}: workers add dense arrays only; let the "
                "layer that has it make dense gradients (sparse_grad=False, grad_stype='default')"
            )
        if array.context != key[0].context:
            raise ValueError(
                f"the arrays of a sum are on {key[0].context} and {array.context}: give those of "
                "one context, and copy the sums to the others"
            )
        if array.dtype not in dtypes:
            raise ValueError(
                f"array {i} of a sum is {array.dtype}: workers add {', '.join(dtypes)}; convert it"
            )
