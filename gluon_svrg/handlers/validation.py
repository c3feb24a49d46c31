"""ValidationHandler: evaluates every few epochs or batches."""

from __future__ import annotations

from typing import Any

from gluon_svrg.arguments import check_periods
from gluon_svrg.data.training_data import check_data
from mxnet.gluon.contrib import estimator as mx_estimator


class ValidationHandler(mx_estimator.ValidationHandler):
    """Evaluates on `val_data` at the end of every few epochs, or after every few batches.

    `fit` adds one, for each epoch, where it is given `val_data` and no such handler. The figures
    are in the row of the epoch: those of the last evaluation in it.

    Parameters
    ----------
    val_data : iterable of (data, label)
        What to evaluate on.
    every_n_epochs : int or None
        An evaluation after as many epochs.
    every_n_batches : int or None
        An evaluation after as many batches, counted from the beginning of the run; each is one line
        in the log.
    event_handlers : EventHandler or list of EventHandler, optional
        For the evaluation.
    priority : float
        As MXNet's: with the metrics, before the handlers that read them.

    Raises
    ------
    TypeError, ValueError
        If an argument is out of its range, or neither period is given.
    """

    def __init__(
        self,
        val_data: Any,
        every_n_epochs: int | None = 1,
        every_n_batches: int | None = None,
        event_handlers: Any = None,
        priority: float = -1000,
    ) -> None:
        check_data(val_data, "val_data")
        check_periods(every_n_epochs, every_n_batches, "an evaluation")
        super().__init__(val_data, None, every_n_epochs, every_n_batches, priority, event_handlers)

    def batch_end(self, estimator: Any, *args: Any, **kwargs: Any) -> None:
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

    def epoch_end(self, estimator: Any, *args: Any, **kwargs: Any) -> None:
        """Evaluate, if it is time."""
        self.current_epoch += 1
        if self.epoch_period and self.current_epoch % self.epoch_period == 0:
            self._evaluate(estimator)

    def _evaluate(self, estimator: Any) -> dict[str, float]:
        return estimator.evaluate(self.val_data, estimator.batch_axis, self.event_handlers)
