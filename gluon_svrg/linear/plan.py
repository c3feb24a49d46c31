"""Which way is taken, by the problem's size and what was measured."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import scipy.linalg
from gluon_svrg._compat import NumPyArray
from gluon_svrg.linear import newton
from gluon_svrg.linear.epochs import EpochSteps
from gluon_svrg.linear.method import HessianSteps
from gluon_svrg.linear.objective import Objective, Snapshot
from gluon_svrg.linear.sample import Sample
from gluon_svrg.linear.solution import Settings
from gluon_svrg.linear.state import State

_MOST_WEIGHTS = 2500

_SMALL = 1e9
"""Multiplications for one Hessian of all rows, up to which Newton's method is exact."""


@dataclass(frozen=True)
class Plan:
    """A method, with its reason."""

    method: str
    why: str
    states: Iterator[State]
    is_cheap: bool = False
    """Whether an iteration costs so little that the run goes on until the proof is there."""


def choose(objective: Objective, first: Snapshot, settings: Settings) -> Plan:
    """Return the way to go from `first`."""
    n, p = objective.rows.shape
    width = first.theta.size
    work = float(n) * width * width
    if settings.metric == "auto" and work <= _SMALL:
        why = f"the Hessian of all {n:,} rows and {width:,} weights is {work:.1g} multiplications"
        return Plan("newton", why, _exact(objective, first), is_cheap=True)
    wide = first.theta.size // (p + 1) * (n + 1)
    if settings.metric == "auto" and n < p and float(n) * wide * wide <= _SMALL:
        why = f"{n:,} rows have no more than {n:,} directions, of {p:,} features"
        return Plan("newton, rotated", why, _rotated(objective, first), is_cheap=True)
    size = sample_size(objective)
    if settings.metric == "hessian" or (
        settings.metric == "auto" and _hessian_pays(n, p, width, size)
    ):
        why = f"the Hessian over {width:,} weights is taken of {size:,} of {n:,} rows"
        return Plan("svrg, hessian", why, HessianSteps(objective, first, size, settings).states())
    why = f"a Hessian over {width:,} weights would cost more than it saves"
    steps = EpochSteps(objective, first, settings.metric, settings.seed)
    return Plan("svrg, diagonal", why, steps.states())


def _hessian_pays(n: int, p: int, width: int, size: int) -> bool:
    """Whether a Hessian and its factor cost no more than a few passes, or a second."""
    cost = float(size) * width * width + width**3 / 3
    return width <= _MOST_WEIGHTS and cost <= max(_SMALL * 20, 100.0 * n * width)


def sample_size(objective: Objective) -> int:
    """Return how many rows the Hessian's sample has.

    As many as make the Hessian about as dear as a pass. In BLAS, a multiplication of a product of
    matrices costs a 32nd of one of a pass over rows for a single output, which waits for memory;
    the factors for several outputs were measured in the same way. At least 30 rows per feature, 10 where
    30 would cost three passes; not above 1,000, where the Hessian changes more along the way.
    """
    n, p = objective.rows.shape
    outputs = objective.loss.outputs
    like_a_pass = 32 * n / p
    if outputs > 1:
        like_a_pass = 40 * n * (0.8 * p + 0.4 * p * outputs + 10 * outputs) / (p * outputs) ** 2
    least = 30 * p if 30 * p <= 3 * like_a_pass else 10 * p
    return int(min(n, max(2000, least, min(like_a_pass, 1000 * p))))


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


def _rotated(objective: Objective, first: Snapshot) -> Iterator[State]:
    r"""Newton's method in the space that the rows span.

    With :math:`B = \hat X \Lambda^{-1/2}` of rank r and the eigenvectors Q of :math:`B B^T = Q S Q^T`,
    the rows :math:`Q S^{1/2}` have the same products, so that r weights of penalty 1 stand for p
    (the representer theorem). Exact; without a penalty the answer is the one of least norm among
    the optima, in units of the features' deviations.
    """
    rows = objective.sample(np.arange(objective.n))
    used = objective.scaling.inverse > 0
    penalty = objective.penalty[:-1]
    free = not penalty[used].max(initial=0) > 0
    weight = np.where(used, 1 / np.sqrt(1 if free else penalty), 0)
    scaled = rows[:, :-1] * weight
    values, vectors = scipy.linalg.eigh(scaled @ scaled.T, check_finite=False)
    kept = values > 1e-13 * values[-1]
    root = np.sqrt(values[kept])
    rotation = (scaled.T @ (vectors[:, kept] / root)).T * weight
    sample = Sample(
        np.column_stack([vectors[:, kept] * root, rows[:, -1]]),
        objective.target,
        objective.share,
        objective.loss,
        np.append(np.full(len(root), 0.0 if free else 1.0), objective.penalty[-1]),
        objective.workers,
    )
    # The certificate is that of the rotated problem: the same function, the same optimum.
    rotated = replace(
        objective, penalty=sample.penalty, target_moment=rotation @ objective.target_moment
    )
    start = np.zeros((len(root) + 1, *first.theta.shape[1:]))
    start[-1] = first.theta[-1]

    def back(theta: NumPyArray) -> NumPyArray:
        return np.concatenate([rotation.T @ theta[:-1], theta[-1:]])

    for count, point in enumerate(newton.iterate(sample, start)):
        snapshot = Snapshot(point.theta, point.objective, point.gradient, point.scores)
        yield State(rotated, snapshot, point.decrement, objective.passes + count, back)
