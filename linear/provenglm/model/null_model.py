"""Fit the model without features: the best intercept beside the offsets.

Without offsets each loss computes it from a mean of the targets. With offsets it is the root of the
mean residual, found by Newton's method: one number, or one for each class.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from provenglm.model import per_row
from provenglm.model.losses import Loss
from provenglm.rows.blocks import parts_of
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


def best_intercept(
    loss: Loss,
    target: NumPyArray,
    share: NumPyArray,
    offset: NumPyArray | None,
    is_long: bool = False,
) -> NumPyArray:
    """Return the best intercept of the model without features: a 0-d array, or (K,).

    Parameters
    ----------
    target, share : numpy.ndarray, (n,)
        The shares, which sum to 1.
    offset : numpy.ndarray, (n,) or (n, K), optional
    is_long : bool
        Whether arrays with one number per row are processed in parts: see `per_row`.
    """
    few, of_few = target, share
    if is_long or (loss.has_classes and offset is None):
        few, of_few = per_row.summary(loss, target, share)
    best = np.asarray(loss.null_scores(few, of_few), np.float64)
    if offset is None:
        return best
    rows = _Rows(loss, target, share, offset)
    return rows.best_of_classes(best) if loss.outputs > 1 else rows.best_number(float(best))


def mean_loss(
    loss: Loss,
    target: NumPyArray,
    share: NumPyArray,
    offset: NumPyArray | None,
    bias: NumPyArray,
    is_long: bool = False,
) -> float:
    """Return the mean loss of the model without features and with the intercept `bias`."""
    if offset is not None:
        return per_row.mean(share, lambda part: loss.value(bias + offset[part], target[part]))
    if loss.has_classes:
        target, share = per_row.summary(loss, target, share)
    elif is_long:
        return per_row.mean(share, lambda part: loss.value(np.full(1, bias), target[part]))
    scores = np.broadcast_to(bias, (len(target), *bias.shape))
    return float(np.asarray(loss.value(scores, target), np.float64) @ share)


def size_of_scores(share: NumPyArray, offset: NumPyArray, bias: NumPyArray) -> float:
    """Return the root mean square of intercept plus offsets, with the sign of their mean.

    With several outputs it is the largest one.
    """
    mean, square = np.zeros(offset.shape[1:]), np.zeros(offset.shape[1:])
    for part in parts_of(len(share)):
        scores = bias + offset[part]
        mean = mean + share[part] @ scores
        square = square + share[part] @ np.square(scores)
    k = np.argmax(square)
    return float(np.copysign(np.sqrt(square.flat[k]), mean.flat[k]))


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


class _Rows(NamedTuple):
    """Targets, shares and offsets of all rows."""

    loss: Loss
    target: NumPyArray
    share: NumPyArray
    offset: NumPyArray
    temperature: float = 1.0

    def at(self, bias: NumPyArray | float) -> _Derivatives:
        """Return the mean loss and its derivatives at an intercept."""
        outputs = self.loss.outputs
        value, slope, curvature = 0.0, np.zeros(outputs), np.zeros((outputs, outputs))
        for part in parts_of(len(self.target), outputs):
            scores, target = bias + self.offset[part] / self.temperature, self.target[part]
            share = np.ascontiguousarray(self.share[part])
            with np.errstate(over="ignore", invalid="ignore"):
                values, residual = self.loss.value_and_residual(scores, target)
                value += float(share @ values)
                slope += share @ residual
                curvature += self.loss.second_derivative(scores, target).total(share)
        return _Derivatives(value, slope, curvature)

    def best_number(self, best: float) -> NumPyArray:
        """Return the best intercept of one output; `best` is the best one without offsets.

        The slope increases with the intercept. Newton's steps stay in an interval that contains the
        root. The interval is halved if a step is longer than half of the last one.
        """
        low, high = best - float(self.offset.max()), best - float(self.offset.min())
        middle, last = best - per_row.mean_of(self.share, self.offset), high - low
        for _ in range(_MAX_STEPS):
            _, slope, curvature = self.at(middle)
            low, high = (low, middle) if slope[0] > 0 else (middle, high)
            step = float(slope[0] / curvature[0, 0]) if curvature[0, 0] > 0 else np.inf
            if not (low < middle - step < high and abs(step) < last / 2):
                step = middle - (low + high) / 2
            middle, last = middle - step, abs(step)
            if last <= _SAME * max(1.0, abs(middle)):
                break
        return np.asarray(middle)

    def best_of_classes(self, best: NumPyArray) -> NumPyArray:
        """Return the best intercepts of classes, with mean 0; `best` are those without offsets.

        Widely spread offsets make the mean loss almost piecewise linear. It is smoothed first: the
        offsets are divided by a temperature, which decreases to 1.
        """
        parts = parts_of(len(self.target), len(best))
        mean = sum(self.share[part] @ self.offset[part] for part in parts)
        size = abs(size_of_scores(self.share, self.offset, -mean))
        temperature, bias = max(1.0, size / _MAX_SIZE), best - mean
        while temperature > 1:
            smooth = self._replace(temperature=temperature)
            bias = temperature * smooth.newton_of_classes(bias / temperature)
            temperature = max(1.0, temperature / 4)
        bias = self.newton_of_classes(bias)
        return np.asarray(bias - bias.mean())

    def newton_of_classes(self, bias: NumPyArray) -> NumPyArray:
        """Return the best intercepts of classes by Newton's method from a start.

        If no part of a step leads lower, each intercept moves by the logarithm of its class's share
        divided by the mean probability. This always leads lower (iterative scaling: Darroch &
        Ratcliff 1972).
        """
        wanted = per_row.shares_of_groups(self.share, lambda part: self.target[part], len(bias))
        here = self.at(bias)
        for _ in range(_MAX_STEPS):
            newton = np.linalg.pinv(here.curvature, rcond=_SAME, hermitian=True) @ here.slope
            ratio = np.maximum(wanted + here.slope, _LEAST_RATIO * wanted)
            scaling = np.log(np.where(wanted > 0, ratio, 1) / np.where(wanted > 0, wanted, 1))
            steps = [*(newton * 4.0**-k for k in range(_MAX_PARTS)), scaling]
            found = ((step, new) for step in steps if (new := self.at(bias - step)).leads(here))
            step, here = next(found, (None, here))
            if step is None:
                break
            bias = bias - step
        return bias
