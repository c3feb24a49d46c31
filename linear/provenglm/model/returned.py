"""The coefficients that the user holds: theta in the units of the features, rounded to float64.

Coefficients keep all digits that matter for features about their means. The intercept is that of
features as they are: if the mean of one is 1e12 times its standard deviation, rounding the
intercept moves all scores by 1e-4. That needs no pass over the features: the objective of the moved
scores is known, and so is how much farther from the optimum they are.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from provenglm.model.losses import Loss
from provenglm.model.objective import Objective, Snapshot
from provenglm.types import NumPyArray

_UNIT = 2.0**-53

_HALVES = 2.0**27 + 1

_ROWS = 65_536
"""At a time: what a core's cache holds."""

_NEGLIGIBLE_STEP = 1e-9
"""Of scores: its square times the curvature of a loss is less than the rounding of its values."""


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
    """Coefficients (p, K) and intercepts (K,) of the user.

    Attributes
    ----------
    change : float
        What they add to the objective of the solver's theta: that of rounding is above 0, that of a
        shift of all classes below.
    step : numpy.ndarray, (K,)
        What rounding adds to all scores.
    """

    coef: NumPyArray
    intercept: NumPyArray
    change: float
    step: NumPyArray


def returned(objective: Objective, snapshot: Snapshot, theta: NumPyArray) -> Returned:
    """Return the user's coefficients for `theta`, whose objective and scores a snapshot has.

    Of all softmax models that give the same probabilities it is the one of least penalty whose
    intercepts have the mean 0: a shift of all classes by the same changes none.
    """
    change, center = 0.0, objective.scaling.center
    if theta.ndim == 2:
        theta, change = _without_shift(objective, theta)
    coef, rough = objective.scaling.to_user(theta)
    coef = columns = coef.reshape(len(coef), -1)
    if theta.ndim == 2 and objective.intercept:
        # As one more column: an intercept less a mean of 1e13 has no digits of what it was.
        mean = rough.mean()
        rough = rough - mean
        center, columns = np.append(center, mean), np.vstack([coef, np.ones(coef.shape[1])])
    intercept, step = rounded(np.atleast_1d(theta[-1]), center, columns, rough)
    share, target, scores = objective.share, objective.target, snapshot.scores
    return Returned(
        coef, intercept, change + rise(objective.loss, share, target, scores, step), step
    )


def rounded(
    bias: NumPyArray, center: NumPyArray, coef: NumPyArray, rough: NumPyArray
) -> tuple[NumPyArray, NumPyArray]:
    """Return the intercept for features that are not centred, (K,), and by how much it is off.

    Parameters
    ----------
    bias : numpy.ndarray, (K,)
        The intercept for centred features.
    center : numpy.ndarray, (p,)
    coef : numpy.ndarray, (p, K)
    rough : numpy.ndarray
        The same with the rounding errors of a product of vectors.
    """
    rough = np.atleast_1d(rough)
    with np.errstate(over="ignore", invalid="ignore"):
        size = np.abs(center) @ np.abs(coef) + np.abs(bias)
    if (_UNIT * len(center) * size <= _NEGLIGIBLE_STEP).all():
        return rough, np.zeros(len(rough))
    intercept = shifted(bias, -center, coef)
    return intercept, shifted(intercept, center, coef) - bias


def _without_shift(objective: Objective, theta: NumPyArray) -> tuple[NumPyArray, float]:
    """Return theta with coefficients of mean 0 over the classes, and what that adds to the penalty.

    With a penalty on sizes theta stays: a shift would take coefficients from 0.
    """
    if objective.l1 is not None:
        return theta, 0.0
    means = theta.mean(axis=1, keepdims=True)
    means[-1] = 0
    saved = 0.5 * theta.shape[1] * float(objective.penalty[:-1] @ np.square(means[:-1, 0]))
    return theta - means, -saved


def rise(
    loss: Loss, share: NumPyArray, target: NumPyArray, scores: NumPyArray, step: NumPyArray
) -> float:
    """Return what a step of the intercepts, (K,), adds to the objective; 0 where it is rounding.

    Parameters
    ----------
    loss : Loss
    share, target : numpy.ndarray, (n,)
        The weights, whose sum is 1, and the targets.
    scores : numpy.ndarray, (n,) or (n, K)
        Before the step.
    step : numpy.ndarray, (K,)
    """
    if not step.any():
        return 0.0
    found = 0.0
    with np.errstate(over="ignore", invalid="ignore"):
        for first in range(0, len(target), _ROWS):
            rows = slice(first, first + _ROWS)
            before = scores[rows].astype(np.float64)
            after = before + (step if before.ndim > 1 else step[0])
            change = loss.value(after, target[rows]) - loss.value(before, target[rows])
            found += float(share[rows] @ change)
    return found if found == found else np.inf
