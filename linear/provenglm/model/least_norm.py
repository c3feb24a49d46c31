"""Of all coefficients with the same scores, those of the least norm in the user's units.

Without a penalty and with columns that are sums of others, scores do not determine coefficients.
Among them, scikit-learn's ``LinearRegression`` and ``numpy.linalg.lstsq`` take those of the least
norm. So is done here, for all losses; the intercept does not count.
"""

from __future__ import annotations

import numpy as np
import scipy.linalg

from provenglm import constants
from provenglm.model.cholesky import CholeskyMetric
from provenglm.model.objective import Objective
from provenglm.model.triangle import Basis, in_theta, triangle, weighted_rows
from provenglm.types import NumPyArray


def least_norm(objective: Objective, theta: NumPyArray) -> NumPyArray | None:
    """Return theta, (p + 1,) or (p + 1, K), with the least norm of the user's coefficients.

    None if it is theta, or if that would take more than about a second to find out.
    """
    n, width = objective.n, len(theta)
    if n * width * min(n, width) > constants.LARGEST_PROOF or _has_full_rank(objective):
        return None
    inverse = objective.scaling.inverse
    kept = np.flatnonzero(np.append(inverse > 0, objective.intercept))
    upper = triangle(weighted_rows(objective, np.asarray(objective.share[:])), width)
    basis = Basis.of(upper[:, kept], objective.intercept)
    if not len(basis.rest):
        return None
    base, rest = kept[basis.base], kept[basis.rest]
    order = np.concatenate([base, rest])
    whole = theta.reshape(width, -1)
    # What the scores determine: for each column of the base a sum of coefficients.
    sums = whole[base] + basis.factors @ whole[rest]
    unit = np.append(np.divide(1, inverse, out=np.zeros(width - 1), where=inverse > 0), 0.0)
    equations = np.hstack([np.eye(len(base)), basis.factors]) * unit[order]
    counted = base < width - 1
    # The least solution of equations in the user's coefficients.
    span, upper = scipy.linalg.qr(equations[counted].T, mode="economic", check_finite=False)
    coef = span @ scipy.linalg.solve_triangular(upper, sums[counted], trans=1, check_finite=False)
    found = whole.copy()
    found[order] = coef * unit[order][:, None]
    found[-1] = whole[-1]
    if not counted.all():
        found[-1] = (sums - basis.factors @ found[rest])[~counted][0]
    return found.reshape(theta.shape) if np.isfinite(found).all() else None


def _has_full_rank(objective: Objective) -> bool:
    """Whether some rows at equal distances say that no column is a sum of others."""
    width = len(objective.penalty)
    chosen = np.flatnonzero(np.asarray(objective.share[:]) > 0)
    chosen = chosen[:: max(1, len(chosen) // (2 * width))]
    if len(chosen) < width or not objective.scaling.inverse.all():
        return False
    rows = in_theta(objective, objective.rows.precise().pick(chosen))
    gram = rows.T @ rows
    if not objective.intercept:
        gram[-1, -1] = 1.0
    return not CholeskyMetric(gram, is_exact=True).is_rough
