"""What is asked of the solver, and what it answers."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from provenglm.types import NumPyArray


class StopReason(Enum):
    """Why the solver ended; the value is the sentence that users see."""

    CONVERGED = "the optimum is as near as tol asks"
    ROUNDING = "no step leads lower: what is left is rounding"
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
    STALLED = "no step leads lower, and the optimum is further away than rounding explains"

    @property
    def is_success(self) -> bool:
        """Whether there is nothing to warn of."""
        return self in (StopReason.CONVERGED, StopReason.ROUNDING)

    @property
    def is_unbounded(self) -> bool:
        """Whether the objective has an infimum, but no minimum."""
        return self.name.startswith("UNBOUNDED")

    @property
    def why_unbounded(self) -> str:
        """The part of the sentence that says why there is no minimum."""
        return self.value.partition(": ")[2]


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
        Since the beginning, with all preparation.
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
    deadline : float
        The same as a time of `time.perf_counter`, for several solutions together.
    metric : {'auto', 'hessian'}
        All else is 'auto'.
    seed : int
        Of the samples, and of the order of rows.
    watch : callable, optional
        Called with each `Record`.
    """

    tol: float = 1e-6
    max_iter: int = 1000
    max_time: float | None = None
    deadline: float = math.inf
    metric: str = "auto"
    seed: int = 0
    watch: Callable[[Record], None] | None = None

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
