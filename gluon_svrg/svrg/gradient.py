"""What the snapshot's gradients are: of one batch, and of all samples."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from mxnet.ndarray import NDArray


class BatchGradient(NamedTuple):
    """The gradient of one batch at the snapshot.

    Attributes
    ----------
    sums : dict of str to list of NDArray
        For each parameter by name, on each of its contexts: the *sum* of the gradients of the
        samples that this context had. What :meth:`Snapshot.gradient` returns are the snapshot's
        own buffers, and the next batch overwrites them.
    samples : list of int
        The number of samples that each context had.
    """

    sums: dict[str, list[NDArray]]
    samples: list[int]

    @property
    def nbytes(self) -> int:
        """The size of the sums, in bytes."""
        arrays = [array for grads in self.sums.values() for array in grads]
        return sum(array.size * np.dtype(array.dtype).itemsize for array in arrays)


class FullGradient(NamedTuple):
    """The gradient of all samples at the snapshot.

    Attributes
    ----------
    means : dict of str to NDArray
        For each parameter by name: the mean over all samples, on its first context. Of the
        gradient's dtype; for float16, float32.
    samples : int
        The number of samples.
    """

    means: dict[str, NDArray]
    samples: int
