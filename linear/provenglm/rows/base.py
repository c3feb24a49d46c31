"""What a solver knows of a data set's rows. They are read in this folder: see `reading`."""

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

    def precise(self) -> Rows:
        """Return the same rows with blocks in float64."""
        ...
