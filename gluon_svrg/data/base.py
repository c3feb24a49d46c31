"""TrainingData: the interface through which a run reads its data, for any iterable of batches."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from gluon_svrg.arrays.batch import is_empty
from gluon_svrg.data.restore import isolate_rng, restored
from gluon_svrg.data.sharding import (
    FINGERPRINT,
    Shard,
    batch_fingerprint,
    check_same_data,
    label_fingerprint,
)
from gluon_svrg.workers import Workers


def length_of(data: object) -> int | None:
    """Return ``len(data)``, or None if it is not known before the items are counted."""
    try:
        return len(data)  # type: ignore[arg-type]
    # No length, or a DataLoader or MXNet Dataset without one.
    except (TypeError, NotImplementedError):
        return None


class TrainingData:
    """The interface through which a run reads its training data.

    :func:`gluon_svrg.data.training_data.training_data` makes one from a list of batches, an
    :class:`gluon_svrg.data.ArrayLoader`, an ``mx.io.DataIter``, or any other iterable. This class
    only assumes that each ``iter(data)`` is a pass over the batches; subclasses know more.

    After :meth:`sharded`, the batches have this worker's rows only, and are an empty
    :class:`gluon_svrg.data.Batch` if it has none. Order, partition, random numbers and the numbers
    of batches and samples stay those of the whole data. A subclass therefore overrides the methods
    that read whole batches, which begin with an underscore.

    Parameters
    ----------
    data : iterable
        The user's object.
    name : str
        What the user calls it, for messages.
    """

    _passes = 0
    _shard: Shard | None = None
    _workers: Workers

    def __init__(self, data: Iterable[object], name: str) -> None:
        self._data = data
        self._name = name
        # By index: a whole batch, and this worker's rows of it.
        self._kept: dict[int, tuple[object, Any]] = {}

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
        """What it is, for messages: ``'a DataLoader'``."""
        return f"a {type(self._data).__name__}"

    @property
    def num_batches(self) -> int | None:
        """The number of batches of an epoch; None if it is not known before they are counted."""
        return length_of(self._data)

    @property
    def has_end(self) -> bool:
        """Whether a pass is known to end."""
        return self.num_batches is not None

    @property
    def is_indexed(self) -> bool:
        """Whether :meth:`batch` can return any batch."""
        return False

    @property
    def has_batch_index(self) -> bool:
        """Whether a batch has an `index` attribute, which is not its position in the epoch."""
        return False

    @property
    def keeps_batches(self) -> bool:
        """Whether a batch is the same objects each time, not only equal ones."""
        return False

    @property
    def can_lock(self) -> bool:
        """Whether :meth:`lock` holds all randomness of the batches, or there is none."""
        return False

    @property
    def locked_draw(self) -> int | None:
        """The draw given to :meth:`lock`; None if it is not locked, or nothing is random."""
        return None

    @property
    def num_samples(self) -> int | None:
        """The number of samples of an epoch, if it is known."""
        return None

    @property
    def is_sharded(self) -> bool:
        """Whether the batches have only the rows of one of several workers."""
        return self._shard is not None

    def sharded(self, workers: Workers, batch_axis: int = 0) -> TrainingData:
        """Return the data with this worker's rows of each batch.

        All workers call it together: they compare their data, and all of them use worker 0's seed
        if an ArrayLoader has drawn one.

        Parameters
        ----------
        workers : Workers
            All workers. A single one gets the data themselves, and so does a worker whose data are
            sharded already.
        batch_axis : int
            The axis that counts the samples.

        Raises
        ------
        ValueError
            If the workers' data differ.
        """
        if not workers.is_distributed or self.is_sharded:
            return self
        at = f"{self._name} are divided between the workers"
        check_same_data(workers.all_gather_object(self.identity(), at), self._name)
        return self._sharded(workers, Shard(workers.rank, workers.size, batch_axis))

    def _sharded(self, workers: Workers, shard: Shard) -> TrainingData:
        part = copy.copy(self)
        part._workers, part._shard, part._kept = workers, shard, {}
        return part

    def describe_sharding(self, workers: Workers) -> str:
        """Return how the workers divide the data, as a sentence for the log."""
        return f"{workers.size} workers: each trains on its part of every batch of {self.kind}"

    def iterate_once(self) -> Iterator[Any]:
        """Iterate once over the batches in the data's order; no draw before the first is read."""
        return self._local_batches(self._pass())

    def _pass(self) -> Iterator[Any]:
        self._passes += 1
        this_pass, count = self._passes, 0
        for batch in self._data:
            yield batch
            count += 1
        if this_pass != self._passes and count < (self.num_batches or 0):
            raise ValueError(
                f"{self._name} gave {count} of its {self.num_batches} batches, because another "
                "pass over it began meanwhile, as measurements and full passes do: let its "
                "__iter__ return an iterator with a position of its own, as a generator function "
                "does"
            )

    def iterate_epoch(self, epoch: int, skip: int = 0) -> Iterator[Any]:
        """Return the batches of an epoch, without the first `skip` of them.

        An ArrayLoader gets the epoch at the call. Other data are read and `skip` batches dropped,
        also at the call, with the random generators as they are then. With ``skip=0`` nothing is
        drawn before the first batch is asked for.

        Raises
        ------
        ValueError
            If there are fewer batches than `skip`.
        """
        return self._local_batches(self._epoch(skip), skip)

    def _epoch(self, skip: int) -> Iterator[Any]:
        batches = self._pass()
        for index in range(skip):
            if next(batches, None) is None:
                raise ValueError(
                    f"{self._name} has {index} batches in this epoch and the checkpoint was "
                    f"written after {skip} of them: resume with the data that it was written with"
                )
        return batches

    def in_order(self) -> Iterator[Any]:
        """Iterate over all batches by index, if they have one, with the locked draw."""
        return self._local_batches(self._in_order())

    def _in_order(self) -> Iterator[Any]:
        return self._pass()

    def batch(self, index: int) -> Any:
        """Return the batch of this index, if `is_indexed`; -1 is the last."""
        position = index + (self.num_batches or 0) if index < 0 else index
        return self._local_batch(self._batch(index), position)

    def _batch(self, index: int) -> Any:
        raise TypeError(f"{self.kind} cannot give batch {index} by itself: see is_indexed")

    def take(self, number: int) -> list[Any]:
        """Return the first batches of a pass, or of an ArrayLoader's epoch 0.

        The workers do not compare them.
        """
        batches = itertools.islice(self._peek(), number)
        return [self._local_batch(batch, position) for position, batch in enumerate(batches)]

    def _peek(self) -> Iterator[Any]:
        return self._pass()

    def first_batches(self, number: int) -> list[Any]:
        """Return the first batches, without an effect on the order of later epochs.

        NumPy's and Python's generators are restored. A DataIter has only one position: this ends
        its current pass, unless it is an NDArrayIter.
        """
        with isolate_rng():
            return self.take(number)

    @property
    def is_restorable(self) -> bool:
        """Whether :meth:`restored` leaves the order of later epochs as it is."""
        return True

    @contextmanager
    def restored(self) -> Iterator[Callable[[int], Iterator[Any]]]:
        """Yield :meth:`iterate_epoch`; restore the data's position after the block.

        NumPy's, Python's and MXNet's global generators are not restored.
        """
        with restored(self._data):
            yield self.iterate_epoch

    def probe_batch(self) -> Any:
        """Return the first batch, or None: it is empty, or the data would not be as before.

        Data that draw from MXNet's generators, which cannot be restored, draw other numbers later.
        """
        if self.keeps_batches:
            return self.batch(0)
        if not self.is_restorable:
            return None
        with isolate_rng(), self.restored() as iterate_epoch:
            batch = next(iterate_epoch(0), None)
        return None if is_empty(batch) else batch

    def whole_labels(self) -> tuple[Any, Any] | None:
        """Return the labels of all samples and their weights or None; None if not in memory."""
        return None

    def reason_not_repeatable(self) -> str:
        """Return why the batches may differ between passes; '' if they repeat bit for bit."""
        return f"{self.kind} does not promise that its batches repeat"

    def reason_not_lockable(self) -> str:
        """Return why a sample may change from one pass to the next; '' if it does not.

        SVRG needs the same augmentation of a sample in the full pass and in the epochs until the
        next snapshot; the order may change. For a DataLoader, a few samples of its dataset are
        read several times and compared. This restores NumPy's and Python's generators, but not
        MXNet's. A change that is rare, or of other samples, is not found.
        """
        return (
            f"whether {self.kind} gives the same samples each time cannot be told; use "
            "gluon_svrg.data.ArrayLoader, or a list of batches"
        )

    def lock(self, draw: int) -> None:
        """Give each sample the augmentation of this draw from now on, if `can_lock`."""
        if not self.can_lock:
            raise ValueError(f"{self._name} cannot be locked: {self.reason_not_lockable()}")

    def unlock(self) -> None:
        """Draw a new augmentation in each epoch from now on."""
        pass  # there is nothing to lock, or nothing that can be

    def description(self) -> dict[str, Any]:
        """Return what has to be the same after a resume, as plain data."""
        return {"batches": self.num_batches}

    def identity(self) -> dict[str, Any]:
        """Return what has to be the same on all workers, as plain data."""
        return {"kind": self.kind, **self.description()}

    def check_description(self, saved: Mapping[str, object]) -> None:
        """Raise ValueError if `saved`, the description in a checkpoint, is of other data."""
        current = self.description()
        if set(current) != set(saved):
            before, now = _describe_kinds(saved, current)
            raise ValueError(
                f"its train_data was {before} and now it is {now}: resume with the data that it "
                "was written with"
            )
        for name, value in current.items():
            if value != saved[name]:
                raise ValueError(
                    f"its train_data had {name}={saved[name]!r} and now it has {name}={value!r}: "
                    "resume with the data that it was written with"
                )

    def check_can_resume(self) -> None:
        """Raise ValueError if a run on these data cannot be resumed."""
        pass  # the epoch is repeated with the generators' states from its begin

    def _local_batches(self, batches: Iterator[Any], first: int = 0) -> Iterator[Any]:
        """Return this worker's rows of whole batches; all of them without a shard.

        With a shard, the workers compare the first batch and the number of batches.
        """
        if self._shard is None:
            return batches
        return (
            self._local_batch(batch, position)
            for position, batch in enumerate(self._compared(batches), first)
        )

    def _local_batch(self, batch: Any, position: int) -> Any:
        if self._shard is None:
            return batch
        if not self.keeps_batches:
            return self._shard.take(batch, position)
        whole, local = self._kept.get(position, (None, None))
        if whole is not batch:  # also if the user has changed the list
            local = self._shard.take(batch, position)
            self._kept[position] = batch, local
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
            description, f"a pass over {self._name} begins"
        )
        check_same_data(descriptions, f"this pass over {self._name}")
        if first is not None:
            yield first
            yield from batches


def _describe_kinds(saved: Mapping[str, object], current: Mapping[str, object]) -> list[str]:
    """Return the kinds of the data of two descriptions that have different keys, in words."""
    key, is_one, is_none = next(
        row
        for row in (
            ("seed", "an ArrayLoader", "no ArrayLoader"),
            ("iterator", "a DataIter", "no DataIter"),
        )
        if row[0] in saved or row[0] in current
    )
    return [is_one if key in description else is_none for description in (saved, current)]


def at_least_one(batches: Iterable[object], name: str) -> Iterator[Any]:
    """Yield the batches; raise ValueError if there is none."""
    batch = None
    for batch in batches:
        yield batch
    if batch is None:
        raise ValueError(
            f"{name} gave no batch: it is empty, or it can be iterated only once; give a "
            "DataLoader or a list of batches"
        )
