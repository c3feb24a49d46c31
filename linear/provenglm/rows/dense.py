"""Dense rows in memory: arrays of any dtype and order, writable or read-only.

The arrays are not copied: a block is converted when it is read.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from provenglm.rows.blocks import slices_of
from provenglm.types import NumPyArray


class DenseRows:
    """The rows of a NumPy array.

    Parameters
    ----------
    features : numpy.ndarray, (n, p)
        An array of a real dtype. Types that float32 represents exactly are returned as float32, all
        others as float64.
    dtype : numpy dtype, optional
        The dtype of the blocks: float64 if float32 is too imprecise.
    """

    is_sparse = is_on_disk = False

    def __init__(self, features: NumPyArray, dtype: np.dtype[Any] | None = None) -> None:
        self._features = features
        self.shape = features.shape
        exact = np.can_cast(features.dtype, np.float32)
        self.dtype = dtype or np.dtype(np.float32 if exact else np.float64)

    def slices(self) -> list[slice]:
        n, p = self.shape
        return slices_of(n, p, self.dtype.itemsize)

    def block(self, rows: slice) -> NumPyArray:
        return self._features[rows].astype(self.dtype, copy=False)

    @property
    def stored(self) -> np.dtype[Any]:
        return self._features.dtype

    def pick(self, rows: NumPyArray) -> NumPyArray:
        return self.gather(rows)

    def gather(self, rows: NumPyArray) -> NumPyArray:
        return self.take(rows).astype(self.dtype, copy=False)

    def take(self, rows: NumPyArray) -> NumPyArray:
        # np.take is faster, but copies all features if they are not in C order.
        if self._features.flags.c_contiguous:
            return np.asarray(np.take(self._features, rows, axis=0))
        return np.asarray(self._features[rows])

    def columns(self, rows: slice, chosen: NumPyArray) -> NumPyArray:
        """Return some columns of the rows of a slice, as (c, rows)."""
        block = self._features[rows]
        if self._features.flags.c_contiguous:
            return np.asarray(np.take(block, chosen, axis=1).T)
        return np.asarray(block.T[chosen])

    def precise(self) -> DenseRows:
        return DenseRows(self._features, np.dtype(np.float64))
