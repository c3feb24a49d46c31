"""A way to go: a method with what it needs, and why it was taken."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from provenglm.objective import Objective
from provenglm.sample import Sample
from provenglm.state import State
from provenglm.types import NumPyArray

Method = Callable[[Objective, Sample, NumPyArray, np.random.Generator], Iterator[State]]
"""From the objective, its sample and a start to the states of a run."""


@dataclass(frozen=True)
class Plan:
    """A method, with its reason.

    Attributes
    ----------
    sample_size : int
        Rows that are drawn before it begins, and are dense then; 0 for none.
    keeps_sparse : bool
        Whether they stay sparse where they are.
    is_cheap : bool
        Whether an iteration costs so little that the run goes on until the proof is there.
    """

    name: str
    why: str
    sample_size: int
    method: Method
    is_cheap: bool = False
    keeps_sparse: bool = False
