"""QR factors of the rows of all blocks, and the columns that are sums of others up to rounding.

A Gram matrix has no digits of singular values below 1e-8 of the largest. The triangle of a QR
factorisation has them down to 1e-16. It is computed from one block of rows after the other: each
block is stacked below the triangle of the blocks before it (Demmel, Grigori, Hoemmen & Langou
2012).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import scipy.linalg
from scipy.sparse import issparse

from provenglm import constants
from provenglm.model.cholesky import ROUGH
from provenglm.model.objective import Objective
from provenglm.rows.copies import dense_part
from provenglm.types import NumPyArray

ROUNDING_OF_A_COLUMN = 1e-13
"""A column of norm 1 is a sum of others if these leave at most this much of it unexplained."""


class Basis(NamedTuple):
    """Independent columns, and the other columns as linear combinations of them.

    Attributes
    ----------
    upper : numpy.ndarray, (r, r)
        The triangle of the independent columns (the base).
    base, rest : numpy.ndarray
        Indices of columns; the base is in the triangle's order.
    factors : numpy.ndarray, (r, m)
        The other columns are the base times these.
    is_rough : bool
        Whether the products of the base's columns have too few digits.
    """

    upper: NumPyArray
    base: NumPyArray
    rest: NumPyArray
    factors: NumPyArray
    is_rough: bool

    @classmethod
    def of(cls, upper: NumPyArray, has_last: bool = False) -> Basis:
        """Choose independent columns from the triangle (r, w) of all, each relative to its norm.

        With `has_last`, the base includes the last column unless it is 0.
        """
        norms = np.linalg.norm(upper, axis=0)
        norms[norms == 0] = 1.0
        if has_last:
            norms[-1] /= 2
        upper, order = scipy.linalg.qr(upper / norms, mode="r", pivoting=True, check_finite=False)
        diagonal = np.abs(upper.diagonal())
        rank = int((diagonal > ROUNDING_OF_A_COLUMN).sum())
        base, rest, base_triangle = order[:rank], order[rank:], upper[:rank, :rank]
        factors = scipy.linalg.solve_triangular(
            base_triangle, upper[:rank, rank:], check_finite=False
        )
        factors = factors / norms[base][:, None] * norms[rest]
        is_rough = bool((np.square(diagonal[:rank]) < ROUGH).any())
        return cls(base_triangle * norms[base], base, rest, factors, is_rough)


def triangle(blocks: Iterable[NumPyArray], width: int) -> NumPyArray:
    """Return the triangle of a QR factorisation of rows, (w, w) or with fewer rows."""
    upper = np.zeros((0, width))
    for block in blocks:
        stacked = np.vstack([upper, block])
        upper = scipy.linalg.qr(stacked, mode="r", overwrite_a=True, check_finite=False)[0][:width]
    return upper


def parts_of_triangle(n: int, width: int) -> list[slice]:
    """Return parts of n rows, each so large that adding the triangle above it costs little."""
    size = max(constants.BLOCK_ROWS, 2 * width)
    return [slice(start, min(start + size, n)) for start in range(0, n, size)]


def weighted_rows(objective: Objective, weight: NumPyArray) -> Iterator[NumPyArray]:
    """Yield all rows in theta's coordinates times the roots of weights, then the penalty's rows."""
    used = objective.penalty > 0
    for part in parts_of_triangle(objective.n, len(used)):
        block = dense_part(objective.rows, part, objective.scaling, beside=1)
        block[:, -1] = objective.intercept
        block *= np.sqrt(weight[part])[:, None]
        yield block
    yield np.diag(np.sqrt(objective.penalty))[used]


def in_theta(objective: Objective, block: Any) -> NumPyArray:
    """Return rows in theta's coordinates, with the intercept's column."""
    block = block.toarray() if issparse(block) else block
    block = (block - objective.scaling.center) * objective.scaling.inverse
    return np.column_stack([block, np.full(len(block), float(objective.intercept))])


class TriangleMetric:
    """A positive definite matrix, stored as the triangle of its root.

    Parameters
    ----------
    upper : numpy.ndarray, (r, w)
        The triangle. Columns that are sums of others get the step 0.
    """

    def __init__(self, upper: NumPyArray) -> None:
        self._basis = Basis.of(upper)

    def solve(self, gradient: NumPyArray) -> NumPyArray:
        """Return the step for a gradient, (w,) or (w, 1)."""
        base, upper = self._basis.base, self._basis.upper
        step = np.zeros_like(gradient)
        once = scipy.linalg.solve_triangular(upper, gradient[base], trans=1, check_finite=False)
        step[base] = scipy.linalg.solve_triangular(upper, once, check_finite=False)
        return step
