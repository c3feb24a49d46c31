"""Training data of which every worker has its rows of each batch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any
from weakref import WeakValueDictionary

from gluon_svrg.data.agreement import CONTENTS, bits_of_batch, bits_of_labels, check_agreement
from gluon_svrg.data.base import TrainingData
from gluon_svrg.data.repetition import (
    ArrayLoaderData,
    DataLoaderData,
    WorkerLoaderData,
)
from gluon_svrg.data.shares import Share
from gluon_svrg.workers import Workers

# The same data, given twice to one run (to fit, and to a handler), are the same parts, by which a
# gradient table recognises them. By the user's object, which the value keeps alive.
_SHARED: WeakValueDictionary[tuple[object, ...], TrainingData] = WeakValueDictionary()


def sharded(data: TrainingData, workers: Workers, batch_axis: int = 0) -> TrainingData:
    """Return the data of which this worker has its rows of each batch.

    Order, partition, random numbers, numbers of batches and of samples are those of the whole. A
    worker without a row in a batch has an empty :class:`gluon_svrg.data.Batch` in its place. Of
    batches that are kept, a part is made once, and kept too.

    All workers call it together: they compare their data, and an ArrayLoader whose seed was drawn
    gets the first worker's.

    Parameters
    ----------
    data : TrainingData
        As :func:`gluon_svrg.data.training_data.training_data` returns them: whole.
    workers : Workers
        Who shares them. One alone gets `data` itself.
    batch_axis : int
        The axis that counts the samples.

    Raises
    ------
    ValueError
        If the workers have other data than each other.
    """
    if not workers.are_several or data.is_shared:
        return data
    place = f"{data.name} are shared out"
    check_agreement(workers.gather_plain(data.identity(), place), data.name)
    if isinstance(data, ArrayLoaderData) and data.loader.has_drawn_seed:
        data.loader.use_seed(workers.of_first(data.loader.seed, place))
    if isinstance(data, WorkerLoaderData):
        data.check_workers(workers)
        return data
    key = id(data.source), data.name, id(workers), batch_axis
    known = _SHARED.get(key)
    if known is None:
        share = Share(workers.rank, workers.size, batch_axis)
        if isinstance(data, ArrayLoaderData):
            known = ArrayLoaderData(data.loader, data.name, share)
        else:
            known = ShardedData(data, workers, share)
        _SHARED[key] = known
    return known


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
    """Whole batches, of which this worker keeps its rows.

    At the beginning of a pass, all workers compare its first batch and the number of batches.

    Parameters
    ----------
    whole : TrainingData
        The same on all workers.
    workers : Workers
        Who shares them.
    share : Share
        What this one has.
    """

    is_shared = True

    def __init__(self, whole: TrainingData, workers: Workers, share: Share) -> None:
        super().__init__(whole.source, whole.name)
        self._whole = whole
        self._workers = workers
        self._share = share
        # By index: the whole batch, which is another if the user's list has changed, and the part.
        self._kept: dict[int, tuple[object, Any]] = {}

    @property
    def kind(self) -> str:
        return self._whole.kind

    @property
    def is_of_a_loader(self) -> bool:
        """Whether a DataLoader makes the whole batches."""
        return isinstance(self._whole, DataLoaderData)

    @property
    def num_batches(self) -> int | None:
        return self._whole.num_batches

    @property
    def num_samples(self) -> int | None:
        """The number of all workers."""
        return self._whole.num_samples

    @property
    def is_indexed(self) -> bool:
        return self._whole.is_indexed

    @property
    def numbers_batches(self) -> bool:
        return self._whole.numbers_batches

    @property
    def keeps_batches(self) -> bool:
        return self._whole.keeps_batches

    @property
    def can_lock(self) -> bool:
        return self._whole.can_lock

    @property
    def locked_draw(self) -> int | None:
        return self._whole.locked_draw

    def one_pass(self) -> Iterator[Any]:
        """Return the parts of the batches in the order of the data's own."""
        return self._parts(self._compared(self._whole.one_pass()), 0)

    def begin_epoch(self, epoch: int, done: int = 0) -> Iterator[Any]:
        return self._parts(self._compared(self._whole.begin_epoch(epoch, done)), done)

    def in_order(self) -> Iterator[Any]:
        return self._parts(self._compared(self._whole.in_order()), 0)

    def batch(self, index: int) -> Any:
        number = index + (self.num_batches or 0) if index < 0 else index
        return self._part(self._whole.batch(index), number)

    def take(self, number: int) -> list[Any]:
        return [self._part(batch, i) for i, batch in enumerate(self._whole.take(number))]

    def why_it_may_not_repeat(self) -> str:
        return self._whole.why_it_may_not_repeat()

    def why_not_locked(self) -> str:
        return self._whole.why_not_locked()

    def lock(self, draw: int) -> None:
        self._whole.lock(draw)

    def unlock(self) -> None:
        self._whole.unlock()

    def description(self) -> dict[str, Any]:
        return self._whole.description()

    def check_description(self, saved: Mapping[str, object]) -> None:
        self._whole.check_description(saved)

    def check_can_resume(self) -> None:
        self._whole.check_can_resume()

    def _parts(self, batches: Iterator[Any], done: int) -> Iterator[Any]:
        for index, batch in enumerate(batches, done):
            yield self._part(batch, index)

    def _part(self, batch: Any, position: int) -> Any:
        if not self._whole.keeps_batches:
            return self._share.of(batch, position)
        index: int = batch.index if self._whole.numbers_batches else position
        whole, part = self._kept.get(index, (None, None))
        if whole is not batch:
            part = self._share.of(batch, index)
            self._kept[index] = batch, part
        return part

    def _compared(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Yield the whole batches, after the workers have compared the first of them."""
        first = next(batches, None)
        bits = bits_of_batch if self.keeps_batches else bits_of_labels
        own = {"batches": self.num_batches, CONTENTS: None if first is None else bits(first)}
        everybody = self._workers.gather_plain(own, f"a pass over {self.name} begins")
        check_agreement(everybody, f"this pass over {self.name}")
        if first is not None:
            yield first
            yield from batches
