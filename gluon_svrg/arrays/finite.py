"""NonFiniteDetector: finds the first NaN or infinity in many steps, without a wait at each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import mxnet as mx
import numpy as np
from gluon_svrg.arrays.batch import with_axis
from mxnet.ndarray import NDArray

# One operator takes at most 200 arrays: MXNet's AMP loss scaler splits at this number, too.
_MAX_ARRAYS = 200
_MAX_STEPS = 512


def sums_of_squares(arrays: Sequence[NDArray]) -> list[NDArray]:
    """Return the sum of squares of each array, in a few arrays: nothing waits here.

    Parameters
    ----------
    arrays : sequence of NDArray
        On one context and of one dtype.
    """
    arrays = list(map(with_axis, arrays))
    chunks = (arrays[i : i + _MAX_ARRAYS] for i in range(0, len(arrays), _MAX_ARRAYS))
    return [mx.nd.multi_sum_sq(*chunk, num_arrays=len(chunk)) for chunk in chunks]


def are_finite(arrays: Iterable[NDArray]) -> bool:
    """Return whether all numbers are known to be finite, by one wait for the device.

    False also for values whose squares overflow, and for dtypes that have no sum of squares.

    Parameters
    ----------
    arrays : iterable of NDArray
        Of any contexts and dtypes.
    """
    groups: dict[Any, list[NDArray]] = {}
    for array in arrays:
        groups.setdefault((array.ctx, array.dtype), []).append(array)
    if any(dtype not in (np.float16, np.float32, np.float64) for _, dtype in groups):
        return False
    sums = [squares for group in groups.values() for squares in sums_of_squares(group)]
    return all(np.isfinite(squares.asnumpy()).all() for squares in sums)


class NonFiniteDetector:
    """Computes the sums of squares of some arrays at each step, and reads them when asked.

    A sum of squares is finite if the array is, up to values of 1e19, whose squares overflow
    float32. `multi_sum_sq` takes a thirtieth of the time of `multi_all_finite` on a large array.
    """

    def __init__(self) -> None:
        self._waiting: list[list[NDArray]] = []
        self._seen = 0
        self._first: tuple[int, int] | None = None

    def add(self, groups: Sequence[Sequence[NDArray]]) -> None:
        """Add the arrays of one more step.

        Parameters
        ----------
        groups : sequence of sequences of NDArray
            The arrays; those of one group are on one context and of one dtype.
        """
        self._waiting.append([squares for group in groups for squares in sums_of_squares(group)])
        if len(self._waiting) == _MAX_STEPS:
            self.first_bad()

    def first_bad(self) -> tuple[int, int] | None:
        """Return the first step with a NaN, an infinity or a value beyond 1e19; None without one.

        Returns
        -------
        step, array : int
            The numbers of the step and of the array, from 0; the arrays of all groups are counted
            through.
        """
        waiting, self._waiting = self._waiting, []
        for squares in waiting:
            if self._first is None:
                values = np.concatenate([array.asnumpy() for array in squares])
                bad = np.flatnonzero(~np.isfinite(values))
                if len(bad):
                    self._first = self._seen, int(bad[0])
            self._seen += 1
        return self._first
