"""Metrics: by what a gradient is divided before it becomes a step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import scipy.linalg

from provenglm.types import NumPyArray


class Metric(Protocol):
    """A positive definite matrix P."""

    def solve(self, gradient: NumPyArray) -> NumPyArray:
        """Return P^-1 times a gradient of theta's shape."""
        ...


@dataclass(frozen=True)
class HessianMetric:
    """The Hessian of a sample, over all weights of all outputs, as a Cholesky factor."""

    cholesky: tuple[NumPyArray, bool]

    def solve(self, gradient: NumPyArray) -> NumPyArray:
        """Return P^-1 times a gradient of theta's shape."""
        step = scipy.linalg.cho_solve(self.cholesky, gradient.ravel(), check_finite=False)
        return np.asarray(step.reshape(gradient.shape))
