"""Epochs of corrected batches of sparse rows, in place and in few numbers a step.

An epoch moves in the displacement U from the snapshot's weights: small numbers, for which float32
has digits enough. Its coordinates are centred, which costs a product of p numbers a step, and no
sparsity: with rows x - c and the intercept's beta = b + c U, the Hessian's row of the intercept is
next to nothing but its diagonal, and the largest eigenvalue, of features that are all positive, is
gone.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from scipy.linalg import get_blas_funcs
from scipy.sparse import csr_array

from provenglm.constants import Constants
from provenglm.losses import Loss, Softmax
from provenglm.rule import correct
from provenglm.types import NumPyArray
from provenglm.workers import Workers

_LANCZOS = 10
_MARGIN_OF_INTERCEPT = 1.5
"""On its curvature, which changes within an epoch."""

_WORK_OF_TWO = 200_000
"""Numbers of a batch, below which threads cost more than they bring."""

_NUMBERS_A_COLUMN = 4

_LEAST_DIAGONAL = 1e-2
"""Of the mean curvature: less is not believed of a rare feature."""


@dataclass(frozen=True)
class Batch:
    """Rows of a batch.

    Attributes
    ----------
    rows : slice
        Where they are among all.
    matrix, transposed : sparse matrices, (b, p) and (p, b)
    weight : numpy.ndarray, (b,)
        The rows' shares times n / b.
    """

    rows: slice
    matrix: csr_array
    transposed: Any
    target: NumPyArray
    weight: NumPyArray

    @property
    def pays_two(self) -> bool:
        """Whether its products are more work than the p numbers that a second thread adds."""
        return bool(self.matrix.nnz >= max(_WORK_OF_TWO, _NUMBERS_A_COLUMN * self.matrix.shape[1]))


@dataclass(frozen=True)
class Frame:
    """The coordinates and the metric of an epoch.

    Attributes
    ----------
    center : numpy.ndarray, (p,)
        Of the features; 0 without an intercept.
    inverse : numpy.ndarray, (p,), optional
        The inverse of a diagonal metric, else it is the identity.
    intercept : numpy.ndarray, () or (K,)
        The steps of the intercepts; 0 without one.
    """

    center: NumPyArray
    inverse: NumPyArray | None
    intercept: NumPyArray


@dataclass(frozen=True)
class Start:
    """What an epoch begins from: a snapshot.

    Attributes
    ----------
    scores, residual : numpy.ndarray, (n,) or (n, K)
    gradient : numpy.ndarray, (p + 1,) or (p + 1, K)
        The penalty's included.
    """

    scores: NumPyArray
    residual: NumPyArray
    gradient: NumPyArray


def run_epoch(
    loss: Loss,
    batches: list[list[Batch]],
    start: Start,
    frame: Frame,
    penalty: NumPyArray,
    numbers: Constants,
    workers: Workers,
) -> NumPyArray:
    """Return the displacement of theta after a step for each batch, in their order.

    A batch comes in parts, each of which is a thread's.

    A step is SVRG's with Nesterov's momentum: with the displacements A, where the gradient is
    taken, and U,

        U' = A - s (X_B^T (l'(z + X_B A) - l'(z)) + penalty A + gradient)
        A' = U' + momentum (U' - U)

    Every array of p numbers is gone through as often as that needs, and in place.

    Parameters
    ----------
    penalty : numpy.ndarray, (p,)
    """
    dtype = start.scores.dtype
    shape = start.gradient[:-1].shape
    size = numbers.step_size
    center = frame.center.astype(dtype)
    of_intercept = start.gradient[-1]
    drift = start.gradient[:-1] - np.multiply.outer(frame.center, of_intercept)
    scale = None if frame.inverse is None else _column(frame.inverse.astype(dtype), shape)
    drift *= -size if frame.inverse is None else -size * _column(frame.inverse, shape)
    drift = drift.astype(dtype)
    decay = 1 - size * (penalty if frame.inverse is None else penalty * frame.inverse)
    uniform = float(decay[0]) if decay.size and (decay == decay[0]).all() else None
    keep = _column(decay.astype(dtype), shape)
    axpy = get_blas_funcs("axpy", dtype=dtype)
    ahead, theta = np.zeros(shape, dtype), np.zeros(shape, dtype)
    ahead_bias = bias = np.zeros(shape[1:])
    for j, batch in enumerate(batches):
        product = partial(_product, loss, start, ahead, ahead_bias - center @ ahead, size)
        (new, of_bias), *others = workers.map(product, batch)
        for other, of_other in others:
            new += other
            of_bias += of_other
        # X_B^T r less its mean: the rows are centred.
        axpy(center, new, a=-of_bias) if not shape[1:] else _subtract_outer(new, center, of_bias)
        if scale is not None:
            new *= scale
        new += drift
        if uniform is not None:
            axpy(ahead.reshape(-1), new.reshape(-1), a=uniform)
        else:
            ahead *= keep
            new += ahead
        momentum = min((j + 1) / (j + 4), numbers.momentum)
        theta *= dtype.type(-momentum)
        axpy(new.reshape(-1), theta.reshape(-1), a=1 + momentum)
        ahead, theta = theta, new
        new_bias = ahead_bias + frame.intercept * (of_bias / size - of_intercept)
        ahead_bias, bias = new_bias + momentum * (new_bias - bias), new_bias
    result = np.empty(start.gradient.shape)
    result[:-1] = theta
    result[-1] = bias - frame.center @ result[:-1]
    return result


def _product(
    loss: Loss, start: Start, ahead: NumPyArray, bias: NumPyArray, size: float, batch: Batch
) -> tuple[NumPyArray, NumPyArray]:
    """Return the features' products with corrected residuals times the step, negative; sums."""
    scores = batch.matrix @ ahead
    scores += start.scores[batch.rows]
    scores += np.asarray(bias, scores.dtype)
    with np.errstate(over="ignore", invalid="ignore"):
        residual = np.ascontiguousarray(loss.residual(scores, batch.target))
    change = correct(residual, start.residual[batch.rows], np.zeros((), scores.dtype))
    weight = batch.weight * scores.dtype.type(-size)
    change *= weight if change.ndim == 1 else weight[:, None]
    return batch.transposed @ change, change.sum(axis=0, dtype=np.float64)


def _column(vector: NumPyArray, shape: tuple[int, ...]) -> NumPyArray:
    return vector if len(shape) == 1 else vector[:, None]


def _subtract_outer(matrix: NumPyArray, left: NumPyArray, right: NumPyArray) -> None:
    """Subtract an outer product in place: a rank-one update of BLAS, which wants columns."""
    ger = get_blas_funcs("ger", dtype=matrix.dtype)
    ger(-1.0, right.astype(matrix.dtype), left, a=matrix.T, overwrite_a=1)


class Measure:
    """Curvature of the first rows, in the columns that they have: frame and constants from it.

    Parameters
    ----------
    matrix : csr_array, (s, p)
    weight : numpy.ndarray, (s,)
        Shares, relative to their mean over all rows.
    scores : numpy.ndarray, (s,) or (s, K)
    """

    def __init__(
        self,
        loss: Loss,
        matrix: csr_array,
        target: NumPyArray,
        weight: NumPyArray,
        scores: NumPyArray,
    ) -> None:
        self._loss = loss
        self._width = matrix.shape[1]
        self._matrix, self._columns = compact(matrix)
        self._transposed = self._matrix.T
        self._weight = weight
        self._probability: NumPyArray | None = None
        if isinstance(loss, Softmax):
            self._probability = np.ascontiguousarray(loss.probability(scores))
            self._curvature = self._probability * (1 - self._probability)
        else:
            self._curvature = loss.weight_in_hessian(scores, target)

    def frame(self, intercept: bool, penalty: NumPyArray, diagonal: bool) -> Frame:
        """Return centre, metric and steps of the intercepts."""
        outputs = self._curvature.shape[1:]
        curvature = (self._curvature.T * self._weight).T
        total = curvature.sum(axis=0, dtype=np.float64) / len(curvature)
        of_row = curvature.sum(axis=1) if outputs else curvature
        center = np.zeros(self._width)
        steps = np.zeros(outputs)
        if intercept:
            center[self._columns] = self._transposed @ of_row / max(float(of_row.sum()), 1e-300)
            # Of classes, diag(h) - H is no larger than diag(h): Gershgorin's circles.
            margin = 2.0 if outputs else _MARGIN_OF_INTERCEPT
            steps = 1 / (margin * np.maximum(total, 1e-6 * float(np.max(total)) + 1e-300))
        inverse = None
        if diagonal:
            inverse = self._inverse(of_row / max(1, *outputs, 1), center, penalty)
        self._center = center[self._columns].astype(self._matrix.dtype)
        return Frame(center, inverse, steps)

    def _inverse(
        self, curvature: NumPyArray, center: NumPyArray, penalty: NumPyArray
    ) -> NumPyArray:
        square = self._matrix.copy()
        square.data = np.square(square.data)
        diagonal = np.zeros(self._width)
        diagonal[self._columns] = square.T @ curvature / len(curvature)
        diagonal -= np.square(center) * float(curvature.mean())
        diagonal = np.maximum(diagonal, 0)
        least = (
            _LEAST_DIAGONAL * float(diagonal[self._columns].mean()) if len(self._columns) else 0.0
        )
        return np.asarray(1 / (diagonal + least + penalty + 1e-300))

    def smoothness(self, frame: Frame, penalty: NumPyArray, gradient: NumPyArray) -> float:
        """Return the largest eigenvalue in the metric, by steps of the power method."""
        dtype = self._matrix.dtype
        root = np.ones(len(self._columns), dtype)
        if frame.inverse is not None:
            root = np.sqrt(frame.inverse[self._columns]).astype(dtype)
        root = _column(root, gradient[:-1].shape)
        vector = np.asarray(gradient[:-1][self._columns] * root, dtype)
        largest = 0.0
        for _ in range(_LANCZOS):
            norm = float(np.linalg.norm(vector))
            if not norm > 0 or not np.isfinite(norm):
                break
            vector = self._times(root * (vector / norm)) * root
            largest = float(np.linalg.norm(vector))
        scale = 1.0 if frame.inverse is None else frame.inverse
        return largest + float(np.max(penalty * scale, initial=0))

    def _times(self, vector: NumPyArray) -> NumPyArray:
        """Return the centred Hessian of the sample times a vector, in its columns."""
        change = self._matrix @ vector
        change -= self._center @ vector
        if self._probability is not None:
            change *= self._probability
            change -= self._probability * change.sum(axis=1)[:, None]
            change *= (self._weight / len(change))[:, None]
        else:
            change *= self._curvature * self._weight / len(change)
        result = self._transposed @ change
        result -= np.multiply.outer(self._center, change.sum(axis=0))
        return np.asarray(result)

    def largest_of_a_row(self, frame: Frame) -> float:
        """Return the largest smoothness of one of the rows."""
        scale = np.ones(len(self._columns), self._matrix.dtype)
        if frame.inverse is not None:
            scale = frame.inverse[self._columns].astype(self._matrix.dtype)
        square = self._matrix.copy()
        square.data = np.square(square.data)
        norms = square @ scale - 2 * (self._matrix @ (scale * self._center))
        norms += float(scale @ np.square(self._center))
        curvature = self._curvature
        if curvature.ndim > 1:
            # A row's matrix diag(p) - p p^T is at most 2 max p (1 - p): Gershgorin's circles.
            curvature = 2 * curvature.max(axis=1)
        return float(np.max(norms * curvature * self._weight, initial=0))


def compact(matrix: csr_array) -> tuple[csr_array, NumPyArray]:
    """Return a matrix without its empty columns, and the numbers of the others."""
    present = np.zeros(matrix.shape[1], bool)
    present[matrix.indices] = True
    columns = np.flatnonzero(present)
    number = np.zeros(matrix.shape[1], matrix.indices.dtype)
    number[columns] = np.arange(len(columns), dtype=number.dtype)
    parts = matrix.data, number[matrix.indices], matrix.indptr
    return csr_array(parts, shape=(matrix.shape[0], len(columns))), columns
