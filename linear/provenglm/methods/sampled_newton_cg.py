"""Steps with a sample's Hessian as products, and whether classes of dense rows go by them.

A step solves for the gradient of all rows with the Hessian of some of them, by conjugate gradients
in float32. Their preconditioner is one matrix for all outputs: the second moments times the mean
curvature, with the penalty. Each step takes other rows of the sample, so that what one of them does
not know of the Hessian, the next ones do.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from provenglm import constants
from provenglm.methods import newton_cg as krylov
from provenglm.methods.metric import Metric, inverse
from provenglm.methods.newton import of_no_shift
from provenglm.methods.sampled_newton import Steps
from provenglm.methods.state import State
from provenglm.model.float32_copy import in_float32
from provenglm.model.losses import SecondDerivative
from provenglm.model.objective import Objective, Snapshot, products
from provenglm.model.sample import Sample
from provenglm.model.solution import Settings
from provenglm.types import NumPyArray


def states(
    objective: Objective, sample: Sample, start: NumPyArray, settings: Settings
) -> Iterator[State]:
    """Yield the states of `SampleKrylov`, or of `krylov` where a sample has too few rows.

    40,000 rows of 7 classes (effective dimension 53) took 26 passes, and 87 by `krylov`. Some
    thousand rows are few for each of many classes: 15,000 rows of 100 classes (effective dimension
    40) took 4,241 passes, and 61 by `krylov`.
    """
    (n, p), outputs = objective.rows.shape, objective.loss.outputs
    is_on_disk, is_precise = objective.rows.is_on_disk, settings.is_precise
    scores = np.broadcast_to(start[-1], (len(sample.target), *start[-1].shape))
    if sample.offset is not None:
        scores = scores + sample.offset
    curvature = sample.share @ sample.loss.weight_in_hessian(scores, sample.target)
    second = SecondMoments(sample, objective.intercept, float(np.mean(curvature)))
    preconditioner = second.inverse()
    of_a_dimension = max(constants.ROWS_OF_A_DIMENSION, constants.ROWS_OF_A_FEATURE * outputs)
    knows = of_a_dimension * second.dimension(preconditioner) <= n
    if not (outputs == 1 or is_on_disk or knows):
        has_room = 4 * n * p <= constants.COPY_BYTES
        yield from krylov.states(objective, start, settings.tol, is_precise, has_room, sample)
        return
    count = len(sample.rows)
    if not is_on_disk:
        # A pass over a file costs so much more that all of the sample pays.
        count = min(count, max(constants.LEAST_ROWS, n // constants.PART_OF_A_STEP))
    steps = SampleKrylov(objective, sample, second, preconditioner, count, is_precise)
    yield from steps.states(start)


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

    def inverse(self) -> NumPyArray:
        """Return the inverse of the matrix."""
        matrix = self.curvature * self.moments
        matrix.ravel()[:: len(matrix) + 1] += self._penalty
        return inverse(matrix)

    def dimension(self, inverse: NumPyArray) -> float:
        r"""Return the effective dimension, the trace of :math:`w A (w A + \Lambda)^{-1}`."""
        return len(inverse) - float(self._penalty @ inverse.diagonal())


class SampleKrylov(Steps):
    """For outputs whose Hessian is too large for a matrix.

    Parameters
    ----------
    inverse : numpy.ndarray, (p + 1, p + 1)
        Of the second moments with the penalty.
    count : int
        Rows of the sample for each step.
    is_precise : bool
        Whether float32 has too few digits for the passes.
    """

    name = "newton-cg, sample"

    def __init__(
        self,
        objective: Objective,
        sample: Sample,
        second: SecondMoments,
        inverse: NumPyArray,
        count: int,
        is_precise: bool = False,
    ) -> None:
        super().__init__(objective, sample)
        if not is_precise:
            self._objective = in_float32(objective)
        self._rows = sample.rows.astype(np.float32)
        self._second, self._inverse = second, inverse.astype(np.float32)
        self._count, self._next = count, 0

    def _first(self, start: NumPyArray) -> Snapshot:
        """Return the first snapshot: about at the sample's optimum, or at a given start."""
        theta = of_no_shift(start)
        if start[:-1].any():
            return self._objective.snapshot(theta)
        objective = self._objective
        null = objective.null()[1]
        enough = constants.ERROR_OF_A_START * abs(null) * theta.size / self._count
        hessian = self._hessian(theta, slice(0, self._count))
        for _ in range(constants.MOST_STEPS):
            step = hessian.solve(hessian.gradient)
            if 0.5 * float(np.vdot(step, hessian.gradient)) <= enough or objective.is_late:
                break
            length, new = 1.0, self._hessian(theta - step, hessian.part)
            while not new.value < hessian.value and length > 1e-3:
                length /= 2
                new = self._hessian(theta - length * step, hessian.part)
            if not new.value < hessian.value:
                break
            theta, hessian = theta - length * step, new
        snapshot = objective.snapshot(theta)
        if snapshot.objective <= null:
            return snapshot
        return objective.snapshot(of_no_shift(start))

    def _metric(self, snapshot: Snapshot) -> Metric:
        if self._next + self._count > len(self._rows):
            self._next = 0
        part = slice(self._next, self._next + self._count)
        self._next += self._count
        return self._hessian(snapshot.theta, part)

    def _hessian(self, theta: NumPyArray, part: slice) -> SampleHessian:
        hessian = SampleHessian(self._objective, self._sample, self._rows, theta, part)
        mean = hessian.curvature
        if mean > 0 and not 0.5 <= mean / self._second.curvature <= 2:
            self._second.curvature = mean
            self._inverse = self._second.inverse().astype(np.float32)
        hessian.inverse = self._inverse
        return hessian


class SampleHessian:
    """The Hessian of some rows of a sample, and their objective.

    Attributes
    ----------
    value : float
    gradient : numpy.ndarray, theta's shape
    curvature : float
        The mean.
    inverse : numpy.ndarray, (p + 1, p + 1)
        The preconditioner.
    """

    inverse: NumPyArray

    def __init__(
        self,
        objective: Objective,
        sample: Sample,
        rows: NumPyArray,
        theta: NumPyArray,
        part: slice,
    ) -> None:
        loss = objective.loss
        self.part = part
        self._objective = objective
        self._rows = rows[part]
        target, share = sample.target[part], sample.share[part] / sample.share[part].sum()
        if target.dtype.kind not in "iu":
            target = target.astype(np.float32)
        scores = self._rows @ theta.astype(np.float32)
        if sample.offset is not None:
            scores += sample.offset[part]
        value, residual = loss.value_and_residual(scores, target)
        self._second: SecondDerivative = loss.second_derivative(scores, target)
        self._second = self._second.astype(np.dtype(np.float32))
        self._share = (share if theta.ndim == 1 else share[:, None]).astype(np.float32)
        self.curvature = float(np.mean(share @ self._second.diagonal))
        penalty = objective.used(theta)
        self.value = float(share @ value) + 0.5 * float((penalty * theta * theta).sum())
        self.gradient = products(self._rows, residual * self._share) + penalty * theta
        unseen = sample.unseen() if theta.ndim == 1 else sample.unseen()[:, None]
        self._diagonal = penalty + self.curvature * unseen
        objective.reads.rows += len(self._rows)

    def times(self, vector: NumPyArray) -> NumPyArray:
        """Return the Hessian, with the penalty, times a vector of theta's shape."""
        weights = vector.astype(np.float32)

        def of_block(part: slice) -> NumPyArray:
            block = self._rows[part]
            change = self._second.part(part).times(block @ weights)
            change *= self._share[part]
            return products(block, change)

        count = len(self._rows)
        total: NumPyArray = self._diagonal * vector
        parts = [
            slice(start, start + constants.BLOCK_ROWS // 8)
            for start in range(0, count, constants.BLOCK_ROWS // 8)
        ]
        for product in self._objective.workers.map(of_block, parts):
            total += product
        self._objective.reads.rows += count
        return total

    def solve(self, gradient: NumPyArray) -> NumPyArray:
        """Return about P^-1 times a gradient of theta's shape, by conjugate gradients."""
        step = np.zeros_like(gradient)
        rest = gradient
        scaled = direction = self._preconditioned(rest)
        square = first = float(np.vdot(rest, scaled))
        for _ in range(constants.MOST_STEPS):
            if square <= constants.SAMPLE_FORCING**2 * first:
                break
            image = self.times(direction)
            curvature = float(np.vdot(direction, image))
            if not curvature > 0:
                break  # rounding
            length = square / curvature
            step = step + length * direction
            rest = rest - length * image
            scaled = self._preconditioned(rest)
            last, square = square, float(np.vdot(rest, scaled))
            direction = scaled + square / last * direction
        return step

    def _preconditioned(self, gradient: NumPyArray) -> NumPyArray:
        scaled: NumPyArray = self.inverse @ gradient.astype(np.float32)
        return of_no_shift(scaled.astype(np.float64))
