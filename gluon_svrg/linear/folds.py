"""Folds of a cross-validation as weights of all rows, and what is kept of a point of a path."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from gluon_svrg._compat import NumPyArray
from gluon_svrg.linear.plan import Plan
from gluon_svrg.linear.problem import Problem
from gluon_svrg.linear.rows import rows_of
from gluon_svrg.linear.solution import Solution, StopReason
from gluon_svrg.linear.solve import Session

Start = tuple[NumPyArray, NumPyArray]


@dataclass(frozen=True)
class PathPoint:
    """The optimum for one fold and one C, as `Solution` has it.

    Attributes
    ----------
    coef : numpy.ndarray, (p, K)
    intercept : numpy.ndarray, (K,)
    objective, gap, decrement : float
    iterations : int
        Snapshots; that of the start counts.
    reason : StopReason
    """

    coef: NumPyArray
    intercept: NumPyArray
    objective: float
    gap: float
    decrement: float
    iterations: int
    reason: StopReason

    @classmethod
    def of(cls, solution: Solution) -> PathPoint:
        """Return what is kept of a solution."""
        return cls(
            coef=solution.coef,
            intercept=solution.intercept,
            objective=solution.objective,
            gap=solution.gap,
            decrement=solution.decrement,
            iterations=len(solution.history),
            reason=solution.reason,
        )

    def centred(self, l2: float, fit_intercept: bool) -> PathPoint:
        """Return a softmax's point whose intercepts, and each feature's coefficients, have mean 0.

        A shift of all classes by the same changes no probability; the penalty is least there.
        """
        count = self.coef.shape[1]
        if count == 1:
            return self
        means = self.coef.mean(axis=1, keepdims=True)
        cost = l2 / 2 * count * float(np.vdot(means, means))
        intercept = self.intercept
        return replace(
            self,
            coef=self.coef - means,
            intercept=intercept - intercept.mean() if fit_intercept else intercept,
            objective=self.objective - cost,
            gap=max(self.gap - cost, 0.0),
        )


@dataclass(frozen=True)
class Folds:
    """The training sets of a cross-validation, as weights of all rows.

    Attributes
    ----------
    problem : Problem
        All rows.
    counts : list of numpy.ndarray, (n,)
        How often each row is in a fold's training set; mostly 0 or 1.
    """

    problem: Problem
    counts: Sequence[NumPyArray]

    def __len__(self) -> int:
        """Return the number of folds."""
        return len(self.counts)

    def weight(self, fold: int) -> NumPyArray:
        """Return the weights of all rows in a fold's training set, (n,)."""
        weight = self.problem.sample_weight
        return self.counts[fold] if weight is None else weight * self.counts[fold]

    def l2(self, fold: int, strength: float) -> float:
        """Return the penalty of a C, on the mean loss of the fold's training set."""
        return 1 / strength / self.totals[fold]

    @cached_property
    def totals(self) -> list[float]:
        """The sum of the weights of each training set."""
        return [float(self.weight(fold).sum(dtype=np.float64)) for fold in range(len(self))]

    def of(self, fold: int, plan: Plan, strength: float) -> Problem:
        """Return a fold's problem: of its rows where these are few, else of weights 0."""
        whole, weight = self.problem, self.weight(fold).astype(np.float64)
        l2 = self.l2(fold, strength)
        if not plan.is_cheap:
            return replace(whole, sample_weight=weight, l2=l2)
        rows = np.flatnonzero(weight)
        return replace(
            whole,
            features=rows_of(whole.features).take(rows),
            target=whole.target[rows],
            sample_weight=weight[rows],
            l2=l2,
        )


def point_of(session: Session, l2: float, start: Start | None) -> PathPoint:
    """Return a point by the solver itself; an interrupt goes on."""
    solution = session.solve(l2, start)
    if solution.reason is StopReason.INTERRUPTED:
        raise KeyboardInterrupt
    return PathPoint.of(solution)
