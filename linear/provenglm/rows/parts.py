"""The storage of rows: an array in memory, or a file that is read in blocks.

A memory-mapped array is read as a file, for two reasons. The pages of a mapping count as memory of
the process as long as they are mapped. And if a mapped file is truncated, an access ends the
process with a bus error, while a read returns too few bytes, which becomes an error message.
"""

from __future__ import annotations

import mmap
import os
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Protocol, cast, runtime_checkable

import numpy as np

from provenglm.types import NumPyArray

_GAP = 1 << 14
"""Rows are read together if at most this many bytes lie between them: reading these bytes takes
about as long as another read."""

_WIDEST = 4
"""Rows are read through the mapping if their distance in the file is more than this many times
their width."""

_AHEAD = 1 << 23
"""The largest number of bytes of one read. The system is also asked to read this far ahead."""


@runtime_checkable
class Part(Protocol):
    """Some consecutive rows of a data set."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape (n, p)."""
        ...

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype in which the rows are stored."""
        ...

    @property
    def is_whole(self) -> bool:
        """Whether reading a few rows takes as long as reading all of them."""
        ...

    def read(self, start: int, stop: int, ahead: bool = False) -> NumPyArray:
        """Return rows in the stored dtype. They must not be modified. Any thread may call this.

        `ahead` says that the rows that follow are likely to be read soon.
        """
        ...

    def take(self, rows: NumPyArray) -> NumPyArray:
        """Return rows by their ascending indices, as a new array."""
        ...


@dataclass(frozen=True)
class ArrayPart:
    """The rows of an array in memory, (n, p)."""

    array: NumPyArray
    is_whole = False

    @property
    def shape(self) -> tuple[int, ...]:
        return self.array.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.array.dtype

    def read(self, start: int, stop: int, ahead: bool = False) -> NumPyArray:
        return self.array[start:stop]

    def take(self, rows: NumPyArray) -> NumPyArray:
        return np.asarray(self.array[rows])


@dataclass(frozen=True)
class CsrPart:
    """The rows of a CSR matrix in memory. All such parts are joined to one matrix before a fit."""

    matrix: Any
    is_whole = False

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.matrix.shape)

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype(self.matrix.dtype)

    def read(self, start: int, stop: int, ahead: bool = False) -> NumPyArray:
        return np.asarray(self.matrix[start:stop].toarray())

    def take(self, rows: NumPyArray) -> NumPyArray:
        return np.asarray(self.matrix[rows].toarray())


@dataclass(frozen=True)
class Stamp:
    """The properties of a file that show whether it has changed."""

    device: int
    inode: int
    size: int
    changed: int

    @classmethod
    def of(cls, file: int | str) -> Stamp:
        """Return the stamp of a path or an open file."""
        there = os.stat(file)
        return cls(there.st_dev, there.st_ino, there.st_size, there.st_mtime_ns)


@dataclass(frozen=True)
class FilePart:
    """Rows that are stored in a file at equal distances.

    Parameters
    ----------
    path : str
    offset : int
        The position of the first number, in bytes.
    shape : tuple of int, (n, p)
    dtype : numpy.dtype
    strides : tuple of int
        The distances in bytes from row to row and from column to column. The smaller one is the
        size of a number.
    stamp : Stamp
        The stamp of the file when it was opened.
    """

    path: str
    offset: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    strides: tuple[int, ...]
    stamp: Stamp
    is_whole = False

    def read(self, start: int, stop: int, ahead: bool = False) -> NumPyArray:
        with _Reader(self) as reader:
            if self._by_columns:
                return self._columns(reader, start, stop)
            rows = self._span(reader, start, stop)
            step = self.strides[0]
            if ahead:
                reader.expect(self.offset + stop * step + _AHEAD, (stop - start) * step)
            return rows

    def take(self, rows: NumPyArray) -> NumPyArray:
        if self._by_columns:
            return self._take_by_columns(rows)
        taken = np.empty((len(rows), self.shape[1]), self.dtype)
        # Read rows together if they are close to each other.
        far = np.flatnonzero(np.diff(rows) * self.strides[0] > _GAP) + 1
        bounds = [0, *far.tolist(), len(rows)]
        step = self.strides[0]
        with _Reader(self) as reader:
            for first, last in pairwise(bounds):
                start, count = int(rows[first]), int(rows[last - 1] - rows[first]) + 1
                if last - first == 1:
                    reader.fill(taken[first], self.offset + start * step)
                else:
                    span = self._span(reader, start, start + count)
                    taken[first:last] = span[rows[first:last] - start]
            reader.check()
        return taken

    @property
    def _by_columns(self) -> bool:
        return self.strides[1] > self.strides[0]

    def _span(self, reader: _Reader, start: int, stop: int) -> NumPyArray:
        step, width = self.strides[0], self.shape[1] * self.dtype.itemsize
        raw = np.empty((stop - start - 1) * step + width, np.uint8)
        reader.into(raw, self.offset + start * step)
        shape = stop - start, self.shape[1]
        return np.ndarray(shape, self.dtype, cast("Any", raw), 0, self.strides)

    def _columns(self, reader: _Reader, start: int, stop: int) -> NumPyArray:
        columns = np.empty((self.shape[1], stop - start), self.dtype)
        for j, column in enumerate(columns):
            at = self.offset + j * self.strides[1] + start * self.dtype.itemsize
            reader.into(column.view(np.uint8), at)
        return columns.T

    def _take_by_columns(self, rows: NumPyArray) -> NumPyArray:
        """Return rows of a file that is stored by columns, in several reads."""
        taken = np.empty((len(rows), self.shape[1]), self.dtype)
        size = max(1, _AHEAD // (self.shape[1] * self.dtype.itemsize))
        first = 0
        while first < len(rows):
            start = int(rows[first])
            last = int(np.searchsorted(rows, start + size))
            taken[first:last] = self.read(start, int(rows[last - 1]) + 1)[rows[first:last] - start]
            first = last
        return taken


def changed(path: str, was: Stamp, reason: str = "", now: Stamp | None = None) -> OSError:
    """Return the error for a file that has changed since it was opened."""
    if now is None:
        try:
            now = Stamp.of(path)
        except OSError:
            return OSError(
                f"{path} is gone, and rows are read from it several times: put it back, and call "
                "fit again"
            )
    if now.size != was.size:
        what = f"has {now.size:,} bytes, and had {was.size:,}"
    elif now != was:
        what = "was written to or replaced"
    else:
        what = f"cannot be read ({reason})"
    return OSError(
        f"{path} {what} since it was opened: do not change it during a fit, and call fit again"
    )


class _Reader:
    """An open file that is checked for changes."""

    def __init__(self, part: FilePart) -> None:
        self._part = part

    def __enter__(self) -> _Reader:
        try:
            self._file = os.open(self._part.path, os.O_RDONLY | getattr(os, "O_BINARY", 0))
        except OSError as error:
            raise changed(self._part.path, self._part.stamp) from error
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._file)

    def into(self, raw: NumPyArray, at: int) -> None:
        """Fill an array with the bytes from `at` on; raise an error if the file has changed."""
        self.fill(raw, at)
        self.check()

    def fill(self, raw: NumPyArray, at: int) -> None:
        """Fill an array with the bytes from `at` on."""
        view = memoryview(cast("Any", raw)).cast("B")
        if not hasattr(os, "preadv"):
            os.lseek(self._file, at, os.SEEK_SET)
        while len(view):
            if hasattr(os, "preadv"):
                count = os.preadv(self._file, [view], at)
            else:
                data = os.read(self._file, len(view))
                count = len(data)
                view[:count] = data
            if not count:
                raise changed(self._part.path, self._part.stamp, "its end came early")
            view, at = view[count:], at + count

    def check(self) -> None:
        """Raise an error if the file has changed; called after a read."""
        now, was = Stamp.of(self._file), self._part.stamp
        if now != was:
            raise changed(self._part.path, was, now=now)

    def expect(self, at: int, count: int) -> None:
        """Ask the system to read some bytes in the background."""
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(self._file, at, count, os.POSIX_FADV_WILLNEED)


@dataclass(frozen=True)
class MappedPart:
    """The rows of a memory map that cannot be read as a file.

    Blocks are copied, and their pages are then released.
    """

    array: NumPyArray
    mapping: mmap.mmap
    address: int
    """The address of the mapping's first byte."""
    is_whole = False

    @property
    def shape(self) -> tuple[int, ...]:
        return self.array.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.array.dtype

    def read(self, start: int, stop: int, ahead: bool = False) -> NumPyArray:
        return self._copied(self.array[start:stop], slice(None))

    def take(self, rows: NumPyArray) -> NumPyArray:
        taken = np.empty((len(rows), self.shape[1]), self.dtype)
        size = max(1, _AHEAD // max(1, abs(self.array.strides[0])))
        first = 0
        while first < len(rows):
            start = int(rows[first])
            last = int(np.searchsorted(rows, start + size))
            block = self.array[start : int(rows[last - 1]) + 1]
            taken[first:last] = self._copied(block, rows[first:last] - start)
            first = last
        return taken

    def _copied(self, block: NumPyArray, rows: slice | NumPyArray) -> NumPyArray:
        copy = np.array(block[rows])
        if hasattr(self.mapping, "madvise"):
            low, high = _extent(block)
            page = mmap.PAGESIZE
            low, high = (low - self.address) // page * page, high - self.address
            self.mapping.madvise(mmap.MADV_DONTNEED, low, min(high, len(self.mapping)) - low)
        return copy


@dataclass(frozen=True)
class Span:
    """Consecutive rows of a part of any kind."""

    part: Part
    start: int
    stop: int

    @property
    def shape(self) -> tuple[int, ...]:
        return self.stop - self.start, self.part.shape[1]

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.part.dtype

    @property
    def is_whole(self) -> bool:
        return self.part.is_whole

    def read(self, start: int, stop: int, ahead: bool = False) -> NumPyArray:
        return self.part.read(self.start + start, self.start + stop, ahead)

    def take(self, rows: NumPyArray) -> NumPyArray:
        return self.part.take(self.start + rows)


def cut(part: Part, start: int, stop: int) -> Part:
    """Return the rows of a part from `start` to `stop`, without reading them."""
    if isinstance(part, ArrayPart | MappedPart):
        return replace(part, array=part.array[start:stop])
    if isinstance(part, CsrPart):
        return CsrPart(part.matrix[start:stop])
    if isinstance(part, FilePart):
        shape = stop - start, part.shape[1]
        return replace(part, offset=part.offset + start * part.strides[0], shape=shape)
    return Span(part, start, stop)


def part_of(array: NumPyArray) -> Part:
    """Return the rows of an array as a part; a memory-mapped array is read as a file."""
    root = mapped_root(array)
    if root is None or array.size == 0:
        return ArrayPart(array)
    # The file does not have the changes of a private copy.
    if root.mode == "c":
        return ArrayPart(array)
    first = _address(root) - root.offset % mmap.ALLOCATIONGRANULARITY
    return _file_of(array, root) or MappedPart(array, cast("mmap.mmap", root.base), first)


def mapped_root(array: object) -> Any:
    """Return the memory map, a `numpy.memmap`, that an array is a view of, or None."""
    base: Any = array
    while base is not None:
        if isinstance(base, np.memmap) and isinstance(base.base, mmap.mmap):
            return base
        base = base.base if isinstance(base, np.ndarray) else None
    return None


def _file_of(array: NumPyArray, root: Any) -> FilePart | None:
    """Return the rows as a part of the file, or None if its layout does not allow that."""
    (n, p), (row, column), size = array.shape, array.strides, array.dtype.itemsize
    if n == 1:
        row = p * max(column, size)
    if p == 1:
        column = size
    by_rows = column == size and size * p <= row <= _WIDEST * size * p
    by_columns = row == size and column >= size * n
    if root.filename is None or not (by_rows or by_columns):
        return None
    path = os.fspath(root.filename)
    offset = root.offset + _address(array) - _address(root)
    try:
        part = FilePart(path, offset, (n, p), array.dtype, (row, column), Stamp.of(path))
        # Another file may have the same name by now, so compare some rows.
        for k in {0, n // 3, n // 2, n - 1}:
            if part.read(k, k + 1).tobytes() != np.asarray(array[k : k + 1]).tobytes():
                return None
    except OSError:
        return None
    return part


def _address(array: NumPyArray) -> int:
    return int(array.__array_interface__["data"][0])


def _extent(array: NumPyArray) -> tuple[int, int]:
    """Return the addresses of an array's first byte and of the byte after its last."""
    low = high = _address(array)
    for length, stride in zip(array.shape, array.strides, strict=True):
        change = (length - 1) * stride
        low, high = low + min(change, 0), high + max(change, 0)
    return low, high + array.dtype.itemsize
