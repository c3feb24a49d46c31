"""MetricHandler: updates metrics without waiting for the device at each batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import mxnet as mx
import numpy as np
from gluon_svrg._mxnet import as_legacy, reason_of
from gluon_svrg.arrays.encoding import data_from_bytes, data_to_bytes
from gluon_svrg.arrays.nested import tree_leaves, tree_map
from gluon_svrg.arrays.samples import with_axis
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
)
from gluon_svrg.metrics.setup import LOSS
from gluon_svrg.metrics.sync import (
    Outputs,
    contribution,
    update_with_contributions,
)
from gluon_svrg.metrics.update import update_metric, update_with_losses
from gluon_svrg.workers import SingleProcess, Workers
from mxnet.gluon.contrib import estimator as mx_estimator
from mxnet.ndarray import NDArray

# Metrics that count samples: one update with several batches' samples gives the same counts.
_MERGEABLE = (mx.metric.Accuracy, mx.metric.TopKAccuracy)
_READERS = ("get", "get_global", "get_name_value", "get_global_name_value")


class MetricHandler(
    mx_estimator.MetricHandler, EpochBegin, BatchEnd, EpochEnd, ExceptionRaised, Stateful
):
    """MXNet's MetricHandler, which does not wait for the device at each batch.

    `EvalMetric.update` reads the network's outputs, so it waits for the device, and the device is
    then idle until the next batch. This handler collects the outputs of several batches, and
    updates the metrics when it has enough of them or when a metric is read. So whenever a metric
    is read, it has the value that it would have with MXNet's handler (for a loss, with fewer
    rounding errors in the sum).

    Over several workers, the metrics are those of the whole batches and the same on all workers.
    The workers update them together, every few batches and at the end of an epoch; a read in
    between gives the value of the last update. ``Accuracy``, ``TopKAccuracy`` and ``Loss`` are
    added up; for all other metrics each worker gets the labels and outputs of all.

    Parameters
    ----------
    metrics : EvalMetric or list of EvalMetric
        What to update.
    priority : float
        That of MXNet's handler: before the handlers that read metrics.
    max_batches : int
        The metrics are updated after at most this many batches.
    max_bytes : int
        The metrics are updated when the outputs take this many bytes.

    Raises
    ------
    ValueError
        After the first batch, if a metric cannot be updated with its outputs; after a later one
        if they are of another shape.
    """

    state_key = "metrics"
    supports_workers = True

    def __init__(
        self,
        metrics: mx.metric.EvalMetric | list[mx.metric.EvalMetric],
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
        self._workers: Workers = SingleProcess()
        self._batch_axis = 0
        self._count = 0  # of batches since the metrics were reset
        self._period: int | None = None

    def epoch_begin(self, estimator: Run, *args: Any, **kwargs: Any) -> None:
        """Reset the metrics."""
        self._listen()
        self._count = 0
        super().epoch_begin(estimator, *args, **kwargs)

    def batch_end(self, estimator: Run, *args: Any, **kwargs: Any) -> None:
        """Keep the outputs of the batch."""
        outputs = Outputs(
            # Copied: the data may write its next labels into the same arrays.
            [tree_map(lambda array: as_legacy(array).copy(), label) for label in kwargs["label"]],
            [tree_map(_as_legacy, pred) for pred in kwargs["pred"]],
            [with_axis(as_legacy(loss)) for loss in kwargs["loss"]],
        )
        self._waiting.append(outputs)
        self._count += 1
        if self._are_several(estimator):
            if self._period is None or len(self._waiting) >= self._period:
                self.flush()
            return
        self._nbytes += sum(_nbytes(array) for array in tree_leaves(outputs))
        if not self._has_worked:
            # An error of a metric is raised after the first batch.
            self.flush()
            self._has_worked = True
        elif len(self._waiting) >= self._max_batches or self._nbytes >= self._max_bytes:
            self.flush()

    def epoch_end(self, estimator: Run, *args: Any, **kwargs: Any) -> None:
        """Update the metrics with the outputs that were kept."""
        self._are_several(estimator)
        self.flush()
        self._stop_listening()

    def exception_raised(self, estimator: Run, *args: Any, **kwargs: Any) -> None:
        """Update the metrics, and stop watching for reads of them."""
        try:
            if not self._workers.is_distributed:  # the others do something else now
                self.flush()
        finally:
            self._stop_listening()

    def state_dict(self, estimator: Run) -> State:
        """Bring the metrics up to date; a checkpoint has their values without this handler."""
        if self._are_several(estimator):
            given = contribution(self.metrics, self._waiting, _update_merged)
            return self._workers.reduction(given, self._update_together)  # type: ignore[no-any-return]
        self.flush()
        return {}

    def load_state_dict(self, estimator: Run, state: State) -> None:
        """Watch for reads of the metrics, if an epoch is under way."""
        self._stop_listening()
        if estimator.position.is_in_epoch:
            self._listen()

    def flush(self) -> None:
        """Update the metrics with the outputs that were kept; on all workers together."""
        if self._workers.is_distributed:
            self._flush_together()
            return
        waiting, self._waiting, self._nbytes = self._waiting, [], 0
        if not waiting:
            return
        merged = _merge(waiting)
        for metric in self.metrics:
            _update(metric, waiting, merged)

    def flush_for_reader(self) -> None:
        """Update the metrics because one is read, unless that needs the other workers."""
        if not self._workers.is_distributed:
            self.flush()

    def _flush_together(self) -> None:
        given = contribution(self.metrics, self._waiting, _update_merged)
        label = f"metrics after {self._count} batches"
        contents = self._workers.all_gather_bytes(data_to_bytes(given), label)
        self._update_together([data_from_bytes(content) for content in contents])

    def _update_together(self, contributions: list[State]) -> State:
        """Update the metrics with what all workers contribute; return the state, which is empty."""
        nbytes = update_with_contributions(
            self.metrics, contributions, _update_merged, self._batch_axis
        )
        if self._period is None and self._waiting:
            # By the first batch, which is the same on all workers.
            self._period = max(1, min(self._max_batches, self._max_bytes // max(1, nbytes)))
        self._waiting = []
        return {}

    def _are_several(self, estimator: Run) -> bool:
        if isinstance(estimator, Run):
            self._workers, self._batch_axis = estimator.workers, estimator.batch_axis
        return self._workers.is_distributed

    def _listen(self) -> None:
        self._waiting.clear()
        self._nbytes = 0
        self._stop_listening()  # an exception may have ended the last epoch
        for metric in _with_parts(self.metrics):
            for name in _READERS:
                # On the object itself: it is the user's, who may read it at any time.
                vars(metric)[name] = _Reader(self, getattr(metric, name), name in vars(metric))

    def _stop_listening(self) -> None:
        for metric in _with_parts(self.metrics):
            for name in _READERS:
                reader = vars(metric).get(name)
                if isinstance(reader, _Reader):
                    del vars(metric)[name]
                    if reader.is_of_the_object:
                        vars(metric)[name] = reader.read


class _Reader(NamedTuple):
    """Reads a metric after bringing it up to date."""

    handler: MetricHandler
    read: Callable[[], Any]
    is_of_the_object: bool

    def __call__(self) -> Any:
        self.handler.flush_for_reader()
        return self.read()


def _update_merged(metric: mx.metric.EvalMetric, waiting: list[Outputs]) -> None:
    _update(metric, waiting, _merge(waiting))


def _update(metric: mx.metric.EvalMetric, waiting: list[Outputs], merged: Outputs | None) -> None:
    """Update `metric` with all outputs; raise ValueError if they do not suit it."""
    try:
        _update_unchecked(metric, waiting, merged)
    except (FloatingPointError, MemoryError):
        raise  # others decide about a NaN
    except Exception as e:
        raise ValueError(_what_failed(metric, waiting[0], e)) from e


def _update_unchecked(
    metric: mx.metric.EvalMetric, waiting: list[Outputs], merged: Outputs | None
) -> None:
    if merged and type(metric) is mx.metric.Loss:
        _add_losses(metric, waiting, merged)
    elif isinstance(metric, mx.metric.Loss):
        for outputs in waiting:
            # One by one, with the same bits, whatever the others are that wait with it.
            own = _merge([outputs]) if type(metric) is mx.metric.Loss else None
            if own:
                _add_losses(metric, [outputs], own)
            else:
                update_with_losses(metric, outputs.loss)
    elif merged and type(metric) in _MERGEABLE:
        update_metric(metric, merged.label, merged.pred)
    else:
        for outputs in waiting:
            update_metric(metric, outputs.label, outputs.pred)


def _what_failed(metric: mx.metric.EvalMetric, outputs: Outputs, error: Exception) -> str:
    """Return which metric cannot be updated, with what, why, and the way out."""
    labels, preds = outputs.label, outputs.pred
    hint = "give the Estimator a metric that suits them, or none"
    if isinstance(metric, mx.metric.Loss):
        labels, preds = [], outputs.loss
        hint = "the loss has to be an array with a value per sample"
    elif _has_classes_last(metric, labels[0], preds[0]):
        name = type(metric).__name__
        hint = f"the classes are on the last axis: give the Estimator mx.metric.{name}(axis=-1)"
    what = "losses" if isinstance(metric, mx.metric.Loss) else "outputs"
    shapes = [f"labels of shape {_shapes_of(labels)} and "] if labels else []
    return (
        f"the metric {metric.name!r} fails on batches with {''.join(shapes)}{what} of shape "
        f"{_shapes_of(preds)} ({reason_of(error)}): {hint}"
    )


def _has_classes_last(metric: mx.metric.EvalMetric, label: object, pred: object) -> bool:
    """Return whether a metric looks for classes on another axis than the last, and is wrong."""
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


def _merge(waiting: list[Outputs]) -> Outputs | None:
    """Return all outputs as one array per context, or None if their shapes do not allow it."""
    by_context: dict[mx.Context, list[tuple[NDArray, ...]]] = {}
    for outputs in waiting:
        if not len(outputs.label) == len(outputs.pred) == len(outputs.loss):
            return None
        for arrays in zip(*outputs, strict=True):
            if not all(isinstance(array, NDArray) for array in arrays):
                return None
            by_context.setdefault(arrays[0].ctx, []).append(arrays)
    merged = Outputs([], [], [])
    for rows in by_context.values():
        if len({tuple((a.shape[1:], a.dtype, a.ctx) for a in arrays) for arrays in rows}) > 1:
            return None
        for name, arrays in zip(merged._fields, zip(*rows, strict=True), strict=True):
            joined = mx.nd.concat(*arrays, dim=0) if len(arrays) > 1 else arrays[0]
            # In float32 a sum over thousands of losses has greater rounding errors than one over a
            # batch.
            getattr(merged, name).append(joined.astype("float64") if name == "loss" else joined)
    return merged


def _add_losses(metric: mx.metric.Loss, waiting: list[Outputs], merged: Outputs) -> None:
    """Update `metric` by one sum per batch, in order, so that each bit is as without waiting."""
    values = {array.ctx: array.asnumpy() for array in merged.loss}
    used = dict.fromkeys(values, 0)
    for outputs in waiting:
        for loss in outputs.loss:
            begin = used[loss.ctx]
            end = used[loss.ctx] = begin + loss.shape[0]
            total = float(values[loss.ctx][begin:end].sum())
            metric.sum_metric += total
            metric.global_sum_metric += total
            metric.num_inst += loss.size
            metric.global_num_inst += loss.size


def _with_parts(metrics: list[mx.metric.EvalMetric]) -> list[mx.metric.EvalMetric]:
    """Return the metrics and those that they are composed of."""
    parts = [
        part
        for metric in metrics
        if isinstance(metric, mx.metric.CompositeEvalMetric)
        for part in metric.metrics
    ]
    return [*metrics, *_with_parts(parts)] if parts else list(metrics)


def _as_legacy(value: object) -> object:
    """Return an array as an NDArray; anything else, which a user's metric may take, as it is."""
    return as_legacy(value) if isinstance(value, NDArray) else value


def _nbytes(array: NDArray) -> int:
    return array.size * np.dtype(array.dtype).itemsize


def missing_loss(
    given: list[EventHandler], metrics: list[mx.metric.EvalMetric]
) -> list[EventHandler]:
    """Return a MetricHandler for the loss, if MetricHandlers are given without it."""
    updated = [
        id(metric)
        for handler in given
        if isinstance(handler, mx_estimator.MetricHandler)
        for metric in handler.metrics
    ]
    missing = [m for m in metrics if id(m) not in updated and m.name.split(" ")[1:] == [LOSS]]
    return [MetricHandler(missing)] if updated and missing else []
