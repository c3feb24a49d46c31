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

from typing import Any

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import csr_array

from provenglm import constants
from provenglm.model.objective import Objective
from provenglm.types import NumPyArray

_MOST_WEIGHTS, _MOST_NUMBERS = 1000, 2e7
"""Larger problems are not checked: factors take a second, and the margins 160 MB."""

_MOST_OF_PROGRAM = 1e6
"""The largest number of entries in the linear program, which then takes some seconds."""

_SAME = 1e-8
"""The margin of a row of length 1 is 0 up to rounding if it is smaller."""

_OF_PROGRAM = 1e-6
"""The same threshold for a solution of the linear program, which has a tolerance of 1e-7."""


def are_quasi_separated(objective: Objective, scores: NumPyArray, distance: float) -> bool:
    """Return whether such a direction exists; False also if finding out would take too long.

    Parameters
    ----------
    objective : Objective
        An objective without a penalty, of a loss of classes or one that falls at targets of 0.
    scores : numpy.ndarray, (n,) or (n, K)
        Scores near the infimum.
    distance : float
        An upper bound of the distance to the infimum.
    """
    if _has_column(objective):
        return True
    used = objective.scaling.inverse > 0
    classes = max(1, objective.loss.outputs - 1)
    columns = int(used.sum()) + objective.intercept
    if not 0 < columns * classes <= _MOST_WEIGHTS:
        return False
    rows, others, mass = _pairs(objective, scores)
    stays = mass > distance
    first = np.random.default_rng(0).permutation(np.flatnonzero(stays))
    first = np.sort(first[: 2 * columns * classes + 50])
    directions = np.eye(columns * classes)
    if len(first):
        margins = _margins(objective, rows[first], others[first], directions)
        directions = directions @ _null_space(margins)
    if directions.size == 0 or len(rows) * directions.shape[1] > _MOST_NUMBERS:
        return False
    margins = _margins(objective, rows, others, directions)
    moves = np.abs(margins).max(axis=1) > _SAME
    left = _null_space(margins[stays & moves], _SAME)
    return _some_direction(margins[~stays & moves] @ left)


def _has_column(objective: Objective) -> bool:
    """Return whether one column is such a direction: of one sign, and 0 in all rows of a class.

    Usually this is a category that never occurs in a class. For targets of 0 it has no other rows.
    """
    loss, rows = objective.loss, objective.rows.precise()
    groups, p = max(2, loss.outputs), rows.shape[1]
    if groups * p > _MOST_NUMBERS:
        return False
    # Compare counts instead of sums, because 1e17 - 1 is 1e17.
    above, below = np.zeros((groups, p)), np.zeros((groups, p))
    for part in rows.slices():
        block: Any = rows.block(part)
        kept = np.flatnonzero(objective.share[part] > 0)
        group = loss.observed(objective.target[part])[kept]
        group = (group > 0 if loss.falls_at_zero else group).astype(np.intp)
        of_groups = csr_array((np.ones(len(kept)), (group, kept)), (groups, block.shape[0]))
        above += of_groups @ (block > 0)
        below += of_groups @ (block < 0)
    is_one_sided = (objective.scaling.inverse > 0) & (above.any(axis=0) != below.any(axis=0))
    is_empty = above + below == 0
    if loss.falls_at_zero:
        is_empty = is_empty[1:]
    return bool((is_one_sided & is_empty.any(axis=0)).any())


def _pairs(objective: Objective, scores: NumPyArray) -> tuple[NumPyArray, NumPyArray, NumPyArray]:
    """Return rows, classes other than their own, and the largest possible gain of each pair.

    The gain is the share times the other class's probability, or times the mean at a target 0.
    """
    loss, share = objective.loss, objective.share[:]
    residual = np.abs(loss.residual(scores.astype(np.float64), objective.target))
    if loss.falls_at_zero:
        residual[objective.target > 0] = np.inf
    if residual.ndim == 1:
        rows = np.flatnonzero(share > 0)
        return rows, np.zeros(len(rows), np.intp), share[rows] * residual[rows]
    is_other = np.repeat(share[:, None] > 0, residual.shape[1], axis=1)
    is_other[np.arange(len(residual)), objective.target] = False
    rows, others = np.nonzero(is_other)
    return rows, others, share[rows] * residual[rows, others]


def _margins(
    objective: Objective, rows: NumPyArray, others: NumPyArray, directions: NumPyArray
) -> NumPyArray:
    """Return the gain of each pair along each direction, for rows of length 1.

    With K classes the last one has no weights of its own, because shifting all changes nothing.
    """
    used = objective.scaling.inverse > 0
    center, inverse = objective.scaling.center[used], objective.scaling.inverse[used]
    count, precise = directions.shape[1], objective.rows.precise()
    each = directions.reshape(len(inverse) + objective.intercept, -1)
    classes = each.shape[1] // max(count, 1)
    margins = np.empty((len(rows), count))
    step = max(1, constants.PART_ROWS // max(1, len(each)))
    for start in range(0, len(rows), step):
        part = slice(start, start + step)
        some, place = np.unique(rows[part], return_inverse=True)
        block = (precise.gather(some)[:, used] - center) * inverse
        if objective.intercept:
            block = np.column_stack([block, np.ones(len(block))])
        size = np.sqrt(np.square(block).sum(axis=1))
        block /= np.where(size > 0, size, 1.0)[:, None]
        gains = (block @ each).reshape(len(some), classes, count)[place]
        own = objective.loss.observed(objective.target[rows[part]]).astype(np.intp)
        if objective.loss.outputs == 1:
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
    if margins.size > _MOST_OF_PROGRAM:
        return False
    found = linprog(
        -margins.sum(axis=0), A_ub=-margins, b_ub=np.zeros(len(margins)), bounds=(-1, 1)
    )
    if found.x is None:
        return False
    gained = margins @ found.x
    return bool(gained.min() >= -_OF_PROGRAM and gained.max() > 1e3 * _OF_PROGRAM)
