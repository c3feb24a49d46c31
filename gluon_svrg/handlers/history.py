"""HistoryHandler: one row of figures an epoch."""

from __future__ import annotations

import resource
import sys
import time
from typing import Any

from gluon_svrg.events import BatchEnd, EpochBegin, EpochEnd, Stateful, TrainBegin
from gluon_svrg.trainer import SVRGTrainer


class HistoryHandler(TrainBegin, EpochBegin, BatchEnd, EpochEnd, Stateful):
    """Appends a row to ``estimator.history`` at the end of each epoch.

    The figures of a row, besides what handlers have put into ``estimator.figures``:

    ``epoch``
        Its number, from 0.
    ``seconds``
        From the end of the epoch before (of the first, from the beginning of the run) to the end
        of this one. So SVRG's full pass and the evaluations are in it, and so is a checkpoint that
        was written in between: the rows add up to the time of the run. What a crash has lost is
        not in it.
    ``samples``
        The samples that were trained on.
    ``samples_per_second``
        ``samples`` by the seconds without those of the evaluations: how fast the run trains,
        however often it evaluates. SVRG's full pass counts as training, since it is what SVRG
        takes.
    ``learning_rate``
        At the end of the epoch.
    ``coefficient``
        SVRG's, the last that was in force; only in an epoch in which a control variate was set. Of
        one that is estimated, the value at the end of the epoch.
    ``peak_memory_mib``
        The largest resident set of the process until now, in MiB. After a resume it is that of the
        new process.
    each training metric, and in an epoch with an evaluation each validation metric
        By its name.

    ``gluon_svrg.history.MEASURED`` names the figures that differ from run to run.

    Parameters
    ----------
    priority : float
        After the handlers that update metrics or evaluate, before those that show the row.
    """

    def __init__(self, priority: float = 1000) -> None:
        self.priority = priority
        self._begin = 0.0
        self._samples = 0
        self._coefficient: float | None = None

    def train_begin(self, estimator: Any, *args: Any, **kwargs: Any) -> None:
        """Start the clock, and forget an evaluation that came before the run."""
        self._start(estimator)

    def epoch_begin(self, estimator: Any, *args: Any, **kwargs: Any) -> None:
        """Look whether SVRG is on."""
        self._note_coefficient(estimator.trainer)

    def batch_end(self, estimator: Any, *args: Any, **kwargs: Any) -> None:
        """Count the samples."""
        losses = kwargs["loss"]  # a list, or one NDArray from a batch processor of the user's own
        for loss in losses if isinstance(losses, (list, tuple)) else [losses]:
            self._samples += loss.shape[0]
        self._note_coefficient(estimator.trainer)

    def epoch_end(self, estimator: Any, *args: Any, **kwargs: Any) -> None:
        """Append the row."""
        seconds = time.perf_counter() - self._begin
        training = seconds - estimator.evaluation_seconds
        row: dict[str, Any] = {
            "epoch": len(estimator.history),
            "seconds": seconds,
            "samples": self._samples,
            "samples_per_second": self._samples / training if training > 0 else 0.0,
            "learning_rate": estimator.trainer.learning_rate,
        }
        self._note_coefficient(estimator.trainer, is_epoch_over=True)
        if self._coefficient is not None:
            row["coefficient"] = self._coefficient
        row["peak_memory_mib"] = _peak_memory_mib()
        for metric in estimator.train_metrics:
            row.update(metric.get_name_value())
        row.update(estimator.last_evaluation)
        row.update(estimator.figures)
        estimator.figures = {}
        self._start(estimator)
        estimator.history.append(row)

    def state_dict(self, estimator: Any) -> dict[str, Any]:
        """Return what has been counted in the epoch under way."""
        return {
            "seconds": time.perf_counter() - self._begin,
            "evaluation_seconds": estimator.evaluation_seconds,
            "samples": self._samples,
            "coefficient": self._coefficient,
        }

    def load_state_dict(self, estimator: Any, state: dict[str, Any]) -> None:
        """Go on to count."""
        self._begin = time.perf_counter() - state["seconds"]
        estimator.evaluation_seconds = state["evaluation_seconds"]
        self._samples = state["samples"]
        self._coefficient = state["coefficient"]

    def _start(self, estimator: Any) -> None:
        self._begin = time.perf_counter()
        self._samples = 0
        self._coefficient = None
        estimator.last_evaluation = {}
        # Estimator.evaluate adds to it.
        estimator.evaluation_seconds = 0.0

    def _note_coefficient(self, trainer: Any, is_epoch_over: bool = False) -> None:
        if not isinstance(trainer, SVRGTrainer) or trainer.full_gradient is None:
            return
        # One that is estimated lies on the device: it is waited for once an epoch.
        if trainer.optimal_coefficient is None or is_epoch_over:
            self._coefficient = trainer.coefficient


def _peak_memory_mib() -> float:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # Linux counts in KiB, macOS in bytes.
    return peak / (2**20 if sys.platform == "darwin" else 2**10)
