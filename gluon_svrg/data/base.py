"""TrainingData: what a run asks of its data, and what holds for any iterable of batches."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from gluon_svrg.data.probing import isolate_rng
from gluon_svrg.data.traces import unchanged


def length_of(data: object) -> int | None:
    """Return ``len(data)``, or None if it is not known before the items are counted."""
    try:
        return len(data)  # type: ignore[arg-type]
    # No length, or a DataLoader or MXNet Dataset without one.
    except (TypeError, NotImplementedError):
        return None


class TrainingData:
    """What a run asks of its training data, whatever kind it is.

    :func:`gluon_svrg.data.training_data.training_data` makes one of a list of batches, an
    :class:`gluon_svrg.data.ArrayLoader`, an ``mx.io.DataIter``, or anything that can be iterated
    again. This class knows only that each ``iter(data)`` is a pass over the batches; its subclasses
    know more.

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
    def is_indexed(self) -> bool:
        """Whether :meth:`batch` can return any batch."""
        return False

    @property
    def numbers_batches(self) -> bool:
        """Whether a batch has an `index` of its own, which is not its place in the epoch."""
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
        """The draw of :meth:`lock`; None if it is not locked, or there is nothing to lock."""
        return None

    @property
    def num_samples(self) -> int | None:
        """The number of samples of an epoch, if it is known."""
        return None

    @property
    def is_shared(self) -> bool:
        """Whether each of several workers has a part of every batch."""
        return False

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
        """Return the batches of an epoch, without the first `done` of them.

        An ArrayLoader is told the epoch by the call. Batches of other data that are done are drawn
        and dropped by the call, too, with the random generators as they are then; but if none is
        done, nothing is drawn before the first batch is asked for.

        Raises
        ------
        ValueError
            If there are fewer batches than `done`.
        """
        batches = self.one_pass()
        for index in range(done):
            if next(batches, None) is None:
                raise ValueError(
                    f"{self._name} has {index} batches in this epoch and the checkpoint was "
                    f"written after {done} of them: resume with the data that it was written with"
                )
        return batches

    def in_order(self) -> Iterator[Any]:
        """Return all batches by their index, if there is one, with the draw that is locked."""
        return self.one_pass()

    def batch(self, index: int) -> Any:
        """Return the batch of this index, if `is_indexed`; -1 is the last."""
        raise TypeError(f"{self.kind} cannot give batch {index} by itself: see is_indexed")

    def take(self, number: int) -> list[Any]:
        """Return the first batches of a pass, or of an ArrayLoader's epoch 0."""
        return list(itertools.islice(self.one_pass(), number))

    def first_batches(self, number: int) -> list[Any]:
        """Return the first batches, leaving no trace in the order of later epochs.

        NumPy's and Python's generators are left as they were. A DataIter has one place only: but
        for an NDArrayIter, this ends a pass that is under way.
        """
        with isolate_rng():
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
        """Return why batches may not be the same, bit for bit, each time; '' if they are."""
        return f"{self.kind} does not promise that its batches repeat"

    def why_not_locked(self) -> str:
        """Return why a sample may change from one pass to the next; '' if it does not.

        SVRG needs that a sample is augmented alike in the full pass and in the epochs until the
        next snapshot; the order may change. The samples of a DataLoader's dataset are tried, a few
        of them several times. NumPy's and Python's generators are left as they were; what the
        dataset draws from MXNet's is drawn. A draw that changes a sample only rarely, or other
        samples only, is not found.
        """
        return (
            f"whether {self.kind} gives the same samples each time cannot be told; use "
            "gluon_svrg.data.ArrayLoader, or a list of batches"
        )

    def lock(self, draw: int) -> None:
        """Give each sample the augmentation of this draw from now on, if `can_lock`."""
        if not self.can_lock:
            raise ValueError(f"{self._name} cannot be locked: {self.why_not_locked()}")

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
        """Raise ValueError if `saved`, of the run to be resumed, is of other data."""
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
        """Raise ValueError if a run on these data cannot be resumed."""
        pass  # an epoch begins anew with the generators as they were


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
