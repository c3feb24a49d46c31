"""A sample of sparse rows that stays sparse, for the Hessian over few columns."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.sparse import csr_array

from provenglm import constants
from provenglm.model.objective import Scaling
from provenglm.model.sample import Sample
from provenglm.rows.csr import CsrRows
from provenglm.rows.gram import Weights, gram
from provenglm.rows.products import column_products
from provenglm.types import NumPyArray
from provenglm.workers import Workers


def is_sparser(features: csr_array) -> bool:
    """Return whether a Hessian is computed faster from sparse rows than from dense ones."""
    return bool(
        constants.PAIR * np.square(_per_row(features))
        < constants.PRODUCT * np.square(features.shape[1])
    )


def size(features: csr_array, outputs: int, size_of_dense: int) -> int:
    """Return the number of rows in the sample of a Hessian.

    The number is that for dense data if they fit, or the number with which the Hessian costs as
    much as a pass, and at least 10 per feature. SciPy's products take 10 ns for a pair of numbers
    of a row, and a pass 6 ns for each of them and 20 ns for the row (measured).
    """
    n, p = features.shape
    if not is_sparser(features):
        return int(min(size_of_dense, constants.SAMPLE_NUMBERS // (p + 1)))
    stored = _per_row(features)
    like_a_pass = n * (0.6 * stored + 2) / (max(1.0, stored) ** 2 * outputs)
    return int(min(n, max(constants.LEAST_ROWS, constants.ROWS_OF_A_FEATURE * p, like_a_pass)))


def _per_row(features: csr_array) -> float:
    return len(features.data) / max(1, int(features.shape[0]))


class CenteredRows:
    r"""Sparse rows in theta's coordinates, which are only used in products.

    Row i is :math:`((x_i - c) / d, 1)`; without an intercept the last entry is 0. Centring adds a
    matrix of rank one to a product, so the rows are never stored in a dense array.

    Parameters
    ----------
    features : scipy.sparse.csr_array, (s, p)
    center, inverse : numpy.ndarray, (p,)
        c and 1 / d.
    intercept : bool
    """

    def __init__(
        self, features: csr_array, center: NumPyArray, inverse: NumPyArray, intercept: bool
    ) -> None:
        self.features = features
        self._center = center
        self._inverse = inverse
        self._intercept = float(intercept)
        self.shape = (features.shape[0], features.shape[1] + 1)

    def __len__(self) -> int:
        return int(self.shape[0])

    def __getitem__(self, rows: slice) -> CenteredRows:
        """Return some of the rows."""
        return CenteredRows(self.features[rows], self._center, self._inverse, bool(self._intercept))

    def __matmul__(self, theta: NumPyArray) -> NumPyArray:
        """Return the scores at theta."""
        weights = theta[:-1] * self._inverse[:, None]
        scores = self.features @ weights
        scores += self._intercept * theta[-1] - self._center @ weights
        return np.asarray(scores)

    def products(self, residual: NumPyArray) -> NumPyArray:
        """Return the products of the columns with residuals, (p + 1, K)."""
        total = residual.sum(axis=0)
        gradient = np.empty((self.shape[1], residual.shape[1]))
        gradient[:-1] = column_products(self.features, residual)
        gradient[:-1] -= np.multiply.outer(self._center, total)
        gradient[:-1] *= self._inverse[:, None]
        gradient[-1] = self._intercept * total
        return gradient

    def gram(self, weights: Weights, workers: Workers) -> NumPyArray:
        """Return the weighted products of the columns with each other."""
        scaling = Scaling(self._center, self._inverse)
        found = gram(CsrRows(self.features), weights, workers, coordinates=scaling, ones=True)
        if not self._intercept:
            outputs = len(found) // self.shape[1]
            found[-outputs:] = found[:, -outputs:] = 0
        return found


class SparseSample(Sample):
    """A sample whose rows are `CenteredRows`."""

    rows: CenteredRows

    def products(self, residual: NumPyArray) -> NumPyArray:
        return self.rows.products(residual)

    def gram(self, weights: Weights) -> NumPyArray:
        return self.rows.gram(weights, self.workers)


class ColumnMoments(NamedTuple):
    """The moments of each column, (p,), in units of a power of two near its largest number.

    `fourth` is the sum of the squared shares times the fourth powers of the differences from the
    centre.
    """

    unit: NumPyArray
    mean: NumPyArray
    square: NumPyArray
    fourth: NumPyArray


def column_moments(features: csr_array, share: NumPyArray, intercept: bool) -> ColumnMoments:
    """Return the moments of sparse columns; entries that are not stored count as 0."""
    p = features.shape[1]
    columns = features.indices
    largest = np.zeros(p)
    np.maximum.at(largest, columns, np.abs(features.data))
    # Divide by a power of two, so that no square overflows or underflows.
    unit = np.exp2(np.floor(np.log2(np.where(largest > 0, largest, 1))))
    numbers = features.data / unit[columns]
    each = np.repeat(share, np.diff(features.indptr))
    mean = np.bincount(columns, each * numbers, p)
    center = mean if intercept else np.zeros(p)
    change = numbers - center[columns]
    deviation = np.square(change)
    has_zeros = np.bincount(columns, minlength=p) < features.shape[0]
    absent = np.maximum(share.sum() - np.bincount(columns, each, p), 0) * has_zeros
    square = np.bincount(columns, each * deviation, p) + absent * np.square(center)
    if intercept:
        # As for dense rows, correct the rounding error of a mean of many equal numbers.
        first = np.bincount(columns, each * change, p) - absent * center
        mean = mean + first
        square = np.maximum(square - np.square(first), 0)
    absent = np.maximum(np.square(share).sum() - np.bincount(columns, np.square(each), p), 0)
    absent *= has_zeros
    fourth = np.bincount(columns, np.square(each * deviation), p) + absent * center**4
    return ColumnMoments(unit, mean, square, fourth)
