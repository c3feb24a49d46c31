"""Damped Newton on rows in memory: exact where the problem is small, a start where it is large."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import scipy.linalg

from provenglm.model.sample import Sample
from provenglm.types import NumPyArray

_RIDGE = 1e-12
"""Of the diagonal: what makes the Hessian of duplicate columns positive definite."""

_ARMIJO = 1e-4

_LONGEST = 16
"""Of a step: without an optimum there would be no end."""

_SHORTEST, _ROUNDING = 1e-10, 1e-16
"""Of a step, and of the objective: a shorter step that promises less is not tried."""


@dataclass(frozen=True)
class Iterate:
    """A point of Newton's method, and half the squared Newton decrement there."""

    theta: NumPyArray
    scores: NumPyArray
    objective: float
    gradient: NumPyArray
    decrement: float


def factor(hessian: NumPyArray, ridge: float = _RIDGE) -> tuple[NumPyArray, bool]:
    """Return the Cholesky factor of the Hessian, with as small a ridge as it needs."""
    # Relative to each entry: a feature with a huge penalty would else drown the others.
    diagonal = np.maximum(hessian.diagonal(), np.finfo(np.float64).tiny)
    if not np.isfinite(hessian).all():
        raise FloatingPointError("the Hessian is not finite: the scores or the features overflow")
    for count in range(13):
        if count == 12:
            # Where classes run apart, probabilities of 1 leave less on the diagonal than beside it.
            diagonal = np.maximum(np.abs(hessian).sum(axis=1), diagonal)
        try:
            hessian.ravel()[:: len(hessian) + 1] = diagonal * (1 + ridge)
            chol, lower = scipy.linalg.cho_factor(hessian, lower=True, check_finite=False)
            return chol, lower
        except np.linalg.LinAlgError:
            ridge *= 30
    raise FloatingPointError("the Hessian has no Cholesky factor, with any ridge")


def iterate(sample: Sample, theta: NumPyArray) -> Iterator[Iterate]:
    """Yield the start and then one point for each step; ends where no step leads lower."""
    scores = sample.scores(theta)
    objective = sample.value(theta, scores)
    while True:
        gradient = sample.gradient(theta, scores)
        chol = factor(sample.hessian(scores))
        step = scipy.linalg.cho_solve(chol, gradient.ravel(), check_finite=False)
        decrement = 0.5 * float(gradient.ravel() @ step)
        yield Iterate(theta, scores, objective, gradient, decrement)
        step = without_shift(step.reshape(theta.shape), sample.penalty)
        along = sample.rows @ step
        length = 1.0
        while True:
            new_theta, new_scores = theta - length * step, scores - length * along
            new = sample.value(new_theta, new_scores)
            if new <= objective - _ARMIJO * length * 2 * decrement:
                break
            length /= 2
            if is_rounding(length, decrement, objective):
                return
        # Where the curvature fades along the step, as in a logistic loss of separable classes, the
        # step is too short.
        while 1 <= length < _LONGEST:
            longer_theta, longer_scores = theta - 2 * length * step, scores - 2 * length * along
            longer = sample.value(longer_theta, longer_scores)
            if not longer < new:
                break
            length, new, new_theta = 2 * length, longer, longer_theta
        # Scores are computed again, because each update of them would add a rounding error.
        theta, scores = new_theta, sample.scores(new_theta)
        objective = sample.value(theta, scores)


def is_rounding(length: float, decrement: float, objective: float) -> bool:
    """Whether a step is so short a part of Newton's that what is not lower there is rounding.

    From 0, an exponential of scores near 30 is reached by 1e-12 of the step: the curvature is 1
    there, and the gradient 1e13.
    """
    return length < _SHORTEST and not length * decrement > _ROUNDING * abs(objective)


def without_shift(step: NumPyArray, penalty: NumPyArray) -> NumPyArray:
    """Return a step without what adds the same to all classes, where there is no penalty.

    The loss does not see it and the Hessian is singular along it: rounding would add up to scores
    of thousands, which leave float32 no digits for the rest.
    """
    if step.ndim == 2:
        free = penalty == 0
        step[free] -= step[free].mean(axis=1, keepdims=True)
    return step


def of_no_shift(theta: NumPyArray) -> NumPyArray:
    """Return theta, or a step, without what is the same for all classes: a new array of classes.

    The loss does not see it, and the penalty is least without it. A Hessian has the penalty alone
    there: no preconditioner that is a diagonal would fit.
    """
    return theta if theta.ndim == 1 else theta - theta.mean(axis=1, keepdims=True)


def minimise(sample: Sample, theta: NumPyArray, tol: float, steps: int) -> NumPyArray:
    """Return the point whose decrement is at most `tol`, or that after `steps` steps."""
    last = theta
    for count, point in enumerate(iterate(sample, theta)):
        last = point.theta
        if point.decrement <= tol or count == steps:
            break
    return last
