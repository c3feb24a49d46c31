"""What a method hands over at each snapshot."""

from __future__ import annotations

from dataclasses import dataclass

from gluon_svrg.linear.objective import Objective, Snapshot


@dataclass(frozen=True)
class State:
    """A snapshot, the objective that it was taken of, and the decrement there."""

    objective: Objective
    snapshot: Snapshot
    decrement: float
    passes: float
