"""The handlers that `fit` and `evaluate` add to the given ones."""

from __future__ import annotations

from collections.abc import Iterable

import mxnet as mx
from gluon_svrg._mxnet.estimator import check_metrics_of_handlers
from gluon_svrg.batch.backward import needs_epoch_begin
from gluon_svrg.batch.processor_state import BatchProcessorStateHandler
from gluon_svrg.checkpoint.handler import CheckpointHandler
from gluon_svrg.checkpoint.random_state import RandomStateHandler
from gluon_svrg.evaluation.handler import ValidationHandler
from gluon_svrg.events import (
    EventHandler,
    EventHandlers,
    HandlerList,
    Run,
    handlers_in,
)
from gluon_svrg.handlers.gradient_update import GradientUpdateHandler
from gluon_svrg.handlers.running_statistics import RunningStatisticsHandler
from gluon_svrg.handlers.sanity_check import SanityCheckHandler
from gluon_svrg.handlers.signal import SignalHandler
from gluon_svrg.metrics.handler import metric_handlers
from gluon_svrg.metrics.setup import check_split
from gluon_svrg.reporting.history_handler import HistoryHandler
from gluon_svrg.reporting.progress import ProgressHandler
from gluon_svrg.svrg.handler import SVRGHandler
from gluon_svrg.svrg.variance_handler import VarianceHandler
from mxnet.gluon.contrib import estimator as mx_estimator


def fit_handlers(
    estimator: Run,
    val_data: Iterable[object] | None,
    event_handlers: EventHandlers,
    resumes: bool,
    sanity_check: bool = True,
) -> HandlerList:
    """Return all handlers of a call of `fit`; raises as :class:`HandlerList` does.

    Parameters
    ----------
    estimator : Estimator
        The estimator, with its metrics.
    val_data, event_handlers
        The arguments of `fit`.
    resumes : bool
        Whether the run continues from a checkpoint.
    sanity_check : bool
        Whether to check the first batch.
    """
    given, defaults = metric_handlers(handlers_in(event_handlers), estimator.train_metrics)
    if not _has(given, mx_estimator.GradientUpdateHandler):
        defaults.append(GradientUpdateHandler())
    if val_data is not None and not _has(given, mx_estimator.ValidationHandler):
        defaults.append(ValidationHandler(val_data))
    if not _has(given, HistoryHandler):
        defaults.append(HistoryHandler())
    if not _has(given, ProgressHandler, mx_estimator.LoggingHandler):
        defaults.append(ProgressHandler())
    if needs_epoch_begin(estimator.batch_processor):
        defaults.append(BatchProcessorStateHandler())
    has_copies = estimator.workers.is_distributed or len(estimator.context) > 1
    if has_copies and not _has(given, RunningStatisticsHandler):
        defaults.append(RunningStatisticsHandler())
    if sanity_check and not _has(given, SanityCheckHandler):
        defaults.append(SanityCheckHandler())
    if _measures_payoff(given) and not _has(given, VarianceHandler):
        defaults.append(VarianceHandler())
    # A resume without a CheckpointHandler needs the random numbers of the checkpoint, too.
    if resumes or _has(given, CheckpointHandler):
        for kind in (SignalHandler, RandomStateHandler):
            defaults += [] if _has(given, kind) else [kind()]
    check_split(estimator.train_metrics, "training")
    check_split(estimator.val_metrics, "validation")
    return _make_handler_list(given + defaults, estimator.train_metrics + estimator.val_metrics)


def _make_handler_list(
    handlers: list[EventHandler], metrics: list[mx.metric.EvalMetric]
) -> HandlerList:
    # MXNet's own check, kept for MXNet's handlers: one that watches a metric of another Estimator
    # would see values that never change.
    check_metrics_of_handlers(handlers, set(metrics))
    return HandlerList(handlers)


def _measures_payoff(handlers: Iterable[EventHandler]) -> bool:
    """Return whether SVRG is switched off and on by measurements, which a VarianceHandler makes."""
    return any(isinstance(h, SVRGHandler) and h.max_variance_ratio is not None for h in handlers)


def _has(handlers: Iterable[EventHandler], *classes: type[EventHandler]) -> bool:
    return any(isinstance(handler, classes) for handler in handlers)
