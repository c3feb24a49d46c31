"""How each kind of data repeats: an ArrayLoader, a list of batches, a DataLoader, any iterable.

Each is a :class:`gluon_svrg.data.base.TrainingData`, which says what the members are. Those of
MXNet's ``DataIter`` are in `data_iter.py`.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from gluon_svrg._mxnet import (
    batch_sampler_of,
    batchify_of,
    carries_samples_over,
    dataset_of,
    has_workers,
)
from gluon_svrg.data.agreement import CONTENTS, bits_of, check_agreement
from gluon_svrg.data.base import TrainingData, length_of
from gluon_svrg.data.batch import Batch, is_empty
from gluon_svrg.data.loader import ArrayLoader, LoaderPart
from gluon_svrg.data.probing import isolate_rng, repeats_exactly
from gluon_svrg.data.shares import Share
from gluon_svrg.data.worker_sampler import WorkerBatchSampler
from gluon_svrg.run.rng import broadcast_rng_states
from gluon_svrg.workers import Workers
from mxnet import gluon
from mxnet.gluon.data.dataloader import default_batchify_fn, default_mp_batchify_fn

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

    def batch(self, index: int) -> Any:
        return self._data[index]

    def why_it_may_not_repeat(self) -> str:
        return ""

    def why_not_locked(self) -> str:
        return ""


class ArrayLoaderData(TrainingData):
    """An ArrayLoader: what seed, epoch and index decide; all of it, or the share of a worker."""

    is_indexed = True
    numbers_batches = True
    kind = "an ArrayLoader"

    def __init__(self, loader: ArrayLoader, name: str, share: Share | None = None) -> None:
        super().__init__(loader, name)
        self._loader = loader
        self._share = share
        self._batches = loader if share is None else LoaderPart(loader, share)

    @property
    def loader(self) -> ArrayLoader:
        """The user's."""
        return self._loader

    @property
    def is_shared(self) -> bool:
        return self._share is not None

    @property
    def num_samples(self) -> int:
        return self._loader.num_samples

    @property
    def keeps_batches(self) -> bool:
        return self._loader.keeps_batches

    @property
    def can_lock(self) -> bool:
        return self._loader.can_lock

    @property
    def locked_draw(self) -> int | None:
        return self._loader.locked_draw

    def one_pass(self) -> Iterator[Any]:
        yield from self._batches

    def begin_epoch(self, epoch: int, done: int = 0) -> Iterator[Any]:
        # At once, since in_order() draws for the loader's epoch; the lock is looked at later.
        self._loader.set_epoch(epoch, done)
        return self.one_pass()

    def in_order(self) -> Iterator[Any]:
        return self._batches.in_order()

    def batch(self, index: int) -> Any:
        return self._batches[index]

    @contextmanager
    def without_trace(self) -> Iterator[Callable[[int], Iterator[Any]]]:
        """Give `begin_epoch` of a copy of the loader."""
        yield ArrayLoaderData(copy.copy(self._loader), self._name, self._share).begin_epoch

    def take(self, number: int) -> list[Any]:
        loader = copy.copy(self._loader)  # which leaves the epoch of the user's loader as it is
        loader.set_epoch(0)
        part = self._batches.of(loader) if isinstance(self._batches, LoaderPart) else loader
        return list(itertools.islice(part, number))

    def why_it_may_not_repeat(self) -> str:
        if self._loader.repeats:
            return ""
        if self._loader.reshuffle:
            return "reshuffle=True makes other batches each epoch"
        return "the loader's transform gives something else each time"

    def why_not_locked(self) -> str:
        if self._loader.mixes_other_samples:
            return (
                "its transform mixes the samples of a batch, and reshuffle=True makes other "
                "batches each epoch; leave one of the two out"
            )
        return "" if self._loader.can_lock else _DRAWS

    def lock(self, draw: int) -> None:
        self._loader.lock(draw)

    def unlock(self) -> None:
        self._loader.unlock()

    def description(self) -> dict[str, Any]:
        loader = self._loader
        # Not there before version 0.3, so only where it says something.
        is_new = {"reshuffle": True} if loader.reshuffle else {}
        return {
            **is_new,
            "samples": loader.num_samples,
            "batch_size": loader.batch_size,
            "shuffle": loader.shuffle,
            "seed": loader.seed if loader.shuffle or loader.is_random else None,
        }

    def identity(self) -> dict[str, Any]:
        drawn = {"seed": None} if self._loader.has_drawn_seed else {}
        bits = bits_of(self._loader.some_rows())
        return {**super().identity(), **drawn, CONTENTS: bits}

    def check_description(self, saved: Mapping[str, object]) -> None:
        own = self.description()
        if "seed" in saved and own.get("reshuffle", False) != saved.get("reshuffle", False):
            raise ValueError(
                f"its train_data had reshuffle={saved.get('reshuffle', False)!r} and now it has "
                f"reshuffle={own.get('reshuffle', False)!r}: resume with the data that it was "
                "written with"
            )
        super().check_description(saved)


class DataLoaderData(TrainingData):
    """A ``gluon.data.DataLoader``: its dataset can be tried, sample by sample."""

    _data: gluon.data.DataLoader

    def why_not_locked(self) -> str:
        dataset = dataset_of(self._data)
        length = length_of(dataset)
        if length is None:
            return (
                f"whether a {type(dataset).__name__}, which has no length, gives the same samples "
                "each time cannot be told"
            )
        return "" if _repeats(dataset, length) and self._batchify_repeats() else _DRAWS

    def batch_to_look_at(self) -> Any:
        if has_workers(self._data):
            return None
        batch = next(iter(self.first_batches(1)), None)
        return None if is_empty(batch) else batch

    def check_can_resume(self) -> None:
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
        """The number of all workers."""
        return self._sampler.num_batches

    @property
    def num_samples(self) -> int:
        """The number of all workers."""
        return self._sampler.num_samples

    def check_workers(self, workers: Workers) -> None:
        """Raise ValueError if the sampler is for other workers than these."""
        own, rank = self._sampler.workers.size, self._sampler.workers.rank
        if (own, rank) != (workers.size, workers.rank):
            raise ValueError(
                f"the WorkerBatchSampler of {self.name} is for worker {rank} of {own}, and this is "
                f"worker {workers.rank} of {workers.size}: leave its argument workers out"
            )

    def one_pass(self) -> Iterator[Any]:
        """Return this worker's parts, after all have compared their orders."""
        return self._pass(compares=self._sampler.workers.are_several)

    def take(self, number: int) -> list[Any]:
        return list(itertools.islice(self._pass(compares=False), number))

    def _pass(self, compares: bool) -> Iterator[Any]:
        workers, place = self._sampler.workers, f"a pass over {self.name} begins"
        if compares:
            # A dataset may draw for each sample, and workers have not as many samples.
            broadcast_rng_states(workers, place)
        own = iter(self._data)
        following = next(own, None)  # by then the order is drawn
        if compares:
            identity = {"batches": self.num_batches, "order": self._sampler.order_bits}
            everybody = workers.gather_plain(identity, place)
            check_agreement(everybody, f"this pass over {self.name}")
        for index in range(self.num_batches):
            if self._sampler.has_samples(index):
                yield following
                following = next(own, None)
            else:
                yield Batch((), index)


def _repeats(dataset: Any, length: int) -> bool:
    indices = sorted({length * k // _SAMPLES for k in range(_SAMPLES)}) if length else []
    return all(repeats_exactly(partial(dataset.__getitem__, i), _PROBES) for i in indices)
