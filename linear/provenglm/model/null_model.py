"""Fit the model without features: the best intercept beside the offsets.

Without offsets each loss computes it from a mean of the targets. With offsets it is the root of the
mean residual, found by Newton's method: one number, or one for each class.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from provenglm.model.losses import Loss
from provenglm.rows.remote import AnyTable
from provenglm.rows.table import Block, Table
from provenglm.types import NumPyArray

_MAX_STEPS = 200

_SAME = 1e-14
"""Two intercepts are the same if their relative difference is smaller."""

_MAX_PARTS = 20
"""Newton's steps for classes are tried with lengths of 1, 1/4, 1/16, ..., up to this many."""

_MAX_SIZE = 10.0
"""The mean loss is smoothed first if the root mean square of the classes' offsets is larger."""

_LEAST_RATIO = 1e-15
"""The least mean probability of a class, as a part of its share; smaller ones count as this
part."""


def best_intercept(loss: Loss, table: AnyTable) -> NumPyArray:
    """Return the best intercepts of the model without features, (K,)."""
    if table.is_out_of_core and loss.needs_all_targets:
        start = table.known(target_sum, loss)
        return _WithOffsets(loss, table).best_number(float(start[0]))
    best = np.asarray(loss.null_scores(*_summary(loss, table)), np.float64)
    if not table.has_offset:
        return best
    rows = _WithOffsets(loss, table)
    return rows.best_of_classes(best) if loss.outputs > 1 else rows.best_number(float(best[0]))


def _summary(loss: Loss, table: AnyTable) -> tuple[NumPyArray, NumPyArray]:
    """Return as few targets and shares as have the same best intercept."""
    if loss.needs_all_targets:
        assert isinstance(table, Table)
        return table.target, table.share
    if loss.has_classes:
        count = loss.group_count
        return np.arange(count), table.known(group_shares, count)
    return table.known(target_sum, loss), np.ones(1)


def target_sum(block: Block, loss: Loss) -> NumPyArray:
    """Return the sum of the shares times `Loss.observed`, (K,)."""
    return np.asarray(block.share @ loss.observed(block.exact_target))


def group_shares(block: Block, count: int) -> NumPyArray:
    """Return the shares of the targets 0, 1, ..., (count,)."""
    target = block.exact_target.astype(np.intp, copy=False)
    return np.bincount(target, weights=block.share, minlength=count)


def mean_loss(loss: Loss, table: AnyTable, bias: NumPyArray) -> float:
    """Return the mean loss of the model without features and with the intercept `bias`."""
    return float(table.sum(_loss_at, loss, bias, reads=False))


def _loss_at(block: Block, loss: Loss, bias: NumPyArray) -> float:
    if block.offset is None and loss.has_classes:
        # A few groups have the same loss each.
        count = loss.group_count
        scores = np.broadcast_to(bias, (count, len(bias)))
        return float(group_shares(block, count) @ loss.value(scores, np.arange(count)))
    scores = _scores(block, bias)
    return float(block.share @ np.asarray(loss.value(scores, block.exact_target), np.float64))


def _scores(block: Block, bias: NumPyArray) -> NumPyArray:
    """Return the scores without features, (b, K)."""
    beside = bias if block.offset is None else bias + block.offset
    return np.broadcast_to(beside, (len(block), len(bias)))


def least_loss(table: AnyTable, loss: Loss) -> float:
    """Return the mean of the losses' infima."""
    return float(table.known(_least, loss)) if loss.has_least else 0.0


def _least(block: Block, loss: Loss) -> float:
    return float(block.share @ np.asarray(loss.least(block.exact_target), np.float64))


def size_of_scores(table: AnyTable, bias: NumPyArray) -> float:
    """Return the root mean square of intercept plus offsets, with the sign of their mean.

    With several outputs it is the largest one.
    """
    mean, square = table.sum(_moments_of_scores, bias, reads=False)
    k = np.argmax(square)
    return float(np.copysign(np.sqrt(square[k]), mean[k]))


def _moments_of_scores(block: Block, bias: NumPyArray) -> tuple[NumPyArray, NumPyArray]:
    scores = _scores(block, bias)
    return np.asarray(block.share @ scores), np.asarray(block.share @ np.square(scores))


class _Derivatives(NamedTuple):
    """The mean loss at an intercept, its gradient, (K,), and its Hessian, (K, K)."""

    value: float
    slope: NumPyArray
    curvature: NumPyArray

    def leads(self, other: _Derivatives) -> bool:
        """Whether this point is closer to the optimum than another point.

        If the values differ only by rounding, the slopes are compared.
        """
        if abs(self.value - other.value) > _SAME * abs(other.value):
            return self.value < other.value
        return bool(np.abs(self.slope).max() < np.abs(other.slope).max() / 2)


def _derivatives(
    block: Block, loss: Loss, bias: NumPyArray, temperature: float
) -> tuple[float, NumPyArray, NumPyArray]:
    offset = np.zeros_like(bias) if block.offset is None else block.offset / temperature
    scores = np.broadcast_to(bias + offset, (len(block), len(bias)))
    target, share = block.exact_target, block.share
    with np.errstate(over="ignore", invalid="ignore"):
        values, residual = loss.value_and_residual(scores, target)
        curvature = loss.second_derivative(scores, target).total(share)
        return float(share @ values), np.asarray(share @ residual), curvature


def _offset_range(block: Block) -> tuple[list[float], list[float], NumPyArray]:
    """Return the least and the largest offset, and their mean."""
    if block.offset is None:
        return [0.0], [0.0], np.zeros(1)
    return [float(block.offset.min())], [float(block.offset.max())], block.share @ block.offset


@dataclass(frozen=True)
class _WithOffsets:
    """The mean loss of all rows as a function of the intercept."""

    loss: Loss
    table: AnyTable

    def at(self, bias: NumPyArray, temperature: float = 1.0) -> _Derivatives:
        """Return the mean loss and its derivatives at the intercepts, (K,)."""
        given = self.loss, bias, temperature
        return _Derivatives(*self.table.sum(_derivatives, *given, reads=False))

    def best_number(self, best: float) -> NumPyArray:
        """Return the best intercept of one output; `best` is the best one without offsets.

        The slope increases with the intercept. Newton's steps stay in an interval that contains the
        root. The interval is halved if a step is longer than half of the last one.
        """
        least, largest, mean = self.table.known(_offset_range)
        low, high = best - max(largest), best - min(least)
        middle, last = best - float(mean[0]), high - low
        for _ in range(_MAX_STEPS):
            _, slope, curvature = self.at(np.array([middle]))
            low, high = (low, middle) if slope[0] > 0 else (middle, high)
            step = float(slope[0] / curvature[0, 0]) if curvature[0, 0] > 0 else np.inf
            if not (low < middle - step < high and abs(step) < last / 2):
                step = middle - (low + high) / 2
            middle, last = middle - step, abs(step)
            if last <= _SAME * max(1.0, abs(middle)):
                break
        return np.array([middle])

    def best_of_classes(self, best: NumPyArray) -> NumPyArray:
        """Return the best intercepts of classes, with mean 0; `best` are those without offsets.

        Widely spread offsets make the mean loss almost piecewise linear. It is smoothed first: the
        offsets are divided by a temperature, which decreases to 1.
        """
        mean = self.table.known(_offset_range)[2]
        size = abs(size_of_scores(self.table, -mean))
        temperature, bias = max(1.0, size / _MAX_SIZE), best - mean
        while temperature > 1:
            bias = temperature * self.newton_of_classes(bias / temperature, temperature)
            temperature = max(1.0, temperature / 4)
        bias = self.newton_of_classes(bias)
        return np.asarray(bias - bias.mean())

    def newton_of_classes(self, bias: NumPyArray, temperature: float = 1.0) -> NumPyArray:
        """Return the best intercepts of classes by Newton's method from a start.

        If no part of a step leads lower, each intercept moves by the logarithm of its class's share
        divided by the mean probability. This always leads lower (iterative scaling: Darroch &
        Ratcliff 1972).
        """
        wanted = self.table.known(group_shares, len(bias))
        here = self.at(bias, temperature)
        for _ in range(_MAX_STEPS):
            newton = np.linalg.pinv(here.curvature, rcond=_SAME, hermitian=True) @ here.slope
            ratio = np.maximum(wanted + here.slope, _LEAST_RATIO * wanted)
            scaling = np.log(np.where(wanted > 0, ratio, 1) / np.where(wanted > 0, wanted, 1))
            steps = [*(newton * 4.0**-k for k in range(_MAX_PARTS)), scaling]
            tried = ((step, self.at(bias - step, temperature)) for step in steps)
            found = ((step, new) for step, new in tried if new.leads(here))
            step, here = next(found, (None, here))
            if step is None:
                break
            bias = bias - step
        return bias
