"""Whether all workers have the same data, and visit them in the same order."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from gluon_svrg.arrays.nested import tree_leaves
from mxnet.ndarray import NDArray

CONTENTS = "contents"
"""What a fingerprint of contents is filed under."""

_WAYS_OUT = (
    "each worker keeps its own rows of batches that are the same on all, so leave the data whole, "
    "and call gluon_svrg.seed_everything(seed) before anything is shuffled; or give a "
    "gluon.data.DataLoader with a gluon_svrg.data.WorkerBatchSampler, by which each worker loads "
    "its own samples only"
)


def check_agreement(everybody: Sequence[Mapping[str, Any]], what: str) -> None:
    """Raise ValueError if workers differ in what each of them tells of its data.

    Parameters
    ----------
    everybody : sequence of dict
        What each tells, by rank: plain data, the fingerprint of some samples under `CONTENTS`.
    what : str
        What it is told of.
    """
    first = everybody[0]
    for rank, other in enumerate(everybody):
        names = [name for name in {**first, **other} if first.get(name) != other.get(name)]
        if not names:
            continue
        name = names[0]
        if name == CONTENTS:
            difference = f"other samples on worker {rank} than on worker 0"
        else:
            ours, theirs = (f"{name}={own.get(name)!r}" for own in (first, other))
            difference = f"{ours} on worker 0 and {theirs} on worker {rank}"
        raise ValueError(f"{what} has {difference}: {_WAYS_OUT}")


def bits_of(arrays: Iterable[object]) -> int:
    """Return a number that arrays of another shape, dtype or content have not."""
    bits = 0
    for array in arrays:
        for part in _dense_parts(array):
            bits = zlib.crc32(f"{part.shape} {part.dtype}".encode(), bits)
            bits = zlib.crc32(np.ascontiguousarray(part).tobytes(), bits)
    return bits


def bits_of_batch(batch: object) -> int:
    """Return the fingerprint of all arrays of a batch."""
    return bits_of(tree_leaves(batch))


def bits_of_labels(batch: object) -> int:
    """Return the fingerprint of the labels; of all arrays, if the labels are all one number.

    Workers may augment each sample in their own way, by MXNet's generators for instance, which
    differ: that is as good as if they did it alike. The labels then still tell who has the same
    samples.
    """
    if isinstance(batch, Mapping):
        labels = tree_leaves([batch[key] for key in batch if key != "data"])
    else:
        labels = tree_leaves(batch[1:]) if isinstance(batch, (list, tuple)) else []
    parts = [part for label in labels for part in _dense_parts(label)]
    if all(part.size < 2 or (part == part.flat[0]).all() for part in parts):
        return bits_of_batch(batch)
    return bits_of(parts)


def _dense_parts(array: object) -> list[Any]:
    """Return an array as NumPy's: of a sparse one its parts; of what is no array, nothing."""
    if isinstance(array, NDArray):
        if array.stype == "default":
            return [array.asnumpy()]
        return [array.data.asnumpy(), array.indices.asnumpy()]  # type: ignore[attr-defined]
    values = np.asarray(array) if hasattr(array, "__array__") else None
    return [] if values is None or values.dtype == object else [values]
