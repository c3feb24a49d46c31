"""The few features that matter: proximal Newton on them, and all others by the full gradient.

At the optimum most features have the coefficient 0, and their gradients are within the penalty. So
the problem is solved on a set of features, the snapshot's full gradient tells which of the others
are beyond the penalty, and the worst of them join, as many as there are already (Johnson & Guestrin
2015; Massias, Gramfort & Salmon 2018). The certificate is that of all features.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from gluon_svrg._compat import NumPyArray
from gluon_svrg.linear.certificate import duality_gap
from gluon_svrg.linear.l1.proximal import Point, iterate
from gluon_svrg.linear.l1.quadratic import Matrix, Products, Quadratic
from gluon_svrg.linear.losses import Logistic, Loss, Softmax
from gluon_svrg.linear.objective import Objective, Snapshot, of_rows
from gluon_svrg.linear.sample import Sample
from gluon_svrg.linear.state import State
from gluon_svrg.linear.workers import Workers
from scipy.sparse import csr_array, issparse, vstack

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

_BLOCK = 1024
"""Rows that are squared at a time."""

_ACCURACY = 1e-2
"""Of the linear systems, where the Hessian is too large for a matrix."""


@dataclass(frozen=True)
class Columns:
    """Some features of all rows, in theta's coordinates.

    Attributes
    ----------
    matrix : numpy.ndarray or scipy.sparse.csr_array, (n, m)
        In float64.
    penalty, l1 : numpy.ndarray, (m + 1,)
        The last number is the intercept's.
    """

    matrix: Any
    target: NumPyArray
    share: NumPyArray
    loss: Loss
    penalty: NumPyArray
    l1: NumPyArray
    intercept: bool
    workers: Workers

    @classmethod
    def of(cls, objective: Objective, chosen: NumPyArray) -> Columns:
        """Return the chosen features of the objective's rows."""
        assert objective.l1 is not None
        rows, scaling = objective.rows, objective.scaling
        parts: list[Any] = [rows.block(part)[:, chosen] for part in rows.slices()]
        matrix: Any
        if issparse(parts[0]):
            matrix = csr_array(vstack(parts, format="csr"), dtype=np.float64)
            matrix.data *= scaling.inverse[chosen][matrix.indices]
        else:
            matrix = np.concatenate(parts, dtype=np.float64)
            matrix -= scaling.center[chosen]
            matrix *= scaling.inverse[chosen]
        kept = np.append(chosen, len(objective.penalty) - 1)
        return cls(
            matrix,
            objective.target,
            objective.share,
            objective.loss,
            objective.penalty[kept],
            objective.l1[kept],
            objective.intercept,
            objective.workers,
        )

    def scores(self, theta: NumPyArray) -> NumPyArray:
        """Return the scores of all rows."""
        scores = np.asarray(self.matrix @ theta[:-1])
        if self.intercept:
            scores += theta[-1]
        return scores

    def back(self, residual: NumPyArray) -> NumPyArray:
        """Return the products of the features, and of the intercept's 1, with numbers of rows."""
        product = np.empty((self.matrix.shape[1] + 1, *residual.shape[1:]))
        product[:-1] = self.matrix.T @ residual
        product[-1] = residual.sum(axis=0) if self.intercept else 0
        return product

    def value(self, theta: NumPyArray, scores: NumPyArray) -> float:
        """Return the objective without the penalty on sizes."""
        of_penalty = 0.5 * float((of_rows(self.penalty, theta) * theta * theta).sum())
        return float(self.share @ self.loss.value(scores, self.target)) + of_penalty

    def gradient(self, theta: NumPyArray, scores: NumPyArray) -> NumPyArray:
        """Return its gradient."""
        residual = (self.loss.residual(scores, self.target).T * self.share).T
        return self.back(residual) + of_rows(self.penalty, theta) * theta

    def quadratic(self, scores: NumPyArray, caution: float) -> Quadratic:
        """Return the Hessian over theta raveled: a matrix unless it would be too large.

        With caution, of a logistic loss, no curvature is less than a part of that of the parabola
        which touches the loss and lies above it (Jaakkola & Jordan 2000).
        """
        width = len(self.penalty) * self.loss.outputs
        if width > _MOST_WEIGHTS or (issparse(self.matrix) and self.loss.outputs > 1):
            return self._products(scores, caution)
        if not isinstance(self.loss, Logistic):
            caution = 0.0
        if not issparse(self.matrix) and caution == 0:
            last = np.full((len(self.target), 1), float(self.intercept))
            rows = np.hstack([self.matrix, last])
            sample = Sample(rows, self.target, self.share, self.loss, self.penalty, self.workers)
            return Matrix(sample.hessian(scores))
        weight = self.share * self._curvature(scores, caution)
        hessian = np.empty((width, width))
        if issparse(self.matrix):
            scaled = self.matrix.copy()
            scaled.data *= np.repeat(np.sqrt(weight), np.diff(scaled.indptr))
            hessian[:-1, :-1] = (scaled.T @ scaled).toarray()
        else:
            scaled = self.matrix * np.sqrt(weight)[:, None]
            hessian[:-1, :-1] = scaled.T @ scaled
        hessian[-1] = hessian[:, -1] = self.back(weight)
        hessian.ravel()[:: width + 1] += self.penalty
        return Matrix(hessian)

    def steepest(self) -> NumPyArray:
        """Return the Hessian's diagonal for the loss's largest curvature, one for each row."""
        return self._back_of_squares(self.share)

    def _back_of_squares(self, numbers: NumPyArray) -> NumPyArray:
        """Return `back` of the squares of the features, of which there is no copy as a whole."""
        if issparse(self.matrix):
            return replace(self, matrix=self.matrix.power(2)).back(numbers)
        product = np.zeros((self.matrix.shape[1] + 1, *numbers.shape[1:]))
        for start in range(0, len(numbers), _BLOCK):
            part = slice(start, start + _BLOCK)
            product[:-1] += np.square(self.matrix[part]).T @ numbers[part]
        product[-1] = numbers.sum(axis=0) if self.intercept else 0
        return product

    def _curvature(self, scores: NumPyArray, caution: float) -> NumPyArray:
        curvature = self.loss.curvature(scores, self.target)
        if caution == 0 or not isinstance(self.loss, Logistic):
            return np.asarray(curvature)
        size = np.maximum(np.abs(scores), _NEAR_ZERO)
        return np.maximum(curvature, caution * np.tanh(size / 2) / (2 * size))

    def _products(self, scores: NumPyArray, caution: float) -> Products:
        curvature = (self._curvature(scores, caution).T * self.share).T
        diagonal = self._back_of_squares(curvature)
        diagonal += of_rows(self.penalty, diagonal)
        if isinstance(self.loss, Softmax):
            probability = self.loss.probability(scores)
            times = partial(self._times_of_softmax, probability, diagonal.shape)
        else:
            times = partial(self._times, curvature)
        return Products(times, diagonal.ravel(), _ACCURACY)

    def _times(self, curvature: NumPyArray, vector: NumPyArray) -> NumPyArray:
        return self.back(curvature * self.scores(vector)) + self.penalty * vector

    def _times_of_softmax(
        self, probability: NumPyArray, shape: tuple[int, ...], raveled: NumPyArray
    ) -> NumPyArray:
        vector = raveled.reshape(shape)
        change = self.scores(vector)
        change -= (probability * change).sum(axis=1, keepdims=True)
        change *= probability * self.share[:, None]
        return np.asarray((self.back(change) + self.penalty[:, None] * vector).ravel())


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
    """Return the features with coefficients, and the worst of the others: sorted indices."""
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
    many = max(_LEAST, int(there.sum()))
    if len(others) > many:
        others = others[np.argpartition(-excess[others], many)[:many]]
    return np.union1d(np.flatnonzero(there), others)
