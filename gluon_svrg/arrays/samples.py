"""The axis of an array that counts the samples of a batch."""

from __future__ import annotations

from typing import Any

from gluon_svrg._typing import NumPyArray
from mxnet.ndarray import NDArray


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
