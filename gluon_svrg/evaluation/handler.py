"""ValidationHandler: when a run evaluates, on which data, under which name."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from gluon_svrg.arguments import check_periods, explains_unknown
from gluon_svrg.data.training_data import check_data
from gluon_svrg.events import EventHandler, Order, RequiresRun, Run
from mxnet.gluon.contrib import estimator as mx_estimator

VALIDATION = "validation"
"""The name of the data whose figures have no other name."""


class ValidationHandler(mx_estimator.ValidationHandler, RequiresRun):
    """Lets the run evaluate on `val_data` at the end of every few epochs, or after some batches.

    If `fit` gets `val_data` and no such handler, it adds one that evaluates after each epoch. The
    evaluation is a phase of the loop: see :mod:`gluon_svrg.events`. The row of an epoch has the
    figures of the last evaluation in that epoch. If both periods are due at the same weights, it
    evaluates once.

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
        one line each time. The history's row says after which batch of the epoch:
        ``evaluated_at_batch``.
    event_handlers : EventHandler or list of EventHandler, optional
        The handlers of the evaluation.
    name : str
        The first word of the figures' names: with ``name="test"`` they are "test accuracy"
        and "test loss". Several handlers in a run need different names.
    priority : float
        The handler with the lower value evaluates first.

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
        name: str = VALIDATION,
        priority: float = Order.VALIDATION,
    ) -> None:
        check_data(val_data, "val_data")
        check_periods(every_n_epochs, every_n_batches, "an evaluation", "is made")
        if not isinstance(name, str) or len(name.split()) != 1 or name == "training":
            raise ValueError(
                f"name must be one word other than 'training', got {name!r}: it is the first word "
                "of the figures' names, as in 'test accuracy'"
            )
        super().__init__(
            val_data, None, every_n_epochs, every_n_batches, float(priority), event_handlers
        )
        self.every_n_epochs, self.every_n_batches = every_n_epochs, every_n_batches
        self.name = name

    def train_begin(self, estimator: Run, *args: Any, **kwargs: Any) -> None:
        """Do nothing: the position of the run replaces MXNet's counters."""

    def batch_end(self, estimator: Run, *args: Any, **kwargs: Any) -> None:
        """Do nothing: the loop evaluates after this event."""

    def epoch_end(self, estimator: Run, *args: Any, **kwargs: Any) -> None:
        """Do nothing: the loop evaluates before this event."""
