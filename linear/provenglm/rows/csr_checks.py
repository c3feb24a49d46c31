"""Check sparse features and convert them to the form that the solver reads."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy.sparse import csr_array

from provenglm import constants
from provenglm.rows.csr import csr_from_parts
from provenglm.types import NumPyArray

_MOST_OF_FLOAT32 = 1 << 24
"""Whole numbers up to this size are exact in float32."""


def canonical(name: str, features: csr_array) -> csr_array:
    """Return a CSR matrix in float32 or float64, with sorted columns and without duplicates.

    The result shares arrays that have this form already. Duplicates are summed in their own dtype,
    as SciPy does; stored zeros are kept. Whole numbers become float32 if that is exact.

    Parameters
    ----------
    name : str
        The name of the estimator's class.
    features : scipy.sparse.csr_array or csr_matrix, (n, p)
        The features. Neither the matrix nor the flags that SciPy keeps of it are changed.

    Raises
    ------
    ValueError
        If a column index is out of range, or if the matrix's arrays do not fit together.
    """
    n, p = features.shape
    data, indices, indptr = features.data, features.indices, features.indptr
    _check_parts(name, data, indices, indptr, (n, p))
    if max(len(indices), p, n) <= np.iinfo(np.int32).max:
        indices = indices.astype(np.int32, copy=False)
        indptr = indptr.astype(np.int32, copy=False)
    stored = int(indptr[-1])
    rows = csr_from_parts(data[:stored], indices[:stored], indptr, (n, p))
    if not rows.has_canonical_format:
        rows = rows.copy()
        rows.sum_duplicates()
    return csr_from_parts(as_float(rows.data), rows.indices, rows.indptr, (n, p))


def as_float(data: NumPyArray) -> NumPyArray:
    """Return numbers as float32 or float64, whichever is exact, without a copy if possible."""
    if data.dtype in (np.dtype(np.float32), np.dtype(np.float64)):
        return data
    single = np.can_cast(data.dtype, np.float32)
    if not single and data.dtype.kind in "iu":
        least, most = int(data.min(initial=0)), int(data.max(initial=0))
        single = max(-least, most) <= _MOST_OF_FLOAT32
    return data.astype(np.float32 if single else np.float64)


def first_where(
    features: csr_array, is_wrong: Callable[[NumPyArray], NumPyArray]
) -> tuple[int, int, object] | None:
    """Return row, column and value of the first stored number that is invalid."""
    size = constants.PART_ROWS
    for first in range(0, len(features.data), size):
        wrong = is_wrong(features.data[first : first + size])
        if wrong.any():
            at = first + int(np.argmax(wrong))
            row = int(np.searchsorted(features.indptr, at, side="right")) - 1
            return row, int(features.indices[at]), features.data[at]
    return None


def _check_parts(
    name: str,
    data: NumPyArray,
    indices: NumPyArray,
    indptr: NumPyArray,
    shape: tuple[int, int],
) -> None:
    """Raise an error if SciPy's products would read past the end of an array."""
    n, p = shape
    stored = int(indptr[-1]) if len(indptr) else -1
    fits = len(indptr) == n + 1 and indptr[0] == 0 and stored <= min(len(data), len(indices))
    if not fits or (n and bool((np.diff(indptr) < 0).any())):
        raise ValueError(
            f"X is sparse, and its indptr does not fit its shape {shape} and its {len(data)} "
            f"values, so that {name} would read beyond them: X.check_format() tells more"
        )
    if stored == 0:
        return
    for column in (int(indices[:stored].min()), int(indices[:stored].max())):
        if not 0 <= column < p:
            row = int(np.searchsorted(indptr, np.argmax(indices == column), side="right")) - 1
            raise ValueError(
                f"X is sparse, and has an entry for column {column} in row {row}, but only {p} "
                "columns: create it again with the right shape"
            )
