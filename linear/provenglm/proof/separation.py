r"""Detect quasi-complete separation: some rows gain along a direction and no row loses.

Without a penalty the loss of classes has no minimum if, along some direction, no row loses and some
row gains: its score for its own class grows relative to that for another class. If there is no such
direction, a minimum exists (Albert & Anderson, Biometrika 71, 1984).

For Poisson's and Tweedie's losses, a row with the target 0 gains if its score decreases, and any
other row loses if its score changes.

A single column may be such a direction.

Near the infimum only few rows need to be checked. The largest possible gain of a row is its share
of the loss that is due to a class which the direction leaves behind. This gain is at most F - F*.
Pairs of a row and a class with a larger value are therefore constant along each such direction.
Usually this excludes all directions; the directions that remain are the variables of a linear
program.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import csr_array, issparse

from provenglm import constants
from provenglm.model.losses import Loss
from provenglm.model.objective import Objective, Scaling, Snapshot
from provenglm.rows.table import Block
from provenglm.types import NumPyArray

_MOST_WEIGHTS, _MOST_NUMBERS = 1000, 2e7
"""Larger problems are not checked: factors take a second, and the margins 160 MB."""

_MAX_PROGRAM_SIZE = 1e6
"""The largest number of entries in the linear program, which then takes some seconds."""

_SAME = 1e-8
"""The margin of a row of length 1 is 0 up to rounding if it is smaller."""

_PROGRAM_TOLERANCE = 1e-6
"""The same threshold for a solution of the linear program, which has a tolerance of 1e-7."""


def are_quasi_separated(objective: Objective, point: Snapshot, distance: float) -> bool:
    """Return whether such a direction exists; False also if finding out would take too long.

    Parameters
    ----------
    objective : Objective
        An objective without a penalty, of a loss of classes or one that falls at targets of 0.
    point : Snapshot
        A point near the infimum.
    distance : float
        An upper bound of the distance to the infimum.
    """
    if _has_column(objective):
        return True
    used, loss = objective.scaling.inverse > 0, objective.loss
    classes = max(1, loss.outputs - 1)
    width = (int(used.sum()) + objective.intercept) * classes
    if not 0 < width <= _MOST_WEIGHTS:
        return False
    table, model = objective.table.precise(), objective.precise().model(point.theta)
    kept, place = point.kept, _Place(used, objective.scaling, objective.intercept)
    given = loss, distance
    staying = table.sum(_count_of_staying, *given, at=model, kept=kept, reads=False)
    directions = np.eye(width)
    if staying:
        part = (2 * width + 50) / staying
        drawn = table.sum(_drawn, *given, part, place, directions, at=model, kept=kept)
        directions = directions @ _null_space(np.concatenate(drawn))
    if directions.size == 0 or table.n * classes * directions.shape[1] > _MOST_NUMBERS:
        return False
    stay, move = table.sum(_moves, *given, place, directions, at=model, kept=kept)
    left = _null_space(np.concatenate(stay), _SAME)
    return _some_direction(np.concatenate(move) @ left)


def _has_column(objective: Objective) -> bool:
    """Return whether one column is such a direction: of one sign, and 0 in all rows of a class.

    Usually this is a category that never occurs in a class. For targets of 0 it has no other rows.
    """
    loss, table = objective.loss, objective.table.precise()
    if max(2, loss.outputs) * table.rows.shape[1] > _MOST_NUMBERS:
        return False
    above, below = table.sum(_signs, loss)
    is_one_sided = (objective.scaling.inverse > 0) & (above.any(axis=0) != below.any(axis=0))
    is_empty = above + below == 0
    if loss.falls_at_zero:
        is_empty = is_empty[1:]
    return bool((is_one_sided & is_empty.any(axis=0)).any())


def _signs(block: Block, loss: Loss) -> tuple[NumPyArray, NumPyArray]:
    """Return the counts of numbers above 0 and below 0, for each group and column.

    Counts are used instead of sums, because 1e17 - 1 is 1e17 in float64.
    """
    features: Any = block.raw
    kept = np.flatnonzero(block.share > 0)
    group = block.exact_target[kept]
    group = (group > 0 if loss.falls_at_zero else group).astype(np.intp)
    shape = max(2, loss.outputs), len(block)
    group_indicator = csr_array((np.ones(len(kept)), (group, kept)), shape)
    above, below = group_indicator @ (features > 0), group_indicator @ (features < 0)
    if issparse(above):
        above, below = above.toarray(), below.toarray()
    return np.asarray(above, np.float64), np.asarray(below, np.float64)


class _Place(NamedTuple):
    """The coordinates in which margins are computed."""

    used: NumPyArray
    scaling: Scaling
    intercept: bool


def _pairs(block: Block, loss: Loss, distance: float) -> tuple[NumPyArray, NumPyArray, NumPyArray]:
    """Return rows, classes other than their own, and whether a pair's gain exceeds `distance`.

    The largest possible gain is the share times the other class's probability, or times the mean
    at a target 0.
    """
    share, target = block.share, block.exact_target
    residual = np.abs(loss.residual(block.precise_scores, target))
    if loss.falls_at_zero:
        residual[target > 0] = np.inf
    is_other = np.repeat(share[:, None] > 0, residual.shape[1], axis=1)
    if loss.outputs > 1:
        is_other[np.arange(len(residual)), target] = False
    rows, others = np.nonzero(is_other)
    return rows, others, share[rows] * residual[rows, others] > distance


def _count_of_staying(block: Block, loss: Loss, distance: float) -> int:
    return int(np.count_nonzero(_pairs(block, loss, distance)[2]))


def _drawn(
    block: Block,
    loss: Loss,
    distance: float,
    part: float,
    place: _Place,
    directions: NumPyArray,
) -> list[NumPyArray]:
    """Return the margins of some of the pairs whose gain exceeds `distance`."""
    rows, others, stays = _pairs(block, loss, distance)
    chosen = np.flatnonzero(stays)
    is_drawn = np.random.default_rng(block.start).random(len(chosen)) <= part
    chosen = chosen[is_drawn]
    return [_margins(block, loss, place, rows[chosen], others[chosen], directions)]


def _moves(
    block: Block, loss: Loss, distance: float, place: _Place, directions: NumPyArray
) -> tuple[list[NumPyArray], list[NumPyArray]]:
    """Return the nonzero margins of pairs whose gain exceeds `distance`, and those of other pairs.

    The former are replaced by a triangle with the same products.
    """
    rows, others, stays = _pairs(block, loss, distance)
    margins = _margins(block, loss, place, rows, others, directions)
    moves = np.abs(margins).max(axis=1, initial=0.0) > _SAME
    stay, move = margins[stays & moves], margins[~stays & moves]
    if len(stay) > stay.shape[1]:
        stay = np.asarray(np.linalg.qr(stay, mode="r"))
    return [stay], [move]


def _margins(
    block: Block,
    loss: Loss,
    place: _Place,
    rows: NumPyArray,
    others: NumPyArray,
    directions: NumPyArray,
) -> NumPyArray:
    """Return the gain of each pair along each direction, for rows of length 1.

    With K classes the last one has no weights of its own, because shifting all changes nothing.
    """
    used, scaling, intercept = place
    center, inverse = scaling.center[used], scaling.inverse[used]
    count, features = directions.shape[1], block.raw
    each = directions.reshape(len(inverse) + intercept, -1)
    classes = each.shape[1] // max(count, 1)
    margins = np.empty((len(rows), count))
    step = max(1, constants.PART_ROWS // max(1, len(each)))
    for start in range(0, len(rows), step):
        part = slice(start, start + step)
        some, again = np.unique(rows[part], return_inverse=True)
        numbers: Any = features[some]
        numbers = numbers.toarray() if issparse(numbers) else numbers
        numbers = (numbers[:, used] - center) * inverse
        if intercept:
            numbers = np.column_stack([numbers, np.ones(len(numbers))])
        size = np.sqrt(np.square(numbers).sum(axis=1))
        numbers /= np.where(size > 0, size, 1.0)[:, None]
        gains = (numbers @ each).reshape(len(some), classes, count)[again]
        own = block.exact_target[rows[part]].astype(np.intp)
        if loss.outputs == 1:
            margins[part] = np.where(own > 0, 1.0, -1.0)[:, None] * gains[:, 0]
        else:
            gains = np.concatenate([gains, np.zeros((len(gains), 1, count))], axis=1)
            pair = np.arange(len(gains))
            margins[part] = gains[pair, own] - gains[pair, others[part]]
    return margins


def _null_space(matrix: NumPyArray, least: float | None = None) -> NumPyArray:
    """Return the directions that `matrix` maps to 0: singular values up to `least`, or to 1e-7."""
    triangle = np.linalg.qr(matrix, mode="r")
    values, right = np.linalg.svd(triangle)[1:]
    limit = 1e-7 * values.max(initial=0.0) if least is None else least
    return np.asarray(right[int((values > limit).sum()) :].T)


def _some_direction(margins: NumPyArray) -> bool:
    """Return whether a combination of columns has no negative and some positive entry."""
    margins = margins[np.abs(margins).max(axis=1, initial=0.0) > _SAME]
    if not margins.size:
        return False
    values, right = np.linalg.svd(np.linalg.qr(margins, mode="r"))[1:]
    margins = margins @ right[: int((values > 1e-7 * values[0]).sum())].T
    margins /= np.abs(margins).max(axis=1, keepdims=True)
    count = margins.shape[1]
    if count == 1:
        return bool((margins > 0).all() or (margins < 0).all())
    if margins.size > _MAX_PROGRAM_SIZE:
        return False
    found = linprog(
        -margins.sum(axis=0), A_ub=-margins, b_ub=np.zeros(len(margins)), bounds=(-1, 1)
    )
    if found.x is None:
        return False
    gained = margins @ found.x
    return bool(gained.min() >= -_PROGRAM_TOLERANCE and gained.max() > 1e3 * _PROGRAM_TOLERANCE)
