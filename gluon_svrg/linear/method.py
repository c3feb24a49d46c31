"""SVRG in the metric of a sample's Hessian: from snapshot to snapshot."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from gluon_svrg._compat import NumPyArray
from gluon_svrg.linear import newton
from gluon_svrg.linear.metric import HessianMetric
from gluon_svrg.linear.objective import Objective, Snapshot
from gluon_svrg.linear.progress import State
from gluon_svrg.linear.sample import Sample
from gluon_svrg.linear.sampling import draw
from gluon_svrg.linear.secants import Secants

_GROWTH = 4
"""From one prefix of the sample to the next."""

_STALE = 0.05
"""A step that leaves more of the decrement, and the Hessian is taken anew at the new point."""


class HessianSteps:
    """Steps of the full gradient in the metric of a sample's Hessian.

    At the snapshot itself the corrected gradient of any batch is the full gradient, so the first
    step of an epoch needs no batch. Where the metric is as good as here, one such step gains more
    than a pass over batches would, and the epoch ends with it.
    """

    def __init__(self, objective: Objective, first: Snapshot, size: int, seed: int) -> None:
        self._objective = objective
        self._rng = np.random.default_rng(seed)
        self._first = first
        self._size = size
        self._rows_of_samples = 0.0

    def states(self) -> Iterator[State]:
        """Yield a state for each snapshot."""
        objective = self._objective
        sample = draw(objective, self._size, self._rng)
        theta = self._warm_start(sample, self._first.theta)
        snapshot = objective.snapshot(theta)
        if not snapshot.objective <= self._first.objective:
            snapshot = self._first
        metric = self._metric(sample, snapshot.theta)
        secants = Secants()
        last = np.inf
        while True:
            step = secants.solve(metric, snapshot.gradient)
            decrement = 0.5 * float(snapshot.gradient.ravel() @ step.ravel())
            if decrement > _STALE * last:
                metric = self._metric(sample, snapshot.theta)
                step = secants.solve(metric, snapshot.gradient)
                decrement = 0.5 * float(snapshot.gradient.ravel() @ step.ravel())
            last = decrement
            yield State(objective, snapshot, decrement, self._passes())
            new = objective.snapshot(snapshot.theta - step)
            if not new.objective < snapshot.objective:
                secants.clear()
                length = self._best_length(snapshot, new)
                if length == 0:
                    return
                new = objective.snapshot(snapshot.theta + length * (new.theta - snapshot.theta))
                if not new.objective < snapshot.objective:
                    return
            secants.add(new.theta - snapshot.theta, new.gradient - snapshot.gradient)
            snapshot = new

    def _passes(self) -> float:
        return self._objective.passes + self._rows_of_samples / self._objective.n

    def _metric(self, sample: Sample, theta: NumPyArray) -> HessianMetric:
        self._rows_of_samples += len(sample.rows)
        return HessianMetric(newton.factor(sample.hessian(sample.rows @ theta), 1e-10))

    def _warm_start(self, sample: Sample, theta: NumPyArray) -> NumPyArray:
        """Return the sample's optimum, by way of those of ever larger parts of it.

        Each to the error that a sample of its size has anyway: about p / 2n in units of the loss.
        """
        size, width = len(sample.rows), theta.size
        sizes = [size]
        while sizes[-1] >= 2 * _GROWTH * max(1000, 20 * width):
            sizes.append(sizes[-1] // _GROWTH)
        for count in reversed(sizes):
            head = sample.head(count)
            tol = 0.1 * abs(self._first.objective) * width / count
            theta = newton.minimise(head, theta, tol, 8)
            self._rows_of_samples += count
        return theta

    def _best_length(self, old: Snapshot, new: Snapshot) -> float:
        """Return how far to go from `old` to `new`, of 1/2, 1/4, ..., or 0: by their scores."""
        objective = self._objective
        along = new.scores - old.scores
        step = new.theta - old.theta
        penalty = objective.used(old.theta)
        best, best_length, length = old.objective, 0.0, 1.0
        for _ in range(40):
            length /= 2
            theta = old.theta + length * step
            scores = old.scores + along.dtype.type(length) * along
            value = np.asarray(objective.loss.value(scores, objective.target), np.float64)
            total = float(value @ objective.share) + 0.5 * float((penalty * theta * theta).sum())
            if total < best:
                best, best_length = total, length
            elif best_length > 0:
                break
        return best_length
