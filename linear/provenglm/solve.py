"""The loop of all methods: evaluate, bound, stop, step, search, learn."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from provenglm import constants
from provenglm.methods.base import Method, Step, Target
from provenglm.model.line_search import length_of, slope_at
from provenglm.model.null_model import size_of_scores
from provenglm.model.objective import Objective, Snapshot
from provenglm.model.problem import Problem
from provenglm.model.returned import Returned, returned
from provenglm.model.sample import Sample
from provenglm.model.sampling import l1_of, penalty_of, prepare
from provenglm.model.solution import ROUNDING, Record, Settings, Solution, StopReason, judged
from provenglm.plan import Plan, choose, dense_if_small
from provenglm.proof.certificate import Certificate
from provenglm.proof.duality import duality_gap, known_bound
from provenglm.proof.prover import Prover, certificate_of
from provenglm.proof.separation import are_quasi_separated
from provenglm.types import NumPyArray
from provenglm.workers import Workers

__all__ = ["Record", "Session", "Settings", "Solution", "StopReason", "minimise", "solve"]


_ROUNDING_OF_FLOAT32 = 1e-9
"""Of the objective: its sums over rows in float32 are off by less."""

_FAR_OF_FLOAT32 = 1e-3
"""Of the objective: with scores in float32 it was never off by more."""

_ROUNDING_OF_SCORES = 1e-5
"""Of scores in float32: with more, a pass in float64 checks whether the optimum is near. With less,
a gap is off by at most half its square, which is below `_ROUNDING_OF_FLOAT32`."""

_FAR_OF_INFIMUM = 10
"""A point is above the infimum by at most this many times what `tol` and the estimate say."""

_NEARER = 0.9
"""Of the gap: a step that leaves less, where rounding hides what the objective gains, is taken."""

_NOT_SEEN = 1e-12
"""Of the objective: a step that promises less is judged by the gap alone."""


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


def minimise(method: Method, theta: NumPyArray, enough: float) -> NumPyArray:
    """Return a point whose decrement is at most `enough`, without a proof.

    It may be farther away after `MOST_STEPS` steps, or where no step leads lower.
    """
    point = method.objective.snapshot(method.start(theta))
    for _ in range(constants.MOST_STEPS):
        step = method.step(point, Target(0.0, 0.0, np.inf))
        if step.decrement <= enough or method.objective.is_late:
            break
        new, length = advanced(method, point, step)
        if not new.objective < point.objective:
            break
        method.learn(point, new, length)
        point = new
    return point.theta


def advanced(method: Method, point: Snapshot, step: Step) -> tuple[Snapshot, float]:
    """Return the point after as much of a step as leads lowest, and which part of it that is.

    Where the method does not know the scores along the step, its end is evaluated first: as a rule
    it is taken. The part is 0 where none leads lower, and the point stays.
    """
    objective, length = method.objective, 1.0
    new, along, end = point, step.along, None
    if along is None:
        with np.errstate(over="ignore", invalid="ignore"):
            new = objective.snapshot(point.theta + step.change)
            along = new.scores - point.scores
        is_lower = new.objective < point.objective
        if step.is_whole or step.fall <= _NOT_SEEN * abs(point.objective):
            return new, 1.0
        if np.isnan(new.objective):
            return point, 0.0  # scores overflow: the curvature along the step was rounding
        if new.objective < np.inf:
            end = slope_at(objective, new.gradient, new.theta, step.change)
            # Not if most of the slope is left: where the curvature fades, the step is too short.
            if is_lower and end >= (constants.SLOPE - 1) * step.fall:
                return new, 1.0
    length = length_of(objective, point, step.change, along, step.fall, end)
    if length == 0:
        return point, 0.0
    if length == 1 and new is not point:
        return new, 1.0
    theta = point.theta + length * step.change
    if method.keeps_scores:
        scores = point.scores + length * along
        return replace(objective.at_scores(theta, scores), is_derived=True), length
    return objective.snapshot(theta), length


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
        self._began = time.perf_counter() if settings.began is None else settings.began
        self._problem = problem = dense_if_small(problem)
        self._settings = settings
        n, p = problem.features.shape
        self._workers = Workers(n * p)
        self._rng = np.random.default_rng(settings.seed)
        self._prepared: tuple[Objective, Sample] | None = None
        self._method: Method | None = None
        self.plan = plan or choose(problem, settings.is_precise, only=settings.method)

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
        """Minimise the objective, with other penalties if they are given."""
        objective, sample = self.prepare()
        if l2 is not None:
            self._began = time.perf_counter()
            scaling = objective.scaling
            penalty = penalty_of(scaling, l2, self._problem.fit_intercept)
            objective = replace(objective, penalty=penalty, l1=l1_of(scaling, l1))
            sample = replace(sample, penalty=penalty)
        objective = replace(objective, deadline=self._deadline())
        plan = self.plan
        if l2 is not None:
            plan = plan.with_penalties(l2, l1)

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
        proof = self._proof(sample, l2, l1)
        run = _Run(objective, method, otherwise, proof, self._settings, self._began)
        given = None if start is None else objective.scaling.from_user(*start)
        return run.solution(given, self.plan.why)

    def _deadline(self) -> float:
        max_time = self._settings.max_time
        own = math.inf if max_time is None else self._began + max_time
        return min(own, self._settings.deadline)

    def _proof(self, sample: Sample, l2: float | None, l1: float) -> Prover:
        problem = self._problem
        if l2 is None:
            l2, l1 = problem.l2, problem.l1
        scaling, seed = self.prepare()[0].scaling, self._settings.seed
        return Prover(lambda: self._certificate, problem, sample, scaling, l2, l1, seed)

    @cached_property
    def _certificate(self) -> Certificate:
        return certificate_of(self.prepare()[0])


@dataclass(frozen=True)
class _Point:
    """A point of a run, and what is known of its distance to the optimum."""

    method: Method
    snapshot: Snapshot
    gap: float
    decrement: float

    @property
    def theta(self) -> NumPyArray:
        """The problem's theta."""
        return self.method.back(self.snapshot.theta)


class _Run:
    """One run of the loop.

    Parameters
    ----------
    objective : Objective
        The problem's, with the rows as they are given.
    method : Method
    otherwise : callable
        Returns the method that continues if that gives up.
    proof : Prover
    settings : Settings
    began : float
        A time of `time.perf_counter`, from which seconds count.
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
        self._null_theta, self._null = objective.null()
        self._settings = settings
        self._began = began
        self._history: list[Record] = []
        self._best: _Point | None = None
        self._proof = proof
        self._for_the_proof = self._tries = 0
        self._margin = constants.MARGIN
        self._proven: tuple[_Point, float, float] | None = None
        self._user: tuple[_Point, Returned] | None = None
        self._gap_in_float64 = np.inf
        left_out = objective.left_out
        self._leaves_out = left_out is not None and len(left_out) > 0 and not self._penalised()

    # The loop.

    def _descend(self, given: NumPyArray | None) -> StopReason:
        """Go from point to point until the optimum is near enough; return why there is no next."""
        point = self._first(given)
        gap = self._bound(point)
        while True:
            target = Target(self._settings.tol, self._null - point.objective, gap)
            # From a point that is near enough no step is looked for.
            step = None if gap <= target.enough else self._method.step(point, target)
            self._add(point, gap, gap if step is None else step.decrement)
            reason = self._reason_to_stop(point)
            if reason is not None:
                return reason
            point, gap = self._as_evaluated_last(point, gap)
            if step is None:
                target = target._replace(gap=gap)
                step = self._method.step(point, target)
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
        """Return the first point: where something given or few rows lead, if it is better."""
        method, theta = self._method, self._null_theta
        objective = method.objective
        if given is not None:
            point = objective.snapshot(method.start(given.reshape(theta.shape)))
            if point.objective < self._null:
                return point
        for level, enough in method.levels():
            if objective.is_late:
                break
            theta = minimise(level, theta, enough)
        point = objective.snapshot(method.start(theta))
        if point.objective <= self._null or not point.theta[:-1].any():
            return point
        return objective.snapshot(method.start(self._null_theta))

    def _after(self, point: Snapshot, gap: float, step: Step) -> tuple[Snapshot, float, float]:
        """Return the point after a step, its gap, and which part of the step it is.

        The part is 0 if the point is no nearer to the optimum: neither lower nor, where rounding
        hides what is lower, nearer by proof.
        """
        new, length = advanced(self._method, point, step)
        if length == 0:
            return point, gap, 0.0
        new_gap = self._bound(new)
        rounding = ROUNDING * abs(point.objective)
        gained = point.objective - new.objective
        is_nearer = gained > rounding or (gained >= -rounding and new_gap < _NEARER * gap)
        return new, new_gap, length if is_nearer or step.is_whole else 0.0

    def _bound(self, point: Snapshot) -> float:
        """Return a bound of a point's distance to the optimum."""
        objective = self._method.objective
        if self._leaves_out:
            gap = known_bound(objective, point)
        else:
            gap = duality_gap(objective, point)
            target = Target(self._settings.tol, self._null - point.objective, gap)
            if not gap <= target.enough:
                gap = min(gap, self._method.bound(point, target))
        if point.is_single:
            gap += _ROUNDING_OF_FLOAT32 * abs(point.objective)
        return gap

    def _by_another_method(self, point: Snapshot, gap: float) -> tuple[Snapshot, float]:
        """Go on by another method from the best point so far; return it, and its gap."""
        self._add(point, gap, gap)
        assert self._best is not None
        theta, why = self._best.theta, self._method.gave_up
        self._method = self._otherwise()
        self._method.why = why + self._method.why
        point = self._method.objective.snapshot(self._method.start(theta))
        return point, self._bound(point)

    def _in_float64(self, point: Snapshot, gap: float) -> tuple[Snapshot, float]:
        """Return a point that has been evaluated in float64, and its gap.

        If that happens again before the gap has halved, steps are computed in float64, too.
        """
        if point.is_single or point.is_derived:
            point = self._precise.snapshot(point.theta)
            gap = duality_gap(self._precise, point)
        else:
            self._gap_in_float64 = 0.0
        if self._method.is_single and not gap < self._gap_in_float64 / 2:
            self._method.in_float64()
        self._gap_in_float64 = gap
        return point, gap

    @cached_property
    def _precise(self) -> Objective:
        rows = self._objective.rows.precise()
        return replace(self._objective, rows=rows, moments=None, squares=None)

    def _as_evaluated_last(self, point: Snapshot, gap: float) -> tuple[Snapshot, float]:
        """Return the point, or the same one in float64 if the end of the run was looked for."""
        best = self._best
        if best is None or best.snapshot is point or best.snapshot.theta is not point.theta:
            return point, gap
        return best.snapshot, best.gap

    # The end.

    def solution(self, given: NumPyArray | None, why: str) -> Solution:
        """Return the best point of the run.

        Parameters
        ----------
        given : numpy.ndarray, optional
            Where to begin, if that is better than no coefficients.
        why : str
            The reason for the method.
        """
        try:
            reason = self._descend(given)
        except KeyboardInterrupt:
            if self._best is None:
                raise
            reason = StopReason.INTERRUPTED
        except FloatingPointError as error:
            if self._best is None:
                raise ValueError(
                    f"{error}: a number of X, y or sample_weight is so far from the others that "
                    "products overflow; look for a wrong one, and divide large ones"
                ) from error
            reason = StopReason.STALLED
        has_time = reason is not StopReason.INTERRUPTED and not self._objective.is_late
        if has_time and self._has_rough_scores():
            self._evaluate_best()
        best = self._best
        assert best is not None
        user, enough, rounding = self._of_user(best), self._enough(), self._rounding()
        objective, gap = self._least_bound(best, has_time)
        # A proof by a Newton step is one of a minimum, too; the duality gap is not.
        is_by_a_step = self._proven is not None and gap == self._proven[2]
        decrement = min(best.decrement + max(user.change, 0.0), gap)
        reason = judged(reason, gap, best.decrement, enough, rounding, user.change)
        if self._objective.is_late and not reason.is_success:
            reason = StopReason.MAX_TIME
        is_minimum = reason is StopReason.CONVERGED and is_by_a_step
        has_ended = not (reason.is_cut_off or reason.is_unbounded)
        if has_ended and not is_minimum and self._quasi_separated(best):
            has_classes = self._objective.loss.is_separable
            reason = StopReason.UNBOUNDED_IN_PART if has_classes else StopReason.UNBOUNDED_AT_ZERO
        if self._leaves_out and reason in (StopReason.ESTIMATED, StopReason.UNPROVEN):
            reason = StopReason.LEFT_OUT
        last = self._history[-1]
        if (last.objective, last.gap, last.decrement) != (objective, gap, decrement):
            self._history[-1] = replace(
                last, seconds=self._seconds(), objective=objective, gap=gap, decrement=decrement
            )
        scores = best.snapshot.scores
        return Solution(
            coef=user.coef,
            intercept=user.intercept,
            objective=objective,
            gap=gap,
            decrement=decrement,
            history=self._history,
            reason=reason,
            method=best.method.name,
            why=why + best.method.why,
            scores=scores.reshape(len(scores), -1),
            step=user.step,
            culprit=self._culprit(user, reason),
        )

    def _of_user(self, point: _Point) -> Returned:
        """Return the coefficients that the user gets for a point."""
        if self._user is None or self._user[0] is not point:
            self._user = point, returned(self._objective, point.snapshot, point.theta)
        return self._user[1]

    def _enough(self) -> float:
        """Return what `tol` asks at the best point."""
        assert self._best is not None
        return self._settings.tol * (self._null - self._best.snapshot.objective)

    def _culprit(self, user: Returned, reason: StopReason) -> tuple[int, float] | None:
        """Return the column that a reason is about, and its mean in standard deviations."""
        scaling, column = self._objective.scaling, None
        if reason is StopReason.LEFT_OUT:
            column = int(np.asarray(self._objective.left_out)[0])
        elif reason is StopReason.ROUNDED:
            sizes = np.abs(user.coef).max(axis=1)
            column = int(np.argmax(np.abs(scaling.center) * sizes))
        if column is None:
            return None
        return column, float(np.abs(scaling.center[column]) * scaling.inverse[column])

    def _has_rough_scores(self) -> bool:
        """Whether the scores of the best point are derived, or float32 has too few digits for them.

        Rounding makes an error of about 2^-24 times what the scores are sums of. Losses of scores
        that are logarithms change by about this part; others by this beside the residuals.
        """
        best = self._best
        assert best is not None
        if best.snapshot.is_derived:
            return True
        if not best.snapshot.is_single:
            return False
        loss, scaling = self._objective.loss, self._objective.scaling
        weights, intercept = self._of_user(best)[:2]
        used = scaling.inverse > 0
        squares = np.square(scaling.center[used]) + np.square(1 / scaling.inverse[used])
        offset, share = self._objective.offset, self._objective.share
        beside = intercept if offset is None else size_of_scores(share, offset, intercept)
        size = np.sqrt((squares @ np.square(weights[used]) + np.square(beside)).max())
        unit = 1.0
        if not (loss.has_classes or loss.has_logarithm):
            unit = math.sqrt(2 * max(best.snapshot.objective, 0.0))
        return bool(2.0**-24 * size > _ROUNDING_OF_SCORES * unit)

    def _evaluate_best(self) -> None:
        """Evaluate the best point anew, in float64."""
        best = self._best
        assert best is not None
        point, gap = self._in_float64(best.snapshot, best.gap)
        self._add(point, gap, best.decrement)

    def _least_bound(self, best: _Point, may_prove: bool = True) -> tuple[float, float]:
        """Return the objective of the user's coefficients and the least bound of their distance.

        Where the duality gap says that the optimum is as near as asked, it is enough. After
        `max_time` it has to be.
        """
        user, enough = self._of_user(best), max(self._enough(), self._rounding())
        objective, bound = best.snapshot.objective + user.change, max(best.gap + user.change, 0.0)
        if bound <= enough:
            return objective, bound
        if self._proven is None or self._proven[0] is not best:
            if not may_prove or self._objective.is_late:
                return objective, bound
            self._notice("proving the distance to the optimum")
            proof = self._proof.of(user.coef, user.intercept, best.snapshot, best.decrement, enough)
            self._proven = best, *proof
        _, precise, gap = self._proven
        if best.snapshot.is_single and np.isfinite(precise):
            # The bound is the objective less a lower bound of the optimum, and float32 may have put
            # the objective too low.
            objective, bound = precise, bound + max(precise - objective, 0.0)
        return (precise, gap) if gap < bound else (objective, bound)

    def _reason_to_stop(self, point: Snapshot) -> StopReason | None:
        """Return why the run ends at a point that has been added, or None."""
        if self._separated(point):
            return StopReason.UNBOUNDED
        if self._near_enough(self._method.is_cheap):
            return StopReason.ESTIMATED
        if self._objective.is_late:
            return StopReason.MAX_TIME
        if len(self._history) > self._settings.max_iter:
            is_near = self._near_enough(is_cheap=False)
            return StopReason.ESTIMATED if is_near else StopReason.MAX_ITER
        return None

    def _notice(self, text: str) -> None:
        if self._settings.notice is not None:
            self._settings.notice(text)

    def _seconds(self) -> float:
        return time.perf_counter() - self._began

    def _add(self, point: Snapshot, gap: float, decrement: float) -> None:
        """Keep a point, if it is the best one so far."""
        if not np.isfinite(point.objective):
            raise FloatingPointError(
                f"the objective is {point.objective} in snapshot {len(self._history)}"
            )
        method = self._method
        if (
            self._best is None
            or self._is_better(point, self._best.snapshot)
            or self._is_as_good(point, gap)
        ):
            self._best = _Point(method, point, gap, decrement)
        record = Record(
            iteration=len(self._history),
            passes=method.objective.passes,
            seconds=self._seconds(),
            objective=point.objective,
            gap=gap,
            decrement=min(decrement, gap),
        )
        self._history.append(record)
        if self._settings.watch is not None:
            self._settings.watch(record)

    @staticmethod
    def _is_better(new: Snapshot, best: Snapshot) -> bool:
        """Whether `new` is lower; a value in float64 is preferred to one in float32.

        But not to one that is lower by far: a method in float32 may start from a point in float64.
        """
        if new.is_single == best.is_single:
            return new.objective <= best.objective
        lower = best.objective - _FAR_OF_FLOAT32 * abs(best.objective)
        return best.is_single or new.objective < lower

    def _is_as_good(self, point: Snapshot, gap: float) -> bool:
        """Whether with corners in the penalty a point is nearer by proof, and no higher.

        There the proof is linear in what the coefficients are off, and the objective quadratic.
        """
        assert self._best is not None
        allowed = self._best.snapshot.objective + self._rounding()
        is_no_higher = point.objective <= allowed
        return self._objective.l1 is not None and is_no_higher and gap < self._best.gap

    def _rounding(self) -> float:
        assert self._best is not None
        # In float32 no difference counts as rounding: the methods then continue in float64.
        if self._best.snapshot.is_single:
            return 0.0
        return ROUNDING * abs(self._best.snapshot.objective) + sys.float_info.min

    def _near_enough(self, is_cheap: bool) -> bool:
        """Whether the optimum is near by proof, or by the estimate where nothing more is proven.

        The duality gap divides the gradient by the penalty: where that is tiny, it comes last.
        """
        best = self._best
        assert best is not None
        enough = self._enough()
        if best.gap <= max(enough, self._rounding()):
            if not self._has_rough_scores():
                return True
            self._evaluate_best()
            return self._near_enough(is_cheap)
        if best.decrement > max(enough, self._rounding()):
            return False
        margin = self._margin
        if self._tries == 0 and not is_cheap:
            margin = max(margin, self._proof.reach(best.snapshot))
        if best.decrement > max(margin * enough, self._rounding()):
            return False
        self._for_the_proof += 1
        if is_cheap and self._for_the_proof <= constants.TRIES:
            return False
        self._tries += 1
        gap = self._proof.expected(best.snapshot, best.decrement)
        if gap <= enough:
            gap = self._least_bound(best)[1]
        is_rounding = best.decrement <= self._rounding()
        if (
            gap <= enough
            or is_rounding
            or self._tries >= constants.TRIES
            or not self._proof.has_factor
        ):
            return True
        # The bound falls as the estimate does, and as the rows grow.
        self._margin = best.decrement / enough / constants.GROWTH
        return False

    def _separated(self, point: Snapshot) -> bool:
        """Whether without a penalty each sample is on its own side: the loss has no minimum."""
        objective, scores = self._objective, point.scores
        loss, offset = objective.loss, objective.offset
        if not loss.is_separable or self._penalised():
            return False

        def on_their_side(part: slice) -> NumPyArray:
            # Coefficients separate rows, and offsets do not.
            moved, rounding = scores[part], np.zeros(1)
            if offset is not None:
                sizes = np.abs(moved) + np.abs(offset[part])
                rounding = 8 * np.finfo(moved.dtype).eps * sizes.reshape(len(moved), -1).max(axis=1)
                moved = moved - offset[part]
            side = _on_their_side(moved, loss.observed(objective.target[part]), rounding)
            return side[objective.share[part] > 0]

        return all(on_their_side(part).all() for part in objective.parts())

    def _quasi_separated(self, best: _Point) -> bool:
        """Whether without a penalty some rows gain for ever, and no other row loses."""
        objective = self._objective
        loss = objective.loss
        if not (loss.is_separable or loss.falls_at_zero) or self._penalised():
            return False
        distance = _FAR_OF_INFIMUM * max(self._enough(), best.decrement)
        return are_quasi_separated(objective, best.snapshot.scores, distance)

    def _penalised(self) -> bool:
        if self._objective.l1 is not None:
            return True
        used = self._objective.scaling.inverse > 0
        return bool(self._objective.penalty[:-1][used].max(initial=0) > 0)


def _on_their_side(scores: NumPyArray, target: NumPyArray, rounding: NumPyArray) -> NumPyArray:
    """Return for each sample whether its class has the greatest score, by more than rounding."""
    if scores.ndim == 1:
        return np.asarray(np.where(target > 0, scores, -scores) > rounding)
    rows = np.arange(len(scores))
    own = scores[rows, target]
    others = scores.copy()
    others[rows, target] = -np.inf
    return np.asarray(own - others.max(axis=1) > rounding)
