r"""Whether some rows can be separated at no cost to the others: quasi-complete separation.

Without a penalty the loss of classes has no minimum if, along some direction, no row loses and some
row gains: the score of its own class, less that of another class, grows. A loss has a minimum if
there is no such direction (Albert & Anderson, Biometrika 71, 1984).

Of Poisson's and Tweedie's losses, a row with the target 0 gains if its score sinks, and all other
rows lose if theirs changes.

One column may be such a direction.

Near the infimum few rows are left to ask. What a row gains at most, its share of the loss of a
class that the direction leaves behind, is below F - F*. So pairs of a row and a class that have
more than that stay as they are along each such direction, and usually they leave none. What they
leave is a linear program in as few variables.
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
"""Beyond this nothing is said: a second for the factors, and 160 MB for the margins."""

_MOST_OF_PROGRAM = 1e6
"""Numbers of a linear program that takes some seconds."""

_SAME = 1e-8
"""A margin of a row of length 1 that is 0 but for rounding."""

_OF_PROGRAM = 1e-6
"""The same after the linear program, which allows 1e-7."""


def are_quasi_separated(objective: Objective, scores: NumPyArray, distance: float) -> bool:
    """Return whether there is such a direction; False also if that is too much to find out.

    Parameters
    ----------
    objective : Objective
        Without a penalty, of a loss of classes or one that falls at targets of 0.
    scores : numpy.ndarray, (n,) or (n, K)
        Near the infimum.
    distance : float
        How far above it, at most.
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
    """Return whether some column is such a direction: of one sign, and 0 in all rows of a class.

    As a rule it is a category that a class does not have. For targets of 0 it has no others.
    """
    loss, rows = objective.loss, objective.rows.precise()
    groups, p = max(2, loss.outputs), rows.shape[1]
    if groups * p > _MOST_NUMBERS:
        return False
    # Counts, not sums: 1e17 - 1 is 1e17.
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
    """Return rows, other classes than their own, and what a pair gains at most.

    That is the share times the other class's probability, or the mean at a target 0.
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
    """Return what each pair gains along each direction, for rows of length 1.

    Of K classes the last has no weights of its own: a shift of all of them changes nothing.
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
    """Return directions that `matrix` takes to 0: singular values up to `least`, or to 1e-7."""
    triangle = np.linalg.qr(matrix, mode="r")
    values, right = np.linalg.svd(triangle)[1:]
    limit = 1e-7 * values.max(initial=0.0) if least is None else least
    return np.asarray(right[int((values > limit).sum()) :].T)


def _some_direction(margins: NumPyArray) -> bool:
    """Return whether some combination of columns has no number below 0, and some above it."""
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
