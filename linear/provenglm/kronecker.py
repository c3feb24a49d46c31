r"""Steps in a Kronecker product's metric: class curvature times second moments, and the penalty.

The Hessian of softmax is :math:`\sum_i s_i (\mathrm{diag}\, p_i - p_i p_i^T) \otimes x_i x_i^T +
I \otimes \Lambda`. With the mean C of the first factors and the second moments A of a sample's
features it is about :math:`C \otimes A + I \otimes \Lambda`. One basis V with
:math:`V^T A V = D` and :math:`V^T (w A + \Lambda) V = I`, for any number w, makes
:math:`V^T \Lambda V = I - w D`, so the inverse is two products with V and two with the
eigenvectors of C. The penalty is added feature by feature: in the solver's coordinates it may
differ by many orders of magnitude from one to the next.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import scipy.linalg

from provenglm import constants, newton
from provenglm.float32_copy import in_float32
from provenglm.method import Steps
from provenglm.metric import Metric
from provenglm.newton import of_no_shift
from provenglm.objective import Objective, Snapshot
from provenglm.sample import Sample
from provenglm.types import NumPyArray

_RIDGE = 1e-10
"""Of the diagonal."""


def left_by_gains(objectives: Sequence[float]) -> float:
    """Return what is left to gain after these snapshots, if it goes on falling as it fell.

    By as much, relatively, in the next `STEPS_OF_A_RATE` steps as in the last ones. 0 where there
    were fewer than twice as many: the metric of so short a run is a good one.
    """
    if len(objectives) <= 2 * constants.STEPS_OF_A_RATE:
        return 0.0
    start, middle, end = (objectives[-1 - k * constants.STEPS_OF_A_RATE] for k in (2, 1, 0))
    lately, before = middle - end, start - middle
    if not (lately > 0 and before > 0):
        return 0.0
    rate = min(lately / before, 1 - 0.5 / constants.STEPS_OF_A_RATE)
    return lately * rate / (1 - rate)


class SecondMoments:
    r"""The matrix :math:`w A + \Lambda` of a sample, with its weighted second moments A.

    Parameters
    ----------
    curvature : float
        w.

    Attributes
    ----------
    moments : numpy.ndarray, (p + 1, p + 1)
        A, with 1 on the diagonal for what the sample does not know.
    """

    def __init__(self, sample: Sample, intercept: bool, curvature: float) -> None:
        self.moments = sample.gram(np.sqrt(sample.share))
        self.moments.ravel()[:: len(self.moments) + 1] += sample.unseen()
        if not intercept:
            self.moments[-1, -1] = 1.0
        self._penalty = sample.penalty
        self.curvature = curvature

    def matrix(self) -> tuple[NumPyArray, NumPyArray]:
        """Return the matrix with ones on its diagonal, and the roots of what was there."""
        matrix = self.curvature * self.moments
        matrix.ravel()[:: len(matrix) + 1] += self._penalty
        roots = np.sqrt(np.maximum(matrix.diagonal(), np.finfo(np.float64).tiny))
        matrix /= np.multiply.outer(roots, roots)
        return matrix, roots

    def inverse(self) -> NumPyArray:
        """Return the inverse of the matrix."""
        matrix, roots = self.matrix()
        factor = newton.factor(matrix, _RIDGE)[0]
        inverse, _ = scipy.linalg.lapack.dpotri(factor, lower=1)
        inverse = np.tril(inverse) + np.tril(inverse, -1).T
        inverse /= np.multiply.outer(roots, roots)
        return np.asarray(inverse)

    def dimension(self, inverse: NumPyArray) -> float:
        r"""Return the effective dimension, the trace of :math:`w A (w A + \Lambda)^{-1}`."""
        return len(inverse) - float(self._penalty @ inverse.diagonal())


class KroneckerMetric:
    r"""The metric.

    Parameters
    ----------
    values, basis : numpy.ndarray
        D and V, for `curvature` w.
    classes : numpy.ndarray, (K, K)
        C. It is singular along a shift of all classes: any curvature along it will do.
    """

    def __init__(
        self, values: NumPyArray, basis: NumPyArray, curvature: float, classes: NumPyArray
    ) -> None:
        self._basis = basis
        of_classes, self._turn = np.linalg.eigh(classes + np.trace(classes) / len(classes) ** 2)
        of_classes = np.maximum(of_classes, _RIDGE * of_classes[-1])
        self._inverse = 1 / (1 + np.multiply.outer(values, of_classes - curvature))

    def solve(self, gradient: NumPyArray) -> NumPyArray:
        """Return P^-1 times a gradient of theta's shape."""
        turned = self._basis.T @ gradient @ self._turn
        turned *= self._inverse
        return of_no_shift(self._basis @ turned @ self._turn.T)


class Kronecker(Steps):
    """For classes: each step is a pass and some products of p^2 K and p K^2 multiplications."""

    name = "kronecker"
    is_scaled = True

    def __init__(
        self, objective: Objective, sample: Sample, second: SecondMoments, is_precise: bool = False
    ) -> None:
        super().__init__(objective, sample)
        if not is_precise:
            self._objective = in_float32(objective)
        matrix, roots = second.matrix()
        matrix.ravel()[:: len(matrix) + 1] += _RIDGE
        moments = second.moments / np.multiply.outer(roots, roots)
        values, basis = scipy.linalg.eigh(moments, matrix, check_finite=False)
        self._curvature = second.curvature
        self._eigenvalues = np.clip(values, 0, 1 / second.curvature)
        self._basis = basis / roots[:, None]
        self._last: tuple[float, Metric] | None = None
        self._objectives: list[float] = []

    def _step_from(self, snapshot: Snapshot, last: float) -> tuple[Metric, NumPyArray, float]:
        """Return metric, step and decrement at a snapshot.

        Where few rows have all of the curvature the metric promises too little: it was a tenth of
        what was left on classes that are nearly separable. What the steps gained says so.
        """
        metric, step, decrement = super()._step_from(snapshot, last)
        self._objectives.append(snapshot.objective)
        return metric, step, max(decrement, left_by_gains(self._objectives))

    def _first(self, start: NumPyArray) -> Snapshot:
        return self._objective.snapshot(of_no_shift(start))

    def _metric(self, snapshot: Snapshot) -> Metric:
        objective = self._objective
        every = slice(None, None, max(1, objective.n // constants.LEAST_ROWS))
        probability = objective.loss.probability(snapshot.scores[every])
        share = objective.share[every]
        share = (share / share.sum()).astype(probability.dtype)
        trace = 1 - float(share @ np.einsum("ik,ik->i", probability, probability))
        if (
            self._last is not None
            and abs(trace - self._last[0]) <= 4 * constants.CHANGED * self._last[0]
        ):
            return self._last[1]
        classes = -np.asarray((probability.T * share) @ probability, np.float64)
        classes.ravel()[:: len(classes) + 1] += share @ probability
        metric = KroneckerMetric(self._eigenvalues, self._basis, self._curvature, classes)
        self._last = trace, metric
        return metric
