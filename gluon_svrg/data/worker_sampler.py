"""WorkerBatchSampler: a worker's DataLoader loads only its own samples of each batch."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from gluon_svrg.arguments import check_integer
from gluon_svrg.data.sharding import Shard
from gluon_svrg.workers import Workers, current
from mxnet import gluon

if TYPE_CHECKING:
    _Sampler = gluon.data.Sampler[list[Any]]
else:
    _Sampler = gluon.data.Sampler


class WorkerBatchSampler(_Sampler):
    """Yields, for each batch, the indices of this worker's samples.

    Use it in place of a ``gluon.data.BatchSampler``, so that each of several workers loads only its
    own samples::

        sampler = WorkerBatchSampler(gluon.data.RandomSampler(len(dataset)), 256)
        loader = gluon.data.DataLoader(dataset, batch_sampler=sampler, num_workers=4)

    The batches of all workers together are those of the BatchSampler; a single worker has all of
    each batch. If a worker has no sample of a batch, nothing is yielded for it. `Estimator.fit`
    handles this; a hand-written loop uses :func:`gluon_svrg.data.shard`.

    Parameters
    ----------
    sampler : gluon.data.Sampler or int
        Yields the indices of all samples, in the same order on every worker: drawn from NumPy's
        global generator, which all workers set to the same state when a pass begins, or by a seed.
        An integer n stands for the indices 0 to n - 1, in order.
    batch_size : int
        The number of samples of a batch, the total of all workers.
    last_batch : 'keep' or 'discard'
        What happens to a last batch with fewer samples.
    workers : Workers, optional
        By default those of this process.

    Attributes
    ----------
    workers : Workers
        As given.
    num_batches, num_samples : int
        Of an epoch, on all workers together.
    order_bits : int
        A fingerprint of the order of the last pass.

    Raises
    ------
    TypeError, ValueError
        If an argument is out of its range, or, when it is iterated, if `sampler` yields another
        number of indices than its length.
    """

    def __init__(
        self,
        sampler: gluon.data.Sampler[Any] | int,
        batch_size: int,
        last_batch: str = "keep",
        workers: Workers | None = None,
    ) -> None:
        self._batch_size = check_integer(
            "batch_size", batch_size, 1, "the samples of a batch on all workers together"
        )
        if last_batch == "rollover":
            raise ValueError(
                "last_batch='rollover' carries samples over into the next epoch, and workers need "
                "the same number of batches in every epoch: use 'keep' or 'discard'"
            )
        if last_batch not in ("keep", "discard"):
            raise ValueError(f"last_batch must be 'keep' or 'discard', got {last_batch!r}")
        if isinstance(sampler, int):
            sampler = gluon.data.SequentialSampler(
                check_integer("sampler", sampler, 1, "the number of samples")
            )
        self._sampler: Any = sampler
        self._keeps_last = last_batch == "keep"
        self.workers = current() if workers is None else workers
        self._shard = Shard(self.workers.rank, self.workers.size)
        self.order_bits = 0

    @property
    def num_samples(self) -> int:
        """The number of samples of an epoch, on all workers together."""
        length = len(self._sampler)
        return length if self._keeps_last else length - length % self._batch_size

    @property
    def num_batches(self) -> int:
        """The number of batches of an epoch, with those of which this worker has no sample."""
        return -(-self.num_samples // self._batch_size)

    def has_samples(self, batch: int) -> bool:
        """Return whether this worker has a sample of the batch of this number."""
        return bool(self._local_positions(batch))

    def __iter__(self) -> Iterator[list[Any]]:
        """Return an iterator over this worker's indices in each batch that has any."""
        order = list(self._sampler)
        if len(order) != len(self._sampler):
            raise ValueError(
                f"the sampler {self._sampler!r} yields {len(order)} indices and has the length "
                f"{len(self._sampler)}: the workers divide the samples by this length, so it "
                "must be the number of indices"
            )
        self.order_bits = _fingerprint(order)
        for batch in range(self.num_batches):
            indices = [order[row] for row in self._local_positions(batch)]
            if indices:
                yield indices

    def __len__(self) -> int:
        """Return the number of batches of which this worker has samples."""
        return sum(map(self.has_samples, range(self.num_batches)))

    def _local_positions(self, batch: int) -> range:
        """Return the positions, in the order, of this worker's samples of a batch."""
        begin = batch * self._batch_size
        size = min(self._batch_size, self.num_samples - begin)
        rows = self._shard.rows(size)
        return range(begin + rows.start, begin + rows.stop)


def _fingerprint(order: list[Any]) -> int:
    indices = np.asarray(order)
    return zlib.crc32(indices.tobytes() if indices.dtype.kind in "iu" else repr(order).encode())
