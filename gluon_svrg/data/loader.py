"""ArrayLoader: batches of arrays, which are a function of seed and epoch."""

from __future__ import annotations

import copy
import itertools
import operator
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, TypeAlias

import numpy as np
from gluon_svrg._mxnet.array_mode import mode_of_thread
from gluon_svrg._typing import NumPyArray
from gluon_svrg.arguments import check_integer, explains_unknown
from gluon_svrg.arrays.batch import Batch
from gluon_svrg.data.array_batches import (
    BatchMaker,
    Partition,
    Rows,
    check_shuffle,
    check_transform,
)
from gluon_svrg.data.array_sources import ArraySource, NestedArrays, flatten_sources, nesting_of
from gluon_svrg.data.determinism import repeats_exactly
from gluon_svrg.data.draw import EPOCH, IN_ORDER, LOCKED
from gluon_svrg.data.sharding import Shard
from gluon_svrg.data.transforms.base import Transform

_PROBES = 4
# The number of samples by which workers compare their arrays.
_ROWS_TO_COMPARE = 16

_Make: TypeAlias = "Callable[[int, Rows, int, int], Batch]"
"""From a batch's index, its rows, and stream and number of its draw to the batch."""


class ArrayLoader:
    """Loads batches from arrays, each batch in one operation per array.

    The samples are divided into batches once: a batch has the same samples in every epoch, so that
    SVRG can reuse what it computed at a snapshot. With `shuffle` the division is random, and the
    order of the batches changes each epoch; both are pure functions of seed and epoch. With
    `reshuffle` the division changes each epoch, too, as in a DataLoader: batches do not repeat
    then, so SVRG keeps no gradient table and recomputes the snapshot's gradient of each batch.

    Batches of arrays in memory are made once and kept: as views of an NDArray in order, else as
    copies. With a `transform`, an ``np.memmap`` among the arrays or `reshuffle`, each batch is made
    when it is requested.

    The random numbers of a transform of :mod:`gluon_svrg.data.transforms` are a pure function of
    seed, epoch and sample; :meth:`lock` holds them between two snapshots. Arrays and batches must
    not be changed while the loader is in use.

    Parameters
    ----------
    *arrays : NDArray, numpy.ndarray, np.memmap, CSR matrix, or tuples and dicts of them
        Of equal length along axis 0, which counts the samples. Normally data and label, or
        ``ArrayLoader((x1, x2), y, ...)``. A batch has their dtype and nesting; what comes from
        NumPy is on the CPU, an NDArray stays on its context. Of a sparse matrix in CSR, SciPy's or
        MXNet's, it has a ``mx.nd.sparse.CSRNDArray``.
    batch_size : int
        The number of samples of each batch but the last, which may have fewer.
    shuffle : bool
        Whether batches hold random samples (each in the order of the arrays), in a random order.
    last_batch : 'keep' or 'discard'
        What happens to a last batch with fewer samples. With 'discard' and `shuffle`, the samples
        that are left out are the same in every epoch; with `reshuffle`, others in each.
    seed : int, optional
        Non-negative. By default drawn from NumPy's global generator, if anything is random, so that
        :func:`gluon_svrg.seed_everything` decides it.
    transform : callable or Transform, optional
        Called with all arrays of a batch, as NDArrays; returns an array for each (for one, it may
        return that alone). It must not change them in place. A
        :class:`gluon_svrg.data.transforms.Transform` gets NumPy arrays, and its random numbers.
    prefetch : int, optional
        How many batches a thread prepares ahead, if batches are not kept. By default 2 with an
        ``np.memmap`` among the arrays, else 0. The thread is outside the caller's scopes, such as
        ``with mx.gpu()``; a callable that draws needs a generator of its own, for runs that repeat.
    reshuffle : bool
        Whether each epoch divides the samples into other batches, as a function of seed and epoch;
        it needs ``shuffle=True``. Random numbers of a transform stay with the sample.

    Attributes
    ----------
    batch_size, shuffle, last_batch, seed, reshuffle
        As given; `seed` as drawn, or None if nothing is random.

    Raises
    ------
    TypeError, ValueError
        If an argument is of the wrong type or out of its range, or the arrays do not fit.
    """

    @explains_unknown(
        drop_last="last_batch",
        last_batch_handle="last_batch",
        num_workers="a thread prepares the batches: see prefetch",
        sampler="give shuffle=True and a seed",
    )
    def __init__(
        self,
        *arrays: NestedArrays,
        batch_size: int,
        shuffle: bool = False,
        last_batch: str = "keep",
        seed: int | None = None,
        transform: Callable[..., Any] | None = None,
        prefetch: int | None = None,
        reshuffle: bool = False,
    ) -> None:
        flat = flatten_sources(arrays)
        self.batch_size = check_integer(
            "batch_size", batch_size, 1, "the number of samples of a batch"
        )
        check_shuffle(shuffle, reshuffle)
        check_transform(transform, flat)
        self._has_drawn_seed = False
        if seed is not None:
            seed = check_integer("seed", seed, 0, "the batches and their order depend on it")
        elif shuffle or (isinstance(transform, Transform) and transform.is_random):
            seed = int(np.random.randint(2**31 - 1))
            self._has_drawn_seed = True
        is_on_disk = any(isinstance(array, np.memmap) for array in flat)
        if prefetch is None:
            prefetch = 2 if is_on_disk else 0
        prefetch = check_integer(
            "prefetch", prefetch, 0, "the number of batches that a thread prepares ahead"
        )
        self.shuffle = bool(shuffle)
        self.last_batch = last_batch
        self.seed = seed
        self.reshuffle = bool(reshuffle)
        self._maker = BatchMaker(flat, nesting_of(arrays), transform)
        self._partition = Partition(
            len(flat[0]), self.batch_size, last_batch, seed if shuffle else None, self.reshuffle
        )
        self._transform = transform
        self._prefetch = prefetch
        self._is_kept = transform is None and not is_on_disk and not reshuffle
        self._kept: dict[int, Batch] = {}
        self._callable_repeats: bool | None = None  # found out when it is asked for
        self._locked_draw: int | None = None
        self._epoch = self._position = 0

    def __len__(self) -> int:
        """Return the number of batches."""
        return len(self._partition)

    def __iter__(self) -> Iterator[Batch]:
        """Return an iterator over the batches in the order of `epoch`, which goes up by one."""
        return self._next_epoch(self._batch)

    def __getitem__(self, index: int) -> Batch:
        """Return the batch of this index of the partition; augmented as by :meth:`in_order`.

        With `reshuffle` the partition is that of `epoch`.
        """
        return self._batch_at(operator.index(index), self._batch)

    @property
    def num_samples(self) -> int:
        """The number of samples in all batches; those that are discarded do not count."""
        return self._partition.num_samples

    @property
    def epoch(self) -> int:
        """The epoch whose order the next ``iter(loader)`` has."""
        return self._epoch

    def set_epoch(self, epoch: int, position: int = 0) -> None:
        """Let the next ``iter(loader)`` have the order of `epoch`.

        Parameters
        ----------
        epoch : int
            Non-negative.
        position : int
            The number of batches to skip at the beginning of that order.
        """
        self._epoch = check_integer("epoch", epoch, 0, "the order of the batches depends on it")
        self._position = check_integer("position", position, 0, "the number of batches to skip")

    def order(self, epoch: int) -> list[int]:
        """Return the indices of the batches in the order in which `epoch` visits them."""
        epoch = check_integer("epoch", epoch, 0, "the order of the batches depends on it")
        return self._partition.order(epoch)

    def in_order(self) -> Iterator[Batch]:
        """Return an iterator over the batches by their index; it leaves `epoch` as it is.

        With a random transform that is not locked it has a draw of its own: not that of `epoch`.
        With `reshuffle` they are the batches of `epoch`.
        """
        return self._in_order(self._batch)

    def lock(self, draw: int) -> None:
        """Augment every batch by this draw from now on, in every epoch.

        Each sample gets the same random numbers each time, also after a resume. They are
        independent of those of other draws and of epochs that are not locked. An iterator that was
        begun before keeps its random numbers.

        Parameters
        ----------
        draw : int
            Non-negative. Which: SVRG counts its snapshots.

        Raises
        ------
        TypeError
            If `draw` is no integer.
        ValueError
            If it is negative, or the loader's transform draws random numbers that cannot be locked.
        """
        draw = check_integer("draw", draw, 0, "the augmentation of every sample depends on it")
        if not self.can_lock:
            raise ValueError(
                f"the loader's transform, {self._transform!r}, mixes the samples of a batch, and "
                "reshuffle=True makes other batches each epoch: leave one of the two out"
                if self.mixes_other_samples
                else f"the loader's transform, {self._transform!r}, draws random numbers that "
                "cannot be locked: give transforms of gluon_svrg.data.transforms"
            )
        self._locked_draw = draw

    def unlock(self) -> None:
        """Let the augmentation depend on seed and epoch again."""
        self._locked_draw = None

    @property
    def locked_draw(self) -> int | None:
        """The draw of :meth:`lock`; None if it is not locked."""
        return self._locked_draw

    @property
    def is_random(self) -> bool:
        """Whether the transform is one of this package's that draws."""
        return isinstance(self._transform, Transform) and self._transform.is_random

    @property
    def can_lock(self) -> bool:
        """Whether all randomness of the batches is this package's, or there is none."""
        if isinstance(self._transform, Transform):
            return not self.mixes_other_samples
        return self._transform_repeats()

    @property
    def mixes_other_samples(self) -> bool:
        """Whether a sample is mixed with others each epoch, because of `reshuffle`."""
        transform = self._transform
        return self.reshuffle and isinstance(transform, Transform) and transform.mixes_samples

    @property
    def has_drawn_seed(self) -> bool:
        """Whether the seed was drawn, not given."""
        return self._has_drawn_seed

    def use_seed(self, seed: int) -> None:
        """Replace the drawn seed by another worker's."""
        if seed != self.seed:
            self.seed = seed
            if self.shuffle:
                self._partition = self._partition.with_seed(seed)
            self._kept.clear()
            self._callable_repeats = None

    def some_rows(self) -> list[NumPyArray]:
        """Return some samples of each array, from its beginning to its end, as they are."""
        return self._maker.some_rows(_ROWS_TO_COMPARE)

    def whole_labels(self) -> tuple[ArraySource, ArraySource | None] | None:
        """Return the second array and the third or None, as they are in the batches.

        None if a batch is not of two or three arrays, or if the transform may change the labels.
        """
        return self._maker.whole_labels()

    @property
    def keeps_batches(self) -> bool:
        """Whether a batch is the same objects each time, not only equal ones."""
        return self._is_kept

    @property
    def repeats(self) -> bool:
        """Whether a batch is at present the same, bit for bit, each time.

        With `reshuffle` it is not. Without a transform it is. With a transform of this package it
        is, unless the transform is random and not locked. A plain callable is tried once, on the
        first batch: it repeats if four calls give the same arrays and draw neither from NumPy's
        global generator nor from Python's; both are restored. MXNet's generators and the
        callable's own cannot be read or restored: a draw from them that changes the result only
        rarely, or only in other batches, is not found.
        """
        return not self.reshuffle and self._transform_repeats()

    def _transform_repeats(self) -> bool:
        if self._transform is None:
            return True
        if isinstance(self._transform, Transform):
            return not self.is_random or self._locked_draw is not None
        if self._callable_repeats is None:
            first = partial(self._batch, 0, self._partition.rows(0)[0], EPOCH, 0)
            self._callable_repeats = repeats_exactly(first, _PROBES)
        return self._callable_repeats

    def _effective_draw(self, stream: int, number: int) -> tuple[int, int]:
        """Return stream and number of the draw: the locked one, or those given."""
        return (stream, number) if self._locked_draw is None else (LOCKED, self._locked_draw)

    def _next_epoch(self, make: _Make) -> Iterator[Batch]:
        order = self.order(self._epoch)[self._position :]
        self._epoch, self._position = self._epoch + 1, 0
        return self._iterate(order, self._epoch - 1, EPOCH, make)

    def _in_order(self, make: _Make) -> Iterator[Batch]:
        return self._iterate(range(len(self)), self._epoch, IN_ORDER, make)

    def _batch_at(self, index: int, make: _Make) -> Batch:
        position = index + len(self) if index < 0 else index
        if not 0 <= position < len(self):
            raise IndexError(f"there is no batch {index}: the loader has {len(self)}, from 0")
        rows = self._partition.rows(self._epoch)
        return make(position, rows[position], *self._effective_draw(IN_ORDER, self._epoch))

    def _iterate(
        self, indices: Iterable[int], epoch: int, stream: int, make: _Make
    ) -> Iterator[Batch]:
        stream, number = self._effective_draw(stream, epoch)
        rows = self._partition.rows(epoch)

        def batch(index: int) -> Batch:
            return make(index, rows[index], stream, number)

        if self._prefetch and not self._is_kept:
            return _prefetched(batch, indices, self._prefetch)
        return (batch(index) for index in indices)

    def _batch(self, index: int, rows: Rows, stream: int, number: int) -> Batch:
        """Return the batch of this index, augmented by the draw of this number of the stream."""
        batch = self._kept.get(index)
        if batch is None:
            batch = self._make(index, rows, stream, number)
            if self._is_kept:
                self._kept[index] = batch
        return batch

    def _make(self, index: int, rows: Rows, stream: int, number: int) -> Batch:
        # Without a seed nothing draws.
        return self._maker.batch(index, rows, (self.seed or 0, stream, number))


class ShardedLoader:
    """An ArrayLoader's batches, reduced to the rows of one worker.

    Only these rows are taken from the arrays and transformed. If a sample may depend on the others
    of its batch, the whole batch is made and then cut.

    Parameters
    ----------
    loader : ArrayLoader
        The loader of whole batches; its epoch, order and lock are used.
    shard : Shard
        The rows of this worker.
    """

    def __init__(self, loader: ArrayLoader, shard: Shard) -> None:
        self._loader = loader
        self._shard = shard
        self._takes_local_rows = shard.batch_axis == 0 and loader._maker.takes_any_rows
        self._kept: dict[int, Batch] = {}

    def with_loader(self, loader: ArrayLoader) -> ShardedLoader:
        """Return the same shard of a copy of the loader, which may be at another epoch."""
        sharded = copy.copy(self)  # with the batches that are kept
        sharded._loader = loader
        return sharded

    def __iter__(self) -> Iterator[Batch]:
        """Return an iterator over the parts in the order of the loader's epoch, which goes up."""
        return self._loader._next_epoch(self._batch)

    def __getitem__(self, index: int) -> Batch:
        """Return the part of the batch of this index."""
        return self._loader._batch_at(index, self._batch)

    def in_order(self) -> Iterator[Batch]:
        """Return an iterator over the parts of all batches by their index."""
        return self._loader._in_order(self._batch)

    def _batch(self, index: int, rows: Rows, stream: int, number: int) -> Batch:
        batch = self._kept.get(index)
        if batch is None:
            batch = self._make(index, rows, stream, number)
            if self._loader.keeps_batches:
                self._kept[index] = batch
        return batch

    def _make(self, index: int, rows: Rows, stream: int, number: int) -> Batch:
        loader, shard = self._loader, self._shard
        if not self._takes_local_rows:
            part: Batch = shard.take(loader._batch(index, rows, stream, number), index)
            return part
        if isinstance(rows, slice):
            local = shard.rows(rows.stop - rows.start)
            rows = slice(rows.start + local.start, rows.start + local.stop)
            is_empty = local.start == local.stop
        else:
            rows = rows[shard.rows(len(rows))]
            is_empty = not len(rows)
        return Batch((), index) if is_empty else loader._make(index, rows, stream, number)


def _prefetched(
    take: Callable[[int], Batch], indices: Iterable[int], ahead: int
) -> Iterator[Batch]:
    """Yield ``take(index)`` for each index, while a thread prepares the next `ahead` of them."""
    remaining = iter(indices)
    pending: deque[Future[Batch]] = deque()
    thread = ThreadPoolExecutor(1, "ArrayLoader", initializer=mode_of_thread())
    try:
        while True:
            for index in itertools.islice(remaining, ahead + 1 - len(pending)):
                pending.append(thread.submit(take, index))
            if not pending:
                return
            yield pending.popleft().result()
    finally:
        # Also if the loop was left early, which closes this generator.
        thread.shutdown(cancel_futures=True)
