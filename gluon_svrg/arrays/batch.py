"""Batch: the arrays of a batch, with its index."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


class Batch(tuple[Any, ...]):
    """The arrays of a batch, normally data and label, as a tuple.

    Parameters
    ----------
    arrays : iterable of NDArray
        What the tuple holds.
    index : int
        Which batch it is, whatever the order of the visit: its number in the loader's partition.

    Attributes
    ----------
    index : int
        As given.
    """

    index: int  # type: ignore[assignment]  # in the place of tuple.index, which finds a value

    def __new__(cls, arrays: Iterable[object], index: int) -> Batch:
        """Return the tuple, with its index."""
        batch = super().__new__(cls, arrays)
        batch.index = index
        return batch

    @property
    def is_empty(self) -> bool:
        """Whether it has no arrays: other workers have all of its samples."""
        return not self

    def __getnewargs__(self) -> tuple[Any, ...]:  # for pickle and copy
        return tuple(self), self.index


def is_empty(batch: object) -> bool:
    """Return whether `batch` has no samples here, because other workers have all of them."""
    return isinstance(batch, Batch) and batch.is_empty
