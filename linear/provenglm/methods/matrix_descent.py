"""Coordinate descent on a Hessian that is a matrix: compiled only if the matrix is large.

Loading Numba takes a second, and compiling takes longer.
"""

from __future__ import annotations

import numpy as np

from provenglm.types import NumPyArray

_TIE = 1e-13
"""A gradient that exceeds the penalty by less than this part is rounding, such as that of an equal
column."""


def descend_matrix(
    hessian: NumPyArray,
    gradient: NumPyArray,
    t: NumPyArray,
    l1: NumPyArray,
    sweeps: int,
    steady: int,
    left: float,
    most: float,
    is_solved: bool,
) -> tuple[float, bool]:
    """Minimise along the coordinates in turn; update `gradient` and `t` in place.

    All arrays may be lists, which are fast in pure Python.

    Parameters
    ----------
    sweeps : int
        The largest number of sweeps.
    steady : int
        Stop after this number of sweeps without a change of sign.
    left : float
        Stop after a sweep that lowers q by less than this part of the best sweep's decrease.
    most : float
        The best sweep's decrease so far.
    is_solved : bool
        Whether `t` is the minimum for its signs: if the first sweep changes none, it is the
        minimum.

    Returns
    -------
    most : float
    is_least : bool
        Whether `t` is the minimum, so that no decrease is left.
    """
    unchanged = 0
    for sweep in range(sweeps):
        fell, changed = 0.0, False
        for j in range(np.uint64(len(t))):
            row = hessian[j]
            square = row[j]
            if not square > 0:
                continue
            wanted = t[j] * square - gradient[j]
            size = max(abs(wanted) - l1[j], 0.0) / square
            new = size if wanted > 0 else -size
            step = new - t[j]
            if step == 0 or (t[j] == 0 and size * square <= _TIE * l1[j]):
                continue
            changed |= (new > 0) != (t[j] > 0) or (new < 0) != (t[j] < 0)
            fell += 0.5 * square * step * step
            t[j] = new
            for k in range(np.uint64(len(t))):
                gradient[k] += step * row[k]
        most = max(most, fell)
        unchanged = 0 if changed else unchanged + 1
        if fell <= left * most or (is_solved and sweep == 0 and not changed):
            return most, True
        if unchanged == steady:
            break
    return most, False
