"""Products of rows with weights, and of a block's columns with numbers of its rows.

The results of columns are in float64; for a block in float32 they are computed in float32.
"""

from __future__ import annotations

import numpy as np
from scipy.sparse import csr_array, issparse

from provenglm.rows import reading
from provenglm.rows.base import Features, Rows
from provenglm.rows.csr import csr_from_parts, transposed
from provenglm.types import NumPyArray
from provenglm.workers import Workers

_WIDE = 1000
"""For wider rows BLAS computes a product with one vector faster: in 0.6 of the time for 5,000
features."""


def row_products(
    rows: Rows, weights: NumPyArray, workers: Workers, center: NumPyArray | None = None
) -> NumPyArray:
    """Return the products of all rows, less a center, with weights (p, K): (n, K)."""
    found = np.empty((rows.shape[0], weights.shape[1]), np.result_type(rows.dtype, weights))

    def fill(part: slice) -> None:
        block = reading.block(rows, part)
        found[part] = (block if center is None else block - center) @ weights

    for _ in workers.map(fill, reading.slices(rows)):
        pass
    return found


def column_products(block: Features, numbers: NumPyArray) -> NumPyArray:
    """Return ``block.T @ numbers``: (p,) for numbers (b,), or (p, K) for numbers (b, K)."""
    if issparse(block):
        columns = transposed(block)
        if numbers.ndim == 1:
            return np.asarray(columns @ numbers, np.float64)
        # SciPy's product with several columns takes a fifth longer than one product per column.
        each = [columns @ numbers[:, k] for k in range(numbers.shape[1])]
        return np.asarray(np.stack(each, axis=1), np.float64)
    # With few outputs BLAS takes a third less time for this order of the factors.
    return np.asarray((numbers.T @ block).T, np.float64)


def column_squares(block: Features, numbers: NumPyArray) -> NumPyArray:
    """Return the products of the columns' squares with numbers of the rows."""
    return column_products(_squared(block), numbers)


def row_squares(block: Features, weights: NumPyArray) -> NumPyArray:
    """Return, for each row, the sum of its squares times a weight for each column, (b,)."""
    return np.asarray(_squared(block) @ weights)


def column_moments(
    block: Features, share: NumPyArray, center: NumPyArray, wanted: NumPyArray
) -> tuple[NumPyArray, NumPyArray]:
    """Return the weighted sums of ``x - center`` and of its square for some columns.

    Parameters
    ----------
    share : numpy.ndarray, (b,)
    center : numpy.ndarray, (p,)
    wanted : numpy.ndarray, (c,)
        The indices of the columns.
    """
    if not isinstance(block, csr_array):
        change = np.asarray(block)[:, wanted].astype(np.float64) - center[wanted]
        return share @ change, share @ np.square(change)
    (count, p), columns = block.shape, block.indices
    change = block.data.astype(np.float64) - center[columns]
    each = np.repeat(share, np.diff(block.indptr))
    present = np.bincount(columns, each, p)
    mean = np.bincount(columns, each * change, p)
    square = np.bincount(columns, each * np.square(change), p)
    # If a column is stored in every row, the share of absent entries is only rounding.
    is_full = np.bincount(columns, minlength=p) == count
    absent = np.where(is_full, 0.0, np.maximum(share.sum() - present, 0))
    mean, square = mean - absent * center, square + absent * np.square(center)
    return mean[wanted], square[wanted]


def dense_products(block: NumPyArray, numbers: NumPyArray) -> NumPyArray:
    """Return the products of dense features with some vectors (c, rows), as (c, p) in float64.

    For one vector and narrow rows BLAS takes twice as long as a loop that reads the rows in their
    order, because it reads several rows at a time.
    """
    if len(numbers) == 1 and block.shape[1] < _WIDE and block.flags.c_contiguous:
        return np.asarray(np.einsum("ki,ij->kj", numbers, block), np.float64)
    return np.asarray(numbers @ block, np.float64)


def _squared(block: Features) -> Features:
    if isinstance(block, csr_array):
        return csr_from_parts(np.square(block.data), block.indices, block.indptr, block.shape)
    return np.square(block)
