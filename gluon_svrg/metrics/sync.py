"""Update metrics over several workers, each of which has its rows of the batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import mxnet as mx
import numpy as np
from gluon_svrg.arrays.nested import tree_leaves, tree_map
from gluon_svrg.events import State
from gluon_svrg.metrics.setup import flatten_metrics
from mxnet.ndarray import NDArray

# Sums over samples: those of all workers are added up. All other metrics need whole batches.
_ADDITIVE = (mx.metric.Accuracy, mx.metric.TopKAccuracy, mx.metric.Loss)
_SUMS = ("sum_metric", "num_inst", "global_sum_metric", "global_num_inst")


class Outputs(NamedTuple):
    """What a metric is updated with: lists, one item per context."""

    label: list[Any]
    pred: list[Any]
    loss: list[Any]


UpdateMetric = Callable[[mx.metric.EvalMetric, list[Outputs]], None]


def contribution(
    metrics: Iterable[mx.metric.EvalMetric], waiting: Sequence[Outputs], update: UpdateMetric
) -> State:
    """Return what this worker contributes to the next update of the metrics, as plain data.

    Parameters
    ----------
    metrics : iterable of EvalMetric
        The metrics, which have been the same on all workers; they stay as they are.
    waiting : sequence of Outputs
        This worker's outputs, for the same batches on all workers; empty lists if it has no row.
    update : callable
        Updates a metric with the outputs of several batches.
    """
    additive, others = _by_kind(metrics)
    outputs: list[Any] = []
    if others:
        has_loss = any(isinstance(part, mx.metric.Loss) for part in others)
        outputs = [list(o if has_loss else o._replace(loss=[])) for o in waiting]
    return {
        "increments": [
            [_increments(part, group, update) for group in _groups(part, waiting)]
            for part in additive
        ],
        "outputs": outputs,
        "bytes": bytes_in(waiting),
    }


def update_with_contributions(
    metrics: Iterable[mx.metric.EvalMetric],
    contributions: Sequence[State],
    update: UpdateMetric,
    batch_axis: int,
) -> int:
    """Update the metrics with the contributions of all workers, by rank.

    Afterwards they are the same on all workers, and equal those of one process with the whole
    batches: counts exactly, other figures to rounding.

    Parameters
    ----------
    metrics, update
        As for :func:`contribution`.
    contributions : sequence of dict
        What that returned on each worker.
    batch_axis : int
        The axis that counts the samples.

    Returns
    -------
    int
        How many bytes the outputs of all workers have.
    """
    additive, others = _by_kind(metrics)
    by_part = zip(*(given["increments"] for given in contributions), strict=True)
    for part, shares in zip(additive, by_part, strict=True):
        for increment in (one for group in zip(*shares, strict=True) for one in group):
            for name, value in zip(_SUMS, increment, strict=True):
                setattr(part, name, getattr(part, name) + value)
    if others:
        by_batch = zip(*(given["outputs"] for given in contributions), strict=True)
        whole = [_whole(shares, batch_axis) for shares in by_batch]
        for part in others:
            update(part, [outputs for outputs in whole if any(outputs)])
    return sum(given["bytes"] for given in contributions)


def bytes_in(waiting: Iterable[Outputs]) -> int:
    """Return how many bytes the arrays have."""
    arrays = (leaf for outputs in waiting for leaf in tree_leaves(list(outputs)))
    return sum(array.size * np.dtype(array.dtype).itemsize for array in arrays)


def _by_kind(
    metrics: Iterable[mx.metric.EvalMetric],
) -> tuple[list[mx.metric.EvalMetric], list[mx.metric.EvalMetric]]:
    """Return the metrics whose sums can be added up, and all others."""
    parts = [part for metric in metrics for part in flatten_metrics(metric)]
    additive = [part for part in parts if type(part) in _ADDITIVE]
    return additive, [part for part in parts if type(part) not in _ADDITIVE]


def _groups(metric: mx.metric.EvalMetric, waiting: Sequence[Outputs]) -> list[list[Outputs]]:
    """Return the outputs whose sums are added in one step, the same number on all workers.

    Of a loss those of one batch, so that it does not matter to the last bit after how many batches
    the workers meet; whole numbers have no such bit.
    """
    if type(metric) is mx.metric.Loss:
        return [[outputs] if any(outputs) else [] for outputs in waiting]
    return [[outputs for outputs in waiting if any(outputs)]]


def _increments(
    metric: mx.metric.EvalMetric, waiting: list[Outputs], update: UpdateMetric
) -> list[Any]:
    """Return what the outputs add to the sums of a metric, which stays as it is."""
    before = [getattr(metric, name) for name in _SUMS]
    for name in _SUMS:
        setattr(metric, name, 0)
    try:
        update(metric, waiting)
        return [_to_number(getattr(metric, name)) for name in _SUMS]
    finally:
        for name, value in zip(_SUMS, before, strict=True):
            setattr(metric, name, value)


def _to_number(value: Any) -> Any:
    if isinstance(value, NDArray):
        value = value.asnumpy()
    return value.item() if hasattr(value, "item") else value


def _whole(shares: Sequence[Sequence[list[Any]]], batch_axis: int) -> Outputs:
    """Return the outputs of a whole batch, joined, as one context has them.

    Where they have no common axis of samples, one item for each context of each worker.
    """
    outputs = Outputs(
        *([item for part in parts for item in part] for parts in zip(*shares, strict=True))
    )
    items = list(zip(*(part for part in outputs if part), strict=True))
    leaves = [tree_leaves(list(item)) for item in items]
    if len(items) < 2 or len({len(item) for item in leaves}) > 1:
        return outputs
    if not all(_have_samples(item, batch_axis) for item in leaves):
        return outputs
    return Outputs(*([_joined(part, batch_axis)] if part else [] for part in outputs))


def _have_samples(arrays: Sequence[Any], batch_axis: int) -> bool:
    """Return whether all arrays have an axis of samples, of the same length."""
    return (
        all(isinstance(a, NDArray) and a.ndim and a.stype == "default" for a in arrays)
        and len({array.shape[_axis(array, batch_axis)] for array in arrays}) == 1
    )


def _joined(items: list[Any], batch_axis: int) -> Any:
    columns = iter(zip(*map(tree_leaves, items), strict=True))

    def join(_: object) -> NDArray:
        column = next(columns)
        return mx.nd.concat(*column, dim=_axis(column[0], batch_axis))

    return tree_map(join, items[0])


def _axis(array: NDArray, batch_axis: int) -> int:
    return batch_axis if array.ndim > batch_axis else 0
