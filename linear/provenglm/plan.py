"""Which way is taken, by the problem's size."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.sparse import issparse

from provenglm import constants
from provenglm.methods.base import Method
from provenglm.methods.descent import CoordinateDescent
from provenglm.methods.dual import DualCoordinateAscent, is_for, is_for_classes
from provenglm.methods.newton import Newton
from provenglm.methods.newton_cg import NewtonCG
from provenglm.methods.sampled_newton_cg import (
    SampledNewtonCG,
    SecondMoments,
    suits as has_enough_rows,
)
from provenglm.methods.subspace import SubspaceNewton
from provenglm.methods.thinned import is_worth_while
from provenglm.model import csr_sample
from provenglm.model.budget import room, rows_of_a_sample
from provenglm.model.objective import Objective
from provenglm.model.per_row import are_sorted
from provenglm.model.problem import Problem
from provenglm.model.sample import Sample
from provenglm.model.solution import Settings
from provenglm.rows.disk import on_disk
from provenglm.rows.kinds import rows_of

__all__ = ["Plan", "choose", "dense_if_small", "is_small", "sample_size"]

Make = Callable[[Objective, Sample, np.random.Generator, Method | None], Method]
"""From the objective, its sample and the method of the point before on a path to a method."""


@dataclass(frozen=True)
class Plan:
    """A method, with its reason.

    Attributes
    ----------
    make : callable
    sample_size : int
        Rows that are drawn before it begins, and are dense then; 0 for none.
    keeps_sparse : bool
        Whether they stay sparse where they are.
    measures_alone : bool
        Whether nothing but coordinates is taken from them.
    otherwise : callable, optional
        Makes the method that continues if this one gives up.
    """

    name: str
    why: str
    sample_size: int
    make: Make
    keeps_sparse: bool = False
    measures_alone: bool = False
    otherwise: Make | None = None


def is_small(problem: Problem) -> bool:
    """Whether there are so few numbers, zeros included, that a copy of them costs little."""
    n, p = problem.features.shape
    return n * (p + 1) <= constants.SMALL_DATA


def dense_if_small(problem: Problem) -> Problem:
    """Return the problem with dense features, if there are few numbers, zeros included.

    Mostly zeros stay sparse: dense, 2,000 x 3,000 with 30 numbers a row took ten times as long. A
    squared loss with an L1 penalty is always made dense: it needs only the products of the columns.
    """
    features: Any = problem.features
    if not issparse(features) or not is_small(problem):
        return problem
    is_of_products = problem.loss.is_quadratic and problem.l1 > 0
    if csr_sample.is_sparser(features) and not is_of_products:
        return problem
    return replace(problem, features=features.toarray())


def choose(problem: Problem, settings: Settings, of_folds: bool = False) -> Plan:
    """Return the way to go.

    Parameters
    ----------
    of_folds : bool
        Whether it is for all folds of a path together: they share a sample's Hessian, which then
        pays sooner.
    """
    plan = _chosen(problem, settings, of_folds)
    if on_disk(problem.features) and problem.loss.has_classes:
        classes = max(2, problem.loss.outputs)
        if plan.sample_size < len(problem.target) and are_sorted(problem.target, classes):
            why = f"{plan.why}; rows come sorted by class, and are drawn from all over the data"
            return replace(plan, why=why)
    return plan


def _chosen(problem: Problem, settings: Settings, of_folds: bool) -> Plan:
    n, p = problem.features.shape
    outputs = problem.loss.outputs
    width = (p + 1) * outputs
    automatic = settings.metric != "hessian"
    if problem.l1 > 0:
        return _with_l1(problem)
    has_many = issparse(problem.features) and p > constants.MOST_WEIGHTS
    # What is on disk is copied as far as there is room.
    most = rows_of_a_sample(room(problem), p)
    is_of_classes = problem.loss.has_classes and problem.l2 > 0
    has_exact = automatic and not (has_many and (is_of_classes or not is_small(problem)))
    if has_exact and (plan := _exact_plan(problem, most)) is not None:
        return plan
    if has_many:
        return _many_sparse_columns(problem, settings)
    if issparse(problem.features) and _is_dear_of_sparse(problem, settings):
        why = f"a Hessian over {width:,} weights takes longer than a pass over sparse rows"
        return _conjugate_gradients(problem, settings, why)
    size = sample_size(n, p, outputs)
    if issparse(problem.features):
        size = csr_sample.size(problem.features, outputs, size)
    elif on_disk(problem.features):
        size = _size_on_disk(problem, size, most)
    if automatic and outputs > 1 and not issparse(problem.features):
        why = f"a Hessian over {width:,} weights of {outputs:,} classes is dearer than products"
        return _with_a_sample(problem, settings, why, most)
    has_conjugate_gradients = automatic and outputs == 1 and not on_disk(problem.features)
    has_few = n < constants.FEW_ROWS_OF_A_FEATURE * p
    is_slow = has_conjugate_gradients and (has_few or (not of_folds and _is_dear_of_dense(problem)))
    pays = width <= constants.MOST_WEIGHTS and not is_slow
    if settings.metric == "hessian" or (automatic and pays):
        why = f"the Hessian over {width:,} weights is taken of {size:,} of {n:,} rows"
        if not automatic:
            why = f"metric={settings.metric!r} was asked for: {why}"
        return Plan("sampled-newton", why, size, _newton, keeps_sparse=True)
    why = f"a Hessian over {width:,} weights would cost more than it saves"
    if has_conjugate_gradients or issparse(problem.features):
        return _conjugate_gradients(problem, settings, why)
    return _with_a_sample(problem, settings, why, most)


def _exact_plan(problem: Problem, most: float) -> Plan | None:
    """Return Newton's method on all rows, if their Hessian is small.

    Parameters
    ----------
    most : float
        Rows that may be copied.
    """
    n, p = problem.features.shape
    width = (p + 1) * problem.loss.outputs
    if n > most or not (is_small(problem) and _has_small_hessian(n, width)):
        return None
    why = f"the Hessian of all {n:,} rows over {width:,} weights is small"
    return Plan("newton-cholesky", why, n, _newton)


def _has_small_hessian(n: int, width: int) -> bool:
    is_cheap = float(n) * width * width <= constants.SMALL_HESSIAN
    return is_cheap and width <= constants.MOST_WEIGHTS


def _is_dear_of_dense(problem: Problem) -> bool:
    """Return whether the sample's Hessian of dense rows costs more than it saves.

    It has ten rows or more for each feature, and costs ten passes or more here. Conjugate
    gradients are preconditioned by the Hessian of up to four rows for each, if the gradient falls
    slowly. They multiply in float32, whose precision is enough if there is a penalty: with singular
    values over 1e5 and no penalty, they took up to five times as long.
    """
    features: Any = problem.features
    n, p = features.shape
    is_tall = n >= 2 * constants.FEW_ROWS_OF_A_FEATURE * p
    is_once = problem.loss.is_quadratic  # the same everywhere
    if issparse(features) or is_once or not is_tall or p * p <= constants.BLAS_GAIN * n:
        return False
    some = features[:: n // constants.LEAST_MEASURED_ROWS]
    with np.errstate(over="ignore", invalid="ignore"):
        variance = np.var(some, axis=0, dtype=np.float64).max()
    return bool(problem.l2 > float(np.finfo(np.float32).eps) * variance)


def _is_dear_of_sparse(problem: Problem, settings: Settings) -> bool:
    """Return whether a Hessian's factor takes longer than a pass over sparse rows.

    Conjugate gradients took 0.1 to 0.9 of its seconds with 300 to 600 columns then, whatever the
    penalty and the scales of the columns. Without a penalty nothing but the factor proves.
    """
    features: Any = problem.features
    outputs = problem.loss.outputs
    factor = ((features.shape[1] + 1) * outputs) ** 3 / 3 / constants.BLAS_GAIN
    one_pass = 2 * features.nnz * outputs
    return settings.metric != "hessian" and problem.l2 > 0 and factor > one_pass


def _newton(
    objective: Objective, sample: Sample, _: np.random.Generator, __: Method | None
) -> Method:
    return Newton(objective, sample)


def _with_a_sample(problem: Problem, settings: Settings, why: str, most: float) -> Plan:
    """Return the way by products with a sample's Hessian, its second moments, or in the dual."""
    n, p = problem.features.shape
    is_precise = settings.is_precise
    on_a_disk = on_disk(problem.features)

    def otherwise(
        objective: Objective, sample: Sample, _: np.random.Generator, __: Method | None
    ) -> Method:
        theta = objective.null()[0]
        scores = np.broadcast_to(theta[-1], (len(sample.target), *theta[-1].shape))
        curvature = sample.share @ sample.loss.weight_in_hessian(scores, sample.target)
        second = SecondMoments(sample, objective.intercept, float(np.mean(curvature)))
        if not (objective.loss.outputs == 1 or on_a_disk or has_enough_rows(objective, second)):
            has_room = 4 * n * p <= constants.COPY_BYTES
            return NewtonCG(objective, is_precise, has_room, sample)
        count = len(sample.rows)
        if not on_a_disk:
            # A pass over a file costs so much more that all of the sample pays.
            count = min(count, max(constants.LEAST_ROWS, n // constants.PART_OF_A_STEP))
        return SampledNewtonCG(objective, sample, second, count, is_precise)

    def make(
        objective: Objective, sample: Sample, rng: np.random.Generator, last: Method | None
    ) -> Method:
        if is_for_classes(objective):
            return DualCoordinateAscent(objective, is_precise, rng)
        return otherwise(objective, sample, rng, last)

    size = max(4 * constants.LEAST_ROWS, constants.ROWS_OF_A_FEATURE * p)
    if on_a_disk:
        size = max(size, n // constants.PART_OF_A_STEP)
    return Plan("sampled-newton-cg", why, int(min(n, most, size)), make, otherwise=otherwise)


def _conjugate_gradients(problem: Problem, settings: Settings, why: str) -> Plan:
    """Return the way for too many features for a Hessian: by conjugate gradients."""
    is_sparse, is_precise = issparse(problem.features), settings.is_precise
    n = len(problem.target)

    def make(
        objective: Objective, _: Sample, rng: np.random.Generator, __: Method | None
    ) -> Method:
        if is_sparse:
            return NewtonCG(objective, is_precise, has_room=True)
        return SubspaceNewton(objective, is_precise, rng)

    # Dense rows have their coordinates from a sample.
    size = 0 if is_sparse else min(n, constants.LEAST_ROWS)
    name = "newton-cg" if is_sparse else "subspace-newton"
    return Plan(name, why, size, make)


def _many_sparse_columns(problem: Problem, settings: Settings) -> Plan:
    """Return the way to go for sparse rows with more columns than a Hessian can have."""
    n, p = problem.features.shape
    if settings.metric == "hessian":
        raise ValueError(
            f"metric='hessian' was asked for, and X is sparse and has {p:,} columns: a Hessian of "
            "them does not fit; leave metric='auto'"
        )
    why = f"{n:,} sparse rows with {p:,} columns: no Hessian of them is factored"
    features: Any = problem.features
    is_long = features.nnz * problem.loss.outputs >= constants.LEAST_OF_DUAL
    by_gradients = _conjugate_gradients(problem, settings, why)
    if not (problem.loss.has_classes and is_long and is_for(features, problem.l2)):
        return by_gradients

    def make(
        objective: Objective, sample: Sample, rng: np.random.Generator, last: Method | None
    ) -> Method:
        used = int(np.argmax(objective.scaling.inverse))
        l2 = float(objective.penalty[used] / objective.scaling.inverse[used] ** 2)
        if is_for(features, l2):
            return DualCoordinateAscent(objective, settings.is_precise, rng)
        return by_gradients.make(objective, sample, rng, last)

    return Plan("dual-coordinate-ascent", why, 0, make, otherwise=by_gradients.make)


def _size_on_disk(problem: Problem, size: int, most: float) -> int:
    """Return how many rows the sample has if they are on disk: the number that fits into memory.

    Few are enough if a part of all rows is read.
    """
    rows: Any = rows_of(problem.features)
    few = max(constants.LEAST_ROWS, constants.ROWS_BESIDE_A_PART * rows.shape[1])
    if rows.is_on_disk and problem.loss.outputs == 1 and is_worth_while(rows, few):
        size = min(size, few)
    return int(min(size, most))


def _with_l1(problem: Problem) -> Plan:
    """Return the way to go where the penalty has corners."""
    n, p = problem.features.shape
    width = (p + 1) * problem.loss.outputs
    size, most = sample_size(n, p, problem.loss.outputs), rows_of_a_sample(room(problem), p)
    why = f"few of {p:,} features matter, and the gradient of all {n:,} rows tells which"
    # A start from some rows saves Hessians of all of them.
    is_dear = float(n) * width * width > constants.SMALL_HESSIAN and size < n / constants.GROWTH
    is_tall = not (issparse(problem.features) or problem.loss.is_quadratic) and is_dear
    is_tall = is_tall and width <= constants.MOST_WEIGHTS
    if not is_tall:
        as_they_are = issparse(problem.features) and p > constants.MOST_WEIGHTS
        few = max(constants.LEAST_MEASURED_ROWS, constants.MEASURED_NUMBERS // p)
        size = 0 if as_they_are else min(size, constants.LEAST_ROWS, few)

    def make(
        objective: Objective, sample: Sample, __: np.random.Generator, last: Method | None
    ) -> Method:
        return CoordinateDescent(objective, last, sample if is_tall else None)

    alone = not (is_tall or on_disk(problem.features))
    return Plan("coordinate-descent", why, int(min(size, most)), make, measures_alone=alone)


def sample_size(n: int, p: int, outputs: int) -> int:
    """Return how many rows the Hessian's sample has.

    With this number the Hessian costs half as much as a pass: in BLAS, a multiplication of a
    product of matrices costs a 32nd of one of a pass over rows for a single output, which waits for
    memory. At least 20 rows per feature, 10 if 20 would cost three passes; at most 1,000, and a
    quarter of the rows.
    """
    like_a_pass = constants.SAMPLE_OF_A_PASS * n / (p * outputs)
    least = constants.ROWS_OF_A_FEATURE * p
    least = 2 * least if least <= 3 * like_a_pass else least
    return int(min(n, max(constants.LEAST_ROWS, least, min(like_a_pass, 1000 * p, n / 4))))
