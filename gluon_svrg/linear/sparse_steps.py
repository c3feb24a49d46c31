"""Sparse features with more columns than a Hessian can have."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from gluon_svrg._compat import NumPyArray
from gluon_svrg.linear.method import HessianSteps
from gluon_svrg.linear.metric import DiagonalMetric, Metric
from gluon_svrg.linear.objective import Objective, Snapshot
from gluon_svrg.linear.problem import Problem
from gluon_svrg.linear.sample import Sample
from gluon_svrg.linear.solution import Settings
from gluon_svrg.linear.state import State
from gluon_svrg.linear.way import Plan


def plan(problem: Problem, _: Settings) -> Plan:
    """Return the way to go for a sparse problem of many columns."""
    n, p = problem.features.shape
    why = f"{n:,} sparse rows with {p:,} columns: no Hessian of them fits"
    return Plan("full gradients", why, 0, SecantSteps.states)


class SecantSteps(HessianSteps):
    """Steps of the full gradient in a diagonal metric, with what steps tell of the Hessian."""

    def __init__(self, objective: Objective, sample: Sample, rng: np.random.Generator) -> None:
        super().__init__(objective, sample, rng)
        self._may_run_epochs = False

    @classmethod
    def states(
        cls, objective: Objective, sample: Sample, start: NumPyArray, rng: np.random.Generator
    ) -> Iterator[State]:
        """Yield a state for each snapshot of a run."""
        return cls(objective, sample, rng)._states(start)

    def _first(self, start: NumPyArray) -> Snapshot:
        return self._objective.snapshot(start)

    def _metric(self, theta: NumPyArray) -> Metric:
        objective = self._objective
        squares = objective.squares
        assert squares is not None
        squares = np.append(squares, float(objective.intercept))
        # The curvature of every loss at the null model is about that of its mean.
        scores = np.broadcast_to(theta[-1], (objective.n, *theta.shape[1:]))
        curvature = objective.share @ objective.loss.curvature(scores, objective.target)
        diagonal = np.multiply.outer(squares, curvature)
        diagonal += 1e-2 * diagonal.mean(axis=0)
        return DiagonalMetric(1 / (diagonal.T + objective.penalty).T)

    def _has_changed(self, theta: NumPyArray) -> bool:
        return False
