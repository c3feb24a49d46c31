"""Run the loop that all methods share: evaluate, bound, stop, step, search, learn."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property

import numpy as np

from provenglm import constants
from provenglm.methods.base import Method, Step, Target
from provenglm.model.line_search import length_of, slope_at
from provenglm.model.objective import Objective, Snapshot
from provenglm.model.problem import Problem
from provenglm.model.sample import Sample
from provenglm.model.sampling import l1_of, penalty_of, prepare
from provenglm.model.solution import ROUNDING, Record, Settings, Solution, StopReason
from provenglm.plan import Plan, choose, in_memory_if_small
from provenglm.proof.duality import duality_gap, known_bound
from provenglm.proof.prover import Prover
from provenglm.stopping import Stopping, is_as_low
from provenglm.types import NumPyArray
from provenglm.workers import Workers

__all__ = ["Record", "Session", "Settings", "Solution", "StopReason", "minimise", "solve"]


_ROUNDING_OF_FLOAT32 = 1e-9
"""The relative error of the objective's sums over rows in float32 is below this."""

_NEARER = 0.9
"""If rounding hides the change of the objective, a step is accepted only if the gap becomes smaller
than this fraction of the previous gap."""

_NOT_SEEN = 1e-12
"""No line search is made if a step is predicted to lower the objective by less than this relative
amount. The gap then decides whether the step is accepted."""


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
        Weights (p, K) and intercepts (K,) to start from, if they are better than the null model.

    Returns
    -------
    Solution
        The best point; `reason` says whether it is as near as `tol` requires. Ctrl-C ends the run
        and returns the best point so far.
    """
    session = Session(problem, settings)
    with session.running():
        return session.solve(start)


def minimise(method: Method, theta: NumPyArray, required_decrement: float) -> NumPyArray:
    """Return a point whose decrement is at most `required_decrement`, without a proof.

    The decrement may be larger after `MOST_STEPS` steps, or if no step leads lower.
    """
    point = method.objective.snapshot(method.start(theta))
    for _ in range(constants.MOST_STEPS):
        step = method.step(point, Target(0.0, 0.0, np.inf))
        if step.decrement <= required_decrement or method.objective.is_late:
            break
        new, length = advanced(method, point, step)
        if not new.objective < point.objective:
            break
        method.learn(point, new, length)
        point = new
    return point.theta


def advanced(method: Method, point: Snapshot, step: Step) -> tuple[Snapshot, float]:
    """Return the point after a line search along a step, and the length of the step.

    If the method does not know the scores along the step, the end of the step is evaluated first,
    and is usually accepted. If no length lowers the objective, the same point is returned with the
    length 0.
    """
    objective, length = method.objective, 1.0
    new, along, end = point, step.along, None
    if along is None:
        with np.errstate(over="ignore", invalid="ignore"):
            new = objective.snapshot(point.theta + step.change)
            if new.kept is not None:
                along = new.scores - point.scores
        is_lower = new.objective < point.objective
        if step.is_whole or step.fall <= _NOT_SEEN * abs(point.objective):
            return new, 1.0
        if np.isnan(new.objective):
            return point, 0.0  # scores overflow: the curvature along the step was rounding
        if new.objective < np.inf:
            end = slope_at(objective, new.gradient, new.theta, step.change)
            # If most of the slope is left at the end, the curvature decreases along the step, and
            # the step is too short: search for a longer one.
            if is_lower and end >= (constants.SLOPE - 1) * step.fall:
                return new, 1.0
    length = length_of(objective, point, step.change, along, step.fall, end)
    if length == 0:
        return point, 0.0
    if length == 1 and new is not point:
        return new, 1.0
    theta = point.theta + length * step.change
    if method.keeps_scores and along is not None:
        scores = point.scores + length * along
        return replace(objective.at_scores(theta, scores), is_derived=True), length
    return objective.snapshot(theta), length


class Session:
    """A problem that is prepared once and can be solved for several penalties.

    Coordinates, sample and method are kept; each solve can start from the last solution.

    Parameters
    ----------
    problem : Problem
        The problem. For a path, its penalty is the largest one of the path.
    settings : Settings
    plan : Plan, optional
        The plan to use instead of the one that `choose` returns.
    """

    def __init__(self, problem: Problem, settings: Settings, plan: Plan | None = None) -> None:
        self._began = time.perf_counter() if settings.began is None else settings.began
        self._problem = problem = in_memory_if_small(problem)
        self._settings = settings
        n, p = problem.features.shape
        self._workers = Workers(n * p)
        self._rng = np.random.default_rng(settings.seed)
        self._prepared: tuple[Objective, Sample] | None = None
        self._method: Method | None = None
        self.plan = plan or choose(problem, settings.is_precise, only=settings.method)

    @contextmanager
    def running(self) -> Iterator[Workers]:
        """Start the threads, and stop them after the block."""
        with self._workers.running():
            yield self._workers

    def prepare(self) -> tuple[Objective, Sample]:
        """Draw the sample and compute the coordinates from it. The result is cached."""
        if self._prepared is None:
            self._prepared = prepare(
                self._problem,
                self._workers,
                self.plan.sample_size,
                self._rng,
                precise=self._settings.is_precise,
                keeps_sparse=self.plan.row.keeps_sparse,
                measures_alone=self.plan.measures_alone,
            )
        return self._prepared

    def solve(
        self,
        start: tuple[NumPyArray, NumPyArray] | None = None,
        l2: float | None = None,
        l1: float = 0.0,
    ) -> Solution:
        """Minimise the objective.

        Parameters
        ----------
        start : tuple of numpy.ndarray, optional
            Weights (p, K) and intercepts (K,) to start from.
        l2, l1 : float
            Penalties that replace those of the problem. Without `l2`, `l1` is ignored.
        """
        objective, sample = self.prepare()
        if l2 is not None:
            self._began = time.perf_counter()
            scaling = objective.scaling
            penalty = penalty_of(scaling, l2, self._problem.fit_intercept)
            objective = replace(objective, penalty=penalty, l1=l1_of(scaling, l1))
            sample = replace(sample, penalty=penalty)
        objective = replace(objective, deadline=self._deadline())
        plan = self.plan
        if l2 is None:
            l2, l1 = self._problem.l2, self._problem.l1
        else:
            plan = plan.with_penalties(l2, l1)
        self._proof.begin(l2, l1)

        def made(last: Method | None) -> Method:
            nonlocal plan
            method = plan.make(objective, sample, self._rng, last)
            while method.gave_up:
                plan, why = plan.without(plan.name), method.gave_up
                method = plan.make(objective, sample, self._rng, None)
                method.why = why
            return method

        def otherwise() -> Method:
            nonlocal plan
            plan = plan.without(plan.name)
            return made(None)

        self._method = method = made(self._method)
        run = _Run(objective, method, otherwise, self._proof, self._settings, self._began)
        given = None if start is None else objective.scaling.from_user(*start)
        return run.solution(given, self.plan.why)

    def _deadline(self) -> float:
        max_time = self._settings.max_time
        own = math.inf if max_time is None else self._began + max_time
        return min(own, self._settings.deadline)

    @cached_property
    def _proof(self) -> Prover:
        return Prover(self._problem, *self.prepare(), self._settings.seed)


class _Run:
    """One run of the loop.

    Parameters
    ----------
    objective : Objective
        The problem's objective on the original rows.
    method : Method
    otherwise : callable
        A function that returns another method after the current one has given up.
    proof : Prover
    settings : Settings
    began : float
        Start of the fit, a value of `time.perf_counter`.
    """

    def __init__(
        self,
        objective: Objective,
        method: Method,
        otherwise: Callable[[], Method],
        proof: Prover,
        settings: Settings,
        began: float,
    ) -> None:
        self._objective = objective
        self._method, self._otherwise = method, otherwise
        self._tol = settings.tol
        self._null_theta, self._null = objective.null()
        self._stopping = Stopping(objective, self._null, proof, settings, began)
        self._last_gap_in_float64 = np.inf

    def solution(self, given: NumPyArray | None, why: str) -> Solution:
        """Return the best point of the run.

        Parameters
        ----------
        given : numpy.ndarray, optional
            A start, used if it is better than the null model.
        why : str
            The reason for choosing the method.
        """
        stopping = self._stopping
        try:
            reason = self._descend(given)
        except KeyboardInterrupt:
            if not stopping.has_points:
                raise
            reason = StopReason.INTERRUPTED
        except FloatingPointError as error:
            if not stopping.has_points:
                raise ValueError(
                    f"{error}: a number of X, y or sample_weight is so far from the others that "
                    "products overflow; look for a wrong one, and divide large ones"
                ) from error
            reason = StopReason.STALLED
        has_time = reason is not StopReason.INTERRUPTED and not self._objective.is_late
        if has_time and stopping.has_rough_scores():
            best = stopping.best
            stopping.add(self._method, *self._in_float64(best.snapshot, best.gap), best.decrement)
        if has_time and not (reason.is_cut_off or reason.is_unbounded):
            stopping.shorten(self._precise)
        return stopping.solution(reason, why)

    def _descend(self, given: NumPyArray | None) -> StopReason:
        """Step until the optimum is near enough or no step helps; return the reason to stop."""
        stopping = self._stopping
        point = self._first(given)
        gap = self._bound(point)
        while True:
            target = Target(self._tol, self._null - point.objective, gap)
            # A point that is near enough needs no further step.
            step = None if gap <= target.required_gap else self._method.step(point, target)
            stopping.add(self._method, point, gap, gap if step is None else step.decrement)
            if stopping.is_proven_roughly():
                point, gap = self._in_float64(stopping.best.snapshot, stopping.best.gap)
                continue
            reason = stopping.reason(self._method, point)
            if reason is not None:
                return reason
            step = step or self._method.step(point, target)
            new, new_gap, length = self._after(point, gap, step)
            if length == 0 and self._method.forget():
                new, new_gap, length = self._after(point, gap, self._method.step(point, target))
            if length > 0:
                self._method.learn(point, new, length)
                point, gap = new, new_gap
            elif self._method.is_single or point.is_derived:
                point, gap = self._in_float64(point, gap)
            elif not self._method.gave_up:
                return StopReason.STALLED
            if self._method.gave_up:
                point, gap = self._by_another_method(point, gap)

    def _first(self, given: NumPyArray | None) -> Snapshot:
        """Return the first point: the given start, the optimum of few rows, or the null model."""
        method, theta = self._method, self._null_theta
        objective = method.objective
        if given is not None:
            point = objective.snapshot(method.start(given))
            if point.objective < self._null:
                return point
        for level, required_decrement in method.levels():
            if objective.is_late:
                break
            theta = minimise(level, theta, required_decrement)
        point = objective.snapshot(method.start(theta))
        if point.objective <= self._null or not point.theta[:-1].any():
            return point
        return objective.snapshot(method.start(self._null_theta))

    def _after(self, point: Snapshot, gap: float, step: Step) -> tuple[Snapshot, float, float]:
        """Return the point after a step, its gap, and the length of the step that was taken.

        The length is 0 if the step is rejected. A step is accepted if it lowers the objective. If
        rounding hides the difference, it is accepted if the gap becomes smaller: see `is_as_low`.
        """
        new, length = advanced(self._method, point, step)
        if length == 0:
            return point, gap, 0.0
        new_gap = self._bound(new)
        rounding = ROUNDING * abs(point.objective)
        is_lower = point.objective - new.objective > rounding
        is_nearer = is_lower or (new_gap < _NEARER * gap and is_as_low(new, new_gap, point))
        return new, new_gap, length if is_nearer or step.is_whole else 0.0

    def _bound(self, point: Snapshot, objective: Objective | None = None) -> float:
        """Return an upper bound of a point's distance to the optimum.

        Parameters
        ----------
        point : Snapshot
        objective : Objective, optional
            The objective that evaluated the point. The default is the method's objective.
        """
        objective = objective or self._method.objective
        if self._stopping.leaves_out:
            gap = known_bound(objective, point)
        else:
            target = Target(self._tol, self._null - point.objective, np.inf)
            # If rows are not in memory, the terms of the scores cost a pass.
            required_gap = target.required_gap if objective.table.is_out_of_core else np.inf
            gap = duality_gap(objective, point, required_gap)
            target = target._replace(gap=gap)
            if not gap <= target.required_gap:
                gap = min(gap, self._method.bound(point, target))
        if point.is_single:
            gap += _ROUNDING_OF_FLOAT32 * abs(point.objective)
        return gap

    def _by_another_method(self, point: Snapshot, gap: float) -> tuple[Snapshot, float]:
        """Change to another method. Return the best point so far and its gap."""
        self._stopping.add(self._method, point, gap, gap)
        theta, why = self._stopping.best.theta, self._method.gave_up
        self._method = self._otherwise()
        self._method.why = why + self._method.why
        point = self._method.objective.snapshot(self._method.start(theta))
        return point, self._bound(point)

    def _in_float64(self, point: Snapshot, gap: float) -> tuple[Snapshot, float]:
        """Return the point evaluated in float64, and its gap.

        If rounding had hidden that the null model is better, that one is returned.
        If this happens again before the gap has halved, steps are computed in float64 as well.
        """
        if point.is_single or point.is_derived:
            point = self._precise.snapshot(point.theta)
            if not point.objective <= self._null:
                point = self._precise.snapshot(self._null_theta)
            gap = self._bound(point, self._precise)
        else:
            self._last_gap_in_float64 = 0.0
        if self._method.is_single and not gap < self._last_gap_in_float64 / 2:
            self._method.in_float64()
        self._last_gap_in_float64 = gap
        return point, gap

    @cached_property
    def _precise(self) -> Objective:
        return replace(self._objective.precise(), moments=None, squares=None)
