"""Put together what the workers tell each other for their metrics."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import mxnet as mx
import numpy as np
from gluon_svrg.arrays.nested import tree_leaves, tree_map
from gluon_svrg.metrics.outputs import Outputs
from mxnet.ndarray import NDArray


def packed(totals: list[Any]) -> Any:
    """Return the totals of batches as one array, if they are arrays of one shape."""
    are_arrays = all(isinstance(total, np.ndarray) for total in totals)
    if are_arrays and len({total.shape for total in totals}) == 1:
        return np.stack(totals)
    return totals


def whole_batches(
    by_worker: Sequence[Sequence[Sequence[list[Any]]]], batch_axis: int
) -> Iterator[Outputs]:
    """Yield the outputs of whole batches, from those of all workers by rank.

    They are joined as if one context had computed them. If they have no common axis of samples,
    there is one item for each context of each worker.
    """
    for shares in zip(*by_worker, strict=True):
        outputs = Outputs(
            *([item for part in parts for item in part] for parts in zip(*shares, strict=True))
        )
        if any(outputs):
            yield _joined(outputs, batch_axis)


def _joined(outputs: Outputs, batch_axis: int) -> Outputs:
    items = list(zip(*(part for part in outputs if part), strict=True))
    leaves = [tree_leaves(list(item)) for item in items]
    if len(items) < 2 or len({len(item) for item in leaves}) > 1:
        return outputs
    if not all(_have_samples(item, batch_axis) for item in leaves):
        return outputs
    return Outputs(*([_concatenated(part, batch_axis)] if part else [] for part in outputs))


def _have_samples(arrays: Sequence[Any], batch_axis: int) -> bool:
    """Return whether all arrays have an axis of samples, of the same length."""
    return (
        all(isinstance(a, NDArray) and a.ndim and a.stype == "default" for a in arrays)
        and len({array.shape[_axis(array, batch_axis)] for array in arrays}) == 1
    )


def _concatenated(items: list[Any], batch_axis: int) -> Any:
    columns = iter(zip(*map(tree_leaves, items), strict=True))

    def join(_: object) -> NDArray:
        column = next(columns)
        return mx.nd.concat(*column, dim=_axis(column[0], batch_axis))

    return tree_map(join, items[0])


def _axis(array: NDArray, batch_axis: int) -> int:
    return batch_axis if array.ndim > batch_axis else 0
