"""Factor a Hessian, which turns a gradient into a step."""

from __future__ import annotations

import numpy as np
import scipy.linalg

from provenglm.types import NumPyArray

_RIDGE = 2.0**-52
"""The initial ridge, relative to the diagonal. It grows only if the Hessian is not positive
definite with it."""

_RIDGE_OF_FLOAT32 = 1e-10
"""The initial ridge for gradients in float32, which have no digits along directions with less
curvature."""

ROUGH = 1e-9
"""The factor has lost half of its digits if the other columns leave less than this part of a
column's square."""


def factor(hessian: NumPyArray, ridge: float = _RIDGE) -> tuple[NumPyArray, bool]:
    """Return the Cholesky factor of the Hessian, with the smallest sufficient ridge."""
    # The ridge is relative to each entry: a feature with a huge penalty would dominate otherwise.
    diagonal = np.maximum(hessian.diagonal(), np.finfo(np.float64).tiny)
    if not np.isfinite(hessian).all():
        raise FloatingPointError("the Hessian is not finite: the scores or the features overflow")
    for count in range(13):
        if count == 12:
            # If classes separate, rounding of probabilities near 1 makes the diagonal too small.
            diagonal = np.maximum(np.abs(hessian).sum(axis=1), diagonal)
        try:
            hessian.ravel()[:: len(hessian) + 1] = diagonal * (1 + ridge)
            chol, lower = scipy.linalg.cho_factor(hessian, lower=True, check_finite=False)
            return chol, lower
        except np.linalg.LinAlgError:
            ridge *= 30
    raise FloatingPointError("the Hessian has no Cholesky factor, with any ridge")


class CholeskyMetric:
    """A positive definite matrix P, stored as its Cholesky factor.

    Parameters
    ----------
    hessian : numpy.ndarray
        P, which is overwritten.
    is_exact : bool
        Whether gradients are in float64.
    kept : numpy.ndarray, optional
        The rows and columns of P to use; all others get the step 0.

    Attributes
    ----------
    is_rough : bool
        Whether the factor has lost half of its digits.
    """

    def __init__(
        self, hessian: NumPyArray, is_exact: bool = False, kept: NumPyArray | None = None
    ) -> None:
        self._kept = kept
        if kept is not None:
            hessian = hessian[np.ix_(kept, kept)]
        self._factor = factor(hessian, _RIDGE if is_exact else _RIDGE_OF_FLOAT32)
        least = np.square(self._factor[0].diagonal()) < ROUGH * hessian.diagonal()
        self.is_rough = bool(least.any())

    def solve(self, gradient: NumPyArray) -> NumPyArray:
        """Return P^-1 times a gradient of theta's shape."""
        flat = gradient.ravel()
        right = flat if self._kept is None else flat[self._kept]
        step = scipy.linalg.cho_solve(self._factor, right, check_finite=False)
        if self._kept is not None:
            whole = np.zeros_like(flat)
            whole[self._kept] = step
            step = whole
        return np.asarray(step.reshape(gradient.shape))


def inverse(hessian: NumPyArray) -> NumPyArray:
    """Return the inverse of a Hessian, in place; a diagonal entry of 0 counts as 1."""
    diagonal = hessian.diagonal()
    roots = np.sqrt(np.where(diagonal > 0, diagonal, 1.0))
    scales = np.multiply.outer(roots, roots)
    hessian /= scales
    hessian.ravel()[:: len(hessian) + 1] = 1.0
    lower, _ = scipy.linalg.lapack.dpotri(factor(hessian, _RIDGE_OF_FLOAT32)[0], lower=1)
    lower = np.tril(lower)
    return np.asarray((lower + np.tril(lower, -1).T) / scales)
