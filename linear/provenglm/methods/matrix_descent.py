"""Coordinate descent on a Hessian that is a matrix: compiled if it is large, else as it is.

To load Numba takes a second, and to compile takes more.
"""

from __future__ import annotations

import numpy as np

from provenglm.types import NumPyArray

_TIE = 1e-13
"""Of the penalty: a gradient beyond it by less is rounding, as that of an equal column."""


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
    """Minimise over one coordinate after the other; `gradient` and `t` follow, in place.

    All arrays may be lists, in which Python is fast.

    Parameters
    ----------
    sweeps : int
        The largest number of sweeps.
    steady : int
        It ends after this number of sweeps that change no sign.
    left : float
        It ends with a sweep that lowers q by this part of what the best one did.
    most : float
        What that was so far.
    is_solved : bool
        Whether `t` is the least for its signs: if the first sweep changes none, it is the least.

    Returns
    -------
    most : float
    is_least : bool
        Whether no more is to be gained.
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
