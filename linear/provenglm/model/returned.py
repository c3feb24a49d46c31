"""Compute the user's coefficients: theta in the units of the features, rounded to float64.

The coefficients keep all digits that matter for centred features. The intercept applies to the
features as they are: if the mean of a feature is 1e12 times its standard deviation, rounding the
intercept moves all scores by 1e-4. This needs no pass over the features: the objective at the moved
scores is known, and so is the increase of their distance to the optimum.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from provenglm.model.losses import Loss
from provenglm.model.objective import Objective, Snapshot
from provenglm.rows.table import Block
from provenglm.types import NumPyArray

_UNIT = 2.0**-53

_HALVES = 2.0**27 + 1

_NEGLIGIBLE_STEP = 1e-9
"""A step of scores is negligible if it is smaller: its square times the curvature of a loss is less
than the rounding of the loss."""


def shifted(intercept: NumPyArray, center: NumPyArray, coef: NumPyArray) -> NumPyArray:
    """Return ``intercept + center @ coef``, (K,), rounded once.

    Parameters
    ----------
    intercept : numpy.ndarray, (K,)
    center : numpy.ndarray, (p,)
    coef : numpy.ndarray, (p, K)
    """
    used = np.flatnonzero(center)
    if not len(used):
        return intercept
    factor, numbers = center[used], coef[used]
    with np.errstate(over="ignore", invalid="ignore"):
        high, low = _product((factor + np.zeros_like(numbers.T)).T, numbers)
        rough = np.asarray(intercept + factor @ numbers)
    if not (np.isfinite(rough).all() and np.isfinite(low).all()):
        return rough
    terms = np.vstack([high, low, intercept[None]])
    return np.array([math.fsum(column) for column in terms.T.tolist()])


def _product(first: NumPyArray, second: NumPyArray) -> tuple[NumPyArray, NumPyArray]:
    """Return products and their rounding errors (Dekker 1971)."""
    product = first * second
    a, b = _halved(first), _halved(second)
    return product, a[1] * b[1] - (((product - a[0] * b[0]) - a[1] * b[0]) - a[0] * b[1])


def _halved(numbers: NumPyArray) -> tuple[NumPyArray, NumPyArray]:
    large = _HALVES * numbers
    high = large - (large - numbers)
    return high, numbers - high


class Returned(NamedTuple):
    """The user's coefficients (p, K) and intercepts (K,).

    Attributes
    ----------
    change : float
        The change of the objective relative to the solver's theta. Rounding increases it, and a
        shift of all classes decreases it.
    step : numpy.ndarray, (K,)
        The change of all scores by rounding.
    """

    coef: NumPyArray
    intercept: NumPyArray
    change: float
    step: NumPyArray


def returned(objective: Objective, snapshot: Snapshot, theta: NumPyArray) -> Returned:
    """Return the user's coefficients for `theta`, at the objective and scores of a snapshot.

    Among all softmax models with the same probabilities, the result has the least penalty and
    intercepts with mean 0: adding the same to all classes changes no probability.
    """
    change, center = 0.0, objective.scaling.center
    has_shift = objective.loss.outputs > 1
    if has_shift:
        theta, change = _without_shift(objective, theta)
    coef, rough = objective.scaling.to_user(theta)
    columns = coef
    if has_shift and objective.intercept:
        # Treat it as one more column: an intercept minus a mean of 1e13 would lose its digits.
        mean = rough.mean()
        rough = rough - mean
        center, columns = np.append(center, mean), np.vstack([coef, np.ones(coef.shape[1])])
    intercept, step = rounded(theta[-1], center, columns, rough)
    change += rise(objective, snapshot, step)
    return Returned(coef, intercept, change, step)


def rounded(
    bias: NumPyArray, center: NumPyArray, coef: NumPyArray, rough: NumPyArray
) -> tuple[NumPyArray, NumPyArray]:
    """Return the intercept for features that are not centred, (K,), and its rounding error.

    Parameters
    ----------
    bias : numpy.ndarray, (K,)
        The intercept for centred features.
    center : numpy.ndarray, (p,)
    coef : numpy.ndarray, (p, K)
    rough : numpy.ndarray, (K,)
        The intercept computed with the rounding errors of a dot product.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        size = np.abs(center) @ np.abs(coef) + np.abs(bias)
    if (_UNIT * len(center) * size <= _NEGLIGIBLE_STEP).all():
        return rough, np.zeros(len(rough))
    intercept = shifted(bias, -center, coef)
    return intercept, shifted(intercept, center, coef) - bias


def _without_shift(objective: Objective, theta: NumPyArray) -> tuple[NumPyArray, float]:
    """Return theta with mean 0 over the classes, and the change of the penalty.

    With an L1 penalty theta stays as it is, because a shift would make zeros nonzero.
    """
    if objective.l1 is not None:
        return theta, 0.0
    means = theta.mean(axis=1, keepdims=True)
    means[-1] = 0
    saved = 0.5 * theta.shape[1] * float(objective.penalty[:-1] @ np.square(means[:-1, 0]))
    return theta - means, -saved


def rise(objective: Objective, snapshot: Snapshot, step: NumPyArray) -> float:
    """Return the increase of the objective by a step of the intercepts (K,); 0 if it is rounding.

    Parameters
    ----------
    objective : Objective
    snapshot : Snapshot
        The point before the step.
    step : numpy.ndarray, (K,)
    """
    if not step.any():
        return 0.0
    with np.errstate(over="ignore", invalid="ignore"):
        found = float(objective.sum(_change, objective.loss, step, at=snapshot))
    return found if found == found else np.inf


def _change(block: Block, loss: Loss, step: NumPyArray) -> float:
    before, target = block.precise_scores, block.exact_target
    after = before + step
    return float(block.share @ (loss.value(after, target) - loss.value(before, target)))
