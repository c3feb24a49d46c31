"""Batches of arrays that repeat exactly, in an order that only seed and epoch decide."""

from __future__ import annotations

import itertools
import operator
import random
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import mxnet as mx
import numpy as np
from gluon_svrg.arguments import check_integer
from mxnet.ndarray import NDArray

_DTYPES = ("float16", "float32", "float64", "uint8", "int8", "int32", "int64", "bool")
_PARTITION, _ORDER = 0, 1  # what a stream of the seed is for
_PROBES = 4


class Batch(tuple):
    """The arrays of a batch, normally data and label, as a tuple.

    Parameters
    ----------
    arrays : iterable of NDArray
        What the tuple holds.
    index : int
        Which batch of the loader's partition it is, whatever the order of the visit.

    Attributes
    ----------
    index : int
        As given.
    """

    index: int  # type: ignore[assignment]  # in the place of tuple.index, which finds a value

    def __new__(cls, arrays: Iterable[NDArray], index: int) -> Batch:
        """Return the tuple, with its index."""
        batch = super().__new__(cls, arrays)
        batch.index = index
        return batch

    def __getnewargs__(self) -> tuple[Any, ...]:  # for pickle and copy
        return tuple(self), self.index


class ArrayLoader:
    """Loads batches from arrays, each batch in one operation an array.

    The samples are divided into batches once: a batch has the same samples in every epoch, as
    SVRG needs it to use again what it computed at a snapshot. `shuffle` divides them at random and
    draws the order in which the batches are visited anew each epoch. Both are pure functions of
    the seed (and the epoch), whatever was iterated before.

    Arrays in memory, without a transform: a batch is prepared when it is first asked for, and the
    same NDArrays are handed out ever after. Those of an NDArray in order are views that share its
    memory; NumPy's arrays, and all that are shuffled, take the memory of one copy. With a
    `transform`, or with an ``np.memmap`` among the arrays, each batch is taken when it is asked
    for and not kept.

    The arrays, and the batches, must not be changed while the loader is in use.

    Parameters
    ----------
    *arrays : NDArray, numpy.ndarray or np.memmap
        Of equal length along axis 0, which counts the samples. Normally data and label. A batch
        has their dtype; what comes from NumPy is on the CPU, an NDArray stays on its context.
    batch_size : int
        The number of samples of each batch but the last, which may have fewer.
    shuffle : bool
        Whether batches hold samples drawn at random and come in a random order, or both are in the
        order of the arrays. Inside a batch, the samples are in the order of the arrays.
    last_batch : 'keep' or 'discard'
        What happens to a last batch with fewer samples. With 'discard' and `shuffle`, the samples
        that are left out are the same in every epoch.
    seed : int, optional
        Non-negative. By default drawn from NumPy's global generator, so that
        :func:`gluon_svrg.seed_everything` decides it; nothing is drawn without `shuffle`.
    transform : callable, optional
        Called with the arrays of a whole batch, as NDArrays; returns as many (for a single array,
        it may return that array alone). It must not change them in place.
    prefetch : int, optional
        How many batches a thread prepares ahead, where batches are not kept. By default 2 with an
        ``np.memmap`` among the arrays, else 0. The thread knows nothing of MXNet's scopes of the
        caller (``autograd.record()``, ``with mx.gpu()``). A random transform draws in it while
        the training draws: give it a generator of its own, or no prefetch, for runs that repeat.

    Attributes
    ----------
    batch_size, shuffle, last_batch, seed
        As given; `seed` as drawn, or None without `shuffle` where none was given.

    Raises
    ------
    TypeError
        If an argument is of the wrong type.
    ValueError
        If an argument is out of its range, or the arrays do not fit each other or MXNet.
    """

    def __init__(
        self,
        *arrays: NDArray | np.ndarray,
        batch_size: int,
        shuffle: bool = False,
        last_batch: str = "keep",
        seed: int | None = None,
        transform: Callable[..., Any] | None = None,
        prefetch: int | None = None,
    ) -> None:
        _check_arrays(arrays)
        self.batch_size = check_integer(
            "batch_size", batch_size, 1, "each batch has that many samples"
        )
        if not isinstance(shuffle, (bool, np.bool_)):
            raise TypeError(f"shuffle must be a bool, got {shuffle!r}: a sampler is not taken")
        if transform is not None and not callable(transform):
            raise TypeError(f"transform must be callable with a batch's arrays, got {transform!r}")
        if seed is not None:
            seed = check_integer("seed", seed, 0, "it decides the batches and their order")
        elif shuffle:
            seed = int(np.random.randint(2**31 - 1))
        is_on_disk = any(isinstance(array, np.memmap) for array in arrays)
        if prefetch is None:
            prefetch = 2 if is_on_disk else 0
        prefetch = check_integer(
            "prefetch", prefetch, 0, "a thread prepares that many batches ahead"
        )
        self.shuffle = bool(shuffle)
        self.last_batch = last_batch
        self.seed = seed
        # An mx.np.ndarray becomes the NDArray that shares its memory.
        self._arrays = [x.as_nd_ndarray() if isinstance(x, NDArray) else x for x in arrays]
        self._rows = self._partition(len(arrays[0]))
        self._transform = transform
        self._prefetch = prefetch
        self._is_kept = transform is None and not is_on_disk
        self._kept: dict[int, Batch] = {}
        self._repeats = True if transform is None else None
        self._epoch = self._position = 0

    def __len__(self) -> int:
        """Return the number of batches."""
        return len(self._rows)

    def __iter__(self) -> Iterator[Batch]:
        """Return an iterator over the batches in the order of `epoch`, which goes up by one."""
        order = self.order(self._epoch)[self._position :]
        self._epoch, self._position = self._epoch + 1, 0
        return self._visit(order)

    def __getitem__(self, index: int) -> Batch:
        """Return the batch of this index of the partition."""
        position = operator.index(index)
        if position < 0:
            position += len(self)
        if not 0 <= position < len(self):
            raise IndexError(f"there is no batch {index}: the loader has {len(self)}, from 0")
        return self._batch(position)

    @property
    def num_samples(self) -> int:
        """The number of samples in all batches; those that are discarded do not count."""
        return sum(_length(rows) for rows in self._rows)

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
            How many batches of that order it leaves out at the beginning.
        """
        self._epoch = check_integer("epoch", epoch, 0, "it decides the order of the batches")
        self._position = check_integer("position", position, 0, "that many batches are left out")

    def order(self, epoch: int) -> list[int]:
        """Return the indices of the batches in the order in which `epoch` visits them."""
        epoch = check_integer("epoch", epoch, 0, "it decides the order of the batches")
        if not self.shuffle:
            return list(range(len(self)))
        return self._generator(_ORDER, epoch).permutation(len(self)).tolist()

    def in_order(self) -> Iterator[Batch]:
        """Return an iterator over the batches by their index; it leaves `epoch` as it is."""
        return self._visit(range(len(self)))

    @property
    def keeps_batches(self) -> bool:
        """Whether a batch is the same objects each time, not only equal ones."""
        return self._is_kept

    @property
    def repeats(self) -> bool:
        """Whether a batch is the same, bit for bit, each time.

        It is, without a transform. A transform is tried out, once, on the first batch: it repeats
        where four calls give the same arrays and draw neither from NumPy's global generator nor
        from Python's; both are left as they were. MXNet's generators cannot be read, nor can the
        transform's own: what such a draw changes only rarely, or in other batches only, is not
        found out, and what the calls draw there is drawn.
        """
        if self._repeats is None:
            self._repeats = _repeats_exactly(lambda: self._batch(0))
        return self._repeats

    def _partition(self, samples: int) -> list[slice] | list[np.ndarray]:
        """Return the rows of each batch."""
        if self.last_batch == "rollover":
            raise ValueError(
                "last_batch='rollover' changes the samples of a batch from epoch to epoch, and "
                "here they stay the same: use 'keep' or 'discard'"
            )
        if self.last_batch not in ("keep", "discard"):
            raise ValueError(f"last_batch must be 'keep' or 'discard', got {self.last_batch!r}")
        if self.last_batch == "discard" and samples < self.batch_size:
            raise ValueError(
                f"last_batch='discard' leaves no batch of {self.batch_size} from {samples} "
                "samples: use a smaller batch_size, or last_batch='keep'"
            )
        stop = samples - samples % self.batch_size if self.last_batch == "discard" else samples
        slices = [slice(i, min(i + self.batch_size, stop)) for i in range(0, stop, self.batch_size)]
        if not self.shuffle:
            return slices
        permutation = self._generator(_PARTITION).permutation(samples)
        # Sorted: a memmap is read in the order of its file.
        return [np.sort(permutation[rows]) for rows in slices]

    def _generator(self, *key: int) -> np.random.Generator:
        return np.random.Generator(
            np.random.PCG64(np.random.SeedSequence(self.seed, spawn_key=key))
        )

    def _visit(self, indices: Iterable[int]) -> Iterator[Batch]:
        if self._prefetch and not self._is_kept:
            return _prefetched(self._batch, indices, self._prefetch)
        return (self._batch(index) for index in indices)

    def _batch(self, index: int) -> Batch:
        batch = self._kept.get(index)
        if batch is None:
            arrays = [_take(array, self._rows[index]) for array in self._arrays]
            batch = Batch(self._transformed(arrays), index)
            if self._is_kept:
                self._kept[index] = batch
        return batch

    def _transformed(self, arrays: list[NDArray]) -> Iterable[NDArray]:
        if self._transform is None:
            return arrays
        result = self._transform(*arrays)
        if len(arrays) == 1 and isinstance(result, NDArray):
            return [result]
        if (
            not isinstance(result, (tuple, list))
            or len(result) != len(arrays)
            or not all(isinstance(array, NDArray) for array in result)
        ):
            raise ValueError(
                f"transform must return {len(arrays)} NDArrays, as many as it is given, got "
                f"{_kind_of(result)}: return a tuple of them"
            )
        return result


def _check_arrays(arrays: tuple[Any, ...]) -> None:
    if not arrays:
        raise ValueError("ArrayLoader got no array: give at least one, normally data and label")
    for position, array in enumerate(arrays):
        _check_array(f"array {position}", array)
    lengths = [len(array) for array in arrays]
    if len(set(lengths)) > 1:
        raise ValueError(
            f"all arrays must have the same length along axis 0, got {lengths}: look at how data "
            "and label were paired"
        )


def _check_array(name: str, array: Any) -> None:
    if not isinstance(array, (NDArray, np.ndarray)):
        raise TypeError(
            f"{name} must be an NDArray or a numpy.ndarray, got a {type(array).__name__}: make it "
            "an array, with np.asarray(x), or x.toarray() where it is sparse"
        )
    if isinstance(array, NDArray) and array.stype != "default":
        raise TypeError(
            f"{name} must be dense, got an NDArray of storage type {array.stype!r}, whose rows "
            "cannot be taken: make it dense with x.tostype('default')"
        )
    if array.ndim == 0 or 0 in array.shape:
        raise ValueError(
            f"{name} must have samples along axis 0, got shape {array.shape}: give at least one"
        )
    if isinstance(array, np.ndarray) and array.dtype.name not in _DTYPES:
        raise ValueError(
            f"{name} has dtype {array.dtype}, which MXNet does not have: convert it with "
            f"x.astype(...) to one of {', '.join(_DTYPES)}"
        )


def _kind_of(result: Any) -> str:
    if isinstance(result, (tuple, list)):
        names = ", ".join(type(item).__name__ for item in result)
        return f"a {type(result).__name__} of {len(result)} ({names})"
    return f"a {type(result).__name__}"


def _length(rows: slice | np.ndarray) -> int:
    return rows.stop - rows.start if isinstance(rows, slice) else len(rows)


def _take(array: NDArray | np.ndarray, rows: slice | np.ndarray) -> NDArray:
    """Take rows of an array: an NDArray of the same dtype, a view where that is possible."""
    if isinstance(array, np.ndarray):
        # The context is named: a thread that prefetches does not have the caller's default.
        return mx.nd.array(array[rows], dtype=array.dtype, ctx=mx.cpu())
    if isinstance(rows, slice):
        return array[rows]
    return mx.nd.take(array, mx.nd.array(rows, dtype="int64", ctx=array.context))


def _prefetched(
    take: Callable[[int], Batch], indices: Iterable[int], ahead: int
) -> Iterator[Batch]:
    """Yield ``take(index)`` for each index, while a thread prepares the next `ahead` of them."""
    remaining = iter(indices)
    under_way: deque[Future[Batch]] = deque()
    thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="ArrayLoader")
    try:
        while True:
            for index in itertools.islice(remaining, ahead + 1 - len(under_way)):
                under_way.append(thread.submit(take, index))
            if not under_way:
                return
            yield under_way.popleft().result()
    finally:
        # Also where the loop was left early, which closes this generator.
        thread.shutdown(cancel_futures=True)


def _repeats_exactly(take: Callable[[], Batch]) -> bool:
    """Return whether ``take()`` gives the same bits each time, and draws no random number."""
    numpy_state, python_state = np.random.get_state(legacy=False), random.getstate()
    before = _states_of_generators()
    try:
        results = [_bits_of(take()) for _ in range(_PROBES)]
        is_untouched = _states_of_generators() == before
    finally:
        np.random.set_state(numpy_state)
        random.setstate(python_state)
    return is_untouched and all(result == results[0] for result in results)


def _states_of_generators() -> tuple:
    state: dict[str, Any] = np.random.get_state(legacy=False)
    inner = [np.asarray(part).tolist() for part in state["state"].values()]
    return inner, state["has_gauss"], random.getstate()


def _bits_of(batch: Batch) -> list[tuple]:
    return [(array.shape, array.dtype, array.asnumpy().tobytes()) for array in batch]
