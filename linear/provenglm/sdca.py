r"""Stochastic dual coordinate ascent: sparse rows with many columns, logistic loss or softmax.

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
taken in float64, with the best intercept of its weights; its gap is that of its gradient.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from scipy.sparse import csr_array

from provenglm import krylov
from provenglm.data.csr import made_of, transposed
from provenglm.duality import duality_gap
from provenglm.losses import SecondDerivative, SecondDerivativeOfClasses
from provenglm.objective import Objective, Scaling, Snapshot
from provenglm.sampling import fits_float32
from provenglm.solution import Settings
from provenglm.state import State
from provenglm.types import NumPyArray

_OF_BIAS = 0.1
"""By how much a row's step moves its own score by way of the intercept, for a residual of 1. On
text with C from 0.1 to 100, 0.03 took as many epochs, 0.3 up to 3 more, and 1 twice as many."""

_MOST_CURVATURE = 1e4
"""The mean over the rows of |x|^2 / n l2. With raw counts of words this took 0.7 of the seconds of
Newton's method by conjugate gradients at 1,500, of 11 classes 0.3, and 0.6 at 15,000. At 150,000
the point that was handed over was so far off that Newton's method took 10 times as long."""

_SLOW, _EPOCHS = 0.5, 8
"""So many epochs that together leave more of the distance are the last: Newton's method goes on.
With 4 epochs raw counts of words took up to 1.7 times as long; 0.25 and 0.7 were not better."""

_BALANCED = 1e-10
"""The gradient of the intercept that a snapshot may have: the gap grows with what is left of it."""

_TRIES = 10
"""Steps to the best intercept, at most; on text two were enough."""

_SINGULAR = 1e-12
"""Of the intercepts' Hessian: the loss of classes does not see a shift of all of them."""

_TINY = float(np.finfo(np.float64).tiny)


def is_for(features: csr_array, l2: float) -> bool:
    """Return whether the penalty is strong enough for these features."""
    square = float(np.vdot(features.data, features.data))
    return l2 > 0 and square <= _MOST_CURVATURE * features.shape[0] ** 2 * l2


def states(
    objective: Objective, start: NumPyArray, settings: Settings, rng: np.random.Generator
) -> Iterator[State]:
    """Yield a state for the start, and each time when the optimum seems as near as asked.

    Where epochs gain too little, Newton's method goes on.
    """
    objective = replace(objective, rows=objective.rows.precise())
    rows, null = objective.rows, objective.null()[1]
    # The penalty is that of theta's coordinates.
    l2 = float(objective.penalty[0] / objective.scaling.inverse[0] ** 2)
    if is_for(rows.block(slice(0, objective.n)), l2):
        first = objective.snapshot(start)
        yield State(objective, first, np.inf, objective.passes)
        dual = _Dual(objective, l2, first, settings.is_precise, rng)
        distances: list[float] = []
        ratio = 1.0
        while len(distances) <= _EPOCHS or distances[-1] <= _SLOW * distances[-1 - _EPOCHS]:
            value, distance = dual.epoch()
            rate = min(1.0, distance / max(distances[-1], _TINY)) if distances else 1.0
            distances.append(distance)
            # The rows were met in the middle of the epoch, on average.
            left = distance * float(np.sqrt(rate))
            is_late = objective.deadline < time.perf_counter()
            if ratio * left <= settings.tol * (null - value) or is_late:
                snapshot = objective.snapshot(dual.theta())
                yield State(objective, snapshot, left, objective.passes)
                ratio = max(1.0, duality_gap(objective, snapshot) / max(left, _TINY))
        snapshot = objective.snapshot(dual.theta())
        yield State(objective, snapshot, left, objective.passes)
        if snapshot.objective < first.objective:
            start = snapshot.theta
    yield from krylov.states(objective, start, settings.tol, settings.is_precise, has_room=True)


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
        n, p = rows.shape
        is_precise = is_precise or not fits_float32(rows, Scaling(np.zeros(p), np.ones(p)))
        dtype = np.dtype(np.float64 if is_precise else np.float32)
        block: Any = rows.block(slice(0, n))
        self._rows = block.data.astype(dtype, copy=False), block.indices, block.indptr
        # Of n equal shares, n; fewer where weights differ.
        count = 1 / float(share @ share)
        self._of_bias = _OF_BIAS * count if objective.intercept else 0.0
        squares = made_of(np.square(block.data), block.indices, block.indptr, block.shape)
        curvature = share * (squares @ np.full(p, 1 / l2) + self._of_bias)
        self._share, self._curvature = share.astype(dtype), curvature.astype(dtype)
        from provenglm import sdca_kernels as kernels  # imports Numba: half a second

        self._blocks = np.arange(-(-n // kernels.ROWS), dtype=np.uint32)
        self._is_softmax = outputs > 1
        self._run = kernels.softmax if self._is_softmax else kernels.logistic
        self._target = objective.target.astype(np.uint32 if self._is_softmax else dtype)
        observed = objective.target
        if self._is_softmax:
            observed = np.eye(outputs, dtype=dtype)[objective.target]
        bias = np.atleast_1d(objective.scaling.to_user(first.theta)[1])
        self._mean: NumPyArray = observed.astype(dtype)
        self._weights: NumPyArray = np.zeros(first.theta[:-1].shape, dtype)
        self._sum: NumPyArray = np.zeros(outputs)
        if first.theta[:-1].any():
            residual = objective.loss.residual(first.scores, objective.target)
            weighted = np.ascontiguousarray((residual.T * share).T)
            weights = np.zeros(first.theta[:-1].shape)
            for part in rows.slices():
                weights -= transposed(rows.block(part)) @ weighted[part] / l2
            self._mean[:], self._weights[:] = residual + observed, weights
            self._sum += weighted.sum(axis=0)
        self._bias = bias - self._of_bias * self._sum

    def epoch(self) -> tuple[float, float]:
        """Return objective and distance to the optimum, both about, as an epoch met them."""
        before = self._bias.copy()
        self._rng.shuffle(self._blocks)
        value, distance = self._run(
            *self._rows,
            self._target,
            self._share,
            self._curvature,
            self._blocks,
            self._mean,
            self._weights,
            self._bias,
            1 / self._l2,
            self._of_bias,
        )
        if self._of_bias:
            self._sum += (before - self._bias) / self._of_bias
            self._bias -= self._of_bias * self._sum
        self._objective.reads.rows += self._objective.n
        square = float(np.vdot(self._weights, self._weights))
        return value + 0.5 * self._l2 * square, distance

    def theta(self) -> NumPyArray:
        """Return the coefficients in the solver's coordinates, with the best intercept of them.

        Half a pass. The intercept's Hessian is taken of the rows' own means.
        """
        objective, mean = self._objective, self._mean
        weights = self._weights.astype(np.float64)
        bias = self._bias.reshape(weights.shape[1:]).copy()
        if objective.intercept:
            scores = np.empty((objective.n, *bias.shape))
            for part in objective.rows.slices():
                scores[part] = objective.rows.block(part) @ weights + bias
            objective.reads.rows += objective.n / 2
            diagonal = mean * (1 - mean)
            second = SecondDerivative(diagonal)
            if self._is_softmax:
                second = SecondDerivativeOfClasses(diagonal, mean)
            hessian = second.total(objective.share)
            inverse = np.linalg.pinv(hessian, rcond=_SINGULAR, hermitian=True)
            least, step = np.inf, np.zeros(bias.shape)
            for _ in range(_TRIES):
                residual = objective.loss.residual(scores, objective.target)
                slope = np.atleast_1d(objective.share @ residual)
                if not np.abs(slope).max() < least:
                    # Far from the optimum the means are others than those of the scores.
                    bias += step
                    break
                least = float(np.abs(slope).max())
                if least <= _BALANCED:
                    break
                step = (inverse @ slope).reshape(bias.shape)
                bias -= step
                scores -= step
        return objective.scaling.from_user(weights, bias)
