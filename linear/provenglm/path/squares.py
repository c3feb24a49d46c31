r"""Solve the lasso and the elastic net over folds, without a pass over the rows for each point.

A squared loss depends on the rows only through their products: with the matrix M of weighted
products of features, intercept and target, the objective is

.. math:: F(w) = y^T y / 2 - c^T w + w^T G w / 2 + \mu \|w\|_1 + \lambda \|w\|^2 / 2

where G, c and y'y are the centred parts of M. One pass computes the products of each group of rows
that are in the same training sets. The products of a fold are sums over its groups. Sums lose no
digits, unlike differences from the products of all rows. If there are too many groups, for example
with random folds, and few features, each fold is a group. The products do not depend on the
penalty, and are kept for the whole path.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from scipy.sparse import issparse

from provenglm import constants
from provenglm.methods.descent import minimise
from provenglm.model.objective import Objective, Scaling
from provenglm.model.problem import Problem
from provenglm.model.returned import rounded
from provenglm.model.sampling import l1_of, penalty_of
from provenglm.model.solution import ROUNDING, Settings, StopReason, judged
from provenglm.path.folds import Folds, PathPoint, Start, point_of
from provenglm.proof.duality import best_factor
from provenglm.rows.copies import dense_part
from provenglm.rows.disk import on_disk
from provenglm.rows.gram import gram_of_block, groups as groups_of_blocks
from provenglm.solve import Session
from provenglm.types import NumPyArray

_MOST_GROUPS = 64
"""The largest number of groups whose products are summed. With more groups, each has few rows per
block."""

_MOST_STEPS = 5
"""The largest number of steps by products. One step is usually enough. If this many are not, the
cause is rounding, and the general solver continues from the rows."""


def suits(folds: Folds, problem: Problem) -> bool:
    """Whether the path of a squared loss with an L1 penalty uses products that are made once."""
    loss, features = problem.loss, problem.features
    is_squared = loss.is_quadratic and not loss.has_scale and problem.l1 > 0
    if not is_squared or issparse(features) or on_disk(features):
        return False
    width = features.shape[1] + 2
    if width > constants.MOST_WEIGHTS:
        return False
    groups = _groups(folds)
    return groups is not None and 8 * width**2 * groups.counts.shape[1] <= constants.MEMORY


class _Groups(NamedTuple):
    """Groups of rows whose products are summed: rows in the same training sets, or a fold's rows.

    Attributes
    ----------
    row_group : numpy.ndarray, (n,), optional
        The group of each row; None if each fold is a group.
    counts : numpy.ndarray, (folds, groups)
        How often each group is in the training set of each fold.
    """

    row_group: NumPyArray | None
    counts: NumPyArray

    def within(self, folds: Folds, rows: slice) -> Iterator[tuple[int, NumPyArray]]:
        """Yield the groups of some rows, and how often each row counts in them."""
        if self.row_group is None:
            yield from enumerate(counts[rows] for counts in folds.counts)
            return
        row_group = self.row_group[rows]
        yield from ((group, row_group == group) for group in np.unique(row_group).tolist())


def _groups(folds: Folds) -> _Groups | None:
    """Return the groups, or None if there are too many."""
    base = 1 + max(int(counts.max()) for counts in folds.counts)
    if len(folds) * np.log2(base) <= 62:
        code = np.zeros(len(folds.problem.target), np.int64)
        for counts in folds.counts:
            code = code * base + counts
        _, first, row_group = np.unique(code, return_index=True, return_inverse=True)
        if len(first) <= _MOST_GROUPS:
            return _Groups(row_group, np.stack([counts[first] for counts in folds.counts]))
    if folds.problem.features.shape[1] > constants.ALL_FEATURES:
        return None
    return _Groups(None, np.eye(len(folds)))


class _Products(NamedTuple):
    """Mean products of a fold, in the solver's coordinates and centred.

    Attributes
    ----------
    hessian : numpy.ndarray, (p, p)
    slope : numpy.ndarray, (p,)
        The products of features and target.
    square : float
        The mean square of the target.
    mean : numpy.ndarray, (p,)
    mean_target : float
    """

    hessian: NumPyArray
    slope: NumPyArray
    square: float
    mean: NumPyArray
    mean_target: float


def solve(
    folds: Folds, strengths: Sequence[float], settings: Settings, watch: Callable[[str], None]
) -> list[list[PathPoint]]:
    """Return the points of each fold, from the greatest penalty to the least."""
    whole = folds.penalised(0, strengths[0])
    session = Session(whole, settings)
    with session.running():
        objective, _ = session.prepare()
        groups = _groups(folds)
        assert groups is not None
        if objective.offset is not None:
            # A squared loss has the same value for it.
            target = objective.target - objective.offset[:, 0]
            objective = objective.on(target=target, offset=None)
        center = float(objective.mean_target()[0]) if objective.intercept else 0.0
        sums = _sums(objective, folds, groups, center)
    paths = []
    for fold, counts in enumerate(groups.counts):
        products = _fold_products(sums, counts, folds.totals[fold], objective.intercept, center)
        path = _Path(folds, fold, products, objective.scaling, settings)
        paths.append([path.point(strength) for strength in strengths])
        watch(f"fold {fold + 1} of {len(folds)}: {len(strengths)} points of the same products")
    return paths


def _sums(objective: Objective, folds: Folds, groups: _Groups, center: float) -> NumPyArray:
    """Return the products of features, ones and target, summed over each group, in one pass."""
    rows, weight = objective.rows, folds.problem.sample_weight
    p = rows.shape[1]

    def group_products(blocks: list[slice]) -> list[tuple[int, NumPyArray]]:
        whole = slice(blocks[0].start, blocks[-1].stop)
        taken = dense_part(rows, whole, objective.scaling, beside=2)
        taken[:, p], taken[:, p + 1] = 1, objective.target[whole] - center
        found = []
        for group, counts in groups.within(folds, whole):
            some = np.flatnonzero(counts)
            each = counts[some].astype(np.float64)
            if weight is not None:
                each *= weight[whole][some]
            found.append((group, gram_of_block(taken[some], each)))
        return found

    sums = np.zeros((groups.counts.shape[1], p + 2, p + 2))
    for found in objective.workers.map(group_products, groups_of_blocks(rows, p), together=1):
        for group, product in found:
            sums[group] += product
    return sums


def _fold_products(
    sums: NumPyArray, counts: NumPyArray, total: float, intercept: bool, center: float
) -> _Products:
    mean = np.zeros_like(sums[0])
    for group_sum, count in zip(sums, counts, strict=True):
        if count:
            mean += count * group_sum
    mean /= total
    if intercept:
        first = mean[-2].copy()
        mean -= np.multiply.outer(first, first)
    else:
        first = np.zeros(len(mean))
    return _Products(
        np.ascontiguousarray(mean[:-2, :-2]),
        mean[:-2, -1],
        max(0.0, float(mean[-1, -1])),
        first[:-2],
        float(first[-1]) + center,
    )


class _Path:
    """The state of a fold on its path."""

    def __init__(
        self, folds: Folds, fold: int, products: _Products, scaling: Scaling, settings: Settings
    ) -> None:
        self._folds, self._fold = folds, fold
        self._products, self._scaling, self._settings = products, scaling, settings
        self._weights = np.zeros(len(products.mean))
        self._diagonal = products.hessian.diagonal().copy()
        self._session: Session | None = None

    def point(self, strength: float) -> PathPoint:
        """Return the optimum for the next strength, starting from the previous one."""
        products, scaling, settings = self._products, self._scaling, self._settings
        l2, l1 = self._folds.penalties(self._fold, strength)
        if l1 == 0:
            return self._by_itself(strength)
        penalty, sizes = penalty_of(scaling, l2, True)[:-1], l1_of(scaling, l1)
        assert sizes is not None
        sizes, weights, hessian = sizes[:-1], self._weights, products.hessian
        # In place: a copy would take longer than a step.
        hessian.ravel()[:: len(hessian) + 1] = self._diagonal + penalty
        gradient = hessian @ weights - penalty * weights - products.slope
        for step in range(1, min(_MOST_STEPS, settings.max_iter) + 1):
            if time.perf_counter() >= settings.deadline:
                break
            weights = minimise(hessian, gradient + penalty * weights, weights, sizes)
            gradient = hessian @ weights - penalty * weights - products.slope
            # This is the mean square of the residuals.
            square = max(0.0, products.square + float((gradient - products.slope) @ weights))
            objective = 0.5 * square + float(sizes @ np.abs(weights))
            objective += 0.5 * float(penalty @ np.square(weights))
            gap = _gap(weights, gradient, square, sizes, penalty)
            required_gap = settings.tol * (0.5 * products.square - objective)
            if gap <= max(required_gap, ROUNDING * products.square + sys.float_info.min):
                self._weights = weights
                return self._kept(objective, gap, step, required_gap)
        return self._by_itself(strength)

    def _kept(self, objective: float, gap: float, count: int, required_gap: float) -> PathPoint:
        products = self._products
        bias = products.mean_target - products.mean @ self._weights
        coef, rough = self._scaling.to_user(np.append(self._weights, bias)[:, None])
        # With the intercept at its best value, the objective is a parabola around it.
        intercept, step = rounded(np.array([bias]), self._scaling.center, coef, rough)
        rise = 0.5 * float(step @ step)
        gap, rounding = gap + rise, ROUNDING * products.square + sys.float_info.min
        return PathPoint(
            coef=coef,
            intercept=intercept,
            objective=objective + rise,
            gap=gap,
            decrement=gap,
            iterations=count,
            reason=judged(StopReason.ESTIMATED, gap, gap, required_gap, rounding, rise),
        )

    def _by_itself(self, strength: float) -> PathPoint:
        """Return a point from the general solver, started at the fold's present point."""
        folds, fold = self._folds, self._fold
        bias = self._products.mean_target - self._products.mean @ self._weights
        start: Start = self._scaling.to_user(np.append(self._weights, bias)[:, None])
        penalties = folds.penalties(fold, strength)
        # Without a penalty another method may be better.
        if self._session is None or not any(penalties):
            self._session = Session(folds.of(fold, strength), self._settings)
        with self._session.running():
            point = point_of(self._session, penalties, start)
        self._weights = self._scaling.from_user(point.coef, point.intercept)[:-1, 0]
        return point


def _gap(
    weights: NumPyArray, gradient: NumPyArray, square: float, l1: NumPyArray, l2: NumPyArray
) -> float:
    """Return the duality gap: see `duality`.

    The residuals u at the best intercept sum to 0. If they are scaled by a factor f, the first sum
    is (1 - f)^2 u^2 / 2.
    """
    size, value = np.abs(gradient), l1 @ np.abs(weights) + 0.5 * l2 @ np.square(weights)
    slope, over = float(gradient @ weights), size > l1
    size, l1, l2 = size[over], l1[over], l2[over]
    with np.errstate(divide="ignore"):
        factor = best_factor(square, slope, size, l1, l2)
    excess = np.maximum(factor * size - l1, 0)
    squares = np.divide(np.square(excess), 2 * l2, out=np.zeros_like(l2), where=excess > 0)
    gap = 0.5 * (1 - factor) ** 2 * square + float(value) + factor * slope + float(squares.sum())
    return max(gap, 0.0)
