"""TrainingData: how batches repeat, and what of them can be held from one snapshot to the next."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol


class TrainingData(Protocol):
    """What a run asks of its training data, whatever kind it is.

    :func:`training_data` makes one of a list of batches, an :class:`ArrayLoader`, an
    ``mx.io.DataIter``, or anything that can be iterated again.

    Attributes
    ----------
    kind : str
        What it is, for messages: ``'a DataLoader'``.
    num_batches : int or None
        The number of batches of an epoch; None if it is not known before they are counted.
    num_samples : int or None
        The number of samples of an epoch, if it is known.
    is_indexed : bool
        Whether :meth:`batch` can return any batch.
    keeps_batches : bool
        Whether a batch is the same objects each time, not only equal ones.
    can_lock : bool
        Whether :meth:`lock` holds all randomness of the batches, or there is none.
    locked_draw : int or None
        The draw of :meth:`lock`; None if it is not locked.
    """

    @property
    def kind(self) -> str:
        """See the class."""

    @property
    def num_batches(self) -> int | None:
        """See the class."""

    @property
    def num_samples(self) -> int | None:
        """See the class."""

    @property
    def is_indexed(self) -> bool:
        """See the class."""

    @property
    def keeps_batches(self) -> bool:
        """See the class."""

    @property
    def can_lock(self) -> bool:
        """See the class."""

    @property
    def locked_draw(self) -> int | None:
        """See the class."""

    def begin_epoch(self, epoch: int, done: int = 0) -> Iterator[Any]:
        """Return the batches of an epoch, without the first `done` of them."""

    def in_order(self) -> Iterator[Any]:
        """Return all batches by their index, with the draw that is locked, if any."""

    def batch(self, index: int) -> Any:
        """Return the batch of this index, if `is_indexed`."""

    def first_batches(self, number: int) -> list[Any]:
        """Return the first batches, leaving no trace in the order of later epochs."""

    def index_of(self, batch: Any, position: int) -> int:
        """Return the index of a batch, whose place in the epoch is `position`."""

    def why_it_may_not_repeat(self) -> str:
        """Return why batches may not be the same, bit for bit, each time; '' if they are."""

    def why_not_locked(self) -> str:
        """Return why a sample may change from one pass to the next; '' if it does not."""

    def lock(self, draw: int) -> None:
        """Give each sample the augmentation of this draw from now on, if `can_lock`."""

    def unlock(self) -> None:
        """Augment anew in each epoch from now on."""

    def description(self) -> dict[str, Any]:
        """Return what has to be the same after a resume, as plain data."""

    def check_description(self, saved: dict[str, Any]) -> None:
        """Raise ValueError where `saved`, of the run to be resumed, is of other data."""

    def check_can_resume(self) -> None:
        """Raise ValueError if a run on these data cannot be resumed."""
