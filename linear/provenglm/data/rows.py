"""The rows of a data set, read a block at a time.

What a solver asks of them is the protocol `Rows`. Dense arrays stay as they are, of any dtype and
order, read-only or not: a block is converted when it is read. Sparse rows are in `csr`.
"""

from __future__ import annotations

from typing import Any, Protocol, TypeAlias

import numpy as np
from scipy.sparse import csr_array, issparse

from provenglm.data.blocks import moments_of, slices_of
from provenglm.data.chunks import Chunks
from provenglm.data.csr import CsrRows
from provenglm.data.disk import DiskRows, on_disk, parts_in
from provenglm.types import NumPyArray

Features: TypeAlias = "NumPyArray | csr_array"
"""What a block of rows may be."""

Data: TypeAlias = "NumPyArray | csr_array | Chunks"
"""What a problem's features may be."""

__all__ = ["DenseRows", "Features", "Rows", "rows_of"]


class Rows(Protocol):
    """n rows of p features."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    """In which blocks are handed out: float32 or float64."""
    is_sparse: bool
    """Whether a block is a CSR matrix; else it is an array."""
    is_on_disk: bool
    """Whether they are read in blocks and never copied as a whole."""

    def slices(self) -> list[slice]:
        """Return the blocks of one pass, in order."""
        ...

    def block(self, rows: slice) -> Features:
        """Return the rows of a slice, converted; not to be written to."""
        ...

    @property
    def stored(self) -> np.dtype[Any]:
        """In which they are stored."""
        ...

    def pick(self, rows: NumPyArray) -> Features:
        """Return rows by their indices, converted: what a block of them would be."""
        ...

    def gather(self, rows: NumPyArray) -> NumPyArray:
        """Return rows by their indices, converted and dense: an array of the caller's own."""
        ...

    def take(self, rows: NumPyArray) -> NumPyArray:
        """Return rows by their indices, dense, as they are stored."""
        ...

    def precise(self) -> Rows:
        """Return the same rows, handed out in float64."""
        ...

    def moments(
        self, share: NumPyArray, center: NumPyArray, wanted: NumPyArray
    ) -> tuple[NumPyArray, NumPyArray]:
        """Return the means of ``x - center`` and of its square, in float64, of some columns.

        Parameters
        ----------
        share : numpy.ndarray, (n,)
        center : numpy.ndarray, (p,)
        wanted : numpy.ndarray, (c,)
            By their indices.
        """
        ...


def rows_of(features: Data, dtype: np.dtype[Any] | None = None) -> Rows:
    """Return the rows of features of any kind; with `dtype`, handed out in it."""
    if on_disk(features):
        return DiskRows(parts_in(features), dtype)
    if issparse(features):
        return CsrRows(features, dtype)
    assert isinstance(features, np.ndarray)
    return DenseRows(features, dtype)


class DenseRows:
    """The rows of a NumPy array.

    Parameters
    ----------
    features : numpy.ndarray, (n, p)
        Of a real dtype. Types that float32 holds exactly are handed out as float32, all others as
        float64.
    dtype : numpy dtype, optional
        float64, where float32 has too few digits.
    """

    is_sparse = is_on_disk = False

    def __init__(self, features: NumPyArray, dtype: np.dtype[Any] | None = None) -> None:
        self._features = features
        self.shape = features.shape
        exact = np.can_cast(features.dtype, np.float32)
        self.dtype = dtype or np.dtype(np.float32 if exact else np.float64)

    def slices(self) -> list[slice]:
        n, p = self.shape
        return slices_of(n, p, self.dtype.itemsize)

    def block(self, rows: slice) -> NumPyArray:
        return self._features[rows].astype(self.dtype, copy=False)

    @property
    def stored(self) -> np.dtype[Any]:
        return self._features.dtype

    def pick(self, rows: NumPyArray) -> NumPyArray:
        return self.gather(rows)

    def gather(self, rows: NumPyArray) -> NumPyArray:
        return self.take(rows).astype(self.dtype, copy=False)

    def take(self, rows: NumPyArray) -> NumPyArray:
        # np.take is faster, and copies all features if they are not in C order.
        if self._features.flags.c_contiguous:
            return np.asarray(np.take(self._features, rows, axis=0))
        return np.asarray(self._features[rows])

    def columns(self, rows: slice, chosen: NumPyArray) -> NumPyArray:
        """Return some columns of the rows of a slice, (c, rows)."""
        block = self._features[rows]
        if self._features.flags.c_contiguous:
            return np.asarray(np.take(block, chosen, axis=1).T)
        return np.asarray(block.T[chosen])

    def precise(self) -> DenseRows:
        return DenseRows(self._features, np.dtype(np.float64))

    def moments(
        self, share: NumPyArray, center: NumPyArray, wanted: NumPyArray
    ) -> tuple[NumPyArray, NumPyArray]:
        return moments_of(self, share, center, wanted)
