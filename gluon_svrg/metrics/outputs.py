"""What metrics are computed from: labels, outputs, losses and weights of a batch."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import mxnet as mx
import numpy as np
from gluon_svrg._mxnet.array_mode import to_active_mode, to_nd
from gluon_svrg._mxnet.metric import takes_extra_outputs
from gluon_svrg._typing import NumPyArray
from gluon_svrg.arrays.batch import num_samples, sample_axis, slice_samples, with_axis
from gluon_svrg.arrays.nested import as_numpy, tree_leaves, tree_map
from mxnet.ndarray import NDArray


class Outputs(NamedTuple):
    """The data of a batch that metrics are computed from: lists with one item per context.

    Attributes
    ----------
    label, pred : list
        Each item an array, or several in tuples, lists and dicts.
    loss : list of NDArray
        The losses, times the weights of the batch.
    weight : list
        The weights of the batch; empty if it has none.
    """

    label: list[Any]
    pred: list[Any]
    loss: list[Any]
    weight: list[Any]


class Pair(NamedTuple):
    """A label and an output that belong together, on one context, and their weights or None."""

    label: Any
    pred: Any
    weight: Any


def outputs_of(
    label: Sequence[Any], pred: Sequence[Any], loss: Sequence[Any], weight: Any, batch_axis: int
) -> Outputs:
    """Return the outputs of a batch, with copies of its labels and weights.

    Nothing is computed and nothing waits for the device. Labels and weights are copied because the
    data may write the next ones into the same arrays.

    Parameters
    ----------
    label, pred, loss : list
        The arguments of *batch end*.
    weight : array, several arrays, or None
        The weights of the whole batch.
    batch_axis : int
        The axis of the samples.
    """
    return Outputs(
        [tree_map(lambda array: to_nd(array).copy(), item) for item in label],
        [tree_map(_as_legacy, item) for item in pred],
        [with_axis(to_nd(item)) for item in loss],
        [] if weight is None else _weights_of(label, weight, batch_axis),
    )


def without_weight_zero(outputs: Outputs, batch_axis: int) -> Outputs:
    """Return the outputs of the samples whose weight is not zero.

    Weights of elements, which have more than one number per sample, leave no sample out.
    """
    rows = [_counting_rows(weight) for weight in outputs.weight]
    if all(row is None or row.all() for row in rows):
        return outputs
    columns: list[list[Any]] = [[], [], [], []]
    for index, kept in enumerate(rows):
        if kept is not None and not kept.any():
            continue
        for column, items in zip(columns, outputs, strict=True):
            if index < len(items):
                item = items[index]
                column.append(
                    item
                    if kept is None
                    else tree_map(partial(_take, kept=kept, batch_axis=batch_axis), item)
                )
    return Outputs(*columns)


def pairs(metric: mx.metric.EvalMetric, outputs: Outputs) -> Iterator[Pair]:
    """Yield each label with its output, on each context.

    If an item holds several arrays, they have names: the keys of a dict, or by their order
    ``label0``, ``label1``, ... and ``output0``, ``output1``, ... A metric gets the arrays in its
    `label_names` and `output_names`, as in MXNet's `update_dict`; without these, all, in pairs.

    Raises
    ------
    ValueError
        If there is no such name, or if the metric has no names and the arrays do not form pairs.
    """
    weights = outputs.weight or [None] * len(outputs.label)
    for label, pred, weight in zip(outputs.label, outputs.pred, weights, strict=True):
        if isinstance(label, NDArray) and isinstance(pred, NDArray):
            yield Pair(label, pred, _weight_of(weight, 0, 1))
            continue
        labels, preds = _chosen(metric, label, pred)
        every = list(_named(label, "label"))
        is_strict = not takes_extra_outputs(metric)
        for (name, one), other in zip(labels.items(), preds.values(), strict=is_strict):
            yield Pair(one, other, _weight_of(weight, every.index(name), len(every)))


def update_metric(metric: mx.metric.EvalMetric, outputs: Outputs) -> None:
    """Update a metric that this package does not know, by its own `update`."""
    if isinstance(metric, mx.metric.Loss):
        metric.update(0, _for_metric(metric, outputs.loss))
        return
    labels, preds = outputs.label, outputs.pred
    if all(isinstance(item, NDArray) for item in (*labels, *preds)):
        metric.update(_for_metric(metric, labels), _for_metric(metric, preds))
        return
    if isinstance(metric, mx.metric.CompositeEvalMetric):
        for part in metric.metrics:
            update_metric(part, outputs)
        return
    for label, pred in zip(labels, preds, strict=True):
        _chosen(metric, label, pred)  # raises a readable error
        named_labels, named_preds = _named(label, "label"), _named(pred, "output")
        metric.update_dict(
            dict(zip(named_labels, _for_metric(metric, list(named_labels.values())), strict=True)),
            dict(zip(named_preds, _for_metric(metric, list(named_preds.values())), strict=True)),
        )


def weight_of_rows(weight: Any, shape: tuple[int, ...], batch_axis: int) -> NumPyArray | None:
    """Return weights as an array of this shape; None if they do not fit it.

    If there is one weight per sample, each element of the sample gets it.

    Parameters
    ----------
    weight : array
        One number per sample, or per element.
    shape : tuple of int
        The shape of the values to be weighted.
    batch_axis : int
        The axis of the samples in `shape`, if it has that many axes.
    """
    values = as_numpy(weight).astype("float64")
    if values.ndim == 1:
        axis = batch_axis if len(shape) > batch_axis else 0
        values = values.reshape(*[1] * axis, -1, *[1] * (len(shape) - axis - 1))
    while values.ndim > len(shape) and values.shape[-1] == 1:
        values = values[..., 0]
    values = values.reshape(*values.shape, *[1] * (len(shape) - values.ndim))
    try:
        return np.broadcast_to(values, shape)
    except ValueError:
        return None


def is_of_samples(weight: Any) -> bool:
    """Return whether weights have one number per sample."""
    return all(length == 1 for length in weight.shape[1:])


def bytes_in(outputs: Outputs) -> int:
    """Return how many bytes the arrays have."""
    return sum(
        int(array.size) * np.dtype(array.dtype).itemsize
        for array in tree_leaves(list(outputs))
        if isinstance(array, (NDArray, np.ndarray))
    )


def _weights_of(label: Sequence[Any], weight: Any, batch_axis: int) -> list[Any]:
    """Return copies of the weights on each context; none if there are more or fewer than labels."""
    sizes = [num_samples(leaves[0], batch_axis) for item in label if (leaves := _arrays_in(item))]
    lengths = {num_samples(leaf, batch_axis) for leaf in tree_leaves(weight)}
    if len(sizes) != len(label) or lengths != {sum(sizes)}:
        return []
    weights = []
    for begin, end in itertools.pairwise(np.cumsum([0, *sizes]).tolist()):
        share = partial(slice_samples, rows=slice(begin, end), batch_axis=batch_axis)
        weights.append(tree_map(lambda array: array.copy(), tree_map(share, weight)))
    return weights


def _as_legacy(value: object) -> object:
    """Return an array as an NDArray; return other values, for a user's metric, unchanged."""
    return to_nd(value) if isinstance(value, NDArray) else value


def _arrays_in(item: object) -> list[Any]:
    return [leaf for leaf in tree_leaves(item) if isinstance(leaf, NDArray) and leaf.ndim]


def _counting_rows(weight: Any) -> NumPyArray | None:
    """Return whether each sample counts; None if there is not one weight per sample."""
    leaves = tree_leaves(weight)
    if len(leaves) != 1 or not is_of_samples(leaves[0]):
        return None
    counts: NumPyArray = as_numpy(leaves[0]).ravel() != 0
    return counts


def _take(array: Any, kept: NumPyArray, batch_axis: int) -> Any:
    """Return the samples that count, if the array has one entry per sample."""
    if not isinstance(array, (NDArray, np.ndarray)) or not array.ndim:
        return array
    axis = 0 if array.ndim == 1 else sample_axis(array, batch_axis)
    if array.shape[axis] != len(kept):
        return array
    if isinstance(array, np.ndarray):
        return np.compress(kept, array, axis)
    index = mx.nd.array(np.flatnonzero(kept), ctx=array.ctx, dtype="int32")
    return mx.nd.take(array, index, axis=axis)


def _weight_of(weight: Any, index: int, number: int) -> Any:
    """Return the weights of a label; if there are several, those with its index."""
    leaves = tree_leaves(weight)
    if len(leaves) == 1:
        return leaves[0]
    return leaves[index] if len(leaves) == number else None


def _for_metric(metric: mx.metric.EvalMetric, arrays: Sequence[Any]) -> list[Any]:
    """Return the arrays for a metric: MXNet's own need NDArrays, also in its NumPy mode."""
    kind = to_nd if type(metric).__module__ == "mxnet.metric" else to_active_mode
    return [kind(array) if isinstance(array, NDArray) else array for array in arrays]


def _named(value: object, kind: str) -> dict[str, NDArray]:
    if isinstance(value, Mapping):
        return {
            str(key) if len(tree_leaves(item)) == 1 else f"{key}.{i}": leaf
            for key, item in value.items()
            for i, leaf in enumerate(tree_leaves(item))
        }
    return {f"{kind}{i}": leaf for i, leaf in enumerate(tree_leaves(value))}


def _chosen(
    metric: mx.metric.EvalMetric, label: object, pred: object
) -> tuple[dict[str, NDArray], dict[str, NDArray]]:
    """Return the labels and the outputs that a metric takes; raises ValueError as `pairs` does."""
    labels, preds = _named(label, "label"), _named(pred, "output")
    for kind, names, given in (
        ("label", metric.label_names, labels),
        ("output", metric.output_names, preds),
    ):
        if names is not None and any(name not in given for name in names):
            raise ValueError(
                f"metric {metric.name!r} has {kind}_names={list(names)}, but the batch has the "
                f"{kind}s {list(given)}: choose from these"
            )
    chosen = [
        given if names is None else {name: given[name] for name in names}
        for names, given in ((metric.label_names, labels), (metric.output_names, preds))
    ]
    without_names = metric.label_names is None and metric.output_names is None
    if without_names and len(labels) != len(preds):
        raise ValueError(
            f"metric {metric.name!r} gets {len(labels)} labels ({', '.join(labels)}) and "
            f"{', '.join(preds)}, which do not form pairs: choose with {type(metric).__name__}("
            "output_names=[...], label_names=[...])"
        )
    return chosen[0], chosen[1]
