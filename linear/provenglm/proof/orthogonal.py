r"""A bound of a gradient in the inverse of a Hessian of which a Gram matrix has no digits.

Let R be the triangle of the weighted rows, and :math:`b_i = R^{-T} x_i` the rows in coordinates in
which they are nearly orthonormal. With :math:`\sigma` at least the least singular value of the rows
:math:`\sqrt{w_i}\, b_i`, a gradient :math:`g = \sum_i u_i x_i` has

.. math:: g^T H^{-1} g \le \|\sum_i u_i b_i\|^2 / \sigma^2, \qquad H = \sum_i w_i x_i x_i^T

with any R: that of a QR factorisation makes :math:`\sigma` nearly 1. A row's solution of a
triangular system is off by at most :math:`\kappa = c u \| |R| |R^{-1}| \|` times its norm (Higham
2002, theorem 8.5), so that all can be said up to a condition of about 1e12; of a Gram matrix it is
1e7.

Columns that are sums of others but for rounding are left out. The gradient along the part of them
that is left is bounded beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np
import scipy.linalg

from provenglm.model.triangle import Basis, triangle
from provenglm.types import NumPyArray

_UNIT = 2.0**-53

LARGEST_RATIO = 1e4
"""Where columns are sums of others but for rounding, larger coefficients fit the rounding."""

_LEAST = 0.5
"""Of the singular values in these coordinates: with less there is no statement."""


class RowsOfAProof(NamedTuple):
    """Some rows.

    Attributes
    ----------
    features : numpy.ndarray, (m, w)
        Each number with at most two roundings.
    share, weight : numpy.ndarray, (m,)
    residual : numpy.ndarray, (m, K)
        The gradient is the sum of share times residual times features, the Hessian that of weights
        times their products. Of classes, with the sum 0 over them, it is the same for each.
    """

    features: NumPyArray
    share: NumPyArray
    weight: NumPyArray
    residual: NumPyArray


class Rotated(NamedTuple):
    """What is proven of a gradient.

    Attributes
    ----------
    norm : float
        In the inverse of the Hessian, at most, for residuals that are exact.
    of_noise : float
        Times the root mean square of what rows of residuals are off, it is added to that.
    norms : numpy.ndarray, (n,)
        Of the rows in the inverse of the Hessian, at most.
    left : float
        The sum of the gradient's numbers along what is left of the columns that are left out, each
        for a column of norm 1.
    sizes : numpy.ndarray, (w,)
        Root mean squares of the columns.
    """

    norm: float
    of_noise: float
    norms: NumPyArray
    left: float
    sizes: NumPyArray


def rotated(blocks: Callable[[], Iterable[RowsOfAProof]], width: int) -> Rotated | None:
    """Return the bound, in two passes over the rows; None for no statement."""
    weighted = (rows.features * np.sqrt(rows.weight)[:, None] for rows in blocks())
    upper = triangle(weighted, width)
    if not np.isfinite(upper).all():
        return None
    basis = Basis.of(upper)
    count = len(basis.base)
    inverse = scipy.linalg.solve_triangular(basis.upper, np.eye(count), check_finite=False)
    condition = float(np.linalg.norm(np.abs(basis.upper) @ np.abs(inverse)))
    kappa = 1.02 * (count + 8) * _UNIT * condition
    if not kappa <= 0.01:
        return None
    gram: NumPyArray = np.zeros((count, count))
    total: NumPyArray | float = 0.0
    of_weights = of_shares = of_residuals = 0.0
    left, sizes, norms, longest, parts = np.zeros(len(basis.rest)), np.zeros(width), [], 0, 0
    for rows in blocks():
        own = rows.features[:, basis.base]
        turned = scipy.linalg.solve_triangular(basis.upper, own.T, trans=1, check_finite=False).T
        scaled = turned * np.sqrt(rows.weight)[:, None]
        gram += scaled.T @ scaled
        total += turned.T @ (rows.share[:, None] * rows.residual)
        squares = np.square(turned).sum(axis=1)
        of_weights += float(rows.weight @ squares)
        of_shares += float(rows.share @ squares)
        of_residuals += float(rows.share @ np.square(rows.residual).sum(axis=1))
        norms.append(np.sqrt(squares))
        rest = rows.features[:, basis.rest]
        rounding = np.abs(rest) + np.abs(own) @ np.abs(basis.factors)
        unexplained = np.abs(rest - own @ basis.factors) + (count + 8) * _UNIT * rounding
        left += rows.share @ np.square(unexplained)
        sizes += rows.share @ np.square(rows.features)
        longest, parts = max(longest, len(own)), parts + 1
    sums = (longest + parts + 16) * _UNIT
    off = float(np.linalg.norm(gram - np.eye(count))) + sums * of_weights
    least = np.sqrt(max(1 - off, 0.0)) - 1.01 * kappa * np.sqrt(of_weights)
    if not least >= _LEAST:
        return None
    of_noise = 1.02 * np.sqrt(of_shares) / least
    norm = 1.01 * float(np.linalg.norm(total)) / least
    residual, sizes = np.sqrt(of_residuals), np.sqrt(sizes)
    norm += of_noise * (kappa + sums) * residual
    ratios = np.sqrt(left) / np.where(sizes[basis.rest] > 0, sizes[basis.rest], 1.0)
    return Rotated(
        norm=norm,
        of_noise=of_noise,
        norms=(1.02 / least) * np.concatenate(norms),
        left=1.01 * float(residual * ratios.sum()),
        sizes=sizes,
    )
