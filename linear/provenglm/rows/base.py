"""What a solver asks of the rows of a data set, which it reads a block at a time."""

from __future__ import annotations

from typing import Any, Protocol, TypeAlias

import numpy as np
from scipy.sparse import csr_array

from provenglm.types import NumPyArray

Features: TypeAlias = "NumPyArray | csr_array"
"""What a block of rows may be."""


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
