"""MXNet's ``DataIter`` as training data: each pass resets it and yields pairs (data, label)."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

import mxnet as mx
import numpy as np
from gluon_svrg._mxnet.array_mode import to_active_mode, to_nd
from gluon_svrg.arrays.batch import Batch
from gluon_svrg.data.base import TrainingData
from mxnet.ndarray import NDArray

DataAndLabel = tuple[list[NDArray], list[NDArray]]
"""The data arrays and the label arrays of a batch."""


@dataclass
class _IteratorState:
    """How far an iterator was read: it has one position for all its readers.

    Attributes
    ----------
    passes : int
        The number of passes that were begun.
    is_whole : bool
        Whether the last pass has reached its end.
    batches : int
        The number of batches of this pass, without the pending one.
    pending : tuple of DataAndLabel and int, optional
        The last batch read from a C++ iterator, not yet yielded, and its `pad`.
    samples : int, optional
        The number of samples of the data, known after a whole pass.
    carried_over : DataAndLabel, optional
        Samples of the next pass that came at the end of this one.
    """

    passes: int = 0
    is_whole: bool = True
    batches: int = 0
    pending: tuple[DataAndLabel, int] | None = None
    samples: int | None = None
    carried_over: DataAndLabel | None = field(default=None, repr=False)


# By iterator, because the same one may be given to several calls of fit or evaluate.
_STATES: WeakKeyDictionary[mx.io.DataIter, _IteratorState] = WeakKeyDictionary()


class DataIterData(TrainingData):
    """Any other DataIter: ImageIter, or a class of the user's own.

    Batches are pairs ``(data, label)`` of NDArrays. If data or label has several arrays, or none,
    it is a tuple of them. The samples that fill up a batch (its `pad`) are cut off. The arrays are
    copies, because an iterator may reuse its own.
    """

    _data: mx.io.DataIter

    def __init__(self, iterator: mx.io.DataIter, name: str) -> None:
        super().__init__(iterator, name)
        self._state = _STATES.setdefault(iterator, _IteratorState())
        # A C++ iterator goes around: its padding is the first samples of the next pass.
        self._has_padding = not any(
            isinstance(inner, mx.io.MXDataIter) for inner in _inner_iterators(iterator)
        )

    @property
    def kind(self) -> str:
        """The iterator's class with its article, for messages: ``'an NDArrayIter'``."""
        name = type(self._data).__name__
        return f"{'an' if name[0] in 'AEIOU' or name[:2] in ('MX', 'ND') else 'a'} {name}"

    def _pass(self) -> Iterator[Batch]:
        """Reset the iterator and return its batches; nothing is done before the first."""
        state = self._state
        self._reset()
        state.passes += 1
        this_pass = state.passes
        for index, arrays in enumerate(self._after_reset()):
            yield _pair_of(arrays, index)
            if state.passes != this_pass:
                raise ValueError(
                    f"{self._name} was read from its beginning again before this pass over it was "
                    f"at its end, and {self.kind} has one place only: give validation an iterator "
                    "of its own, or use a gluon.data.DataLoader or a gluon_svrg.data.ArrayLoader"
                )

    def description(self) -> dict[str, Any]:
        """Return class, batch size and number of samples."""
        return {
            "iterator": type(self._data).__name__,
            "batch_size": self._data.batch_size,
            "samples": self.num_samples,
        }

    def check_can_resume(self) -> None:
        """Raise ValueError: the iterator may shuffle with a generator of its own."""
        raise ValueError(
            f"{self._name} is {self.kind}, of which cannot be known whether it gives the same "
            "batches after a resume: it may shuffle with a generator of its own, or carry samples "
            "from epoch to epoch; with a CheckpointHandler, use a gluon_svrg.data.ArrayLoader, a "
            "gluon.data.DataLoader, or an mx.io.NDArrayIter that does not shuffle"
        )

    @property
    def is_restorable(self) -> bool:
        """Whether it is: not if MXNet's C++ library or threads hold its position."""
        return not (isinstance(self._data, mx.io.MXDataIter) or _inner_iterators(self._data))

    def _reset(self) -> None:
        self._data.reset()

    def _after_reset(self) -> Iterator[DataAndLabel]:
        """Yield the batches that follow a reset."""
        for batch in self._data:
            yield self._without_padding(_copied(batch), batch.pad)

    def _without_padding(self, arrays: DataAndLabel, pad: int | None) -> DataAndLabel:
        if not pad or not self._has_padding:
            return arrays
        return self._rows(arrays, 0, _length(arrays, _batch_axis(self._data)) - pad)

    def _rows(self, arrays: DataAndLabel, begin: int, end: int) -> DataAndLabel:
        """Return some samples of a batch, or all."""
        axis = _batch_axis(self._data)
        data, label = ([_sliced(array, axis, begin, end) for array in part] for part in arrays)
        return data, label


class NDArrayIterData(DataIterData):
    """An NDArrayIter: its batches in order are slices of arrays in memory.

    They are read by a copy of the iterator, so the position of the user's iterator stays.
    """

    has_end = True

    _data: mx.io.NDArrayIter

    def __init__(self, iterator: mx.io.NDArrayIter, name: str) -> None:
        super().__init__(iterator, name)
        for key, array in [*iterator.data, *iterator.label]:
            if array.dtype is np.bool_:
                raise ValueError(
                    f"{name} is {self.kind} whose {key!r} is of dtype bool, which MXNet cannot "
                    "slice: give it as uint8, array.astype('uint8')"
                )
        self._rolls_over = iterator.last_batch_handle == "roll_over"
        # The first batch of an epoch that begins with samples of the last calls those padding.
        self._has_padding = not self._rolls_over

    @property
    def num_batches(self) -> int | None:
        """The number of batches of an epoch; None with 'roll_over', where epochs differ."""
        samples = self.num_samples
        return None if samples is None else -(-samples // self._data.batch_size)

    @property
    def num_samples(self) -> int | None:
        """The number of samples of an epoch; None with 'roll_over', where epochs differ."""
        if self._rolls_over:
            return None
        rest = self._data.num_data % self._data.batch_size
        is_cut = self._data.last_batch_handle == "discard"
        return int(self._data.num_data - rest if is_cut else self._data.num_data)

    @property
    def is_indexed(self) -> bool:
        """Whether each epoch has the same batches: no shuffling and no 'roll_over'."""
        return not self._data.shuffle and not self._rolls_over

    @property
    def can_lock(self) -> bool:
        """Whether :meth:`lock` holds all randomness: always, because no sample is augmented."""
        return True  # there is nothing to lock

    def _in_order(self) -> Iterator[Batch]:
        """Return all batches, in the order in which the arrays are now: nothing is drawn."""
        twin = self._twin(0)
        for index, batch in enumerate(twin):
            yield self._pair(batch, index)

    @contextmanager
    def restored(self) -> Iterator[Callable[[int], Iterator[Any]]]:
        """Yield a function as `iterate_epoch`, whose epochs all have the arrays' present order."""
        yield lambda _epoch: self.in_order()

    def _batch(self, index: int) -> Batch:
        """Return the batch at this position of the arrays, without padding; -1 is the last."""
        number = self.num_batches
        if not self.is_indexed or number is None:
            raise TypeError(f"{self.kind} cannot give batch {index} by itself: see is_indexed")
        position = index + number if index < 0 else index
        if not 0 <= position < number:
            raise IndexError(f"there is no batch {index}: {self._name} has {number}, from 0")
        return self._pair(self._twin(position).next(), position)

    def _peek(self) -> Iterator[Batch]:
        return self._in_order()  # which does not move the user's iterator

    def reason_not_repeatable(self) -> str:
        """Return why batches may differ between epochs, or a table cannot compare them; else ''."""
        if self._data.shuffle:
            return f"{self.kind} with shuffle=True divides the samples differently in each epoch"
        if self._rolls_over:
            return f"{self.kind} with 'roll_over' divides the samples differently in each epoch"
        arrays = [array for _, array in [*self._data.data, *self._data.label]]
        is_pair = len(self._data.data) == len(self._data.label) == 1
        # A gradient table compares contents of pairs of dense arrays only.
        if not is_pair or any(getattr(array, "stype", "default") != "default" for array in arrays):
            return f"{self.kind} promises that only of pairs of one data and one label array, dense"
        return ""

    def reason_not_lockable(self) -> str:
        """Return '': the samples are the rows of the arrays, and stay the same."""
        return ""

    def check_can_resume(self) -> None:
        """Raise ValueError if it shuffles or rolls over: no checkpoint holds that state."""
        if self._data.shuffle:
            raise ValueError(
                f"{self._name} is {self.kind} with shuffle=True, which shuffles what the epoch "
                "before has left, and a checkpoint does not hold that order: use a "
                "gluon_svrg.data.ArrayLoader or a gluon.data.DataLoader, which shuffle too"
            )
        if self._rolls_over:
            raise ValueError(
                f"{self._name} has last_batch_handle='roll_over', which carries samples from epoch "
                "to epoch, and a checkpoint cannot hold them: use 'pad' or 'discard'"
            )

    def _after_reset(self) -> Iterator[DataAndLabel]:
        for batch in self._data:  # whose arrays are new ones
            yield self._without_padding(_arrays_of(batch), batch.pad)

    def _twin(self, position: int) -> mx.io.NDArrayIter:
        """Return a copy whose next batch is the one at `position`."""
        twin = copy.copy(self._data)
        twin.cursor = (position - 1) * twin.batch_size
        return twin

    def _pair(self, batch: mx.io.DataBatch, index: int) -> Batch:
        arrays = self._without_padding(_arrays_of(batch), batch.pad)
        return _pair_of(arrays, index)


class CxxIterData(DataIterData):
    """An iterator of MXNet's C++ library: ImageRecordIter, LibSVMIter, CSVIter, MNISTIter.

    With ``round_batch=True``, the default, MXNet fills the last batch of a pass up with the first
    samples of the next pass, and leaves them out there. Here each pass has each sample once: those
    samples are the last batch of the next pass. Only the first pass has the right `pad`: later an
    ImageRecordIter may set it on other batches, too. So later passes compute it from the number of
    samples in the first.

    An ImageRecordIter with ``round_batch=False`` does not say how many samples fill its last batch
    up, so they are not cut off.
    """

    has_end = True

    _data: mx.io.MXDataIter

    def reason_not_lockable(self) -> str:
        """Return '' for a LibSVMIter, which changes no sample; else that it cannot be told."""
        # The one C++ iterator of sparse batches, LibSVMIter, neither shuffles nor augments.
        return "" if self._is_sparse() else super().reason_not_lockable()

    def _is_sparse(self) -> bool:
        first, pending = self._data.first_batch, self._state.pending
        array = first.data[0] if first is not None else pending[0][0][0] if pending else None
        return array is not None and array.stype == "csr"

    def _reset(self) -> None:
        state = self._state
        if not state.is_whole:
            # A thread has read ahead, maybe to the samples that come early: they must be known.
            for _ in self._remaining():
                pass
        # As it was made it is at its beginning; reset() might skip samples that were read ahead.
        if self._data.first_batch is None:
            self._data.reset()
        state.is_whole, state.batches, state.pending = False, 0, None

    def _after_reset(self) -> Iterator[DataAndLabel]:
        return self._remaining()

    def _remaining(self) -> Iterator[DataAndLabel]:
        """Yield the rest of this pass, one batch late: the last one may have to be cut."""
        state = self._state
        passes = state.passes
        for batch in self._data:
            before, state.pending = state.pending, (_copied(batch), batch.pad or 0)
            if before is not None:
                state.batches += 1
                yield before[0]
                if state.passes != passes:
                    return
        if state.pending is None:
            return
        last, _ = state.pending
        carried_over = state.carried_over
        size = self._data.batch_size
        number, has_rolled = self._number_in_last(size)
        state.is_whole = True
        state.carried_over = self._rows(last, number, size) if number < size else None
        yield self._rows(last, 0, number)
        if has_rolled and carried_over is not None:
            yield carried_over

    def _number_in_last(self, size: int) -> tuple[int, bool]:
        """Return how many samples of the last batch are of this pass; whether some came early."""
        state = self._state
        assert state.pending is not None
        pad = state.pending[1]
        rows = (state.batches + 1) * size
        if state.samples is None:
            state.samples = rows - pad
            return size - pad, False
        carried_over = (
            0
            if state.carried_over is None
            else _length(state.carried_over, _batch_axis(self._data))
        )
        padding = rows - (state.samples - carried_over)
        if 0 <= padding < size and padding in (0, pad):
            return size - padding, carried_over > 0
        padding = rows - state.samples
        if 0 <= padding < size and padding in (0, pad):  # round_batch=False
            return size - padding, False
        raise ValueError(
            f"{self._name} had {state.samples} samples in its first epoch, and now "
            f"{state.batches + 1} batches of {size} with {pad} samples of padding: something else "
            f"has read from {self.kind}; create a new one for this fit alone"
        )


def _inner_iterators(iterator: mx.io.DataIter) -> list[mx.io.DataIter]:
    if isinstance(iterator, mx.io.ResizeIter):
        return [iterator.data_iter]
    return list(iterator.iters) if isinstance(iterator, mx.io.PrefetchingIter) else []


def _copied(batch: mx.io.DataBatch) -> DataAndLabel:
    data, label = _arrays_of(batch)
    return [array.copy() for array in data], [array.copy() for array in label]


def _arrays_of(batch: mx.io.DataBatch) -> DataAndLabel:
    """Return the arrays of a batch as NDArrays, whose rows can be sliced along any axis."""
    return list(map(to_nd, batch.data)), list(map(to_nd, batch.label or []))


def _pair_of(arrays: DataAndLabel, index: int) -> Batch:
    """Return the batch, with each part as an array or as a tuple of several."""
    parts = [tuple(map(to_active_mode, part)) for part in arrays]
    return Batch((part[0] if len(part) == 1 else part for part in parts), index)


def _batch_axis(iterator: mx.io.DataIter) -> int:
    """Return the axis that counts the samples."""
    descriptions = getattr(iterator, "provide_data", None)
    # A user's own may describe its data by pairs of name and shape.
    layout = getattr(descriptions[0], "layout", None) if descriptions else None
    return max(0, str(layout).find("N")) if layout else 0


def _sliced(array: NDArray, axis: int, begin: int, end: int) -> NDArray:
    axis = axis if array.ndim > axis else 0
    if begin == 0 and end >= array.shape[axis]:
        return array
    # A sparse array has rows, and no slice_axis.
    return array[begin:end] if axis == 0 else array.slice_axis(axis=axis, begin=begin, end=end)


def _length(arrays: DataAndLabel, axis: int) -> int:
    return int(arrays[0][0].shape[axis])
