"""Rows that are on disk, or in several arrays; they are read in blocks."""

from __future__ import annotations

from bisect import bisect_right
from typing import Any, TypeGuard

import numpy as np

from provenglm import constants
from provenglm.rows.blocks import slices_of
from provenglm.rows.chunks import Chunks
from provenglm.rows.parts import Part, mapped_root, part_of
from provenglm.types import NumPyArray


def on_disk(features: object) -> TypeGuard[NumPyArray | Chunks]:
    """Return whether the rows of these features are read in blocks and never copied as a whole."""
    if isinstance(features, np.ndarray):
        root = mapped_root(features) if features.nbytes > constants.SMALL else None
        # The file does not have the changes of a private copy.
        return root is not None and root.mode != "c"
    return isinstance(features, Chunks)


def parts_in(features: NumPyArray | Chunks) -> list[Part]:
    """Return the parts of features that are on disk."""
    return features.parts if isinstance(features, Chunks) else [part_of(features)]


class DiskRows:
    """The rows of several parts, one after the other.

    The blocks depend only on the number of rows and their width. The result of a fit is therefore
    identical for any division into parts.

    Parameters
    ----------
    parts : list of Part
        Parts of the same width and dtype.
    dtype : numpy dtype, optional
        As in `DenseRows`.
    stride : int
        A pass reads one block in `stride`.
    """

    is_sparse, is_on_disk = False, True

    def __init__(
        self, parts: list[Part], dtype: np.dtype[Any] | None = None, stride: int = 1
    ) -> None:
        self._parts = parts
        self._stride = stride
        starts = np.cumsum([0, *(part.shape[0] for part in parts)])
        self._starts: list[int] = starts.tolist()
        self.shape: tuple[int, ...] = (self._starts[-1], parts[0].shape[1])
        self._stored = parts[0].dtype
        exact = np.can_cast(self._stored, np.float32)
        self.dtype = dtype or np.dtype(np.float32 if exact else np.float64)

    def slices(self) -> list[slice]:
        """Return the blocks of one pass, in order."""
        n, p = self.shape
        return slices_of(n, p, self.dtype.itemsize)[self._stride // 2 :: self._stride]

    def block(self, rows: slice) -> NumPyArray:
        """Return the rows of a slice, converted. The result must not be modified."""
        return self._read(rows.start, rows.stop).astype(self.dtype, copy=False)

    def pick(self, rows: NumPyArray) -> NumPyArray:
        """Return rows by their indices, converted, as a new array."""
        return self.take(rows).astype(self.dtype, copy=False)

    def take(self, rows: NumPyArray) -> NumPyArray:
        """Return rows by their indices, in the stored dtype; the file is read in its order."""
        order = np.argsort(rows, kind="stable")
        ascending = np.asarray(rows)[order]
        taken = np.empty((len(rows), self.shape[1]), self._stored)
        bounds = np.searchsorted(ascending, self._starts)
        for k, part in enumerate(self._parts):
            chosen = slice(bounds[k], bounds[k + 1])
            if chosen.start < chosen.stop:
                taken[order[chosen]] = part.take(ascending[chosen] - self._starts[k])
        return taken

    @property
    def is_cut_freely(self) -> bool:
        """Whether a block can be read without the rows next to it."""
        return not any(part.is_whole for part in self._parts)

    def subsampled(self, stride: int) -> DiskRows:
        """Return the same rows with passes that read one block in `stride`, and at least one."""
        return DiskRows(self._parts, self.dtype, min(stride, len(self.slices())))

    def precise(self) -> DiskRows:
        """Return the same rows with blocks in float64."""
        return DiskRows(self._parts, np.dtype(np.float64))

    def _read(self, start: int, stop: int) -> NumPyArray:
        k = bisect_right(self._starts, start) - 1
        blocks: list[NumPyArray] = []
        while start < stop or not blocks:
            first = self._starts[k]
            end = min(stop, self._starts[k + 1])
            blocks.append(self._parts[k].read(start - first, end - first, self._stride == 1))
            start, k = end, k + 1
        return blocks[0] if len(blocks) == 1 else np.concatenate(blocks)
