r"""The objective in the solver's own coordinates, and its full pass.

The solver sees :math:`\hat x_j = (x_j - c_j) / d_j`, with the weighted mean and standard deviation
of each feature, and the penalty :math:`\lambda / d_j^2` for each: the same function of the same
model, better scaled. Rows are never scaled themselves: the pass takes the scores of a block with
:math:`W = \theta / d` and puts the gradient into these coordinates afterwards.

`theta` has p + 1 rows, the last of them the intercept, and a column for each output of softmax:
``(p + 1,)`` or ``(p + 1, K)``, float64.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from gluon_svrg._compat import NumPyArray
from gluon_svrg.linear.losses import Loss
from gluon_svrg.linear.problem import Problem
from gluon_svrg.linear.rows import DenseRows, Rows
from gluon_svrg.linear.workers import Workers

_OFFSET_OF_FLOAT32 = 30.0
"""A mean of so many standard deviations, and float32 is left: it costs one to two digits."""

_OFFSET_OF_FLOAT64 = 1e5
"""The same for float64: from there on blocks are centred before they are multiplied."""

_PROBED_ROWS = 512


@dataclass(frozen=True)
class Snapshot:
    """What one pass over all rows gives.

    Attributes
    ----------
    theta : numpy.ndarray, (p + 1,) or (p + 1, K)
    objective : float
    gradient : numpy.ndarray, theta's shape
        The penalty's included.
    scores : numpy.ndarray, (n,) or (n, K)
        The score table: what the snapshot's gradient of any batch is computed from.
    """

    theta: NumPyArray
    objective: float
    gradient: NumPyArray
    scores: NumPyArray


@dataclass(frozen=True)
class Scaling:
    """Centre and inverse scale of each feature; an inverse scale of 0 leaves a feature out."""

    center: NumPyArray
    inverse: NumPyArray

    def to_user(self, theta: NumPyArray) -> tuple[NumPyArray, NumPyArray]:
        """Return weights and intercept for the rows as they are."""
        weights = (theta[:-1].T * self.inverse).T
        return weights, theta[-1] - self.center @ weights

    def from_user(self, weights: NumPyArray, intercept: NumPyArray) -> NumPyArray:
        """Return theta for the user's weights and intercept."""
        used = self.inverse > 0
        scale = np.divide(1, self.inverse, out=np.zeros_like(self.inverse), where=used)
        return np.concatenate(
            [(weights.T * scale).T, [intercept + self.center @ (weights.T * used).T]]
        )


@dataclass
class Objective:
    """Rows with targets and shares, and the full pass over them.

    Attributes
    ----------
    penalty : numpy.ndarray, (p + 1,)
        Of each row of theta: lambda / d_j^2, and 0 of the intercept.
    target_moment : numpy.ndarray, theta[:-1]'s shape
        Sum of share x x^ x target, for the certificate.
    """

    rows: Rows
    target: NumPyArray
    share: NumPyArray
    loss: Loss
    scaling: Scaling
    penalty: NumPyArray
    intercept: bool
    workers: Workers
    target_moment: NumPyArray
    centered: bool = False
    order: NumPyArray | None = None
    """Of shuffled rows: which of the user's rows each of them is."""
    passes: float = 0.0

    @property
    def n(self) -> int:
        """Number of rows."""
        return self.rows.shape[0]

    def used(self, theta: NumPyArray) -> NumPyArray:
        """Return the penalty in the shape that multiplies `theta`."""
        return self.penalty if theta.ndim == 1 else self.penalty[:, None]

    def block(self, rows: slice) -> NumPyArray:
        """Return a block as the scores are taken from it."""
        block = self.rows.block(rows)
        return block - self.scaling.center if self.centered else block

    def snapshot(self, theta: NumPyArray) -> Snapshot:
        """Return objective, gradient and scores at `theta`: one pass."""
        dtype = self.rows.dtype
        weights, bias = self.scaling.to_user(theta)
        if self.centered:
            bias = theta[-1]
        weights, bias = padded(weights.astype(dtype)), np.asarray(bias, dtype)
        outputs = theta.shape[1:]
        scores = np.empty((self.n, *outputs), dtype)

        def of_block(rows: slice) -> tuple[float, NumPyArray, NumPyArray]:
            block = self.block(rows)
            score = of_outputs(block @ weights, outputs)
            score += bias
            scores[rows] = score
            value, residual = self.loss.value_and_residual(score, self.target[rows])
            share = self.share[rows]
            residual *= share if residual.ndim == 1 else share[:, None]
            return (
                float(np.asarray(value, np.float64) @ share),
                products(block, residual),
                residual.sum(axis=0, dtype=np.float64),
            )

        value, gradient = 0.0, np.zeros_like(theta)
        for of_value, of_weights, of_intercept in self.workers.map(of_block, self.rows.slices()):
            value += of_value
            gradient[:-1] += of_weights
            gradient[-1] += of_intercept
        self.passes += 1
        self._to_theta(gradient)
        penalty = self.used(theta)
        value += 0.5 * float((penalty * theta * theta).sum())
        gradient += penalty * theta
        return Snapshot(theta, value, gradient, scores)

    def _to_theta(self, gradient: NumPyArray) -> None:
        """Put a gradient with respect to (W, b) into these coordinates, in place."""
        if not self.centered:
            gradient[:-1] -= np.multiply.outer(self.scaling.center, gradient[-1])
        gradient[:-1] = (gradient[:-1].T * self.scaling.inverse).T
        if not self.intercept:
            gradient[-1] = 0

    def sample(self, rows: NumPyArray) -> NumPyArray:
        """Return rows in these coordinates, with the intercept's column: (s, p + 1), float64."""
        sample = np.empty((len(rows), self.rows.shape[1] + 1))
        size = max(64, len(rows) // (4 * self.workers.count))
        slices = [slice(start, start + size) for start in range(0, len(rows), size)]

        def gather(part: slice) -> None:
            block = sample[part]
            np.subtract(self.rows.gather(rows[part]), self.scaling.center, out=block[:, :-1])
            block[:, :-1] *= self.scaling.inverse

        for _ in self.workers.map(gather, slices):
            pass
        sample[:, -1] = self.intercept
        return sample

    def batch_gradient(self, rows: slice, block: NumPyArray, residual: NumPyArray) -> NumPyArray:
        """Return the gradient of some rows from their residuals, weighted by their shares.

        Without the penalty, and a sum: not scaled to all rows.
        """
        residual *= self.share[rows] if residual.ndim == 1 else self.share[rows, None]
        gradient = np.empty((self.rows.shape[1] + 1, *residual.shape[1:]))
        gradient[:-1] = products(block, residual)
        gradient[-1] = residual.sum(axis=0, dtype=np.float64)
        self._to_theta(gradient)
        return gradient


def padded(matrix: NumPyArray) -> NumPyArray:
    """Return a matrix with columns of zeros up to a multiple of 8, from 9 on of 16.

    A product with 16 columns takes OpenBLAS less time than one with 10.
    """
    if matrix.ndim == 1:
        return matrix
    count = matrix.shape[1]
    step = 8 if count <= 8 else 16
    wide = np.zeros((len(matrix), -(-count // step) * step), matrix.dtype)
    wide[:, :count] = matrix
    return wide


def of_outputs(scores: NumPyArray, outputs: tuple[int, ...]) -> NumPyArray:
    """Return the scores without those of padding."""
    return scores[:, : outputs[0]] if outputs else scores


def products(block: NumPyArray, residual: NumPyArray) -> NumPyArray:
    """Return the products of features and residuals, summed over the rows: float64."""
    if residual.ndim == 1:
        return (residual @ block).astype(np.float64)
    return (block.T @ padded(residual))[:, : residual.shape[1]].astype(np.float64)


def prepare(problem: Problem, workers: Workers) -> tuple[Objective, Snapshot]:
    """Measure the features in one pass, which also gives the snapshot of the null model.

    The null model has the best intercept and no weights.
    """
    share = problem.shares()
    loss, target = problem.loss, problem.target
    rows, shift = _rows_of(problem.features)
    n, p = rows.shape
    bias = np.zeros(loss.outputs if loss.outputs > 1 else ())
    if problem.fit_intercept:
        bias = np.asarray(loss.null_scores(target, share), np.float64)
    scores = np.broadcast_to(bias, (n, *bias.shape)).astype(rows.dtype)
    value, residual = loss.value_and_residual(scores, target)
    residual = (residual.T * share).T
    aside = np.column_stack([share, residual]).astype(rows.dtype)
    shifted = np.any(shift != 0)

    def of_block(part: slice) -> tuple[NumPyArray, NumPyArray]:
        block = rows.block(part)
        if shifted:
            block = block - shift
        square = np.square(block)
        return (aside[part].T @ block).astype(np.float64), aside[part, 0] @ square

    sums, squares = np.zeros((1 + residual.size // n, p)), np.zeros(p)
    with np.errstate(over="ignore", invalid="ignore"):
        for of_sums, of_squares in workers.map(of_block, rows.slices()):
            sums += of_sums
            squares += of_squares
    gradient = np.zeros((p + 1, *bias.shape))
    gradient[-1] = residual.sum(axis=0, dtype=np.float64)
    gradient[:-1] = sums[1] if loss.outputs == 1 else sums[1:].T
    gradient[:-1] += np.multiply.outer(shift, gradient[-1])
    scaling = _scaling(sums[0], squares, shift, problem.fit_intercept)
    usable = scaling.inverse > 0
    penalty = np.zeros(p + 1)
    penalty[:-1] = problem.l2 * np.square(scaling.inverse)
    # What is left out of the data is kept at 0 by a penalty of its own.
    penalty[:-1][~usable] = 1.0
    if not problem.fit_intercept:
        penalty[-1] = 1.0
    relative = np.abs(scaling.center) * scaling.inverse
    objective = Objective(
        rows=rows,
        target=target,
        share=share,
        loss=loss,
        scaling=scaling,
        penalty=penalty,
        intercept=problem.fit_intercept,
        workers=workers,
        target_moment=np.zeros(()),
        centered=bool(relative.max(initial=0) > _OFFSET_OF_FLOAT64),
        passes=1.0,
    )
    if objective.centered:
        gradient[:-1] -= np.multiply.outer(scaling.center, gradient[-1])
    objective._to_theta(gradient)
    theta = np.zeros_like(gradient)
    theta[-1] = bias
    objective.target_moment = -gradient[:-1]
    value_now = float(np.asarray(value, np.float64) @ share)
    return objective, Snapshot(theta, value_now, gradient, scores)


def _rows_of(features: NumPyArray) -> tuple[DenseRows, NumPyArray]:
    """Return the rows, in float64 where float32 would lose digits, and by what to shift them."""
    rows = DenseRows(features)
    step = max(1, rows.shape[0] // _PROBED_ROWS)
    probe = features[::step][: 2 * _PROBED_ROWS].astype(np.float64)
    center, scale = probe.mean(axis=0), probe.std(axis=0)
    # The spread of a column that is constant in the probe is not known.
    offset = np.where(scale > 0, np.abs(center) / np.where(scale > 0, scale, 1), 0)
    if rows.dtype == np.float32 and offset.max(initial=0) > _OFFSET_OF_FLOAT32:
        rows = DenseRows(features, np.dtype(np.float64))
    if offset.max(initial=0) > _OFFSET_OF_FLOAT32:
        return rows, center
    return rows, np.zeros(rows.shape[1])


def _scaling(mean: NumPyArray, square: NumPyArray, shift: NumPyArray, intercept: bool) -> Scaling:
    """Return the scaling from shifted moments; without an intercept nothing is centred."""
    if intercept:
        variance = np.maximum(square - np.square(mean), 0)
        center = mean + shift
    else:
        variance = square + 2 * shift * mean + np.square(shift)
        center = np.zeros_like(mean)
    # Below it, what is left of the variance is rounding: the column is constant.
    noise = 64 * np.finfo(np.float64).eps * (square + 1e-4 * np.square(shift))
    used = variance > np.where(square > 0, noise, 0)
    inverse = np.zeros_like(variance)
    np.divide(1, np.sqrt(variance, where=used, out=np.ones_like(variance)), out=inverse, where=used)
    return Scaling(center, inverse)
