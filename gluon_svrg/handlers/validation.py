"""ValidationHandler: evaluates every few epochs or batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from gluon_svrg.arguments import check_periods, explains_unknown
from gluon_svrg.arrays.sync import wait_for
from gluon_svrg.data.training_data import check_data
from gluon_svrg.events import (
    BatchBegin,
    BatchEnd,
    EventHandler,
    Interrupted,
    Order,
    ResumesInterrupted,
    Run,
)
from gluon_svrg.rng import restoring_rng_on
from gluon_svrg.run import require_estimator
from mxnet.gluon.contrib import estimator as mx_estimator


class ValidationHandler(mx_estimator.ValidationHandler, ResumesInterrupted):
    """Evaluates on `val_data` at the end of every few epochs, or after every few batches.

    `fit` adds one, for each epoch, if it gets `val_data` and no such handler. The row of an epoch
    has the figures of the last evaluation in it.

    A stop (Ctrl-C, SIGTERM, a time limit, ``estimator.stop()``) during an evaluation interrupts it
    after the current batch: it gives no figures, and is repeated after a resume. A signal or a time
    limit before an evaluation prevents it; ``estimator.stop()`` does not.

    Parameters
    ----------
    val_data : iterable of (data, label)
        The batches of an evaluation.
    every_n_epochs : int or None
        Evaluate every `every_n_epochs` epochs.
    every_n_batches : int or None
        Evaluate every `every_n_batches` batches, counted from the beginning of the run, and log
        one line each time.
    event_handlers : EventHandler or list of EventHandler, optional
        The handlers of the evaluation.
    priority : float
        That of MXNet's handler: with the metrics, before the handlers that read them.

    Attributes
    ----------
    is_due : bool
        Whether a stop has interrupted the evaluation after the last batch.

    Raises
    ------
    TypeError, ValueError
        If an argument is out of its range, or neither period is given.
    """

    @explains_unknown(
        epoch_period="every_n_epochs",
        batch_period="every_n_batches",
        validation_freq="every_n_epochs",
        check_val_every_n_epoch="every_n_epochs",
        eval_fn="the Estimator evaluates by itself: leave it out",
    )
    def __init__(
        self,
        val_data: Iterable[object],
        every_n_epochs: int | None = 1,
        every_n_batches: int | None = None,
        event_handlers: EventHandler | list[EventHandler] | None = None,
        *,
        priority: float = Order.VALIDATION,
    ) -> None:
        check_data(val_data, "val_data")
        check_periods(every_n_epochs, every_n_batches, "an evaluation", "is made")
        super().__init__(
            val_data, None, every_n_epochs, every_n_batches, float(priority), event_handlers
        )
        self.every_n_epochs, self.every_n_batches = every_n_epochs, every_n_batches

        self.is_due = False

    def train_begin(self, estimator: Run, *args: Any, **kwargs: Any) -> None:
        """Begin to count, from where the run begins."""
        require_estimator(self, estimator)
        position = estimator.position
        self.current_batch, self.current_epoch = position.batch, position.epoch
        self.is_due = False

    def batch_end(self, estimator: Run, *args: Any, **kwargs: Any) -> None:
        """Evaluate, if it is time."""
        self.current_batch += 1
        if self.batch_period and self.current_batch % self.batch_period == 0:
            self._evaluate_after(estimator, estimator.position.batch_in_epoch + 1)

    def resume_interrupted(self, estimator: Run) -> bool:
        """Evaluate, if a stop has broken off the evaluation after the last batch."""
        was_due = self.is_due
        if was_due:
            self._evaluate_after(estimator, estimator.position.batch_in_epoch)
        return was_due

    def epoch_end(self, estimator: Run, *args: Any, **kwargs: Any) -> None:
        """Evaluate, if it is time; raise Interrupted if a stop breaks that off."""
        self.current_epoch += 1
        if self.epoch_period and self.current_epoch % self.epoch_period == 0:
            try:
                if self.is_due:  # a stop has just interrupted another evaluation
                    raise Interrupted
                self._evaluate(estimator)
            except Interrupted:
                self.current_epoch -= 1
                raise Interrupted(self) from None

    def _evaluate_after(self, estimator: Run, batches: int) -> None:
        """Evaluate after that many batches of the epoch, or note that it is to be done."""
        self.is_due = True
        try:
            figures = self._evaluate(estimator)
        except Interrupted:
            return
        self.is_due = False
        estimator.logger.info(
            "epoch %d, after %d batches: %s",
            estimator.position.epoch,
            batches,
            ", ".join(f"{name} {value:.4g}" for name, value in figures.items()),
        )

    def _evaluate(self, estimator: Run) -> dict[str, float]:
        """Evaluate; if a stop interrupts it, restore the random states and raise Interrupted."""
        given = self.event_handlers
        given = [given] if isinstance(given, EventHandler) else list(given or ())
        with restoring_rng_on(Interrupted):
            handlers = [_StopCheck(estimator.stop_check()), *given]
            return estimator.evaluate(self.val_data, estimator.batch_axis, handlers)


class _StopCheck(BatchBegin, BatchEnd):
    """Ends an evaluation before the next batch after a stop was requested."""

    priority = -float("inf")

    def __init__(self, is_to_stop: Callable[[], bool]) -> None:
        self._is_to_stop = is_to_stop
        self._losses: list[Any] = []

    def batch_begin(self, estimator: Run, *args: Any, **kwargs: Any) -> None:
        """Raise Interrupted if a stop was requested."""
        if self._is_to_stop():
            raise Interrupted

    def batch_end(self, estimator: Run, *args: Any, **kwargs: Any) -> None:
        """Wait for the last batch: else all would be in memory before the first is computed."""
        wait_for(self._losses)
        self._losses = kwargs["loss"]
