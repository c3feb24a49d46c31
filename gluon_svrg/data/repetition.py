"""How each kind of data repeats: an ArrayLoader, a list of batches, a DataLoader, any iterable.

Each is an implementation of :class:`gluon_svrg.data.training_data.TrainingData`, which says what
the members are. Those of MXNet's ``DataIter`` are in `data_iter.py`.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
from gluon_svrg.data.batch import Batch, is_empty
from gluon_svrg.data.loader import ArrayLoader, LoaderPart
from gluon_svrg.data.probing import repeats_exactly, unchanged_generators
from gluon_svrg.data.shares import Share
from gluon_svrg.data.traces import unchanged
from gluon_svrg.data.worker_sampler import WorkerBatchSampler
from gluon_svrg.run.generators import take_host_states_of_first
from gluon_svrg.workers import Workers
from mxnet import gluon
from mxnet.gluon.data.dataloader import default_batchify_fn, default_mp_batchify_fn

# A mirror image with probability 1/2 stays undetected in 6 trials of 4 samples once in 2**20.
_SAMPLES, _PROBES = 4, 6

_DRAWS = (
    "its transform draws other numbers each time, from NumPy's or MXNet's generator or its own; "
    "use gluon_svrg.data.ArrayLoader with gluon_svrg.data.transforms"
)


def length_of(data: object) -> int | None:
    """Return ``len(data)``, or None if it is not known before the items are counted."""
    try:
        return len(data)  # type: ignore[arg-type]
    # No length, or a DataLoader or MXNet Dataset without one.
    except (TypeError, NotImplementedError):
        return None


class IterableData:
    """Data of which is known only that each ``iter(data)`` is a pass over its batches.

    Parameters
    ----------
    data : iterable
        The user's object.
    name : str
        What the user calls it, for messages.
    """

    is_indexed = False
    numbers_batches = False
    keeps_batches = False
    can_lock = False
    locked_draw: int | None = None
    num_samples: int | None = None
    is_shared = False  # whether several workers have a part each
    _passes = 0

    def __init__(self, data: Iterable[object], name: str) -> None:
        self._data = data
        self._name = name

    @property
    def source(self) -> Iterable[object]:
        """The user's object."""
        return self._data

    @property
    def name(self) -> str:
        """What the user calls it."""
        return self._name

    @property
    def kind(self) -> str:
        """See TrainingData."""
        return f"a {type(self._data).__name__}"

    @property
    def num_batches(self) -> int | None:
        """See TrainingData."""
        return length_of(self._data)

    def one_pass(self) -> Iterator[Any]:
        """Return the batches in the order of the data's own; nothing is drawn before the first."""
        self._passes += 1
        own, given = self._passes, 0
        for batch in self._data:
            yield batch
            given += 1
        if own != self._passes and given < (self.num_batches or 0):
            raise ValueError(
                f"{self._name} gave {given} of its {self.num_batches} batches, because another "
                "pass over it began meanwhile, as measurements and full passes do: let its "
                "__iter__ return an iterator with a position of its own, as a generator function "
                "does"
            )

    def begin_epoch(self, epoch: int, done: int = 0) -> Iterator[Any]:
        """See TrainingData."""
        batches = self.one_pass()
        for index in range(done):
            if next(batches, None) is None:
                raise ValueError(
                    f"{self._name} has {index} batches in this epoch and the checkpoint was "
                    f"written after {done} of them: resume with the data that it was written with"
                )
        return batches

    def in_order(self) -> Iterator[Any]:
        """See TrainingData."""
        return self.one_pass()

    def batch(self, index: int) -> Any:
        """See TrainingData."""
        raise TypeError(f"{self.kind} cannot give batch {index} by itself: see is_indexed")

    def take(self, number: int) -> list[Any]:
        """Return the first batches of a pass, or of an ArrayLoader's epoch 0."""
        return list(itertools.islice(self.one_pass(), number))

    def first_batches(self, number: int) -> list[Any]:
        """See TrainingData."""
        with unchanged_generators():
            return self.take(number)

    @property
    def can_be_put_back(self) -> bool:
        """Whether :meth:`without_trace` leaves the order of later epochs as it is."""
        return True

    @contextmanager
    def without_trace(self) -> Iterator[Callable[[int], Iterator[Any]]]:
        """Give :meth:`begin_epoch`; after the block the data are where they were before it.

        NumPy's and Python's global generators, and MXNet's, are not put back.
        """
        with unchanged(self._data):
            yield self.begin_epoch

    def batch_to_look_at(self) -> Any:
        """Return the first batch, if to make it leaves no trace and takes no longer; else None."""
        return self.batch(0) if self.keeps_batches else None

    def why_it_may_not_repeat(self) -> str:
        """See TrainingData."""
        return f"{self.kind} does not promise that its batches repeat"

    def why_not_locked(self) -> str:
        """See TrainingData."""
        return (
            f"whether {self.kind} gives the same samples each time cannot be told; use "
            "gluon_svrg.data.ArrayLoader, or a list of batches"
        )

    def lock(self, draw: int) -> None:
        """See TrainingData."""
        if not self.can_lock:
            raise ValueError(f"{self._name} cannot be locked: {self.why_not_locked()}")

    def unlock(self) -> None:
        """See TrainingData."""
        pass  # there is nothing to lock, or nothing that can be

    def description(self) -> dict[str, Any]:
        """See TrainingData."""
        return {"batches": self.num_batches}

    def identity(self) -> dict[str, Any]:
        """Return what has to be the same on all workers, as plain data."""
        return {"kind": self.kind, **self.description()}

    def check_description(self, saved: Mapping[str, object]) -> None:
        """See TrainingData."""
        own = self.description()
        if set(own) != set(saved):
            before, now = _kinds_of(saved, own)
            raise ValueError(
                f"its train_data was {before} and now it is {now}: resume with the data that it "
                "was written with"
            )
        for name, value in own.items():
            if value != saved[name]:
                raise ValueError(
                    f"its train_data had {name}={saved[name]!r} and now it has {name}={value!r}: "
                    "resume with the data that it was written with"
                )

    def check_can_resume(self) -> None:
        """See TrainingData."""
        pass  # an epoch begins anew with the generators as they were


class ListData(IterableData):
    """A list or tuple of batches: the same objects each time."""

    is_indexed = True
    keeps_batches = True
    can_lock = True

    _data: Sequence[Any]

    def batch(self, index: int) -> Any:
        """See TrainingData."""
        return self._data[index]

    def why_it_may_not_repeat(self) -> str:
        """See TrainingData."""
        return ""

    def why_not_locked(self) -> str:
        """See TrainingData."""
        return ""


class ArrayLoaderData(IterableData):
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
    def is_shared(self) -> bool:  # type: ignore[override]
        """See IterableData."""
        return self._share is not None

    @property
    def num_samples(self) -> int:  # type: ignore[override]
        """See TrainingData."""
        return self._loader.num_samples

    @property
    def keeps_batches(self) -> bool:  # type: ignore[override]
        """See TrainingData."""
        return self._loader.keeps_batches

    @property
    def can_lock(self) -> bool:  # type: ignore[override]
        """See TrainingData."""
        return self._loader.can_lock

    @property
    def locked_draw(self) -> int | None:  # type: ignore[override]
        """See TrainingData."""
        return self._loader.locked_draw

    def one_pass(self) -> Iterator[Any]:
        """See IterableData."""
        yield from self._batches

    def begin_epoch(self, epoch: int, done: int = 0) -> Iterator[Any]:
        """See TrainingData."""
        # At once, since in_order() draws for the loader's epoch; the lock is looked at later.
        self._loader.set_epoch(epoch, done)
        return self.one_pass()

    def in_order(self) -> Iterator[Any]:
        """See TrainingData."""
        return self._batches.in_order()

    def batch(self, index: int) -> Any:
        """See TrainingData."""
        return self._batches[index]

    @contextmanager
    def without_trace(self) -> Iterator[Callable[[int], Iterator[Any]]]:
        """See IterableData."""
        yield ArrayLoaderData(copy.copy(self._loader), self._name, self._share).begin_epoch

    def take(self, number: int) -> list[Any]:
        """See TrainingData."""
        loader = copy.copy(self._loader)  # which leaves the epoch of the user's loader as it is
        loader.set_epoch(0)
        part = self._batches.of(loader) if isinstance(self._batches, LoaderPart) else loader
        return list(itertools.islice(part, number))

    def why_it_may_not_repeat(self) -> str:
        """See TrainingData."""
        if self._loader.repeats:
            return ""
        if self._loader.reshuffle:
            return "reshuffle=True makes other batches each epoch"
        return "the loader's transform gives something else each time"

    def why_not_locked(self) -> str:
        """See TrainingData."""
        if self._loader.mixes_other_samples:
            return (
                "its transform mixes the samples of a batch, and reshuffle=True makes other "
                "batches each epoch; leave one of the two out"
            )
        return "" if self._loader.can_lock else _DRAWS

    def lock(self, draw: int) -> None:
        """See TrainingData."""
        self._loader.lock(draw)

    def unlock(self) -> None:
        """See TrainingData."""
        self._loader.unlock()

    def description(self) -> dict[str, Any]:
        """See TrainingData."""
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
        """See IterableData."""
        drawn = {"seed": None} if self._loader.has_drawn_seed else {}
        bits = bits_of(self._loader.some_rows())
        return {**super().identity(), **drawn, CONTENTS: bits}

    def check_description(self, saved: Mapping[str, object]) -> None:
        """See TrainingData."""
        own = self.description()
        if "seed" in saved and own.get("reshuffle", False) != saved.get("reshuffle", False):
            raise ValueError(
                f"its train_data had reshuffle={saved.get('reshuffle', False)!r} and now it has "
                f"reshuffle={own.get('reshuffle', False)!r}: resume with the data that it was "
                "written with"
            )
        super().check_description(saved)


class DataLoaderData(IterableData):
    """A ``gluon.data.DataLoader``: its dataset can be tried, sample by sample."""

    _data: gluon.data.DataLoader

    def why_not_locked(self) -> str:
        """See TrainingData."""
        dataset = dataset_of(self._data)
        length = length_of(dataset)
        if length is None:
            return (
                f"whether a {type(dataset).__name__}, which has no length, gives the same samples "
                "each time cannot be told"
            )
        return "" if _repeats(dataset, length) and self._batchify_repeats() else _DRAWS

    def batch_to_look_at(self) -> Any:
        """See IterableData."""
        if has_workers(self._data):
            return None
        batch = next(iter(self.first_batches(1)), None)
        return None if is_empty(batch) else batch

    def check_can_resume(self) -> None:
        """See TrainingData."""
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
        with unchanged_generators():
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
        """See TrainingData: those of all workers."""
        return self._sampler.num_batches

    @property
    def num_samples(self) -> int:  # type: ignore[override]
        """See TrainingData: those of all workers."""
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
        """See IterableData."""
        return list(itertools.islice(self._pass(compares=False), number))

    def _pass(self, compares: bool) -> Iterator[Any]:
        workers, place = self._sampler.workers, f"a pass over {self.name} begins"
        if compares:
            # A dataset may draw for each sample, and workers have not as many samples.
            take_host_states_of_first(workers, place)
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


def _kinds_of(saved: Mapping[str, object], own: Mapping[str, object]) -> list[str]:
    """Return in words of which kinds of data two descriptions are, if these are different."""
    key, is_one, is_none = next(
        row
        for row in (
            ("seed", "an ArrayLoader", "no ArrayLoader"),
            ("iterator", "a DataIter", "no DataIter"),
        )
        if row[0] in saved or row[0] in own
    )
    return [is_one if key in description else is_none for description in (saved, own)]
