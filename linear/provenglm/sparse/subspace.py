r"""The optimum in the span of a few directions, from their scores.

Scores are linear in the weights: with the scores of a point and of some directions, the objective
is known everywhere in their span, without another product with the features. Sequential subspace
optimisation (Narkiss & Zibulevsky 2005) with the displacement of an epoch and the last steps: on
a quadratic objective, of a symmetric epoch, the method of conjugate gradients with the epoch as
preconditioner.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.linalg import get_blas_funcs

from provenglm.losses import Loss, Softmax
from provenglm.types import NumPyArray

_MOST_NUMBERS = 1 << 18
"""Scores that the curvature in the span is measured on: the coefficients need no more digits."""

_ALIKE = 0.2
"""Of a predicted gain: if as much is missing, the curvature was another, and is taken anew."""

_ALIKE_DIRECTIONS = 1e-6
"""Of the largest eigenvalue: below it directions are alike, up to rounding."""

_ROUNDS = 4
_HALVINGS = 30


@dataclass(frozen=True)
class Direction:
    """A displacement of theta and what it does to the scores.

    Attributes
    ----------
    theta : numpy.ndarray, (p + 1,) or (p + 1, K)
    scores : numpy.ndarray, (n,) or (n, K)
    """

    theta: NumPyArray
    scores: NumPyArray


@dataclass(frozen=True)
class Point:
    """Theta with all that is known there without the gradient.

    Attributes
    ----------
    residual : numpy.ndarray, scores' shape
        Not weighted.
    """

    theta: NumPyArray
    scores: NumPyArray
    objective: float
    residual: NumPyArray


@dataclass(frozen=True)
class Setting:
    """The loss with what weighs it: the rows' shares and theta's penalty.

    With an intercept the span has the intercepts, too: their directions are known.
    """

    loss: Loss
    target: NumPyArray
    share: NumPyArray
    penalty: NumPyArray
    intercept: bool

    def at(self, theta: NumPyArray, scores: NumPyArray) -> Point:
        """Return the point of given scores."""
        value, residual = self.loss.value_and_residual(scores, self._targets(scores))
        total = float(self.share @ np.asarray(value, np.float64))
        return Point(theta, scores, total + self._of_penalty(theta), residual)

    def _of_penalty(self, theta: NumPyArray) -> float:
        return 0.5 * self._product(theta, theta)

    def _product(self, one: NumPyArray, other: NumPyArray) -> float:
        """Return the product of two thetas in the metric of the penalty."""
        count = len(one)
        each = np.einsum("jk,jk->j", one.reshape(count, -1), other.reshape(count, -1))
        return float(self.penalty @ each)

    def _targets(self, scores: NumPyArray) -> NumPyArray:
        target = self.target
        return target if target.dtype.kind in "iu" else target.astype(scores.dtype, copy=False)

    def slopes(self, point: Point, directions: Sequence[Direction]) -> NumPyArray:
        """Return the derivatives along the directions, from the scores."""
        weighted = (point.residual.T * self.share).T
        along = [
            float(np.vdot(weighted, each.scores)) + self._product(point.theta, each.theta)
            for each in directions
        ]
        if not self.intercept:
            return np.array(along)
        return np.append(along, weighted.sum(axis=0, dtype=np.float64))

    def curvature(self, scores: NumPyArray, directions: Sequence[Direction]) -> NumPyArray:
        """Return the Hessian in the span, the data's part from the first rows."""
        count = max(4096, _MOST_NUMBERS // int(np.prod(scores.shape[1:], initial=1)))
        part = slice(0, count)
        share = self.share[part]
        weight = (share / max(float(share.sum()), np.finfo(np.float64).tiny)).astype(scores.dtype)
        along = [each.scores[part] for each in directions]
        scores = scores[part]
        if isinstance(self.loss, Softmax):
            probability = np.ascontiguousarray(self.loss.probability(scores))
            weighted = probability * weight[:, None]
            changes = []
            for each in along:
                change = probability * each
                total = change.sum(axis=1)
                change *= weight[:, None]
                change -= weighted * total[:, None]
                changes.append(change)
            of_intercept = np.diag(weighted.sum(axis=0)) - weighted.T @ probability
        else:
            target = self._targets(scores)
            weighted = weight * self.loss.weight_in_hessian(scores, target[part])
            changes = [weighted * each for each in along]
            of_intercept = weighted.sum(dtype=np.float64)
        count = len(directions)
        size = count + (max(1, *scores.shape[1:], 1) if self.intercept else 0)
        matrix = np.empty((size, size))
        for i, change in enumerate(changes):
            for j in range(i + 1):
                product = float(np.vdot(change, along[j]))
                product += self._product(directions[i].theta, directions[j].theta)
                matrix[i, j] = matrix[j, i] = product
            if self.intercept:
                matrix[i, count:] = matrix[count:, i] = change.sum(axis=0, dtype=np.float64)
        matrix[count:, count:] = of_intercept if self.intercept else 0.0
        return matrix


def minimise(
    setting: Setting, start: Point, slopes: NumPyArray, directions: Sequence[Direction]
) -> tuple[Point, NumPyArray]:
    """Return the lowest point found in the span of `directions`, and its coefficients.

    Newton's method in as many dimensions as there are directions. It is `start` itself where
    nothing lower was found.

    Parameters
    ----------
    slopes : numpy.ndarray
        The derivatives along the directions at `start`, products with its gradient, and those of
        the intercepts.
    """
    best, best_length = start, np.zeros(len(slopes))
    for _ in range(_ROUNDS):
        step = _solved(setting.curvature(best.scores, directions), slopes)
        predicted = -0.5 * float(slopes @ step)
        if not predicted > 0:
            break
        new, length = _lower(setting, start, best, best_length, step, directions)
        if new is None:
            break
        gained = best.objective - new.objective
        best, best_length = new, length
        if gained > (1 - _ALIKE) * predicted and gained < (1 + _ALIKE) * predicted:
            break
        slopes = setting.slopes(best, directions)
    return best, best_length


def _lower(
    setting: Setting,
    start: Point,
    best: Point,
    best_length: NumPyArray,
    step: NumPyArray,
    directions: Sequence[Direction],
) -> tuple[Point | None, NumPyArray]:
    """Return the first point lower than `best` along a step that is halved until there is one."""
    for _ in range(_HALVINGS):
        length = best_length + step
        with np.errstate(over="ignore", invalid="ignore"):
            new = moved(setting, start, length, directions)
        if new.objective < best.objective:
            return new, length
        step = step / 2
        if np.abs(step).max() < 1e-7 * max(1.0, np.abs(best_length).max()):
            break
    return None, best_length


def moved(
    setting: Setting, start: Point, lengths: NumPyArray, directions: Sequence[Direction]
) -> Point:
    """Return the point so far along each of the directions."""
    theta, scores = start.theta.copy(order="C"), start.scores.copy(order="C")
    for length, each in zip(lengths, directions, strict=False):
        _add(theta, length, each.theta)
        _add(scores, length, each.scores)
    if setting.intercept:
        bias = lengths[len(directions) :].reshape(theta.shape[1:])
        theta[-1] += bias
        scores += bias.astype(scores.dtype)
    return setting.at(theta, scores)


def combined(lengths: NumPyArray, directions: Sequence[Direction], intercept: bool) -> Direction:
    """Return the step of so much of each direction, as a direction.

    Not as a difference of points: of a small step, that of their scores would be rounding for the
    most part, which a later search would take for a way to lower the loss.
    """
    theta, scores = np.zeros_like(directions[0].theta), np.zeros_like(directions[0].scores)
    for length, each in zip(lengths, directions, strict=False):
        _add(theta, length, each.theta)
        _add(scores, length, each.scores)
    if intercept:
        bias = lengths[len(directions) :].reshape(theta.shape[1:])
        theta[-1] += bias
        scores += bias.astype(scores.dtype)
    return Direction(theta, scores)


def _add(total: NumPyArray, factor: float, array: NumPyArray) -> None:
    """Add a multiple in place, without a temporary."""
    axpy = get_blas_funcs("axpy", dtype=total.dtype)
    axpy(np.ascontiguousarray(array).reshape(-1), total.reshape(-1), a=factor)


def _solved(matrix: NumPyArray, slopes: NumPyArray) -> NumPyArray:
    """Return Newton's step, of directions that may be all but parallel."""
    scale = np.sqrt(np.maximum(np.diag(matrix), np.finfo(np.float64).tiny))
    correlation = matrix / np.outer(scale, scale)
    values, vectors = np.linalg.eigh(correlation)
    kept = values > _ALIKE_DIRECTIONS * values[-1]
    vectors = vectors[:, kept] / np.sqrt(values[kept])
    step: NumPyArray = -(vectors @ (vectors.T @ (slopes / scale))) / scale
    return step
