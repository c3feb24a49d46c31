"""Which way is taken, by the problem's size and what was measured."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from gluon_svrg.linear import newton
from gluon_svrg.linear.epochs import EpochSteps
from gluon_svrg.linear.method import HessianSteps
from gluon_svrg.linear.objective import Objective, Snapshot
from gluon_svrg.linear.progress import State
from gluon_svrg.linear.sample import Sample
from gluon_svrg.linear.solution import Settings

_SMALL = 1e9
"""Multiplications for one Hessian of all rows, up to which Newton's method is exact."""


@dataclass(frozen=True)
class Plan:
    """A method, with its reason."""

    method: str
    why: str
    states: Iterator[State]


def choose(objective: Objective, first: Snapshot, settings: Settings) -> Plan:
    """Return the way to go."""
    n, width = objective.n, first.theta.size
    work = float(n) * width * width
    if work <= _SMALL:
        why = f"one Hessian of all {n:,} rows is {work:.1g} multiplications"
        return Plan("newton", why, _exact(objective, first))
    if width > 1500:
        return Plan("svrg", f"{width:,} weights: no Hessian", EpochSteps(objective, first, settings.metric, settings.seed).states())
    size = sample_size(objective, first)
    why = f"{width:,} weights: the Hessian of {size:,} rows"
    steps = HessianSteps(objective, first, size, settings.seed)
    return Plan("svrg", why, steps.states())


def sample_size(objective: Objective, first: Snapshot) -> int:
    """Return how many rows the Hessian's sample has.

    As many as make the Hessian about as dear as a pass: a product of BLAS costs a 32nd of what the
    pass costs per multiplication, for that waits for memory. Not below 30 rows per feature and
    not above 1,000, where its error is that of the Hessian's change along the way.
    """
    n, p = objective.rows.shape
    outputs = objective.loss.outputs
    like_a_pass = 32 * n / p
    if outputs > 1:
        like_a_pass = 40 * n * (0.8 * p + 0.4 * p * outputs + 10 * outputs) / (p * outputs) ** 2
    return int(min(n, max(2000, 30 * p, min(like_a_pass, 1000 * p))))


def _exact(objective: Objective, first: Snapshot) -> Iterator[State]:
    """Newton's method on all rows."""
    sample = Sample(
        objective.sample(np.arange(objective.n)),
        objective.target,
        objective.share,
        objective.loss,
        objective.penalty,
        objective.workers,
    )
    for count, point in enumerate(newton.iterate(sample, first.theta)):
        snapshot = Snapshot(point.theta, point.objective, point.gradient, point.scores)
        yield State(objective, snapshot, point.decrement, objective.passes + count)
