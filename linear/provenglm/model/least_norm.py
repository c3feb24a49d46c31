"""Choose, among all coefficients with the same scores, those of least norm in the user's units.

Without a penalty, and if some columns are sums of others, the scores do not determine the
coefficients. Among the possible ones, scikit-learn's ``LinearRegression`` and
``numpy.linalg.lstsq`` return those of least norm. This module does the same for all losses; the
intercept is not part of the norm.
"""

from __future__ import annotations

import numpy as np
import scipy.linalg

from provenglm import constants
from provenglm.model.objective import Objective
from provenglm.model.triangle import (
    ROUNDING_OF_A_COLUMN,
    Basis,
    in_theta,
    triangle,
    weighted_rows,
)
from provenglm.types import NumPyArray

_FEW_ROWS = 2
"""The number of rows per column that are enough to find columns that may be sums of others."""


def least_norm(objective: Objective, theta: NumPyArray) -> NumPyArray | None:
    """Return the theta, (p + 1, K), whose user coefficients have the least norm.

    Return None if it is the given theta, if computing it would take more than about a second, or
    if the rows are far away.
    """
    n, width = objective.n, len(theta)
    if objective.table.is_out_of_core or n * width * min(n, width) > constants.LARGEST_PROOF:
        return None
    inverse = objective.scaling.inverse
    kept = np.flatnonzero(np.append(inverse > 0, objective.intercept))
    basis = _basis(objective, kept)
    if not len(basis.rest):
        return None
    base, rest = kept[basis.base], kept[basis.rest]
    order = np.concatenate([base, rest])
    # The scores determine one sum of coefficients for each column of the base.
    sums = theta[base] + basis.factors @ theta[rest]
    unit = np.append(np.divide(1, inverse, out=np.zeros(width - 1), where=inverse > 0), 0.0)
    equations = np.hstack([np.eye(len(base)), basis.factors]) * unit[order]
    counted = base < width - 1
    # Find the least-norm solution of equations in the user's coefficients.
    span, upper = scipy.linalg.qr(equations[counted].T, mode="economic", check_finite=False)
    coef = span @ scipy.linalg.solve_triangular(upper, sums[counted], trans=1, check_finite=False)
    found = theta.copy()
    found[order] = coef * unit[order][:, None]
    found[-1] = theta[-1]
    if not counted.all():
        found[-1] = (sums - basis.factors @ found[rest])[~counted][0]
    return found if np.isfinite(found).all() else None


def _basis(objective: Objective, kept: NumPyArray) -> Basis:
    """Return which of the columns are sums of others in all rows that have a weight.

    Rows at equal distances give the candidates, and a pass over all rows checks them. All rows are
    factored only if a candidate fails.
    """
    share, width = np.asarray(objective.share[:]), len(objective.penalty)
    used = np.flatnonzero(share > 0)
    few = used[:: max(1, len(used) // (_FEW_ROWS * width))]
    rows = in_theta(objective, objective.table.picked(few))[:, kept]
    basis = Basis.of(triangle([rows], len(kept)), objective.intercept)
    if len(few) == len(used) or not len(basis.rest):
        return basis
    left, size = np.zeros(len(basis.rest)), np.zeros(len(basis.rest))
    for block in weighted_rows(objective, share):
        rest = block[:, kept[basis.rest]]
        left += np.square(rest - block[:, kept[basis.base]] @ basis.factors).sum(axis=0)
        size += np.square(rest).sum(axis=0)
    if (left <= np.square(ROUNDING_OF_A_COLUMN) * size).all():
        return basis
    upper = triangle(weighted_rows(objective, share), width)
    return Basis.of(upper[:, kept], objective.intercept)
