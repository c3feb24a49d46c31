"""TensorBoardHandler: writes the figures of a run for TensorBoard, by tensorboardX."""

from __future__ import annotations

import numbers
import os
import re
import time
from collections.abc import Mapping
from logging import Logger
from os import PathLike
from pathlib import Path
from typing import Any, SupportsFloat

from gluon_svrg.arguments import check_integer, check_path, explains_unknown, require
from gluon_svrg.events import (
    BatchEnd,
    EpochEnd,
    ExceptionRaised,
    HasExclusiveTasks,
    Order,
    RequiresRun,
    Run,
    TrainBegin,
    TrainEnd,
)
from gluon_svrg.metrics.setup import figures_of

_SECONDS_BETWEEN_FLUSHES = 10.0


class TensorBoardHandler(
    TrainBegin, BatchEnd, EpochEnd, TrainEnd, ExceptionRaised, HasExclusiveTasks, RequiresRun
):
    """Writes the figures of a run for TensorBoard, by tensorboardX. The first worker does.

    Each number in the row of an epoch is a scalar ``epoch/NAME`` in `log_dir`, with the number of
    the epoch (from 0) as its step. With `every_n_batches`, the training metrics of the epoch so far
    and the learning rate are scalars ``batch/NAME`` in the folder ``batches`` of `log_dir`, with
    the number of batches that are done in all epochs as their step. In a name, ``_`` replaces
    characters that TensorBoard does not take, such as a space.

    After a resume or a roll-back the steps continue from the checkpoint: what had been written
    after it is no longer shown. A new run hides an earlier one in the same `log_dir`, whose files
    stay. Give each run its own folder to see them side by side.

    If the figures cannot be written (a full disk), the run continues with one warning in the log,
    and each step tries again.

    Parameters
    ----------
    log_dir : str or path
        The folder; made if it does not exist.
    every_n_batches : int, optional
        Write figures every `every_n_batches` batches. Reading the metrics waits for the device.
    priority : float
        Last, so that every figure is there.

    Attributes
    ----------
    log_dir : Path
        As given.

    Raises
    ------
    TypeError, ValueError
        If `every_n_batches` is no positive integer.
    ImportError
        If tensorboardX is not installed.
    """

    @explains_unknown(
        logdir="log_dir",
        save_dir="log_dir",
        update_freq="every_n_batches",
    )
    def __init__(
        self,
        log_dir: str | PathLike[str],
        every_n_batches: int | None = None,
        priority: float = Order.LAST,
    ) -> None:
        if every_n_batches is not None:
            check_integer(
                "every_n_batches",
                every_n_batches,
                1,
                "figures are written every that many batches",
            )
        require("tensorboardX", "tensorboard", type(self).__name__)  # now, not in the first epoch
        self.log_dir = check_path("log_dir", log_dir, "the folder that TensorBoard reads")
        self.every_n_batches = every_n_batches
        self.priority = float(priority)
        self._epochs = _Scalars(self.log_dir)
        self._batches = _Scalars(self.log_dir / "batches")
        self._writes = True

    def exclusive_tasks(self) -> list[str]:
        """Return its task."""
        return [f"write events into {os.path.realpath(self.log_dir)!r}"]

    def train_begin(self, estimator: Run, *args: Any, **kwargs: Any) -> None:
        """Begin new files."""
        self._close(estimator)
        self._writes = estimator.workers.is_first

    def batch_end(self, estimator: Run, *args: Any, **kwargs: Any) -> None:
        """Write the training metrics, if it is time."""
        if self.every_n_batches is None or not self._writes:
            return
        position = estimator.position
        step = position.batch + 1  # this batch is done, too
        if not position.is_due("batch_end", every_n_batches=self.every_n_batches):
            self._batches.go_to(step, estimator.logger)
            return
        figures = {
            f"batch/{name}": value
            for metric in estimator.train_metrics
            for name, value in figures_of(metric)
        }
        figures["batch/learning_rate"] = estimator.trainer.learning_rate
        self._batches.write(figures, step, estimator.logger)

    def epoch_end(self, estimator: Run, *args: Any, **kwargs: Any) -> None:
        """Write the row of the epoch."""
        if not self._writes:
            return
        row = estimator.history[-1]
        figures = {
            f"epoch/{name}": value
            for name, value in row.items()
            if name != "epoch" and isinstance(value, numbers.Real)
        }
        self._epochs.write(figures, row["epoch"], estimator.logger)

    def train_end(self, estimator: Run, *args: Any, **kwargs: Any) -> None:
        """Close the files."""
        self._close(estimator)

    def exception_raised(self, estimator: Run, *args: Any, **kwargs: Any) -> None:
        """Close the files."""
        self._close(estimator)

    def _close(self, estimator: Run) -> None:
        self._epochs.close(estimator.logger)
        self._batches.close(estimator.logger)


class _Scalars:
    """The scalars of one folder, whose steps count the same thing: TensorBoard hides by step.

    If a file cannot be written (a full disk), one warning says so, and the next step begins
    another.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file: _EventFile | None = None
        self._step = 0
        self._has_warned = False

    def write(self, figures: Mapping[str, SupportsFloat], step: int, logger: Logger) -> None:
        """Write figures of `step`; if it is no later one, hide what was written from it on."""
        try:
            file = self._file_at(step, logger)
            for name, value in figures.items():
                file.add_scalar(re.sub(r"[^-/\w.]", "_", name), float(value), step)
        except OSError as e:
            self._warn(e, logger)
            self.close(logger)

    def go_to(self, step: int, logger: Logger) -> None:
        """Move to `step`, without figures."""
        self.write({}, step, logger)

    def close(self, logger: Logger) -> None:
        """Close the file, if one is open: what is not written yet is written now."""
        file, self._file = self._file, None
        if file is not None:
            try:
                file.close()
            except OSError as e:
                self._warn(e, logger)

    def _warn(self, e: OSError, logger: Logger) -> None:
        if not self._has_warned:
            self._has_warned = True
            logger.warning(
                "figures cannot be written for TensorBoard into %r (%s): the run continues, and "
                "each step tries again",
                os.fspath(self._folder),
                e,
            )

    def _file_at(self, step: int, logger: Logger) -> _EventFile:
        if self._file is not None and step <= self._step:
            self.close(logger)
        if self._file is None:
            self._folder.mkdir(parents=True, exist_ok=True)
            # The library names its files by the second in which they are made.
            number = len(list(self._folder.glob("*.tfevents.*")))
            self._file = _EventFile(self._folder, step, f".{number:04d}")
        self._step = step
        return self._file


class _EventFile:
    """Writes scalars into an event file, in the thread that calls it.

    tensorboardX's SummaryWriter writes in a thread of its own. If that ends, as on a full disk, its
    queue fills, and the next scalar waits for ever.

    Parameters
    ----------
    folder : Path
        Where the file is made.
    purge_step : int
        TensorBoard hides what earlier files have from this step on.
    suffix : str
        The end of the file's name.
    """

    def __init__(self, folder: Path, purge_step: int, suffix: str) -> None:
        from tensorboardX.event_file_writer import EventsWriter
        from tensorboardX.proto import event_pb2, summary_pb2

        self._events, self._summaries = event_pb2, summary_pb2
        self._writer = EventsWriter(os.fspath(folder / "events"), suffix)
        start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
        self._write(purge_step, session_log=start)
        self._flushed = time.monotonic()

    def add_scalar(self, name: str, value: float, step: int) -> None:
        """Write one figure."""
        one = self._summaries.Summary.Value(tag=name, simple_value=value)
        self._write(step, summary=self._summaries.Summary(value=[one]))
        if time.monotonic() > self._flushed + _SECONDS_BETWEEN_FLUSHES:
            self._writer.flush()
            self._flushed = time.monotonic()

    def close(self) -> None:
        """Write what is not written yet, and close the file."""
        self._writer.close()

    def _write(self, step: int, **content: Any) -> None:
        event = self._events.Event(wall_time=time.time(), step=step, **content)
        self._writer.write_event(event)
