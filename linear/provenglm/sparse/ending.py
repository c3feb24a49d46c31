"""What is left to be gained: from the gains so far, and from the gradient before it is believed."""

from __future__ import annotations

from typing import Any

import numpy as np

from provenglm.data.csr import made_of, transposed
from provenglm.epochs import OF_THE_DIAGONAL
from provenglm.losses import Softmax
from provenglm.objective import Objective, Snapshot
from provenglm.series import Series
from provenglm.types import NumPyArray

_LEAST_RATE = 0.05
"""Between gains, that is believed: snapshots at the optimum of a span gain steadily."""


class Remainder:
    """The estimate of what is left above the optimum, snapshot after snapshot.

    The gains make a geometric series. But an epoch that goes astray gains nothing, however much
    there is: the estimate falls by no more than the least rate at once, and where it says enough,
    the gradient is asked, too: by the sum over the coordinates of g^2 / 2 h, the decrement of
    Newton's method for the diagonal of the Hessian.

    Parameters
    ----------
    tol : float
    null : float
        The objective without features, which `tol` is relative to.
    """

    def __init__(self, tol: float, null: float) -> None:
        self._tol = tol
        self._null = null
        self._series = Series(_LEAST_RATE)
        self._left = np.inf
        self._curvature: Curvature | None = None

    def add(self, gain: float) -> None:
        """Take the gain of an epoch that was no failure."""
        self._series.add(gain)
        least = _LEAST_RATE * self._left if np.isfinite(self._left) else 0.0
        self._left = max(self._series.rest, least)

    def at(self, objective: Objective, snapshot: Snapshot) -> float:
        """Return the estimate at a snapshot: half a pass where it seems to be the last one."""
        enough = self._tol * (self._null - snapshot.objective)
        if not self._left <= enough:
            return float(self._left)
        if self._curvature is None:
            self._curvature = Curvature(objective, snapshot)
            objective.reads.rows += objective.n / 2
        decrement = OF_THE_DIAGONAL * self._curvature.decrement(snapshot.gradient)
        if decrement > enough:
            # Far off: by then the curvature will have changed.
            self._curvature = None
        return max(float(self._left), decrement)


class Curvature:
    """The Hessian's diagonal over all rows, in centred coordinates."""

    def __init__(self, objective: Objective, snapshot: Snapshot) -> None:
        scores, share = snapshot.scores, objective.share
        if isinstance(objective.loss, Softmax):
            probability = objective.loss.probability(scores)
            curvature = probability * (1 - probability)
        else:
            target = objective.targets(slice(0, objective.n), scores.dtype)
            curvature = objective.loss.weight_in_hessian(scores, target)
        weighted = np.ascontiguousarray((curvature.T * share).T, dtype=scores.dtype)
        outputs = weighted.reshape(len(weighted), -1)
        of_row = outputs.sum(axis=1)
        square, mean = _sums(objective, weighted, of_row)
        tiny = np.finfo(np.float64).tiny
        total = max(float(of_row.sum(dtype=np.float64)), tiny)
        self._center = mean / total if objective.intercept else np.zeros(len(mean))
        # What centring takes off is measured for all outputs together.
        whole = square.reshape(len(square), -1).sum(axis=1)
        kept = 1 - np.square(self._center) * total / np.maximum(whole, tiny)
        square = (square.T * np.maximum(kept, 0)).T
        self._diagonal = square + objective.used(snapshot.theta)[:-1] + tiny
        self._of_intercept = weighted.sum(axis=0, dtype=np.float64) + tiny

    def decrement(self, gradient: NumPyArray) -> float:
        """Return what Newton's method would gain if the Hessian were diagonal."""
        of_intercept = gradient[-1]
        centred = gradient[:-1] - np.multiply.outer(self._center, of_intercept)
        gain = float((np.square(centred) / self._diagonal).sum())
        return 0.5 * (gain + float((np.square(of_intercept) / self._of_intercept).sum()))


def _sums(
    objective: Objective, weighted: NumPyArray, of_row: NumPyArray
) -> tuple[NumPyArray, NumPyArray]:
    """Return the products of the squared features with curvatures, and of the features."""
    p = objective.rows.shape[1]
    square, mean = np.zeros((p, *weighted.shape[1:])), np.zeros(p)
    for part in objective.rows.slices():
        block: Any = objective.rows.block(part)
        mean += transposed(block) @ of_row[part]
        numbers = np.square(block.data)
        squared = made_of(numbers, block.indices, block.indptr, block.shape)
        square += transposed(squared) @ weighted[part]
    return square, mean
