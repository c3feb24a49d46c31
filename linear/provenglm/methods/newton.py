"""Newton's method with a factored Hessian, of all rows or of a sample."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from provenglm import constants
from provenglm.methods.base import Method, Step, Target
from provenglm.methods.block_subsample import BlockSubsample
from provenglm.methods.secants import Secants
from provenglm.model.cholesky import CholeskyMetric
from provenglm.model.objective import Objective, Snapshot
from provenglm.model.sample import Sample
from provenglm.model.sampling import objective_of
from provenglm.model.shifts import centre_unpenalised
from provenglm.model.triangle import Basis, TriangleMetric, triangle, weighted_rows
from provenglm.types import NumPyArray

_PENALTY_OF_A_GAP = 1e-4
"""If the penalty divided by the curvature is not above this, the duality gap rarely ends a run. The
moments that it needs then cost more than they save."""


class Newton(Method):
    """Newton's method with the gradient of all rows and a factored Hessian of all or some rows.

    The Hessian of a sample is corrected by the changes of the gradient along the steps. It is
    computed again if a step leaves too much of the decrement and the curvature has changed.

    Parameters
    ----------
    objective : Objective
    sample : Sample
        The rows of the Hessian: all rows in their order, or some of them.
    """

    def __init__(self, objective: Objective, sample: Sample) -> None:
        super().__init__(objective)
        self._sample = sample
        self._has_all = self.has_cheap_steps = len(sample.target) == objective.n
        self.name = "newton-cholesky" if self._has_all else "sampled-newton"
        self._secants = Secants()
        self._metric: CholeskyMetric | TriangleMetric | None = None
        self._basis: Basis | None = None
        self._kept: NumPyArray | None = None
        self._curvature: NumPyArray = np.zeros(0)
        self._last = np.inf
        self._block_subsample = BlockSubsample.of(objective, len(sample.target))

    def step(self, point: Snapshot, target: Target) -> Step:
        scores = self._scores_at(point)
        is_new = self._metric is None or (self._has_all and not self._sample.loss.is_quadratic)
        if is_new:
            self._measure(point, scores)
        step, decrement = self._step(point)
        if not is_new and decrement > constants.CHANGED * self._last and self._has_changed(scores):
            self._measure(point, scores)
            step, decrement = self._step(point)
        self._last = decrement
        # Compared with a Hessian of all rows, the scores along a step cost almost nothing.
        along = None
        if self._has_all and not self.objective.table.is_out_of_core:
            along = -(self._sample.rows @ step)
        return Step(-step, decrement, 2 * decrement, along)

    def learn(self, old: Snapshot, new: Snapshot, length: float) -> None:
        if not self._has_all:
            self._secants.add(new.theta - old.theta, new.gradient - old.gradient)

    def forget(self) -> bool:
        knew = len(self._secants) > 0
        self._secants.clear()
        return knew

    def _step(self, point: Snapshot) -> tuple[NumPyArray, float]:
        """Return the step to subtract, and the decrement."""
        assert self._metric is not None
        step = self._secants.solve(self._metric, point.gradient)
        step = centre_unpenalised(step, self.objective.penalty)
        return step, 0.5 * float(point.gradient.ravel() @ step.ravel())

    def _scores_at(self, point: Snapshot) -> NumPyArray:
        """Return the scores of the sample's rows."""
        if self._has_all and point.kept is not None:
            return point.scores
        return self._sample.scores(point.theta)

    def _measure(self, point: Snapshot, scores: NumPyArray) -> None:
        """Compute and factor the Hessian."""
        sample = self._sample
        self._curvature = sample.loss.curvature(scores, sample.target)
        if not self._has_all:
            self.objective.reads.rows += len(sample.target)
        if self._block_subsample is not None:
            hessian = self._block_subsample.hessian(point.theta)
        else:
            hessian = sample.hessian(scores)
        self._metric = self._factored(hessian, point)

    def _factored(self, hessian: NumPyArray, point: Snapshot) -> CholeskyMetric | TriangleMetric:
        """Return the Cholesky factor of the Hessian.

        If the Hessian has too few correct digits, return the triangle of a QR factorisation of the
        weighted rows instead, where that is possible.
        """
        metric = CholeskyMetric(hessian, self._has_all, self._kept)
        if not metric.is_rough or not isinstance(self._sample.rows, np.ndarray):
            return metric
        if self.objective.table.is_out_of_core:
            return metric  # the triangle needs all rows twice
        if self._basis is None:
            rows = self._sample.rows * np.sqrt(self._sample.share)[:, None]
            penalty = np.diag(np.sqrt(self.objective.penalty))
            self._basis = Basis.of(triangle([rows, penalty], rows.shape[1]))
            if self._has_all and len(self._basis.rest):
                outputs = self.objective.loss.outputs
                base = outputs * np.sort(self._basis.base)
                self._kept = np.add.outer(base, np.arange(outputs)).ravel()
                metric = CholeskyMetric(hessian, True, self._kept)
        if self._basis.is_rough and self.objective.loss.outputs == 1:
            scores, target = point.scores.astype(np.float64), self.objective.target
            curvature = self.objective.loss.second_derivative(scores, target).diagonal[:, 0]
            rows = weighted_rows(self.objective, self.objective.share * curvature)
            return TriangleMetric(triangle(rows, len(point.theta)))
        return metric

    def _has_changed(self, scores: NumPyArray) -> bool:
        """Whether the curvature differs from that of the metric."""
        share, curvature = (
            self._sample.share,
            self._sample.loss.curvature(scores, self._sample.target),
        )
        change = float((share @ np.abs(curvature - self._curvature)).sum())
        return change > constants.CHANGED * float((share @ self._curvature).sum())

    # The start.

    def levels(self) -> Iterator[tuple[Method, float]]:
        """Yield Newton's method on growing parts of the sample.

        The optimum of n rows differs from that of all rows by about p / 2n of the loss. So each
        part is solved only to this error. The whole sample is only solved for rows on disk:
        otherwise a step over all rows costs less and leads further.
        """
        objective, sample = self.objective, self._sample
        theta, null = objective.null()
        if self._has_all:
            return
        objective.takes_moments = self._has_gap(theta)
        # A pass over rows on disk is so expensive that the whole sample is solved first.
        sizes = [len(sample.target) // (constants.GROWTH if self._block_subsample is None else 1)]
        least = max(constants.LEAST_ROWS // 2, 2 * constants.ROWS_OF_A_FEATURE * len(theta))
        while sizes[-1] >= least:
            sizes.append(sizes[-1] // constants.GROWTH)
        for count in reversed(sizes[:-1]):
            head = sample.head(count)
            required_decrement = constants.ERROR_OF_A_START * abs(null) * theta.size / count
            yield Newton(objective_of(head, objective), head), required_decrement
            objective.reads.rows += count

    def start(self, theta: NumPyArray) -> NumPyArray:
        if self._block_subsample is None:
            return theta
        gradient, hessian = self._block_subsample.derivatives(theta)
        return theta - CholeskyMetric(hessian).solve(gradient)

    def _has_gap(self, theta: NumPyArray) -> bool:
        """Whether the duality gap may come close to the distance to the optimum.

        The gap exceeds the distance by a factor of about the curvature divided by the smallest
        penalty of a feature.
        """
        sample, objective = self._sample, self.objective
        penalty = objective.penalty[:-1][objective.scaling.inverse > 0]
        curvature = sample.loss.curvature(sample.scores(theta), sample.target)
        mean = float((sample.share @ curvature).mean())
        return bool(penalty.min(initial=np.inf) > _PENALTY_OF_A_GAP * mean)
