"""HistoryHandler: one row of figures an epoch."""

from __future__ import annotations

import time
from typing import Any

from gluon_svrg.events import BatchEnd, EpochBegin, EpochEnd, Stateful, TrainBegin


class HistoryHandler(TrainBegin, EpochBegin, BatchEnd, EpochEnd, Stateful):
    """Appends a row to ``estimator.history`` at the end of each epoch.

    A row holds ``epoch`` (from 0), ``seconds``, ``samples``, ``learning_rate``, each training
    metric and, in an epoch with an evaluation, each validation metric, by the metric's name.

    Parameters
    ----------
    priority : float
        After the handlers that update metrics or evaluate, before those that show the row.
    """

    def __init__(self, priority: float = 1000) -> None:
        self.priority = priority
        self._begin = 0.0
        self._samples = 0

    def train_begin(self, estimator: Any, *args: Any, **kwargs: Any) -> None:
        """Forget an evaluation that came before the run."""
        estimator.last_evaluation = {}

    def epoch_begin(self, estimator: Any, *args: Any, **kwargs: Any) -> None:
        """Start the clock."""
        self._begin = time.perf_counter()
        self._samples = 0

    def batch_end(self, estimator: Any, *args: Any, **kwargs: Any) -> None:
        """Count the samples."""
        losses = kwargs["loss"]  # a list, or one NDArray from a batch processor of the user's own
        for loss in losses if isinstance(losses, (list, tuple)) else [losses]:
            self._samples += loss.shape[0]

    def epoch_end(self, estimator: Any, *args: Any, **kwargs: Any) -> None:
        """Append the row."""
        row: dict[str, Any] = {
            "epoch": len(estimator.history),
            "seconds": time.perf_counter() - self._begin,
            "samples": self._samples,
            "learning_rate": estimator.trainer.learning_rate,
        }
        for metric in estimator.train_metrics:
            row.update(metric.get_name_value())
        row.update(estimator.last_evaluation)
        row.update(estimator.figures)
        estimator.last_evaluation, estimator.figures = {}, {}
        estimator.history.append(row)

    def state_dict(self, estimator: Any) -> dict[str, Any]:
        """Return what has been counted in the epoch under way."""
        return {"seconds": time.perf_counter() - self._begin, "samples": self._samples}

    def load_state_dict(self, estimator: Any, state: dict[str, Any]) -> None:
        """Go on to count."""
        self._begin = time.perf_counter() - state["seconds"]
        self._samples = state["samples"]
