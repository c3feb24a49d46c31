"""Steps of the full gradient in a metric: from snapshot to snapshot."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import numpy as np

from provenglm import constants
from provenglm.methods import newton
from provenglm.methods.metric import HessianMetric, Metric
from provenglm.methods.secants import Secants
from provenglm.methods.state import State
from provenglm.methods.thinned import Thinned
from provenglm.model.objective import Objective, Snapshot
from provenglm.model.sample import Sample
from provenglm.types import NumPyArray


class Steps(ABC):
    """Steps of the full gradient in a metric, which the steps so far correct.

    At a snapshot the corrected gradient of any batch is the full gradient, so this is the first
    step of an epoch of SVRG. Where the metric is good, it gains more than a pass over batches.
    """

    name = ""
    """Of the method, where the plan leaves it open."""

    def __init__(self, objective: Objective, sample: Sample) -> None:
        self._objective = self._given = objective
        self._sample = sample
        self._secants = Secants()

    def states(self, start: NumPyArray) -> Iterator[State]:
        """Yield a state for each snapshot of a run."""
        snapshot = self._first(start)
        last = np.inf
        while True:
            metric, step, decrement = self._step_from(snapshot, last)
            last = decrement
            yield State(
                self._objective, snapshot, decrement, self._objective.passes, name=self.name
            )
            new = self._after_step(snapshot, step)
            if new is None:
                # Once more without what the steps so far have told.
                self._secants.clear()
                new = self._after_step(snapshot, self._step(metric, snapshot)[0])
            if new is None:
                if self._objective.rows.dtype == np.float64:
                    return
                # float32 has no more digits to give.
                given = self._given
                self._objective = replace(given, rows=given.rows.precise())
                snapshot = self._objective.snapshot(snapshot.theta)
                continue
            self._secants.add(new.theta - snapshot.theta, new.gradient - snapshot.gradient)
            snapshot = new

    @abstractmethod
    def _first(self, start: NumPyArray) -> Snapshot:
        """Return the first snapshot."""

    @abstractmethod
    def _metric(self, snapshot: Snapshot) -> Metric:
        """Return the metric at a snapshot."""

    def _step_from(self, snapshot: Snapshot, last: float) -> tuple[Metric, NumPyArray, float]:
        """Return metric, step and decrement at a snapshot, after one with the decrement `last`."""
        metric = self._metric(snapshot)
        return metric, *self._step(metric, snapshot)

    def _step(self, metric: Metric, snapshot: Snapshot) -> tuple[NumPyArray, float]:
        """Return the step of the full gradient, and the decrement."""
        step = self._secants.solve(metric, snapshot.gradient)
        step = newton.without_shift(step, self._objective.penalty)
        return step, 0.5 * float(snapshot.gradient.ravel() @ step.ravel())

    def _after_step(self, snapshot: Snapshot, step: NumPyArray) -> Snapshot | None:
        """Return the snapshot after a step that leads lower, or None where none does."""
        new = self._objective.snapshot(snapshot.theta - step)
        if new.objective < snapshot.objective:
            return new
        length = self._best_length(snapshot, new)
        new = self._objective.snapshot(snapshot.theta + length * (new.theta - snapshot.theta))
        return new if new.objective < snapshot.objective else None

    def _best_length(self, old: Snapshot, new: Snapshot) -> float:
        """Return how far to go from `old` to `new`, of 1/2, 1/4, ..., or 0: by their scores."""
        objective = self._objective
        step = new.theta - old.theta
        penalty = objective.used(old.theta)
        best, best_length, length = old.objective, 0.0, 1.0
        decrement = -0.5 * float(old.gradient.ravel() @ step.ravel())
        while not newton.is_rounding(length, decrement, old.objective):
            length /= 2
            theta = old.theta + length * step
            total = objective.mean(partial(self._values, old, new, length))
            total += 0.5 * float((penalty * theta * theta).sum())
            if total < best:
                best, best_length = total, length
            elif best_length > 0:
                break
        return best_length

    def _values(self, old: Snapshot, new: Snapshot, length: float, part: slice) -> NumPyArray:
        """Return the losses of some rows on the way from `old` to `new`."""
        along = new.scores[part] - old.scores[part]
        scores = old.scores[part] + along.dtype.type(length) * along
        return self._objective.loss.value(scores, self._objective.target[part])


class HessianSteps(Steps):
    """Steps in the metric of a sample's Hessian, factored."""

    def __init__(self, objective: Objective, sample: Sample) -> None:
        super().__init__(objective, sample)
        self._curvature: NumPyArray = np.zeros(0)
        self._scores: tuple[NumPyArray, NumPyArray] | None = None
        self._last: Metric | None = None
        self._thinned = Thinned.of(objective, len(sample.rows))

    def _metric(self, snapshot: Snapshot) -> Metric:
        sample, theta = self._sample, snapshot.theta
        self._objective.reads.rows += len(sample.rows)
        scores = self._scores_at(theta)
        self._curvature = sample.loss.curvature(scores, sample.target)
        if self._thinned is not None:
            hessian = self._thinned.hessian(theta)
        else:
            hessian = sample.hessian(scores)
        return HessianMetric.of(hessian)

    def _scores_at(self, theta: NumPyArray) -> NumPyArray:
        """Return the sample's scores: once where they tell whether a metric is still good."""
        if self._scores is None or self._scores[0] is not theta:
            self._scores = theta, self._sample.scores(theta)
        return self._scores[1]

    def _step_from(self, snapshot: Snapshot, last: float) -> tuple[Metric, NumPyArray, float]:
        if self._last is not None:
            step, decrement = self._step(self._last, snapshot)
            if not (decrement > constants.CHANGED * last and self._has_changed(snapshot)):
                return self._last, step, decrement
        self._last, step, decrement = super()._step_from(snapshot, last)
        return self._last, step, decrement

    def _has_changed(self, snapshot: Snapshot) -> bool:
        """Whether the curvature is another than that of the metric."""
        sample = self._sample
        curvature = sample.loss.curvature(self._scores_at(snapshot.theta), sample.target)
        change = float((sample.share @ np.abs(curvature - self._curvature)).sum())
        return change > constants.CHANGED * float((sample.share @ self._curvature).sum())

    def _has_gap(self, theta: NumPyArray) -> bool:
        """Whether a duality gap may come near the distance to the optimum.

        It is about the curvature over the penalty times as large, of the least penalised feature.
        """
        sample, objective = self._sample, self._objective
        penalty = objective.penalty[:-1][objective.scaling.inverse > 0]
        curvature = sample.loss.curvature(sample.scores(theta), sample.target)
        mean = float((sample.share @ curvature).mean())
        return bool(penalty.min(initial=np.inf) > constants.PENALTY_OF_A_GAP * mean)

    def _first(self, start: NumPyArray) -> Snapshot:
        """Return the first snapshot: at the optimum of a part of the sample, or at a given start.

        Of a quarter of the sample, by way of quarters of it, each to the error that a sample of its
        size has anyway, about p / 2n in units of the loss. Not of the whole sample: a step over all
        rows costs less and leads further.
        """
        self._objective.takes_moments = self._has_gap(start)
        if start[:-1].any():
            return self._objective.snapshot(start)
        sample, theta = self._sample, start
        null = self._objective.null()[1]
        # A pass over data on disk costs so much more than the sample that the whole of it pays.
        sizes = [len(sample.rows) // (constants.GROWTH if self._thinned is None else 1)]
        least = max(constants.LEAST_ROWS // 2, 2 * constants.ROWS_OF_A_FEATURE * len(theta))
        while sizes[-1] >= least:
            sizes.append(sizes[-1] // constants.GROWTH)
        for count in reversed(sizes[:-1]):
            if self._objective.is_late:
                break
            tol = constants.ERROR_OF_A_START * abs(null) * theta.size / count
            theta = newton.minimise(sample.head(count), theta, tol, constants.MOST_STEPS)
            self._objective.reads.rows += count
        if self._thinned is not None:
            gradient, hessian = self._thinned.derivatives(theta)
            metric = HessianMetric.of(hessian)
            theta = theta - metric.solve(gradient)
        snapshot = self._objective.snapshot(theta)
        if theta is start or snapshot.objective <= null:
            return snapshot
        return self._objective.snapshot(start)
