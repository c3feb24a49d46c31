"""The metrics of a run: made from the Estimator's arguments, with the loss among them."""

from __future__ import annotations

import copy
import difflib
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeAlias

import mxnet as mx
from gluon_svrg._mxnet import suggested_metric
from gluon_svrg.run import Run
from mxnet.metric import EvalMetric

Metric: TypeAlias = EvalMetric | str | Callable[..., Any]
"""A metric, the name of one of MXNet's, or a function of label and output, both NumPy arrays."""

LOSS = "loss"
SPLITS = ("training", "validation")


def make_metrics(
    loss: mx.gluon.loss.Loss, train: object, val: object
) -> tuple[list[EvalMetric], list[EvalMetric]]:
    """Return the metrics of the training, and those of the evaluation (empty: the same).

    Parameters
    ----------
    loss : gluon.loss.Loss
        The training's loss; its mean is a metric named ``loss`` unless a ``Loss`` is given.
    train, val : EvalMetric, str, callable, list of them, or None
        As the Estimator takes them. Without a metric for the training, the one that suits the loss.

    Raises
    ------
    TypeError
        If an argument is of another type.
    ValueError
        If MXNet has no metric of a name.
    """
    training = _own(_metrics_of(train, "train_metrics"))
    if not training:
        training = [metric for metric in [suggested_metric(loss)] if metric is not None]
    evaluation = [
        _copy_of(metric) if any(metric is other for other in training) else metric
        for metric in _own(_metrics_of(val, "val_metrics"))
    ]
    return _with_loss(training), _with_loss(evaluation) if evaluation else []


def copies_for(metrics: list[EvalMetric], split: str | None) -> list[EvalMetric]:
    """Return copies of metrics, with `split` in the place of the first word of their names."""
    copies = [_copy_of(metric) for metric in metrics]
    for copied in copies if split is not None else ():
        copied.name = f"{split} {copied.name.partition(' ')[2]}"
    return copies


def renamed_metrics(run: Run) -> dict[str, str]:
    """Return the present names of the loss's metrics, by their names up to version 0.2.

    Without metrics of its own a run used the name of the loss's class.
    """
    parts = [
        part
        for metric in (*run.train_metrics, *run.val_metrics)
        for part in flatten_metrics(metric)
    ]
    names, old = {part.name for part in parts}, run.loss.name.rstrip("0123456789")
    return {
        f"{split} {old}": f"{split} {LOSS}"
        for split in SPLITS
        if f"{split} {LOSS}" in names and f"{split} {old}" not in names
    }


def flatten_metrics(metric: EvalMetric) -> Iterator[EvalMetric]:
    """Yield the metrics in a composite metric, or the metric itself."""
    if isinstance(metric, mx.metric.CompositeEvalMetric):
        for part in metric.metrics:
            yield from flatten_metrics(part)
    else:
        yield metric


def is_loss(metric: EvalMetric) -> bool:
    """Return whether it is the metric of the loss."""
    # The Estimator that has had it before has put "training" before its name.
    return isinstance(metric, mx.metric.Loss) or metric.name.split(" ")[-1] == LOSS


def _own(metrics: list[EvalMetric]) -> list[EvalMetric]:
    """Return each metric once, without what another Estimator has put before its name."""
    for metric in metrics:
        split, _, name = str(metric.name).partition(" ")
        if split in SPLITS:
            metric.name = name
    return list({id(metric): metric for metric in metrics}.values())


def _copy_of(metric: EvalMetric) -> EvalMetric:
    """Return a copy, so that an evaluation leaves the sums of the training's metric alone."""
    try:
        return copy.deepcopy(metric)
    except Exception as error:  # it may hold anything
        raise ValueError(
            f"the metric {metric.name!r} is among train_metrics and val_metrics, and cannot be "
            f"copied ({error}): make one for each"
        ) from error


def _metrics_of(given: object, argument: str) -> list[EvalMetric]:
    if given is None:
        return []
    if isinstance(given, mx.metric.CompositeEvalMetric):
        return list(flatten_metrics(given))
    if isinstance(given, (EvalMetric, str)) or callable(given):
        return [_metric_of(given, argument)]
    if not isinstance(given, Iterable):
        raise _no_metric(given, argument)
    return [_metric_of(item, argument) for item in given]


def _metric_of(given: object, argument: str) -> EvalMetric:
    if isinstance(given, EvalMetric):
        return given
    if isinstance(given, str):
        return _by_name(given, argument)
    if callable(given) and not isinstance(given, type):
        return mx.metric.create(given)
    raise _no_metric(given, argument)


def _by_name(name: str, argument: str) -> EvalMetric:
    known = mx.registry.get_registry(EvalMetric)
    if name.lower() not in known:
        near = difflib.get_close_matches(name.lower(), known, n=3)
        hint = (
            f"did you mean {' or '.join(near)}?" if near else f"it has {', '.join(sorted(known))}"
        )
        raise ValueError(f"{argument}: MXNet has no metric {name!r}: {hint}")
    try:
        return mx.metric.create(name)
    except TypeError as e:  # one that has to be told something: Perplexity, CustomMetric
        raise ValueError(
            f"{argument}: the metric {name!r} cannot be made from its name alone ({e}): give an "
            "mx.metric object"
        ) from e


def _no_metric(given: object, argument: str) -> ValueError:
    if isinstance(given, type):
        what = f"the class {given.__name__}: make one, {given.__name__}()"
    else:
        what = f"{given!r}: give objects of mx.metric, names such as 'acc', or functions of label "
        what += "and output"
    return ValueError(f"{argument} must be a metric or a list of metrics, got {what}")


def _with_loss(metrics: list[EvalMetric]) -> list[EvalMetric]:
    for metric in metrics:
        for part in flatten_metrics(metric):
            if is_loss(part):
                return metrics
    return [*metrics, mx.metric.Loss(LOSS)]
