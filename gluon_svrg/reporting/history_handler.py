"""HistoryHandler: one row of figures per epoch."""

from __future__ import annotations

import resource
import sys
import time
from typing import Any

from gluon_svrg.batch.parts import count_samples
from gluon_svrg.events import (
    BatchEnd,
    EpochEnd,
    HasExclusiveTasks,
    Order,
    RequiresRun,
    Run,
    State,
    Stateful,
    TrainBegin,
)
from gluon_svrg.metrics.setup import figures_of
from gluon_svrg.reporting.history import to_python_number
from gluon_svrg.workers import Workers
from mxnet.gluon.contrib import estimator as mx_estimator


class HistoryHandler(TrainBegin, BatchEnd, EpochEnd, Stateful, HasExclusiveTasks, RequiresRun):
    """Appends a row to ``estimator.history`` at the end of each epoch.

    The figures of a row, besides those that handlers have put into ``estimator.figures``:

    ``epoch``
        Its number, from 0.
    ``seconds``
        From the end of the epoch before (for the first, from the beginning of the run) to the end
        of this one. It includes SVRG's full pass, the evaluations, and a checkpoint that was
        written in between: the rows add up to the time of the run. Time that a crash has lost is
        not included.
    ``samples``
        The number of samples that were trained on, by all workers.
    ``samples_per_second``
        ``samples`` divided by the seconds without those of the evaluations: how fast the run
        trains, however often it evaluates. SVRG's full pass counts as training.
    ``batches``
        The number of batches of the epoch that were trained on.
    ``complete``
        False if a stop (Ctrl-C, a time limit, ``fit(batches=...)``) has broken off the epoch: its
        figures are those of its first batches, and it may have no evaluation.
    ``learning_rate``
        At the end of the epoch.
    ``coefficient``
        SVRG's, the last one of the epoch, which the SVRGHandler puts into ``estimator.figures``;
        only in an epoch with SVRG. If it is estimated, the value at the end of the epoch.
    ``peak_memory_mib``
        The largest resident set of the process so far, in MiB. After a resume it is that of the
        new process.
    each training metric, and in an epoch with an evaluation each validation metric
        By its name.

    ``evaluated_at_batch``
        If a ValidationHandler evaluates every few batches: after which batch of the epoch the last
        evaluation was.

    Over several workers, all have the row of worker 0, with the figures that it has measured.

    A figure that is an array becomes a number if it has one element, else a list of numbers.
    ``gluon_svrg.reporting.history.MEASURED`` names the figures that differ from run to run.

    Parameters
    ----------
    priority : float
        After the handlers that update metrics or evaluate, before those that show the row.
    """

    state_key = "history"

    def __init__(self, priority: float = Order.HISTORY) -> None:
        self.priority = float(priority)
        self._begin = 0.0
        self._samples = 0  # of all workers
        self._own = 0  # since these were added up

    def exclusive_tasks(self) -> list[str]:
        """Return its task."""
        return ["append rows to the history"]

    def train_begin(self, estimator: Run, *args: Any, **kwargs: Any) -> None:
        """Start the clock, and forget an evaluation that came before the run."""
        self._start(estimator)

    def batch_end(self, estimator: Run, *args: Any, **kwargs: Any) -> None:
        """Count the samples."""
        self._own += count_samples(kwargs["loss"], kwargs["label"], estimator.batch_axis)

    def epoch_end(self, estimator: Run, *args: Any, **kwargs: Any) -> None:
        """Append the row."""
        self._add_up(estimator)
        seconds = time.perf_counter() - self._begin
        training = seconds - estimator.evaluation_seconds
        row: dict[str, Any] = {
            "epoch": estimator.position.epoch,
            "seconds": seconds,
            "samples": self._samples,
            "samples_per_second": self._samples / training if training > 0 else 0.0,
            "batches": estimator.position.batch_in_epoch,
            "complete": _is_complete(estimator),
            "learning_rate": estimator.trainer.learning_rate,
        }
        if "coefficient" in estimator.figures:
            row["coefficient"] = estimator.figures["coefficient"]
        row["peak_memory_mib"] = _peak_memory_mib()
        for metric in estimator.train_metrics:
            row.update(figures_of(metric))
        row.update(estimator.last_evaluation)
        state = estimator.state
        if state.evaluated_at_batch is not None and _evaluates_after_batches(estimator):
            row["evaluated_at_batch"] = state.evaluated_at_batch
        row.update(estimator.figures)
        estimator.figures = {}
        self._start(estimator)
        row = {name: to_python_number(value) for name, value in row.items()}
        estimator.history.append(_row_of_first(row, estimator.workers))

    def state_dict(self, estimator: Run) -> State:
        """Return the times and the number of samples of the current epoch."""
        reduction = estimator.workers.reduction
        return {
            "seconds": reduction(time.perf_counter() - self._begin, _of_first),
            "evaluation_seconds": reduction(estimator.evaluation_seconds, _of_first),
            "samples": reduction(self._own, self._add_samples),
        }

    def load_state_dict(self, estimator: Run, state: State) -> None:
        """Continue to count."""
        self._begin = time.perf_counter() - state["seconds"]
        estimator.evaluation_seconds = state["evaluation_seconds"]
        self._samples, self._own = state["samples"], 0

    def _add_up(self, estimator: Run) -> None:
        """Count the samples of all workers."""
        self._add_samples(estimator.workers.all_gather_object(self._own, "samples"))

    def _add_samples(self, counts: list[int]) -> int:
        """Add the counts of all workers; return the samples of the epoch so far."""
        self._samples += sum(counts)
        self._own = 0
        return self._samples

    def _start(self, estimator: Run) -> None:
        self._begin = time.perf_counter()
        self._samples = self._own = 0
        estimator.last_evaluation = {}
        estimator.state.evaluated_at_batch = None
        # Estimator.evaluate adds to it.
        estimator.evaluation_seconds = 0.0


def _evaluates_after_batches(estimator: Run) -> bool:
    handlers = estimator.handlers
    return any(isinstance(h, mx_estimator.ValidationHandler) and h.batch_period for h in handlers)


def _of_first(values: list[float]) -> float:
    return values[0]


def _is_complete(estimator: Run) -> bool:
    """Return whether all batches of the epoch are done."""
    return (
        estimator.stop_reason is None
        or estimator.position.batch_in_epoch == estimator.data.num_batches
    )


def _row_of_first(row: dict[str, Any], workers: Workers) -> dict[str, Any]:
    """Return the first worker's row; what is no plain number or text in it stays each one's own."""
    if not workers.is_distributed:
        return row
    plain = {name: value for name, value in row.items() if _is_plain(value)}
    return {**row, **workers.broadcast_object(plain, "row of the history")}


def _is_plain(value: object) -> bool:
    if isinstance(value, list):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, (bool, int, float, str))


def _peak_memory_mib() -> float:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # Linux counts in KiB, macOS in bytes.
    return peak / (2**20 if sys.platform == "darwin" else 2**10)
