"""Compute a start and a metric from every eighth block on disk, instead of many small samples.

Drawing random rows from a file soon costs as much as reading all of it. Every eighth block costs an
eighth, and these blocks have enough rows for a Hessian close to that of all rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from provenglm import constants
from provenglm.model.objective import Objective
from provenglm.rows.disk import DiskRows
from provenglm.rows.gram import gram_of_block
from provenglm.types import NumPyArray


class _Sums(NamedTuple):
    """Sums of some rows, in the features' own scale, centred; the intercept is last."""

    share: float
    gradient: NumPyArray
    hessian: NumPyArray | None
    curvature: float


@dataclass(frozen=True)
class Thinned:
    """Every eighth block of an objective with one output."""

    objective: Objective
    rows: DiskRows

    @classmethod
    def of(cls, objective: Objective, sample: int) -> Thinned | None:
        """Return the subsample if it pays next to a sample of `sample` rows, else None."""
        rows = objective.rows
        if not isinstance(rows, DiskRows) or objective.loss.outputs > 1:
            return None
        if not is_worth_while(rows, sample):
            return None
        return cls(objective, rows.thinned(constants.EVERY_BLOCK))

    def hessian(self, theta: NumPyArray) -> NumPyArray:
        """Return the Hessian at `theta`, in its coordinates, with the penalty."""
        return self._derivatives(theta, self.rows.slices()[:: constants.GROWTH], 1)[1]

    def derivatives(self, theta: NumPyArray) -> tuple[NumPyArray, NumPyArray]:
        """Return gradient and Hessian at `theta`."""
        return self._derivatives(theta, self.rows.slices(), constants.GROWTH)

    def _derivatives(
        self, theta: NumPyArray, slices: list[slice], of_these: int
    ) -> tuple[NumPyArray, NumPyArray]:
        objective, scaling = self.objective, self.objective.scaling
        dtype = self.rows.dtype
        weights, bias = scaling.to_user(theta)
        center = np.zeros_like(scaling.center) if objective.centered else scaling.center
        weights, center = weights.astype(dtype), center.astype(dtype)
        bias = theta[-1] if objective.centered else bias

        factor = self._factor(slices)

        def of_block(item: tuple[int, slice]) -> _Sums:
            k, part = item
            block = self.rows.block(part)
            if objective.centered:
                block = block - scaling.center
            scores = block @ weights + objective.beside(bias, part, dtype)
            target = objective.targets(part, dtype)
            share = np.ascontiguousarray(objective.share[part])
            if factor is not None:
                share = share * factor[objective.target[part]]
            residual = objective.loss.residual(scores, target) * share
            curvature = objective.loss.weight_in_hessian(scores, target) * share
            block = block - center
            slope = np.append((residual.astype(dtype) @ block).astype(np.float64), residual.sum())
            if k % of_these:
                return _Sums(float(share.sum()), slope, None, 0.0)
            products = gram_of_block(block, curvature * objective.n, ones=True)
            hessian = products.astype(np.float64) / objective.n
            return _Sums(float(share.sum()), slope, hessian, float(curvature.sum()))

        gradient, hessian = np.zeros(len(theta)), np.zeros((len(theta), len(theta)))
        share = curvature = of_hessian = 0.0
        for sums in objective.workers.map(of_block, list(enumerate(slices)), together=1):
            gradient += sums.gradient
            share += sums.share
            if sums.hessian is not None:
                hessian += sums.hessian
                of_hessian += sums.share
                curvature += sums.curvature
        objective.reads.rows += sum(part.stop - part.start for part in slices)
        scale = np.append(scaling.inverse, float(objective.intercept))
        gradient *= scale / share
        hessian *= np.outer(scale, scale) / of_hessian
        rare = np.zeros(len(theta)) if objective.rare is None else np.append(objective.rare, 0.0)
        # The same is done for a sample: see `Sample.hessian`.
        hessian.ravel()[:: len(theta) + 1] += objective.penalty + curvature / of_hessian * rare
        return gradient + objective.penalty * theta, hessian

    def _factor(self, slices: list[slice]) -> NumPyArray | None:
        """Return the factors that give the classes' shares the values that they have in all rows.

        If rows are sorted, a block has more of one class exactly if it has less of the other.
        """
        objective = self.objective
        if not objective.loss.has_classes:
            return None
        here = np.zeros(2)
        for part in slices:
            share = np.ascontiguousarray(objective.share[part])
            here += np.bincount(objective.target[part], weights=share, minlength=2)
        wanted = float(objective.mean_target())
        there = np.array([1 - wanted, wanted])
        return there / here if here.all() else None


def is_worth_while(rows: DiskRows, sample: int) -> bool:
    """Whether reading every eighth block costs an eighth and gives many more rows than a sample."""
    return (
        rows.shape[0] >= constants.EVERY_BLOCK * constants.LARGER_PART * sample
        and rows.is_cut_freely
    )
