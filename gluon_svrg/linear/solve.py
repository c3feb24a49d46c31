"""The run: follows a method from snapshot to snapshot until its certificate says enough."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
from gluon_svrg._compat import NumPyArray
from gluon_svrg.linear.certificate import duality_gap
from gluon_svrg.linear.losses import Logistic, Softmax
from gluon_svrg.linear.objective import Objective, Snapshot
from gluon_svrg.linear.plan import Plan, choose, dense_if_small
from gluon_svrg.linear.problem import Problem
from gluon_svrg.linear.sample import Sample
from gluon_svrg.linear.sampling import l1_of, penalty_of, prepare
from gluon_svrg.linear.solution import Record, Settings, Solution, StopReason
from gluon_svrg.linear.state import State
from gluon_svrg.linear.workers import Workers

__all__ = ["Record", "Session", "Settings", "Solution", "StopReason", "solve"]

_FOR_THE_PROOF = 3
"""Iterations of Newton's method after the estimate says enough: the error is squared in each."""

ROUNDING = 1e-14
"""Of the objective: a decrement below it is rounding."""


def solve(
    problem: Problem,
    settings: Settings,
    start: tuple[NumPyArray, NumPyArray] | None = None,
) -> Solution:
    """Minimise a linear model's objective.

    Parameters
    ----------
    problem : Problem
    settings : Settings
    start : tuple of numpy.ndarray, optional
        Weights (p, K) and intercepts (K,) to begin with, if they are better than none.

    Returns
    -------
    Solution
        The best point; `reason` says whether it is as near as asked. Ctrl-C ends the run and
        returns what there is by then.
    """
    session = Session(problem, settings)
    with session.running():
        return session.solve(start)


class Session:
    """A problem that is prepared once: coordinates, sample, and what is known of the way.

    It can be solved again with another strength of the penalty, from where the last one ended.

    Parameters
    ----------
    problem : Problem
        Of a path, with the greatest penalty.
    settings : Settings
    plan : Plan, optional
        Another way than the one of the problem's size.
    """

    def __init__(self, problem: Problem, settings: Settings, plan: Plan | None = None) -> None:
        self._began = time.perf_counter()
        self._problem = problem = dense_if_small(problem)
        self._settings = settings
        n, p = problem.features.shape
        self._workers = Workers(n * p)
        self._rng = np.random.default_rng(settings.seed)
        self._prepared: tuple[Objective, Sample] | None = None
        self.plan = plan or choose(problem, settings)

    @contextmanager
    def running(self) -> Iterator[Workers]:
        """Have the threads while the block runs."""
        with self._workers.running():
            yield self._workers

    def prepare(self) -> tuple[Objective, Sample]:
        """Draw the sample and take the coordinates from it, once."""
        if self._prepared is None:
            self._prepared = prepare(
                self._problem,
                self._workers,
                self.plan.sample_size,
                self._rng,
                precise=self._settings.is_precise,
                keeps_sparse=self.plan.keeps_sparse,
            )
        return self._prepared

    def solve(
        self,
        start: tuple[NumPyArray, NumPyArray] | None = None,
        l2: float | None = None,
        l1: float = 0.0,
    ) -> Solution:
        """Minimise the objective, with other penalties if they are given."""
        objective, sample = self.prepare()
        if l2 is not None:
            self._began = time.perf_counter()
            scaling = objective.scaling
            penalty = penalty_of(scaling, l2, self._problem.fit_intercept)
            objective = replace(objective, penalty=penalty, l1=l1_of(scaling, l1))
            sample = replace(sample, penalty=penalty)
        first, null = objective.null()
        if start is not None:
            given = objective.scaling.from_user(*start).reshape(first.shape)
            first = given if objective.snapshot(given).objective < null else first
        run = _Run(objective, null, self._settings, self._began)
        return run.follow(self.plan, self.plan.method(objective, sample, first, self._rng))


class _Run:
    def __init__(self, objective: Objective, null: float, settings: Settings, began: float) -> None:
        self._objective = objective
        self._null = null
        self._settings = settings
        self._began = began
        self._history: list[Record] = []
        self._best: State | None = None
        self._gap = float("inf")
        self._for_the_proof = 0

    def follow(self, plan: Plan, states: Iterator[State]) -> Solution:
        try:
            reason = self._follow(states, plan.is_cheap)
        except KeyboardInterrupt:
            if self._best is None:
                raise
            reason = StopReason.INTERRUPTED
        best = self._best
        assert best is not None
        if reason is StopReason.STALLED and best.decrement <= self._rounding():
            reason = StopReason.ROUNDING
        weights, intercept = self._objective.scaling.to_user(best.theta)
        scores, order = best.snapshot.scores, best.objective.order
        if order is not None:
            scores = np.empty_like(scores)
            scores[order] = best.snapshot.scores
        return Solution(
            coef=weights.reshape(len(weights), -1),
            intercept=np.atleast_1d(intercept),
            objective=best.snapshot.objective,
            gap=self._gap,
            decrement=best.decrement,
            history=self._history,
            reason=reason,
            method=plan.name,
            why=plan.why,
            scores=scores.reshape(len(scores), -1),
        )

    def _follow(self, states: Iterator[State], is_cheap: bool) -> StopReason:
        settings = self._settings
        for state in states:
            self._add(state)
            if self._separated(state):
                return StopReason.UNBOUNDED
            if self._near_enough(is_cheap):
                return StopReason.CONVERGED
            out_of_time = settings.max_time is not None and self._seconds() >= settings.max_time
            if len(self._history) > settings.max_iter or out_of_time:
                if self._near_enough(is_cheap=False):
                    return StopReason.CONVERGED
                return StopReason.MAX_TIME if out_of_time else StopReason.MAX_ITER
        return StopReason.STALLED

    def _seconds(self) -> float:
        return time.perf_counter() - self._began

    def _add(self, state: State) -> None:
        snapshot = state.snapshot
        if not np.isfinite(snapshot.objective):
            raise FloatingPointError(
                f"the objective is {snapshot.objective}, snapshot {len(self._history)}: a value of "
                "a feature is so far from the others that products overflow; look for a wrong one"
            )
        gap = duality_gap(state.objective, snapshot)
        if (
            self._best is None
            or self._is_better(snapshot, self._best.snapshot)
            or self._is_as_good(state, gap)
        ):
            self._best = state
            self._gap = gap
        record = Record(
            iteration=len(self._history),
            passes=state.passes,
            seconds=self._seconds(),
            objective=snapshot.objective,
            gap=gap,
            decrement=state.decrement,
        )
        self._history.append(record)
        if self._settings.watch is not None:
            self._settings.watch(record)

    @staticmethod
    def _is_better(new: Snapshot, best: Snapshot) -> bool:
        """Whether it is lower; what was computed in float64 goes before what was in float32."""
        if new.scores.dtype != best.scores.dtype:
            return new.scores.dtype == np.float64
        return new.objective <= best.objective

    def _is_as_good(self, state: State, gap: float) -> bool:
        """Whether with corners in the penalty a point is nearer by proof, and no higher.

        There the proof is linear in what the coefficients are off, and the objective quadratic.
        """
        assert self._best is not None
        allowed = self._best.snapshot.objective + self._rounding()
        is_no_higher = state.snapshot.objective <= allowed
        return state.objective.l1 is not None and is_no_higher and gap < self._gap

    def _rounding(self) -> float:
        assert self._best is not None
        # In float32 nothing is called rounding: the methods go on in float64 then.
        if self._best.snapshot.scores.dtype == np.float32:
            return 0.0
        return ROUNDING * abs(self._best.snapshot.objective) + sys.float_info.min

    def _near_enough(self, is_cheap: bool) -> bool:
        """Whether the optimum is near by proof, or by the estimate where a proof would cost more.

        The proof divides the gradient by the penalty: where that is tiny, it comes last.
        """
        assert self._best is not None
        gained = self._null - self._best.snapshot.objective
        enough = self._settings.tol * gained
        if self._gap <= max(enough, self._rounding()):
            return True
        if self._best.decrement > max(enough / 10, self._rounding()):
            return False
        self._for_the_proof += 1
        return not is_cheap or self._for_the_proof > _FOR_THE_PROOF

    def _separated(self, state: State) -> bool:
        """Whether without a penalty each sample is on its own side: the loss has no minimum."""
        objective, scores = state.objective, state.snapshot.scores
        if objective.l1 is not None:
            return False
        if objective.penalty[:-1].max(initial=0) > 0 and self._penalised():
            return False
        if not isinstance(objective.loss, Logistic | Softmax):
            return False
        return all(
            _on_their_side(scores[part], objective.target[part])[objective.share[part] > 0].all()
            for part in objective.parts()
        )

    def _penalised(self) -> bool:
        used = self._objective.scaling.inverse > 0
        return bool(self._objective.penalty[:-1][used].max(initial=0) > 0)


def _on_their_side(scores: NumPyArray, target: NumPyArray) -> NumPyArray:
    """Return for each sample whether its own class has the greatest score."""
    if scores.ndim == 1:
        return np.asarray(np.where(target > 0, scores, -scores) > 0)
    rows = np.arange(len(scores))
    own = scores[rows, target]
    others = scores.copy()
    others[rows, target] = -np.inf
    return np.asarray(own > others.max(axis=1))
