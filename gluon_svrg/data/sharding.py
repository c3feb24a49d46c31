"""Shard: one worker's rows of every batch; and checks that all workers divide the same data."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from gluon_svrg.arrays.batch import Batch, num_samples, slice_samples
from gluon_svrg.arrays.nested import describe_value, tree_leaves, tree_map
from mxnet.ndarray import NDArray

FINGERPRINT = "contents"
"""The key of the fingerprint of some samples."""

_SAME_ON_ALL = (
    "give all workers the same whole batches, each keeps its own rows of them; call "
    "gluon_svrg.seed_everything(seed) before anything is shuffled; or give a "
    "gluon.data.DataLoader with a gluon_svrg.data.WorkerBatchSampler, by which each worker loads "
    "its own samples only"
)
_WAY_OUT = (
    "let the data yield (data, label) or (data, label, sample_weight) of arrays, or give a "
    "gluon.data.DataLoader with a gluon_svrg.data.WorkerBatchSampler, by which each worker loads "
    "its own samples only"
)


class Shard(NamedTuple):
    """The rows of every batch that one of several workers has.

    Attributes
    ----------
    rank : int
        The rank of the worker.
    workers : int
        The number of workers.
    batch_axis : int
        The axis of a batch that counts the samples.
    """

    rank: int
    workers: int
    batch_axis: int = 0

    def rows(self, samples: int) -> slice:
        """Return the slice of this worker's samples in a batch; it may be empty.

        The slices of all workers, in the order of their ranks, make up the batch and are as equal
        as possible. They depend on the size of the batch alone, so each worker knows the slices of
        all.
        """
        begin, end = (samples * rank // self.workers for rank in (self.rank, self.rank + 1))
        return slice(begin, end)

    def take(self, batch: object, index: int) -> Any:
        """Return this worker's rows of a batch, in the same tuple, list or dict.

        NDArrays are views if the first axis counts the samples. If this worker has no row of the
        batch, return an empty :class:`Batch`.

        Parameters
        ----------
        batch : NDArray, numpy.ndarray, or tuple, list or dict of them
            The whole batch.
        index : int
            The number of the batch, for an empty Batch, unless `batch` has an index itself.

        Raises
        ------
        ValueError
            If `batch` holds anything but arrays, or their numbers of samples differ.
        """
        arrays = [_to_array(leaf, batch) for leaf in tree_leaves(batch)]
        if not arrays:
            raise ValueError(f"{describe_value(batch)} has no arrays: {_WAY_OUT}")
        samples = num_samples(arrays[0], self.batch_axis)
        _check_lengths(batch, arrays, samples, self.batch_axis)
        rows = self.rows(samples)
        number = batch.index if isinstance(batch, Batch) else index
        if rows.start == rows.stop:
            return Batch((), number)
        part = tree_map(
            partial(_take_rows, rows=rows, samples=samples, axis=self.batch_axis), batch
        )
        return Batch(part, number) if isinstance(batch, Batch) else part


def check_same_data(descriptions: Sequence[Mapping[str, Any]], what: str) -> None:
    """Raise ValueError if the workers' descriptions of their data differ.

    Parameters
    ----------
    descriptions : sequence of dict
        The description from each worker, by rank: plain data, and under `FINGERPRINT` the
        fingerprint of some samples.
    what : str
        The name of the data, for the message.
    """
    first = descriptions[0]
    for rank, other in enumerate(descriptions):
        names = [name for name in {**first, **other} if first.get(name) != other.get(name)]
        if not names:
            continue
        name = names[0]
        if name == FINGERPRINT:
            difference = f"other samples on worker {rank} than on worker 0"
        else:
            here, there = (f"{name}={d.get(name)!r}" for d in (first, other))
            difference = f"{here} on worker 0 and {there} on worker {rank}"
        raise ValueError(f"{what} has {difference}: {_SAME_ON_ALL}")


def fingerprint(arrays: Iterable[object]) -> int:
    """Return a checksum (CRC-32) of the arrays' shapes, dtypes and contents."""
    checksum = 0
    for array in arrays:
        for values in _dense_parts(array):
            checksum = zlib.crc32(f"{values.shape} {values.dtype}".encode(), checksum)
            checksum = zlib.crc32(np.ascontiguousarray(values).tobytes(), checksum)
    return checksum


def batch_fingerprint(batch: object) -> int:
    """Return the fingerprint of all arrays of a batch."""
    return fingerprint(tree_leaves(batch))


def label_fingerprint(batch: object) -> int:
    """Return the fingerprint of the labels; of all arrays, if all labels are equal.

    Workers may augment the same samples differently, for example by MXNet's generators, which
    differ between workers. The labels still tell whether the samples are the same.
    """
    if isinstance(batch, Mapping):
        labels = tree_leaves([batch[key] for key in batch if key != "data"])
    else:
        labels = tree_leaves(batch[1:]) if isinstance(batch, (list, tuple)) else []
    parts = [values for label in labels for values in _dense_parts(label)]
    if all(values.size < 2 or (values == values.flat[0]).all() for values in parts):
        return batch_fingerprint(batch)
    return fingerprint(parts)


def _take_rows(leaf: Any, rows: slice, samples: int, axis: int) -> Any:
    array = leaf if isinstance(leaf, (NDArray, np.ndarray)) else np.asarray(leaf)
    is_for_all = num_samples(array, axis) != samples  # by _check_lengths, it has one row for all
    return array if is_for_all else slice_samples(array, rows, axis)


def _to_array(leaf: Any, batch: object) -> Any:
    """Return the leaf as an array that has samples."""
    if not isinstance(leaf, (NDArray, np.ndarray)) and hasattr(leaf, "__array__"):
        leaf = np.asarray(leaf)
    if not isinstance(leaf, (NDArray, np.ndarray)) or not leaf.ndim:
        raise ValueError(
            f"{describe_value(batch)} cannot be divided between workers, because it holds "
            f"{describe_value(leaf)}, which has no axis of samples: {_WAY_OUT}"
        )
    if isinstance(leaf, NDArray) and leaf.stype == "row_sparse":
        raise ValueError(
            f"{describe_value(batch)} cannot be divided between workers, because it holds an array "
            "of storage type 'row_sparse', which has no slices: make it x.tostype('csr')"
        )
    return leaf


def _check_lengths(batch: object, arrays: list[Any], samples: int, axis: int) -> None:
    of_elements = [id(w) for w in tree_leaves(_weights_in(batch)) if getattr(w, "ndim", 1) > 1]
    for array in arrays:
        number = num_samples(array, axis)
        # Weights of elements may have one row for all samples, as the loss broadcasts them.
        if number != samples and (number > 1 or id(array) not in of_elements):
            raise ValueError(
                f"the arrays of a batch must have the same number of samples along axis {axis} to "
                f"be divided between workers, got shapes {[a.shape for a in arrays]}: look at how "
                "the loader pairs them"
            )


def _weights_in(batch: object) -> object:
    if isinstance(batch, Mapping):
        return batch.get("sample_weight")
    return batch[2] if isinstance(batch, (list, tuple)) and len(batch) == 3 else None


def _dense_parts(array: object) -> list[Any]:
    """Return an array as NumPy arrays, one if it is dense; nothing if it is no array."""
    if isinstance(array, NDArray):
        if array.stype == "default":
            return [array.asnumpy()]
        return [array.data.asnumpy(), array.indices.asnumpy()]  # type: ignore[attr-defined]
    values = np.asarray(array) if hasattr(array, "__array__") else None
    return [] if values is None or values.dtype == object else [values]
