"""Represent the folds of a cross-validation as weights of all rows, and the points of a path."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from provenglm.huber_scale import solve_with_scale
from provenglm.model.problem import Problem
from provenglm.model.solution import Settings, Solution, StopReason
from provenglm.plan import is_small
from provenglm.rows.kinds import taken
from provenglm.solve import Session
from provenglm.types import NumPyArray

Start = tuple[NumPyArray, NumPyArray]


@dataclass(frozen=True)
class PathPoint:
    """The optimum for one fold and one strength of the penalty; a part of `Solution`.

    Attributes
    ----------
    coef : numpy.ndarray, (p, K)
    intercept : numpy.ndarray, (K,)
    objective, gap, decrement : float
    iterations : int
        Number of snapshots, including the start.
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
        """Return the part of a solution that a path keeps."""
        return cls(
            coef=solution.coef,
            intercept=solution.intercept,
            objective=solution.objective,
            gap=solution.gap,
            decrement=solution.decrement,
            iterations=len(solution.history),
            reason=solution.reason,
        )


@dataclass(frozen=True)
class Folds:
    """The training sets of a cross-validation, as weights of all rows.

    Attributes
    ----------
    problem : Problem
        The problem of all rows.
    counts : list of numpy.ndarray, (n,)
        How often each row is in the training set of each fold; mostly 0 or 1.
    name : str
        The user's name for the strength of the penalty.
    on_mean : callable
        Return the penalty relative to the mean loss, from a strength and the sum of the weights.
    l1_ratio : float
        The L1 part of the penalty, from 0 to 1.
    """

    problem: Problem
    counts: Sequence[NumPyArray]
    name: str
    on_mean: Callable[[float, float], float]
    l1_ratio: float = 0.0

    def __len__(self) -> int:
        """Return the number of folds."""
        return len(self.counts)

    def weight(self, fold: int, rows: slice = slice(None)) -> NumPyArray:
        """Return the weights of some rows, or of all rows (n,), in a fold's training set."""
        counts, weight = self.counts[fold][rows], self.problem.sample_weight
        return counts if weight is None else weight[rows] * counts

    def penalties(self, fold: int, strength: float) -> tuple[float, float]:
        """Return the L2 and L1 penalties relative to the mean loss of the fold's training set."""
        penalty = self.on_mean(strength, self.totals[fold])
        return penalty * (1 - self.l1_ratio), penalty * self.l1_ratio

    def penalised(self, fold: int, strength: float) -> Problem:
        """Return the problem of all rows with the penalty of this fold and strength."""
        l2, l1 = self.penalties(fold, strength)
        return replace(self.problem, l2=l2, l1=l1)

    @cached_property
    def totals(self) -> list[float]:
        """The sum of the weights of each training set."""
        return [float(self.weight(fold).sum(dtype=np.float64)) for fold in range(len(self))]

    def share(self, fold: int) -> NumPyArray:
        """Return each row's share of the fold's training set, (n,): 0 if it is held out."""
        return np.asarray(self.weight(fold) / self.totals[fold])

    def of(self, fold: int, strength: float) -> Problem:
        """Return a fold's problem: its own rows if they are few, or all rows with weights."""
        whole, weight = self.penalised(fold, strength), self.weight(fold).astype(np.float64)
        limited = getattr(whole.features, "memory_limit", None) is not None
        if limited or not is_small(whole):
            return replace(whole, sample_weight=weight)
        rows = np.flatnonzero(weight)
        return replace(
            whole,
            features=taken(whole.features, rows),
            target=whole.target[rows],
            sample_weight=weight[rows],
            offset=None if whole.offset is None else whole.offset[rows],
        )


def point_of(session: Session, penalties: tuple[float, float], start: Start | None) -> PathPoint:
    """Return a point from the general solver; an interrupt raises KeyboardInterrupt."""
    return _kept(session.solve(start, *penalties))


def point_with_scale(problem: Problem, settings: Settings, start: Start | None) -> PathPoint:
    """Return a point for a loss whose scale is estimated as well."""
    return _kept(solve_with_scale(problem, settings, start)[0])


def _kept(solution: Solution) -> PathPoint:
    if solution.reason is StopReason.INTERRUPTED:
        raise KeyboardInterrupt
    return PathPoint.of(solution)
