r"""Bound gradients in the inverse of a Hessian that is too ill-conditioned for a Gram matrix.

Let R be the triangle of a QR factorisation of the weighted rows, and :math:`b_i = R^{-T} x_i` the
rows in coordinates in which they are nearly orthonormal. If :math:`\sigma` is a lower bound of the
singular values of the rows :math:`\sqrt{w_i}\, b_i`, a gradient :math:`g = \sum_i u_i x_i`
satisfies

.. math:: g^T H^{-1} g \le \|\sum_i u_i b_i\|^2 / \sigma^2, \qquad H = \sum_i w_i x_i x_i^T

This holds for any R; with a QR factorisation :math:`\sigma` is nearly 1. The computed solution of a
triangular system differs from the exact one by at most :math:`\kappa = c u \| |R| |R^{-1}| \|`
times its norm (Higham 2002, theorem 8.5). The bound is therefore useful up to a condition number of
about 1e12; with a Gram matrix the limit is 1e7.

Columns that are sums of others up to rounding are left out. The gradient along the rest of these
columns has a separate bound.
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
"""The bound holds for coefficients up to this many times as large, if columns are sums of others up
to rounding. Larger coefficients would only fit the rounding errors."""

_MOST_LEFT = 1e-8
"""A column is a sum of others up to rounding if they leave at most this part of its size in all
rows, also in those without a curvature."""

_LEAST = 0.5
"""Nothing is proven if a singular value in these coordinates is smaller."""


class ProofRows(NamedTuple):
    """Some rows, with the terms of gradient and Hessian.

    Attributes
    ----------
    features : numpy.ndarray, (m, w)
        The features; each number has at most two rounding errors.
    share, weight : numpy.ndarray, (m,)
    residual : numpy.ndarray, (m, K)
        The residuals. The gradient is the sum of share times residual times features, and the
        Hessian the sum of weight times the products of the features. With classes, residuals sum to
        0 over the classes, and the Hessian is the same for each class.
    """

    features: NumPyArray
    share: NumPyArray
    weight: NumPyArray
    residual: NumPyArray


class QrBounds(NamedTuple):
    """The bounds for a gradient and for the rows.

    Attributes
    ----------
    norm : float
        An upper bound of the gradient's norm in the inverse of the Hessian, if the residuals are
        exact.
    noise_factor : float
        If the residuals have errors, this factor times their root mean square is added to `norm`.
    norms : numpy.ndarray, (n,)
        Upper bounds of the rows' norms in the inverse of the Hessian.
    left : float
        An upper bound of the sum of the gradient's entries for the columns that are left out, minus
        their combinations of other columns, each scaled to norm 1.
    sizes : numpy.ndarray, (w,)
        The root mean squares of the columns.
    """

    norm: float
    noise_factor: float
    norms: NumPyArray
    left: float
    sizes: NumPyArray


def qr_bounds(blocks: Callable[[], Iterable[ProofRows]], width: int) -> QrBounds | None:
    """Return the bounds, in two passes over the rows; None if nothing can be proven."""
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
    weighted_square = shared_square = residual_square = 0.0
    left, sizes, norms, longest, parts = np.zeros(len(basis.rest)), np.zeros(width), [], 0, 0
    for rows in blocks():
        own = rows.features[:, basis.base]
        turned = scipy.linalg.solve_triangular(basis.upper, own.T, trans=1, check_finite=False).T
        scaled = turned * np.sqrt(rows.weight)[:, None]
        gram += scaled.T @ scaled
        total += turned.T @ (rows.share[:, None] * rows.residual)
        squares = np.square(turned).sum(axis=1)
        weighted_square += float(rows.weight @ squares)
        shared_square += float(rows.share @ squares)
        residual_square += float(rows.share @ np.square(rows.residual).sum(axis=1))
        norms.append(np.sqrt(squares))
        rest = rows.features[:, basis.rest]
        rounding = np.abs(rest) + np.abs(own) @ np.abs(basis.factors)
        unexplained = np.abs(rest - own @ basis.factors) + (count + 8) * _UNIT * rounding
        left += rows.share @ np.square(unexplained)
        sizes += rows.share @ np.square(rows.features)
        longest, parts = max(longest, len(own)), parts + 1
    sums = (longest + parts + 16) * _UNIT
    off = float(np.linalg.norm(gram - np.eye(count))) + sums * weighted_square
    least = np.sqrt(max(1 - off, 0.0)) - 1.01 * kappa * np.sqrt(weighted_square)
    if not least >= _LEAST:
        return None
    noise_factor = 1.02 * np.sqrt(shared_square) / least
    norm = 1.01 * float(np.linalg.norm(total)) / least
    residual, sizes = np.sqrt(residual_square), np.sqrt(sizes)
    norm += noise_factor * (kappa + sums) * residual
    ratios = np.sqrt(left) / np.where(sizes[basis.rest] > 0, sizes[basis.rest], 1.0)
    if not (ratios <= _MOST_LEFT).all():
        return None
    return QrBounds(
        norm=norm,
        noise_factor=noise_factor,
        norms=(1.02 / least) * np.concatenate(norms),
        left=1.01 * float(residual * ratios.sum()),
        sizes=sizes,
    )
