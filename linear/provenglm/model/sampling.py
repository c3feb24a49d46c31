"""Draw the rows of a sample, weight them, and compute the coordinates from them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from scipy.sparse import issparse

from provenglm import constants
from provenglm.model import null_model
from provenglm.model.budget import memory_budget
from provenglm.model.coordinates import as_they_are, coordinates
from provenglm.model.csr_sample import (
    CenteredRows,
    ColumnMoments,
    SparseSample,
    column_moments,
    is_sparser,
)
from provenglm.model.losses import OFFSET_OF_FLOAT32, Loss
from provenglm.model.objective import Objective, PassCounter, Scaling
from provenglm.model.problem import Problem
from provenglm.model.sample import Sample
from provenglm.rows.base import Features, Rows
from provenglm.rows.centred import in_coordinates, write_centred
from provenglm.rows.csr import CsrRows
from provenglm.rows.dense import DenseRows
from provenglm.rows.remote import AnyTable
from provenglm.rows.table import Block, Table
from provenglm.types import NumPyArray
from provenglm.workers import Workers

_OFFSET_OF_FLOAT64 = 1e5
"""Blocks are centred before they are multiplied if a mean is more standard deviations from 0."""

_MAX_EXPONENT = 12
"""Sparse features are read in float32 if their sizes are within 10 to the power of plus or minus
this."""


_ROUNDING_OF_A_MEAN = 1000 * np.finfo(np.float64).eps
"""A deviation below this part of the mean may be rounding, and is measured again."""

_LEAST_SQUARE = 1e-100
"""Columns with mean squares from this to its inverse have fourth powers with full precision."""

_HUGE = 1e250
"""A feature with a larger penalty is left out: its coefficient would be 0 up to rounding."""


def prepare(
    problem: Problem,
    workers: Workers,
    size: int,
    rng: np.random.Generator,
    precise: bool = False,
    keeps_sparse: bool = False,
    measures_alone: bool = False,
) -> tuple[Objective, Sample]:
    """Draw a sample and compute the coordinates from it.

    The optimum does not depend on the coordinates; taking them from the sample saves a pass over
    all rows. Columns whose variance comes from a few rows of the sample are measured over all rows.

    Parameters
    ----------
    size : int
        The approximate number of rows. With 0, for sparse rows with many columns, there is no
        sample, and almost all columns keep the user's coordinates.
    precise : bool
        Whether rows are read in float64 in any case.
    keeps_sparse : bool
        Whether a sample of sparse rows stays sparse if its Hessian is then computed faster.
    measures_alone : bool
        Whether the drawn rows are only used for the coordinates, so that there is no sample.
    """
    table = problem.table(workers)
    if size == 0:
        assert isinstance(table, Table)
        return _without_a_sample(problem, table, precise)
    drawn, sample_share = draw(problem.loss, table, size, rng)
    raw: Features
    if measures_alone:
        raw = table.gathered(drawn)
        moments = _dense_column_moments(raw, sample_share, problem.fit_intercept, workers)
    elif keeps_sparse and table.rows.is_sparse and is_sparser(problem.features):
        raw = table.picked(drawn)
        moments = column_moments(raw, sample_share, problem.fit_intercept)
    else:
        raw = table.gathered(drawn, extra=1)
        moments = _dense_column_moments(raw[:, :-1], sample_share, problem.fit_intercept, workers)
    if problem.fit_intercept:
        _measure_far(raw, sample_share, moments)
    scaling, offset, rare = _scaling(moments, problem.fit_intercept)
    if len(drawn) == table.n:
        rare[:] = False
    elif measures_alone:
        # An approximate scale is enough.
        rare = scaling.inverse == 0
    if rare.any():
        _measure_rare(table, rare, scaling, problem.fit_intercept)
    left_out = None
    if not scaling.inverse.all():
        left_out = np.flatnonzero((scaling.inverse == 0) & (moments.square > 0))
    if precise or offset > OFFSET_OF_FLOAT32 or _is_far_off(problem, table):
        table = table.precise()
    objective = Objective(
        table=table,
        loss=problem.loss,
        scaling=scaling,
        penalty=_penalty(problem, scaling),
        l1=l1_of(scaling, problem.l1),
        intercept=problem.fit_intercept,
        # Sparse rows are not centred; float64 has enough digits.
        centered=offset > _OFFSET_OF_FLOAT64 and not table.rows.is_sparse,
        rare=rare,
        left_out=left_out,
        reads=PassCounter(0.0 if len(drawn) == table.n else len(drawn)),
        memory_budget=memory_budget(problem),
    )
    if measures_alone:
        return objective, _no_sample(objective)
    return objective, _sample(objective, raw, drawn, sample_share)


def _without_a_sample(problem: Problem, table: Table, precise: bool) -> tuple[Objective, Sample]:
    """Return the objective of sparse rows in almost the user's coordinates, and an empty sample."""
    user = as_they_are(table)
    scaling = user if problem.l1 > 0 else coordinates(table, user, problem.fit_intercept)
    # With an L1 penalty rows are read in float64 in any case.
    precise = precise or problem.l1 > 0
    if precise or _is_far_off(problem, table) or has_offsets(table, user):
        table = table.precise()
    objective = Objective(
        table=table,
        loss=problem.loss,
        scaling=scaling,
        penalty=_penalty(problem, scaling),
        l1=l1_of(scaling, problem.l1),
        intercept=problem.fit_intercept,
        reads=PassCounter(),
    )
    return objective, _no_sample(objective)


def _no_sample(objective: Objective) -> Sample:
    none = np.zeros(0, np.intp)
    return _sample(objective, np.zeros((0, len(objective.penalty))), none, np.zeros(0))


def _some_rows(table: AnyTable, scaling: Scaling) -> tuple[Any, NumPyArray]:
    """Return sparse rows at equal distances, and their stored numbers in coordinates."""
    some: Any = table.picked(np.arange(0, table.n, max(1, table.n // constants.LEAST_ROWS)))
    return some, in_coordinates(some.data, some.indices, scaling)


def has_offsets(table: AnyTable, scaling: Scaling) -> bool:
    """Return whether float32 has too few digits for a sparse feature's mean beside its deviation.

    It is judged from some rows.
    """
    block, values = _some_rows(table, scaling)
    count, p = max(1, block.shape[0]), block.shape[1]
    mean = np.bincount(block.indices, values, p) / count
    square = np.bincount(block.indices, np.square(values), p) / count
    variance = np.maximum(square - np.square(mean), np.finfo(np.float64).eps * square)
    return bool((np.square(mean) > OFFSET_OF_FLOAT32**2 * variance)[square > 0].any())


def fits_float32(table: AnyTable, scaling: Scaling) -> bool:
    """Return whether some rows' sparse features are of a size that float32 has digits for."""
    _, data = _some_rows(table, scaling)
    size = np.abs(data[data != 0])
    if not len(size):
        return True
    digits = np.log10([size.min(), size.max()])
    return bool(np.abs(digits).max() < _MAX_EXPONENT)


def _penalty(problem: Problem, scaling: Scaling) -> NumPyArray:
    """Return the penalty of each row of theta; leave out features with a huge penalty."""
    with np.errstate(over="ignore"):
        scaling.inverse[np.square(np.sqrt(problem.l2) * scaling.inverse) > _HUGE] = 0
    return penalty_of(scaling, problem.l2, problem.fit_intercept)


def l1_of(scaling: Scaling, l1: float) -> NumPyArray | None:
    """Return the L1 penalty of each row of theta, or None if there is none."""
    return l1 * np.append(scaling.inverse, 0.0) if l1 > 0 else None


def penalty_of(scaling: Scaling, l2: float, fit_intercept: bool) -> NumPyArray:
    """Return the L2 penalty of each row of theta, (p + 1,)."""
    penalty = np.zeros(len(scaling.inverse) + 1)
    penalty[:-1] = np.square(np.sqrt(l2) * scaling.inverse)
    # A penalty keeps the coefficients of left-out features at 0.
    penalty[:-1][scaling.inverse == 0] = 1.0
    if not fit_intercept:
        penalty[-1] = 1.0
    return penalty


def _is_far_off(problem: Problem, table: AnyTable) -> bool:
    """Return whether scores or losses are so large that float32 is too imprecise."""
    loss = problem.loss
    if loss.has_classes and not table.has_offset:
        return False
    bias = np.zeros(loss.outputs)
    if problem.fit_intercept:
        bias = null_model.best_intercept(loss, table)
    value, least = null_model.mean_loss(loss, table, bias), null_model.least_loss(table, loss)
    size = float(bias[0]) if not table.has_offset else null_model.size_of_scores(table, bias)
    return loss.is_far_off(size, value, least)


def draw(
    loss: Loss, table: AnyTable, size: int, rng: np.random.Generator
) -> tuple[NumPyArray, NumPyArray]:
    """Return the indices of about `size` drawn rows, and their shares in the sample.

    If a class is rare, most of the curvature :math:`p (1 - p)` comes from its rows. Then half of
    the draws are divided equally among the groups of targets, and the other half is drawn from all
    rows. The shares correct for this (importance sampling). If `size` is at least n, all rows are
    returned in order.
    """
    n = table.n
    if size >= n:
        indices = np.arange(n)
        return indices, table.row_data(indices)[1]
    group_share, least, most = table.sum(_look, loss, reads=False)
    factor = _factors(group_share)
    if factor is None and min(least) == max(most):
        return rng.choice(n, size, replace=False), np.full(size, 1 / size)
    # Find the rows at which the cumulative probability exceeds random numbers.
    starts, totals = zip(*table.sum(_probability, loss, factor, reads=False), strict=True)
    sums = np.concatenate([[0.0], np.cumsum(totals)])
    wanted = np.sort(rng.random(size)) * sums[-1]
    given = loss, factor, wanted, np.array(starts), sums
    rows: NumPyArray = np.array(table.sum(_passed, *given, reads=False))
    rng.shuffle(rows)
    sample_share: NumPyArray = np.ones(size)
    if factor is not None:
        sample_share = 1 / factor[loss.groups(table.row_data(rows)[0])]
    return rows, sample_share / sample_share.sum()


def _look(block: Block, loss: Loss) -> tuple[NumPyArray, list[float], list[float]]:
    """Return the shares of the groups, and the smallest and the largest share of a row."""
    groups, share = loss.groups(block.exact_target), block.share
    group_share: NumPyArray = np.ones(0)
    if groups is not None:
        group_share = np.bincount(groups, weights=share, minlength=loss.group_count)
    return group_share, [float(share.min())], [float(share.max())]


def _factors(group_share: NumPyArray) -> NumPyArray | None:
    """Return how much more often each group is drawn, or None if no group is rare."""
    present = group_share > 0
    if not group_share[present].min(initial=np.inf) < constants.RARE:
        return None
    inverse = np.divide(1, group_share, out=np.zeros_like(group_share), where=present)
    return np.asarray(0.5 + 0.5 * inverse / present.sum())


def _probabilities(block: Block, loss: Loss, factor: NumPyArray | None) -> NumPyArray:
    groups = loss.groups(block.exact_target)
    return block.share if factor is None else block.share * factor[groups]


def _probability(block: Block, loss: Loss, factor: NumPyArray | None) -> list[tuple[int, float]]:
    """Return the index of the first row, and the sum of the rows' probabilities."""
    return [(block.start, float(_probabilities(block, loss, factor).sum()))]


def _passed(
    block: Block,
    loss: Loss,
    factor: NumPyArray | None,
    wanted: NumPyArray,
    starts: NumPyArray,
    sums: NumPyArray,
) -> list[int]:
    """Return the rows at which the cumulative sum exceeds the ascending numbers `wanted`."""
    k = int(np.searchsorted(starts, block.start))
    first, last = np.searchsorted(wanted, sums[k : k + 2])
    last = len(wanted) if k + 1 == len(starts) else last
    each = _probabilities(block, loss, factor)
    found = np.searchsorted(sums[k] + np.cumsum(each), wanted[first:last], side="right")
    # Rounding may lead beyond the last row with a weight.
    used = np.flatnonzero(each)
    found = np.minimum(found, used[-1] if len(used) else 0)
    return (block.start + found).tolist()  # type: ignore[no-any-return]


def _scaling(column_moments: ColumnMoments, intercept: bool) -> tuple[Scaling, float, NumPyArray]:
    """Return the coordinates, the largest mean in standard deviations, and the rare features.

    A feature is rare if its variance comes from a few rows, or from none.
    """
    unit, mean, square, fourth = column_moments
    center = mean if intercept else np.zeros(len(mean))
    used = square > 0
    inverse = np.zeros(len(mean))
    with np.errstate(over="ignore"):
        inverse[used] = 1 / np.sqrt(square[used]) / unit[used]
    # These deviations are subnormal, with few digits.
    inverse[np.isinf(inverse)] = 0
    offset = float((np.abs(mean) * unit * inverse).max(initial=0)) if intercept else 0.0
    rare = np.square(square) < constants.FEW_ROWS * fourth
    return Scaling(center * unit, inverse), offset, rare | (inverse == 0)


def _measure_far(raw: Any, share: NumPyArray, found: ColumnMoments) -> None:
    """Measure again, in place, the columns whose deviation may be the rounding of their mean.

    Differences to one of their numbers are exact. A column that still has no deviation is constant
    in all rows with a weight.
    """
    unit, mean, square, fourth = found
    is_far = square <= np.square(_ROUNDING_OF_A_MEAN * mean)
    if not is_far.any():
        return
    columns = np.flatnonzero(is_far & (mean != 0))
    if not len(columns):
        return
    some = raw[:, columns]
    numbers = (some.toarray() if issparse(some) else some) / unit[columns]
    numbers = numbers[share > 0]
    share = share[share > 0]
    mean[columns] = numbers[0] + share @ (numbers - numbers[0]) / share.sum()
    is_constant = (numbers == numbers[0]).all(axis=0)
    mean[columns[is_constant]] = numbers[0, is_constant]
    change = numbers - mean[columns]
    first = share @ change
    power = np.square(change)
    square[columns] = np.maximum(share @ power - np.square(first), 0)
    fourth[columns] = np.square(share) @ np.square(power)


def _dense_column_moments(
    raw: NumPyArray, share: NumPyArray, intercept: bool, workers: Workers
) -> ColumnMoments:
    """Return the moments of the columns of an array."""
    with np.errstate(over="ignore", invalid="ignore"):
        found = _moments(raw, share, intercept, workers)
    square = found.square
    extreme = np.flatnonzero(~((square > _LEAST_SQUARE) & (square < 1 / _LEAST_SQUARE)))
    if len(extreme):
        # Divide by a power of two, so that no square overflows or underflows.
        columns = raw[:, extreme]
        largest = np.abs(columns).max(axis=0)
        unit = np.exp2(np.floor(np.log2(np.where(largest > 0, largest, 1))))
        extreme_moments = _moments(columns / unit, share, intercept, workers)
        for numbers, some in zip(found, extreme_moments._replace(unit=unit), strict=True):
            numbers[extreme] = some
    return found


def _moments(
    raw: NumPyArray, share: NumPyArray, intercept: bool, workers: Workers
) -> ColumnMoments:
    """Return the moments of the columns in units of 1."""
    count, p = raw.shape
    # Parts that fit into a core's cache: 64 rows with 5,000 columns took twice as long.
    size = max(constants.LEAST_BLOCK_ROWS // 8, constants.PART_ROWS // p)
    parts = [slice(start, start + size) for start in range(0, count, size)]
    mean: NumPyArray = share @ raw
    center = mean if intercept else np.zeros(p)

    def part_moments(part: slice) -> tuple[NumPyArray, NumPyArray, NumPyArray]:
        power = raw[part] - center
        first = share[part] @ power
        np.square(power, out=power)
        square = share[part] @ power
        np.square(power, out=power)
        return first, square, np.square(share[part]) @ power

    first, square, fourth = np.zeros(p), np.zeros(p), np.zeros(p)
    for part_first, part_square, part_fourth in workers.map(part_moments, parts):
        first += part_first
        square += part_square
        fourth += part_fourth
    if intercept:
        # The rounding error of a mean of 200,000 equal numbers would look like a deviation.
        mean += first
        square -= np.square(first)
        np.maximum(square, 0, out=square)
    return ColumnMoments(np.ones(p), mean, square, fourth)


def _measure_rare(table: AnyTable, rare: NumPyArray, scaling: Scaling, intercept: bool) -> None:
    """Measure the rare columns by a pass over all rows, and update `scaling` in place."""
    columns = np.flatnonzero(rare)
    mean, square = table.moments(scaling.center, columns)
    if intercept:
        square -= np.square(mean)
        scaling.center[columns] += mean
    used = square > 0
    scaling.inverse[columns] = 0
    scaling.inverse[columns[used]] = 1 / np.sqrt(square[used])


def objective_of(sample: Sample, objective: Objective) -> Objective:
    """Return the objective of a sample's rows alone, in the same coordinates.

    Parameters
    ----------
    objective : Objective
        The objective of all rows.
    """
    scaling = objective.scaling
    if isinstance(sample.rows, CenteredRows):
        rows: Rows = CsrRows(sample.rows.features)
    else:
        rows = DenseRows(sample.rows[:, :-1])
        scaling = Scaling(np.zeros(len(scaling.inverse)), 1.0 * (scaling.inverse > 0))
    return replace(
        objective,
        table=Table(rows, sample.target, sample.share, objective.workers, sample.offset),
        scaling=scaling,
        centered=False,
        moments=None,
        squares=None,
        takes_moments=False,
        reads=PassCounter(),
        memory_budget=None,
    )


def _sample(objective: Objective, raw: Features, drawn: NumPyArray, share: NumPyArray) -> Sample:
    """Return the sample of raw rows; dense rows are modified in place."""
    kind, rows = Sample, raw
    if issparse(raw):
        center, inverse = objective.scaling.center, objective.scaling.inverse
        kind, rows = SparseSample, CenteredRows(raw, center, inverse, objective.intercept)
    else:
        rows = _scaled(objective, raw)
    target, _, offset = objective.table.row_data(drawn)
    return kind(
        rows,
        target,
        share,
        objective.loss,
        objective.penalty,
        objective.workers,
        rare=objective.rare,
        indices=drawn,
        offset=offset,
    )


def _scaled(objective: Objective, raw: NumPyArray) -> NumPyArray:
    """Transform raw rows to theta's coordinates, in place."""
    size = max(constants.LEAST_BLOCK_ROWS, constants.PART_ROWS // raw.shape[1])
    parts = [slice(start, start + size) for start in range(0, len(raw), size)]
    raw[:, -1] = objective.intercept
    # Process whole rows: NumPy takes twice as long without the last column.
    center, inverse = objective.scaling.center, objective.scaling.inverse
    whole = Scaling(np.append(center, 0), np.append(inverse, 1))

    def scale(part: slice) -> None:
        write_centred(raw[part], whole, raw[part])

    for _ in objective.workers.map(scale, parts):
        pass
    return raw
