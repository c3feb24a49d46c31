"""What is asked of the solver, and what it answers."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from provenglm import constants
from provenglm.types import NumPyArray


class StopReason(Enum):
    """Why the solver ended; the value is the sentence that users see."""

    CONVERGED = "the optimum is as near as tol asks"
    ESTIMATED = "an estimate says that the optimum is as near as tol asks"
    ROUNDING = "no step leads lower: what is left is rounding"
    UNPROVEN = "an estimate says that the optimum is as near as tol asks, but nothing proves it"
    ROUNDED = "coef_ and intercept_ have no more digits"
    MAX_ITER = "max_iter snapshots were taken"
    MAX_TIME = "max_time was over"
    INTERRUPTED = "it was interrupted"
    UNBOUNDED = "there is no finite optimum: the classes can be separated, and nothing is penalised"
    UNBOUNDED_IN_PART = (
        "there is no finite optimum: some rows can be separated at no cost to the others, as by a "
        "column that is not 0 in one class only, and nothing is penalised"
    )
    UNBOUNDED_AT_ZERO = (
        "there is no finite optimum: predictions for some targets of 0 can sink to 0 at no cost to "
        "the others, as by a category whose targets are all 0, and nothing is penalised"
    )
    LEFT_OUT = "a column varies too little for float64, and was left out"
    STALLED = "no step leads lower, and the optimum is further away than rounding explains"

    @property
    def is_success(self) -> bool:
        """Whether there is nothing to warn of."""
        return self in (StopReason.CONVERGED, StopReason.ESTIMATED, StopReason.ROUNDING)

    @property
    def is_cut_off(self) -> bool:
        """Whether the run ended before it had come to an end by itself."""
        return self in (StopReason.MAX_ITER, StopReason.MAX_TIME, StopReason.INTERRUPTED)

    @property
    def is_unbounded(self) -> bool:
        """Whether the objective has an infimum, but no minimum."""
        return self.name.startswith("UNBOUNDED")

    @property
    def why_unbounded(self) -> str:
        """The part of the sentence that says why there is no minimum."""
        return self.value.partition(": ")[2]


ROUNDING = 1e-14
"""Of the objective: a distance below it is rounding."""

MOST_UNPROVEN = 100
"""Times what `tol` asks, up to which a bound is near enough to believe an estimate: the bounds are
seldom more than ten times the distance where the estimate is right."""


def judged(
    reason: StopReason,
    gap: float,
    decrement: float,
    enough: float,
    rounding: float,
    change: float = 0.0,
) -> StopReason:
    """Return why a run has ended, when all is known that is proven: here success is decided.

    An estimate alone is none: if the bound is far above it, it may be wrong.

    Parameters
    ----------
    reason : StopReason
        Why there was no further step: `ESTIMATED` for an estimate, `STALLED` if none leads lower.
    gap : float
        Proven.
    decrement : float
        Estimated.
    enough : float
        What `tol` asks.
    rounding : float
        A distance that is rounding.
    change : float
        What the user's coefficients add to the objective: see `returned`.
    """
    if reason.is_unbounded or reason is StopReason.INTERRUPTED:
        return reason
    if gap <= max(enough, rounding):
        return StopReason.CONVERGED
    if reason is StopReason.STALLED and decrement <= max(constants.MARGIN * enough, rounding):
        reason = StopReason.ESTIMATED
    if reason is not StopReason.ESTIMATED:
        return reason
    if change > max(enough, rounding) / 2:
        return StopReason.ROUNDED
    if not gap <= MOST_UNPROVEN * max(enough, rounding):  # nor if it is NaN
        return StopReason.UNPROVEN
    return StopReason.ROUNDING if decrement <= rounding else StopReason.ESTIMATED


_LEAST_TOL_OF_FLOAT32 = 1e-8
"""The objective in float32 wavers by some 1e-9 of itself."""


@dataclass(frozen=True)
class Record:
    """One snapshot of a run.

    Attributes
    ----------
    iteration : int
        From 0, the start.
    passes : float
        Over the rows, so far; a batch counts by its share.
    seconds : float
        Since the beginning of the fit, with all checks and preparation; those of the last record
        have the proof, too.
    objective : float
    gap : float
        Proven: the objective is at most this far above the optimum. Without a penalty all that is
        known is the least value of the losses.
    decrement : float
        Estimated: half the squared Newton decrement in the solver's metric.
    """

    iteration: int
    passes: float
    seconds: float
    objective: float
    gap: float
    decrement: float


@dataclass(frozen=True)
class Settings:
    """When to stop, and which way to go.

    Attributes
    ----------
    tol : float
        The run ends when the gap is at most `tol` times the distance from the null model's
        objective to the present one, or the decrement a tenth of that.
    max_iter : int
        Snapshots after the start.
    max_time : float, optional
        Seconds; looked at once in each snapshot.
    began : float, optional
        A time of `time.perf_counter`: that of the fit, from which they count; else that of the
        preparation.
    deadline : float
        The end as such a time, for several solutions together.
    method : str, optional
        The name of a method that is taken whatever it costs.
    seed : int
        Of the samples, and of the order of rows.
    watch : callable, optional
        Called with each `Record`.
    notice : callable, optional
        Called with a text before what takes time without a record.
    """

    tol: float = 1e-6
    max_iter: int = 1000
    max_time: float | None = None
    began: float | None = None
    deadline: float = math.inf
    method: str | None = None
    seed: int = 0
    watch: Callable[[Record], None] | None = None
    notice: Callable[[str], None] | None = None

    @property
    def is_precise(self) -> bool:
        """Whether float32 has too few digits for `tol`."""
        return self.tol < _LEAST_TOL_OF_FLOAT32


@dataclass(frozen=True)
class Solution:
    """The best point of a run.

    Attributes
    ----------
    coef : numpy.ndarray, (p, K)
        float64, for the rows as the user has them; K is 1 but for softmax.
    intercept : numpy.ndarray, (K,)
    scores : numpy.ndarray, (n, K)
        Of the solver's point.
    step : numpy.ndarray, (K,)
        What rounding the intercepts adds to all of them.
    culprit : tuple of int and float, optional
        The column that the reason is about, and its mean in units of its standard deviation.
    method, why : str
        Which way was taken, and the sentence that says why.
    """

    coef: NumPyArray
    intercept: NumPyArray
    objective: float
    gap: float
    decrement: float
    history: list[Record]
    reason: StopReason
    method: str
    why: str
    scores: NumPyArray
    step: NumPyArray
    culprit: tuple[int, float] | None = None
