"""The interface of a data set's rows, which a solver reads one block at a time."""

from __future__ import annotations

from typing import Any, Protocol, TypeAlias

import numpy as np
from scipy.sparse import csr_array

from provenglm.types import NumPyArray

Features: TypeAlias = "NumPyArray | csr_array"
"""The types of a block of rows."""


class Rows(Protocol):
    """The n rows of p features of a data set."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    """The dtype of the blocks: float32 or float64."""
    is_sparse: bool
    """Whether a block is a CSR matrix; otherwise it is an array."""
    is_on_disk: bool
    """Whether the rows are read in blocks and never copied as a whole."""

    def slices(self) -> list[slice]:
        """Return the blocks of one pass, in order."""
        ...

    def block(self, rows: slice) -> Features:
        """Return the rows of a slice, converted. The result must not be modified."""
        ...

    @property
    def stored(self) -> np.dtype[Any]:
        """The dtype in which the rows are stored."""
        ...

    def pick(self, rows: NumPyArray) -> Features:
        """Return rows by their indices, converted, in the type of a block."""
        ...

    def gather(self, rows: NumPyArray) -> NumPyArray:
        """Return rows by their indices, converted and dense, as a new array."""
        ...

    def take(self, rows: NumPyArray) -> NumPyArray:
        """Return rows by their indices, dense, in the stored dtype."""
        ...

    def precise(self) -> Rows:
        """Return the same rows with blocks in float64."""
        ...
