"""Of all softmax models that give the same probabilities, the one of least penalty."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from provenglm.problem import Problem
from provenglm.solution import Solution

if TYPE_CHECKING:
    from provenglm.cross_validation.folds import PathPoint

Point = TypeVar("Point", Solution, "PathPoint")


def centred(solution: Point, problem: Problem) -> Point:
    """Return a softmax's solution whose intercepts, and each feature's coefficients, have mean 0.

    A shift of all classes by the same changes no probability. The penalty is least for coefficients
    of mean 0: what their means cost is taken off the objective, and off the distance above the
    optimum.
    """
    if solution.coef.shape[1] == 1:
        return solution
    if problem.l1 > 0:
        # A shift would take coefficients from 0.
        shift = solution.intercept.mean() if problem.fit_intercept else 0.0
        return replace(solution, intercept=solution.intercept - shift)
    means = solution.coef.mean(axis=1, keepdims=True)
    cost = problem.l2 / 2 * solution.coef.shape[1] * float(np.vdot(means, means))
    intercept = solution.intercept
    return replace(
        solution,
        coef=solution.coef - means,
        intercept=intercept - intercept.mean() if problem.fit_intercept else intercept,
        objective=solution.objective - cost,
        gap=max(solution.gap - cost, 0.0),
    )
