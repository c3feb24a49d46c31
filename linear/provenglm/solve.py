"""The run: follows a method from snapshot to snapshot until its certificate says enough."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property

import numpy as np

from provenglm import constants
from provenglm.methods.state import State
from provenglm.model.budget import room, rows_of_a_sample
from provenglm.model.null_model import size_of_scores
from provenglm.model.objective import Objective, Scaling, Snapshot
from provenglm.model.problem import Problem
from provenglm.model.returned import Returned, returned
from provenglm.model.sample import Sample
from provenglm.model.sampling import draw, l1_of, penalty_of, prepare
from provenglm.model.solution import ROUNDING, Record, Settings, Solution, StopReason, judged
from provenglm.plan import Plan, choose, dense_if_small
from provenglm.proof.certificate import Certificate, Model, Some
from provenglm.proof.duality import duality_gap, known_bound
from provenglm.proof.separation import are_quasi_separated
from provenglm.types import NumPyArray
from provenglm.workers import Workers

__all__ = ["Record", "Session", "Settings", "Solution", "StopReason", "solve"]


_ROUNDING_OF_FLOAT32 = 1e-9
"""Of the objective: by so much its sums over rows in float32 waver."""

_FAR_OF_FLOAT32 = 1e-3
"""Of the objective: by more its sums of scores in float32 were never off."""

_ROUNDING_OF_SCORES = 1e-5
"""Of scores in float32: with more, a pass in float64 checks whether the optimum is near. With less,
a gap is off by at most half its square, which is below `_ROUNDING_OF_FLOAT32`."""

_FAR_OF_INFIMUM = 10
"""Times what `tol` and the estimate say, a point is above the infimum at most."""


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
        self._began = time.perf_counter() if settings.began is None else settings.began
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
        first, null = objective.null()
        if start is not None:
            given = objective.scaling.from_user(*start).reshape(first.shape)
            first = given if objective.snapshot(given).objective < null else first
        proof = self._proof(sample, l2, l1)
        run = _Run(objective, null, self._settings, self._began, proof)
        return run.follow(self.plan, self.plan.method(objective, sample, first, self._rng))

    def _deadline(self) -> float:
        max_time = self._settings.max_time
        own = math.inf if max_time is None else self._began + max_time
        return min(own, self._settings.deadline)

    def _proof(self, sample: Sample, l2: float | None, l1: float) -> _Proof:
        problem = self._problem
        if l2 is None:
            l2, l1 = problem.l2, problem.l1
        scaling, seed = self.prepare()[0].scaling, self._settings.seed
        return _Proof(lambda: self._certificate, problem, sample, scaling, l2, l1, seed)

    @cached_property
    def _certificate(self) -> Certificate:
        return _certificate_of(self.prepare()[0])


def _certificate_of(objective: Objective) -> Certificate:
    scaling = objective.scaling
    used = scaling.inverse > 0
    return Certificate(
        objective.rows,
        objective.target,
        objective.share,
        objective.loss,
        objective.intercept,
        scaling.center,
        np.divide(1, scaling.inverse, out=np.ones_like(scaling.inverse), where=used),
        objective.workers,
        objective.offset,
    )


def proven(
    problem: Problem,
    objective: Objective,
    sample: Sample,
    snapshot: Snapshot,
    estimate: float,
    settings: Settings,
    enough: float,
) -> float:
    """Return a bound of the distance of one point by a Newton step on some rows, or inf."""
    proof = _Proof(
        lambda: _certificate_of(objective),
        problem,
        sample,
        objective.scaling,
        problem.l2,
        problem.l1,
        settings.seed,
    )
    user = returned(objective, snapshot, snapshot.theta)
    return proof.of(user.coef, user.intercept, snapshot, estimate, enough)[1]


class _Proof:
    """Proofs for the points of one run.

    Parameters
    ----------
    certificate : callable
        Returns the certificate, which is made at the first proof.
    problem : Problem
    sample : Sample
        Whose rows a proof takes, if they are enough.
    scaling : Scaling
        Its coordinates.
    l2, l1 : float
    seed : int
        Of the rows that are drawn.

    Attributes
    ----------
    has_factor : bool
        Whether a Newton step on some rows is affordable: see `certificate`.
    """

    def __init__(
        self,
        certificate: Callable[[], Certificate],
        problem: Problem,
        sample: Sample,
        scaling: Scaling,
        l2: float,
        l1: float,
        seed: int,
    ) -> None:
        self._certificate = certificate
        self._problem = problem
        self._sample, self._scaling = sample, scaling
        self._l2, self._l1 = l2, l1
        self._seed = seed
        outputs = problem.loss.outputs
        n, p = problem.features.shape
        self._width = (p + 1) * outputs
        self._least = max(constants.LEAST_ROWS, constants.ROWS_OF_A_FEATURE * (p + 1))
        most = min(constants.LARGEST_PROOF / self._width**2, constants.SAMPLE_NUMBERS / (p + 1))
        self._most = int(min(n, most, rows_of_a_sample(room(problem), p)))
        # Fewer rows than weights leave directions without a curvature.
        has_rows = self._most >= min(n, 2 * (p + 1))
        self.has_factor = self._width <= constants.MOST_WEIGHTS and has_rows
        self._curvature: float | None = None

    @cached_property
    def _rng(self) -> np.random.Generator:
        return np.random.default_rng([self._seed, 1])

    def expected(self, known: Snapshot, estimate: float) -> float:
        """Return about the bound from as many rows as a proof can have."""
        if not self.has_factor:
            return estimate
        part = self._most / len(self._problem.target)
        return estimate / max(part, self._part(known))

    def of(
        self,
        coef: NumPyArray,
        intercept: NumPyArray,
        known: Snapshot,
        estimate: float,
        enough: float,
    ) -> tuple[float, float]:
        """Return the objective in float64 and a bound of its distance to the optimum, or inf.

        Parameters
        ----------
        known : Snapshot
            Of this point.
        estimate : float
            Of the distance: the fewer rows are enough.
        enough : float
            The bound that is wanted.
        """
        certificate = self._certificate()
        if not np.isfinite(certificate.loss.slope):
            return np.inf, np.inf
        with np.errstate(over="ignore", invalid="ignore"):
            point = certificate.at(Model(coef, intercept, self._l2, self._l1), known)
            if point is None:
                return np.inf, np.inf
            gap = certificate.without_a_step(point, enough)
            if gap > enough and self.has_factor:
                rows = self._some(known, estimate / max(enough, 1e-300))
                gap = min(gap, certificate.by_a_factor(point, rows))
        return point.objective, gap

    def reach(self, known: Snapshot) -> float:
        """Return at which part of what is asked for an estimate is proven by the sample's rows."""
        return self._part(known) / constants.SAFETY

    @cached_property
    def _of_sample(self) -> Some | None:
        """The sample's rows, if they are some of all and in coordinates of a proof."""
        is_some = 0 < len(self._sample.rows) < len(self._problem.target)
        if not (is_some and self.has_factor):
            return None
        return self._certificate().of_sample(self._sample, self._scaling)

    def _part(self, known: Snapshot) -> float:
        """Return the part of all curvature that the sample's rows have, once.

        The bound is about the estimate, divided by it.
        """
        if self._curvature is None:
            self._curvature = 0.0
            if self._of_sample is not None:
                sample = self._sample
                share = self._of_sample.get(slice(0, len(sample.rows)))[2]
                scores = sample.scores(known.theta)
                each = sample.loss.sure_curvature(scores, sample.target).reshape(len(share), -1)
                own, whole = (float((some @ each).sum()) for some in (share, sample.share))
                self._curvature = own / whole if whole > 0 else 0.0
        return self._curvature

    def _some(self, known: Snapshot, near: float) -> Some:
        """Return as many rows as a proof needs, if the estimate is `near` times what is asked."""
        problem, size, part = self._problem, len(self._sample.rows), self._part(known)
        n, wanted = len(problem.target), 2 * near
        is_enough = part > 0 and near <= self.reach(known) and self._least <= size
        if self._of_sample is not None and is_enough:
            count = max(self._least, int(min(1, wanted / part) * size))
            self._least = constants.GROWTH * count
            parts = [slice(p.start, min(p.stop, count)) for p in self._of_sample.parts]
            return self._of_sample._replace(parts=[p for p in parts if p.start < p.stop])
        count = max(self._least, int(min(1, wanted) * n))
        self._least = constants.GROWTH * count
        size = min(count, self._most)
        if size >= n:
            return self._certificate().all()
        rows, _ = draw(
            problem.loss, problem.target, problem.shares(), size, self._rng, problem.is_long
        )
        return self._certificate().some(rows)


class _Run:
    def __init__(
        self, objective: Objective, null: float, settings: Settings, began: float, proof: _Proof
    ) -> None:
        self._objective = objective
        self._null = null
        self._settings = settings
        self._began = began
        self._history: list[Record] = []
        self._best: State | None = None
        self._gap = float("inf")
        self._proof = proof
        self._for_the_proof = self._tries = 0
        self._margin = constants.MARGIN
        self._proven: tuple[State, float, float] | None = None
        self._user: tuple[State, Returned] | None = None
        left_out = objective.left_out
        self._leaves_out = left_out is not None and len(left_out) > 0 and not self._penalised()

    def follow(self, plan: Plan, states: Iterator[State]) -> Solution:
        try:
            reason = self._follow(states)
        except KeyboardInterrupt:
            if self._best is None:
                raise
            reason = StopReason.INTERRUPTED
        has_time = reason is not StopReason.INTERRUPTED and not self._objective.is_late
        if has_time and self._has_rough_scores():
            self._add_in_float64()
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
            method=best.name or plan.name,
            why=plan.why + best.why,
            scores=scores.reshape(len(scores), -1),
            step=user.step,
            culprit=self._culprit(user, reason),
        )

    def _of_user(self, state: State) -> Returned:
        """Return the coefficients that the user gets for a state."""
        if self._user is None or self._user[0] is not state:
            self._user = state, returned(self._objective, state.snapshot, state.theta)
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
        """Whether float32 has too few digits for the scores of the best point.

        Rounding makes an error of about 2^-24 times what the scores are sums of. Losses of scores
        that are logarithms change by about this part; others by this beside the residuals.
        """
        best = self._best
        assert best is not None
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

    def _add_in_float64(self) -> None:
        """Make the best point a snapshot of a pass in float64."""
        best = self._best
        assert best is not None
        rows = self._objective.rows.precise()
        objective = replace(self._objective, rows=rows, moments=None, squares=None)
        snapshot, passes = objective.snapshot(best.theta), objective.passes
        self._add(
            replace(
                best, objective=objective, snapshot=snapshot, passes=passes, back=None, gap=None
            )
        )

    def _least_bound(self, best: State, may_prove: bool = True) -> tuple[float, float]:
        """Return the objective of the user's coefficients and the least bound of their distance.

        Where the duality gap says that the optimum is as near as asked, it is enough. After
        `max_time` it has to be.
        """
        user, enough = self._of_user(best), max(self._enough(), self._rounding())
        objective, bound = best.snapshot.objective + user.change, max(self._gap + user.change, 0.0)
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

    def _follow(self, states: Iterator[State]) -> StopReason:
        try:
            return self._followed(states)
        except FloatingPointError as error:
            if self._best is None:
                raise ValueError(
                    f"{error}: a number of X, y or sample_weight is so far from the others that "
                    "products overflow; look for a wrong one, and divide large ones"
                ) from error
            return StopReason.STALLED

    def _followed(self, states: Iterator[State]) -> StopReason:
        settings = self._settings
        for state in states:
            self._add(state)
            if self._separated(state):
                return StopReason.UNBOUNDED
            if self._near_enough(state.is_cheap):
                return StopReason.ESTIMATED
            if self._objective.is_late:
                return StopReason.MAX_TIME
            if len(self._history) > settings.max_iter:
                is_near = self._near_enough(is_cheap=False)
                return StopReason.ESTIMATED if is_near else StopReason.MAX_ITER
        return StopReason.STALLED

    def _notice(self, text: str) -> None:
        if self._settings.notice is not None:
            self._settings.notice(text)

    def _seconds(self) -> float:
        return time.perf_counter() - self._began

    def _add(self, state: State, is_final: bool = False) -> None:
        """Keep a state, if it is the best one so far or that of the user's coefficients."""
        snapshot = state.snapshot
        if not np.isfinite(snapshot.objective):
            raise FloatingPointError(
                f"the objective is {snapshot.objective} in snapshot {len(self._history)}"
            )
        gap = duality_gap(state.objective, snapshot) if state.gap is None else state.gap
        if self._leaves_out:
            gap = known_bound(state.objective, snapshot)
        if snapshot.is_single:
            gap += _ROUNDING_OF_FLOAT32 * abs(snapshot.objective)
        if (
            is_final
            or self._best is None
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
            decrement=min(state.decrement, gap),
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
        if self._gap <= max(enough, self._rounding()):
            if not self._has_rough_scores():
                return True
            self._add_in_float64()
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

    def _separated(self, state: State) -> bool:
        """Whether without a penalty each sample is on its own side: the loss has no minimum."""
        objective, scores = state.objective, state.snapshot.scores
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

    def _quasi_separated(self, best: State) -> bool:
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


def _on_their_side(
    scores: NumPyArray, target: NumPyArray, rounding: NumPyArray | float
) -> NumPyArray:
    """Return for each sample whether its class has the greatest score, by more than rounding."""
    if scores.ndim == 1:
        return np.asarray(np.where(target > 0, scores, -scores) > rounding)
    rows = np.arange(len(scores))
    own = scores[rows, target]
    others = scores.copy()
    others[rows, target] = -np.inf
    return np.asarray(own - others.max(axis=1) > rounding)
