"""The settings and the result of the solver, and the reasons why a fit ends."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from provenglm import constants
from provenglm.types import NumPyArray


class StopReason(Enum):
    """The reason why a fit ended; the value is the text that users see."""

    CONVERGED = "the optimum is as near as tol asks"
    ESTIMATED = "an estimate says that the optimum is as near as tol asks"
    ROUNDING = "no step leads lower: an estimate says that what is left is rounding"
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
        """Whether the fit ends without a warning."""
        return self in (StopReason.CONVERGED, StopReason.ESTIMATED, StopReason.ROUNDING)

    @property
    def is_cut_off(self) -> bool:
        """Whether a limit or Ctrl-C ended the fit."""
        return self in (StopReason.MAX_ITER, StopReason.MAX_TIME, StopReason.INTERRUPTED)

    @property
    def is_unbounded(self) -> bool:
        """Whether the objective has an infimum, but no minimum."""
        return self.name.startswith("UNBOUNDED")

    @property
    def why_unbounded(self) -> str:
        """The part of the text that says why there is no minimum."""
        return self.value.partition(": ")[2]


ROUNDING = 1e-14
"""Smaller distances, relative to the objective, are rounding."""

MOST_UNPROVEN = 100
"""An estimate is believed if the bound is at most this many times what `tol` asks. If the estimate
is right, the bound is seldom more than ten times the distance."""


def judged(
    reason: StopReason,
    gap: float,
    decrement: float,
    required_gap: float,
    rounding: float,
    change: float = 0.0,
) -> StopReason:
    """Return the final reason why a fit ended, which decides whether it is a success.

    An estimate alone is no success: if the bound is far above it, it may be wrong.

    Parameters
    ----------
    reason : StopReason
        The reason why the loop ended: `ESTIMATED` if the estimate reached `tol`, `STALLED` if no
        step decreased the objective.
    gap : float
        The proven distance to the optimum.
    decrement : float
        The estimated distance to the optimum.
    required_gap : float
        The distance that `tol` asks for.
    rounding : float
        The distance below which everything is rounding.
    change : float
        The increase of the objective by the conversion to the user's coefficients; see `returned`.
    """
    if reason.is_unbounded or reason is StopReason.INTERRUPTED:
        return reason
    if gap <= max(required_gap, rounding):
        return StopReason.CONVERGED
    if reason is StopReason.STALLED and decrement <= max(constants.MARGIN * required_gap, rounding):
        reason = StopReason.ESTIMATED
    if reason is not StopReason.ESTIMATED:
        return reason
    if change > max(required_gap, rounding) / 2:
        return StopReason.ROUNDED
    if not gap <= MOST_UNPROVEN * max(required_gap, rounding):  # nor if it is NaN
        return StopReason.UNPROVEN
    return StopReason.ROUNDING if decrement <= rounding else StopReason.ESTIMATED


_LEAST_TOL_OF_FLOAT32 = 1e-8
"""In float32 the objective has a relative error of about 1e-9."""


@dataclass(frozen=True)
class Record:
    """One snapshot of a fit.

    Attributes
    ----------
    iteration : int
        Number of the snapshot; 0 is the start.
    passes : float
        Passes over the rows so far; a part of the rows counts as a fraction.
    seconds : float
        Time since the beginning of the fit, including checks and preparation. In the last record it
        includes the proof.
    objective : float
        The objective.
    gap : float
        Proven bound: the objective is at most this far above the optimum.
    decrement : float
        Estimate of this distance: half the squared Newton decrement in the solver's metric.
    """

    iteration: int
    passes: float
    seconds: float
    objective: float
    gap: float
    decrement: float


@dataclass(frozen=True)
class Settings:
    """Settings of the solver.

    Attributes
    ----------
    tol : float
        The fit ends when the gap is at most `tol` times the improvement over the objective of the
        null model, or when the decrement is at most `constants.MARGIN` times that.
    max_iter : int
        Maximum number of snapshots after the start.
    max_time : float, optional
        Maximum time in seconds, checked once per snapshot.
    began : float, optional
        Start of the fit, a value of `time.perf_counter`, from which seconds count. By default it is
        the start of the preparation.
    deadline : float
        End of the fit, a value of `time.perf_counter`, for several fits together.
    method : str, optional
        Name of the method to use, whatever it costs; for tests.
    seed : int
        Seed for samples and for the order of rows.
    watch : callable, optional
        A function that is called with each `Record`.
    notice : callable, optional
        A function that is called with a text before long work without a record.
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
        """Whether `tol` is too small for float32."""
        return self.tol < _LEAST_TOL_OF_FLOAT32


@dataclass(frozen=True)
class Solution:
    """The best point of a fit.

    Attributes
    ----------
    coef : numpy.ndarray, (p, K)
        Coefficients in float64, in the units of the user's features. K is 1 except for softmax.
    intercept : numpy.ndarray, (K,)
        Intercepts.
    objective, gap, decrement : float
        Values at this point; see `Record`.
    history : list of Record
        All snapshots.
    reason : StopReason
        The reason why the fit ended.
    method, why : str
        The method that was used, and the text that says why.
    scores : numpy.ndarray, (n, K), optional
        Scores at the solver's point.
    step : numpy.ndarray, (K,)
        The change of all scores by rounding the intercepts.
    score_error : float
        A bound of the root mean square of the scores' rounding errors in float64.
    culprit : tuple of int and float, optional
        The column that `reason` is about, and its mean in units of its standard deviation.
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
    scores: NumPyArray | None
    step: NumPyArray
    score_error: float
    culprit: tuple[int, float] | None = None
