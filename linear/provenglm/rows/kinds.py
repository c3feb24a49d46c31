"""Choose the storage of rows for each kind of features, or take some of their rows."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from scipy.sparse import csr_array, issparse

from provenglm.rows import reading
from provenglm.rows.base import Rows
from provenglm.rows.chunks import Chunks
from provenglm.rows.csr import CsrRows
from provenglm.rows.dense import DenseRows
from provenglm.rows.disk import DiskRows, on_disk, parts_in
from provenglm.types import NumPyArray

LocalData: TypeAlias = "NumPyArray | csr_array | Chunks"
"""The types of features that this process reads."""


def rows_of(features: LocalData, dtype: np.dtype[Any] | None = None) -> Rows:
    """Return the rows of features in this process, with blocks in `dtype` if it is given."""
    if on_disk(features):
        return DiskRows(parts_in(features), dtype)
    if issparse(features):
        return CsrRows(features, dtype)
    assert isinstance(features, np.ndarray)
    return DenseRows(features, dtype)


def taken(features: LocalData, rows: NumPyArray, dtype: np.dtype[Any] | None = None) -> Any:
    """Return rows by their indices as features; those on disk as an array.

    Parameters
    ----------
    dtype : numpy dtype, optional
        The dtype of the result, instead of that of the features.
    """
    given: Any = features
    found = given[rows] if issparse(given) else reading.take(rows_of(given), rows)
    return found if dtype is None else found.astype(dtype, copy=False)
