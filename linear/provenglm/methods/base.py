"""The interface of a method: it proposes steps from point to point, and learns from them.

`solve` owns the loop. It evaluates the points, bounds their distance to the optimum, ends the run,
searches for the length of a step, and continues in float64 when float32 is too imprecise.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from provenglm.model.objective import Objective, Snapshot
from provenglm.types import NumPyArray


class Target(NamedTuple):
    """The accuracy that the run requires of a step.

    Attributes
    ----------
    tol : float
        The required distance to the optimum, relative to the improvement over the null model.
    gained : float
        The objective of the null model minus that of the point.
    gap : float
        An upper bound of the point's distance to the optimum.
    """

    tol: float
    gained: float
    gap: float

    @property
    def required_gap(self) -> float:
        """The required distance to the optimum."""
        return self.tol * self.gained


class Step(NamedTuple):
    """A step from a point.

    Attributes
    ----------
    change : numpy.ndarray, theta's shape
    decrement : float
        An estimate of the point's distance to the optimum.
    fall : float
        Minus the slope of the objective along the step.
    along : numpy.ndarray, optional
        The change of the scores by the step, if the method knows it. The length is then searched
        for before the end of the step is evaluated.
    is_whole : bool
        Whether the whole step is taken. It may lead higher on the way to a proof.
    """

    change: NumPyArray
    decrement: float
    fall: float
    along: NumPyArray | None = None
    is_whole: bool = False


class Method(ABC):
    """A method that leads from point to point, for one objective.

    Attributes
    ----------
    objective : Objective
        The objective that the loop evaluates: the given one, or one on a copy of its rows.
    is_single : bool
        Whether steps are computed in float32, so that `in_float64` may help.
    keeps_scores : bool
        Whether the scores of dense rows are updated by the change along a step. Such points are
        evaluated again, in float64, before they end a run.
    has_cheap_steps : bool
        Whether an iteration is so cheap that the run continues until the duality gap is small
        enough, before it tries a proof by a Newton step.
    gave_up : str
        The reason why another method should continue, or ''.
    why : str
        Text that is added to the plan's reason.
    """

    name: str
    is_single = False
    keeps_scores = False
    has_cheap_steps = False
    gave_up = ""
    why = ""

    def __init__(self, objective: Objective) -> None:
        self.objective = objective

    def start(self, theta: NumPyArray) -> NumPyArray:
        """Return the point to start from, if the given start is no better than the null model."""
        return theta

    def levels(self) -> Iterator[tuple[Method, float]]:
        """Yield methods for objectives on few rows, which lead to a start.

        Each comes with the decrement at which it stops.
        """
        return iter(())

    @abstractmethod
    def step(self, point: Snapshot, target: Target) -> Step:
        """Return the step from a point."""

    def learn(self, old: Snapshot, new: Snapshot, length: float) -> None:  # noqa: B027
        """Update the method by the last step, its length, and the point that it led to."""

    def bound(self, point: Snapshot, target: Target) -> float:
        """Return a bound of the point's distance to the optimum other than the duality gap."""
        return np.inf

    def forget(self) -> bool:
        """Forget what was learned from steps; return whether there was anything to forget."""
        return False

    def in_float64(self) -> None:  # noqa: B027
        """Compute steps in float64 from now on."""

    def back(self, theta: NumPyArray) -> NumPyArray:
        """Return the problem's theta for a theta in the coordinates of `objective`."""
        return theta
