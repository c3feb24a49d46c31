"""Update metrics with the outputs of a batch, also with several outputs or labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import mxnet as mx
from gluon_svrg._mxnet import as_current, as_legacy
from gluon_svrg.arrays.nested import tree_leaves
from mxnet.ndarray import NDArray


def update_metric(
    metric: mx.metric.EvalMetric, labels: Sequence[Any], preds: Sequence[Any]
) -> None:
    """Update a metric with labels and outputs, one item per context.

    If an item holds several arrays, they have names: the keys of a dict, or by their order
    ``label0``, ``label1``, ... and ``output0``, ``output1``, ... A metric takes those of its
    `label_names` and `output_names`, as in MXNet's `update_dict`; without them all, in pairs.

    Raises
    ------
    ValueError
        If there is no such name, or the arrays of a metric without names are no pairs.
    """
    if type(metric) is mx.metric.CompositeEvalMetric:
        for part in metric.metrics:
            update_metric(part, labels, preds)
        return
    if all(isinstance(item, NDArray) for item in (*labels, *preds)):
        metric.update(_for_metric(metric, labels), _for_metric(metric, preds))
        return
    if isinstance(metric, mx.metric.CompositeEvalMetric):
        for part in metric.metrics:
            update_metric(part, labels, preds)
        return
    for label, pred in zip(labels, preds, strict=True):
        named_labels, named_preds = _named(label, "label"), _named(pred, "output")
        _check_names(metric, "label_names", metric.label_names, named_labels, named_preds)
        _check_names(metric, "output_names", metric.output_names, named_preds, named_labels)
        metric.update_dict(
            dict(zip(named_labels, _for_metric(metric, list(named_labels.values())), strict=True)),
            dict(zip(named_preds, _for_metric(metric, list(named_preds.values())), strict=True)),
        )


def update_with_losses(metric: mx.metric.Loss, losses: Sequence[NDArray]) -> None:
    """Update a metric of the loss with the losses of a batch, one array per context."""
    metric.update(0, _for_metric(metric, losses))


def _for_metric(metric: mx.metric.EvalMetric, arrays: Sequence[Any]) -> list[Any]:
    """Return the arrays for a metric: MXNet's own take NDArrays, in its NumPy mode, too."""
    kind = as_legacy if type(metric).__module__ == "mxnet.metric" else as_current
    return [kind(array) if isinstance(array, NDArray) else array for array in arrays]


def _named(value: object, kind: str) -> dict[str, NDArray]:
    if isinstance(value, Mapping):
        return {
            str(key) if len(tree_leaves(item)) == 1 else f"{key}.{i}": leaf
            for key, item in value.items()
            for i, leaf in enumerate(tree_leaves(item))
        }
    return {f"{kind}{i}": leaf for i, leaf in enumerate(tree_leaves(value))}


def _check_names(
    metric: mx.metric.EvalMetric,
    argument: str,
    names: Sequence[str] | None,
    given: Mapping[str, NDArray],
    others: Mapping[str, NDArray],
) -> None:
    kind = argument.split("_")[0]
    if names is not None:
        missing = [name for name in names if name not in given]
        if missing:
            raise ValueError(
                f"metric {metric.name!r} has {argument}={list(names)}, and the batch has the "
                f"{kind}s {list(given)}: give it some of these"
            )
    elif metric.label_names is None and metric.output_names is None and len(given) != len(others):
        raise ValueError(
            f"metric {metric.name!r} gets {len(given)} {kind}s ({', '.join(given)}) and "
            f"{', '.join(others)}, which are no pairs: choose some by {type(metric).__name__}("
            "output_names=[...], label_names=[...])"
        )
