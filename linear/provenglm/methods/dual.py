r"""Stochastic dual coordinate ascent: sparse rows with many columns, and classes of dense rows.

Each row has its own residual :math:`u_i = q_i - y_i`, with a mean :math:`q_i` between the classes,
and the weights are always :math:`w = -\sum_i s_i u_i x_i / \lambda`. This is the dual problem of
`duality`. A step finds the best residual of one row while all others are fixed (Shalev-Shwartz &
Zhang 2013; for classes Yu, Huang & Lin 2011). It needs no step length, and it has no noise at the
optimum. An epoch visits the rows in random order and costs less than a gradient.

The intercept has no penalty, so the residuals must sum to 0. The method of multipliers ensures this
(Bertsekas 1982, chapter 2): the intercept is a weight with the penalty :math:`\mu (b - b_0)^2 / 2`,
and after each epoch :math:`b_0` is set to :math:`b`.

During an epoch the rows estimate the distance to the optimum. When the estimate is small enough, a
snapshot is taken in float64, with the best intercept for its weights. Its gap is the smaller of two
bounds: by the residuals at its scores, or by the residuals of the dual, which the weights match
exactly.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from provenglm import constants
from provenglm.compiled import kernels
from provenglm.methods.base import Method, Step, Target
from provenglm.model.losses import SecondDerivative, SecondDerivativeOfClasses
from provenglm.model.objective import Objective, Scaling, Snapshot
from provenglm.model.sampling import fits_float32
from provenglm.proof.duality import gap_of_residuals
from provenglm.rows.blocks import parts_of
from provenglm.rows.copies import arrays_of
from provenglm.rows.products import column_products, row_products, row_squares
from provenglm.rows.table import Block
from provenglm.types import NumPyArray

_BALANCED = 1e-10
"""The largest gradient of the intercept that a snapshot may have: the gap grows with it."""


_RELATIVE_BIAS_EFFECT = 0.005
"""The effect of a row's step on its own score through the intercept is at least this part of the
effect through the weights: without it, the intercepts of 1,000 classes with a mean curvature of 300
hardly moved."""

_SLOW = 0.5
"""The dual gives up if `_SLOW_EPOCHS` epochs together leave more than this part of the distance."""

_SLOW_EPOCHS = 8
"""With 4, raw word counts took up to 1.7 times as long."""

_TINY = float(np.finfo(np.float64).tiny)
_ULP = float(np.finfo(np.float64).eps)


class DualCoordinateAscent(Method):
    """Run epochs over the rows until they estimate that the optimum is near enough.

    The method gives up if epochs gain too little or if the penalty is too weak.

    Parameters
    ----------
    objective : Objective
    is_precise : bool
        Whether the requested tolerance is too small for float32.
    rng : numpy.random.Generator
        The generator for the order of the rows.
    """

    name = "dual-coordinate-ascent"
    has_cheap_steps = True
    why = ", and the penalty is strong enough for steps of single rows in the dual"

    def __init__(self, objective: Objective, is_precise: bool, rng: np.random.Generator) -> None:
        super().__init__(objective.precise())
        self._is_precise, self._rng = is_precise, rng
        self._dual: _Dual | None = None
        self._distances: list[float] = []
        # The remaining distance, and the largest factor by which its estimates were too small so
        # far.
        # The dual's estimate does not include balancing its residuals: so far a factor of up to
        # 1.7.
        self._left = self._dual_distance = np.inf
        self._is_near = False
        self._ratio, self._dual_ratio = 1.0, 2.0

    def step(self, point: Snapshot, target: Target) -> Step:
        if self._dual is None:
            self._dual = _Dual(self.objective, point, self._is_precise, self._rng)
        elif np.isfinite(self._left):
            self._ratio = max(1.0, target.gap / max(self._left, _TINY))
        null = point.objective + target.gained
        while True:
            value, distance, dual_distance = self._dual.epoch()
            before = self._distances[-1] if self._distances else distance
            rate = min(1.0, distance / max(before, _TINY))
            self._distances.append(distance)
            # On average the rows were visited in the middle of the epoch.
            self._left, self._dual_distance = distance * rate**0.5, dual_distance * rate**0.5
            required_gap = target.tol * (null - value)
            # The proof by the dual costs about an epoch: skip it if that epoch would be enough,
            # too.
            self._is_near = (
                self._dual_ratio * self._dual_distance
                <= required_gap
                < self._ratio * self._left * rate
            )
            if self._ratio * self._left <= required_gap or self._is_near or self.objective.is_late:
                break
            if self._is_slow():
                count = len(self._distances)
                self.gave_up = f"{self.why}, which gained too little after {count} epochs"
                break
        change = self._dual.theta() - point.theta
        fall = -float(np.vdot(point.gradient, change))
        return Step(change, target.gap, fall, is_whole=True)

    def _is_slow(self) -> bool:
        """Whether the last epochs together left more than `_SLOW` of the distance."""
        epochs = _SLOW_EPOCHS
        if len(self._distances) <= epochs:
            return False
        return not self._distances[-1] <= _SLOW * self._distances[-1 - epochs]

    def bound(self, point: Snapshot, target: Target) -> float:
        if self._dual is None or not self._is_near:
            return np.inf
        by_dual = self._dual.gap(point)
        self._dual_ratio = max(self._dual_ratio, by_dual / max(self._dual_distance, _TINY))
        self._left = min(self._left, by_dual)
        return by_dual


class _Dual:
    """The residuals of all rows and their weights, in the user's coordinates.

    Parameters
    ----------
    first : Snapshot
        The snapshot whose residuals are the start; if it has no weights, the residuals are 0's.
    is_precise : bool
        Whether the requested tolerance is too small for float32.
    """

    def __init__(
        self,
        objective: Objective,
        first: Snapshot,
        is_precise: bool,
        rng: np.random.Generator,
    ) -> None:
        # The penalty applies to theta's coordinates.
        used = int(np.argmax(objective.scaling.inverse))
        l2 = float(objective.penalty[used] / objective.scaling.inverse[used] ** 2)
        self._objective, self._l2, self._rng = objective, l2, rng
        table, share, outputs = objective.own, objective.share, objective.loss.outputs
        # The loop of two classes is for arrays without a second axis.
        self._is_softmax, self._is_dense = outputs > 1, not table.rows.is_sparse
        n, p = table.rows.shape
        self._center = objective.scaling.center if self._is_dense else np.zeros(p)
        if not self._is_dense:
            is_precise = is_precise or not fits_float32(table, Scaling(np.zeros(p), np.ones(p)))
        dtype = np.dtype(np.float64 if is_precise else np.float32)
        loops = kernels("methods.dual_kernels")
        self._run: Callable[..., tuple[float, float, float]]
        if self._is_dense:
            # Centred, without the columns that are left out.
            is_used = (objective.scaling.inverse > 0).astype(np.float64)
            table = table.scaled(Scaling(self._center, is_used), dtype)
            self._run = loops.softmax_dense
            self._order = np.arange(n, dtype=np.uint32)
        else:
            self._run = loops.softmax if self._is_softmax else loops.logistic
            self._order = np.arange(-(-n // loops.ROWS), dtype=np.uint32)
        data, *indices = arrays_of(table.rows)
        self._rows = data.astype(dtype, copy=False), *indices
        square = np.empty(n)

        def measure(block: Block) -> None:
            square[block.part] = row_squares(block.raw, np.ones(p))

        table.sum(measure)
        # With n equal shares this is n; with unequal weights it is smaller.
        count = 1 / float(share @ share)
        weight_curvature = share * square / l2
        mean = float(share @ weight_curvature)
        bias_rate = max(constants.MIN_BIAS_EFFECT, _RELATIVE_BIAS_EFFECT * mean)
        self._bias_rate = bias_rate * count if objective.intercept else 0.0
        curvature = weight_curvature + share * self._bias_rate
        self._share, self._curvature = share.astype(dtype), curvature.astype(dtype)
        self._target = objective.target.astype(np.uint32 if self._is_softmax else dtype)
        none: NumPyArray = np.zeros((0, outputs))
        self._offset = none if objective.offset is None else objective.offset
        user_weights, bias = objective.scaling.to_user(first.theta)
        bias = bias + self._center @ user_weights
        self._residual: NumPyArray = np.zeros(first.scores.shape, dtype)
        weights: NumPyArray = np.zeros(first.theta[:-1].shape)
        self._sum: NumPyArray = np.zeros(outputs)
        if first.theta[:-1].any():
            residual = objective.loss.residual(first.scores, objective.target)
            weighted = np.ascontiguousarray(residual * share[:, None])
            weights -= (
                table.sum(lambda block: column_products(block.raw, weighted[block.part])) / l2
            )
            self._residual[:] = residual
            self._sum += weighted.sum(axis=0)
        weights = weights.T if self._is_dense else weights
        self._weights: NumPyArray = np.ascontiguousarray(weights, dtype)
        self._bias = bias - self._bias_rate * self._sum

    def epoch(self) -> tuple[float, float, float]:
        """Run an epoch; return the objective and both distances as it measured them."""
        before = self._bias.copy()
        self._rng.shuffle(self._order)
        residual, weights, offset = self._residual, self._weights, self._offset
        if not self._is_softmax:
            residual, weights, offset = residual[:, 0], weights[:, 0], offset[:, 0]
        value, distance, dual_distance = self._run(
            *self._rows,
            self._target,
            self._share,
            self._curvature,
            self._order,
            residual,
            weights,
            self._bias,
            offset,
            1 / self._l2,
            self._bias_rate,
        )
        if self._bias_rate:
            self._sum += (before - self._bias) / self._bias_rate
            self._bias -= self._bias_rate * self._sum
        self._objective.reads.rows += self._objective.n
        square = float(np.vdot(self._weights, self._weights))
        return value + 0.5 * self._l2 * square, distance, dual_distance

    def theta(self) -> NumPyArray:
        """Return the coefficients in the solver's coordinates, with their best intercept.

        This takes half a pass.
        """
        objective = self._objective
        weights = (self._weights.T if self._is_dense else self._weights).astype(np.float64)
        bias = self._bias - self._center @ weights
        if objective.intercept:
            scores = row_products(objective.rows, weights, objective.workers)
            scores += bias if objective.offset is None else bias + objective.offset
            objective.reads.rows += objective.n / 2
            bias = bias + self._balance(scores)
        return objective.scaling.from_user(weights, bias)

    def gap(self, snapshot: Snapshot) -> float:
        """Return a bound of a snapshot's distance to the optimum, by the residuals of the dual.

        This takes half a pass. The residuals are changed as little as needed to sum to 0: the
        logarithms of their means are treated as scores, and the best intercept is added.
        """
        objective = self._objective
        scores = self._residual.astype(np.float64)
        if self._is_softmax:
            rows, target = np.arange(objective.n), objective.target
            own = scores[rows, target]
            scores[rows, target] = 1.0
            np.maximum(scores, _TINY, out=scores)
            np.log(scores, out=scores)
            scores[rows, target] = np.log1p(np.maximum(own, -1 + _ULP))
        else:
            sign = 1.0 - 2.0 * objective.target[:, None]
            other = np.clip(sign * scores, _TINY, 1 - _ULP)
            scores = sign * (np.log(other) - np.log1p(-other))
        if objective.intercept:
            self._balance(scores)
        return gap_of_residuals(
            objective, snapshot, objective.loss.residual(scores, objective.target)
        )

    def _balance(self, scores: NumPyArray) -> NumPyArray:
        """Add the best intercept to scores, in place, and return it.

        Its Hessian uses the rows' own means.
        """
        objective, mean = self._objective, self._residual.copy()
        second: SecondDerivative
        if self._is_softmax:
            mean[np.arange(objective.n), objective.target] += 1
            second = SecondDerivativeOfClasses(mean)
        else:
            mean += objective.target[:, None]
            second = SecondDerivative(mean * (1 - mean))
        inverse = second.inverse_of_total(objective.share)
        least = np.inf
        bias: NumPyArray = np.zeros(scores.shape[1])
        step: NumPyArray = np.zeros(scores.shape[1])

        def part_gradient(part: slice) -> NumPyArray:
            residual = objective.loss.residual(scores[part], objective.target[part])
            return np.asarray(objective.share[part] @ residual)

        parts = parts_of(objective.n, objective.loss.outputs)
        for _ in range(constants.MOST_STEPS):
            slope: NumPyArray = np.sum(list(objective.workers.map(part_gradient, parts)), axis=0)
            if not np.abs(slope).max() < least:
                # Far from the optimum the means differ from those of the scores.
                bias += step
                scores += step
                break
            least = float(np.abs(slope).max())
            if least * objective.loss.outputs <= _BALANCED:
                break
            step = inverse @ slope
            bias -= step
            scores -= step
        return bias
