"""Compute a start and a metric from every eighth block on disk, instead of many small samples.

Drawing random rows from a file soon costs as much as reading all of it. Every eighth block costs an
eighth, and these blocks have enough rows for a Hessian close to that of all rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from provenglm import constants
from provenglm.model.losses import Loss
from provenglm.model.null_model import group_shares
from provenglm.model.objective import Objective, Scaling
from provenglm.rows.base import Features
from provenglm.rows.disk import DiskRows
from provenglm.rows.gram import gram_of_block
from provenglm.rows.table import Block, Table
from provenglm.types import NumPyArray


class _BlockSums(NamedTuple):
    """Sums of some rows, in the features' own scale, centred; the intercept is last."""

    share: float
    gradient: NumPyArray
    hessian_share: float
    hessian: NumPyArray | None
    curvature: float


@dataclass(frozen=True)
class BlockSubsample:
    """Every eighth block of an objective with one output."""

    objective: Objective
    table: Table

    @classmethod
    def of(cls, objective: Objective, sample: int) -> BlockSubsample | None:
        """Return the subsample if it pays next to a sample of `sample` rows, else None."""
        rows = objective.rows
        if not isinstance(rows, DiskRows) or objective.loss.outputs > 1:
            return None
        if not pays(rows, sample):
            return None
        return cls(objective, objective.own.subsampled(constants.BLOCK_STRIDE))

    def hessian(self, theta: NumPyArray) -> NumPyArray:
        """Return the Hessian at `theta`, in its coordinates, with the penalty."""
        few = self.objective.own.subsampled(constants.BLOCK_STRIDE * constants.GROWTH)
        return self._derivatives(theta, few, 1)[1]

    def derivatives(self, theta: NumPyArray) -> tuple[NumPyArray, NumPyArray]:
        """Return gradient and Hessian at `theta`."""
        return self._derivatives(theta, self.table, constants.GROWTH)

    def _derivatives(
        self, theta: NumPyArray, table: Table, hessian_stride: int
    ) -> tuple[NumPyArray, NumPyArray]:
        """Return gradient and Hessian; the Hessian uses one block in `hessian_stride`."""
        objective = self.objective
        scaling, loss = objective.scaling, objective.loss
        # Centring takes a copy, but without it the products would lose digits.
        here = Scaling(scaling.center.astype(table.rows.dtype), scaling.inverse)
        given = loss, here, objective.centered, self._factor(table), hessian_stride
        sums: _BlockSums = table.sum(derivatives, *given, at=objective.model(theta))
        objective.reads.rows += sum(table.sizes)
        scale = np.append(scaling.inverse, float(objective.intercept))
        gradient = (sums.gradient * scale / sums.share)[:, None]
        assert sums.hessian is not None
        hessian = sums.hessian * np.outer(scale, scale) / sums.hessian_share
        rare = np.zeros(len(theta)) if objective.rare is None else np.append(objective.rare, 0.0)
        # The same is done for a sample: see `Sample.hessian`.
        curvature = sums.curvature / sums.hessian_share
        hessian.ravel()[:: len(theta) + 1] += objective.penalty + curvature * rare
        return gradient + objective.penalty[:, None] * theta, hessian

    def _factor(self, table: Table) -> NumPyArray | None:
        """Return the factors that give the classes' shares the values that they have in all rows.

        If rows are sorted, a block has more of one class exactly if it has less of the other.
        """
        if not self.objective.loss.has_classes:
            return None
        here = table.sum(group_shares, 2)
        wanted = float(self.objective.mean_target()[0])
        return np.array([1 - wanted, wanted]) / here if here.all() else None


def derivatives(
    block: Block,
    loss: Loss,
    scaling: Scaling,
    is_centred: bool,
    factor: NumPyArray | None,
    hessian_stride: int,
) -> _BlockSums:
    """Return the sums of a block, with a Hessian for one block in `hessian_stride`.

    Parameters
    ----------
    is_centred : bool
        Whether the features of the block's model are centred.
    factor : numpy.ndarray, (2,), optional
        Factors of the shares of the two classes.
    """
    scores, target, share = block.scores, block.target, block.share
    if factor is not None:
        share = share * factor[block.exact_target.astype(np.intp, copy=False)]
    residual = loss.residual(scores, target)[:, 0] * share
    features: Features = block.features if is_centred else block.raw - scaling.center
    slope = (residual.astype(features.dtype) @ features).astype(np.float64)
    gradient = np.append(slope, residual.sum())
    if block.index % hessian_stride:
        return _BlockSums(float(share.sum()), gradient, 0.0, None, 0.0)
    curvature = loss.second_derivative(scores, target).diagonal[:, 0] * share
    # Shares may be too small for float32.
    unit = float(share.max(initial=0.0)) or 1.0
    hessian = gram_of_block(features, curvature / unit, ones=True).astype(np.float64) * unit
    total = float(share.sum())
    return _BlockSums(total, gradient, total, hessian, float(curvature.sum()))


def pays(rows: DiskRows, sample: int) -> bool:
    """Whether reading every eighth block costs an eighth and gives many more rows than a sample."""
    return (
        rows.shape[0] >= constants.BLOCK_STRIDE * constants.MIN_SUBSAMPLE_RATIO * sample
        and rows.is_cut_freely
    )
