"""What a method is: it proposes steps from point to point, and learns from them.

`solve` owns the loop. It evaluates the points, bounds their distance to the optimum, ends the run,
looks for the length of a step, and goes on in float64 where float32 has no more digits.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from provenglm.model.objective import Objective, Snapshot
from provenglm.types import NumPyArray


class Target(NamedTuple):
    """What is wanted of a step.

    Attributes
    ----------
    tol : float
        The distance to the optimum that is near enough, as a part of what is gained by then.
    gained : float
        The objective of the null model less that of the point.
    gap : float
        A bound of the point's distance to the optimum.
    """

    tol: float
    gained: float
    gap: float

    @property
    def enough(self) -> float:
        """The distance to the optimum that is near enough."""
        return self.tol * self.gained


class Step(NamedTuple):
    """A step from a point.

    Attributes
    ----------
    change : numpy.ndarray, theta's shape
    decrement : float
        About how far the point is above the optimum.
    fall : float
        The slope of the objective along the step, times -1.
    along : numpy.ndarray, optional
        What the step adds to the scores, if the method knows it: the length is looked for before
        the end of the step is evaluated.
    is_whole : bool
        Whether the step is taken as it is: it may lead higher on the way to a proof.
    """

    change: NumPyArray
    decrement: float
    fall: float
    along: NumPyArray | None = None
    is_whole: bool = False


class Method(ABC):
    """A way from point to point, for one objective.

    Attributes
    ----------
    objective : Objective
        What the loop evaluates: the given one, or one with a copy of its rows.
    is_single : bool
        Whether steps are computed in float32, so that `in_float64` may help.
    keeps_scores : bool
        Whether the next scores are the last ones and what the step adds, of dense rows. Such
        points are evaluated anew, in float64, before they end a run.
    is_cheap : bool
        Whether an iteration costs so little that a run continues until the duality gap is small
        enough, before a proof by a Newton step is tried.
    gave_up : str
        Why another method should continue, or ''.
    why : str
        What there is to add to the plan's reason.
    """

    name: str
    is_single = False
    keeps_scores = False
    is_cheap = False
    gave_up = ""
    why = ""

    def __init__(self, objective: Objective) -> None:
        self.objective = objective

    def start(self, theta: NumPyArray) -> NumPyArray:
        """Return where to begin, if the given start is no better than none."""
        return theta

    def levels(self) -> Iterator[tuple[Method, float]]:
        """Yield methods for objectives of a few rows, on the way to a start.

        Each with the decrement that is near enough there.
        """
        return iter(())

    @abstractmethod
    def step(self, point: Snapshot, target: Target) -> Step:
        """Return the step from a point."""

    def learn(self, old: Snapshot, new: Snapshot, length: float) -> None:  # noqa: B027
        """Learn from a part of the last step, and the point that it has led to."""

    def bound(self, point: Snapshot, target: Target) -> float:
        """Return another bound of the point's distance to the optimum than the duality gap."""
        return np.inf

    def forget(self) -> bool:
        """Forget what steps have told; return whether there was anything."""
        return False

    def in_float64(self) -> None:  # noqa: B027
        """Compute steps in float64 from now on."""

    def back(self, theta: NumPyArray) -> NumPyArray:
        """Return the problem's theta for one of `objective`, if that has other coordinates."""
        return theta
