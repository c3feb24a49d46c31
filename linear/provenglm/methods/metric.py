"""Metrics: by what a gradient is divided before it becomes a step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import scipy.linalg

from provenglm.methods import newton
from provenglm.types import NumPyArray

_RIDGE = 1e-10
"""Of the diagonal, at least: gradients of float32 have no digits along directions with less."""


class Metric(Protocol):
    """A positive definite matrix P."""

    def solve(self, gradient: NumPyArray) -> NumPyArray:
        """Return P^-1 times a gradient of theta's shape."""
        ...


@dataclass(frozen=True)
class HessianMetric:
    """The Hessian of a sample, over all weights of all outputs, as a Cholesky factor."""

    cholesky: tuple[NumPyArray, bool]

    @classmethod
    def of(cls, hessian: NumPyArray) -> HessianMetric:
        """Factor a Hessian, in place."""
        return cls(newton.factor(hessian, _RIDGE))

    def solve(self, gradient: NumPyArray) -> NumPyArray:
        """Return P^-1 times a gradient of theta's shape."""
        step = scipy.linalg.cho_solve(self.cholesky, gradient.ravel(), check_finite=False)
        return np.asarray(step.reshape(gradient.shape))


def inverse(hessian: NumPyArray) -> NumPyArray:
    """Return the inverse of a Hessian, in place; where the diagonal is 0, that of 1."""
    diagonal = hessian.diagonal()
    roots = np.sqrt(np.where(diagonal > 0, diagonal, 1.0))
    scales = np.multiply.outer(roots, roots)
    hessian /= scales
    hessian.ravel()[:: len(hessian) + 1] = 1.0
    lower, _ = scipy.linalg.lapack.dpotri(newton.factor(hessian, _RIDGE)[0], lower=1)
    lower = np.tril(lower)
    return np.asarray((lower + np.tril(lower, -1).T) / scales)
