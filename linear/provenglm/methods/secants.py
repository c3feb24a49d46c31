"""Correct a metric by the steps between points and the changes of the gradient (BFGS)."""

from __future__ import annotations

from typing import Protocol

from provenglm import constants
from provenglm.types import NumPyArray


class Metric(Protocol):
    """A positive definite matrix P."""

    def solve(self, gradient: NumPyArray) -> NumPyArray:
        """Return P^-1 times a gradient of theta's shape."""
        ...


class Secants:
    r"""The last pairs of steps and changes of the gradient.

    They update the inverse of the metric as in L-BFGS (Nocedal & Wright 2006, algorithm 7.4), with
    the metric in place of a multiple of the identity. Gradients are those of all rows, so that the
    pairs have no noise, as in stochastic L-BFGS with variance reduction (Moritz, Nishihara & Jordan
    2016).
    """

    def __init__(self) -> None:
        self._pairs: list[tuple[NumPyArray, NumPyArray, float]] = []

    def __len__(self) -> int:
        """Return the number of pairs."""
        return len(self._pairs)

    def clear(self) -> None:
        """Forget all pairs."""
        self._pairs.clear()

    def add(self, step: NumPyArray, change: NumPyArray) -> None:
        """Add a pair if the curvature along it is positive."""
        product = float(step.ravel() @ change.ravel())
        if product > 0:
            self._pairs = [*self._pairs[1 - constants.SECANTS :], (step, change, product)]

    def solve(self, metric: Metric, gradient: NumPyArray) -> NumPyArray:
        """Return the updated inverse metric times `gradient`."""
        rest = gradient.copy()
        factors = []
        for step, change, product in reversed(self._pairs):
            factor = float(step.ravel() @ rest.ravel()) / product
            rest -= factor * change
            factors.append(factor)
        direction = metric.solve(rest)
        for (step, change, product), factor in zip(self._pairs, reversed(factors), strict=True):
            direction += (factor - float(change.ravel() @ direction.ravel()) / product) * step
        return direction
