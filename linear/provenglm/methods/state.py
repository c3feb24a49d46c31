"""What a method hands over at each snapshot."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from provenglm.model.objective import Objective, Snapshot
from provenglm.types import NumPyArray


@dataclass(frozen=True)
class State:
    """A snapshot, the objective that it was taken of, and the decrement there."""

    objective: Objective
    snapshot: Snapshot
    decrement: float
    passes: float
    back: Callable[[NumPyArray], NumPyArray] | None = None
    """From the snapshot's theta to that of the problem, if it has other coordinates."""
    gap: float | None = None
    """The duality gap of the snapshot, if the method has asked for it."""
    name: str = ""
    """Of the method, where the plan leaves it open."""
    is_cheap: bool = False
    """Whether an iteration is cheap enough to continue until the proof succeeds."""
    why: str = ""
    """What there is to add to the plan's reason."""

    @property
    def theta(self) -> NumPyArray:
        """The problem's theta."""
        theta = self.snapshot.theta
        return theta if self.back is None else self.back(theta)
