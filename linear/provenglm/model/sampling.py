"""Which rows a Hessian is estimated from, with which weight, and the coordinates from them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from scipy.sparse import issparse

from provenglm import constants
from provenglm.model import null_model
from provenglm.model.budget import room
from provenglm.model.coordinates import coordinates, in_coordinates
from provenglm.model.csr_sample import CenteredRows, SparseSample, Spread, is_sparser, spread
from provenglm.model.losses import OFFSET_OF_FLOAT32, Loss
from provenglm.model.objective import Objective, Reads, Scaling
from provenglm.model.problem import Problem
from provenglm.model.sample import Sample
from provenglm.rows.base import Features, Rows
from provenglm.rows.centred import write_centred
from provenglm.rows.csr import CsrRows
from provenglm.rows.dense import DenseRows
from provenglm.rows.far import AnyTable
from provenglm.rows.table import Block, Table
from provenglm.types import NumPyArray
from provenglm.workers import Workers

_OFFSET_OF_FLOAT64 = 1e5
"""`OFFSET_OF_FLOAT32` of float64: from there on blocks are centred before they are multiplied."""

_MOST_DIGITS_OF_A_NUMBER = 12
"""Of a feature itself, before or after the point."""


_ROUNDING_OF_A_MEAN = 1000 * np.finfo(np.float64).eps
"""Of a mean: a smaller deviation may be its rounding, and is measured again."""

_LEAST_SQUARE = 1e-100
"""Of a column, on average, whose fourth powers are numbers of full precision."""

_HUGE = 1e250
"""A penalty beyond it leaves nothing of a weight: the feature is left out."""


def prepare(
    problem: Problem,
    workers: Workers,
    size: int,
    rng: np.random.Generator,
    precise: bool = False,
    keeps_sparse: bool = False,
    measures_alone: bool = False,
) -> tuple[Objective, Sample]:
    """Draw a sample of about `size` rows and take the coordinates from it.

    Any coordinates give the same answer; those of the sample save a pass over all rows. Columns
    whose variance comes from a few rows of the sample are measured by a pass over them alone.
    `precise` hands out float64 whatever the data are. With `size` 0 there is no sample, of sparse
    rows with many columns, and the coordinates are the user's for almost all of them. With
    `keeps_sparse` a sample of sparse rows stays sparse where a Hessian of it is then made in less
    time. With `measures_alone` nothing but coordinates comes from the rows, and there is no sample.
    """
    table = problem.table(workers)
    if size == 0:
        return _as_they_are(problem, table, precise)
    drawn, of_sample = draw(problem.loss, table, size, rng)
    raw: Features
    if measures_alone:
        raw = table.gathered(drawn)
        of_columns = _spread(raw, of_sample, problem.fit_intercept, workers)
    elif keeps_sparse and table.rows.is_sparse and is_sparser(problem.features):
        raw = table.picked(drawn)
        of_columns = spread(raw, of_sample, problem.fit_intercept)
    else:
        raw = table.gathered(drawn, beside=1)
        of_columns = _spread(raw[:, :-1], of_sample, problem.fit_intercept, workers)
    if problem.fit_intercept:
        _measure_far(raw, of_sample, of_columns)
    scaling, offset, rare = _scaling(of_columns, problem.fit_intercept)
    if len(drawn) == table.n:
        rare[:] = False
    elif measures_alone:
        # About the right scale is enough.
        rare = scaling.inverse == 0
    if rare.any():
        _measure_rare(table, rare, scaling, problem.fit_intercept)
    left_out = None
    if not scaling.inverse.all():
        left_out = np.flatnonzero((scaling.inverse == 0) & (of_columns.square > 0))
    if precise or offset > OFFSET_OF_FLOAT32 or _is_far_off(problem, table):
        table = table.precise()
    objective = Objective(
        table=table,
        loss=problem.loss,
        scaling=scaling,
        penalty=_penalty(problem, scaling),
        l1=l1_of(scaling, problem.l1),
        intercept=problem.fit_intercept,
        # Sparse rows stay as they are: with the digits of float64.
        centered=offset > _OFFSET_OF_FLOAT64 and not table.rows.is_sparse,
        rare=rare,
        left_out=left_out,
        reads=Reads(0.0 if len(drawn) == table.n else len(drawn)),
        room=room(problem),
    )
    if measures_alone:
        return objective, _no_sample(objective)
    return objective, _sample(objective, raw, drawn, of_sample)


def _as_they_are(problem: Problem, table: Table, precise: bool) -> tuple[Objective, Sample]:
    """Return the objective of sparse rows in coordinates near the user's, and no sample."""
    rows: Any = table.rows
    p = rows.shape[1]
    user = scaling = Scaling(np.zeros(p), np.ones(p))
    if not problem.l1 > 0:
        scaling = coordinates(rows, table.share, problem.fit_intercept)
    # With corners in the penalty it is float64 anyway.
    precise = precise or problem.l1 > 0
    if precise or _is_far_off(problem, table) or has_offsets(rows, user):
        table = table.precise()
    objective = Objective(
        table=table,
        loss=problem.loss,
        scaling=scaling,
        penalty=_penalty(problem, scaling),
        l1=l1_of(scaling, problem.l1),
        intercept=problem.fit_intercept,
        reads=Reads(),
    )
    return objective, _no_sample(objective)


def _no_sample(objective: Objective) -> Sample:
    none = np.zeros(0, np.intp)
    return _sample(objective, np.zeros((0, len(objective.penalty))), none, np.zeros(0))


def has_offsets(rows: Rows, scaling: Scaling) -> bool:
    """Return whether float32 has too few digits for a feature's mean beside its deviation.

    It is judged from rows at equal distances, at most the size of a sample for a metric.
    """
    n, p = rows.shape
    block: Any = rows.pick(np.arange(0, n, max(1, n // constants.LEAST_ROWS)))
    values = in_coordinates(block.data.astype(np.float64), block.indices, scaling)
    count = max(1, block.shape[0])
    mean = np.bincount(block.indices, values, p) / count
    square = np.bincount(block.indices, np.square(values), p) / count
    variance = np.maximum(square - np.square(mean), np.finfo(np.float64).eps * square)
    return bool((np.square(mean) > OFFSET_OF_FLOAT32**2 * variance)[square > 0].any())


def fits_float32(rows: Rows, scaling: Scaling) -> bool:
    """Return whether sparse features are of a size that float32 has digits for."""
    block: Any = rows.precise().block(slice(0, min(rows.shape[0], constants.LEAST_ROWS)))
    data = in_coordinates(block.data, block.indices, scaling)
    size = np.abs(data[data != 0]).astype(np.float64)
    if not len(size):
        return True
    digits = np.log10([size.min(), size.max()])
    return bool(np.abs(digits).max() < _MOST_DIGITS_OF_A_NUMBER)


def _penalty(problem: Problem, scaling: Scaling) -> NumPyArray:
    """Return the penalty of each row of theta; features that it leaves nothing of are left out."""
    with np.errstate(over="ignore"):
        scaling.inverse[np.square(np.sqrt(problem.l2) * scaling.inverse) > _HUGE] = 0
    return penalty_of(scaling, problem.l2, problem.fit_intercept)


def l1_of(scaling: Scaling, l1: float) -> NumPyArray | None:
    """Return the penalty on the size of each row of theta, or None where there is none."""
    return l1 * np.append(scaling.inverse, 0.0) if l1 > 0 else None


def penalty_of(scaling: Scaling, l2: float, fit_intercept: bool) -> NumPyArray:
    """Return the penalty of each row of theta, (p + 1,)."""
    penalty = np.zeros(len(scaling.inverse) + 1)
    penalty[:-1] = np.square(np.sqrt(l2) * scaling.inverse)
    # What is left out of the data is kept at 0 by a penalty of its own.
    penalty[:-1][scaling.inverse == 0] = 1.0
    if not fit_intercept:
        penalty[-1] = 1.0
    return penalty


def _is_far_off(problem: Problem, table: AnyTable) -> bool:
    """Whether float32 would lose what matters in the size of the scores or of the loss."""
    loss = problem.loss
    if loss.has_classes and not table.has_offset:
        return False
    bias = np.zeros(loss.outputs if loss.outputs > 1 else ())
    if problem.fit_intercept:
        bias = null_model.best_intercept(loss, table)
    value, least = null_model.mean_loss(loss, table, bias), null_model.least_loss(table, loss)
    size = float(bias) if not table.has_offset else null_model.size_of_scores(table, bias)
    return loss.is_far_off(size, value, least)


def draw(
    loss: Loss, table: AnyTable, size: int, rng: np.random.Generator
) -> tuple[NumPyArray, NumPyArray]:
    """Return about `size` indices and their shares of the sample, which estimates the whole.

    A curvature :math:`p (1 - p)` is found where a rare class is, or looks likely: half of the
    draws go to the groups of the targets alike, half to all rows. The shares make up for it
    (importance sampling). From `size` = n on it is all rows in their order.
    """
    n = table.n
    if size >= n:
        indices = np.arange(n)
        return indices, table.beside(indices)[1]
    of_group, least, most = table.sum(_look, loss, reads=False)
    factor = _factors(of_group)
    if factor is None and min(least) == max(most):
        return rng.choice(n, size, replace=False), np.full(size, 1 / size)
    # The rows at which the cumulative probability passes random numbers.
    starts, totals = zip(*table.sum(_probability, loss, factor, reads=False), strict=True)
    sums = np.concatenate([[0.0], np.cumsum(totals)])
    wanted = np.sort(rng.random(size)) * sums[-1]
    given = loss, factor, wanted, np.array(starts), sums
    rows: NumPyArray = np.array(table.sum(_passed, *given, reads=False))
    rng.shuffle(rows)
    of_sample: NumPyArray = np.ones(size)
    if factor is not None:
        of_sample = 1 / factor[loss.groups(table.beside(rows)[0])]
    return rows, of_sample / of_sample.sum()


def _look(block: Block, loss: Loss) -> tuple[NumPyArray, list[float], list[float]]:
    """Return the shares of the groups, and the least and the largest share of a row."""
    groups, share = loss.groups(block.exact_target), block.share
    of_group: NumPyArray = np.ones(0)
    if groups is not None:
        of_group = np.bincount(groups, weights=share, minlength=loss.group_count)
    return of_group, [float(share.min())], [float(share.max())]


def _factors(of_group: NumPyArray) -> NumPyArray | None:
    """Return how much more often each group is drawn, or None if no group is rare."""
    present = of_group > 0
    if not of_group[present].min(initial=np.inf) < constants.RARE:
        return None
    inverse = np.divide(1, of_group, out=np.zeros_like(of_group), where=present)
    return np.asarray(0.5 + 0.5 * inverse / present.sum())


def _probabilities(block: Block, loss: Loss, factor: NumPyArray | None) -> NumPyArray:
    groups = loss.groups(block.exact_target)
    return block.share if factor is None else block.share * factor[groups]


def _probability(block: Block, loss: Loss, factor: NumPyArray | None) -> list[tuple[int, float]]:
    """Return the first row, and the sum of what the rows are drawn with."""
    return [(block.start, float(_probabilities(block, loss, factor).sum()))]


def _passed(
    block: Block,
    loss: Loss,
    factor: NumPyArray | None,
    wanted: NumPyArray,
    starts: NumPyArray,
    sums: NumPyArray,
) -> list[int]:
    """Return the rows at which the cumulative sum passes `wanted`, which ascends."""
    k = int(np.searchsorted(starts, block.start))
    first, last = np.searchsorted(wanted, sums[k : k + 2])
    last = len(wanted) if k + 1 == len(starts) else last
    each = _probabilities(block, loss, factor)
    found = np.searchsorted(sums[k] + np.cumsum(each), wanted[first:last], side="right")
    # Rounding may pass the last row that has a weight.
    used = np.flatnonzero(each)
    found = np.minimum(found, used[-1] if len(used) else 0)
    return (block.start + found).tolist()  # type: ignore[no-any-return]


def _scaling(spread: Spread, intercept: bool) -> tuple[Scaling, float, NumPyArray]:
    """Return the coordinates, the largest mean in units of a deviation, and the rare features.

    Rare are features whose variance comes from a few rows, or from none.
    """
    unit, mean, square, fourth = spread
    center = mean if intercept else np.zeros(len(mean))
    used = square > 0
    inverse = np.zeros(len(mean))
    with np.errstate(over="ignore"):
        inverse[used] = 1 / np.sqrt(square[used]) / unit[used]
    # Of numbers with hardly a digit left.
    inverse[np.isinf(inverse)] = 0
    offset = float((np.abs(mean) * unit * inverse).max(initial=0)) if intercept else 0.0
    rare = np.square(square) < constants.FEW_ROWS * fourth
    return Scaling(center * unit, inverse), offset, rare | (inverse == 0)


def _measure_far(raw: Any, share: NumPyArray, found: Spread) -> None:
    """Measure again, in place, the columns whose deviation may be the rounding of their mean.

    Differences to one of their numbers are exact. What is left without a deviation is constant in
    all rows that have a weight, to the last bit.
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


def _spread(raw: NumPyArray, share: NumPyArray, intercept: bool, workers: Workers) -> Spread:
    """Return what `Spread` says of the columns of an array."""
    with np.errstate(over="ignore", invalid="ignore"):
        found = _moments(raw, share, intercept, workers)
    square = found.square
    extreme = np.flatnonzero(~((square > _LEAST_SQUARE) & (square < 1 / _LEAST_SQUARE)))
    if len(extreme):
        # Divided by a power of two, so that no square overflows or vanishes.
        columns = raw[:, extreme]
        largest = np.abs(columns).max(axis=0)
        unit = np.exp2(np.floor(np.log2(np.where(largest > 0, largest, 1))))
        of_these = _moments(columns / unit, share, intercept, workers)
        for numbers, some in zip(found, of_these._replace(unit=unit), strict=True):
            numbers[extreme] = some
    return found


def _moments(raw: NumPyArray, share: NumPyArray, intercept: bool, workers: Workers) -> Spread:
    """Return the same with units of 1."""
    count, p = raw.shape
    # Parts that a core's cache holds: with all 64 rows of 5,000 columns it took twice as long.
    size = max(constants.LEAST_BLOCK_ROWS // 8, constants.PART_ROWS // p)
    parts = [slice(start, start + size) for start in range(0, count, size)]
    mean: NumPyArray = share @ raw
    center = mean if intercept else np.zeros(p)

    def of_part(part: slice) -> tuple[NumPyArray, NumPyArray, NumPyArray]:
        power = raw[part] - center
        first = share[part] @ power
        np.square(power, out=power)
        square = share[part] @ power
        np.square(power, out=power)
        return first, square, np.square(share[part]) @ power

    first, square, fourth = np.zeros(p), np.zeros(p), np.zeros(p)
    for of_first, of_square, of_fourth in workers.map(of_part, parts):
        first += of_first
        square += of_square
        fourth += of_fourth
    if intercept:
        # The mean of 200,000 equal numbers is off by what would look like a deviation.
        mean += first
        square -= np.square(first)
        np.maximum(square, 0, out=square)
    return Spread(np.ones(p), mean, square, fourth)


def _measure_rare(table: AnyTable, rare: NumPyArray, scaling: Scaling, intercept: bool) -> None:
    """Measure, in place, the columns of which the sample knows next to nothing: by one pass."""
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
        That of all rows.
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
        reads=Reads(),
        room=None,
    )


def _sample(objective: Objective, raw: Features, drawn: NumPyArray, share: NumPyArray) -> Sample:
    """Return the sample of raw rows, which are changed if they are dense."""
    kind, rows = Sample, raw
    if issparse(raw):
        center, inverse = objective.scaling.center, objective.scaling.inverse
        kind, rows = SparseSample, CenteredRows(raw, center, inverse, objective.intercept)
    else:
        rows = _scaled(objective, raw)
    target, _, offset = objective.table.beside(drawn)
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
    """Put raw rows into theta's coordinates, in place."""
    size = max(constants.LEAST_BLOCK_ROWS, constants.PART_ROWS // raw.shape[1])
    parts = [slice(start, start + size) for start in range(0, len(raw), size)]
    raw[:, -1] = objective.intercept
    # Whole rows: NumPy takes twice as long for all but the last column.
    center, inverse = objective.scaling.center, objective.scaling.inverse
    whole = Scaling(np.append(center, 0), np.append(inverse, 1))

    def scale(part: slice) -> None:
        write_centred(raw[part], whole, raw[part])

    for _ in objective.workers.map(scale, parts):
        pass
    return raw
