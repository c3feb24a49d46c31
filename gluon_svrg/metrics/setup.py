"""The metrics of a run: made from the Estimator's arguments, with the loss among them."""

from __future__ import annotations

import copy
import difflib
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeAlias

import mxnet as mx
from gluon_svrg._mxnet.estimator import suggested_metric
from gluon_svrg.metrics.readers import stop_watching
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
        The arguments of the Estimator. Without a training metric, one that suits the loss is made.

    Raises
    ------
    TypeError
        If an argument is of another type.
    ValueError
        If MXNet has no metric of a name, or two metrics have one name.
    """
    training = _own(_metrics_of(train, "train_metrics"))
    if not training:
        training = [metric for metric in [suggested_metric(loss)] if metric is not None]
    evaluation = [
        # A copy, so that an evaluation does not change the training metric.
        _copy_of(metric, f"train_metrics and val_metrics both have the metric {metric.name!r}")
        if any(metric is other for other in training)
        else metric
        for metric in _own(_metrics_of(val, "val_metrics"))
    ]
    training, evaluation = _with_loss(training), _with_loss(evaluation) if evaluation else []
    _check_names(training, "train_metrics")
    _check_names(evaluation, "val_metrics")
    return training, evaluation


def copies_for(metrics: Iterable[EvalMetric], split: str | None) -> list[EvalMetric]:
    """Return copies of metrics for another data set, reset to their initial state.

    Parameters
    ----------
    metrics : iterable of EvalMetric
        The metrics of an Estimator, which do not change.
    split : str or None
        The name of the data set, which replaces ``training`` or ``validation``: with ``'test'``
        ``validation accuracy`` becomes ``test accuracy``. With None the names stay.

    Raises
    ------
    ValueError
        If a metric cannot be copied.
    """
    copied = [
        _copy_of(metric, f"another evaluation needs a copy of the metric {metric.name!r}")
        for metric in metrics
    ]
    for metric in copied:
        if split is not None:
            metric.name = f"{split} {_bare_name(metric)}"
        metric.reset()
    return copied


def check_split(metrics: Iterable[EvalMetric], split: str) -> None:
    """Raise ValueError if another Estimator uses one of the metrics for another data set."""
    for metric in metrics:
        other = metric.name.partition(" ")[0]
        if other in SPLITS and other != split:
            raise ValueError(
                f"the metric {metric.name!r} is among the metrics of the {split}: another "
                f"Estimator has it for {other}; make one for each"
            )


def flatten_metrics(metric: EvalMetric) -> Iterator[EvalMetric]:
    """Yield the metrics in a composite metric, or the metric itself."""
    # A subclass with its own `update` may use its parts in another way.
    composite = mx.metric.CompositeEvalMetric
    if isinstance(metric, composite) and type(metric).update is composite.update:
        for part in metric.metrics:
            yield from flatten_metrics(part)
    else:
        yield metric


def figures_of(metric: EvalMetric) -> list[tuple[str, Any]]:
    """Return the names and values of a run's metric; each name begins with that of the data.

    A metric that is made of others, or that has several figures, names them itself. Without the
    name of the data, the figures of one data set would hide those of another.
    """
    split, _, name = str(metric.name).partition(" ")
    prefix = f"{split} " if name else ""
    return [
        (figure if figure.startswith(prefix) else prefix + figure, value)
        for figure, value in metric.get_name_value()
    ]


def is_loss(metric: EvalMetric) -> bool:
    """Return whether it is the metric of the loss."""
    # An earlier Estimator may have put "training" before its name.
    return isinstance(metric, mx.metric.Loss) or metric.name.split(" ")[-1] == LOSS


def _own(metrics: list[EvalMetric]) -> list[EvalMetric]:
    """Return each metric once, without the prefix that another Estimator gave its name."""
    for metric in metrics:
        metric.name = _bare_name(metric)
    return list({id(metric): metric for metric in metrics}.values())


def _bare_name(metric: EvalMetric) -> str:
    split, _, name = str(metric.name).partition(" ")
    return name if name and split in SPLITS else str(metric.name)


def _check_names(metrics: list[EvalMetric], argument: str) -> None:
    """Raise ValueError if two metrics have one name, so that one figure would hide the other.

    Two metrics with the same settings have the same figure, so they are allowed.
    """
    parts: dict[str, EvalMetric] = {}
    for part in (part for metric in metrics for part in flatten_metrics(metric)):
        if not _are_alike(parts.setdefault(part.name, part), part):
            raise ValueError(
                f"{argument}: two metrics have the name {part.name!r}, and one figure would hide "
                f"the other: give one another name, {type(part).__name__}(name=...)"
            )


def _are_alike(one: EvalMetric, other: EvalMetric) -> bool:
    """Return whether two metrics always have the same figure, as two ``Accuracy()`` have."""
    if one is other:
        return True
    is_mxnets = (
        type(one) is type(other) and type(one) in mx.registry.get_registry(EvalMetric).values()
    )
    takes_function = isinstance(one, mx.metric.CustomMetric)
    return is_mxnets and not takes_function and one.get_config() == other.get_config()


def _copy_of(metric: EvalMetric, purpose: str) -> EvalMetric:
    try:
        copied = copy.copy(metric)
        stop_watching([copied])
        return copy.deepcopy(copied)
    except Exception as error:  # it may hold anything
        raise ValueError(
            f"{purpose}, which cannot be copied ({error}): make one for each"
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
    except TypeError as e:  # one that needs arguments: Perplexity, CustomMetric
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
