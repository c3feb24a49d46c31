r"""The covariance matrix of the coefficients, from the Hessian at the optimum.

Let :math:`H = \sum_i s_i w_i x_i x_i^T` be the Fisher information, where s are the sample weights
and w is the expected curvature of the loss, let :math:`M = H + S\Lambda` include the penalty, and
let :math:`\phi` be the dispersion. The covariance is :math:`\phi M^{-1} H M^{-1}` (McCullagh &
Nelder 1989, section 2.5; Hastie & Tibshirani 1990, section 3.8), which is :math:`\phi H^{-1}`
without a penalty. Features are centred with the weights :math:`s_i w_i`, so that the row and the
column of H for the intercept are 0 off the diagonal, and scaled so that the diagonal is 1.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import scipy.linalg

from provenglm.model.losses import Loss
from provenglm.model.objective import Scaling
from provenglm.rows.base import Rows
from provenglm.rows.gram import gram
from provenglm.rows.products import column_products
from provenglm.rows.table import Table
from provenglm.types import NumPyArray
from provenglm.workers import Workers

_SINGULAR = 1e-12
"""Smallest eigenvalue per row of a matrix with diagonal 1; anything below it is rounding."""

_ROUNDING = 1e-6
"""Relative rounding error of the degrees of freedom."""


class Covariance(NamedTuple):
    """The covariance matrix and what it was computed with.

    Attributes
    ----------
    matrix : numpy.ndarray, (p + 1, p + 1)
        With the intercept last; (p, p) without one.
    dispersion : float
        1, or Pearson's statistic divided by the residual degrees of freedom.
    residual_degrees : float
        The residual degrees of freedom: the number of observations minus that of coefficients, of
        which penalised ones count in part.
    """

    matrix: NumPyArray
    dispersion: float
    residual_degrees: float


def covariance(
    rows: Rows,
    loss: Loss,
    residual: NumPyArray,
    fisher: NumPyArray,
    weight: NumPyArray,
    observations: float,
    penalty: float,
    has_intercept: bool,
    names: NumPyArray | None = None,
) -> Covariance:
    """Return the covariance matrix of the coefficients.

    Parameters
    ----------
    rows : Rows
        The rows, in float64.
    residual, fisher : numpy.ndarray, (n,)
        Derivative and expected curvature of the losses at the scores; finite in every row.
    weight : numpy.ndarray, (n,)
        The weights of the samples.
    observations : float
        How many observations the samples are.
    penalty : float
        Strength of the penalty on half the squared coefficients, for the *sum* of the losses.
    names : numpy.ndarray, (p,), optional
        Names of the columns.

    Raises
    ------
    ValueError
        If the matrix is singular, or if too few observations leave no degrees of freedom.
    """
    count, coefficients = int(np.count_nonzero(weight)), rows.shape[1] + has_intercept
    if penalty == 0 and count < coefficients:
        which = "" if count == len(weight) else " with a positive weight"
        raise ValueError(
            f"there are {count} rows{which} for {coefficients} coefficients, which therefore have "
            "no standard errors: give more rows, fewer columns, or a penalty"
        )
    workers = Workers(rows.shape[0] * rows.shape[1])
    with workers.running():
        information, center, total = _information(rows, weight * fisher, has_intercept, workers)
    penalised = information + penalty * np.eye(len(information))
    # A smaller variance is the rounding error of the mean.
    least = total * np.square(1000 * np.finfo(np.float64).eps * center)
    scale = np.sqrt(np.where(penalised.diagonal() > least, penalised.diagonal(), 0))
    if not scale.all():
        column = int(np.argmin(scale))
        why = "is the same in all rows" if has_intercept else "is 0 in all rows"
        raise ValueError(
            f"column {_name_of(column, names)} of X {why}, so its coefficient has no standard "
            "error: drop the column, or give a penalty"
        )
    scaled = penalised / np.multiply.outer(scale, scale)
    values, vectors = scipy.linalg.eigh(scaled, check_finite=False)
    if not values[0] > _SINGULAR * len(values):
        size = np.abs(vectors[:, 0])
        most = np.flatnonzero(size > 0.1 * size.max())[:8]
        columns = ", ".join(_name_of(int(column), names) for column in most)
        raise ValueError(
            f"columns {columns} of X are linearly dependent, so their coefficients have no "
            "standard errors: drop one of them (of the indicators of each category, one), or fit "
            "with a penalty and take standard_errors instead of summary"
        )
    inverse = (vectors / values) @ vectors.T / np.multiply.outer(scale, scale)
    found = inverse if penalty == 0 else inverse @ information @ inverse
    # Residual degrees of freedom.
    used = float(np.vdot(inverse, information)) + has_intercept
    left = observations - used
    if not left > 0 and (loss.has_dispersion or left < -_ROUNDING * used):
        raise ValueError(_too_few(observations, count, used))
    dispersion = 1.0
    if loss.has_dispersion:
        # Pearson's statistic divided by the residual degrees of freedom.
        dispersion = float(weight @ (np.square(residual) / fisher)) / left
    if has_intercept:
        beside = -found @ center
        table = np.empty((len(found) + 1, len(found) + 1))  # np.block takes 40 us
        table[:-1, :-1] = found
        table[-1, :-1] = table[:-1, -1] = beside
        table[-1, -1] = 1 / total - float(beside @ center)
        found = table
    return Covariance(np.asarray(dispersion * found), dispersion, left)


def _information(
    rows: Rows, weight: NumPyArray, has_intercept: bool, workers: Workers
) -> tuple[NumPyArray, NumPyArray, float]:
    """Return the Fisher information of centred features, their mean, and the sum of weights."""
    total, center = float(weight.sum()), np.zeros(rows.shape[1])
    if has_intercept:
        table = Table(rows, weight, weight, workers)
        center = table.sum(lambda block: column_products(block.raw, block.share)) / total
    scaling = Scaling(center, np.ones(len(center)))
    return gram(rows, weight, workers, coordinates=scaling), center, total


def _too_few(observations: float, count: int, used: float) -> str:
    """Return the error message for observations that leave no degrees of freedom."""
    if count <= used + _ROUNDING * used:
        return (
            f"there are {count} rows for {used:g} coefficients, which leaves none to estimate the "
            "dispersion: give more rows"
        )
    return (
        f"sample_weight has the sum {observations:g} in {count} rows, for {used:g} coefficients, "
        "and weights are frequencies here: give weights='variance' if they are inverse variances, "
        f"or fit with sample_weight * {count / observations:g}"
    )


def _name_of(column: int, names: NumPyArray | None) -> str:
    return str(column) if names is None else f"{column} ({names[column]!r})"
