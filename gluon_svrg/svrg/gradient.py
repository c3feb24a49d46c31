"""BatchGradient and FullGradient: the gradients at the snapshot."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from gluon_svrg.arrays.row_sparse import stored_nbytes
from mxnet.ndarray import NDArray


class BatchGradient(NamedTuple):
    """The gradient of one batch at the snapshot, as sums over the samples.

    Attributes
    ----------
    sums : dict of str to list of NDArray
        For each parameter by name: one array per context. The next batch may overwrite them.
    samples : list of int
        The number of samples on each context.
    loss_scale : float or None
        The loss scale (of MXNet's AMP) in the gradients; None for the trainer's present scale.
    lock : callable or None
        Seeds MXNet so that another pass over this batch draws the same random numbers; None if it
        is not known which ones the gradient has drawn.
    """

    sums: dict[str, list[NDArray]]
    samples: list[int]
    loss_scale: float | None = None
    lock: Callable[[], None] | None = None

    @property
    def nbytes(self) -> int:
        """The size of the sums, in bytes."""
        return sum(stored_nbytes(array) for grads in self.sums.values() for array in grads)


class FullGradient(NamedTuple):
    """The gradient of all samples at the snapshot.

    Attributes
    ----------
    means : dict of str to NDArray
        For each parameter by name: the mean over all samples, on its first context, with the
        gradient's dtype (float32 for float16). For a row_sparse gradient it is row_sparse, with the
        rows that occur.
    samples : int
        The number of samples.
    loss_scale : float or None
        As for :class:`BatchGradient`.
    is_of_all_workers : bool
        Whether it is the mean over the samples of all workers, and not only of this one's.
    row_shares : dict of str to NDArray
        For each row_sparse mean by name, for each row that occurs: the fraction of samples that
        are in a batch with this row, in (0, 1]; float64. If all batches have the same size, it is
        the fraction of batches with the row.
    """

    means: dict[str, NDArray]
    samples: int
    loss_scale: float | None = None
    is_of_all_workers: bool = False
    row_shares: Mapping[str, NDArray] = MappingProxyType({})
