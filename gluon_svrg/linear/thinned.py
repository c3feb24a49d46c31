"""A start and a metric from a part of the rows on disk that is as good as many small samples.

To draw rows from all over a file costs as much as to read it, soon. Every eighth block is read at
an eighth of the cost, and has so many rows that its Hessian is nearly that of all of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from gluon_svrg._compat import NumPyArray
from gluon_svrg.linear.disk import DiskRows
from gluon_svrg.linear.objective import Objective

_EVERY = 8
"""Block is in the part."""

ROWS_FOR_EACH = 250
"""Of a sample, for each feature, where there is a part that leads further: enough to begin with."""

_LARGER = 16
"""Times the sample: a part of so many rows is worth reading."""


class _Sums(NamedTuple):
    """Of some rows, in the features' own scale, centred; the last row and column the intercept."""

    gradient: NumPyArray
    hessian: NumPyArray
    share: float
    curvature: float


@dataclass(frozen=True)
class Thinned:
    """Every eighth block of an objective with one output."""

    objective: Objective
    rows: DiskRows

    @classmethod
    def of(cls, objective: Objective, sample: int) -> Thinned | None:
        """Return it where it is worth its while, beside a sample of so many rows."""
        rows = objective.rows
        if not isinstance(rows, DiskRows) or objective.loss.outputs > 1:
            return None
        if not is_worth_while(rows, sample):
            return None
        return cls(objective, rows.thinned(_EVERY))

    def derivatives(self, theta: NumPyArray) -> tuple[NumPyArray, NumPyArray]:
        """Return gradient and Hessian at `theta`, in its coordinates, with the penalty."""
        objective, scaling = self.objective, self.objective.scaling
        dtype = self.rows.dtype
        weights, bias = scaling.to_user(theta)
        center = np.zeros_like(scaling.center) if objective.centered else scaling.center
        weights, center = weights.astype(dtype), center.astype(dtype)
        bias = np.asarray(theta[-1] if objective.centered else bias, dtype)

        def of_block(part: slice) -> _Sums:
            block = self.rows.block(part)
            if objective.centered:
                block = block - scaling.center
            scores = block @ weights + bias
            target = objective.targets(part, dtype)
            share = np.ascontiguousarray(objective.share[part])
            residual = objective.loss.residual(scores, target) * share
            curvature = objective.loss.weight_in_hessian(scores, target) * share
            block = block - center
            slope = np.append((residual.astype(dtype) @ block).astype(np.float64), residual.sum())
            root = np.sqrt(curvature * objective.n).astype(dtype)
            block *= root[:, None]
            hessian = np.empty((len(theta), len(theta)))
            # Of an array with itself: half the work.
            hessian[:-1, :-1] = block.T @ block
            hessian[-1, :-1] = hessian[:-1, -1] = root @ block
            hessian[-1, -1] = root @ root
            total = float(curvature.sum())
            return _Sums(slope, hessian / objective.n, float(share.sum()), total)

        gradient, hessian = np.zeros(len(theta)), np.zeros((len(theta), len(theta)))
        share = curvature = 0.0
        slices = self.rows.slices()
        for sums in objective.workers.map(of_block, slices):
            gradient += sums.gradient
            hessian += sums.hessian
            share += sums.share
            curvature += sums.curvature
        objective.reads.rows += sum(part.stop - part.start for part in slices)
        scale = np.append(scaling.inverse, float(objective.intercept))
        gradient *= scale / share
        hessian *= np.outer(scale, scale) / share
        rare = np.zeros(len(theta)) if objective.rare is None else np.append(objective.rare, 0.0)
        # As of a sample: see `Sample.hessian`.
        hessian.ravel()[:: len(theta) + 1] += objective.penalty + curvature / share * rare
        return gradient + objective.penalty * theta, hessian


def is_worth_while(rows: DiskRows, sample: int) -> bool:
    """Whether every eighth block costs an eighth, and has many times as many rows as a sample."""
    return rows.shape[0] >= _EVERY * _LARGER * sample and rows.is_cut_freely
