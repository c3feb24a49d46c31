"""Factors of a Hessian: what divides a gradient before it becomes a step."""

from __future__ import annotations

import numpy as np
import scipy.linalg

from provenglm.types import NumPyArray

_RIDGE = 1e-12
"""Of the diagonal: what makes the Hessian of duplicate columns positive definite."""

_RIDGE_OF_FLOAT32 = 1e-10
"""The same where gradients are of float32: they have no digits along directions with less."""


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
    """

    def __init__(self, hessian: NumPyArray, is_exact: bool = False) -> None:
        self._factor = factor(hessian, _RIDGE if is_exact else _RIDGE_OF_FLOAT32)

    def solve(self, gradient: NumPyArray) -> NumPyArray:
        """Return P^-1 times a gradient of theta's shape."""
        step = scipy.linalg.cho_solve(self._factor, gradient.ravel(), check_finite=False)
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
