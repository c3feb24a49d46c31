"""TrainingData: the interface through which a run reads its data, for any iterable of batches."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from gluon_svrg.arrays.batch import is_empty
from gluon_svrg.data.determinism import isolate_rng
from gluon_svrg.data.traces import unchanged


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

    Parameters
    ----------
    data : iterable
        The user's object.
    name : str
        What the user calls it, for messages.
    """

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
    def is_shared(self) -> bool:
        """Whether the batches hold only the rows of one of several workers."""
        return False

    def iterate_once(self) -> Iterator[Any]:
        """Iterate once over the batches in the data's order; no draw before the first is read."""
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
        batches = self.iterate_once()
        for index in range(skip):
            if next(batches, None) is None:
                raise ValueError(
                    f"{self._name} has {index} batches in this epoch and the checkpoint was "
                    f"written after {skip} of them: resume with the data that it was written with"
                )
        return batches

    def in_order(self) -> Iterator[Any]:
        """Iterate over all batches by index, if they have one, with the locked draw."""
        return self.iterate_once()

    def batch(self, index: int) -> Any:
        """Return the batch of this index, if `is_indexed`; -1 is the last."""
        raise TypeError(f"{self.kind} cannot give batch {index} by itself: see is_indexed")

    def take(self, number: int) -> list[Any]:
        """Return the first batches of a pass, or of an ArrayLoader's epoch 0."""
        return list(itertools.islice(self.iterate_once(), number))

    def first_batches(self, number: int) -> list[Any]:
        """Return the first batches, without an effect on the order of later epochs.

        NumPy's and Python's generators are restored. A DataIter has only one position: this ends
        its current pass, unless it is an NDArrayIter.
        """
        with isolate_rng():
            return self.take(number)

    @property
    def is_restorable(self) -> bool:
        """Whether :meth:`without_trace` leaves the order of later epochs as it is."""
        return True

    @contextmanager
    def without_trace(self) -> Iterator[Callable[[int], Iterator[Any]]]:
        """Yield :meth:`iterate_epoch`; restore the data's position after the block.

        NumPy's, Python's and MXNet's global generators are not restored.
        """
        with unchanged(self._data):
            yield self.iterate_epoch

    def probe_batch(self) -> Any:
        """Return the first batch, or None: it is empty, or the data would not be as before.

        Data that draw from MXNet's generators, which cannot be restored, draw other numbers later.
        """
        if self.keeps_batches:
            return self.batch(0)
        if not self.is_restorable:
            return None
        with isolate_rng(), self.without_trace() as iterate_epoch:
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
