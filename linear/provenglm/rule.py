"""The SVRG rule as a pure function."""

from __future__ import annotations

from provenglm.types import NumPyArray


def correct(grad: NumPyArray, snapshot_grad: NumPyArray, full_grad: NumPyArray) -> NumPyArray:
    """Return the variance-reduced gradient of one batch (Johnson & Zhang 2013).

    The three gradients have one shape and one scale: means over samples, or sums over the batch.
    """
    corrected: NumPyArray = grad - (snapshot_grad - full_grad)
    return corrected
