"""SumWorkers: sums of arrays that go another way than the messages, which say what was added up."""

from __future__ import annotations

import math
import socket
import zlib
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Generic, NamedTuple, NoReturn, Protocol, TypeVar

import mxnet as mx
import numpy as np
from gluon_svrg.workers.sockets import SocketWorkers
from mxnet import autograd
from mxnet.ndarray import NDArray

_FLOATS = ("float16", "float32", "float64")  # what a server of MXNet can add


_B = TypeVar("_B")
_Bound = TypeVar("_Bound", covariant=True)


class Group(Protocol[_Bound]):
    """Arrays that are added up together: which of all of them, and in which way."""

    def bind(self, arrays: Sequence[NDArray]) -> _Bound:
        """Return what adds up the group's ones of these arrays."""


class SumWorkers(SocketWorkers, Generic[_B]):
    """Workers whose sums of floating-point numbers go another way than their messages.

    The sums of workers that have parted would be mixed up, or wait for ever. So every message says
    which sums were begun before it, and workers that have parted in them hear of it at the next
    one.

    Integers, and what :meth:`broadcast` sends, go over the sockets.

    Parameters
    ----------
    rank, size, address, key, timeout, listener
        As for `SocketWorkers`.
    """

    _number, _bits = 0, 0  # of the sums so far

    def __init__(
        self,
        rank: int,
        size: int,
        address: tuple[str, int],
        key: bytes,
        timeout: float = 60.0,
        *,
        listener: socket.socket | None = None,
    ) -> None:
        super().__init__(rank, size, address, key, timeout, listener=listener)
        self._layouts: dict[tuple[Description, ...], _Layout[_B]] = {}

    def sum(self, arrays: Sequence[NDArray]) -> None:
        """See Workers.

        Raises
        ------
        ValueError
            If an array is sparse, or if they are not all on one context.
        WorkerError
            If another worker adds arrays of other shapes or dtypes.
        """
        arrays = list({id(array): array for array in arrays}.values())  # one that comes twice: once
        if not arrays:
            return
        with autograd.pause():
            layout, bound = self._layout_of(arrays)
            self._number += 1
            self._bits = zlib.crc32(layout.label, self._bits)
            self._add_up(bound)
        if layout.others:
            super().sum([arrays[i] for i in layout.others])

    @abstractmethod
    def _planned(self, key: Sequence[Description]) -> Sequence[Group[_B]]:
        """Return groups that have each number of the arrays of these descriptions once."""

    @abstractmethod
    def _add_up(self, groups: Sequence[_B]) -> None:
        """Replace the numbers of each group's arrays by their sums, the last group first."""

    def _sums_so_far(self) -> str:
        return _told(self._number, f" (of arrays {self._bits:08x})")

    def _check_parted(self) -> None:
        """See, in a sum that does not end, whether another worker is somewhere else.

        One that has a message for the first worker, which the first worker has not asked for, has
        left the sum behind it, or has never come to it: what it has added up so far says which.
        """
        if not self.is_first:
            self._say_waiting(self._number)
            return
        self._read_early()
        for rank, message in self._early.items():
            place, sums, _ = message.split(b"\0", 2)
            if int(sums.split()[0]) < self._number:
                self._fail_elsewhere(rank, sums.decode(), f"is at {place.decode()!r}", self._number)

    def _check_waiting(self, rank: int, number: int) -> None:
        if number > self._number:
            self._fail_elsewhere(rank, _told(number), "waits for the last of them", self._number)

    def _fail_elsewhere(self, rank: int, sums: str, where: str, number: int) -> NoReturn:
        self._fail(
            f"the workers have parted: worker {rank} has added up {sums} and {where}, worker 0 has "
            f"added up {_told(number)}; every worker has to run the same lines"
        )

    def _layout_of(self, arrays: Sequence[NDArray]) -> tuple[_Layout[_B], list[_B]]:
        """Return how such arrays are added up, and what adds up these."""
        ids = tuple(map(id, arrays))
        for layout in self._layouts.values():
            if layout.kept is not None and layout.kept.ids == ids:
                return layout, layout.kept.bound
        key = tuple(Description.of(array) for array in arrays)
        if key not in self._layouts:
            self._layouts[key] = self._new_layout(key)
        layout = self._layouts[key]
        floats = [arrays[i] for i in layout.floats]
        bound = [group.bind(floats) for group in layout.groups]
        # To bind them costs more than the sum itself. What comes for the second time comes again,
        # as gradients do; what comes once is not kept alive.
        if layout.last_ids == ids:
            layout.kept = _Kept(ids, list(arrays), bound)
        layout.last_ids = ids
        return layout, bound

    def _new_layout(self, key: Sequence[Description]) -> _Layout[_B]:
        """Plan the sum of such arrays, with the other workers."""
        for i, own in enumerate(key):
            if own.stype != "default":
                raise ValueError(
                    f"array {i} of a sum is {own.stype}: workers add dense arrays only; let the "
                    "layer that has it make dense gradients (sparse_grad=False, "
                    "grad_stype='default')"
                )
            if own.context != key[0].context:
                raise ValueError(
                    f"the arrays of a sum are on {key[0].context} and {own.context}: give those of "
                    "one context, and copy the sums to the others"
                )
        self._agree(key)
        floats = [i for i, own in enumerate(key) if own.size and own.dtype in _FLOATS]
        others = [i for i, own in enumerate(key) if own.size and own.dtype not in _FLOATS]
        groups = self._planned([key[i] for i in floats]) if floats else []
        return _Layout(groups, floats, others, str(len(self._layouts)).encode())

    def _agree(self, key: Sequence[Description]) -> None:
        """Check that all workers are about to add the same; a server would mix them up."""
        own = [[list(array.shape), array.dtype] for array in key]
        everybody = self.gather_plain(own, "the first sum of these arrays")
        for rank, others in enumerate(everybody):
            if others != everybody[0]:
                differ = [pair for pair in zip_longest(everybody[0], others) if pair[0] != pair[1]]
                first, other = ("no array" if a is None else f"{a[1]} {a[0]}" for a in differ[0])
                is_of_dtype = None not in differ[0] and differ[0][0][0] == differ[0][1][0]
                more = " and the same compression_params" if is_of_dtype else ""
                self._fail(
                    f"worker {rank} adds {len(others)} arrays, worker 0 {len(everybody[0])}, and "
                    f"the first that differ are {other} and {first}: all workers need the same "
                    f"network{more}"
                )


def _told(number: int, more: str = "") -> str:
    return f"{number} times{more}"


class Description(NamedTuple):
    """What the buckets of arrays depend on."""

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
        return cls(shape, math.prod(shape), dtype, array.stype, array.context)


@dataclass(frozen=True)
class _Kept(Generic[_B]):
    """The arrays of the last sums, by which they are recognised, and what adds them up."""

    ids: tuple[int, ...]
    arrays: list[NDArray]
    bound: list[_B]


class _Layout(Generic[_B]):
    """The sum of arrays of certain shapes and dtypes.

    Attributes
    ----------
    groups : list
        How the floating-point ones are added up.
    floats, others : list of int
        Which arrays these are, and which are integers.
    label : bytes
        What no other layout of these workers has.
    last_ids : tuple of int
        What was added last, by identity.
    kept : _Kept, optional
        What was added twice, one after the other.
    """

    def __init__(
        self, groups: Sequence[Group[_B]], floats: list[int], others: list[int], label: bytes
    ) -> None:
        self.groups = groups
        self.floats = floats
        self.others = others
        self.label = label
        self.last_ids: tuple[int, ...] = ()
        self.kept: _Kept[_B] | None = None
