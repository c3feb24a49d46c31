"""Newton's method in the space that the rows span, for fewer rows than features."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import scipy.linalg

from provenglm.methods.base import Method, Step, Target
from provenglm.methods.newton import Newton
from provenglm.model.objective import Objective, Scaling, Snapshot
from provenglm.model.sample import Sample
from provenglm.rows.dense import DenseRows
from provenglm.types import NumPyArray


class RowSpaceNewton(Method):
    r"""Newton's method with one weight for each row.

    With :math:`B = \hat X \Lambda^{-1/2}` and an orthonormal basis Q of its rows, the rows :math:`B
    Q` have the same products with each other. So n weights with penalty 1 replace p weights (the
    representer theorem): the objective is the same function of the same scores, with the same
    optimum. Only steps are computed with these weights. Points are evaluated on the rows
    themselves: the rounding of a turned row is relative to its norm, in which one column may have
    a much larger part than in the scores.

    Parameters
    ----------
    objective : Objective
        An objective of dense rows, with a penalty.
    sample : Sample
        All rows in their order.
    """

    name = "row-space-newton"
    has_cheap_steps = True

    def __init__(self, objective: Objective, sample: Sample) -> None:
        super().__init__(objective.precise())
        used = objective.scaling.inverse > 0
        self._weight = np.where(used, 1 / np.sqrt(objective.penalty[:-1]), 0.0)
        # Householder reflections, because the products of the rows would square the scales.
        # With the largest features first, small features beside huge ones keep their digits (Cox &
        # Higham 1998).
        self._order = np.argsort(-self._weight)
        scaled = sample.rows[:, self._order]
        scaled *= self._weight[self._order]
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
            centered=True,
            rare=None,
        )
        own = np.column_stack([rows, sample.rows[:, -1]])
        self._sample = replace(sample, rows=own, penalty=penalty, rare=None)
        self._newton = Newton(turned, self._sample)

    def start(self, theta: NumPyArray) -> NumPyArray:
        """Return the part of a point that changes scores; the rest only has a penalty."""
        return self._back(self._in_row_space(theta))

    def step(self, point: Snapshot, target: Target) -> Step:
        theta = self._in_row_space(point.theta)
        # The rounding of the features' gradient would not be a sum of the turned rows.
        gradient = self._sample.gradient(theta, point.scores)
        step = self._newton.step(replace(point, theta=theta, gradient=gradient), target)
        return step._replace(change=self._back(step.change))

    def _in_row_space(self, theta: NumPyArray) -> NumPyArray:
        """Return the weights of the turned rows that have the scores of theta."""
        weight, scaled = self._weight[:, None], np.zeros_like(theta[:-1])
        np.divide(theta[:-1], weight, where=weight > 0, out=scaled)
        width = len(self._sample.penalty) - 1
        return np.vstack([self._turned(scaled[self._order], "T")[:width], theta[-1]])

    def _back(self, theta: NumPyArray) -> NumPyArray:
        """Return theta for weights of the turned rows."""
        padded = np.zeros((len(self._weight), theta.shape[1]))
        padded[: len(theta) - 1] = theta[:-1]
        back = np.empty_like(padded)
        back[self._order] = self._turned(padded, "N")
        return np.vstack([back * self._weight[:, None], theta[-1]])

    def _turned(self, weights: NumPyArray, way: str) -> NumPyArray:
        """Return Q times weights of p rows, or its transpose times them if `way` is 'T'."""
        reflections, factors = self._reflections
        columns = np.asfortranarray(weights)
        apply = scipy.linalg.get_lapack_funcs("ormqr", (reflections, columns))
        # With more work space LAPACK multiplies blocks of reflections with each other first, which
        # takes seven times as long for one column.
        return np.asarray(apply("L", way, reflections, factors, columns, columns.shape[1])[0])
