"""Newton's method by conjugate gradients with a sample's Hessian.

A step solves a system with the gradient of all rows and the Hessian of some of them, by conjugate
gradients in float32. The preconditioner is one matrix for all outputs: the second moments times the
mean curvature, plus the penalty. Each step uses other rows of the sample, so that later steps
correct the sampling error of earlier ones.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from provenglm import constants
from provenglm.methods.base import Method, Step, Target
from provenglm.methods.secants import Secants
from provenglm.model.cholesky import inverse
from provenglm.model.conjugate_gradients import conjugate_gradients
from provenglm.model.float32_copy import in_float32
from provenglm.model.losses import SecondDerivative
from provenglm.model.objective import Objective, Snapshot
from provenglm.model.sample import Sample
from provenglm.model.sampling import objective_of
from provenglm.model.shifts import centre_classes, centre_unpenalised
from provenglm.rows.products import column_products
from provenglm.types import NumPyArray


class SecondMoments:
    r"""The matrix :math:`w A + \Lambda` of a sample, with its weighted second moments A.

    Parameters
    ----------
    sample : Sample
    objective : Objective
        The objective of all rows.

    Attributes
    ----------
    moments : numpy.ndarray, (p + 1, p + 1)
        A, with 1 on the diagonal for columns that the sample cannot measure.
    """

    def __init__(self, sample: Sample, objective: Objective) -> None:
        theta = objective.null()[0]
        scores = np.broadcast_to(theta[-1], (len(sample.target), theta.shape[1]))
        if sample.offset is not None:
            scores = scores + sample.offset
        second = sample.loss.second_derivative(scores, sample.target)
        curvature = sample.share @ second.diagonal
        self.moments = sample.gram(sample.share)
        self.moments.ravel()[:: len(self.moments) + 1] += sample.unseen()
        if not objective.intercept:
            self.moments[-1, -1] = 1.0
        self._penalty = sample.penalty
        self._curvature = float(np.mean(curvature))
        self._inverse: NumPyArray | None = None

    def inverse_at(self, curvature: float) -> NumPyArray:
        """Return the inverse for a mean curvature, or for one near it, in float32."""
        is_far = curvature > 0 and not 0.5 <= curvature / self._curvature <= 2
        if self._inverse is None or is_far:
            self._curvature = curvature if is_far else self._curvature
            matrix = self._curvature * self.moments
            matrix.ravel()[:: len(matrix) + 1] += self._penalty
            self._inverse = inverse(matrix).astype(np.float32)
        return self._inverse

    @property
    def dimension(self) -> float:
        r"""The effective dimension, the trace of :math:`w A (w A + \Lambda)^{-1}`."""
        found = self.inverse_at(self._curvature)
        return len(found) - float(self._penalty @ found.diagonal().astype(np.float64))


class SampledNewtonCG(Method):
    """Newton-CG with a sample, for outputs whose Hessian is too large for a matrix.

    The method gives up before it begins if a sample of classes has too few rows per effective
    dimension. 40,000 rows of 7 classes (effective dimension 53) took 26 passes, and 87 by
    `NewtonCG`. With many classes, a few thousand rows are few for each class: 15,000 rows of 100
    classes (effective dimension 40) took 4,241 passes, and 61 by `NewtonCG`.

    Parameters
    ----------
    count : int
        Number of the sample's rows in each step.
    is_precise : bool
        Whether the requested tolerance is too small for passes in float32.
    second : SecondMoments, optional
        The second moments of the sample, if they are known.
    """

    name = "sampled-newton-cg"

    def __init__(
        self,
        objective: Objective,
        sample: Sample,
        count: int,
        is_precise: bool = False,
        second: SecondMoments | None = None,
    ) -> None:
        self._given = objective
        super().__init__(objective if is_precise else in_float32(objective))
        self.is_single = self.objective.rows.dtype == np.float32
        self._sample = sample
        self._rows = sample.rows.astype(np.float32)
        self._second = second or SecondMoments(sample, objective)
        outputs = objective.loss.outputs
        least = max(constants.ROWS_OF_A_DIMENSION, constants.ROWS_OF_A_FEATURE * outputs)
        needed = least * self._second.dimension
        is_checked = second is None and outputs > 1 and not objective.rows.is_on_disk
        if is_checked and needed > objective.n:
            self.gave_up = f"; {self.name} would need {needed:,.0f} rows for its sample's Hessian"
        self._secants = Secants()
        self._hessian: SampleHessian | None = None
        self._count, self._next = count, 0

    def levels(self) -> Iterator[tuple[Method, float]]:
        objective, head = self.objective, self._sample.head(self._count)
        theta, null = objective.null()
        required_decrement = constants.ERROR_OF_A_START * abs(null) * theta.size / self._count
        few = objective_of(head, objective)
        yield SampledNewtonCG(few, head, self._count, True, self._second), required_decrement
        objective.reads.rows += few.reads.rows

    def start(self, theta: NumPyArray) -> NumPyArray:
        return centre_classes(theta)

    def step(self, point: Snapshot, target: Target) -> Step:
        if self._next + self._count > len(self._rows):
            self._next = 0
        part = slice(self._next, self._next + self._count)
        self._next += self._count
        self._hessian = SampleHessian(self.objective, self._sample, self._rows, point.theta, part)
        self._hessian.inverse = self._second.inverse_at(self._hessian.curvature)
        return self._step(point)

    def _step(self, point: Snapshot) -> Step:
        assert self._hessian is not None
        step = self._secants.solve(self._hessian, point.gradient)
        step = centre_unpenalised(step, self.objective.penalty)
        fall = float(point.gradient.ravel() @ step.ravel())
        return Step(-step, 0.5 * fall, fall)

    def learn(self, old: Snapshot, new: Snapshot, length: float) -> None:
        self._secants.add(new.theta - old.theta, new.gradient - old.gradient)

    def forget(self) -> bool:
        knew = len(self._secants) > 0
        self._secants.clear()
        return knew

    def in_float64(self) -> None:
        self.is_single = False
        self.objective = self._given.precise()


class SampleHessian:
    """The Hessian of some rows of a sample.

    Attributes
    ----------
    curvature : float
        The mean curvature.
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
        self._objective = objective
        self._rows = rows[part]
        target, share = sample.target[part], sample.share[part] / sample.share[part].sum()
        if target.dtype.kind not in "iu":
            target = target.astype(np.float32)
        scores = self._rows @ theta.astype(np.float32)
        if sample.offset is not None:
            scores += sample.offset[part]
        self._second: SecondDerivative = loss.second_derivative(scores, target)
        self._second = self._second.astype(np.dtype(np.float32))
        self._share = share[:, None].astype(np.float32)
        self.curvature = float(np.mean(share @ self._second.diagonal))
        self._diagonal = (objective.penalty + self.curvature * sample.unseen())[:, None]
        objective.reads.rows += len(self._rows)

    def times(self, vector: NumPyArray) -> NumPyArray:
        """Return the Hessian plus the penalty, times a vector of theta's shape."""
        weights = vector.astype(np.float32)

        def block_product(part: slice) -> NumPyArray:
            block = self._rows[part]
            change = self._second.subset(part).times(block @ weights)
            change *= self._share[part]
            return column_products(block, change)

        count = len(self._rows)
        total: NumPyArray = self._diagonal * vector
        parts = [
            slice(start, start + constants.BLOCK_ROWS // 8)
            for start in range(0, count, constants.BLOCK_ROWS // 8)
        ]
        for product in self._objective.workers.map(block_product, parts):
            total += product
        self._objective.reads.rows += count
        return total

    def solve(self, gradient: NumPyArray) -> NumPyArray:
        """Return approximately P^-1 times a gradient of theta's shape, by conjugate gradients."""
        found = conjugate_gradients(
            self.times, gradient, self._preconditioned, constants.SAMPLE_FORCING
        )
        return found.step

    def _preconditioned(self, gradient: NumPyArray) -> NumPyArray:
        scaled: NumPyArray = self.inverse @ gradient.astype(np.float32)
        return centre_classes(scaled.astype(np.float64))
