"""FitLoop: the loop over epochs and batches, with safe points, roll-backs and ways to stop."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import mxnet as mx
import numpy as np
from gluon_svrg._mxnet import as_legacy, full_data, has_shape, storage_types, trained_parameters
from gluon_svrg.batch.parts import cannot_compute
from gluon_svrg.batch.processor import evaluate_batch, fit_batch
from gluon_svrg.checkpoint.parts import frozen_parameters
from gluon_svrg.checkpoint.resume import checkpoint_directories, find_rollback_checkpoint
from gluon_svrg.checkpoint.run_state import restore_run
from gluon_svrg.checkpoint.storage import Checkpoint
from gluon_svrg.consistency import broadcast_weights, check_equal_weights
from gluon_svrg.events import (
    EvaluationEnd,
    EventHandler,
    HandlerList,
    HandlesNonFinite,
    Interrupted,
    NotFiniteError,
    ResumesInterrupted,
    Run,
)
from gluon_svrg.metrics.setup import LOSS, is_loss
from gluon_svrg.reporting.history import to_python_number
from gluon_svrg.rng import restoring_rng_on
from gluon_svrg.run import StopReason
from gluon_svrg.stalls import StallDetector
from gluon_svrg.stops import BATCH_END, StopRequests
from gluon_svrg.workers.batch_norm import averaged_running_statistics
from mxnet import gluon
from mxnet.gluon.contrib.estimator import StoppingHandler
from mxnet.ndarray import NDArray

# A loss that is not small by itself grows by so much only if a run diverges.
_DIVERGED, _SMALL_LOSS = 1000, 1e-3

# The combined answer of the handlers to an event: the largest one of all workers counts.
_NOTHING, _END_BY_COUNT, _END = range(3)


class FitLoop:
    """One call of `Estimator.fit`.

    The loops of several workers run in step: after each event that may request something they
    exchange the requests (:meth:`StopRequests.synchronize`), and all do the same.

    Parameters
    ----------
    estimator : Run
        The run; the loop updates its position, history and reason to stop.
    handlers : HandlerList
        The handlers that get its events.

    Attributes
    ----------
    stops : StopRequests
        The requests to end the run at the next safe point.
    roll_back_because : str or None
        Why the run goes back to the newest checkpoint after the current event; None if it does not.
    """

    def __init__(self, estimator: Run, handlers: HandlerList) -> None:
        self._estimator = estimator
        self._handlers = handlers
        # The remaining batches of an epoch that has begun, maybe in the resumed run; else None.
        self._batches: Iterator[Any] | None = None
        self._watch = StallDetector()
        self.stops = StopRequests(estimator, handlers)
        self.roll_back_because: str | None = None
        self._is_first_batch = estimator.workers.are_several
        self._first_losses: list[Any] | None = None  # read at the end, without waiting
        # This package's handlers request nothing there; a request of a user's counts at once.
        self._asks_after_safe_points = estimator.workers.are_several and any(
            not type(handler).__module__.startswith("gluon_svrg.")
            for handler in handlers.for_event("safe_point")
        )

    def run(self) -> dict[str, float]:
        """Train until there is a reason to stop; return the last losses that are not finite."""
        try:
            return self._run()
        finally:
            self.stops.close()

    def _run(self) -> dict[str, float]:
        estimator = self._estimator
        self._notify("train_begin")
        estimator.frozen_at_start = frozen_parameters(estimator)
        self._synchronize("train begin")
        self._apply_stop()
        if estimator.resumed_from is not None:
            self._restore(estimator.resumed_from)
        while self._should_continue():
            try:
                self._fit_epoch()
            except FloatingPointError as error:
                self._handle_non_finite(error)
            if self.roll_back_because is not None:
                self._roll_back()
        self._notify("train_end")
        return self._check_last_losses()

    def _check_last_losses(self) -> dict[str, float]:
        """Return the losses of the last epoch that are not finite; warn if the run has diverged."""
        estimator = self._estimator
        row = estimator.history[-1] if estimator.history else {}
        metrics = filter(is_loss, (*estimator.train_metrics, *estimator.val_metrics))
        losses = {metric.name: row[metric.name] for metric in metrics if metric.name in row}
        bad = {name: value for name, value in losses.items() if not math.isfinite(value)}
        is_said = estimator.stop_reason is StopReason.NOT_FINITE
        if is_said or not estimator.workers.is_first:
            return bad
        first, last = _mean(self._first_losses), losses.get(f"training {LOSS}", 0.0)
        if bad:
            estimator.logger.warning(
                "%s at the end of the run: try a smaller learning rate, or find the first bad "
                "batch with NaNGuardHandler()",
                " and ".join(f"{name} is {value:g}" for name, value in bad.items()),
            )
        elif first is not None and last > _DIVERGED * max(first, _SMALL_LOSS):
            estimator.logger.warning(
                "the training loss is %.3g in the last epoch and was %.3g in the first batch: the "
                "run has diverged; try a smaller learning rate, find_learning_rate() suggests one",
                last,
                first,
            )
        elif self._first_losses and (name := _name_of_bad_weight(estimator.trainer)) is not None:
            estimator.logger.warning(
                "parameter %r is NaN or infinite at the end of the run, and the loss does not show "
                "it, as a relu makes 0 of NaN: begin with other weights, or try a smaller learning "
                "rate",
                name,
            )
        return bad

    def _should_continue(self) -> bool:
        """Return whether to train another epoch, or to finish one that has begun."""
        return self._batches is not None or self._estimator.stop_reason is None

    def _begin_epoch(self) -> None:
        """Begin the next epoch."""
        estimator = self._estimator
        # Before the event, so that handlers see the data of this epoch.
        batches = self._open_batches()
        estimator.position.begin_epoch()
        try:
            with restoring_rng_on(Interrupted):
                self._notify("epoch_begin")
        except Interrupted:
            estimator.position.is_in_epoch = False
        else:
            self._batches = batches
        self._synchronize("epoch begin")
        if self.roll_back_because is None:
            self._reach_safe_point()

    def _open_batches(self) -> Iterator[Any]:
        """Return an iterator over the remaining batches of the current epoch."""
        position, data = self._estimator.position, self._estimator.data
        if position.is_cut or position.heard:
            return iter(())
        batches = self._watch.watch(
            data.iterate_epoch(position.epoch, position.batch_in_epoch), self._estimator
        )
        return batches if position.batch_in_epoch else at_least_one(batches, "train_data")

    def _fit_epoch(self) -> None:
        """Begin an epoch unless one has begun, train on its batches, and end it."""
        estimator = self._estimator
        if self._batches is None:
            self._begin_epoch()
        batches, self._batches = self._batches or iter(()), None
        if estimator.stop_reason is None and self.roll_back_because is None:
            run_epoch(estimator, self._handlers, batches, self._fit_batch, self._end_batch)
        # Without a batch there is no epoch to end.
        if self.roll_back_because is None and estimator.position.batch_in_epoch:
            self._end_epoch()

    def _end_epoch(self) -> None:
        """End the epoch, also one that was cut short."""
        estimator = self._estimator
        is_whole = estimator.stop_reason is None
        if estimator.workers.are_several:
            check_equal_weights(estimator)
        answer = self._synchronize("epoch end", self._notify_epoch_end(is_whole))
        if self.roll_back_because is not None:
            return
        # MXNet's StoppingHandler counts from 0, wherever the run began.
        if answer != _NOTHING or estimator.position.epoch + 1 == estimator.max_epoch:
            self.stops.agree(self._stop_reason(answer))
        if is_whole and estimator.stop_reason is None:
            estimator.position.end_epoch()
            self._reach_safe_point()

    def _notify_epoch_end(self, is_whole: bool) -> list[EventHandler]:
        """Call *epoch end* of the handlers that a run before the resume has not called already."""
        position = self._estimator.position
        waiting = _drop_by_class_name(self._handlers.for_event("epoch_end"), position.heard)
        try:
            return self._notify("epoch_end", only=waiting)
        except Interrupted as interrupted:
            index = [id(handler) for handler in waiting].index(id(interrupted.handler))
        self._synchronize("an evaluation that was broken off")
        if self.roll_back_because is None and is_whole:
            position.heard += [type(handler).__name__ for handler in waiting[:index]]
            self._reach_safe_point()
        rest = [
            handler for handler in waiting[index:] if not isinstance(handler, ResumesInterrupted)
        ]
        return self._notify("epoch_end", only=rest)

    def _fit_batch(self, batch: object) -> dict[str, Any]:
        estimator = self._estimator
        if self._is_first_batch:
            self._is_first_batch = False
            broadcast_weights(estimator, batch)
        _, label, pred, loss = fit_batch(estimator, batch)
        outputs = outputs_of_batch(label, pred, loss)
        if self._first_losses is None:
            self._first_losses = outputs["loss"]
        self._notify("gradient_ready", batch=batch, **outputs)
        return outputs

    def _end_batch(self, asked_to_stop: list[EventHandler]) -> bool:
        """Return whether this was the last batch of the epoch."""
        estimator = self._estimator
        answer = self._synchronize(BATCH_END, asked_to_stop)
        if self.roll_back_because is not None:
            return True
        estimator.position.end_batch()
        if estimator.position.batch == estimator.max_batch:
            self.stops.agree(StopReason.BATCHES_DONE)
        elif answer != _NOTHING:
            estimator.position.is_cut = True
        self._reach_safe_point()
        return answer != _NOTHING or estimator.stop_reason is not None

    def _synchronize(self, event: str, asked_to_stop: Iterable[EventHandler] = ()) -> int:
        """Exchange stop and roll-back requests between workers; return the combined answer."""
        position = self._estimator.position
        answer = max(
            (
                _END_BY_COUNT if isinstance(handler, StoppingHandler) else _END
                for handler in asked_to_stop
            ),
            default=_NOTHING,
        )
        answer, self.roll_back_because = self.stops.synchronize(
            f"{event}, epoch {position.epoch}, batch {position.batch}",
            answer,
            self.roll_back_because,
        )
        return answer

    def _reach_safe_point(self) -> None:
        self._apply_stop()
        self._notify("safe_point")
        if self._asks_after_safe_points:
            self._synchronize("safe point")
        if self._estimator.stop_reason is None and self.stops.reason is not None:
            # Requested meanwhile: a handler that writes a last checkpoint needs to know.
            self._apply_stop()
            self._notify("safe_point")

    def _apply_stop(self) -> None:
        self.stops.poll_handlers()
        self._estimator.stop_reason = self._estimator.stop_reason or self.stops.reason

    def _stop_reason(self, answer: int) -> StopReason:
        if answer == _END:
            return StopReason.HANDLER
        is_by_epochs = self._estimator.max_epoch is not None
        return StopReason.EPOCHS_DONE if is_by_epochs else StopReason.BATCHES_DONE

    def _restore(self, checkpoint: Checkpoint) -> None:
        """Restore the run from `checkpoint`, with the remaining batches of its epoch."""
        estimator = self._estimator
        estimator.resumed_from = checkpoint
        with restore_run(estimator, checkpoint):
            if estimator.position.is_in_epoch:
                self._batches = self._open_batches()
        if estimator.workers.is_first:
            estimator.logger.info("the run continues from the checkpoint %s", checkpoint.path)
        self._synchronize("resume")
        self._apply_stop()
        if estimator.stop_reason is None:
            self._resume_interrupted()
        position = estimator.position
        if estimator.max_epoch is not None and position.epoch >= estimator.max_epoch:
            self._stop_as_complete(StopReason.EPOCHS_DONE, f"epochs={estimator.max_epoch}")
        if estimator.max_batch is not None and position.batch >= estimator.max_batch:
            self._stop_as_complete(StopReason.BATCHES_DONE, f"batches={estimator.max_batch}")
        self._apply_stop()

    def _resume_interrupted(self) -> None:
        """Let handlers repeat what a stop interrupted; a safe point follows, as after a batch."""
        handlers = [
            handler for handler in self._handlers if isinstance(handler, ResumesInterrupted)
        ]
        done = [handler for handler in handlers if handler.resume_interrupted(self._estimator)]
        if done:
            self._synchronize("resume")
            self._reach_safe_point()

    def _stop_as_complete(self, reason: StopReason, target: str) -> None:
        self.stops.agree(reason)
        self._estimator.logger.info(
            "nothing to train: the checkpoint has reached %s already; give a larger number to "
            "continue",
            target,
        )

    def _roll_back(self) -> None:
        """Go back to the newest checkpoint, and drop requests to stop that came after it."""
        reason, self.roll_back_because = self.roll_back_because or "", None
        folders = checkpoint_directories(self._handlers)
        estimator = self._estimator
        checkpoint = find_rollback_checkpoint(folders, reason, estimator.logger, estimator.workers)
        self.stops.roll_back()
        estimator.stop_reason = None
        self._restore(checkpoint)

    def _handle_non_finite(self, error: FloatingPointError) -> None:
        """Pass a non-finite error to the handler that decides about NaN; without one, raise it."""
        handler = next((h for h in self._handlers if isinstance(h, HandlesNonFinite)), None)
        if handler is None or isinstance(error, NotFiniteError):
            raise error
        handler.on_non_finite(self._estimator, str(error))
        self._synchronize("a NaN or an infinity")
        self._apply_stop()

    def _notify(self, event: str, **details: Any) -> list[EventHandler]:
        return self._handlers.notify(event, self._estimator, **details)


def evaluate(
    estimator: Run,
    handlers: HandlerList,
    batches: Iterable[object],
    batch_axis: int,
    listeners: Iterable[EvaluationEnd] = (),
) -> dict[str, float]:
    """Return the values of the validation metrics over `batches`: see `Estimator.evaluate`.

    The `listeners` get them while the network still has the weights that were evaluated.
    """

    def run_batch(batch: object) -> dict[str, list[Any]]:
        try:
            _, label, pred, loss = evaluate_batch(estimator, batch, batch_axis)
        except mx.base.MXNetError as error:
            raise cannot_compute("val_data", batch, error) from error
        return outputs_of_batch(label, pred, loss)

    mx.nd.waitall()  # else the evaluation's time would include the training's last operators
    axis, estimator.batch_axis = estimator.batch_axis, batch_axis
    begin = time.perf_counter()
    for metric in estimator.val_metrics:
        metric.reset()
    try:
        handlers.notify("epoch_begin", estimator)
        with (
            estimator.evaluation_weights(),
            averaged_running_statistics(estimator.val_net, estimator.workers),
        ):
            run_epoch(
                estimator,
                handlers,
                at_least_one(batches, "val_data"),
                run_batch,
                is_over=lambda _: False,
            )
            handlers.notify("epoch_end", estimator)
            estimator.last_evaluation = {
                name: to_python_number(value)
                for metric in estimator.val_metrics
                for name, value in metric.get_name_value()
            }
            for listener in listeners:
                listener.evaluation_end(estimator)
    except BaseException as exception:
        handlers.notify_safely("exception_raised", estimator, exception=exception)
        raise
    finally:
        estimator.batch_axis = axis
        estimator.evaluation_seconds += time.perf_counter() - begin
    return estimator.last_evaluation


def run_epoch(
    estimator: Run,
    handlers: HandlerList,
    batches: Iterable[object],
    run_batch: Callable[[object], Mapping[str, Any]],
    is_over: Callable[[list[EventHandler]], bool],
) -> None:
    """Run one epoch, of training or of an evaluation.

    Parameters
    ----------
    estimator, handlers
        The argument of all events; the handlers that get them.
    batches : iterable
        The remaining batches of the epoch.
    run_batch : callable
        Takes a batch; returns the other arguments of *batch end*.
    is_over : callable
        Takes the handlers that answered *batch end* with True; returns whether to stop here.
    """
    for batch in batches:
        handlers.notify("batch_begin", estimator, batch=batch)
        outputs = run_batch(batch)
        if is_over(handlers.notify("batch_end", estimator, batch=batch, **outputs)):
            return


def outputs_of_batch(label: object, pred: object, loss: object) -> dict[str, list[Any]]:
    """Return the arguments of a batch's events as lists, with one item per context.

    A user's batch processor may return single arrays.
    """
    return {"label": _as_list(label), "pred": _as_list(pred), "loss": _as_list(loss)}


def at_least_one(batches: Iterable[object], name: str) -> Iterator[Any]:
    """Yield the batches; raise ValueError if there is none."""
    batch = None
    for batch in batches:
        yield batch
    if batch is None:
        raise ValueError(
            f"{name} gave no batch: it is empty, or it can be iterated only once; give a "
            "DataLoader or a list of batches"
        )


def _name_of_bad_weight(trainer: gluon.Trainer) -> str | None:
    """Return the name of the first trained parameter that has a NaN or an infinity."""
    for param in trained_parameters(trainer):
        if has_shape(param) and storage_types(param)[0] == "default":
            # A sum is not finite if one number is not, and zeros do not overflow.
            zeros = as_legacy(full_data(param)[0]) * 0
            if not np.isfinite(mx.nd.sum(zeros).asscalar()):
                return str(param.name)
    return None


def _mean(losses: list[Any] | None) -> float | None:
    """Return the mean of the losses of a batch; None if this worker has none."""
    arrays = [loss.asnumpy().ravel() for loss in losses or () if isinstance(loss, NDArray)]
    return float(np.concatenate(arrays).mean(dtype="float64")) if arrays else None


def _drop_by_class_name(handlers: list[EventHandler], names: list[str]) -> list[EventHandler]:
    """Return the handlers, without one handler for each class name in `names`."""
    left = list(names)
    rest = []
    for handler in handlers:
        if type(handler).__name__ in left:
            left.remove(type(handler).__name__)
        else:
            rest.append(handler)
    return rest


def _as_list(value: object) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else [value]
