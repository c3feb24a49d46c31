"""Batch: the arrays of a batch, with its index; the axis of an array that counts its samples."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from gluon_svrg._typing import NumPyArray
from mxnet.ndarray import NDArray


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


def sample_axis(array: NDArray | NumPyArray, batch_axis: int) -> int:
    """Return the axis that counts the samples: the first, if the array has no `batch_axis`."""
    return batch_axis if batch_axis and array.ndim > batch_axis else 0


def num_samples(array: NDArray | NumPyArray, batch_axis: int) -> int:
    """Return the number of samples of an array."""
    shape: tuple[int, ...] = array.shape
    return shape[sample_axis(array, batch_axis)]


def samples_of_loss(loss: NDArray) -> int:
    """Return the number of samples of an array of losses; a scalar counts as one."""
    return (*loss.shape, 1)[0]


def with_axis(array: NDArray) -> NDArray:
    """Return an array with at least one axis, which many of MXNet's operators need: a view."""
    return array if array.ndim else array.reshape((1,))


def slice_samples(array: NDArray | NumPyArray, rows: slice, batch_axis: int) -> Any:
    """Return some samples of an array: along the first axis a view."""
    axis = sample_axis(array, batch_axis) % array.ndim
    index = (*[slice(None)] * axis, rows)
    # A sparse array has rows, and takes no tuple.
    return array[rows] if axis == 0 else array[index]
