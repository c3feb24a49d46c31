"""Check that all workers have the same data and visit them in the same order."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from gluon_svrg.arrays.nested import tree_leaves
from mxnet.ndarray import NDArray

FINGERPRINT = "contents"
"""The key of the fingerprint of some samples."""

_WAYS_OUT = (
    "each worker keeps its own rows of batches that are the same on all, so leave the data whole, "
    "and call gluon_svrg.seed_everything(seed) before anything is shuffled; or give a "
    "gluon.data.DataLoader with a gluon_svrg.data.WorkerBatchSampler, by which each worker loads "
    "its own samples only"
)


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
        raise ValueError(f"{what} has {difference}: {_WAYS_OUT}")


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


def _dense_parts(array: object) -> list[Any]:
    """Return an array as NumPy arrays, one if it is dense; nothing if it is no array."""
    if isinstance(array, NDArray):
        if array.stype == "default":
            return [array.asnumpy()]
        return [array.data.asnumpy(), array.indices.asnumpy()]  # type: ignore[attr-defined]
    values = np.asarray(array) if hasattr(array, "__array__") else None
    return [] if values is None or values.dtype == object else [values]
