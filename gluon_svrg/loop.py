"""The loop of a run: epochs of batches, the safe points between them, and the ways back and out."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import mxnet as mx
from gluon_svrg.checkpoint.resume import checkpoint_directories, find_rollback_checkpoint
from gluon_svrg.checkpoint.run_state import restore_run
from gluon_svrg.checkpoint.storage import Checkpoint
from gluon_svrg.data.stalls import StallDetector
from gluon_svrg.events import (
    CatchesUp,
    DecidesAboutNaN,
    EvaluationEnd,
    EventHandler,
    HandlerList,
    Interrupted,
    NotFiniteError,
    Run,
)
from gluon_svrg.run.batch_processor import evaluate_batch, fit_batch
from gluon_svrg.run.generators import host_states, set_host_states
from gluon_svrg.run.history import plain_figure
from gluon_svrg.run.position import FitResult, StopReason
from gluon_svrg.run.running_statistics import evened_out
from gluon_svrg.run.stops import BATCH_END, StopRequests
from gluon_svrg.run.together import begin_alike, check_weights
from mxnet.gluon.contrib.estimator import StoppingHandler

# What the handlers of an event have answered: the greater one counts, of all workers.
_NOTHING, _END_BY_COUNT, _END = range(3)


class FitLoop:
    """One call of `Estimator.fit`.

    Over several workers the loops of all of them run in step: after each event that may ask for
    something they exchange what was asked (:meth:`StopRequests.exchange`), and all do the same.

    Parameters
    ----------
    estimator : Run
        Whose position, history and reason to stop it moves on.
    handlers : HandlerList
        Who hears its events.

    Attributes
    ----------
    stops : StopRequests
        The requests to end the run at the next safe point.
    roll_back_because : str or None
        Why the run is to go back to the newest checkpoint after the event that is under way.
    """

    def __init__(self, estimator: Run, handlers: HandlerList) -> None:
        self._estimator = estimator
        self._handlers = handlers
        # Those that are left of an epoch that has begun, here or in the run resumed; else None.
        self._batches: Iterator[Any] | None = None
        self._watch = StallDetector()
        self.stops = StopRequests(estimator, handlers)
        self.roll_back_because: str | None = None
        self._is_first_batch = estimator.workers.are_several
        # Ours ask for nothing there; what a user's own asks for counts at once, on all workers.
        self._asks_after_safe_points = estimator.workers.are_several and any(
            not type(handler).__module__.startswith("gluon_svrg.")
            for handler in handlers.hearing("safe_point")
        )

    def run(self) -> FitResult:
        """Train until there is a reason to stop."""
        try:
            return self._run()
        finally:
            self.stops.end()

    def _run(self) -> FitResult:
        estimator = self._estimator
        self._notify("train_begin")
        self._exchange("train begin")
        self._accept_stop()
        if estimator.resumed_from is not None:
            self._go_on_from(estimator.resumed_from)
        while self._is_to_go_on():
            try:
                self._fit_epoch()
            except FloatingPointError as error:
                self._report(error)
            if self.roll_back_because is not None:
                self._roll_back()
        self._notify("train_end")
        epochs_run = estimator.position.epoch + (estimator.position.batch_in_epoch > 0)
        assert estimator.stop_reason is not None  # or the loop would not have ended
        return FitResult(estimator.stop_reason, epochs_run, estimator.history)

    def _is_to_go_on(self) -> bool:
        """Return whether another epoch is to be trained, or one that was under way to end."""
        return self._batches is not None or self._estimator.stop_reason is None

    def _begin_epoch(self) -> None:
        """Begin the next epoch."""
        estimator = self._estimator
        # Before the event: what a handler asks of the data there is of this epoch.
        batches = self._ask_for_batches()
        drawn = host_states()
        estimator.position.begin_epoch()
        try:
            self._notify("epoch_begin")
        except Interrupted:
            # As if it had not begun: after a resume the full pass draws the same numbers again.
            set_host_states(drawn)
            estimator.position.is_in_epoch = False
        else:
            self._batches = batches
        self._exchange("epoch begin")
        if self.roll_back_because is None:
            self._reach_safe_point()

    def _ask_for_batches(self) -> Iterator[Any]:
        """Return the batches that are left of the epoch at which the run stands."""
        position, data = self._estimator.position, self._estimator.data
        if position.is_cut or position.heard:
            return iter(())
        batches = self._watch.watch(
            data.iterate_epoch(position.epoch, position.batch_in_epoch), self._estimator
        )
        return batches if position.batch_in_epoch else at_least_one(batches, "train_data")

    def _fit_epoch(self) -> None:
        """Begin an epoch, unless one is under way, train on its batches, and end it."""
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
        """End the epoch, or what has been trained of it."""
        estimator = self._estimator
        is_whole = estimator.stop_reason is None
        if estimator.workers.are_several:
            check_weights(estimator)
        answer = self._exchange("epoch end", self._notify_of_epoch_end(is_whole))
        if self.roll_back_because is not None:
            return
        # MXNet's StoppingHandler counts from 0, wherever the run began.
        if answer != _NOTHING or estimator.position.epoch + 1 == estimator.max_epoch:
            self.stops.decide(self._reason_of(answer))
        if is_whole and estimator.stop_reason is None:
            estimator.position.end_epoch()
            self._reach_safe_point()

    def _notify_of_epoch_end(self, is_whole: bool) -> list[EventHandler]:
        """Call those that have not heard it before a resume; a stop may break off an evaluation."""
        position = self._estimator.position
        waiting = _without(self._handlers.hearing("epoch_end"), position.heard)
        try:
            return self._notify("epoch_end", only=waiting)
        except Interrupted as interrupted:
            index = [id(handler) for handler in waiting].index(id(interrupted.handler))
        self._exchange("an evaluation that was broken off")
        if self.roll_back_because is None and is_whole:
            position.heard += [type(handler).__name__ for handler in waiting[:index]]
            self._reach_safe_point()
        rest = [handler for handler in waiting[index:] if not isinstance(handler, CatchesUp)]
        return self._notify("epoch_end", only=rest)

    def _fit_batch(self, batch: object) -> dict[str, Any]:
        estimator = self._estimator
        if self._is_first_batch:
            self._is_first_batch = False
            begin_alike(estimator, batch)
        _, label, pred, loss = fit_batch(estimator, batch)
        outputs = outputs_of_batch(label, pred, loss)
        self._notify("gradient_ready", batch=batch, **outputs)
        return outputs

    def _end_batch(self, asked_to_stop: list[EventHandler]) -> bool:
        """Return whether no batch is to follow in this epoch."""
        estimator = self._estimator
        answer = self._exchange(BATCH_END, asked_to_stop)
        if self.roll_back_because is not None:
            return True
        estimator.position.end_batch()
        if estimator.position.batch == estimator.max_batch:
            self.stops.decide(StopReason.BATCHES_DONE)
        elif answer != _NOTHING:
            estimator.position.is_cut = True
        self._reach_safe_point()
        return answer != _NOTHING or estimator.stop_reason is not None

    def _exchange(self, event: str, asked_to_stop: Iterable[EventHandler] = ()) -> int:
        """Let all workers know what any of them is asked for; return what handlers answered."""
        position = self._estimator.position
        own = max(
            (
                _END_BY_COUNT if isinstance(handler, StoppingHandler) else _END
                for handler in asked_to_stop
            ),
            default=_NOTHING,
        )
        answer, self.roll_back_because = self.stops.exchange(
            f"{event}, epoch {position.epoch}, batch {position.batch}", own, self.roll_back_because
        )
        return answer

    def _reach_safe_point(self) -> None:
        self._accept_stop()
        self._notify("safe_point")
        if self._asks_after_safe_points:
            self._exchange("safe point")
        if self._estimator.stop_reason is None and self.stops.reason is not None:
            # It has come meanwhile: whoever writes a last checkpoint is to know.
            self._accept_stop()
            self._notify("safe_point")

    def _accept_stop(self) -> None:
        self.stops.ask()
        self._estimator.stop_reason = self._estimator.stop_reason or self.stops.reason

    def _reason_of(self, answer: int) -> StopReason:
        if answer == _END:
            return StopReason.HANDLER
        is_by_epochs = self._estimator.max_epoch is not None
        return StopReason.EPOCHS_DONE if is_by_epochs else StopReason.BATCHES_DONE

    def _go_on_from(self, checkpoint: Checkpoint) -> None:
        """Put everything back, and ask for the batches that are left of the epoch under way."""
        estimator = self._estimator
        estimator.resumed_from = checkpoint
        with restore_run(estimator, checkpoint):
            if estimator.position.is_in_epoch:
                self._batches = self._ask_for_batches()
        self._exchange("resume")
        self._accept_stop()
        if estimator.stop_reason is None:
            self._catch_up()
        position = estimator.position
        if estimator.max_epoch is not None and position.epoch >= estimator.max_epoch:
            self._note_that_all_is_done(StopReason.EPOCHS_DONE, f"epochs={estimator.max_epoch}")
        if estimator.max_batch is not None and position.batch >= estimator.max_batch:
            self._note_that_all_is_done(StopReason.BATCHES_DONE, f"batches={estimator.max_batch}")
        self._accept_stop()

    def _catch_up(self) -> None:
        """Let handlers do what a stop has broken off; as after a batch, a safe point follows."""
        handlers = [handler for handler in self._handlers if isinstance(handler, CatchesUp)]
        done = [handler for handler in handlers if handler.catch_up(self._estimator)]
        if done:
            self._exchange("resume")
            self._reach_safe_point()

    def _note_that_all_is_done(self, reason: StopReason, target: str) -> None:
        self.stops.decide(reason)
        self._estimator.logger.info(
            "the checkpoint has reached %s already: there is nothing to train; give a greater "
            "number to continue",
            target,
        )

    def _roll_back(self) -> None:
        """Go back to the newest checkpoint, and forget why the run was to end after it."""
        reason, self.roll_back_because = self.roll_back_because or "", None
        folders = checkpoint_directories(self._handlers)
        estimator = self._estimator
        checkpoint = find_rollback_checkpoint(folders, reason, estimator.logger, estimator.workers)
        self.stops.roll_back()
        estimator.stop_reason = None
        self._go_on_from(checkpoint)

    def _report(self, error: FloatingPointError) -> None:
        """Let a handler that decides about NaN do so with what another has found, or raise."""
        judge = next((h for h in self._handlers if isinstance(h, DecidesAboutNaN)), None)
        if judge is None or isinstance(error, NotFiniteError):
            raise error
        judge.report(self._estimator, str(error))
        self._exchange("a NaN or an infinity")
        self._accept_stop()

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

    The `listeners` hear of them while the network still has the weights that were evaluated.
    """

    def run_batch(batch: object) -> dict[str, list[Any]]:
        _, label, pred, loss = evaluate_batch(estimator, batch, batch_axis)
        return outputs_of_batch(label, pred, loss)

    mx.nd.waitall()  # what the training still computes is not the evaluation's
    axis, estimator.batch_axis = estimator.batch_axis, batch_axis
    begin = time.perf_counter()
    for metric in estimator.val_metrics:
        metric.reset()
    try:
        handlers.notify("epoch_begin", estimator)
        with estimator.evaluation_weights(), evened_out(estimator.val_net, estimator.workers):
            run_epoch(
                estimator,
                handlers,
                at_least_one(batches, "val_data"),
                run_batch,
                is_over=lambda _: False,
            )
            handlers.notify("epoch_end", estimator)
            estimator.last_evaluation = {
                name: plain_figure(value)
                for metric in estimator.val_metrics
                for name, value in metric.get_name_value()
            }
            for listener in listeners:
                listener.evaluation_end(estimator)
    except BaseException as exception:
        handlers.notify_each("exception_raised", estimator, exception=exception)
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
        What the events bring along, and who hears them.
    batches : iterable
        What is left of the epoch.
    run_batch : callable
        From a batch to what *batch end* gets besides it.
    is_over : callable
        Called with the handlers that answered *batch end* with True: whether no batch follows.
    """
    for batch in batches:
        handlers.notify("batch_begin", estimator, batch=batch)
        outputs = run_batch(batch)
        if is_over(handlers.notify("batch_end", estimator, batch=batch, **outputs)):
            return


def outputs_of_batch(label: object, pred: object, loss: object) -> dict[str, list[Any]]:
    """Return what the events of a batch bring along: lists, one item per context.

    A batch processor of the user's own may return arrays by themselves.
    """
    return {"label": _as_list(label), "pred": _as_list(pred), "loss": _as_list(loss)}


def at_least_one(batches: Iterable[object], name: str) -> Iterator[Any]:
    """Yield the batches; raise ValueError, which names the data, if there is none."""
    batch = None
    for batch in batches:
        yield batch
    if batch is None:
        raise ValueError(
            f"{name} gave no batch: it is empty, or it can be iterated only once; give a "
            "DataLoader or a list of batches"
        )


def _without(handlers: list[EventHandler], names: list[str]) -> list[EventHandler]:
    """Return the handlers but for one of the class of each of the names."""
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
