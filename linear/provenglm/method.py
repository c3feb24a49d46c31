"""SVRG in the metric of a sample's Hessian: from snapshot to snapshot."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import numpy as np

from provenglm import newton
from provenglm.constants import LEAST_BATCH, Constants, constants
from provenglm.data.disk import DiskRows
from provenglm.epochs import MEASURED_ROWS, Curvature, run_epoch, shuffled
from provenglm.metric import HessianMetric, Metric
from provenglm.objective import Objective, Snapshot
from provenglm.sample import Sample
from provenglm.sampling import resample
from provenglm.secants import Secants
from provenglm.sparse.csr_sample import CenteredRows
from provenglm.state import State
from provenglm.thinned import Thinned
from provenglm.types import NumPyArray

_GROWTH = 4
"""From one prefix of the sample to the next."""

_ROWS_OF_A_START = 20
"""For each feature: fewer, and the sample's optimum may be further away than the null model."""

_RIDGE = 1e-10
"""Of the Hessian's diagonal."""

_STALE = 0.05
"""A step that leaves more of the decrement, and the Hessian is taken anew at the new point."""

_PRODUCTS = 50
"""With a sample's Hessian, for one step."""

_SOLVED = 1e-4
"""Of the squared residual, in the metric of the diagonal."""

_CHANGED = 0.05
"""Of the curvature, on average: less, and a new Hessian would be the old one."""

_POOR = 0.3
"""What a step leaves of the decrement, from which on an epoch of batches is tried."""


class HessianSteps:
    """SVRG in the metric of a sample's Hessian, with as few batches as it needs.

    At the snapshot itself the corrected gradient of any batch is the full gradient, so the first
    step of an epoch needs no batch. Where the metric is good, that step gains more than a pass over
    batches would, and the epoch ends with it. Where it leaves too much, epochs of batches are
    tried; from then on whichever has gained more per pass goes on.
    """

    def __init__(self, objective: Objective, sample: Sample, rng: np.random.Generator) -> None:
        self._objective = self._whole = objective
        self._sample = sample
        self._rng = rng
        self._secants = Secants()
        self._numbers: Constants | None = None
        self._slower = 1.0
        # Of sparse rows a pass costs less than the solutions of its batches.
        is_sparse = isinstance(sample.rows, CenteredRows)
        self._may_run_epochs = objective.loss.outputs == 1 and not is_sparse
        self._curvature: NumPyArray = np.zeros(0)
        self._thinned = Thinned.of(objective, len(sample.rows))

    @classmethod
    def states(
        cls, objective: Objective, sample: Sample, start: NumPyArray, rng: np.random.Generator
    ) -> Iterator[State]:
        """Yield a state for each snapshot of a run."""
        return cls(objective, sample, rng)._states(start)

    def _states(self, start: NumPyArray) -> Iterator[State]:
        snapshot = self._first(start)
        metric = self._metric(snapshot.theta)
        pace = Pace(may_run_epochs=self._may_run_epochs)
        last = np.inf
        while True:
            step, decrement = self._step(metric, snapshot)
            if decrement > _STALE * last and self._has_changed(snapshot.theta):
                metric = self._metric(snapshot.theta)
                self._numbers = None
                step, decrement = self._step(metric, snapshot)
            pace.add(decrement)
            last = decrement
            yield State(self._objective, snapshot, decrement, self._objective.passes)
            new: Snapshot | None = None
            if pace.wants_epoch:
                snapshot = self._ready_for_epochs(snapshot)
                new = self._after_epoch(metric, snapshot)
                if new is None:
                    pace.forget_epochs()
            if new is None:
                new = self._after_step(snapshot, step)
            if new is None:
                # Once more without what the steps so far have told.
                self._secants.clear()
                new = self._after_step(snapshot, self._step(metric, snapshot)[0])
            if new is None:
                if self._objective.rows.dtype == np.float64:
                    return
                # float32 has no more digits to give.
                self._whole = replace(self._whole, rows=self._whole.rows.precise())
                self._objective = self._whole
                snapshot = self._objective.snapshot(snapshot.theta)
                continue
            self._secants.add(new.theta - snapshot.theta, new.gradient - snapshot.gradient)
            snapshot = new

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

    def _ready_for_epochs(self, snapshot: Snapshot) -> Snapshot:
        """Have the rows shuffled, from the first epoch on; on disk they stay as they are."""
        if self._objective.order is None and not isinstance(self._objective.rows, DiskRows):
            dtype = self._objective.rows.dtype
            self._objective = moved = shuffled(self._objective, self._rng, dtype)
            snapshot = replace(snapshot, scores=snapshot.scores[moved.order])
        return snapshot

    def _after_epoch(self, metric: Metric, snapshot: Snapshot) -> Snapshot | None:
        """Return the snapshot after an epoch that leads lower, or None where none does."""
        while self._slower <= 64:
            if self._numbers is None:
                # Not the rows that the metric is made of: it fits those too well.
                other = resample(self._whole, MEASURED_ROWS, self._rng)
                curvature = Curvature(other, snapshot.theta)
                smoothness = curvature.smoothness(metric, snapshot.gradient)
                self._numbers = constants(
                    self._objective.n,
                    smoothness,
                    curvature.largest_of_a_row(metric),
                    self._slower,
                    # So many rows cost as much as the metric.
                    max(LEAST_BATCH, 2 * snapshot.theta.size),
                )
            numbers = self._numbers
            theta = run_epoch(self._objective, snapshot, metric, numbers, self._rng)
            new = self._objective.snapshot(theta)
            if new.objective < snapshot.objective:
                return new
            self._slower *= 2
            self._numbers = None
        return None

    def _metric(self, theta: NumPyArray) -> Metric:
        sample = self._sample
        self._objective.reads.rows += len(sample.rows)
        scores = sample.rows @ theta
        self._curvature = sample.loss.curvature(scores, sample.target)
        if self._thinned is not None:
            hessian = self._thinned.hessian(theta)
        else:
            hessian = sample.hessian(scores)
        return HessianMetric(newton.factor(hessian, _RIDGE))

    def _has_changed(self, theta: NumPyArray) -> bool:
        """Whether the curvature is another than that of the metric."""
        sample = self._sample
        curvature = sample.loss.curvature(sample.rows @ theta, sample.target)
        change = float((sample.share @ np.abs(curvature - self._curvature)).sum())
        return change > _CHANGED * float((sample.share @ self._curvature).sum())

    def _first(self, start: NumPyArray) -> Snapshot:
        """Return the first snapshot: at the optimum of a part of the sample, or at a given start.

        Of a quarter of the sample, by way of quarters of it, each to the error that a sample of its
        size has anyway, about p / 2n in units of the loss. Not of the whole sample: a step over all
        rows costs less and leads further.
        """
        if start[:-1].any():
            return self._objective.snapshot(start)
        sample, theta = self._sample, start
        null = self._objective.null()[1]
        # A pass over data on disk costs so much more than the sample that the whole of it pays.
        sizes = [len(sample.rows) // (_GROWTH if self._thinned is None else 1)]
        while sizes[-1] >= max(1000, _ROWS_OF_A_START * len(theta)):
            sizes.append(sizes[-1] // _GROWTH)
        for count in reversed(sizes[:-1]):
            tol = 0.1 * abs(null) * theta.size / count
            theta = newton.minimise(sample.head(count), theta, tol, 5)
            self._objective.reads.rows += count
        if self._thinned is not None:
            gradient, hessian = self._thinned.derivatives(theta)
            metric = HessianMetric(newton.factor(hessian, _RIDGE))
            theta = theta - metric.solve(gradient)
        snapshot = self._objective.snapshot(theta)
        if theta is start or snapshot.objective <= null:
            return snapshot
        return self._objective.snapshot(start)

    def _best_length(self, old: Snapshot, new: Snapshot) -> float:
        """Return how far to go from `old` to `new`, of 1/2, 1/4, ..., or 0: by their scores."""
        objective = self._objective
        step = new.theta - old.theta
        penalty = objective.used(old.theta)
        best, best_length, length = old.objective, 0.0, 1.0
        for _ in range(40):
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


class SampleMetric:
    """The Hessian of a sample as products: for more weights than a matrix of them can have.

    Solved by conjugate gradients, preconditioned by the diagonal, to a hundredth.
    """

    def __init__(self, curvature: Curvature, diagonal: Metric) -> None:
        self._curvature = curvature
        self._diagonal = diagonal

    def solve(self, gradient: NumPyArray) -> NumPyArray:
        """Return about P^-1 times a gradient of theta's shape."""
        step = np.zeros_like(gradient)
        residual = gradient
        preconditioned = direction = self._diagonal.solve(residual)
        product = first = float((residual * preconditioned).sum())
        for _ in range(_PRODUCTS):
            if product <= _SOLVED * first:
                break
            image = self._curvature.times(direction)
            length = product / float((direction * image).sum())
            step = step + length * direction
            residual = residual - length * image
            preconditioned = self._diagonal.solve(residual)
            last, product = product, float((residual * preconditioned).sum())
            direction = preconditioned + product / last * direction
        return step


class SampleSteps(HessianSteps):
    """The same steps where the Hessian is too large for a matrix, and epochs gain too little."""

    def __init__(self, objective: Objective, sample: Sample, rng: np.random.Generator) -> None:
        super().__init__(objective, sample, rng)
        self._may_run_epochs = False

    def _first(self, start: NumPyArray) -> Snapshot:
        return self._objective.snapshot(start)

    def _metric(self, theta: NumPyArray) -> Metric:
        sample = self._sample
        self._objective.reads.rows += len(sample.rows)
        self._curvature = sample.loss.curvature(sample.rows @ theta, sample.target)
        curvature = Curvature(sample, theta)
        return SampleMetric(curvature, curvature.metric("diagonal", self._objective.scaling))


class Pace:
    """Whether the next step is one of the full gradient or an epoch, by what they left so far."""

    def __init__(self, may_run_epochs: bool = True) -> None:
        self._may_run_epochs = may_run_epochs
        self._count = 0
        self._last = np.inf
        self._steps_left: list[float] = []
        self._epochs_left: list[float] = []
        self.wants_epoch = False

    def forget_epochs(self) -> None:
        """Run no more of them: they lead nowhere."""
        self._may_run_epochs = self.wants_epoch = False

    def add(self, decrement: float) -> None:
        """Take the decrement at a new snapshot."""
        self._count += 1
        # The first step may be long, and the metric is then another.
        if self._count > 2 and self._last > 0:
            left = decrement / self._last
            (self._epochs_left if self.wants_epoch else self._steps_left).append(left)
        self._last = decrement
        steps = self._steps_left[-2:]
        if not self._may_run_epochs or len(steps) < 2 or float(np.prod(steps)) <= _POOR**2:
            self.wants_epoch = False
        elif not self._epochs_left:
            self.wants_epoch = True
        else:
            # An epoch is two passes.
            of_step = float(np.prod(steps)) ** (1 / len(steps))
            self.wants_epoch = self._epochs_left[-1] ** 0.5 <= of_step
