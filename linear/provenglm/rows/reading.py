"""Read the features of rows. No other folder imports this module.

Other folders use `Table.sum`, which calls a function for each block, or the functions of
`products`, `copies` and `gram`.
"""

from __future__ import annotations

from typing import Any, Protocol, cast

import numpy as np

from provenglm.rows.base import Features, Rows
from provenglm.types import NumPyArray


class _Readable(Rows, Protocol):
    """The methods of all classes that store rows in this process. Only dense rows have `take`."""

    def slices(self) -> list[slice]: ...

    def block(self, rows: slice) -> Features: ...

    def pick(self, rows: NumPyArray) -> Features: ...

    def take(self, rows: NumPyArray) -> NumPyArray: ...


def slices(rows: Rows) -> list[slice]:
    """Return the slices of the blocks of one pass, in order."""
    return cast("_Readable", rows).slices()


def block(rows: Rows, part: slice) -> Features:
    """Return the rows of a slice in the dtype of the blocks. Do not modify the result."""
    return cast("_Readable", rows).block(part)


def pick(rows: Rows, indices: NumPyArray) -> Features:
    """Return rows by their indices, in the dtype and type (array or CSR) of the blocks."""
    return cast("_Readable", rows).pick(indices)


def gather(rows: Rows, indices: NumPyArray) -> NumPyArray:
    """Return rows by their indices in the dtype of the blocks, as a new dense array."""
    picked: Any = pick(rows, indices)
    return np.asarray(picked.toarray() if rows.is_sparse else picked)


def take(rows: Rows, indices: NumPyArray) -> NumPyArray:
    """Return dense rows by their indices, in the stored dtype, as a new array."""
    return cast("_Readable", rows).take(indices)
