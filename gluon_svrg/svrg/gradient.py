"""What a gradient at the snapshot is: of one batch, and of all samples."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from gluon_svrg.arrays.row_sparse import stored_nbytes
from mxnet.ndarray import NDArray


class BatchGradient(NamedTuple):
    """The gradient of one batch at the snapshot, as sums over the samples.

    Attributes
    ----------
    sums : dict of str to list of NDArray
        For each parameter by name: one array per context. They may be buffers, which the next
        batch overwrites.
    samples : list of int
        The number of samples that each context had.
    loss_scale : float or None
        What the losses were multiplied by (MXNet's AMP does that); None for the trainer's present
        scale.
    """

    sums: dict[str, list[NDArray]]
    samples: list[int]
    loss_scale: float | None = None

    @property
    def nbytes(self) -> int:
        """The size of the sums, in bytes."""
        return sum(stored_nbytes(array) for grads in self.sums.values() for array in grads)


class FullGradient(NamedTuple):
    """The gradient of all samples at the snapshot.

    Attributes
    ----------
    means : dict of str to NDArray
        For each parameter by name: the mean over all samples, on its first context. Of the
        gradient's dtype; for float16, float32. Of a row_sparse gradient row_sparse: the rows that
        occur.
    samples : int
        The number of samples.
    loss_scale : float or None
        As for :class:`BatchGradient`.
    is_of_all_workers : bool
        Whether it is the mean over the samples of all workers, and not of this one's own.
    row_shares : dict of str to NDArray
        For each row_sparse mean by name: the share of the samples that are in a batch whose
        gradient has the row, in (0, 1], for each row that occurs; float64. With batches of one
        size, the share of the batches.
    """

    means: dict[str, NDArray]
    samples: int
    loss_scale: float | None = None
    is_of_all_workers: bool = False
    row_shares: Mapping[str, NDArray] = MappingProxyType({})
