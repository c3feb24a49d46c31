"""TrainingData of an ArrayLoader, a list of batches, or a DataLoader.

The base class, :class:`gluon_svrg.data.base.TrainingData`, documents the members. MXNet's
``DataIter`` is in `data_iter.py`.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from numbers import Real
from typing import Any

import numpy as np
from gluon_svrg._mxnet.dataloader import (
    arrays_in_order,
    batch_sampler_of,
    batchify_of,
    carries_samples_over,
    dataset_of,
)
from gluon_svrg.arrays.batch import Batch, is_empty
from gluon_svrg.arrays.nested import as_numpy
from gluon_svrg.data.base import TrainingData, length_of
from gluon_svrg.data.determinism import repeats_exactly
from gluon_svrg.data.loader import ArrayLoader, ShardedLoader
from gluon_svrg.data.restore import isolate_rng
from gluon_svrg.data.sharding import FINGERPRINT, Shard, check_same_data, fingerprint
from gluon_svrg.data.worker_sampler import WorkerBatchSampler
from gluon_svrg.rng import broadcast_rng_states
from gluon_svrg.workers import Workers
from mxnet import gluon
from mxnet.gluon.data.dataloader import default_batchify_fn, default_mp_batchify_fn
from mxnet.ndarray import NDArray

# A mirror image with probability 1/2 stays undetected in 6 trials of 4 samples once in 2**20.
_SAMPLES, _PROBES = 4, 6

_DRAWS = (
    "its transform draws other numbers each time, from NumPy's or MXNet's generator or its own; "
    "use gluon_svrg.data.ArrayLoader with gluon_svrg.data.transforms"
)


class ListData(TrainingData):
    """A list or tuple of batches: the same objects each time."""

    is_indexed = True
    keeps_batches = True
    can_lock = True

    _data: Sequence[Any]

    def _batch(self, index: int) -> Any:
        return self._data[index]

    def whole_labels(self) -> tuple[Any, Any] | None:
        """Return the labels of all batches, if these are pairs with one array of labels."""
        # By index: a list of the user's own may count the passes over it.
        batches = [self._data[i] for i in range(len(self._data))]
        batches = [batch for batch in batches if not is_empty(batch)]
        if not all(isinstance(batch, (list, tuple)) and len(batch) == 2 for batch in batches):
            return None
        labels = [batch[1] for batch in batches]
        if not all(isinstance(label, (NDArray, np.ndarray)) and label.ndim for label in labels):
            return None
        if len({label.shape[1:] for label in labels}) != 1:
            return None
        return np.concatenate([as_numpy(label) for label in labels]), None

    def reason_not_repeatable(self) -> str:
        """Return '': the same objects come each time."""
        return ""

    def reason_not_lockable(self) -> str:
        """Return '': nothing in a list is random."""
        return ""


class ArrayLoaderData(TrainingData):
    """An ArrayLoader: its batches depend on seed, epoch and index alone.

    Sharded, it takes only this worker's rows from the arrays, so it overrides the methods that
    would cut them out of whole batches.
    """

    is_indexed = True
    has_batch_index = True
    kind = "an ArrayLoader"

    def __init__(self, loader: ArrayLoader, name: str, shard: Shard | None = None) -> None:
        super().__init__(loader, name)
        self._loader = loader
        self._shard = shard
        self._batches = loader if shard is None else ShardedLoader(loader, shard)

    def _sharded(self, workers: Workers, shard: Shard) -> TrainingData:
        if self._loader.has_drawn_seed:
            at = f"{self._name} are divided between the workers"
            self._loader.use_seed(workers.broadcast_object(self._loader.seed, at))
        return ArrayLoaderData(self._loader, self._name, shard)

    @property
    def num_samples(self) -> int:
        """The number of samples of an epoch, over all workers."""
        return self._loader.num_samples

    @property
    def keeps_batches(self) -> bool:
        """Whether a batch is the same objects each time: no transform, memmap or `reshuffle`."""
        return self._loader.keeps_batches

    @property
    def can_lock(self) -> bool:
        """Whether the loader's transform can be locked, or draws nothing."""
        return self._loader.can_lock

    @property
    def locked_draw(self) -> int | None:
        """The draw that the loader is locked to; None if it is not locked."""
        return self._loader.locked_draw

    def iterate_once(self) -> Iterator[Any]:
        """Iterate over the batches of the loader's epoch, which goes up by one."""
        yield from self._batches

    def iterate_epoch(self, epoch: int, skip: int = 0) -> Iterator[Any]:
        """Set the loader's epoch now, and return the batches without the first `skip`."""
        # At once, since in_order() draws for the loader's epoch; the lock is looked at later.
        self._loader.set_epoch(epoch, skip)
        return self.iterate_once()

    def in_order(self) -> Iterator[Any]:
        """Iterate over all batches by their index; the loader's epoch stays."""
        return self._batches.in_order()

    def batch(self, index: int) -> Any:
        """Return the batch of this index; -1 is the last."""
        return self._batches[index]

    def whole_labels(self) -> tuple[Any, Any] | None:
        """Return the loader's labels and weights, unless a transform may change them."""
        return self._loader.whole_labels()

    @contextmanager
    def restored(self) -> Iterator[Callable[[int], Iterator[Any]]]:
        """Yield `iterate_epoch` of a copy of the loader."""
        yield ArrayLoaderData(copy.copy(self._loader), self._name, self._shard).iterate_epoch

    def take(self, number: int) -> list[Any]:
        """Return the first batches of epoch 0, from a copy of the loader."""
        loader = copy.copy(self._loader)  # which leaves the epoch of the user's loader as it is
        loader.set_epoch(0)
        if isinstance(self._batches, ShardedLoader):
            return list(itertools.islice(self._batches.with_loader(loader), number))
        return list(itertools.islice(loader, number))

    def reason_not_repeatable(self) -> str:
        """Return why a batch may differ next time: its transform, or `reshuffle`; else ''."""
        if self._loader.repeats:
            return ""
        if self._loader.reshuffle:
            return "reshuffle=True makes other batches each epoch"
        return "the loader's transform gives something else each time"

    def reason_not_lockable(self) -> str:
        """Return why the loader's transform cannot be locked; '' if it can."""
        if self._loader.mixes_other_samples:
            return (
                "its transform mixes the samples of a batch, and reshuffle=True makes other "
                "batches each epoch; leave one of the two out"
            )
        return "" if self._loader.can_lock else _DRAWS

    def lock(self, draw: int) -> None:
        """Lock the loader's augmentation to this draw."""
        self._loader.lock(draw)

    def unlock(self) -> None:
        """Let the loader's augmentation depend on seed and epoch again."""
        self._loader.unlock()

    def description(self) -> dict[str, Any]:
        """Return the loader's arguments that a resumed run must share."""
        loader = self._loader
        # Only if True: a checkpoint of version 0.8 has no False.
        is_new = {"reshuffle": True} if loader.reshuffle else {}
        return {
            **is_new,
            "samples": loader.num_samples,
            "batch_size": loader.batch_size,
            "shuffle": loader.shuffle,
            "seed": loader.seed if loader.shuffle or loader.is_random else None,
        }

    def identity(self) -> dict[str, Any]:
        """Return the description, and a checksum of some samples; a drawn seed does not count."""
        drawn = {"seed": None} if self._loader.has_drawn_seed else {}
        bits = fingerprint(self._loader.some_rows())
        return {**super().identity(), **drawn, FINGERPRINT: bits}

    def check_description(self, saved: Mapping[str, object]) -> None:
        """Raise ValueError if the checkpoint's loader had other arguments."""
        current = self.description()
        if "seed" in saved and current.get("reshuffle", False) != saved.get("reshuffle", False):
            raise ValueError(
                f"its train_data had reshuffle={saved.get('reshuffle', False)!r} and now it has "
                f"reshuffle={current.get('reshuffle', False)!r}: resume with the data that it was "
                "written with"
            )
        super().check_description(saved)


class DataLoaderData(TrainingData):
    """A ``gluon.data.DataLoader``: its dataset can be tried, sample by sample."""

    _data: gluon.data.DataLoader

    def describe_sharding(self, workers: Workers) -> str:
        """Return how the workers divide the data, and how each could load less."""
        if not self.is_sharded:  # a WorkerBatchSampler has divided them
            return super().describe_sharding(workers)
        return (
            f"{workers.size} workers: each loads whole batches of {self.kind} and trains on its "
            "part; with a gluon_svrg.data.WorkerBatchSampler it would load only its own samples"
        )

    def _pass(self) -> Iterator[Any]:
        try:
            yield from super()._pass()
        except KeyError as error:
            # MXNet looks for the dtype of the samples in a dict.
            kind = error.args[0] if error.args else None
            if not (isinstance(kind, type) and issubclass(kind, np.generic)):
                raise
            raise ValueError(
                f"{self._name} gives arrays of dtype {np.dtype(kind)}, which MXNet does not have: "
                "convert them with x.astype(...), integers to int64, for example"
            ) from error

    def whole_labels(self) -> tuple[Any, Any] | None:
        """Return the labels and weights of an ArrayDataset, if an epoch has all of its samples."""
        if batchify_of(self._data) not in (default_batchify_fn, default_mp_batchify_fn):
            return None
        arrays = arrays_in_order(self._data)
        if arrays is None or len(arrays) not in (2, 3):
            return None
        label, weight = arrays[1], arrays[2] if len(arrays) == 3 else None
        if isinstance(label, list) and all(isinstance(value, Real) for value in label):
            label = np.asarray(label)
        return label, weight

    def reason_not_lockable(self) -> str:
        """Return why a sample may change between passes; a few are read several times."""
        dataset = dataset_of(self._data)
        length = length_of(dataset)
        if length is None:
            return (
                f"whether a {type(dataset).__name__}, which has no length, gives the same samples "
                "each time cannot be told"
            )
        return "" if _repeats(dataset, length) and self._batchify_repeats() else _DRAWS

    def check_can_resume(self) -> None:
        """Raise ValueError with ``last_batch='rollover'``, whose samples no checkpoint holds."""
        if carries_samples_over(self._data):
            raise ValueError(
                f"{self._name} has last_batch='rollover', which carries samples from epoch to "
                "epoch, and a checkpoint cannot hold them: use last_batch='keep' or 'discard'"
            )

    def _batchify_repeats(self) -> bool:
        """Return whether a batchify_fn of the user's own gives the same batch each time."""
        batchify = batchify_of(self._data)
        if batchify in (default_batchify_fn, default_mp_batchify_fn):
            return True
        with isolate_rng():
            indices: list[int] = next(iter(batch_sampler_of(self._data)), [])
        dataset = dataset_of(self._data)
        return not indices or repeats_exactly(
            lambda: batchify([dataset[i] for i in indices]), _PROBES
        )


class WorkerLoaderData(DataLoaderData):
    """A DataLoader whose batches have the samples of this worker only, by a WorkerBatchSampler."""

    def __init__(self, loader: gluon.data.DataLoader, name: str) -> None:
        super().__init__(loader, name)
        self._sampler: WorkerBatchSampler = batch_sampler_of(loader)

    @property
    def num_batches(self) -> int:
        """The number of batches of an epoch, over all workers."""
        return self._sampler.num_batches

    @property
    def num_samples(self) -> int:
        """The number of samples of an epoch, over all workers."""
        return self._sampler.num_samples

    def _sharded(self, workers: Workers, shard: Shard) -> TrainingData:
        """Return the data themselves; raise ValueError if the sampler is for other workers."""
        size, rank = self._sampler.workers.size, self._sampler.workers.rank
        if (size, rank) != (workers.size, workers.rank):
            raise ValueError(
                f"the WorkerBatchSampler of {self.name} is for worker {rank} of {size}, and this "
                f"is worker {workers.rank} of {workers.size}: leave its argument workers out"
            )
        return self

    def probe_batch(self) -> Any:
        """Return this worker's part of the first batch; None if it has none."""
        batch = next(iter(self.first_batches(1)), None)
        return None if is_empty(batch) else batch

    def _pass(self) -> Iterator[Any]:
        return self._local_parts(compares=self._sampler.workers.is_distributed)

    def _peek(self) -> Iterator[Any]:
        return self._local_parts(compares=False)

    def _local_parts(self, compares: bool) -> Iterator[Any]:
        """Return this worker's parts of the batches, after all workers have compared the order."""
        workers, label = self._sampler.workers, f"a pass over {self.name} begins"
        if compares:
            # A dataset may draw for each sample, and the workers' numbers of samples differ.
            broadcast_rng_states(workers, label)
        batches = iter(self._data)
        next_batch = next(batches, None)  # by then the order is drawn
        if compares:
            identity = {"batches": self.num_batches, "order": self._sampler.order_bits}
            descriptions = workers.all_gather_object(identity, label)
            check_same_data(descriptions, f"this pass over {self.name}")
        for index in range(self.num_batches):
            if self._sampler.has_samples(index):
                yield next_batch
                next_batch = next(batches, None)
            else:
                yield Batch((), index)


def _repeats(dataset: Any, length: int) -> bool:
    indices = sorted({length * k // _SAMPLES for k in range(_SAMPLES)}) if length else []
    return all(repeats_exactly(partial(dataset.__getitem__, i), _PROBES) for i in indices)
