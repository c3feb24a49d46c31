"""The handlers that a run has besides those that it is given."""

from __future__ import annotations

from typing import Any

from gluon_svrg.events import EventHandler, HandlerList
from gluon_svrg.handlers.checkpoint import CheckpointHandler
from gluon_svrg.handlers.history import HistoryHandler
from gluon_svrg.handlers.metric import MetricHandler
from gluon_svrg.handlers.progress import ProgressHandler
from gluon_svrg.handlers.random_state import RandomStateHandler
from gluon_svrg.handlers.signals import SignalHandler
from gluon_svrg.handlers.svrg import SVRGHandler
from gluon_svrg.handlers.update import GradientUpdateHandler
from gluon_svrg.handlers.validation import ValidationHandler
from gluon_svrg.handlers.variance import VarianceHandler
from mxnet.gluon.contrib import estimator as mx_estimator
from mxnet.gluon.contrib.estimator.utils import _check_handler_metric_ref


def fit_handlers(estimator: Any, val_data: Any, event_handlers: Any, resumes: bool) -> HandlerList:
    """Return all handlers of a call of `fit`; raises as :class:`HandlerList` does.

    Parameters
    ----------
    estimator : Estimator
        Whose metrics are updated.
    val_data, event_handlers
        As `fit` was given them.
    resumes : bool
        Whether the run goes on from a checkpoint.
    """
    given = _as_list(event_handlers)
    defaults: list[EventHandler] = [
        mx_estimator.StoppingHandler(estimator.max_epoch, estimator.max_batch)
    ]
    if not _has(given, mx_estimator.GradientUpdateHandler):
        defaults.append(GradientUpdateHandler())
    if not _has(given, mx_estimator.MetricHandler):
        defaults.append(MetricHandler(estimator.train_metrics))
    if val_data is not None and not _has(given, mx_estimator.ValidationHandler):
        defaults.append(ValidationHandler(val_data))
    if not _has(given, HistoryHandler):
        defaults.append(HistoryHandler())
    if not _has(given, ProgressHandler, mx_estimator.LoggingHandler):
        defaults.append(ProgressHandler())
    if any(isinstance(h, SVRGHandler) and h.giving_up.above is not None for h in given) and (
        not _has(given, VarianceHandler)
    ):
        defaults.append(VarianceHandler())
    if resumes or _has(given, CheckpointHandler):
        if not _has(given, SignalHandler):
            defaults.append(SignalHandler())
        if not _has(given, RandomStateHandler):
            defaults.append(RandomStateHandler())
    return _checked(given + defaults, estimator.train_metrics + estimator.val_metrics)


def evaluation_handlers(estimator: Any, event_handlers: Any) -> HandlerList:
    """Return all handlers of a call of `evaluate`; raises as :class:`HandlerList` does."""
    handlers = _as_list(event_handlers)
    if not _has(handlers, mx_estimator.MetricHandler):
        handlers = [*handlers, MetricHandler(estimator.val_metrics)]
    return _checked(handlers, estimator.val_metrics)


def _checked(handlers: list[EventHandler], metrics: list[Any]) -> HandlerList:
    for handler in handlers:
        # MXNet's own check, kept for MXNet's handlers: one that watches a metric of another
        # Estimator would see values that never change.
        _check_handler_metric_ref(handler, set(metrics))
    return HandlerList(handlers)


def _as_list(event_handlers: Any) -> list[EventHandler]:
    if event_handlers is None:
        return []
    return [event_handlers] if isinstance(event_handlers, EventHandler) else list(event_handlers)


def _has(handlers: list[EventHandler], *classes: type) -> bool:
    return any(isinstance(handler, classes) for handler in handlers)
