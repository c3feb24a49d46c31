"""SharedBatches: a worker's rows of each batch for a hand-written loop; Loop: counts them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakKeyDictionary, ref

from gluon_svrg.arrays.batch import Batch, is_empty
from gluon_svrg.arrays.nested import tree_leaves, tree_map
from gluon_svrg.arrays.samples import num_samples, slice_samples
from gluon_svrg.data.base import TrainingData
from gluon_svrg.workers import Workers

if TYPE_CHECKING:
    from gluon_svrg.svrg.trainer import SVRGTrainer


class SharedBatches:
    """A worker's rows of each batch: the result of :func:`gluon_svrg.data.share`.

    Parameters
    ----------
    whole, data : TrainingData
        The whole batches; this worker's rows of them, with an empty batch if it has no row.
    workers : Workers
        All workers.
    batch_axis : int
        The axis that counts the samples.
    """

    def __init__(
        self, whole: TrainingData, data: TrainingData, workers: Workers, batch_axis: int
    ) -> None:
        self._whole = whole
        self.data = data
        self._workers = workers
        self._batch_axis = batch_axis
        self._sample: Any = None

    def __len__(self) -> int:
        """Return the number of batches."""
        if self.data.num_batches is None:
            raise TypeError("the number of batches is not known before they are counted")
        return self.data.num_batches

    def __iter__(self) -> Iterator[Any]:
        """Return an iterator over this worker's rows, in the order of the whole data."""
        loop = loop_of(self._workers)
        loop.begin_pass(self._workers)
        for batch in self.data.iterate_once():
            if is_empty(batch):
                local = self._one_sample()
                if isinstance(local, (list, tuple)):
                    local = Batch(local, batch.index)
                loop.give(local, 0, batch.index)
            else:
                local = batch
                loop.give(local, num_samples(tree_leaves(batch)[0], self._batch_axis))
            yield local

    def _one_sample(self) -> Any:
        """Return a sample for a loop that cannot run without one."""
        if self._sample is None:
            (batch,) = self._whole.first_batches(1)
            if is_empty(batch):
                raise ValueError(
                    f"worker {self._workers.rank} has no sample of the first batch: with a "
                    f"WorkerBatchSampler give a batch_size of at least {self._workers.size}, the "
                    "number of workers"
                )
            self._sample = tree_map(
                lambda leaf: slice_samples(leaf, slice(0, 1), self._batch_axis), batch
            )
        return self._sample


class Given(NamedTuple):
    """The numbers of batches and samples that a loop was given.

    Attributes
    ----------
    batches : int
        The number of batches.
    samples, rows : int
        This worker's samples of them; the rows that it got, with a stand-in for each empty batch.
    stand_ins : int
        The number of batches of which this worker has no sample.
    """

    batches: int = 0
    samples: int = 0
    rows: int = 0
    stand_ins: int = 0

    def since(self, before: Given) -> Given:
        """Return what came after `before`."""
        return Given(*(now - then for now, then in zip(self, before, strict=True)))


class Loop:
    """Counts what `share` has given to the hand-written loop of this process, for its trainers.

    Attributes
    ----------
    given, last : Given
        All batches; the last batch alone.
    """

    def __init__(self) -> None:
        self.given = Given()
        self.last = Given()
        self._batch: object = None
        self._index = 0
        self._trainers: list[ref[SVRGTrainer]] = []  # in an order that all workers have

    def join(self, trainer: SVRGTrainer) -> None:
        """Let a trainer's weights be the same on all workers from the next pass on."""
        self._trainers.append(ref(trainer))

    def begin_pass(self, workers: Workers) -> None:
        """Give all workers the first one's weights, if that was not done before."""
        trainers = [trainer() for trainer in self._trainers]
        alive = [number for number, trainer in enumerate(trainers) if trainer is not None]
        # Python may have freed one here, and not yet on another worker.
        alive_on_workers = workers.all_gather_object(alive, "a pass over shared batches begins")
        for number in sorted(set(alive).intersection(*alive_on_workers)):
            trainer = trainers[number]
            assert trainer is not None
            trainer.synchronize()

    def give(self, batch: object, samples: int, index: int = 0) -> None:
        """Note the part of a batch; with 0 samples it stands in for none."""
        self._batch, self._index = batch, index
        self.last = Given(1, samples, samples or 1, int(not samples))
        self.given = Given(*(a + b for a, b in zip(self.given, self.last, strict=True)))

    def own_part(self, batch: object) -> object:
        """Return `batch`, or an empty one if it stands in for none."""
        is_stand_in = batch is self._batch and self.last.stand_ins
        return Batch((), self._index) if is_stand_in else batch


_loops: WeakKeyDictionary[Workers, Loop] = WeakKeyDictionary()


def loop_of(workers: Workers) -> Loop:
    """Return the hand-written loop of these workers."""
    return _loops.setdefault(workers, Loop())
