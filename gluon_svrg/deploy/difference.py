"""How far an array of outputs is from another one that should be equal."""

from __future__ import annotations

import numpy as np
from gluon_svrg._compat import NumPyArray

# How far two computations of the same graph may be apart, relative to the greatest output: kernels
# add up in different orders.
_TOLERANCE = {"float16": 2e-2}


def tolerance_of(outputs: NumPyArray) -> float:
    """Return how far other outputs may be from these, relative to the greatest, by the dtype."""
    return _TOLERANCE.get(outputs.dtype.name, 1e-4)


def difference_of(one: NumPyArray, other: NumPyArray) -> float:
    """Return the greatest absolute difference of `one` from `other`, over the finite numbers.

    It is infinite if the shapes differ, or if `one` does not have the infinities and NaN of
    `other` in the same places.
    """
    if one.shape != other.shape:
        return float("inf")
    finite = np.isfinite(other)
    if not np.array_equal(one[~finite], other[~finite], equal_nan=True):
        return float("inf")
    if not np.isfinite(one[finite]).all():
        return float("inf")
    return float(np.abs(one[finite].astype("float64") - other[finite]).max(initial=0))


def scale_of(outputs: NumPyArray) -> float:
    """Return the greatest finite absolute value of `outputs`, or 1 if that is greater."""
    return max(1.0, float(np.abs(outputs[np.isfinite(outputs)]).max(initial=0)))
