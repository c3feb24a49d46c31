"""Products of dense rows in memory, compiled."""

from __future__ import annotations

import numpy as np

from provenglm.compiled import njit
from provenglm.types import NumPyArray

_LONG_ROW = 1500
"""Rows of at least this length are read four at a time: their sums do not fit into a core's first
cache together with a row."""


@njit(nogil=True)
def products_of_rows(rows: NumPyArray, numbers: NumPyArray, sums: NumPyArray) -> None:
    """Add to `sums` (c, p) the products of dense rows (n, p) with some numbers, (c, n).

    Memory is read in order. Long rows are read four at a time, so that the sums are read less
    often.
    """
    n, p = np.uint64(rows.shape[0]), np.uint64(rows.shape[1])
    four = np.uint64(4)
    most = n // four if p >= np.uint64(_LONG_ROW) else np.uint64(0)
    for turn in range(most):
        i = turn * four
        a, b, c, d = rows[i], rows[i + np.uint64(1)], rows[i + np.uint64(2)], rows[i + np.uint64(3)]
        for k in range(np.uint64(len(numbers))):
            of_a, of_b = numbers[k, i], numbers[k, i + np.uint64(1)]
            of_c, of_d = numbers[k, i + np.uint64(2)], numbers[k, i + np.uint64(3)]
            sums_ = sums[k]
            for j in range(p):
                sums_[j] += (of_a * a[j] + of_b * b[j]) + (of_c * c[j] + of_d * d[j])
    for i in range(most * four, n):
        row = rows[i]
        for k in range(np.uint64(len(numbers))):
            number, sums_ = numbers[k, i], sums[k]
            for j in range(p):
                sums_[j] += number * row[j]
