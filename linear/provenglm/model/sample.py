"""A sample: the objective on some rows in memory, with its Hessian."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from provenglm.model.losses import Loss, SecondDerivative, SecondDerivativeOfClasses
from provenglm.rows.dense import DenseRows
from provenglm.rows.gram import ClassWeights, Weights, gram
from provenglm.rows.products import column_products
from provenglm.types import NumPyArray
from provenglm.workers import Workers


@dataclass
class Sample:
    """Rows in theta's coordinates, with targets and shares that sum to 1.

    Attributes
    ----------
    rows : numpy.ndarray, (s, p + 1), float64
        The rows, with a last column for the intercept. In a `SparseSample` they are
        `CenteredRows`.
    penalty : numpy.ndarray, (p + 1,)
    indices : numpy.ndarray, (s,), optional
        The indices of the rows in the problem; an index may occur several times.
    offset : numpy.ndarray, (s,) or (s, K), optional
        The offsets of the scores.
    """

    rows: Any
    target: NumPyArray
    share: NumPyArray
    loss: Loss
    penalty: NumPyArray
    workers: Workers
    rare: NumPyArray | None = None
    indices: NumPyArray | None = None
    offset: NumPyArray | None = None

    def head(self, count: int) -> Sample:
        """Return the sample of the first `count` rows."""
        share = self.share[:count]
        rows, target = self.rows[:count], self.target[:count]
        indices = None if self.indices is None else self.indices[:count]
        return replace(
            self,
            rows=rows,
            target=target,
            share=share / share.sum(),
            indices=indices,
            offset=None if self.offset is None else self.offset[:count],
        )

    def scores(self, theta: NumPyArray) -> NumPyArray:
        """Return the scores at `theta`, offsets included."""
        scores: NumPyArray = self.rows @ theta
        return scores if self.offset is None else scores + self.offset

    def value(self, theta: NumPyArray, scores: NumPyArray) -> float:
        """Return the objective at `theta`, given its scores."""
        return float(self.share @ self.loss.value(scores, self.target)) + self.penalty_value(theta)

    def penalty_value(self, theta: NumPyArray) -> float:
        """Return the value of the penalty."""
        return 0.5 * float((self._penalty(theta) * theta * theta).sum())

    def gradient(self, theta: NumPyArray, scores: NumPyArray) -> NumPyArray:
        """Return the gradient at `theta`, given its scores."""
        residual = self.loss.residual(scores, self.target)
        residual = (residual.T * self.share).T
        return self.products(residual) + self._penalty(theta) * theta

    def products(self, residual: NumPyArray) -> NumPyArray:
        """Return the products of the columns with numbers of the rows, in theta's shape."""
        return column_products(self.rows, residual)

    def hessian(self, scores: NumPyArray) -> NumPyArray:
        """Return the Hessian with the penalty, (p + 1) K square, for a flattened theta."""
        return self.hessian_of(self.loss.second_derivative(scores, self.target))

    def hessian_of(self, curvature: SecondDerivative) -> NumPyArray:
        """Return the Hessian with the penalty, from the second derivatives of the losses."""
        if isinstance(curvature, SecondDerivativeOfClasses):
            return self._softmax_hessian(curvature.probability)
        weight = curvature.diagonal
        hessian = self.gram(self.share * weight)
        _add_to_diagonal(hessian, self.penalty + float(self.share @ weight) * self.unseen())
        return hessian

    def moments(self) -> tuple[NumPyArray, NumPyArray]:
        """Return the means of the features and their products with the targets."""
        features = self.rows[:, :-1]
        target: NumPyArray = self.loss.observed(self.target) * self.share
        if self.loss.outputs > 1:
            target = np.zeros((len(self.share), self.loss.outputs))
            target[np.arange(len(self.share)), self.target] = self.share
        return self.share @ features, features.T @ target

    def unseen(self) -> NumPyArray:
        """Return the variance that is added to the diagonal: 1 for rare features, else 0.

        Variances are 1 in these coordinates. Without this addition the Hessian of a feature that
        hardly any row of the sample has would be almost 0, and a step along it far too long. Adding
        it where it is not needed does no harm.
        """
        if self.rare is None:
            return np.zeros(self.rows.shape[1])
        return np.append(self.rare.astype(np.float64), 0.0)

    def gram(self, weights: Weights) -> NumPyArray:
        """Return the weighted products of the columns with each other."""
        return gram(DenseRows(self.rows), weights, self.workers)

    def _softmax_hessian(self, probability: NumPyArray) -> NumPyArray:
        classes = probability.shape[1]
        hessian = self.gram(ClassWeights(probability, self.share))
        curvature = float((self.share @ (probability * (1 - probability))).mean())
        _add_to_diagonal(hessian, np.repeat(self.penalty + curvature * self.unseen(), classes))
        return hessian

    def _penalty(self, theta: NumPyArray) -> NumPyArray:
        return self.penalty if theta.ndim == 1 else self.penalty[:, None]


def _add_to_diagonal(matrix: NumPyArray, values: NumPyArray) -> None:
    matrix.ravel()[:: len(matrix) + 1] += values
