"""Coordinate descent on a Hessian that is a matrix."""

from __future__ import annotations

import numpy as np

from provenglm.types import NumPyArray

_ROUNDING = 1e-13
"""A gradient that differs from the penalty by less than this part is rounding, such as that of an
equal column."""


def sweep_matrix(
    hessian: NumPyArray, gradient: NumPyArray, t: NumPyArray, l1: NumPyArray
) -> tuple[float, bool]:
    r"""Minimise along the coordinates in turn; update `gradient` and `t` in place.

    The quadratic model is that of `descent_kernels`. A sweep visits the coordinates that are not at
    their minimum when it begins: after the first sweeps these are few, and loading a compiled loop
    takes a second.

    Parameters
    ----------
    hessian : numpy.ndarray
        The Hessian. It may have more rows than `t`; the first ones are used.

    Returns
    -------
    fell : float
        The decrease of the model, at least.
    has_changed : bool
        Whether a sign has changed.
    """
    square, before, fell = hessian.diagonal()[: len(t)], np.sign(t), 0.0
    wanted = t * square - gradient
    best = np.copysign(np.maximum(np.abs(wanted) - l1, 0.0), wanted)
    moves = (np.abs(best - t * square) > _ROUNDING * l1) | ((best == 0) & (t != 0))
    for j in np.flatnonzero(moves & (square > 0)).tolist():
        old, curvature, penalty = float(t[j]), float(square[j]), float(l1[j])
        along = old * curvature - float(gradient[j])
        size = max(abs(along) - penalty, 0.0)
        if old == 0 and size <= _ROUNDING * penalty:
            continue
        step = (size if along > 0 else -size) / curvature - old
        fell += 0.5 * curvature * step * step
        t[j] = old + step
        gradient += step * hessian[j, : len(t)]
    return fell, not np.array_equal(np.sign(t), before)
