"""Newton's method in the space that the rows span, for fewer rows than features."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import scipy.linalg

from provenglm.methods.newton import Newton
from provenglm.model.objective import Objective, Scaling
from provenglm.model.sample import Sample
from provenglm.rows.dense import DenseRows
from provenglm.types import NumPyArray


class RowSpaceNewton(Newton):
    r"""Newton's method with one weight for each row.

    With :math:`B = \hat X \Lambda^{-1/2}` and an orthonormal basis Q of its rows, the rows :math:`B
    Q` have the same products with each other. So n weights with penalty 1 replace p weights (the
    representer theorem): the objective is the same function of the same scores, with the same
    optimum.

    Parameters
    ----------
    objective : Objective
        An objective of dense rows, with a penalty.
    sample : Sample
        All rows in their order.
    """

    def __init__(self, objective: Objective, sample: Sample) -> None:
        used = objective.scaling.inverse > 0
        self._weight = np.where(used, 1 / np.sqrt(objective.penalty[:-1]), 0.0)
        # Householder reflections, because the products of the rows would square the scales.
        scaled = sample.rows[:, :-1] * self._weight
        self._reflections, upper = scipy.linalg.qr(
            scaled.T, mode="raw", overwrite_a=True, check_finite=False
        )
        rows = np.ascontiguousarray(upper[: len(scaled)].T)
        width = rows.shape[1]
        penalty = np.append(np.ones(width), objective.penalty[-1])
        turned = replace(
            objective.on(rows=DenseRows(rows)),
            scaling=Scaling(np.zeros(width), np.ones(width)),
            penalty=penalty,
            # Sums over these rows differ from those of the features, so none is kept.
            centered=True,
            moments=None,
            squares=None,
            rare=None,
        )
        own = np.column_stack([rows, sample.rows[:, -1]])
        super().__init__(turned, replace(sample, rows=own, penalty=penalty, rare=None))
        self.name = "row-space-newton"

    def start(self, theta: NumPyArray) -> NumPyArray:
        width = len(self.objective.penalty) - 1
        if len(theta) == width + 1 or not theta[:-1].any():
            return np.vstack([np.zeros((width, theta.shape[1])), theta[-1]])
        weights = np.zeros_like(theta[:-1])
        np.divide(theta[:-1], self._weight[:, None], where=self._weight[:, None] > 0, out=weights)
        return np.vstack([self._turned(weights, "T")[:width], theta[-1]])

    def back(self, theta: NumPyArray) -> NumPyArray:
        padded = np.zeros((len(self._weight), theta.shape[1]))
        padded[: len(theta) - 1] = theta[:-1]
        return np.vstack([self._turned(padded, "N") * self._weight[:, None], theta[-1]])

    def _turned(self, weights: NumPyArray, way: str) -> NumPyArray:
        """Return Q times weights of p rows, or its transpose times them if `way` is 'T'."""
        reflections, factors = self._reflections
        columns = np.asfortranarray(weights)
        apply = scipy.linalg.get_lapack_funcs("ormqr", (reflections, columns))
        size = int(apply("L", way, reflections, factors, columns, -1)[1][0])
        return np.asarray(apply("L", way, reflections, factors, columns, size)[0])
