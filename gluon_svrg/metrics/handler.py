"""MetricHandler: the metrics of an epoch, computed from sums over all its samples."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, cast

import mxnet as mx
from gluon_svrg._mxnet.symbol import reason_of
from gluon_svrg.arrays.encoding import data_from_bytes, data_to_bytes
from gluon_svrg.batch.parts import weight_in
from gluon_svrg.batch.processor import BatchProcessor
from gluon_svrg.events import (
    BatchEnd,
    EpochBegin,
    EpochEnd,
    EventHandler,
    ExceptionRaised,
    Order,
    Run,
    State,
    Stateful,
    TrainBegin,
    TrainEnd,
)
from gluon_svrg.metrics.epoch_metric import EpochMetric
from gluon_svrg.metrics.gathering import packed, whole_batches
from gluon_svrg.metrics.outputs import (
    Outputs,
    bytes_in,
    outputs_of,
    update_metric,
    without_weight_zero,
)
from gluon_svrg.metrics.readers import stop_watching, watch_reads, watchers
from gluon_svrg.metrics.setup import LOSS, flatten_metrics
from gluon_svrg.metrics.state import metric_state, set_metric_state
from gluon_svrg.metrics.sums import Task
from gluon_svrg.metrics.totals import Total, is_known, merge, show, totals_of
from gluon_svrg.workers import SingleProcess, Workers
from mxnet.gluon.contrib import estimator as mx_estimator
from mxnet.metric import EvalMetric
from mxnet.ndarray import NDArray


class MetricHandler(
    mx_estimator.MetricHandler,
    TrainBegin,
    EpochBegin,
    BatchEnd,
    EpochEnd,
    TrainEnd,
    ExceptionRaised,
    Stateful,
):
    """Computes the metrics of an epoch from sums over its samples.

    A metric is computed over all samples, so it does not depend on batches, devices and workers;
    MXNet takes a mean over batches. This holds for all MXNet metrics and for an EpochMetric. A
    function of label and output is averaged with the numbers of samples as weights, so it has to
    be a mean over samples. Your own EvalMetric is updated batch by batch, as in MXNet.

    If the batches have weights, a metric is Σ w x / Σ w, and samples of weight 0 are removed before
    any metric is updated. For a function, and for your own metric, samples of weight 0 are removed
    and the other weights are ignored. If a batch processor has its own forward pass, the weights
    are not known and not used.

    The handler does not wait for the device at each batch. It collects the outputs of several
    batches, and computes the metrics when it has enough of them or when a metric is read. So a
    metric that is read has the value for the batches so far; an EpochMetric has its value at the
    end of the epoch.

    With several workers, the metrics are the same on all of them. The workers add up their sums
    every few batches, at a checkpoint and at the end of an epoch; a read in between gives the value
    of the last of these times. Only for your own metrics and for an EpochMetric, each worker gets
    the labels and outputs of all workers.

    Parameters
    ----------
    metrics : EvalMetric or list of EvalMetric
        The metrics to compute.
    priority : float
        By default that of MXNet's handler: before the handlers that read metrics.
    max_batches : int
        The metrics are computed after at most this many batches.
    max_bytes : int
        The metrics are computed when the outputs take this many bytes.

    Raises
    ------
    ValueError
        After the first batch, if a metric cannot be computed from its outputs; after a later one
        if its outputs have another shape. Also if a metric is in use in another run.
    """

    state_key = "metrics"
    supports_workers = True

    def __init__(
        self,
        metrics: EvalMetric | list[EvalMetric],
        priority: float = Order.METRIC,
        max_batches: int = 64,
        max_bytes: int = 2**24,
    ) -> None:
        super().__init__(metrics, float(priority))
        self._max_batches = max_batches
        self._max_bytes = max_bytes
        self._waiting: list[Outputs] = []
        self._nbytes = 0
        self._has_worked = False
        self._is_in_run = False
        self._totals: dict[int, Total] = {}  # by the id of the metric
        self._has_ended = False
        self._task = Task()
        self._has_weights = False
        self._workers: Workers = SingleProcess()
        self._batch_axis = 0
        self._count = 0  # of batches since the metrics were reset
        self._period: int | None = None

    def train_begin(self, estimator: Run, *args: Any, **kwargs: Any) -> None:
        """Read the settings of the run, which may continue in the middle of an epoch."""
        self._join(estimator)

    def epoch_begin(self, estimator: Run, *args: Any, **kwargs: Any) -> None:
        """Reset the metrics."""
        self._join(estimator)
        self._begin(estimator)
        super().epoch_begin(estimator, *args, **kwargs)

    def batch_end(self, estimator: Run, *args: Any, **kwargs: Any) -> None:
        """Keep the outputs of the batch."""
        weight = weight_in(kwargs.get("batch")) if self._has_weights and kwargs["pred"] else None
        outputs = outputs_of(
            kwargs["label"], kwargs["pred"], kwargs["loss"], weight, self._batch_axis
        )
        self._waiting.append(outputs)
        self._count += 1
        if self._workers.is_distributed:
            if self._period is None or len(self._waiting) >= self._period:
                self.flush()
            return
        self._nbytes += bytes_in(outputs)
        if not self._has_worked:
            # An error of a metric is raised after the first batch.
            self.flush()
            self._has_worked = True
        elif len(self._waiting) >= self._max_batches or self._nbytes >= self._max_bytes:
            self.flush()

    def epoch_end(self, estimator: Run, *args: Any, **kwargs: Any) -> None:
        """Compute the figures of the epoch."""
        self.flush()
        self._end()
        self._stop_listening()

    def train_end(self, estimator: Run, *args: Any, **kwargs: Any) -> None:
        """Stop watching for reads of the metrics, if the last epoch had no batch."""
        self._stop_listening()

    def exception_raised(self, estimator: Run, *args: Any, **kwargs: Any) -> None:
        """Compute the figures so far, and stop watching for reads of the metrics."""
        try:
            if not self._workers.is_distributed:  # after an exception the others may not take part
                self.flush()
        finally:
            self._stop_listening()

    def state_dict(self, estimator: Run) -> State:
        """Return the totals of the epoch so far, and the attributes of all other metrics."""
        if self._workers.is_distributed:
            reduction = self._workers.reduction(self._contribution(), self._add_to_state)
            return cast(State, reduction)
        self.flush()
        return self._state()

    def load_state_dict(self, estimator: Run, state: State) -> None:
        """Continue the epoch with the saved totals; without them the metrics start from zero."""
        self._begin(estimator)
        is_in_epoch = estimator.position.batch_in_epoch > 0 and estimator.position.is_in_epoch
        if is_in_epoch and "parts" not in state:
            estimator.logger.warning(
                "resume: version 0.8 or before wrote the checkpoint in the middle of epoch %d: its "
                "training metrics cover only the batches after the resume",
                estimator.position.epoch,
            )
        saved = dict(state.get("parts", ()))
        for part in self._parts():
            part.reset()
            found = saved.get(part.name)
            if found is None:
                if is_in_epoch and "parts" in state:
                    estimator.logger.warning(
                        "resume: the checkpoint has no value of the metric %r: in epoch %d it "
                        "covers only the batches after the resume",
                        part.name,
                        estimator.position.epoch,
                    )
            elif is_known(part) != ("attributes" in found):
                self._load(part, found)
        self._has_ended = state.get("has_ended", False)
        if self._has_ended:
            self._end()
        if not estimator.position.is_in_epoch or self._has_ended:
            self._stop_listening()

    def flush(self) -> None:
        """Compute the metrics with the outputs that were kept; on all workers together."""
        if not self._workers.is_distributed:
            if self._waiting:
                try:
                    self._add([self._contribution()])
                finally:
                    self._waiting, self._nbytes = [], 0
            return
        label = f"metrics after {self._count} batches"
        contents = self._workers.all_gather_bytes(data_to_bytes(self._contribution()), label)
        self._add([data_from_bytes(content) for content in contents])

    def flush_for_reader(self) -> None:
        """Compute the metrics because one is read, unless that needs the other workers."""
        if not self._workers.is_distributed:
            self.flush()

    def _begin(self, estimator: Run) -> None:
        """Discard all outputs, and watch for reads of the metrics."""
        self._waiting, self._nbytes, self._count = [], 0, 0
        self._totals, self._has_ended = {}, False
        self._stop_listening()  # an exception may have ended the last epoch
        for metric in self.metrics:
            for watcher in watchers([metric]):
                if getattr(watcher, "__self__", self)._is_in_run:
                    raise ValueError(
                        f"the metric {metric.name!r} is in use in a run that has not ended: make "
                        "another one for this run"
                    )
        stop_watching(self.metrics)  # left over from a run of MXNet's Estimator that was aborted
        watch_reads(self.metrics, self.flush_for_reader)
        self._is_in_run = isinstance(estimator, Run)

    def _stop_listening(self) -> None:
        own = [metric for metric in self.metrics if self.flush_for_reader in watchers([metric])]
        stop_watching(own)
        self._is_in_run = False

    def _end(self) -> None:
        """Set the values of metrics that are computed once per epoch."""
        self._has_ended = True
        for part in self._parts():
            if isinstance(part, EpochMetric):
                show(part, self._totals.get(id(part)))

    def _parts(self) -> list[EvalMetric]:
        return [part for metric in self.metrics for part in flatten_metrics(metric)]

    def _contribution(self) -> State:
        """Return what this worker adds to the metrics, as plain data; the metrics do not change."""
        parts, waiting = self._parts(), self._waiting
        others = [part for part in parts if not is_known(part)]
        outputs: list[Any] = []
        if others:
            counting = (without_weight_zero(o, self._batch_axis) for o in waiting)
            has_loss = any(isinstance(part, mx.metric.Loss) for part in others)
            outputs = [
                list(o._replace(weight=[], loss=o.loss if has_loss else [])) for o in counting
            ]
        return {
            "totals": [
                packed(_explained(part, waiting, partial(self._totals_of, part)))
                for part in parts
                if is_known(part)
            ],
            "outputs": outputs,
            # Only the first batch is counted on several workers, and then the period is known.
            "bytes": sum(map(bytes_in, waiting)) if self._period is None else 0,
        }

    def _totals_of(self, part: EvalMetric) -> list[Total]:
        return totals_of(part, self._waiting, self._task, self._batch_axis)

    def _add(self, contributions: Sequence[State]) -> None:
        """Update the metrics with what all workers contribute, by rank."""
        parts = self._parts()
        known = [part for part in parts if is_known(part)]
        by_part = zip(*(given["totals"] for given in contributions), strict=True)
        for part, by_worker in zip(known, by_part, strict=True):
            # If the user has reset the metric, its total starts from zero.
            is_reset = not isinstance(part, EpochMetric) and not part.num_inst
            total = None if is_reset else self._totals.get(id(part))
            for of_batch in zip(*by_worker, strict=True):
                batch = None
                for share in of_batch:
                    batch = merge(part, batch, share)
                total = merge(part, total, batch)
            self._totals[id(part)] = total
            if not isinstance(part, EpochMetric):
                show(part, total)
        batches = [Outputs(*outputs) for outputs in contributions[0]["outputs"]]
        if self._workers.is_distributed:
            every = [given["outputs"] for given in contributions]
            batches = list(whole_batches(every, self._batch_axis))
        for part in parts:
            if not is_known(part):
                _explained(part, batches, partial(_update, part, batches))
        if self._period is None and self._waiting:
            # Decided by the first batch, which is the same on all workers.
            nbytes = max(1, sum(given["bytes"] for given in contributions))
            self._period = max(1, min(self._max_batches, self._max_bytes // nbytes))
        self._waiting, self._nbytes = [], 0

    def _add_to_state(self, contributions: list[State]) -> State:
        self._add(contributions)
        return self._state()

    def _state(self) -> State:
        parts = [
            [
                part.name,
                {"total": self._totals.get(id(part))}
                if is_known(part)
                else {"attributes": metric_state(part)},
            ]
            for part in self._parts()
        ]
        return {"parts": parts, "has_ended": self._has_ended}

    def _load(self, part: EvalMetric, saved: State) -> None:
        if not is_known(part):
            set_metric_state(part, saved["attributes"])
            return
        self._totals[id(part)] = saved["total"]
        if not isinstance(part, EpochMetric):
            show(part, saved["total"])

    def _join(self, estimator: Run) -> None:
        """Read what the run says about its workers, axes, loss and batches."""
        if isinstance(estimator, Run):
            self._workers, self._batch_axis = estimator.workers, estimator.batch_axis
        is_training = True
        if isinstance(estimator, Run | mx_estimator.Estimator):
            training = {id(metric) for metric in estimator.train_metrics}
            is_training = any(id(metric) in training for metric in self.metrics)
            self._task = Task.of(estimator.loss if is_training else estimator.val_loss)
        processor = getattr(estimator, "batch_processor", None)
        name = "fit_batch" if is_training else "evaluate_batch"
        # A processor with its own method may use the third item for something else.
        self._has_weights = isinstance(processor, BatchProcessor) and (
            getattr(type(processor), name) is getattr(BatchProcessor, name)
        )


def metric_handlers(
    given: list[EventHandler], metrics: list[EvalMetric]
) -> tuple[list[EventHandler], list[EventHandler]]:
    """Return the handlers that are given, and the MetricHandlers that are added to them.

    MXNet's own MetricHandler is replaced by this package's with the same metrics; a subclass, which
    has its own code, stays. If none is given, one for `metrics` is added. Otherwise one for the
    loss is added, if the loss is missing.
    """
    given = [
        MetricHandler(handler.metrics, handler.priority)
        if type(handler) is mx_estimator.MetricHandler
        else handler
        for handler in given
    ]
    kinds = [handler for handler in given if isinstance(handler, mx_estimator.MetricHandler)]
    if not kinds:
        return given, [MetricHandler(metrics)]
    updated = [id(metric) for handler in kinds for metric in handler.metrics]
    missing = [m for m in metrics if id(m) not in updated and m.name.split(" ")[1:] == [LOSS]]
    return given, [MetricHandler(missing)] if missing else []


def try_metric(metric: EvalMetric, outputs: Outputs, loss: mx.gluon.Block, batch_axis: int) -> None:
    """Compute a copy of a metric from the outputs of a batch, to see whether that works.

    A user's own metric that cannot be copied is not checked.
    """
    if is_known(metric):
        totals_of(metric, [outputs], Task.of(loss), batch_axis)
        return
    try:
        trial = copy.deepcopy(metric)
    except Exception:  # it may hold anything
        return
    update_metric(trial, without_weight_zero(outputs, batch_axis))


def _explained(metric: EvalMetric, batches: Sequence[Outputs], compute: Callable[[], Any]) -> Any:
    """Return ``compute()``; raise ValueError if the outputs do not suit the metric."""
    try:
        return compute()
    except (FloatingPointError, MemoryError):
        raise  # other handlers decide about a NaN
    except Exception as e:
        # A worker may have no row of a batch.
        outputs = next((o for o in batches if o.pred), batches[0])
        raise ValueError(_what_failed(metric, outputs, e)) from e


def _update(metric: EvalMetric, batches: Sequence[Outputs]) -> None:
    for outputs in batches:
        if outputs.pred or outputs.loss:
            update_metric(metric, outputs)


def _what_failed(metric: EvalMetric, outputs: Outputs, error: Exception) -> str:
    """Return an error message: which metric fails, on which shapes, why, and what to do."""
    labels, preds = outputs.label, outputs.pred
    hint = "give the Estimator a metric that suits them, or none"
    if isinstance(metric, mx.metric.Loss):
        labels, preds = [], outputs.loss
        hint = "the loss has to be an array with a value per sample"
    elif labels and preds and _has_classes_last(metric, labels[0], preds[0]):
        name = type(metric).__name__
        hint = f"the classes are on the last axis: give the Estimator mx.metric.{name}(axis=-1)"
    what = "losses" if isinstance(metric, mx.metric.Loss) else "outputs"
    shapes = [f"labels of shape {_shapes_of(labels)} and "] if labels else []
    return (
        f"the metric {metric.name!r} fails on batches with {''.join(shapes)}{what} of shape "
        f"{_shapes_of(preds)} ({reason_of(error)}): {hint}"
    )


def _has_classes_last(metric: EvalMetric, label: object, pred: object) -> bool:
    """Return whether the classes are on the last axis, but the metric's axis is another one."""
    label_shape, pred_shape = getattr(label, "shape", ()), getattr(pred, "shape", ())
    is_elsewhere = getattr(metric, "axis", -1) not in (-1, len(pred_shape) - 1)
    return is_elsewhere and label_shape == pred_shape[:-1]


def _shapes_of(arrays: list[NDArray]) -> str:
    """Return the shapes, one for each context."""
    return " and ".join(
        str(tuple(array.shape))
        if hasattr(array, "shape")
        else f"none, but a {type(array).__name__}"
        for array in arrays
    )
