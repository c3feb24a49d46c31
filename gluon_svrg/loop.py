"""FitLoop: the loop over epochs and batches, with safe points, roll-backs and ways to stop."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import mxnet as mx
import numpy as np
from gluon_svrg._mxnet.array_mode import to_nd
from gluon_svrg._mxnet.block import full_data, has_shape, storage_types
from gluon_svrg._mxnet.trainer import trained_parameters
from gluon_svrg.arrays.finite import are_finite
from gluon_svrg.batch.processor import fit_batch, outputs_of_batch
from gluon_svrg.checkpoint.handler import checkpoint_directories
from gluon_svrg.checkpoint.network_state import frozen_parameters
from gluon_svrg.checkpoint.resume import find_rollback_checkpoint
from gluon_svrg.checkpoint.run_state import restore_run
from gluon_svrg.checkpoint.storage import Checkpoint
from gluon_svrg.consistency import broadcast_weights, check_equal_weights
from gluon_svrg.data.base import at_least_one
from gluon_svrg.evaluation.phase import EvaluationPhase
from gluon_svrg.events import (
    EventHandler,
    HandlerList,
    Interrupted,
    NotFiniteError,
    Run,
    SafePoint,
)
from gluon_svrg.metrics.setup import LOSS, is_loss
from gluon_svrg.rng import collect_rng_states, restoring_rng_on, set_rng_states
from gluon_svrg.run import Phase
from gluon_svrg.stalls import StallDetector
from gluon_svrg.stops import BATCH_END, StopReason, StopRequests
from mxnet import gluon
from mxnet.ndarray import NDArray

# A loss that does not start near 0 grows by this factor only if the run diverges.
_DIVERGED, _SMALL_LOSS = 1000, 1e-3


class FitLoop:
    """One call of `Estimator.fit`.

    The loops of several workers run in step. After each event in which a handler may request
    something, the workers exchange their requests (:meth:`StopRequests.synchronize`), and all of
    them do the same.

    Parameters
    ----------
    estimator : Run
        The run; the loop updates its position, history and reason to stop.
    stops : StopRequests
        The requests to end the run at the next safe point.
    handlers : HandlerList
        The handlers that get its events.

    Attributes
    ----------
    evaluations : EvaluationPhase
        The evaluations of the run.
    """

    def __init__(self, estimator: Run, stops: StopRequests, handlers: HandlerList) -> None:
        self._estimator = estimator
        self._handlers = handlers
        # The remaining batches of the current epoch, which may be one that a resume continues.
        # None between epochs.
        self._batches: Iterator[Any] | None = None
        self._watch = StallDetector()
        self._stops = stops
        self.evaluations = EvaluationPhase(estimator, handlers)
        self._is_first_batch = estimator.workers.is_distributed
        self._first_losses: list[Any] | None = None  # read at the end, without waiting
        # A request at a safe point takes effect immediately.
        self._asks_after_safe_points = estimator.workers.is_distributed and any(
            isinstance(handler, SafePoint) and handler.may_request for handler in handlers
        )

    def run(self) -> dict[str, float]:
        """Train until there is a reason to stop; return the non-finite ones of the last losses."""
        try:
            return self._run()
        finally:
            self._stops.close()

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
            if self._rolls_back:
                self._roll_back()
        self._notify("train_end")
        return self._check_last_losses()

    def _check_last_losses(self) -> dict[str, float]:
        """Return the losses of the last epoch that are not finite; warn if the run has diverged."""
        estimator = self._estimator
        row = estimator.history[-1] if estimator.history else {}
        evaluated = [metric for metrics in self.evaluations.metrics.values() for metric in metrics]
        metrics = filter(is_loss, (*estimator.train_metrics, *evaluated))
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
                "run has diverged; try a smaller learning rate (find_learning_rate() suggests one)",
                last,
                first,
            )
        elif self._first_losses and (name := _name_of_bad_weight(estimator.trainer)) is not None:
            estimator.logger.warning(
                "parameter %r is NaN or infinite at the end of the run. The loss does not show it, "
                "because a relu turns NaN into 0: start from other weights, or try a smaller "
                "learning rate",
                name,
            )
        return bad

    def _should_continue(self) -> bool:
        """Return whether to train another epoch, or to finish the current one."""
        return self._batches is not None or self._estimator.stop_reason is None

    def _begin_epoch(self) -> None:
        """Begin the next epoch."""
        estimator = self._estimator
        # Done before the event, so that handlers get the data of this epoch.
        batches = self._open_batches()
        estimator.position.begin_epoch()
        try:
            with restoring_rng_on(Interrupted):
                self._notify("epoch_begin")
        except Interrupted:
            estimator.position.phase = Phase.BETWEEN
        else:
            self._batches = batches
        self._synchronize("epoch begin")
        if not self._rolls_back:
            self._reach_safe_point()

    def _open_batches(self) -> Iterator[Any]:
        """Return an iterator over the remaining batches of the current epoch."""
        position, data = self._estimator.position, self._estimator.data
        if position.is_trained:
            return iter(())
        batches = self._watch.watch(
            data.iterate_epoch(position.epoch, position.batch_in_epoch), self._estimator
        )
        return batches if position.batch_in_epoch else at_least_one(batches, "train_data")

    def _fit_epoch(self) -> None:
        """Begin an epoch unless one has begun, train on its batches, and end it."""
        position = self._estimator.position
        if self._batches is None:
            self._begin_epoch()
        elif self.evaluations.is_interrupted_after_batch():
            self._evaluate_after_batch()
            if not self._rolls_back:
                self._reach_safe_point()
        batches, self._batches = self._batches or iter(()), None
        if self._continues():
            self._train(batches)
        if self._continues():
            position.is_trained = True
        # If there was no batch, there is no epoch to end.
        if not self._rolls_back and position.batch_in_epoch:
            self._end_epoch()

    def _train(self, batches: Iterator[Any]) -> None:
        """Train on the remaining batches of the epoch."""
        rng_states = collect_rng_states()
        for number, batch in enumerate(batches):
            try:
                self._notify("batch_begin", batch=batch)
            except Interrupted:  # a resume repeats the pass before its first batch
                if number > 0:
                    raise  # the states before this batch are unknown
                set_rng_states(rng_states)
                self._synchronize("batch begin")
                self._reach_safe_point()
                return
            outputs = self._fit_batch(batch)
            asked_to_stop = self._notify("batch_end", batch=batch, **outputs)
            if self._end_batch(asked_to_stop, batch=batch, **outputs):
                return

    def _end_epoch(self) -> None:
        """End the epoch, even if it was cut short."""
        estimator = self._estimator
        is_whole = estimator.stop_reason is None
        if estimator.position.phase is not Phase.BETWEEN:
            self._complete_training(is_whole)
        if self._rolls_back:
            return
        is_to_end = self._synchronize("epoch end", self._notify("epoch_end"))
        if self._rolls_back:
            return
        if is_to_end:
            self._stops.agree(StopReason.HANDLER)
        elif estimator.position.epoch + 1 == estimator.max_epoch:
            self._stops.agree(StopReason.EPOCHS_DONE)
        if is_whole and estimator.stop_reason is None:
            estimator.position.end_epoch()
            self._reach_safe_point()

    def _complete_training(self, is_whole: bool) -> None:
        """Take the steps that are due, and evaluate; after a complete epoch add a safe point."""
        estimator, position = self._estimator, self._estimator.position
        self._notify("steps_due")
        if estimator.workers.is_distributed:
            check_equal_weights(estimator)
        if position.phase is Phase.EVALUATING and not is_whole:
            return  # a stop has interrupted the evaluation after the last batch
        self.evaluations.after_epoch()
        self._synchronize("evaluation")
        if self._rolls_back or not is_whole:
            return
        if position.phase is Phase.BETWEEN:
            # A stop takes effect after the end of the epoch, which comes next.
            self._notify("safe_point")
        else:
            self._reach_safe_point()

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

    def _end_batch(self, asked_to_stop: list[EventHandler], **details: Any) -> bool:
        """Return whether this was the last batch of the epoch."""
        estimator, position = self._estimator, self._estimator.position
        is_to_end = self._synchronize(BATCH_END, asked_to_stop)
        if self._rolls_back:
            return True
        position.end_batch()
        position.is_trained = is_to_end
        if position.batch == estimator.max_batch:
            self._stops.agree(StopReason.BATCHES_DONE)
        self._evaluate_after_batch(**details)
        if not self._rolls_back:
            self._reach_safe_point()
        return not self._continues() or is_to_end

    def _evaluate_after_batch(self, **details: Any) -> None:
        """Run the evaluations that are due after a batch."""
        if self.evaluations.after_batch(**details):
            self._synchronize("evaluation")

    @property
    def _rolls_back(self) -> bool:
        return self._estimator.state.roll_back_because is not None

    def _continues(self) -> bool:
        return self._estimator.stop_reason is None and not self._rolls_back

    def _synchronize(self, event: str, asked_to_stop: list[EventHandler] | None = None) -> bool:
        """Exchange requests between workers; return whether a handler has answered with True."""
        position, state = self._estimator.position, self._estimator.state
        is_to_end, state.roll_back_because = self._stops.synchronize(
            f"{event}, epoch {position.epoch}, batch {position.batch}",
            bool(asked_to_stop),
            state.roll_back_because,
        )
        return is_to_end

    def _reach_safe_point(self) -> None:
        self._apply_stop()
        self._notify("safe_point")
        if self._asks_after_safe_points:
            self._synchronize("safe point")
        if self._estimator.stop_reason is None and self._stops.reason is not None:
            # A stop came meanwhile. A handler that writes the last checkpoint needs to know of it.
            self._apply_stop()
            self._notify("safe_point")

    def _apply_stop(self) -> None:
        self._stops.check_deadline()
        self._estimator.stop_reason = self._estimator.stop_reason or self._stops.reason

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
        position = estimator.position
        if estimator.max_epoch is not None and position.epoch >= estimator.max_epoch:
            self._stop_as_complete(StopReason.EPOCHS_DONE, f"epochs={estimator.max_epoch}")
        if estimator.max_batch is not None and position.batch >= estimator.max_batch:
            self._stop_as_complete(StopReason.BATCHES_DONE, f"batches={estimator.max_batch}")
        self._apply_stop()

    def _stop_as_complete(self, reason: StopReason, target: str) -> None:
        self._stops.agree(reason)
        self._estimator.logger.info(
            "nothing to train: the checkpoint has reached %s already; give a larger number to "
            "continue",
            target,
        )

    def _roll_back(self) -> None:
        """Go back to the newest checkpoint, and drop requests to stop that came after it."""
        estimator = self._estimator
        reason, estimator.state.roll_back_because = estimator.state.roll_back_because or "", None
        folders = checkpoint_directories(self._handlers)
        checkpoint = find_rollback_checkpoint(folders, reason, estimator.logger, estimator.workers)
        self._stops.roll_back()
        estimator.stop_reason = None
        self._restore(checkpoint)

    def _handle_non_finite(self, error: FloatingPointError) -> None:
        """Call the handler that deals with NaN; if there is none, raise the error."""
        on_non_finite = self._estimator.on_non_finite
        if on_non_finite is None or isinstance(error, NotFiniteError):
            raise error
        on_non_finite(self._estimator, str(error))
        self._synchronize("a NaN or an infinity")
        self._apply_stop()

    def _notify(self, event: str, **details: Any) -> list[EventHandler]:
        return self._handlers.notify(event, self._estimator, **details)


def _name_of_bad_weight(trainer: gluon.Trainer) -> str | None:
    """Return the name of the first trained parameter that has a NaN or an infinity."""
    params = [
        param
        for param in trained_parameters(trainer)
        if has_shape(param) and storage_types(param)[0] == "default"
    ]
    weights = [to_nd(full_data(param)[0]) for param in params]
    if are_finite(weights):
        return None
    for param, weight in zip(params, weights, strict=True):
        # A sum is not finite if one number is not, and zeros do not overflow.
        if not np.isfinite(mx.nd.sum(weight * 0).asscalar()):
            return str(param.name)
    return None


def _mean(losses: list[Any] | None) -> float | None:
    """Return the mean of the losses of a batch; None if this worker has none."""
    arrays = [loss.asnumpy().ravel() for loss in losses or () if isinstance(loss, NDArray)]
    return float(np.concatenate(arrays).mean(dtype="float64")) if arrays else None
