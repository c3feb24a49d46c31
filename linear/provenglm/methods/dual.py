r"""Stochastic dual coordinate ascent: sparse rows with many columns, and classes of dense rows.

Each row has a residual :math:`u_i = q_i - y_i` of its own, with a mean :math:`q_i` between the
classes, and the weights are always :math:`w = -\sum_i s_i u_i x_i / \lambda`. That is the dual of
`duality`, and a step finds the best residual of one row with all others as they are
(Shalev-Shwartz & Zhang 2013; of classes Yu, Huang & Lin 2011). There is no length of a step to
choose, and no noise at the optimum. An epoch goes over the rows in random order and costs less than
a gradient.

The intercept has no penalty, so that the residuals must sum to 0. The method of multipliers sees to
that (Bertsekas 1982, chapter 2): the intercept is a weight with the penalty
:math:`\mu (b - b_0)^2 / 2`, and after each epoch :math:`b_0` is moved to where :math:`b` is.

On the way the rows tell how far they are from the optimum. Where that says enough, a snapshot is
taken in float64, with the best intercept of its weights. Its gap is the smaller of two: by the
residuals at its scores, or by those that the rows have, which the weights fit exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from scipy.sparse import csr_array

from provenglm import constants
from provenglm.compiled import kernels
from provenglm.methods.state import State
from provenglm.model.losses import SecondDerivative, SecondDerivativeOfClasses
from provenglm.model.objective import Objective, Scaling, Snapshot, products
from provenglm.model.sampling import fits_float32
from provenglm.model.solution import Settings
from provenglm.proof.duality import duality_gap, gap_of_residuals
from provenglm.rows.blocks import parts_of
from provenglm.rows.csr import made_of
from provenglm.types import NumPyArray

_BALANCED = 1e-10
"""The gradient of the intercept that a snapshot may have: the gap grows with what is left of it."""


_TINY = float(np.finfo(np.float64).tiny)
_ULP = float(np.finfo(np.float64).eps)


def is_for(features: csr_array, l2: float) -> bool:
    """Return whether the penalty is strong enough for these features."""
    square = float(np.vdot(features.data, features.data))
    return l2 > 0 and square <= constants.DUAL_CURVATURE * features.shape[0] ** 2 * l2


def is_for_classes(objective: Objective) -> bool:
    """Return whether classes of dense rows are solved sooner by steps of single rows."""
    (n, p), outputs = objective.rows.shape, objective.loss.outputs
    penalty = objective.penalty[:-1][objective.scaling.inverse > 0]
    is_penalised = penalty.min(initial=np.inf) > 0
    has_room = 4 * n * max(p, 2 * outputs) <= constants.COPY_BYTES
    if outputs == 1 or objective.rows.is_sparse or objective.rows.is_on_disk:
        return False
    if not (is_penalised and has_room):
        return False
    # A variance is 1 in theta's coordinates.
    is_strong = float((1 / penalty).sum()) <= constants.DUAL_CURVATURE_OF_DENSE * n
    return is_strong or n <= p * outputs


def states(
    objective: Objective,
    start: NumPyArray,
    settings: Settings,
    rng: np.random.Generator,
    go_on: Callable[[NumPyArray], Iterator[State]],
) -> Iterator[State]:
    """Yield a state for the start, and each time when the optimum seems as near as asked.

    If epochs gain too little, or were too many for the penalty, another method continues.

    Parameters
    ----------
    go_on : callable
        From a start to the states of that method.
    """
    objective = replace(objective, rows=objective.rows.precise())
    rows = objective.rows
    # The penalty is that of theta's coordinates.
    why = ""
    used = int(np.argmax(objective.scaling.inverse))
    l2 = float(objective.penalty[used] / objective.scaling.inverse[used] ** 2)
    if not rows.is_sparse or is_for(rows.block(slice(0, objective.n)), l2):
        start, why = yield from _epochs(objective, start, l2, settings, rng)
    for each in go_on(start):
        yield replace(each, why=why)


def _epochs(
    objective: Objective,
    start: NumPyArray,
    l2: float,
    settings: Settings,
    rng: np.random.Generator,
) -> Generator[State, None, tuple[NumPyArray, str]]:
    """Yield the states of the dual; return where another method continues, and why.

    The dual has a number for each row and class, which are not kept for the other method.
    """
    null, first = objective.null()[1], objective.snapshot(start)
    dual = _Dual(objective, l2, first, settings.is_precise, rng)

    def state(snapshot: Snapshot, left: float, gap: float | None = None) -> State:
        passes = objective.passes
        return State(
            objective, snapshot, left, passes, None, gap, "sdca", is_cheap=True, why=dual.why
        )

    def why() -> str:
        return f"{dual.why}, which gained too little after {len(distances)} epochs"

    yield state(first, np.inf)
    distances: list[float] = []
    # The dual's estimate leaves out what its residuals are moved by: so far up to 1.7 times.
    ratio, ratio_of_dual = 1.0, 2.0
    epochs = constants.SLOW_EPOCHS
    while len(distances) <= epochs or distances[-1] <= constants.SLOW * distances[-1 - epochs]:
        value, distance, of_dual = dual.epoch()
        rate = min(1.0, distance / max(distances[-1], _TINY)) if distances else 1.0
        distances.append(distance)
        # The rows were met in the middle of the epoch, on average.
        left, of_dual = distance * float(np.sqrt(rate)), of_dual * float(np.sqrt(rate))
        is_last = len(distances) == constants.EPOCHS_TO_PART
        most = constants.APART if is_last else 1 / constants.APART
        if dual.is_weak and len(distances) <= constants.EPOCHS_TO_PART and value > most * null:
            if value > null:
                return start, why()
            break
        enough = settings.tol * (null - value)
        # The proof by the dual costs about an epoch: not where that would be enough, too.
        is_near = ratio_of_dual * of_dual <= enough < ratio * left * rate
        if ratio * left <= enough or is_near or objective.is_late:
            snapshot = objective.snapshot(dual.theta())
            gap = duality_gap(objective, snapshot)
            ratio = max(1.0, gap / max(left, _TINY))
            if gap > enough and is_near:
                by_dual = dual.gap(snapshot)
                ratio_of_dual = max(ratio_of_dual, by_dual / max(of_dual, _TINY))
                gap, left = min(gap, by_dual), min(left, by_dual)
            yield state(snapshot, left, gap)
    snapshot = objective.snapshot(dual.theta())
    yield state(snapshot, left)
    if snapshot.objective < first.objective:
        start = snapshot.theta
    return start, why()


class _Dual:
    """The residuals of all rows and their weights, in the user's coordinates.

    Parameters
    ----------
    first : Snapshot
        Whose residuals it begins with, and without weights with those of 0.
    is_precise : bool
        Whether float32 has too few digits for what is asked.
    """

    def __init__(
        self,
        objective: Objective,
        l2: float,
        first: Snapshot,
        is_precise: bool,
        rng: np.random.Generator,
    ) -> None:
        self._objective, self._l2, self._rng = objective, l2, rng
        rows, share, outputs = objective.rows, objective.share, objective.loss.outputs
        self._is_softmax, self._is_dense = outputs > 1, not rows.is_sparse
        n, p = rows.shape
        self._center = objective.scaling.center if self._is_dense else np.zeros(p)
        if not self._is_dense:
            is_precise = is_precise or not fits_float32(rows, Scaling(np.zeros(p), np.ones(p)))
        dtype = np.dtype(np.float64 if is_precise else np.float32)
        loops = kernels("methods.dual_kernels")
        self._run: Callable[..., tuple[float, float, float]]
        self._rows: tuple[NumPyArray, ...]
        block: Any
        if rows.is_sparse:
            block = rows.block(slice(0, n))
            self._rows = block.data.astype(dtype, copy=False), block.indices, block.indptr
            self._run = loops.softmax if self._is_softmax else loops.logistic
            squares = made_of(np.square(block.data), block.indices, block.indptr, block.shape)
            square = squares @ np.ones(p)
            self._order = np.arange(-(-n // loops.ROWS), dtype=np.uint32)
        else:
            copy, square = np.empty((n, p), dtype), np.empty(n)
            for part in rows.slices():
                block = self._block(part)
                copy[part], square[part] = block, np.einsum("ij,ij->i", block, block)
            self._rows, self._run = (copy,), loops.softmax_dense
            self._order = np.arange(n, dtype=np.uint32)
        # Of n equal shares, n; fewer where weights differ.
        count = 1 / float(share @ share)
        of_weights = share * square / l2
        mean = float(share @ of_weights)
        self.is_weak = self._is_dense and mean > constants.DUAL_CURVATURE_OF_DENSE
        self.why = ", and the penalty is strong enough for steps of single rows in the dual"
        if self.is_weak:
            self.why = ", and with fewer rows than weights for steps of single rows in the dual"
        of_bias = max(constants.OF_BIAS, constants.PART_OF_BIAS * mean)
        self._of_bias = of_bias * count if objective.intercept else 0.0
        curvature = of_weights + share * self._of_bias
        self._share, self._curvature = share.astype(dtype), curvature.astype(dtype)
        self._target = objective.target.astype(np.uint32 if self._is_softmax else dtype)
        none: NumPyArray = np.zeros((0, outputs) if self._is_softmax else 0)
        self._offset = none if objective.offset is None else objective.offset
        of_user, bias = objective.scaling.to_user(first.theta)
        bias = np.atleast_1d(bias + self._center @ of_user)
        self._residual: NumPyArray = np.zeros(first.scores.shape, dtype)
        weights: NumPyArray = np.zeros(first.theta[:-1].shape)
        self._sum: NumPyArray = np.zeros(outputs)
        if first.theta[:-1].any():
            residual = objective.loss.residual(first.scores, objective.target)
            weighted = np.ascontiguousarray((residual.T * share).T)
            for part in rows.slices():
                weights -= products(self._block(part), weighted[part]) / l2
            self._residual[:] = residual
            self._sum += weighted.sum(axis=0)
        weights = weights.T if self._is_dense else weights
        self._weights: NumPyArray = np.ascontiguousarray(weights, dtype)
        self._bias = bias - self._of_bias * self._sum

    def _block(self, part: slice) -> Any:
        """Return some rows; dense ones are centred, and without the columns that are left out."""
        block: Any = self._objective.rows.block(part)
        if not self._is_dense:
            return block
        return (block - self._center) * (self._objective.scaling.inverse > 0)

    def epoch(self) -> tuple[float, float, float]:
        """Return objective and the two distances to the optimum, as an epoch met them."""
        before = self._bias.copy()
        self._rng.shuffle(self._order)
        value, distance, of_dual = self._run(
            *self._rows,
            self._target,
            self._share,
            self._curvature,
            self._order,
            self._residual,
            self._weights,
            self._bias,
            self._offset,
            1 / self._l2,
            self._of_bias,
        )
        if self._of_bias:
            self._sum += (before - self._bias) / self._of_bias
            self._bias -= self._of_bias * self._sum
        self._objective.reads.rows += self._objective.n
        square = float(np.vdot(self._weights, self._weights))
        return value + 0.5 * self._l2 * square, distance, of_dual

    def theta(self) -> NumPyArray:
        """Return the coefficients in the solver's coordinates, with the best intercept of them.

        Half a pass.
        """
        objective = self._objective
        weights = (self._weights.T if self._is_dense else self._weights).astype(np.float64)
        bias = self._bias.reshape(weights.shape[1:]) - self._center @ weights
        if objective.intercept:
            scores = np.empty((objective.n, *bias.shape))
            for part in objective.rows.slices():
                beside = objective.beside(bias, part, scores.dtype)
                scores[part] = objective.rows.block(part) @ weights + beside
            objective.reads.rows += objective.n / 2
            bias = bias + self._balance(scores)
        return objective.scaling.from_user(weights, bias)

    def gap(self, snapshot: Snapshot) -> float:
        """Return a bound of a snapshot's distance to the optimum, by the residuals of the dual.

        Half a pass. The residuals are moved as little as makes them sum to 0: as those of scores,
        the logarithms of their means, with the best intercept.
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
            sign = 1.0 - 2.0 * objective.target
            other = np.clip(sign * scores, _TINY, 1 - _ULP)
            scores = sign * (np.log(other) - np.log1p(-other))
        if objective.intercept:
            self._balance(scores)
        return gap_of_residuals(
            objective, snapshot, objective.loss.residual(scores, objective.target)
        )

    def _balance(self, scores: NumPyArray) -> NumPyArray:
        """Add the best intercept to scores, in place, and return it.

        Its Hessian is taken of the rows' own means.
        """
        objective, mean = self._objective, self._residual.copy()
        if self._is_softmax:
            mean[np.arange(objective.n), objective.target] += 1
        else:
            mean += objective.target
        second = SecondDerivative(mean * (1 - mean))
        if self._is_softmax:
            second = SecondDerivativeOfClasses(mean)
        inverse = second.inverse_of_total(objective.share)
        least = np.inf
        bias: NumPyArray = np.zeros(scores.shape[1:])
        step: NumPyArray = np.zeros(scores.shape[1:])

        def of_part(part: slice) -> NumPyArray:
            residual = objective.loss.residual(scores[part], objective.target[part])
            return np.asarray(objective.share[part] @ residual)

        parts = parts_of(objective.n, objective.loss.outputs)
        for _ in range(constants.MOST_STEPS):
            slope = np.atleast_1d(sum(objective.workers.map(of_part, parts)))
            if not np.abs(slope).max() < least:
                # Far from the optimum the means are others than those of the scores.
                bias += step
                scores += step
                break
            least = float(np.abs(slope).max())
            if least * objective.loss.outputs <= _BALANCED:
                break
            step = (inverse @ slope).reshape(bias.shape)
            bias -= step
            scores -= step
        return bias
