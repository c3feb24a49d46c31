"""The totals of batches, for each metric that this package knows."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import mxnet as mx
import numpy as np
from gluon_svrg._mxnet.metric import function_of
from gluon_svrg._typing import NumPyArray
from gluon_svrg.arrays.batch import num_samples
from gluon_svrg.arrays.nested import as_numpy, tree_leaves
from gluon_svrg.metrics.epoch_metric import EpochMetric
from gluon_svrg.metrics.outputs import (
    Outputs,
    Pair,
    is_of_samples,
    pairs,
    weight_of_rows,
    without_weight_zero,
)
from gluon_svrg.metrics.sums import KNOWN, Sums, Task, set_sums
from mxnet.metric import EvalMetric
from mxnet.ndarray import NDArray

Total = Any
"""The total of some samples: an array or, for an EpochMetric, the samples themselves."""


def is_known(metric: EvalMetric) -> bool:
    """Return whether the totals of a metric can be merged; others are updated batch by batch."""
    kinds = (*KNOWN, mx.metric.Loss, mx.metric.CustomMetric)
    return type(metric) in kinds or isinstance(metric, EpochMetric)


def totals_of(
    metric: EvalMetric, batches: Sequence[Outputs], task: Task, batch_axis: int
) -> list[Total]:
    """Return a metric's total of each batch; None if no sample of it counts.

    Parameters
    ----------
    metric : EvalMetric
        One that :func:`is_known`; it does not change.
    batches : sequence of Outputs
        The outputs of batches. They are computed together; each total has the same bits as if its
        batch were computed alone.
    task : Task
        What the loss tells about outputs and labels.
    batch_axis : int
        The axis of the samples.
    """
    if type(metric) is mx.metric.Loss:
        return _totals_of_losses(batches, batch_axis)
    if type(metric) in KNOWN:
        return _totals_of_rows(metric, KNOWN[type(metric)], batches, task, batch_axis)
    counting = (without_weight_zero(outputs, batch_axis) for outputs in batches)
    if isinstance(metric, EpochMetric):
        return [_collected(metric, outputs) for outputs in counting]
    return [_total_of_function(metric, outputs, batch_axis) for outputs in counting]


def merge(metric: EvalMetric, total: Total, other: Total) -> Total:
    """Return the total of both; None is the total of no samples."""
    if total is None or other is None:
        return other if total is None else total
    sums = KNOWN.get(type(metric))
    return total + other if sums is None else sums.merge(total, other)


def show(metric: EvalMetric, total: Total) -> None:
    """Give the metric the figure of a total, in place of its old value."""
    metric.reset()
    if total is None:
        return
    if isinstance(metric, EpochMetric):
        metric.collect([(label, pred, weight) for label, pred, weight in total])
    elif type(metric) in KNOWN:
        KNOWN[type(metric)].show(metric, total)
    else:
        set_sums(metric, float(total[0]), float(total[1]))


class _Item(NamedTuple):
    """A pair, and the number of its batch."""

    batch: int
    pair: Pair


def _totals_of_rows(
    metric: EvalMetric, sums: Sums, batches: Sequence[Outputs], task: Task, batch_axis: int
) -> list[Total]:
    items = [
        _Item(number, pair)
        for number, outputs in enumerate(batches)
        for pair in pairs(metric, outputs)
    ]
    groups: dict[Any, list[int]] = {}
    for index, item in enumerate(items):
        groups.setdefault(_kind(item.pair), []).append(index)
    totals: list[Total] = [None] * len(items)
    for indices in groups.values():
        found = _totals_of_group(metric, sums, [items[i].pair for i in indices], task, batch_axis)
        for index, total in zip(indices, found, strict=True):
            totals[index] = total
    by_batch: list[Total] = [None] * len(batches)
    for item, total in zip(items, totals, strict=True):
        by_batch[item.batch] = merge(metric, by_batch[item.batch], total)
    return by_batch


def _kind(pair: Pair) -> Any:
    """Return a key; pairs with the same key are computed together."""
    arrays = [pair.label, pair.pred]
    for array, what in zip(arrays, ("label", "output"), strict=True):
        if not isinstance(array, NDArray):
            raise ValueError(f"the {what} is not an array, but a {type(array).__name__}")
    weight = None if pair.weight is None else pair.weight.shape[1:]
    shapes = [array.shape for array in arrays]
    rows = [(len(shape), shape[1:]) for shape in shapes]
    return *rows, *((array.dtype, array.ctx) for array in arrays), weight


def _totals_of_group(
    metric: EvalMetric, sums: Sums, given: list[Pair], task: Task, batch_axis: int
) -> list[Total]:
    """Return the totals of pairs whose arrays differ only in length."""
    label, pred = (_joined([pair[i] for pair in given]) for i in (0, 1))
    first = given[0].weight
    by_element = first is not None and not is_of_samples(first)
    rows = sums.rows(metric, label, pred, task, by_element)
    lengths = [pair.pred.shape[0] for pair in given]
    weight = _joined_weights([pair.weight for pair in given], lengths, rows.shape, batch_axis)
    ends = np.cumsum([0, *lengths]) * (int(np.prod(rows.shape)) // max(1, sum(lengths)))
    labels, preds = rows.label, rows.pred
    if weight is not None and not weight.all():
        counts = weight != 0
        labels, preds, weight = labels[counts], preds[counts], weight[counts]
        ends = np.concatenate([[0], np.cumsum(counts)])[ends]
    columns = np.asarray(sums.columns(metric, labels, preds), dtype="float64")
    return [
        sums.total(columns[:, begin:end], None if weight is None else weight[begin:end])
        if begin < end
        else None
        for begin, end in itertools.pairwise(ends.tolist())
    ]


def _joined(arrays: Sequence[NDArray]) -> NDArray:
    return mx.nd.concat(*arrays, dim=0) if len(arrays) > 1 else arrays[0]


def _joined_weights(
    weights: Iterable[Any], lengths: Sequence[int], shape: tuple[int, ...], batch_axis: int
) -> NumPyArray | None:
    """Return the weights of all rows; None if there are none, or if they do not fit."""
    parts = [
        None if weight is None else weight_of_rows(weight, (length, *shape[1:]), batch_axis)
        for weight, length in zip(weights, lengths, strict=True)
    ]
    known = [np.ravel(part) for part in parts if part is not None]
    return np.concatenate(known) if len(known) == len(parts) else None


def _totals_of_losses(batches: Sequence[Outputs], batch_axis: int) -> list[Total]:
    """Return the sum of the losses and their number or, with weights, the sum of the weights."""
    values = _on_host([loss for outputs in batches for loss in outputs.loss])
    totals: list[Total] = []
    for outputs in batches:
        total = np.zeros(2)
        for index, _ in enumerate(outputs.loss):
            losses = next(values)
            label = outputs.label[index] if index < len(outputs.label) else None
            weights = tree_leaves(outputs.weight[index]) if index < len(outputs.weight) else []
            total += _total_of_losses(losses, label, weights, batch_axis)
        totals.append(total if outputs.loss else None)
    return totals


def _total_of_losses(
    losses: NumPyArray, label: Any, weights: Sequence[Any], batch_axis: int
) -> NumPyArray:
    leaves = [leaf for leaf in tree_leaves(label) if isinstance(leaf, NDArray) and leaf.ndim]
    samples = num_samples(leaves[0], batch_axis) if leaves else 1
    if losses.size == 1 and samples > 1:  # the mean of the batch
        return np.array([float(losses.sum()) * samples, samples])
    weight = _weight_of_losses(weights, losses.shape) if weights else None
    if weight is None:
        return np.array([losses.sum(), losses.size])
    return np.array([losses[weight != 0].sum(), weight.sum()])


def _weight_of_losses(weights: Sequence[Any], shape: tuple[int, ...]) -> NumPyArray | None:
    """Return the weight of each loss; for a mean over elements, their mean weight."""
    if len(weights) != 1:
        return None
    weight = as_numpy(weights[0]).astype("float64")
    if weight.ndim > len(shape):
        weight = weight.reshape(*weight.shape[: len(shape)], -1).mean(axis=-1)
    return weight_of_rows(weight, shape, 0)


def _on_host(arrays: Sequence[NDArray]) -> Any:
    """Yield the arrays in float64, with one copy from the device for all of the same kind."""
    groups: dict[Any, list[int]] = {}
    for index, array in enumerate(arrays):
        groups.setdefault((array.shape[1:], array.dtype, array.ctx), []).append(index)
    found: list[Any] = [None] * len(arrays)
    for indices in groups.values():
        values = _joined([arrays[i] for i in indices]).asnumpy().astype("float64")
        ends = np.cumsum([arrays[i].shape[0] for i in indices])[:-1]
        for index, part in zip(indices, np.split(values, ends), strict=True):
            found[index] = part
    return iter(found)


def _total_of_function(metric: Any, outputs: Outputs, batch_axis: int) -> NumPyArray | None:
    """Return the sum of a function's values, times the numbers of samples, and their sum."""
    total, function = None, function_of(metric)
    for label, pred, _ in pairs(metric, outputs):
        value = function(as_numpy(label), as_numpy(pred))
        if isinstance(value, tuple):
            part = np.array([_number(item) for item in value])
        else:
            samples = num_samples(pred, batch_axis) if getattr(pred, "ndim", 0) else 1
            part = np.array([_number(value) * samples, samples])
        total = part if total is None else total + part
    return total


def _collected(metric: EpochMetric, outputs: Outputs) -> list[Any] | None:
    """Return labels, outputs and weights themselves."""
    found = []
    for label, pred, weight in pairs(metric, outputs):
        samples = label.shape[:1]
        weight = None if weight is None else weight_of_rows(weight, samples, 0)
        found.append([as_numpy(label), as_numpy(pred), weight])
    return found or None


def _number(value: Any) -> float:
    return float(value.asscalar() if isinstance(value, NDArray) else value)
