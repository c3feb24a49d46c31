"""A sample: the objective on some rows in memory, with its Hessian."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from provenglm.model.losses import Loss, SecondDerivative
from provenglm.rows.dense import DenseRows
from provenglm.rows.gram import Weights, gram
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
    offset : numpy.ndarray, (s, K), optional
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
        return 0.5 * float((self.penalty[:, None] * theta * theta).sum())

    def gradient(self, theta: NumPyArray, scores: NumPyArray) -> NumPyArray:
        """Return the gradient at `theta`, given its scores."""
        residual = self.loss.residual(scores, self.target) * self.share[:, None]
        return self.products(residual) + self.penalty[:, None] * theta

    def products(self, residual: NumPyArray) -> NumPyArray:
        """Return the products of the columns with numbers of the rows, (p + 1, K)."""
        return column_products(self.rows, residual)

    def hessian(self, scores: NumPyArray) -> NumPyArray:
        """Return the Hessian with the penalty, (p + 1) K square, for a flattened theta."""
        return self.hessian_of(self.loss.second_derivative(scores, self.target))

    def hessian_of(self, curvature: SecondDerivative) -> NumPyArray:
        """Return the Hessian with the penalty, from the second derivatives of the losses."""
        hessian = self.gram(curvature.weights(self.share))
        mean = float((self.share @ curvature.diagonal).mean())
        diagonal = np.repeat(self.penalty + mean * self.unseen(), self.loss.outputs)
        hessian.ravel()[:: len(hessian) + 1] += diagonal
        return hessian

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
