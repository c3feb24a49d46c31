"""What the steps between snapshots tell of the Hessian: BFGS on top of a metric."""

from __future__ import annotations

from provenglm import constants
from provenglm.metric import Metric
from provenglm.types import NumPyArray


class Secants:
    r"""The last pairs of steps and changes of the gradient.

    The inverse of the metric is updated by them as in L-BFGS (Nocedal & Wright 2006, algorithm
    7.4), with the metric where that has a multiple of the identity. Gradients are those of whole
    snapshots, so that the pairs have no noise, as in stochastic L-BFGS with variance reduction
    (Moritz, Nishihara & Jordan 2016).

    Parameters
    ----------
    is_scaled : bool
        Whether the metric is multiplied by a number that makes it right along the last change of
        the gradient (the same, equation 7.20): for one that is good but for its size.
    """

    def __init__(self, is_scaled: bool = False) -> None:
        self._is_scaled = is_scaled
        self._pairs: list[tuple[NumPyArray, NumPyArray, float]] = []

    def clear(self) -> None:
        """Forget all."""
        self._pairs.clear()

    def add(self, step: NumPyArray, change: NumPyArray) -> None:
        """Take a pair, if the curvature along it is positive."""
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
        if self._is_scaled and self._pairs:
            _, change, product = self._pairs[-1]
            direction *= product / float(change.ravel() @ metric.solve(change).ravel())
        for (step, change, product), factor in zip(self._pairs, reversed(factors), strict=True):
            direction += (factor - float(change.ravel() @ direction.ravel()) / product) * step
        return direction
