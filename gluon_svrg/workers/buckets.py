"""Buckets: many arrays as a few flat ones, packed by one call and unpacked by another.

A key of ps-lite costs a tenth of a millisecond, whatever its size, and one that is too big keeps
the others waiting. So arrays share buckets, and a big array is cut.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import mxnet as mx
from gluon_svrg.arrays.fused import FusedFunction
from mxnet.ndarray import NDArray
from mxnet.symbol import Symbol

# From a megabyte of float32 on, sending and adding go on at once if there are several buckets.
SMALLEST, LARGEST = 1 << 16, 1 << 18


class Slots(NamedTuple):
    """How many places for numbers a bucket has, one behind the other, and which of them is ours."""

    number: int
    own: int


ONE_SLOT = Slots(1, 0)


class Piece(NamedTuple):
    """The numbers from `begin` to `end` of an array, which is given by its index."""

    array: int
    begin: int
    end: int


@dataclass(frozen=True)
class Bucket:
    """What is sent as one: `pieces` one after the other, all of one dtype.

    Attributes
    ----------
    dtype : str
        Its NumPy name.
    pieces : tuple of Piece
        Whole arrays, or parts of big ones.
    """

    dtype: str
    pieces: tuple[Piece, ...]

    @property
    def size(self) -> int:
        """How many numbers there are."""
        return sum(piece.end - piece.begin for piece in self.pieces)


def plan(
    sizes: Sequence[int], dtypes: Sequence[str], parts: int = 1, largest: int = LARGEST
) -> list[Bucket]:
    """Return the buckets for arrays of these sizes and dtypes; the same on every worker.

    Parameters
    ----------
    sizes, dtypes : sequences
        Of each array.
    parts : int
        Servers: what is big enough for more than one bucket has a multiple of them.
    largest : int
        How many numbers a bucket has at most.
    """
    buckets: list[Bucket] = []
    for dtype in dict.fromkeys(dtypes):
        indices = [i for i, own in enumerate(dtypes) if own == dtype and sizes[i]]
        total = sum(sizes[i] for i in indices)
        number = -(-total // largest)
        if number == 1:
            number = min(parts, -(-total // SMALLEST))
        elif number > 1:
            number = -(-number // parts) * parts
        buckets += _cut(indices, sizes, dtype, number) if number else []
    return buckets


def _cut(indices: Sequence[int], sizes: Sequence[int], dtype: str, number: int) -> list[Bucket]:
    """Return `number` buckets of equal size, to a number or so."""
    total = sum(sizes[i] for i in indices)
    ends = [total * (k + 1) // number for k in range(number)]
    buckets: list[list[Piece]] = [[]]
    done = 0
    for index in indices:
        begin = 0
        while begin < sizes[index]:
            if done == ends[len(buckets) - 1]:
                buckets.append([])
            take = min(sizes[index] - begin, ends[len(buckets) - 1] - done)
            buckets[-1].append(Piece(index, begin, begin + take))
            begin, done = begin + take, done + take
    return [Bucket(dtype, tuple(pieces)) for pieces in buckets]


class Packing:
    """Copies the pieces of arrays into buckets, and back.

    Each way is one call: one from Python for each array would cost more than all of the copies. The
    operators write through views of the buckets, because MXNet's own `concat` and `split` take ten
    times as long as a copy.

    Parameters
    ----------
    buckets : sequence of Bucket
        What goes where.
    arrays : sequence of NDArray
        The buckets' own arrays: flat, of their size for each slot.
    slots : Slots
        In which slot this worker's numbers stand.
    """

    def __init__(
        self, buckets: Sequence[Bucket], arrays: Sequence[NDArray], slots: Slots = ONE_SLOT
    ) -> None:
        self._buckets = buckets
        self._columns = [_pieces(buckets, arrays, slot) for slot in range(slots.number)]
        self._own = self._columns[slots.own]
        self._zeros = [
            array[slot * bucket.size : (slot + 1) * bucket.size]
            for bucket, array in zip(buckets, arrays, strict=True)
            for slot in range(slots.number)
            if slot != slots.own
        ]

    def views(self, arrays: Sequence[NDArray]) -> list[NDArray]:
        """Return the pieces of `arrays`, flat, in the order of the buckets; nothing is copied."""
        used = {piece.array for bucket in self._buckets for piece in bucket.pieces}
        flat = {i: _flat(arrays[i]) for i in used}
        return [
            _part(flat[array], begin, end)
            for bucket in self._buckets
            for array, begin, end in bucket.pieces
        ]

    def pack(self, views: Sequence[NDArray]) -> None:
        """Copy the pieces into the buckets."""
        _copy(views, out=self._own)
        _zero(self._zeros, out=self._zeros)

    def unpack(self, views: Sequence[NDArray]) -> None:
        """Copy the buckets, or the sums of their slots, into the pieces."""
        _add(*self._columns, out=views)


def _flat(array: NDArray) -> NDArray:
    return array if array.ndim == 1 else array.reshape(-1)


def _part(array: NDArray, begin: int, end: int) -> NDArray:
    return array if end - begin == array.size else array[begin:end]


def _pieces(buckets: Sequence[Bucket], arrays: Sequence[NDArray], slot: int) -> list[NDArray]:
    views = []
    for bucket, array in zip(buckets, arrays, strict=True):
        at = slot * bucket.size
        for _, begin, end in bucket.pieces:
            views.append(_part(array, at, at + end - begin))
            at += end - begin
    return views


def _in_order(*slots: Symbol) -> Symbol:
    """Return the sum of the slots, from the first to the last."""
    total = slots[0]
    for slot in slots[1:]:
        total = total + slot
    return total if len(slots) > 1 else mx.sym.stop_gradient(total)


# Not `identity`: to an array in oneDNN's layout that one gives its layout.
_copy = FusedFunction(mx.sym.stop_gradient)
_zero = FusedFunction(mx.sym.zeros_like)
_add = FusedFunction(_in_order)
