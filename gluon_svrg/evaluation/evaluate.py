"""Compute the figures of a network on some data."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

import mxnet as mx
from gluon_svrg._mxnet.array_mode import check_mode
from gluon_svrg._mxnet.block import has_data, has_shape
from gluon_svrg._mxnet.estimator import check_metrics_of_handlers
from gluon_svrg._typing import Verbose
from gluon_svrg.arrays.sync import wait_for
from gluon_svrg.batch.parts import cannot_compute
from gluon_svrg.batch.processor import evaluate_batch, outputs_of_batch
from gluon_svrg.data.base import at_least_one, length_of
from gluon_svrg.data.training_data import training_data
from gluon_svrg.events import EventHandlers, HandlerList, handlers_in
from gluon_svrg.metrics.handler import metric_handlers
from gluon_svrg.metrics.setup import figures_of
from gluon_svrg.reporting.history import to_python_number
from gluon_svrg.reporting.verbosity import evaluation_bar
from gluon_svrg.run import Run
from gluon_svrg.stops import Interrupted
from gluon_svrg.svrg.trainer import SVRGTrainer
from gluon_svrg.workers.batch_norm import averaged_running_statistics
from mxnet.metric import EvalMetric

Figures = dict[str, float]


def evaluate(
    run: Run,
    val_data: object,
    metrics: list[EvalMetric],
    batch_axis: int,
    event_handlers: EventHandlers,
    verbose: Verbose,
    is_to_abort: Callable[[], bool] | None = None,
    publish: Callable[[Figures], None] | None = None,
) -> Figures:
    """Return the values of `metrics` over `val_data`, by name.

    Parameters
    ----------
    run : Run
        The run, with its `val_net`, batch processor and weights to evaluate.
    val_data : iterable of (data, label)
        The batches; with several workers, each reads its part of them.
    metrics : list of EvalMetric
        They are reset first.
    batch_axis : int
        The axis of the samples.
    event_handlers : EventHandler or list of EventHandler, optional
        They get the *epoch* and *batch* events, in addition to a MetricHandler.
    verbose : 'auto', 0, 1 or 2
        Whether to show a bar.
    is_to_abort : callable, optional
        Called before each batch; returns whether to abort the evaluation.
    publish : callable, optional
        Called with the figures while the network still has the weights that were evaluated.

    Raises
    ------
    Interrupted
        If `is_to_abort` returned True.
    ValueError
        If the data cannot be used or have no batch.
    """
    data = _data_of(run, val_data, batch_axis)
    handlers = _handlers_of(event_handlers, metrics)
    mx.nd.waitall()  # otherwise the evaluation's time would include the last training operators
    axis, run.batch_axis = run.batch_axis, batch_axis
    begin = time.perf_counter()
    for metric in metrics:
        metric.reset()
    try:
        with evaluation_bar(verbose, length_of(val_data), data.iterate_once()) as batches:
            handlers.notify("epoch_begin", run)
            with (
                run.evaluation_weights(),
                averaged_running_statistics(run.val_net, run.workers),
            ):
                _run_batches(run, handlers, batches, is_to_abort)
                handlers.notify("epoch_end", run)
                figures = {
                    name: to_python_number(value)
                    for metric in metrics
                    for name, value in figures_of(metric)
                }
                if publish is not None:
                    publish(figures)
    except BaseException as exception:
        handlers.notify_safely("exception_raised", run, exception=exception)
        raise
    finally:
        run.batch_axis = axis
        run.evaluation_seconds += time.perf_counter() - begin
    return figures


def _run_batches(
    run: Run,
    handlers: HandlerList,
    batches: Iterable[object],
    is_to_abort: Callable[[], bool] | None,
) -> None:
    last: list[Any] = []
    for batch in at_least_one(batches, "val_data"):
        if is_to_abort is not None:
            if is_to_abort():
                raise Interrupted
        elif run.state.stops is not None:  # a handler's evaluation
            run.state.stops.step_completed()
        handlers.notify("batch_begin", run, batch=batch)
        try:
            _, label, pred, loss = evaluate_batch(run, batch, run.batch_axis)
        except mx.base.MXNetError as error:
            raise cannot_compute("val_data", batch, error) from error
        outputs = outputs_of_batch(label, pred, loss)
        handlers.notify("batch_end", run, batch=batch, **outputs)
        wait_for(last)  # otherwise all batches are in memory before the first one is computed
        last = outputs["loss"]


def check_initialized(block: mx.gluon.Block) -> None:
    """Raise RuntimeError if a parameter has a known shape but no value."""
    for param in block.collect_params().values():
        if not has_data(param) and has_shape(param):
            raise RuntimeError(
                f"Parameter {param.name!r} has not been initialized: call initialize() of "
                f"{block.name!r}, a {type(block).__name__}, or load its parameters"
            )


def _data_of(run: Run, val_data: object, batch_axis: int) -> Any:
    """Return this worker's part of the data; `val_net` is synchronized first."""
    check_mode(run.val_net)
    check_initialized(run.val_net)
    if isinstance(run.trainer, SVRGTrainer):
        # Inside fit the weights are already equal.
        run.trainer.synchronize(run.val_net, recheck=run.state.stops is None)
    return training_data(val_data, "val_data").sharded(run.workers, batch_axis)


def _handlers_of(event_handlers: EventHandlers, metrics: list[EvalMetric]) -> HandlerList:
    given, added = metric_handlers(handlers_in(event_handlers), metrics)
    handlers = given + added
    # MXNet's own check, kept for MXNet's handlers: a handler that monitors a metric of another
    # Estimator would see values that never change.
    check_metrics_of_handlers(handlers, set(metrics))
    return HandlerList(handlers)
