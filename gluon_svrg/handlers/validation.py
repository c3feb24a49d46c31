"""ValidationHandler: evaluates every few epochs or batches."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from gluon_svrg.arguments import check_periods
from gluon_svrg.data.training_data import check_data
from gluon_svrg.events import EventHandler, Order, Run
from mxnet.gluon.contrib import estimator as mx_estimator


class ValidationHandler(mx_estimator.ValidationHandler):
    """Evaluates on `val_data` at the end of every few epochs, or after every few batches.

    `fit` adds one, for each epoch, if it gets `val_data` and no such handler. The row of an epoch
    has the figures of the last evaluation in it.

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

    Raises
    ------
    TypeError, ValueError
        If an argument is out of its range, or neither period is given.
    """

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

    def batch_end(self, estimator: Run, *args: Any, **kwargs: Any) -> None:
        """Evaluate, if it is time."""
        self.current_batch += 1
        if self.batch_period and self.current_batch % self.batch_period == 0:
            figures = self._evaluate(estimator)
            estimator.logger.info(
                "epoch %d, after %d batches: %s",
                estimator.position.epoch,
                estimator.position.batch_in_epoch + 1,
                ", ".join(f"{name} {value:.4g}" for name, value in figures.items()),
            )

    def epoch_end(self, estimator: Run, *args: Any, **kwargs: Any) -> None:
        """Evaluate, if it is time."""
        self.current_epoch += 1
        if self.epoch_period and self.current_epoch % self.epoch_period == 0:
            self._evaluate(estimator)

    def _evaluate(self, estimator: Run) -> dict[str, float]:
        return estimator.evaluate(self.val_data, estimator.batch_axis, self.event_handlers)
