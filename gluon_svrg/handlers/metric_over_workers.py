"""Metrics over several workers: each has seen its rows of the batches, and all get one value."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import mxnet as mx
import numpy as np
from gluon_svrg.arrays.nested import leaves_of, mapped
from gluon_svrg.checkpoint.encoding import decode, encode, from_bytes, to_bytes
from gluon_svrg.run.metrics import flatten_metrics
from gluon_svrg.workers import Workers
from mxnet.ndarray import NDArray

# Sums over samples: those of all workers are added up. All other metrics need whole batches.
_ADDITIVE = (mx.metric.Accuracy, mx.metric.TopKAccuracy, mx.metric.Loss)
_SUMS = ("sum_metric", "num_inst", "global_sum_metric", "global_num_inst")


class Outputs(NamedTuple):
    """What a metric is updated with: lists, one item per context."""

    label: list[Any]
    pred: list[Any]
    loss: list[Any]


Update = Callable[[mx.metric.EvalMetric, list[Outputs]], None]


def update_over_workers(
    metrics: Iterable[mx.metric.EvalMetric],
    waiting: Sequence[Outputs],
    update: Update,
    workers: Workers,
    batch_axis: int,
    at: str,
) -> int:
    """Update metrics with the outputs of all workers; they are the same on all of them after it.

    They are what one process would have with the whole batches: counts exactly, other figures to
    rounding.

    Parameters
    ----------
    metrics : iterable of EvalMetric
        The same on all workers until now.
    waiting : sequence of Outputs
        This worker's, of the same batches on all; empty lists where it has no row.
    update : callable
        Updates a metric with the outputs of several batches.
    workers : Workers
        Whose outputs count.
    batch_axis : int
        The axis that counts the samples.
    at : str
        Where the run stands.

    Returns
    -------
    int
        How many bytes the outputs of all workers have.
    """
    parts = [part for metric in metrics for part in flatten_metrics(metric)]
    additive = [part for part in parts if type(part) in _ADDITIVE]
    others = [part for part in parts if type(part) not in _ADDITIVE]
    increments = [
        [_increments(part, group, update) for group in _groups(part, waiting)] for part in additive
    ]
    arrays: dict[str, Any] = {}
    meta: dict[str, Any] = {"increments": increments, "bytes": bytes_in(waiting)}
    if others:
        has_loss = any(isinstance(part, mx.metric.Loss) for part in others)
        sent = [outputs if has_loss else outputs._replace(loss=[]) for outputs in waiting]
        meta["outputs"] = encode([list(outputs) for outputs in sent], arrays)
    everybody = [from_bytes(data) for data in workers.gather(to_bytes(meta, arrays), at)]
    by_part = zip(*(meta["increments"] for meta, _ in everybody), strict=True)
    for part, shares in zip(additive, by_part, strict=True):
        for increment in (one for group in zip(*shares, strict=True) for one in group):
            for name, value in zip(_SUMS, increment, strict=True):
                setattr(part, name, getattr(part, name) + value)
    if others:
        decoded = [decode(meta["outputs"], arrays, mx.cpu()) for meta, arrays in everybody]
        whole = [_whole(shares, batch_axis) for shares in zip(*decoded, strict=True)]
        for part in others:
            update(part, [outputs for outputs in whole if any(outputs)])
    return sum(meta["bytes"] for meta, _ in everybody)


def bytes_in(waiting: Iterable[Outputs]) -> int:
    """Return how many bytes the arrays have."""
    arrays = (leaf for outputs in waiting for leaf in leaves_of(list(outputs)))
    return sum(array.size * np.dtype(array.dtype).itemsize for array in arrays)


def _groups(part: mx.metric.EvalMetric, waiting: Sequence[Outputs]) -> list[list[Outputs]]:
    """Return the outputs whose sums are added in one step, the same number on all workers.

    Of a loss those of one batch, so that it does not matter to the last bit after how many batches
    the workers meet; whole numbers have no such bit.
    """
    if type(part) is mx.metric.Loss:
        return [[outputs] if any(outputs) else [] for outputs in waiting]
    return [[outputs for outputs in waiting if any(outputs)]]


def _increments(part: mx.metric.EvalMetric, own: list[Outputs], update: Update) -> list[Any]:
    """Return what the outputs add to the sums of a metric, which stays as it is."""
    before = [getattr(part, name) for name in _SUMS]
    for name in _SUMS:
        setattr(part, name, 0)
    try:
        update(part, own)
        return [_plain(getattr(part, name)) for name in _SUMS]
    finally:
        for name, value in zip(_SUMS, before, strict=True):
            setattr(part, name, value)


def _plain(value: Any) -> Any:
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
    leaves = [leaves_of(list(item)) for item in items]
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
    columns = iter(zip(*map(leaves_of, items), strict=True))

    def join(_: object) -> NDArray:
        column = next(columns)
        return mx.nd.concat(*column, dim=_axis(column[0], batch_axis))

    return mapped(join, items[0])


def _axis(array: NDArray, batch_axis: int) -> int:
    return batch_axis if array.ndim > batch_axis else 0
