r"""Steps where the penalty has corners: to the least value of a quadratic model with the penalty.

With the gradient g and a Hessian H of the smooth part at :math:`\theta`, a step goes to where

.. math:: g^T (t - \theta) + \frac12 (t - \theta)^T H (t - \theta) + \sum_j \mu_j |t_j|

is least (proximal Newton: Lee, Sun & Saunders 2014). What the model falls by is the decrement.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from provenglm.l1.quadratic import Matrix, Quadratic, minimise
from provenglm.objective import Objective, Snapshot, of_rows
from provenglm.sample import Sample
from provenglm.state import State
from provenglm.types import NumPyArray

_ARMIJO = 1e-4

_SHORTEST = 1 / 16
"""Of a step: what is longer than that by so much has a model that is wrong."""

_FIRST_DAMPING, _MOST_DAMPING = 1e-3, 1e4
"""Of the largest curvature that the loss can have. What is not lower after the last is rounding."""

_FASTER = 8.0
"""By which damping and caution grow and fall."""

_FIRST_CAUTION, _LEAST_CAUTION = 0.25, 1e-2

_ROUNDING = 1e-12
"""Of the objective: where a step promises less, no difference of it is looked at."""

_STALE = 0.05
"""A step that leaves more of the decrement, and the Hessian is taken anew at the new point."""

_CHANGED = 0.05
"""Of the curvature, on average: less, and a new Hessian would be the old one."""

_STEPS_OF_A_START = 6


class Model(Protocol):
    """Rows in memory, with targets and penalties."""

    @property
    def l1(self) -> NumPyArray:
        """The penalty on the size of each row of theta."""
        ...

    def scores(self, theta: NumPyArray) -> NumPyArray:
        """Return the scores of all rows."""
        ...

    def value(self, theta: NumPyArray, scores: NumPyArray) -> float:
        """Return the objective without the penalty on sizes."""
        ...

    def gradient(self, theta: NumPyArray, scores: NumPyArray) -> NumPyArray:
        """Return its gradient."""
        ...

    def quadratic(self, scores: NumPyArray, caution: float) -> Quadratic:
        """Return its Hessian over theta raveled, or with some caution what lies above it.

        At 1 the quadratic is above the objective everywhere, where the loss has such a bound.
        """
        ...

    def steepest(self) -> NumPyArray:
        """Return the Hessian's diagonal for the loss's largest curvature, one for each row."""
        ...


@dataclass(frozen=True)
class SampleModel:
    """A sample as a model, with its Hessian as a matrix."""

    sample: Sample
    l1: NumPyArray

    def scores(self, theta: NumPyArray) -> NumPyArray:
        """Return the scores of all rows."""
        return np.asarray(self.sample.rows @ theta)

    def value(self, theta: NumPyArray, scores: NumPyArray) -> float:
        """Return the objective without the penalty on sizes."""
        return self.sample.value(theta, scores)

    def gradient(self, theta: NumPyArray, scores: NumPyArray) -> NumPyArray:
        """Return its gradient."""
        return self.sample.gradient(theta, scores)

    def quadratic(self, scores: NumPyArray, caution: float) -> Quadratic:
        """Return its Hessian over theta raveled, with any caution."""
        return Matrix(self.sample.hessian(scores))

    def steepest(self) -> NumPyArray:
        """Return the Hessian's diagonal for the loss's largest curvature, one for each row."""
        return self.sample.products_of_squares(self.sample.share)


@dataclass(frozen=True)
class Step:
    """Where the model is least.

    Attributes
    ----------
    to : numpy.ndarray, theta's shape
    decrement : float
        What the model falls by.
    slope : float
        What the objective falls by at first, on the way there, for a step of length 1.
    """

    to: NumPyArray
    decrement: float
    slope: float


def step(
    quadratic: Quadratic,
    theta: NumPyArray,
    gradient: NumPyArray,
    l1: NumPyArray,
    is_exact: bool = True,
) -> Step:
    """Return the step of the quadratic model from `theta`: to its least value, or near it."""
    start, of_start, each = theta.ravel(), gradient.ravel(), of_rows(l1, theta).ravel()
    linear = quadratic.times(start) - of_start
    t = minimise(quadratic, linear, each, start, is_exact=is_exact)
    change = t - start
    slope = float(of_start @ change + each @ (np.abs(t) - np.abs(start)))
    curvature = float(change @ quadratic.times(change))
    return Step(t.reshape(theta.shape), max(0.0, -slope - 0.5 * curvature), -slope)


@dataclass(frozen=True)
class Point:
    """A point of the method on rows in memory, the decrement there, and how it was found."""

    theta: NumPyArray
    decrement: float
    caution: float = 0.0
    is_exact: bool = False


def iterate(
    model: Model, theta: NumPyArray, caution: float = 0.0, is_exact: bool = False
) -> Iterator[Point]:
    """Yield the start and then one point for each step; ends where no step leads lower.

    Steps are halved until the objective falls. After a step that was too long, as where the
    curvature of a logistic loss fades along it, the next quadratic is nearer one that lies above
    the loss; where no half is lower it gets more on its diagonal (Levenberg 1944, Marquardt 1963).
    It is solved to the end as long as steps are taken as they are.
    """
    scores = model.scores(theta)
    value = _total(model, theta, scores)
    last, damping = np.inf, 0.0
    while True:
        quadratic, gradient = model.quadratic(scores, caution), model.gradient(theta, scores)
        taken = step(_damped(quadratic, damping, model, theta), theta, gradient, model.l1, is_exact)
        yield Point(theta, taken.decrement, caution, is_exact)
        if taken.slope <= _ROUNDING * abs(value):
            # Too little for the objective to show, but not for the decrement.
            if not taken.decrement < last:
                return
            theta, scores = taken.to, model.scores(taken.to)
            value, last = _total(model, theta, scores), taken.decrement
            continue
        found = _lower(model, theta, value, taken)
        while found is None:
            damping = max(_FASTER * damping, _FIRST_DAMPING)
            if damping > _MOST_DAMPING:
                return
            damped = _damped(quadratic, damping, model, theta)
            taken = step(damped, theta, gradient, model.l1, is_exact=False)
            found = _lower(model, theta, value, taken)
        theta, scores, value, is_whole = found
        is_exact = is_whole and damping == 0 and caution <= _LEAST_CAUTION
        if is_whole:
            damping = damping / _FASTER if damping > _FIRST_DAMPING else 0.0
            caution = caution / _FASTER if caution > _LEAST_CAUTION else 0.0
        else:
            caution = min(1.0, max(_FASTER * caution, _FIRST_CAUTION))
        last = taken.decrement


def _total(model: Model, theta: NumPyArray, scores: NumPyArray) -> float:
    size = np.abs(theta).ravel()
    return model.value(theta, scores) + float(of_rows(model.l1, theta).ravel() @ size)


def _lower(
    model: Model, theta: NumPyArray, value: float, taken: Step
) -> tuple[NumPyArray, NumPyArray, float, bool] | None:
    """Return the first point of a step, its halves and so on that is lower, if there is one.

    With its scores, the objective, and whether it is the whole step.
    """
    length, new = 1.0, taken.to
    while length >= _SHORTEST:
        scores = model.scores(new)
        new_value = _total(model, new, scores)
        if new_value < value and new_value <= value - _ARMIJO * length * taken.slope:
            return new, scores, new_value, length == 1
        length /= 2
        new = theta + length * (taken.to - theta)
    return None


def _damped(quadratic: Quadratic, damping: float, model: Model, theta: NumPyArray) -> Quadratic:
    if damping == 0:
        return quadratic
    return quadratic.damped(damping * of_rows(model.steepest(), theta).ravel())


class MetricSteps:
    """Steps of the full gradient in the metric of a sample's Hessian.

    The full gradient is SVRG's corrected gradient at the snapshot. The metric is a matrix, so that
    what the steps tell of the Hessian goes right into it (BFGS: Nocedal & Wright 2006, equation
    6.19).
    """

    def __init__(self, objective: Objective, sample: Sample) -> None:
        assert objective.l1 is not None
        self._objective = objective
        self._sample = sample
        self._l1 = objective.l1
        self._hessian: NumPyArray = np.zeros((0, 0))
        self._curvature: NumPyArray = np.zeros(0)

    @classmethod
    def states(
        cls, objective: Objective, sample: Sample, start: NumPyArray, _: np.random.Generator
    ) -> Iterator[State]:
        """Yield a state for each snapshot of a run."""
        return cls(objective, sample)._states(start)

    def _states(self, start: NumPyArray) -> Iterator[State]:
        snapshot = self._first(start)
        self._measure(snapshot.theta)
        last = np.inf
        while True:
            taken = self._step(snapshot)
            if taken.decrement > _STALE * last and self._has_changed(snapshot.theta):
                self._measure(snapshot.theta)
                taken = self._step(snapshot)
            last = taken.decrement
            yield State(self._objective, snapshot, last, self._objective.passes)
            new = self._after(snapshot, taken)
            if new is None:
                # Once more without what the steps so far have told.
                self._measure(snapshot.theta)
                new = self._after(snapshot, self._step(snapshot))
            if new is None:
                if self._objective.rows.dtype == np.float64:
                    return
                # float32 has no more digits to give.
                self._objective = replace(self._objective, rows=self._objective.rows.precise())
                snapshot = self._objective.snapshot(snapshot.theta)
                continue
            self._learn(new.theta - snapshot.theta, new.gradient - snapshot.gradient)
            snapshot = new

    def _first(self, start: NumPyArray) -> Snapshot:
        """Return the first snapshot: near the sample's optimum, or at a given start."""
        snapshot = self._objective.snapshot(start)
        if start[:-1].any():
            return snapshot
        theta = start
        points = iterate(SampleModel(self._sample, self._l1), start)
        for _, point in zip(range(_STEPS_OF_A_START), points, strict=False):
            theta = point.theta
            # A step over all rows goes further than the sample's own error, p / 2n of the loss.
            if point.decrement <= 0.01 * snapshot.objective * theta.size / len(self._sample.rows):
                break
        new = self._objective.snapshot(theta)
        return new if new.objective < snapshot.objective else snapshot

    def _measure(self, theta: NumPyArray) -> None:
        sample = self._sample
        self._objective.reads.rows += len(sample.rows)
        scores = sample.rows @ theta
        self._curvature = sample.loss.curvature(scores, sample.target)
        self._hessian = sample.hessian(scores)

    def _has_changed(self, theta: NumPyArray) -> bool:
        """Whether the curvature is another than that of the metric."""
        sample = self._sample
        curvature = sample.loss.curvature(sample.rows @ theta, sample.target)
        change = float((sample.share @ np.abs(curvature - self._curvature)).sum())
        return change > _CHANGED * float((sample.share @ self._curvature).sum())

    def _step(self, snapshot: Snapshot) -> Step:
        return step(Matrix(self._hessian), snapshot.theta, snapshot.gradient, self._l1)

    def _after(self, snapshot: Snapshot, taken: Step) -> Snapshot | None:
        """Return the snapshot after a step that leads lower, or None where none does."""
        new = self._objective.snapshot(taken.to)
        if new.objective < snapshot.objective:
            return new
        for length in (0.5, 0.125, 0.03, 0.004):
            theta = snapshot.theta + length * (taken.to - snapshot.theta)
            new = self._objective.snapshot(theta)
            if new.objective < snapshot.objective:
                return new
        return None

    def _learn(self, change: NumPyArray, of_gradient: NumPyArray) -> None:
        """Make the metric give, along a step, what the gradient has changed by."""
        change, of_gradient = change.ravel(), of_gradient.ravel()
        product = float(change @ of_gradient)
        image = self._hessian @ change
        expected = float(change @ image)
        if product > 1e-3 * expected > 0:
            self._hessian -= np.multiply.outer(image, image / expected)
            self._hessian += np.multiply.outer(of_gradient, of_gradient / product)
