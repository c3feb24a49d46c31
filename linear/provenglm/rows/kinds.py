"""Which storage of rows belongs to which kind of features."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from scipy.sparse import csr_array, issparse

from provenglm.rows.base import Rows
from provenglm.rows.chunks import Chunks
from provenglm.rows.csr import CsrRows
from provenglm.rows.dense import DenseRows
from provenglm.rows.disk import DiskRows, on_disk, parts_in
from provenglm.types import NumPyArray

Data: TypeAlias = "NumPyArray | csr_array | Chunks"
"""What a problem's features may be."""


def rows_of(features: Data, dtype: np.dtype[Any] | None = None) -> Rows:
    """Return the rows of features of any kind; with `dtype`, handed out in it."""
    if on_disk(features):
        return DiskRows(parts_in(features), dtype)
    if issparse(features):
        return CsrRows(features, dtype)
    assert isinstance(features, np.ndarray)
    return DenseRows(features, dtype)
