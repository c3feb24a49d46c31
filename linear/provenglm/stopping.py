"""Decide when a run ends: its best point, the proof of that point, and the reason to stop."""

from __future__ import annotations

import math
import sys
import time
from dataclasses import dataclass, replace

import numpy as np

from provenglm import constants
from provenglm.methods.base import Method
from provenglm.model.least_norm import least_norm
from provenglm.model.null_model import size_of_scores
from provenglm.model.objective import Objective, Snapshot, misplaced
from provenglm.model.returned import Returned, returned
from provenglm.model.solution import ROUNDING, Record, Settings, Solution, StopReason, judged
from provenglm.proof.duality import known_bound
from provenglm.proof.prover import Prover
from provenglm.proof.separation import are_quasi_separated
from provenglm.types import NumPyArray

_FLOAT32_ERROR = 1e-3
"""The relative error of an objective with scores in float32 was never larger than this."""

_ROUNDING_OF_SCORES = 1e-5
"""If float32 scores have a larger rounding error than this, a point that seems near enough is
evaluated again in float64. A smaller error changes a gap by at most half of its square, which is
less than the rounding error of the sums over rows."""

_CHEAP_STEPS = 3
"""A method with cheap steps takes this many more steps after the estimate is small enough, before a
proof is tried: a proof costs more than a few such steps."""

_MOST_PROOFS = 3
"""The largest number of proofs by a Newton step, each with more rows than the one before. If none
is enough, the estimate ends the run."""

_MAX_ESTIMATE_ERROR = 10
"""The distance of a point to the infimum is assumed to be at most this many times the larger of the
required distance and the estimate."""


_RISE = 1e-3
"""A rise of the objective by less than this part of a point's proven distance may be rounding."""


@dataclass(frozen=True)
class Best:
    """A point of a run, with its estimated and proven distance to the optimum."""

    method: Method
    snapshot: Snapshot
    gap: float
    decrement: float

    @property
    def theta(self) -> NumPyArray:
        """The coefficients in the coordinates of the problem's objective."""
        return self.method.back(self.snapshot.theta)


def is_as_low(new: Snapshot, gap: float, old: Snapshot) -> bool:
    """Whether a point is not higher than another one, up to rounding.

    The rounding error of an objective is not known if the scores are large: losses near 0 then have
    few digits. So a rise is taken for rounding as long as it is small beside the bound.

    Parameters
    ----------
    gap : float
        The bound of the new point's distance to the optimum.
    """
    allowed = max(ROUNDING * abs(old.objective), _RISE * gap)
    return new.objective <= old.objective + allowed


class Stopping:
    """Keep the best point of a run, and decide when the run ends.

    A run ends if the duality gap, or the bound by a Newton step on some rows, is small enough. If
    neither bound can become small enough, an estimate of the distance ends the run.

    Parameters
    ----------
    objective : Objective
        The problem's objective on the original rows.
    null : float
        The objective of the null model.
    proof : Prover
    settings : Settings
    began : float
        Start of the fit, a value of `time.perf_counter`.
    """

    best: Best

    def __init__(
        self, objective: Objective, null: float, proof: Prover, settings: Settings, began: float
    ) -> None:
        self._objective = objective
        self._null = null
        self._settings = settings
        self._began = began
        self._history: list[Record] = []
        self._proof = proof
        self._for_the_proof = self._tries = 0
        self._margin = constants.MARGIN
        self._proven: tuple[Best, float, float] | None = None
        self._user: tuple[Best, Returned] | None = None
        left_out = objective.left_out
        self.leaves_out = (
            left_out is not None and len(left_out) > 0 and not self._objective.is_penalised
        )

    @property
    def has_points(self) -> bool:
        """Whether there is a best point."""
        return len(self._history) > 0

    def add(self, method: Method, point: Snapshot, gap: float, decrement: float) -> None:
        """Record a point, and keep it if it is the best one so far."""
        if not np.isfinite(point.objective):
            raise FloatingPointError(
                f"the objective is {point.objective} in snapshot {len(self._history)}"
            )
        if (
            not self._history
            or self._is_better(point, self.best.snapshot)
            or self._is_as_good(point, gap)
        ):
            self.best = Best(method, point, gap, decrement)
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
        """Whether `new` is lower. A value in float64 is preferred to a value in float32.

        It is not preferred to a much lower value, because a method in float32 may start from a
        point in float64. A point with derived scores is replaced by its own evaluation in float64.
        """
        if best.is_derived and new.theta is best.theta:
            return True
        if new.is_single == best.is_single:
            return new.objective <= best.objective
        lower = best.objective - _FLOAT32_ERROR * abs(best.objective)
        return best.is_single or new.objective < lower

    def _is_as_good(self, point: Snapshot, gap: float) -> bool:
        """Whether, with an L1 penalty, a point has a smaller gap and is not higher.

        The proof is then linear in the error of the coefficients, and the objective quadratic.
        """
        best = self.best
        is_nearer = gap < best.gap and is_as_low(point, gap, best.snapshot)
        return self._objective.l1 is not None and is_nearer

    # The rule.

    def reason(self, method: Method, point: Snapshot) -> StopReason | None:
        """Return why the run ends at the point that was just added, or None."""
        if self._separated(point):
            return StopReason.UNBOUNDED
        if self._near_enough(method.has_cheap_steps):
            return StopReason.ESTIMATED
        if self._objective.is_late:
            return StopReason.MAX_TIME
        if len(self._history) > self._settings.max_iter:
            is_near = self._near_enough(has_cheap_steps=False)
            return StopReason.ESTIMATED if is_near else StopReason.MAX_ITER
        return None

    def _near_enough(self, has_cheap_steps: bool) -> bool:
        """Whether a bound is small enough, or the estimate if no bound can become small enough.

        The run continues as long as a bound can still become small enough. This is the case if the
        estimate is above rounding and there is a penalty (the duality gap falls with the gradient)
        or a factor for another proof by a Newton step.
        """
        best = self.best
        required_gap = self._required_gap()
        if best.gap <= max(required_gap, self._rounding()):
            return True
        if best.decrement > max(required_gap, self._rounding()):
            return False
        margin = self._margin
        if self._tries == 0 and not has_cheap_steps:
            margin = max(margin, self._proof.provable_fraction(best.snapshot))
        if best.decrement > max(margin * required_gap, self._rounding()):
            return False
        self._for_the_proof += 1
        if has_cheap_steps and self._for_the_proof <= _CHEAP_STEPS:
            return False
        self._tries += 1
        gap = self._proof.expected(best.snapshot, best.decrement)
        if gap <= required_gap:
            gap = self._least_bound(best)[1]
        is_rounding = best.decrement <= self._rounding()
        has_steps = self._proof.has_factor and self._tries < _MOST_PROOFS
        if gap <= required_gap or is_rounding or not (has_steps or self._objective.is_penalised):
            return True
        # The bound is proportional to the estimate and falls with the number of rows. Try the next
        # proof when the estimate is a quarter of this one.
        self._margin = best.decrement / required_gap / 4
        return False

    def is_proven_roughly(self) -> bool:
        """Whether the best point is near enough, but its scores are too imprecise for a proof."""
        best = self.best
        if self._least_bound(best, may_prove=False)[1] > max(
            self._required_gap(), self._rounding()
        ):
            return False
        # The trivial bound has the error of the objective itself, not its square.
        is_trivial = best.gap >= known_bound(best.method.objective, best.snapshot)
        return self.has_rough_scores() or (best.snapshot.is_single and is_trivial)

    def has_rough_scores(self) -> bool:
        """Whether the best point's scores are derived, or float32 is too imprecise for them.

        A score has a rounding error of about 2^-24 times the sizes of its terms. If scores are
        logarithms, this error is compared with 1, otherwise with the root mean square of the
        residuals.
        """
        best = self.best
        if best.snapshot.is_derived:
            return True
        if not best.snapshot.is_single:
            return False
        loss, scaling = self._objective.loss, self._objective.scaling
        weights, intercept = self._user_coefficients(best)[:2]
        table = self._objective.table
        beside = size_of_scores(table, intercept) if table.has_offset else intercept
        terms = np.square(scaling.size()) @ np.square(weights) + np.square(beside)
        size = np.sqrt(terms.max())
        unit = 1.0
        if not (loss.has_classes or loss.has_logarithm):
            unit = math.sqrt(2 * max(best.snapshot.objective, 0.0))
        return bool(2.0**-24 * size > _ROUNDING_OF_SCORES * unit)

    def _least_bound(self, best: Best, may_prove: bool = True) -> tuple[float, float]:
        """Return the objective of the user's coefficients, and its smallest bound.

        The bound by a Newton step is computed only if the duality gap is not small enough, and not
        after `max_time`.
        """
        user, required_gap = (
            self._user_coefficients(best),
            max(self._required_gap(), self._rounding()),
        )
        objective, bound = best.snapshot.objective + user.change, max(best.gap + user.change, 0.0)
        if bound <= required_gap:
            return objective, bound
        if self._proven is None or self._proven[0] is not best:
            if not may_prove or self._objective.is_late:
                return objective, bound
            self._notice("proving the distance to the optimum")
            proof = self._proof.of(
                user.coef, user.intercept, best.snapshot, best.decrement, required_gap
            )
            self._proven = best, *proof
        _, precise, gap = self._proven
        if best.snapshot.is_single and np.isfinite(precise):
            # The bound is the objective minus a lower bound of the optimum, and the objective
            # computed in float32 may be too low.
            objective, bound = precise, bound + max(precise - objective, 0.0)
        return (precise, gap) if gap < bound else (objective, bound)

    # The end.

    def shorten(self, precise: Objective) -> None:
        """Replace the best point by the coefficients of least norm with the same scores.

        Parameters
        ----------
        precise : Objective
            The objective in float64.
        """
        best = self.best
        # A method with coordinates of its own, in the space of the rows, finds the least norm.
        has_own_coordinates = best.theta is not best.snapshot.theta
        if has_own_coordinates or not self._objective.is_penalty_rounded_away:
            return
        theta = least_norm(self._objective, best.theta)
        if theta is None:
            return
        point = precise.snapshot(theta)
        risen = max(point.objective - precise.snapshot(best.theta).objective, 0.0)
        if risen <= max(self._required_gap(), self._rounding()) / 2:
            self.best = Best(best.method, point, best.gap + risen, best.decrement + risen)

    def solution(self, reason: StopReason, why: str) -> Solution:
        """Return the best point, and whether it is as near to the optimum as required.

        Parameters
        ----------
        reason : StopReason
            The reason to stop.
        why : str
            The reason for choosing the method.
        """
        best, has_time = self.best, reason is not StopReason.INTERRUPTED
        has_time = has_time and not self._objective.is_late
        user, required_gap, rounding = (
            self._user_coefficients(best),
            self._required_gap(),
            self._rounding(),
        )
        objective, gap = self._least_bound(best, has_time)
        # A proof by a Newton step also proves that a minimum exists; the duality gap does not.
        is_by_a_step = self._proven is not None and gap == self._proven[2]
        decrement = min(best.decrement + max(user.change, 0.0), gap)
        reason = judged(reason, gap, best.decrement, required_gap, rounding, user.change)
        if self._objective.is_late and not reason.is_success:
            reason = StopReason.MAX_TIME
        is_minimum = reason is StopReason.CONVERGED and is_by_a_step
        has_ended = not (reason.is_cut_off or reason.is_unbounded)
        if has_ended and not is_minimum and self._quasi_separated(best):
            has_classes = self._objective.loss.is_separable
            reason = StopReason.UNBOUNDED_IN_PART if has_classes else StopReason.UNBOUNDED_AT_ZERO
        if self.leaves_out and reason in (StopReason.ESTIMATED, StopReason.UNPROVEN):
            reason = StopReason.LEFT_OUT
        last = self._history[-1]
        if (last.objective, last.gap, last.decrement) != (objective, gap, decrement):
            self._history[-1] = replace(
                last, seconds=self._seconds(), objective=objective, gap=gap, decrement=decrement
            )
        kept = best.snapshot.kept
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
            scores=None if kept is None else kept.scores,
            step=user.step,
            score_error=self._objective.score_error(best.theta),
            culprit=self._culprit(user, reason),
        )

    def _user_coefficients(self, point: Best) -> Returned:
        """Return the user's coefficients at a point."""
        if self._user is None or self._user[0] is not point:
            self._user = point, returned(self._objective, point.snapshot, point.theta)
        return self._user[1]

    def _culprit(self, user: Returned, reason: StopReason) -> tuple[int, float] | None:
        """Return the column that caused a reason, and its mean in standard deviations."""
        scaling, column = self._objective.scaling, None
        if reason is StopReason.LEFT_OUT:
            column = int(np.asarray(self._objective.left_out)[0])
        elif reason is StopReason.ROUNDED:
            sizes = np.abs(user.coef).max(axis=1)
            column = int(np.argmax(np.abs(scaling.center) * sizes))
        if column is None:
            return None
        return column, float(np.abs(scaling.center[column]) * scaling.inverse[column])

    def _required_gap(self) -> float:
        """Return the distance that `tol` requires at the best point."""
        return self._settings.tol * (self._null - self.best.snapshot.objective)

    def _rounding(self) -> float:
        # In float32 no difference counts as rounding, so that the methods continue in float64.
        if self.best.snapshot.is_single:
            return 0.0
        return ROUNDING * abs(self.best.snapshot.objective) + sys.float_info.min

    def _notice(self, text: str) -> None:
        if self._settings.notice is not None:
            self._settings.notice(text)

    def _seconds(self) -> float:
        return time.perf_counter() - self._began

    def _separated(self, point: Snapshot) -> bool:
        """Whether all rows are separated and there is no penalty, so that there is no minimum."""
        objective = self._objective
        loss = objective.loss
        if not loss.is_separable or self._objective.is_penalised:
            return False
        count = point.misplaced
        if count is None:
            count = objective.sum(misplaced, loss, at=point)
        return bool(count == 0)

    def _quasi_separated(self, best: Best) -> bool:
        """Whether, without a penalty, some rows can gain without bound and no other row loses."""
        objective = self._objective
        loss = objective.loss
        if not (loss.is_separable or loss.falls_at_zero) or self._objective.is_penalised:
            return False
        distance = _MAX_ESTIMATE_ERROR * max(self._required_gap(), best.decrement)
        return are_quasi_separated(objective, best.snapshot, distance)
