"""Which way is taken, by the problem's size."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import scipy.linalg
from scipy.sparse import issparse

from provenglm import constants
from provenglm.methods import (
    dual as sdca,
    newton,
    newton_cg as krylov,
    sampled_newton_cg as sample_krylov,
    subspace,
)
from provenglm.methods.descent import Descent
from provenglm.methods.sampled_newton import HessianSteps
from provenglm.methods.state import State
from provenglm.methods.thinned import is_worth_while
from provenglm.model import csr_sample
from provenglm.model.budget import room, rows_of_a_sample
from provenglm.model.objective import Objective, Snapshot
from provenglm.model.per_row import are_sorted
from provenglm.model.problem import Problem
from provenglm.model.sample import Sample
from provenglm.model.solution import Settings
from provenglm.rows.disk import on_disk
from provenglm.rows.kinds import rows_of
from provenglm.types import NumPyArray

__all__ = ["Method", "Plan", "choose", "dense_if_small", "is_small", "sample_size"]

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
    measures_alone : bool
        Whether nothing but coordinates is taken from them.
    """

    name: str
    why: str
    sample_size: int
    method: Method
    keeps_sparse: bool = False
    measures_alone: bool = False


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
        return _with_l1(problem, settings)
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
        return Plan("svrg, hessian", why, size, _in_a_hessian, keeps_sparse=True)
    why = f"a Hessian over {width:,} weights would cost more than it saves"
    if has_conjugate_gradients or issparse(problem.features):
        return _conjugate_gradients(problem, settings, why)
    return _with_a_sample(problem, settings, why, most)


def _exact_plan(problem: Problem, most: float) -> Plan | None:
    """Return Newton's method on all rows, if their Hessian is small, or that of what they span.

    Parameters
    ----------
    most : float
        Rows that may be copied.
    """
    n, p = problem.features.shape
    width, narrow = ((size + 1) * problem.loss.outputs for size in (p, n))
    if n > most:
        return None
    if is_small(problem) and _has_small_hessian(n, width):
        why = f"the Hessian of all {n:,} rows over {width:,} weights is small"
        return Plan("newton", why, n, _exact)
    if n < p and _has_small_hessian(n, narrow):
        why = f"{n:,} rows span at most {n:,} of {p:,} dimensions"
        return Plan("newton, rotated", why, n, _rotated)
    return None


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


def _in_a_hessian(
    objective: Objective, sample: Sample, start: NumPyArray, _: np.random.Generator
) -> Iterator[State]:
    return HessianSteps(objective, sample).states(start)


def _with_a_sample(problem: Problem, settings: Settings, why: str, most: float) -> Plan:
    """Return the way by products with a sample's Hessian, its second moments, or in the dual."""
    n, p = problem.features.shape

    def method(
        objective: Objective, sample: Sample, start: NumPyArray, rng: np.random.Generator
    ) -> Iterator[State]:
        def go_on(theta: NumPyArray) -> Iterator[State]:
            return sample_krylov.states(objective, sample, theta, settings)

        if sdca.is_for_classes(objective):
            return sdca.states(objective, start, settings, rng, go_on)
        return go_on(start)

    size = max(4 * constants.LEAST_ROWS, constants.ROWS_OF_A_FEATURE * p)
    if on_disk(problem.features):
        size = max(size, n // constants.PART_OF_A_STEP)
    return Plan("sample", why, int(min(n, most, size)), method)


def _conjugate_gradients(problem: Problem, settings: Settings, why: str) -> Plan:
    """Return the way for too many features for a Hessian: by conjugate gradients."""
    is_sparse = issparse(problem.features)
    n, p = problem.features.shape

    def method(
        objective: Objective, sample: Sample, start: NumPyArray, rng: np.random.Generator
    ) -> Iterator[State]:
        turns = is_small(problem) and len(sample.rows) == n < p
        tol, is_precise = settings.tol, settings.is_precise
        if is_sparse:
            states = krylov.states(objective, start, tol, is_precise, True)
        else:
            states = subspace.states(objective, start, tol, is_precise, rng)
        for state in states:
            yield state
            # As many passes as rows have as many multiplications as the turn of the rows.
            if turns and objective.passes > n:
                break
        else:
            return
        del states  # with its copy of the rows
        yield from _rotated_after(objective, sample, start, rng)

    # Dense rows have their coordinates from a sample.
    size = 0 if is_sparse else min(n, constants.LEAST_ROWS)
    return Plan("newton-cg", why, size, method)


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
    is_dual = problem.loss.has_classes and is_long and sdca.is_for(features, problem.l2)
    if not is_dual:
        return _conjugate_gradients(problem, settings, why)

    def method(
        objective: Objective, _: Sample, start: NumPyArray, rng: np.random.Generator
    ) -> Iterator[State]:
        def go_on(theta: NumPyArray) -> Iterator[State]:
            return krylov.states(objective, theta, settings.tol, settings.is_precise, True)

        return sdca.states(objective, start, settings, rng, go_on)

    return Plan("sdca", why, 0, method)


def _size_on_disk(problem: Problem, size: int, most: float) -> int:
    """Return how many rows the sample has if they are on disk: the number that fits into memory.

    Few are enough if a part of all rows is read.
    """
    rows: Any = rows_of(problem.features)
    few = max(constants.LEAST_ROWS, constants.ROWS_BESIDE_A_PART * rows.shape[1])
    if rows.is_on_disk and problem.loss.outputs == 1 and is_worth_while(rows, few):
        size = min(size, few)
    return int(min(size, most))


def _with_l1(problem: Problem, settings: Settings) -> Plan:
    """Return the way to go where the penalty has corners."""
    n, p = problem.features.shape
    width = (p + 1) * problem.loss.outputs
    size = sample_size(n, p, problem.loss.outputs)
    if issparse(problem.features):
        size = min(size, constants.SAMPLE_NUMBERS // (p + 1))
    size = int(min(size, rows_of_a_sample(room(problem), p)))
    # If the sample has all rows, or rows are sparse, its Hessian costs more than it saves.
    is_dense = not issparse(problem.features)
    is_large = is_dense and size < n and float(n) * width * width > constants.SMALL_HESSIAN
    if problem.loss.is_quadratic:
        has_few = not on_disk(problem.features) and n * p <= constants.KEPT_NUMBERS
        is_large = is_large and width > constants.WEIGHTS_OF_SQUARES and not has_few
    if width <= constants.MOST_WEIGHTS and (is_large or settings.metric == "hessian"):
        why = f"the Hessian over {width:,} weights is taken of {size:,} of {n:,} rows"
        return Plan("svrg, hessian, proximal", why, size, Descent.of_a_sample)
    why = f"few of {p:,} features matter, and the gradient of all {n:,} rows tells which"
    as_they_are = issparse(problem.features) and p > constants.MOST_WEIGHTS
    few = max(constants.LEAST_MEASURED_ROWS, constants.MEASURED_NUMBERS // p)
    size = 0 if as_they_are else min(size, constants.LEAST_ROWS, few)
    alone = not on_disk(problem.features)
    return Plan(
        "newton, proximal, working set", why, size, Descent.of_all_rows, measures_alone=alone
    )


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


def _exact(
    objective: Objective, sample: Sample, start: NumPyArray, _: np.random.Generator
) -> Iterator[State]:
    """Newton's method on all rows."""
    objective.moments = sample.moments()
    for count, point in enumerate(newton.iterate(sample, start)):
        snapshot = Snapshot(point.theta, point.objective, point.gradient, point.scores)
        yield State(objective, snapshot, point.decrement, 1.0 + count, is_cheap=True)


def _rotated(
    objective: Objective, sample: Sample, start: NumPyArray, _: np.random.Generator
) -> Iterator[State]:
    r"""Newton's method in the space that the rows span.

    With :math:`B = \\hat X \\Lambda^{-1/2}` and an orthonormal basis V of its rows, the rows
    :math:`B V` have the same products, so that as many weights of penalty 1 as there are rows
    stand for p (the representer theorem). Exact; without a penalty the answer is the one of least
    norm among the optima, in units of the features' deviations.
    """
    used = objective.scaling.inverse > 0
    penalty = objective.penalty[:-1]
    free = not penalty[used].max(initial=0) > 0
    weight = np.where(used, 1 / np.sqrt(1 if free else penalty), 0)
    rows, span = (_spectrum if free else _triangle)(sample.rows[:, :-1] * weight)
    width = rows.shape[1]
    turned = Sample(
        np.column_stack([rows, sample.rows[:, -1]]),
        objective.target,
        objective.share,
        objective.loss,
        np.append(np.full(width, 0.0 if free else 1.0), objective.penalty[-1]),
        objective.workers,
        offset=objective.offset,
    )
    # The certificate is that of the rotated problem: the same function, the same optimum.
    rotated = replace(objective, penalty=turned.penalty, moments=turned.moments())

    def back(theta: NumPyArray) -> NumPyArray:
        return np.concatenate([(span(theta[:-1]).T * weight).T, theta[-1:]])

    first = np.zeros((width + 1, *start.shape[1:]))
    first[-1] = start[-1]
    for count, point in enumerate(newton.iterate(turned, first)):
        snapshot = Snapshot(point.theta, point.objective, point.gradient, point.scores)
        yield State(rotated, snapshot, point.decrement, 1.0 + count, back, is_cheap=True)


def _rotated_after(
    objective: Objective, sample: Sample, start: NumPyArray, rng: np.random.Generator
) -> Iterator[State]:
    """Continue in the space that the rows span, after conjugate gradients."""
    before = objective.passes
    why = f"; after {before:,.0f} passes Newton's method continued in the space that the rows span"
    for state in _rotated(objective, sample, start, rng):
        yield replace(state, passes=before + state.passes, name="newton, rotated", why=why)


_Span = tuple[NumPyArray, Callable[[NumPyArray], NumPyArray]]
"""Rows in a basis of what they span, and what takes weights of these back."""


def _triangle(scaled: NumPyArray) -> _Span:
    """Turn rows by Householder's reflections: precise, however far apart the features' scales are.

    The products of the rows would have the squares of the scales.
    """
    (reflections, factors), upper = scipy.linalg.qr(
        scaled.T, mode="raw", overwrite_a=True, check_finite=False
    )

    def back(theta: NumPyArray) -> NumPyArray:
        padded = np.zeros((scaled.shape[1], *theta.shape[1:]), order="F")
        padded[: len(theta)] = theta
        columns = padded.reshape(len(padded), -1, order="F")
        apply = scipy.linalg.get_lapack_funcs("ormqr", (reflections, columns))
        size = int(apply("L", "N", reflections, factors, columns, -1)[1][0])
        turned = apply("L", "N", reflections, factors, columns, size)[0]
        return np.asarray(turned.reshape(padded.shape))

    return np.ascontiguousarray(upper[: len(scaled)].T), back


def _spectrum(scaled: NumPyArray) -> _Span:
    """Turn rows to the eigenvectors of their products, and leave out those of nothing."""
    values, vectors = scipy.linalg.eigh(scaled @ scaled.T, check_finite=False)
    kept = values > 1e-13 * values[-1]
    root = np.sqrt(values[kept])
    return vectors[:, kept] * root, lambda theta: scaled.T @ (vectors[:, kept] / root @ theta)
