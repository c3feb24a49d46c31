"""Factors of a Hessian: what divides a gradient before it becomes a step."""

from __future__ import annotations

import numpy as np
import scipy.linalg

from provenglm.types import NumPyArray

_RIDGE = 2.0**-52
"""Of the diagonal, at first: more only if it is needed to make the Hessian positive definite."""

_RIDGE_OF_FLOAT32 = 1e-10
"""The same where gradients are of float32: they have no digits along directions with less."""

ROUGH = 1e-9
"""Of a column's square: if others leave less, the factor has lost half of its digits."""


def factor(hessian: NumPyArray, ridge: float = _RIDGE) -> tuple[NumPyArray, bool]:
    """Return the Cholesky factor of the Hessian, with as small a ridge as it needs."""
    # Relative to each entry: a feature with a huge penalty would else drown the others.
    diagonal = np.maximum(hessian.diagonal(), np.finfo(np.float64).tiny)
    if not np.isfinite(hessian).all():
        raise FloatingPointError("the Hessian is not finite: the scores or the features overflow")
    for count in range(13):
        if count == 12:
            # Where classes run apart, probabilities of 1 leave less on the diagonal than beside it.
            diagonal = np.maximum(np.abs(hessian).sum(axis=1), diagonal)
        try:
            hessian.ravel()[:: len(hessian) + 1] = diagonal * (1 + ridge)
            chol, lower = scipy.linalg.cho_factor(hessian, lower=True, check_finite=False)
            return chol, lower
        except np.linalg.LinAlgError:
            ridge *= 30
    raise FloatingPointError("the Hessian has no Cholesky factor, with any ridge")


class CholeskyMetric:
    """A positive definite matrix P, as its Cholesky factor.

    Parameters
    ----------
    hessian : numpy.ndarray
        P, which is overwritten.
    is_exact : bool
        Whether gradients have the digits of float64.
    kept : numpy.ndarray, optional
        Rows and columns of P; all others get no step.

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
    """Return the inverse of a Hessian, in place; where the diagonal is 0, that of 1."""
    diagonal = hessian.diagonal()
    roots = np.sqrt(np.where(diagonal > 0, diagonal, 1.0))
    scales = np.multiply.outer(roots, roots)
    hessian /= scales
    hessian.ravel()[:: len(hessian) + 1] = 1.0
    lower, _ = scipy.linalg.lapack.dpotri(factor(hessian, _RIDGE_OF_FLOAT32)[0], lower=1)
    lower = np.tril(lower)
    return np.asarray((lower + np.tril(lower, -1).T) / scales)
