"""The few features that matter: proximal Newton on them, and all others by the full gradient.

At the optimum most features have the coefficient 0, and their gradients are within the penalty. So
the problem is solved on a set of features, the snapshot's full gradient tells which of the others
are beyond the penalty, and the worst of them join, as many as there are already (Johnson & Guestrin
2015; Massias, Gramfort & Salmon 2018). The certificate is that of all features.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import numpy as np
from scipy.sparse import csr_array, vstack

from provenglm.data.budget import columns_of_a_copy
from provenglm.data.csr import CsrRows
from provenglm.duality import duality_gap
from provenglm.l1.proximal import Point, SampleModel, iterate
from provenglm.l1.quadratic import Matrix, Products, Quadratic
from provenglm.losses import Logistic, Softmax
from provenglm.objective import Objective, Snapshot, of_rows
from provenglm.sample import Sample
from provenglm.sparse.csr_sample import CenteredRows
from provenglm.state import State
from provenglm.types import NumPyArray

_MOST_WEIGHTS = 2500
"""Of a Hessian as a matrix."""

_ALL = 300
"""Features that are all taken at once."""

_LEAST = 100
"""Features that join at a time."""

_ENOUGH = 0.1
"""Of the gap: a smaller decrement on the set, and the others are looked at."""

_STEPS = 20
"""On one set."""

_NEAR_ZERO = 1e-3
"""A score, where the curvature of that parabola is 1/4 to seven digits."""

_ACCURACY = 1e-2
"""Of the linear systems, where the Hessian is too large for a matrix."""


class Columns(SampleModel):
    """Some features of all rows, in theta's coordinates: a sample that is all there is."""

    @classmethod
    def of(cls, objective: Objective, chosen: NumPyArray) -> Columns:
        """Return the chosen features of the objective's rows."""
        assert objective.l1 is not None
        kept = np.append(chosen, len(objective.penalty) - 1)
        sample = Sample(
            _taken(objective, chosen),
            objective.target,
            objective.share,
            objective.loss,
            objective.penalty[kept],
            objective.workers,
        )
        return cls(sample, objective.l1[kept])

    def quadratic(self, scores: NumPyArray, caution: float) -> Quadratic:
        """Return the Hessian over theta raveled: a matrix unless it would be too large.

        With caution, of a logistic loss, no curvature is less than a part of that of the parabola
        which touches the loss and lies above it (Jaakkola & Jordan 2000).
        """
        sample = self.sample
        outputs = sample.loss.outputs
        is_sparse = isinstance(sample.rows, CenteredRows)
        if len(self.l1) * outputs > _MOST_WEIGHTS or (is_sparse and outputs > 1):
            return self._products(scores, caution)
        if not isinstance(sample.loss, Logistic) or caution == 0:
            return Matrix(sample.hessian(scores))
        hessian = sample.gram(np.sqrt(sample.share * self._curvature(scores, caution)))
        hessian.ravel()[:: len(hessian) + 1] += sample.penalty
        return Matrix(hessian)

    def _curvature(self, scores: NumPyArray, caution: float) -> NumPyArray:
        curvature = self.sample.loss.curvature(scores, self.sample.target)
        if caution == 0 or not isinstance(self.sample.loss, Logistic):
            return np.asarray(curvature)
        size = np.maximum(np.abs(scores), _NEAR_ZERO)
        return np.maximum(curvature, caution * np.tanh(size / 2) / (2 * size))

    def _products(self, scores: NumPyArray, caution: float) -> Products:
        sample = self.sample
        curvature = (self._curvature(scores, caution).T * sample.share).T
        diagonal = sample.products_of_squares(curvature)
        diagonal += of_rows(sample.penalty, diagonal)
        if isinstance(sample.loss, Softmax):
            probability = sample.loss.probability(scores)
            times = partial(self._times_of_softmax, probability, diagonal.shape)
        else:
            times = partial(self._times, curvature)
        return Products(times, diagonal.ravel(), _ACCURACY)

    def _times(self, curvature: NumPyArray, vector: NumPyArray) -> NumPyArray:
        sample = self.sample
        return sample.products(curvature * self.scores(vector)) + sample.penalty * vector

    def _times_of_softmax(
        self, probability: NumPyArray, shape: tuple[int, ...], raveled: NumPyArray
    ) -> NumPyArray:
        sample, vector = self.sample, raveled.reshape(shape)
        change = self.scores(vector)
        change -= (probability * change).sum(axis=1, keepdims=True)
        change *= probability * sample.share[:, None]
        return np.asarray((sample.products(change) + sample.penalty[:, None] * vector).ravel())


def _taken(objective: Objective, chosen: NumPyArray) -> NumPyArray | CenteredRows:
    """Return the chosen features in theta's coordinates, with the intercept's column."""
    rows, scaling = objective.rows, objective.scaling
    center, inverse = scaling.center[chosen], scaling.inverse[chosen]
    if isinstance(rows, CsrRows):
        blocks = [rows.block(part)[:, chosen] for part in rows.slices()]
        sparse = csr_array(vstack(blocks, format="csr"), dtype=np.float64)
        sparse.data *= inverse[sparse.indices]
        ones = np.ones_like(inverse)
        return CenteredRows(sparse, center * inverse, ones, objective.intercept)
    taken = np.empty((objective.n, len(chosen) + 1))
    for part in rows.slices():
        features = taken[part, :-1]
        features[:] = rows.block(part)[:, chosen]
        features -= center
        features *= inverse
    taken[:, -1] = objective.intercept
    return taken


def states(
    objective: Objective, _: Sample, start: NumPyArray, __: np.random.Generator
) -> Iterator[State]:
    """Yield a state for each snapshot of a run; in float64."""
    objective = replace(objective, rows=objective.rows.precise())
    snapshot = objective.snapshot(start)
    columns, of_columns = None, np.zeros(0, np.intp)
    point = Point(start, np.inf)
    # The proof is near the truth here, and there is no better estimate.
    gap = duality_gap(objective, snapshot)
    while True:
        yield State(objective, snapshot, gap, objective.passes)
        chosen = choose(objective, snapshot)
        if columns is None or not np.array_equal(chosen, of_columns):
            columns, of_columns = Columns.of(objective, chosen), chosen
        point = replace(point, theta=snapshot.theta[np.append(chosen, -1)])
        point = _solved(columns, point, gap)
        new = np.zeros_like(snapshot.theta)
        new[np.append(chosen, -1)] = point.theta
        before, of_before = snapshot, gap
        snapshot = objective.snapshot(new)
        gap = duality_gap(objective, snapshot)
        if not (snapshot.objective < before.objective or gap < of_before):
            # What is left is rounding, if the model says so.
            yield State(objective, before, point.decrement, objective.passes)
            return


def _solved(columns: Columns, start: Point, gap: float) -> Point:
    """Return the point on the set whose decrement is a part of the gap."""
    last = start
    points = iterate(columns, start.theta, start.caution, start.is_exact)
    for count, point in enumerate(points):
        last = point
        if count > 0 and (point.decrement <= _ENOUGH * gap or count == _STEPS):
            break
    return last


def choose(objective: Objective, snapshot: Snapshot) -> NumPyArray:
    """Return the features with coefficients, and the worst of the others: sorted indices.

    Raises
    ------
    ValueError
        If of rows on disk there is no room for a copy of them.
    """
    assert objective.l1 is not None
    used = objective.scaling.inverse > 0
    width = objective.loss.outputs * (1 + int(used.sum()))
    if used.sum() <= _ALL and width <= _MOST_WEIGHTS:
        return np.flatnonzero(used)
    theta, gradient = snapshot.theta[:-1], snapshot.gradient[:-1]
    excess = np.maximum(np.abs(gradient) - of_rows(objective.l1[:-1], theta), 0)
    there = theta != 0
    if theta.ndim > 1:
        excess, there = excess.max(axis=1), there.any(axis=1)
    others = np.flatnonzero((excess > 0) & ~there)
    count = int(there.sum())
    left = columns_of_a_copy(objective.room, objective.n, objective.loss.outputs) - 1 - count
    if left < min(1, len(others)):
        raise ValueError(_no_room(objective, count))
    many = int(min(max(_LEAST, count), left, len(others)))
    if many < len(others):
        others = others[np.argpartition(-excess[others], many)[:many]]
    return np.union1d(np.flatnonzero(there), others)


def _no_room(objective: Objective, count: int) -> str:
    """Return what to say where rows on disk have more features that matter than fit."""
    assert objective.room is not None
    n, p = objective.rows.shape
    return (
        f"{count:,} of {p:,} features have coefficients so far, and for a copy of them and others "
        f"in float64, of {8 * n / 1e6:,.1f} MB each, the limit on memory leaves "
        f"{objective.room / 1e6:,.1f} MB: give Chunks a higher memory_limit, or more penalty"
    )
