"""Rows that are not in memory, or not in one array: read a block at a time, and ahead."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple, TypeVar

import numpy as np

from provenglm.data.blocks import slices_of
from provenglm.data.chunks import Chunks
from provenglm.data.parts import Part, mapped_root, part_of
from provenglm.types import NumPyArray

Item = TypeVar("Item")
Result = TypeVar("Result")

SMALL = 1 << 20
"""Bytes of a memory map up to which it is an array like others."""

_STRIPS = 512
"""Of a buffer: in so many places of the data are its rows, or more."""

_LEAST_STRIP, _MOST_STRIP = 1 << 14, 1 << 20
"""Bytes of a strip: less takes longer to find than to read, more is no faster."""


def on_disk(features: object) -> bool:
    """Whether the rows of some features are read in blocks and never copied as a whole."""
    if isinstance(features, np.ndarray):
        root = mapped_root(features) if features.nbytes > SMALL else None
        # A private copy has changes that are in memory alone.
        return root is not None and root.mode != "c"
    return isinstance(features, Chunks)


def parts_in(features: NumPyArray | Chunks) -> list[Part]:
    """Return the parts that such features consist of."""
    return features.parts if isinstance(features, Chunks) else [part_of(features)]


class _Piece(NamedTuple):
    """Some rows of one part."""

    part: Part
    start: int
    stop: int
    first: int
    """Which of all rows the first of them is."""

    def read(self) -> NumPyArray:
        return self.part.read(self.start, self.stop)


class DiskRows:
    """The rows of several parts, one after the other.

    Where blocks begin depends on the number of rows and their width alone: the same data give the
    same bits, whatever the parts are.

    Parameters
    ----------
    parts : list of Part
        All of the same width and dtype.
    dtype : numpy dtype, optional
        As of `DenseRows`.
    every : int
        A pass reads only so many blocks' last one.
    """

    def __init__(
        self, parts: list[Part], dtype: np.dtype[Any] | None = None, every: int = 1
    ) -> None:
        self._parts = parts
        self._every = every
        starts = np.cumsum([0, *(part.shape[0] for part in parts)])
        self._starts: list[int] = starts.tolist()
        self.shape: tuple[int, ...] = (self._starts[-1], parts[0].shape[1])
        self.stored = parts[0].dtype
        exact = np.can_cast(self.stored, np.float32)
        self.dtype = dtype or np.dtype(np.float32 if exact else np.float64)

    def slices(self) -> list[slice]:
        """Return the blocks of one pass, in order: those of an array of this shape."""
        n, p = self.shape
        return slices_of(n, p, self.dtype.itemsize)[self._every // 2 :: self._every]

    def block(self, rows: slice) -> NumPyArray:
        """Return the rows of a slice, converted; not to be written to."""
        return self._read(rows.start, rows.stop).astype(self.dtype, copy=False)

    def gather(self, rows: NumPyArray) -> NumPyArray:
        """Return rows by their indices, converted: an array of the caller's own."""
        return self.take(rows).astype(self.dtype, copy=False)

    def pick(self, rows: NumPyArray) -> NumPyArray:
        """Return the same: a block of rows is an array."""
        return self.gather(rows)

    def take(self, rows: NumPyArray) -> NumPyArray:
        """Return rows by their indices, as they are stored; read in their order on the disk."""
        order = np.argsort(rows, kind="stable")
        ascending = np.asarray(rows)[order]
        taken = np.empty((len(rows), self.shape[1]), self.stored)
        bounds = np.searchsorted(ascending, self._starts)
        for k, part in enumerate(self._parts):
            chosen = slice(bounds[k], bounds[k + 1])
            if chosen.start < chosen.stop:
                taken[order[chosen]] = part.take(ascending[chosen] - self._starts[k])
        return taken

    @property
    def is_cut_freely(self) -> bool:
        """Whether a block is read without those beside it."""
        return not any(part.is_whole for part in self._parts)

    def thinned(self, every: int) -> DiskRows:
        """Return rows of whose blocks a pass reads one of so many."""
        return DiskRows(self._parts, self.dtype, every)

    def precise(self) -> DiskRows:
        """Return the same rows, handed out in float64."""
        return DiskRows(self._parts, np.dtype(np.float64))

    def buffers(
        self, rng: np.random.Generator, count: int
    ) -> Generator[tuple[NumPyArray, NumPyArray], None, None]:
        """Yield all rows in parts of about `count`, each from all over the data, and their indices.

        Strips of consecutive rows are drawn without replacement, and a thread reads the next ones.
        Rows that are sorted by class are so mixed in each part (Xu et al. 2022, *In-database
        machine learning with CorgiPile*, who shuffle blocks and then the tuples of a buffer).
        """
        strips = self._strips(count)
        loads: list[list[_Piece]] = [[]]
        rows = 0
        for k in rng.permutation(len(strips)):
            piece = strips[k]
            size = piece.stop - piece.start
            if rows and rows + size > count:
                loads.append([])
                rows = 0
            loads[-1].append(piece)
            rows += size
        return read_ahead(self._load, loads)

    def _strips(self, count: int) -> list[_Piece]:
        width = max(1, self.shape[1] * self.stored.itemsize)
        wanted = min(max(count * width // _STRIPS, _LEAST_STRIP), _MOST_STRIP)
        size = max(1, wanted // width)
        strips = []
        for part, first in zip(self._parts, self._starts, strict=False):
            step = part.shape[0] if part.is_whole else min(size, max(1, part.shape[0] // 4))
            for start in range(0, part.shape[0], step):
                stop = min(start + step, part.shape[0])
                strips.append(_Piece(part, start, stop, first + start))
        return strips

    def _load(self, pieces: list[_Piece]) -> tuple[NumPyArray, NumPyArray]:
        pieces = sorted(pieces, key=lambda piece: piece.first)
        sizes = [piece.stop - piece.start for piece in pieces]
        rows = np.empty((sum(sizes), self.shape[1]), self.stored)
        indices = np.empty(len(rows), np.intp)
        at = 0
        for piece, size in zip(pieces, sizes, strict=True):
            rows[at : at + size] = piece.read()
            indices[at : at + size] = np.arange(piece.first, piece.first + size)
            at += size
        return indices, rows

    def _read(self, start: int, stop: int) -> NumPyArray:
        k = bisect_right(self._starts, start) - 1
        blocks: list[NumPyArray] = []
        while start < stop or not blocks:
            first = self._starts[k]
            end = min(stop, self._starts[k + 1])
            blocks.append(self._parts[k].read(start - first, end - first, self._every == 1))
            start, k = end, k + 1
        return blocks[0] if len(blocks) == 1 else np.concatenate(blocks)


def read_ahead(
    load: Callable[[Item], Result], items: Iterable[Item]
) -> Generator[Result, None, None]:
    """Yield `load` of each item, while a thread is at the next; it ends with the generator."""
    with ThreadPoolExecutor(1, "provenglm, ahead") as pool:
        waiting: Future[Result] | None = None
        for item in items:
            following = pool.submit(load, item)
            if waiting is not None:
                yield waiting.result()
            waiting = following
        if waiting is not None:
            yield waiting.result()
