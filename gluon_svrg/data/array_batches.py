"""The batches of an ArrayLoader: which rows each has, and how it is made from the arrays."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

import numpy as np
from gluon_svrg._mxnet.array_mode import to_active_mode, to_nd
from gluon_svrg._typing import NumPyArray
from gluon_svrg.arrays.batch import Batch
from gluon_svrg.data.array_sources import (
    ArraySource,
    CsrArray,
    as_ndarray,
    nest,
    take,
    take_as_numpy,
)
from gluon_svrg.data.draw import ORDER, PARTITION, Draw
from gluon_svrg.data.transforms.base import Transform
from mxnet.ndarray import NDArray

Rows: TypeAlias = "slice | NumPyArray"
"""The rows of the arrays that make a batch."""


class Partition:
    """Divides the samples into batches: once, or differently in each epoch.

    Parameters
    ----------
    samples : int
        The number of samples.
    batch_size : int
        The number of samples of each batch but the last.
    last_batch : 'keep' or 'discard'
        What happens to a last batch with fewer samples.
    seed : int or None
        None: batches hold the samples in their order, and come in it.
    reshuffle : bool
        Whether each epoch has a partition of its own.

    Raises
    ------
    ValueError
        If `last_batch` is neither, or leaves no batch.
    """

    def __init__(
        self, samples: int, batch_size: int, last_batch: str, seed: int | None, reshuffle: bool
    ) -> None:
        if last_batch == "rollover":
            raise ValueError(
                "last_batch='rollover' carries samples over into the next epoch, and here every "
                "epoch has whole batches of its own: use 'keep' or 'discard'"
            )
        if last_batch not in ("keep", "discard"):
            raise ValueError(f"last_batch must be 'keep' or 'discard', got {last_batch!r}")
        if last_batch == "discard" and samples < batch_size:
            raise ValueError(
                f"last_batch='discard' leaves no batch of {batch_size} from {samples} "
                "samples: use a smaller batch_size, or last_batch='keep'"
            )
        self._samples, self._seed, self._reshuffle = samples, seed, reshuffle
        #: The number of samples in all batches.
        self.num_samples = samples - samples % batch_size if last_batch == "discard" else samples
        self._slices = [
            slice(i, min(i + batch_size, self.num_samples))
            for i in range(0, self.num_samples, batch_size)
        ]
        self._arguments = samples, batch_size, last_batch
        # One tuple: a thread that prefetches sees the epoch with its own rows.
        self._latest: tuple[int, list[NumPyArray]] | None = None

    def __len__(self) -> int:
        """Return the number of batches."""
        return len(self._slices)

    def with_seed(self, seed: int) -> Partition:
        """Return the same by another seed."""
        return Partition(*self._arguments, seed, self._reshuffle)

    def rows(self, epoch: int) -> list[slice] | list[NumPyArray]:
        """Return the rows of each batch of an epoch."""
        if self._seed is None:
            return self._slices
        epoch = epoch if self._reshuffle else 0
        latest = self._latest
        if latest is None or latest[0] != epoch:
            key = (PARTITION, epoch) if self._reshuffle else (PARTITION,)
            permutation = self._generator(*key).permutation(self._samples)
            # Sorted: a memmap is read in the order of its file.
            latest = self._latest = epoch, [np.sort(permutation[rows]) for rows in self._slices]
        return latest[1]

    def order(self, epoch: int) -> list[int]:
        """Return the indices of the batches in the order in which `epoch` visits them."""
        if self._seed is None:
            return list(range(len(self)))
        order: list[int] = self._generator(ORDER, epoch).permutation(len(self)).tolist()
        return order

    def _generator(self, *key: int) -> np.random.Generator:
        return np.random.Generator(
            np.random.PCG64(np.random.SeedSequence(self._seed, spawn_key=key))
        )


def check_shuffle(shuffle: object, reshuffle: object) -> None:
    """Raise TypeError or ValueError if these are no arguments of an ArrayLoader."""
    if not isinstance(shuffle, (bool, np.bool_)):
        raise TypeError(f"shuffle must be a bool, got {shuffle!r}: a sampler is not taken")
    if not isinstance(reshuffle, (bool, np.bool_)):
        raise TypeError(
            f"reshuffle must be a bool, got {reshuffle!r}: whether batches are others each epoch"
        )
    if reshuffle and not shuffle:
        raise ValueError("reshuffle=True needs shuffle=True, got False: give both, or neither")


class BatchMaker:
    """Makes the batches of an ArrayLoader.

    Parameters
    ----------
    arrays : sequence of NDArray, numpy.ndarray or CsrArray
        What the rows are taken from.
    nesting : sequence, optional
        How a batch nests them.
    transform : callable or Transform, optional
        What they go through.
    """

    def __init__(
        self,
        arrays: Sequence[ArraySource],
        nesting: Sequence[Any] | None,
        transform: Callable[..., Any] | None,
    ) -> None:
        # An mx.np.ndarray becomes the NDArray that shares its memory.
        self._arrays = [to_nd(x) if isinstance(x, NDArray) else x for x in arrays]
        self._nesting = nesting
        self._transform = transform

    @property
    def takes_any_rows(self) -> bool:
        """Whether a sample does not depend, bit for bit, on the others in its batch."""
        transform = self._transform
        return transform is None or (isinstance(transform, Transform) and transform.is_by_sample)

    def some_rows(self, number: int) -> list[NumPyArray]:
        """Return some samples of each array, from its beginning to its end, as they are."""
        rows = np.unique(np.linspace(0, len(self._arrays[0]) - 1, number).astype(np.int64))
        return [take_as_numpy(array, rows) for array in self._arrays]

    def whole_labels(self) -> tuple[ArraySource, ArraySource | None] | None:
        """Return the second array and the third or None: see `ArrayLoader.whole_labels`."""
        arrays = list(nest(self._nesting, iter(self._arrays)))
        if len(arrays) not in (2, 3) or not (
            self._transform is None
            or (isinstance(self._transform, Transform) and self._transform.keeps_labels)
        ):
            return None
        return arrays[1], arrays[2] if len(arrays) == 3 else None

    def batch(self, index: int, rows: Rows, draw: tuple[int, int, int]) -> Batch:
        """Return the batch of these rows.

        Parameters
        ----------
        index : int
            Its number in the partition.
        rows : slice or numpy.ndarray
            At least one.
        draw : tuple of int
            Seed, stream and number of the random numbers.
        """
        if isinstance(self._transform, Transform):
            arrays = self._augmented(self._transform, rows, *draw)
        else:
            arrays = self._transformed([to_active_mode(take(x, rows)) for x in self._arrays])
        return Batch(nest(self._nesting, map(to_active_mode, arrays)), index)

    def _augmented(
        self, transform: Transform, rows: Rows, seed: int, stream: int, number: int
    ) -> Iterable[NDArray]:
        arrays = [take_as_numpy(array, rows) for array in self._arrays]
        samples = np.arange(rows.start, rows.stop) if isinstance(rows, slice) else rows
        results = transform(*arrays, draw=Draw(seed, number, samples, stream))
        results = [results] if len(arrays) == 1 else results
        return map(as_ndarray, results, self._arrays)

    def _transformed(self, arrays: list[NDArray]) -> Iterable[NDArray]:
        if self._transform is None:
            return arrays
        result = self._transform(*arrays)
        if len(arrays) == 1 and isinstance(result, NDArray):
            return [result]
        return _check_result(result, len(arrays))


def check_transform(transform: object, arrays: Sequence[object]) -> None:
    """Raise TypeError if `transform` cannot be called with the arrays of a batch."""
    if isinstance(transform, Transform) and any(isinstance(a, CsrArray) for a in arrays):
        raise TypeError(
            f"transform is {transform!r}, which takes dense arrays, and one of the loader's is "
            "CSR: give a plain callable, which gets NDArrays, or transform the matrix beforehand"
        )
    if transform is None or isinstance(transform, Transform):
        return
    if not callable(transform):
        raise TypeError(f"transform must be callable with a batch's arrays, got {transform!r}")
    name = getattr(transform, "__name__", type(transform).__name__)
    if type(transform).__module__.startswith("mxnet.gluon.data.vision") and len(arrays) > 1:
        raise TypeError(
            f"transform is gluon's {name}, which takes the image alone, and is called with the "
            f"{len(arrays)} arrays of a batch: give transforms of gluon_svrg.data.transforms, such "
            f"as ToFloat and Normalize, or lambda x, *rest: ({name}()(x), *rest), which gives all "
            "images of a batch the same random numbers"
        )
    try:
        inspect.signature(transform).bind(*arrays)
    except TypeError as e:
        raise TypeError(
            f"transform must be callable with the {len(arrays)} arrays of a batch, all at once, "
            f"and {name} is not ({e}): give a function of {len(arrays)} arguments"
        ) from e
    except ValueError:  # a built-in function does not tell
        pass


def _check_result(result: object, number: int) -> Sequence[NDArray]:
    if (
        not isinstance(result, (tuple, list))
        or len(result) != number
        or not all(isinstance(array, NDArray) for array in result)
    ):
        raise ValueError(
            f"transform must return {number} NDArrays, one for each that it is given, got "
            f"{_describe(result)}: return a tuple of them"
        )
    return result


def _describe(result: object) -> str:
    if isinstance(result, (tuple, list)):
        names = ", ".join(type(item).__name__ for item in result)
        return f"a {type(result).__name__} of {len(result)} ({names})"
    return f"a {type(result).__name__}"
