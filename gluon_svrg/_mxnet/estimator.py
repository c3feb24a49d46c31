"""MXNet's Estimator: the metrics that it suggests, and its check of handlers' metrics."""

from __future__ import annotations

from collections.abc import Sequence

import mxnet as mx
from mxnet.gluon.contrib.estimator.event_handler import EventHandler
from mxnet.gluon.contrib.estimator.utils import (
    _check_handler_metric_ref,
    _suggest_metric_for_loss,
)
from mxnet.gluon.loss import Loss


def check_metrics_of_handlers(
    handlers: Sequence[EventHandler], known: set[mx.metric.EvalMetric]
) -> None:
    """Raise ValueError if a handler uses a metric that the Estimator does not have."""
    for handler in handlers:
        _check_handler_metric_ref(handler, known)


def suggested_metric(loss: Loss) -> mx.metric.EvalMetric | None:
    """Return the metric that MXNet's Estimator takes for `loss` if none is given."""
    return _suggest_metric_for_loss(loss)
