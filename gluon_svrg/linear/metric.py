"""Metrics: by what a gradient is divided before it becomes a step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import scipy.linalg
from gluon_svrg._compat import NumPyArray


class Metric(Protocol):
    """A positive definite matrix P."""

    name: str

    def solve(self, gradient: NumPyArray) -> NumPyArray:
        """Return P^-1 times a gradient of theta's shape."""
        ...


@dataclass(frozen=True)
class HessianMetric:
    """The Hessian of a sample, over all weights of all outputs."""

    cholesky: tuple[NumPyArray, bool]

    name = "hessian"

    def solve(self, gradient: NumPyArray) -> NumPyArray:
        step = scipy.linalg.cho_solve(self.cholesky, gradient.ravel(), check_finite=False)
        return np.asarray(step.reshape(gradient.shape))


@dataclass(frozen=True)
class SharedMetric:
    """One matrix of the features for all classes, and a factor for each class."""

    inverse: NumPyArray
    of_class: NumPyArray

    name = "shared"

    def solve(self, gradient: NumPyArray) -> NumPyArray:
        step = self.inverse @ gradient.astype(self.inverse.dtype, copy=False)
        return np.asarray(step * self.of_class, np.float64)


@dataclass(frozen=True)
class DiagonalMetric:
    """A number for each weight: ``(p + 1,)``, or ``(p + 1, K)``."""

    inverse: NumPyArray
    name: str = "diagonal"

    def solve(self, gradient: NumPyArray) -> NumPyArray:
        return gradient * self.inverse
