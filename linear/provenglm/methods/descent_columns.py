"""Steps of `descent` that work on columns and on the scores, and never store the Hessian."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from provenglm import compiled, constants
from provenglm.model.conjugate_gradients import conjugate_gradients
from provenglm.model.losses import SecondDerivativeOfClasses
from provenglm.model.objective import Objective, PassSums, Scaling, Snapshot
from provenglm.rows.copies import arrays_of, write_columns
from provenglm.rows.table import Kept
from provenglm.types import NumPyArray

_SURE = 1 - 1e-9
"""A bound above this part of the penalty may be rounding."""

_LEAST_VARIANCE = 1e-6
"""Centring leaves at least this part of a column's sum of squares: a smaller rest would be
rounding."""

_TINY = float(np.finfo(np.float64).tiny)

_LEAST_CURVATURE = 1e-14
"""A smaller curvature of intercepts is rounding, because probabilities are rounded to 1e-16."""

_LARGEST_INVERSE_OF_FLOAT32 = 1e8
"""If the inverse of the intercepts' curvature is larger, their steps in float32 amplify the
rounding error of the last step. The measured error was 2e-9 times the inverse."""

Arrays = tuple[NumPyArray, NumPyArray, NumPyArray]

kernels = partial(compiled.kernels, "methods.descent_kernels")


class Columns(NamedTuple):
    """Columns of all rows, in the units of theta.

    Attributes
    ----------
    arrays : tuple of numpy.ndarray
        Values, rows, and where each column begins.
    places : numpy.ndarray, (m,)
        The places of the working set's columns among these.
    center : numpy.ndarray, (m,)
        The centres that theta's coordinates subtract. They are not subtracted from the columns.
    """

    arrays: Arrays
    places: NumPyArray
    center: NumPyArray


def sparse_columns(objective: Objective) -> Arrays:
    """Return a copy of sparse rows by columns, divided by their scales."""
    rows: Any = objective.rows
    columns = rows.columns()
    data, inverse = columns.data, objective.scaling.inverse
    if (inverse != 1).any():
        data = data * np.repeat(inverse, np.diff(columns.indptr))
    rows = columns.indices
    # The result is identical, and a copy would take an eighth of the time of the conversion.
    rows = rows.view(np.uint32) if rows.itemsize == 4 else rows.astype(np.uint32)
    return data, rows, columns.indptr.astype(np.uint64)


def screened_columns(objective: Objective) -> tuple[Objective, Arrays, NumPyArray]:
    r"""Drop the columns whose coefficient is 0 at the optimum. Return objective, copy and columns.

    The residuals of some losses are bounded, and so are their products with a column. If these
    bounds are within the penalty, the coefficient is 0 at the optimum: without such columns the
    optimum, and any bound of the distance to it, stay the same. For text they can be most columns,
    because most words are rare.
    """
    loss, share, scaling = objective.loss, objective.share, objective.scaling
    n, p = objective.rows.shape
    assert objective.l1 is not None
    observed = loss.observed(objective.target)[:, 0]
    beyond = np.full((n, 1), np.inf)
    low, high = (loss.inside(far, objective.target)[:, 0] for far in (-beyond, beyond))
    is_bounded = bool(np.isfinite(low).all() and np.isfinite(high).all())
    if not is_bounded:
        low = high = np.zeros(n)
    given = arrays_of(objective.rows)
    count, sums = np.zeros(p, np.uint32), np.zeros((p, 4))
    kernels().column_sums(*given, share, observed, low, high, count, sums)
    is_kept = np.ones(p, bool)
    if is_bounded:
        largest = np.maximum(sums[:, 2], -sums[:, 3]) * scaling.inverse
        is_kept = largest > _SURE * objective.l1[:-1]
    kept = np.flatnonzero(is_kept)
    count = count[kept]
    begins = np.append(0, np.cumsum(count, dtype=np.int64))
    data = np.empty(begins[-1], given[0].dtype)
    row_numbers = np.empty(len(data), np.uint32)
    places = np.full(p, len(data), np.uint64)
    places[kept] = begins[:-1]
    kernels().by_columns(*given, places, data, row_numbers)
    inverse, center, size = scaling.inverse[kept], scaling.center[kept], scaling.known_size
    if (inverse != 1).any():
        data = data * np.repeat(inverse, count)
    mean = (sums[kept, 0] - center * share.sum()) * inverse
    target_moments = (sums[kept, 1] - center * objective.mean_target()) * inverse
    with_last = np.append(kept, p)
    small = replace(
        objective,
        scaling=Scaling(center, inverse, None if size is None else size[kept]),
        penalty=objective.penalty[with_last],
        l1=objective.l1[with_last],
        moments=(mean, target_moments[:, None]),
        rare=None,
    )
    return small, (data, row_numbers, begins.astype(np.uint64)), with_last


def dense_columns(objective: Objective, chosen: NumPyArray) -> Columns:
    """Return the chosen columns of dense rows, centred."""
    n, m = objective.n, len(chosen)
    taken = np.empty((m, n))
    write_columns(objective.rows, chosen, objective.scaling, taken, objective.workers)
    rows = np.tile(np.arange(n, dtype=np.uint32), m)
    begins = np.arange(m + 1, dtype=np.uint64)
    return Columns((taken.ravel(), rows, begins * np.uint64(n)), begins[:-1], np.zeros(m))


@dataclass
class ByColumns(Objective):
    """The objective of sparse rows that are stored by columns, for one score per row.

    The scores use only columns with nonzero coefficients, and no sum is stored per block.

    Attributes
    ----------
    arrays : tuple of numpy.ndarray
        All columns, in the units of theta.
    """

    arrays: Arrays = (np.zeros(0),) * 3

    @cached_property
    def _center(self) -> NumPyArray:
        return np.asarray(self.scaling.center * self.scaling.inverse)

    @cached_property
    def _is_as_given(self) -> bool:
        has_all = len(self._center) == self.rows.shape[1]
        return has_all and bool((self.scaling.inverse == 1).all())

    @cached_property
    def _parts(self) -> list[tuple[int, int]]:
        """Split the columns into one part per thread, each with about as many numbers."""
        ends = np.linspace(0, len(self.arrays[0]), self.workers.count + 1)[1:-1]
        inner = np.searchsorted(self.arrays[2], ends).tolist()
        return list(pairwise([0, *inner, len(self._center)]))

    def snapshot(self, theta: NumPyArray) -> Snapshot:
        """Return objective, gradient and scores at `theta`, (p + 1, 1)."""
        there, scores = np.flatnonzero(theta[:-1, 0]), np.empty((self.n, 1))
        weights = theta[there, 0]
        kernels().scores(*self.arrays, there.astype(np.uint64), weights, scores[:, 0])
        bias = theta[-1] - self._center[there] @ weights
        scores += bias if self.offset is None else bias + self.offset
        with np.errstate(over="ignore", invalid="ignore"):
            values, residual = self.loss.value_and_residual(scores, self.target)
            value = float(values @ self.share)
            weighted = residual[:, 0] * self.share
            total = weighted.sum()
            gradient = self._products(weighted)
        known = None
        if self._is_as_given:
            known = PassSums(value, gradient[:-1, None].copy(), np.array([total]), None)
        gradient[:-1] -= self._center * total
        gradient[-1] = total if self.intercept else 0.0
        self.reads.rows += self.n
        penalty = self.penalty[there] * weights
        gradient[there] += penalty
        value += 0.5 * float(penalty @ weights)
        if self.l1 is not None:
            value += float(self.l1[there] @ np.abs(weights))
        return Snapshot(theta, value, gradient[:, None], Kept(scores, residual), known)

    def _products(self, numbers: NumPyArray) -> NumPyArray:
        """Return the products of all columns with `numbers`, (p + 1,); the last entry is unset."""
        found = np.empty(len(self._center) + 1)

        def part_products(part: tuple[int, int]) -> None:
            kernels().products(*self.arrays, *part, numbers, found)

        for _ in self.workers.map(part_products, self._parts):
            pass
        return found


class ScalarQuadratic:
    """The quadratic model over a set of features, with the intercept at its best value.

    Parameters
    ----------
    chosen : numpy.ndarray, (m,)
        The indices of the features.
    l1, l2 : numpy.ndarray, (m,)
    curvature_shift : float
        The curvature shift; see `Loss.second_derivative`.
    """

    def __init__(
        self,
        objective: Objective,
        columns: Columns,
        snapshot: Snapshot,
        chosen: NumPyArray,
        l1: NumPyArray,
        l2: NumPyArray,
        curvature_shift: float,
    ) -> None:
        loss, target, share = objective.loss, objective.target, objective.share
        before = snapshot.theta[chosen, 0]
        self._objective = objective
        self._columns, self._l1, self._l2, self._before = columns, l1, l2, before
        curvature = loss.second_derivative(snapshot.scores, target, curvature_shift)
        self._weight = curvature.diagonal[:, 0] * share
        self._rest = loss.residual(snapshot.scores.astype(np.float64), target)[:, 0]
        self._rest *= share
        arrays, places, _ = columns
        measured = kernels().measure(*arrays, places, self._rest, self._weight)
        self._loss_gradient, mean, square = measured
        self._total, self._shift = np.inf, 0.0
        if objective.intercept:
            self._total = max(float(self._weight.sum()), _TINY)
            self._shift = -float(self._rest.sum()) / self._total
            centred = square - np.square(mean) / self._total
            square = np.maximum(centred, _LEAST_VARIANCE * square)
        else:
            mean = np.zeros_like(mean)
        self._mean, self._square = mean, np.maximum(square + l2, _TINY)
        self._t, self._own = merge_duplicates(columns, before, l1, l2, *measured[1:])
        # The weights times the change of the scores, without the intercept's part.
        self._moved = np.zeros(len(share))

    def solve(self) -> tuple[NumPyArray, float, float, float]:
        """Return the approximate minimum, (m, 1), the intercept's step, decrease and slope."""
        self._descend()
        arrays, places, _ = self._columns
        change, along = self._t - self._before, np.empty(len(self._weight))
        kernels().scores(*arrays, places, change, along)
        along += self._shift
        slope = float((self._loss_gradient + self._l2 * self._before) @ change)
        slope += self._shift * float(self._rest.sum())
        slope += float(self._l1 @ (np.abs(self._t) - np.abs(self._before)))
        square = float(self._weight @ np.square(along)) + float(self._l2 @ np.square(change))
        return self._t[:, None], self._shift, -slope - 0.5 * square, slope

    def _descend(self) -> None:
        arrays, places, _ = self._columns
        active, most, is_near = self._own.copy(), 0.0, False
        sweep = kernels().sweep_columns
        for count in range(constants.MOST_STEPS):
            is_whole = count % constants.ROUND == 0 or is_near
            if is_whole:
                active[:] = self._own
            fell, self._shift = sweep(
                *arrays,
                places,
                active,
                self._t,
                self._loss_gradient,
                self._l1,
                self._l2,
                self._mean,
                self._square,
                self._total,
                self._weight,
                self._moved,
                self._shift,
            )
            most = max(most, fell)
            is_near = fell <= constants.LAST_SWEEP * most
            if (is_whole and is_near and count > 0) or self._objective.is_late:
                break
            if (count + 1) % constants.ROUND == 0 and not is_near:
                self._to_the_system()

    def _hessian_over(self, free: NumPyArray) -> Callable[[NumPyArray], NumPyArray]:
        """Return the product of the Hessian with a step over the free columns, as a function."""
        arrays, places, _ = self._columns
        fixed = *arrays, places[free], self._l2[free], self._total, self._weight
        return partial(kernels().product, *fixed)

    def _to_the_system(self) -> None:
        """Step towards the solution for the present signs, by conjugate gradients."""
        arrays, places, _ = self._columns
        free = np.flatnonzero(self._t)
        these, t, l1, l2 = places[free], self._t[free], self._l1[free], self._l2[free]
        sign, weight, total = np.sign(t), self._weight, self._total
        here = kernels().measure(*arrays, these, self._moved, weight)[0]
        here += self._loss_gradient[free] + self._shift * self._mean[free] + l2 * t + l1 * sign
        square = self._square[free]
        wanted = conjugate_gradients(
            self._hessian_over(free), -here, lambda rest: rest / square, constants.SAMPLE_FORCING
        ).step
        turns = (t + wanted) * sign <= 0
        # A coefficient that would change its sign becomes 0, which usually lowers the model.
        step, along = np.where(turns, -t, wanted), np.empty(len(weight))
        for _ in range(2):
            kernels().scores(*arrays, these, step, along)
            moved = weight * along
            sum_ = float(moved.sum())
            square = float(moved @ along) - sum_ * sum_ / total + float(l2 @ np.square(step))
            if float(here @ step) + 0.5 * square < 0:
                self._t[free] += step
                self._shift -= sum_ / total
                self._moved += moved
                return
            if not turns.any():
                return
            kernels().scores(*arrays, these, wanted, along)
            moved = weight * along
            square = float(moved @ along) - float(moved.sum()) ** 2 / total
            square += float(l2 @ np.square(wanted))
            step = least_along(t, wanted, l1, float(here @ wanted), square)


def merge_duplicates(
    columns: Columns,
    before: NumPyArray,
    l1: NumPyArray,
    l2: NumPyArray,
    mean: NumPyArray,
    square: NumPyArray,
) -> tuple[NumPyArray, NumPyArray]:
    """Return the coefficients with duplicate columns merged, and the columns that remain.

    Equal columns give their coefficients to one of them. Without a squared penalty this costs
    nothing, and without duplicates the Hessian of the nonzero coefficients is regular. Otherwise
    the solution of a system would be shared by all duplicates, and the smallest of their
    coefficients would soon change its sign. With a squared penalty all columns stay as they are.

    Parameters
    ----------
    mean, square : numpy.ndarray, (m,)
        Weighted sums of the columns and of their squares; duplicates have equal sums.
    """
    t, has_own = before.copy(), np.ones(len(before), bool)
    if not l2.any():
        order = np.lexsort((square, mean)).astype(np.uint64)
        first = kernels().first_duplicates(*columns.arrays, columns.places, order, mean, square, l1)
        # Keep the lowest index of each group, so that the next step keeps the same column.
        lowest = np.arange(len(first))
        np.minimum.at(lowest, first, lowest.copy())
        first = lowest[first]
        duplicates = np.flatnonzero(first != np.arange(len(first)))
        has_own[duplicates] = False
        np.add.at(t, first[duplicates], t[duplicates])
        t[duplicates] = 0
    return t, has_own


def least_along(
    t: NumPyArray, step: NumPyArray, l1: NumPyArray, slope: float, square: float
) -> NumPyArray:
    """Return the length of a step that minimises a quadratic with an L1 penalty.

    Parameters
    ----------
    t : numpy.ndarray
        No entry is 0.
    slope, square : float
        The slope at the beginning of the whole step, and the step's product with the Hessian.
    """
    turning = np.flatnonzero(t * (t + step) <= 0)
    places = -t[turning] / step[turning]
    order = np.argsort(places)
    turning, places = turning[order], places[order]
    # The slope grows with the length, and jumps by twice the penalty where a sign changes.
    rises = np.concatenate([[0.0], np.cumsum(2 * l1[turning] * np.abs(step[turning]))])
    before = slope + square * np.append(places, 1.0) + rises
    k = int(np.argmax(before >= 0)) if (before >= 0).any() else len(places)
    length = min(1.0, -(slope + rises[k]) / square)
    if k > 0 and length < places[k - 1]:
        # The minimum is where a sign changes.
        shortened: NumPyArray = places[k - 1] * step
        shortened[turning[k - 1]] = -t[turning[k - 1]]
        return shortened
    return np.asarray(length * step)


class SoftmaxQuadratic:
    """The same model for softmax; the intercepts move between sweeps."""

    def __init__(
        self,
        objective: Objective,
        columns: Columns,
        snapshot: Snapshot,
        chosen: NumPyArray,
        l1: NumPyArray,
        l2: NumPyArray,
        curvature_shift: float,
    ) -> None:
        curvature = objective.loss.second_derivative(
            snapshot.scores, objective.target, curvature_shift
        )
        assert isinstance(curvature, SecondDerivativeOfClasses)
        before, gradient = snapshot.theta[chosen], snapshot.gradient[chosen]
        self._objective = objective
        self._columns, self._l1, self._l2, self._before = columns, l1, l2, before
        self._has_intercepts = objective.intercept
        self._intercept_gradient: NumPyArray = snapshot.gradient[-1]
        self._loss_gradient: NumPyArray = gradient - l2[:, None] * before
        self._loss_gradient += np.multiply.outer(columns.center, self._intercept_gradient)
        total = curvature.total(objective.share)
        cutoff = max(1e-12, _LEAST_CURVATURE / max(total.diagonal().max(), _TINY))
        self._inverse = np.linalg.pinv(total, rcond=cutoff, hermitian=True)
        # Steps need residual changes only as precise as the residuals themselves.
        is_single = np.abs(self._inverse).max() < _LARGEST_INVERSE_OF_FLOAT32
        self._dtype = np.dtype(np.float32 if is_single else np.float64)
        self._share = objective.share.astype(self._dtype)
        self._curvature = curvature.astype(self._dtype)
        # diag p - p p^T is bounded above by both diagonals, p and 2 p (1 - p).
        probability = self._curvature.probability
        is_sure = probability.max(axis=1, keepdims=True) > 0.5
        above = np.where(is_sure, 2 * self._curvature.diagonal, probability)
        above *= self._share[:, None]
        arrays, places, _ = columns
        square = kernels().squares_of_classes(*arrays, places, above)
        self._square = np.maximum(square + l2[:, None], _TINY)
        # Random weights: with equal ones, all words with the same number of rows would look equal.
        weight = np.random.default_rng(0).random(len(probability))
        weighted_sums = kernels().measure(*arrays, places, weight, weight)[1:]
        self._merged, self._own = merge_duplicates(columns, before, l1, l2, *weighted_sums)

    def solve(self) -> tuple[NumPyArray, NumPyArray, float, float]:
        """Return the approximate minimum, the intercepts' step, the model's decrease and slope."""
        arrays, places, _ = self._columns
        probability = self._curvature.probability
        t, moved = self._merged.copy(), np.zeros(probability.shape, self._dtype)
        active, shift = self._own.copy(), np.zeros(len(self._intercept_gradient))
        most = 0.0
        for count in range(constants.MOST_STEPS):
            if self._has_intercepts:
                shift += self._moved_intercepts(moved)
            is_whole = count % constants.ROUND == 0
            if is_whole:
                active[:] = self._own
            fell = kernels().sweep_classes(
                *arrays,
                places,
                active,
                t,
                self._loss_gradient,
                self._l1,
                self._l2,
                self._square,
                probability,
                self._share,
                moved,
            )
            most = max(most, fell)
            is_near = fell <= constants.LAST_SWEEP * most
            if (is_whole and is_near and count > 0) or self._objective.is_late:
                break
        change = t - self._before
        slope = float(np.vdot(self._loss_gradient + self._l2[:, None] * self._before, change))
        slope += float(shift @ self._intercept_gradient)
        slope += float(self._l1 @ (np.abs(t) - np.abs(self._before)).sum(axis=1))
        # If a is the scores' change, `moved` is s p (a - m), and a H a is the sum of s p (a - m)^2.
        each = probability * self._share[:, None]
        squares = np.divide(np.square(moved), each, out=np.zeros_like(moved), where=each > 0)
        square = float(squares.sum(dtype=np.float64))
        square += float(self._l2 @ np.square(change).sum(axis=1))
        return t, shift, -slope - 0.5 * square, slope

    def _moved_intercepts(self, moved: NumPyArray) -> NumPyArray:
        """Return the best step of the intercepts, and update `moved`."""
        step = -self._inverse @ (self._intercept_gradient + moved.sum(axis=0, dtype=np.float64))
        along = np.broadcast_to(step.astype(self._dtype), moved.shape)
        moved += self._curvature.times(along) * self._share[:, None]
        return np.asarray(step)
