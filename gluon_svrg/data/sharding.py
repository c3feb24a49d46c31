"""Shard the training data: each of several workers gets its rows of every batch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any
from weakref import WeakValueDictionary

from gluon_svrg.data.adapters import (
    ArrayLoaderData,
    DataLoaderData,
    WorkerLoaderData,
)
from gluon_svrg.data.base import TrainingData
from gluon_svrg.data.shard import Shard
from gluon_svrg.data.worker_checks import (
    FINGERPRINT,
    batch_fingerprint,
    check_same_data,
    label_fingerprint,
)
from gluon_svrg.workers import Workers

# If the same data are given twice to one run (to fit, and to a handler), both get the same shards,
# so that a gradient table recognises them. By the user's object, which the value keeps alive.
_SHARED: WeakValueDictionary[tuple[object, ...], TrainingData] = WeakValueDictionary()


def shard(data: TrainingData, workers: Workers, batch_axis: int = 0) -> TrainingData:
    """Return the data with this worker's rows of each batch.

    Order, partition, random numbers and the numbers of batches and samples are those of the whole
    data. If a worker has no row of a batch, it gets an empty :class:`gluon_svrg.data.Batch`. If
    the data keep their batches, the worker's rows are kept, too.

    All workers call it together: they compare their data, and all of them use worker 0's seed if
    an ArrayLoader has drawn one.

    Parameters
    ----------
    data : TrainingData
        As :func:`gluon_svrg.data.training_data.training_data` returns them: whole.
    workers : Workers
        The workers. A single one gets `data` itself.
    batch_axis : int
        The axis that counts the samples.

    Raises
    ------
    ValueError
        If the workers' data differ.
    """
    if not workers.is_distributed or data.is_shared:
        return data
    label = f"{data.name} are shared out"
    check_same_data(workers.all_gather_object(data.identity(), label), data.name)
    if isinstance(data, ArrayLoaderData) and data.loader.has_drawn_seed:
        data.loader.use_seed(workers.broadcast_object(data.loader.seed, label))
    if isinstance(data, WorkerLoaderData):
        data.check_workers(workers)
        return data
    key = id(data.source), data.name, id(workers), batch_axis
    sharded = _SHARED.get(key)
    if sharded is None:
        rows = Shard(workers.rank, workers.size, batch_axis)
        if isinstance(data, ArrayLoaderData):
            sharded = ArrayLoaderData(data.loader, data.name, rows)
        else:
            sharded = ShardedData(data, workers, rows)
        _SHARED[key] = sharded
    return sharded


def describe_sharding(data: TrainingData, workers: Workers) -> str:
    """Return how several workers share data, in a sentence for the log."""
    kind = data.kind
    if isinstance(data, ShardedData) and data.is_of_a_loader:
        return (
            f"{workers.size} workers: each loads whole batches of {kind} and trains on its part; "
            "with a gluon_svrg.data.WorkerBatchSampler it would load only its own samples"
        )
    return f"{workers.size} workers: each trains on its part of every batch of {kind}"


class ShardedData(TrainingData):
    """Whole batches, reduced to the rows of one worker.

    At the beginning of each pass, the workers compare its first batch and the number of batches.

    Parameters
    ----------
    whole : TrainingData
        The whole batches, the same on all workers.
    workers : Workers
        All workers.
    shard : Shard
        The rows of this worker.
    """

    is_shared = True

    def __init__(self, whole: TrainingData, workers: Workers, shard: Shard) -> None:
        super().__init__(whole.source, whole.name)
        self._whole = whole
        self._workers = workers
        self._shard = shard
        # By index: the whole batch, to notice that the user's list has changed, and its rows here.
        self._kept: dict[int, tuple[object, Any]] = {}

    @property
    def kind(self) -> str:
        """The kind of the whole data, for messages: ``'a DataLoader'``."""
        return self._whole.kind

    @property
    def is_of_a_loader(self) -> bool:
        """Whether a DataLoader makes the whole batches."""
        return isinstance(self._whole, DataLoaderData)

    @property
    def num_batches(self) -> int | None:
        """The number of batches of an epoch, the same on all workers."""
        return self._whole.num_batches

    @property
    def has_end(self) -> bool:
        """Whether a pass over the whole data is known to end."""
        return self._whole.has_end

    @property
    def num_samples(self) -> int | None:
        """The number of samples of an epoch, over all workers."""
        return self._whole.num_samples

    @property
    def is_indexed(self) -> bool:
        """Whether :meth:`batch` can return any batch of the whole data."""
        return self._whole.is_indexed

    @property
    def has_batch_index(self) -> bool:
        """Whether a whole batch has an `index` attribute."""
        return self._whole.has_batch_index

    @property
    def keeps_batches(self) -> bool:
        """Whether a whole batch is the same objects each time."""
        return self._whole.keeps_batches

    @property
    def can_lock(self) -> bool:
        """Whether the whole data can be locked."""
        return self._whole.can_lock

    @property
    def locked_draw(self) -> int | None:
        """The draw that the whole data are locked to; None if they are not."""
        return self._whole.locked_draw

    def iterate_once(self) -> Iterator[Any]:
        """Return this worker's rows of the batches, in the order of the whole data."""
        return self._local_batches(self._compared(self._whole.iterate_once()), 0)

    def iterate_epoch(self, epoch: int, skip: int = 0) -> Iterator[Any]:
        """Return this worker's rows of an epoch's batches, without the first `skip` batches."""
        return self._local_batches(self._compared(self._whole.iterate_epoch(epoch, skip)), skip)

    def in_order(self) -> Iterator[Any]:
        """Iterate over this worker's rows of all batches, by index."""
        return self._local_batches(self._compared(self._whole.in_order()), 0)

    def batch(self, index: int) -> Any:
        """Return this worker's rows of the batch of this index; -1 is the last."""
        number = index + (self.num_batches or 0) if index < 0 else index
        return self._local_batch(self._whole.batch(index), number)

    def take(self, number: int) -> list[Any]:
        """Return this worker's rows of the first batches."""
        return [self._local_batch(batch, i) for i, batch in enumerate(self._whole.take(number))]

    def reason_not_repeatable(self) -> str:
        """Return why the whole batches may differ between passes; '' if they repeat."""
        return self._whole.reason_not_repeatable()

    def reason_not_lockable(self) -> str:
        """Return why a sample of the whole data may change between passes, or ''."""
        return self._whole.reason_not_lockable()

    def lock(self, draw: int) -> None:
        """Lock the whole data to this draw."""
        self._whole.lock(draw)

    def unlock(self) -> None:
        """Unlock the whole data."""
        self._whole.unlock()

    def description(self) -> dict[str, Any]:
        """Return the description of the whole data: a checkpoint fits any number of workers."""
        return self._whole.description()

    def check_description(self, saved: Mapping[str, object]) -> None:
        """Raise ValueError if `saved` describes other data than the whole data."""
        self._whole.check_description(saved)

    def check_can_resume(self) -> None:
        """Raise ValueError if a run on the whole data cannot be resumed."""
        self._whole.check_can_resume()

    def _local_batches(self, batches: Iterator[Any], first: int) -> Iterator[Any]:
        for index, batch in enumerate(batches, first):
            yield self._local_batch(batch, index)

    def _local_batch(self, batch: Any, position: int) -> Any:
        if not self._whole.keeps_batches:
            return self._shard.take(batch, position)
        index: int = batch.index if self._whole.has_batch_index else position
        whole, local = self._kept.get(index, (None, None))
        if whole is not batch:
            local = self._shard.take(batch, index)
            self._kept[index] = batch, local
        return local

    def _compared(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Yield the whole batches, after the workers have compared the first one."""
        first = next(batches, None)
        fingerprint = batch_fingerprint if self.keeps_batches else label_fingerprint
        description = {
            "batches": self.num_batches,
            FINGERPRINT: None if first is None else fingerprint(first),
        }
        descriptions = self._workers.all_gather_object(
            description, f"a pass over {self.name} begins"
        )
        check_same_data(descriptions, f"this pass over {self.name}")
        if first is not None:
            yield first
            yield from batches
