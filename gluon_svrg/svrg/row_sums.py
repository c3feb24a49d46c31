"""RowSums: the sums of row_sparse gradients over a full pass, of the rows that occur."""

from __future__ import annotations

import numpy as np
from gluon_svrg._compat import NumPyArray


class RowSums:
    """Sums by row, in float64; a row takes memory once it occurs.

    On the host: how many rows a gradient has is known there only, after it has been computed.

    Parameters
    ----------
    rows : int
        How many rows there may be: each has 8 bytes for the place of its sum.
    width : tuple of int
        The shape of a row.
    """

    def __init__(self, rows: int, width: tuple[int, ...] = ()) -> None:
        self._places = np.full(rows, -1, dtype="int64")
        self._sums = np.zeros((0, *width))
        self._used = 0

    def add(self, rows: NumPyArray, values: NumPyArray | float) -> None:
        """Add to each of these rows, of which none may be there twice."""
        places = self._places[rows]
        new = np.flatnonzero(places < 0)
        if len(new):
            end = self._used + len(new)
            places[new] = self._places[rows[new]] = np.arange(self._used, end)
            self._used = end
            if end > len(self._sums):
                grown = np.zeros((max(end, 2 * len(self._sums)), *self._sums.shape[1:]))
                grown[: len(self._sums)] = self._sums
                self._sums = grown
        self._sums[places] += values

    def rows(self) -> NumPyArray:
        """Return the rows that have occurred, ascending."""
        return np.asarray(np.flatnonzero(self._places >= 0))

    def values(self) -> NumPyArray:
        """Return the sums of :meth:`rows`, in their order."""
        return np.asarray(self._sums[self._places[self.rows()]])
