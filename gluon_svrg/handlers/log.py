"""LogHandler and TensorBoardHandler: the figures of a run in files that others read."""

from __future__ import annotations

import csv
import io
import json
import math
import numbers
import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from logging import Logger
from os import PathLike, fspath
from pathlib import Path
from typing import Any, SupportsFloat

import numpy as np
from gluon_svrg.arguments import check_integer
from gluon_svrg.events import (
    BatchEnd,
    EpochEnd,
    ExceptionRaised,
    Order,
    Run,
    SafePoint,
    TrainBegin,
    TrainEnd,
)
from gluon_svrg.files import make_folder, write_whole
from gluon_svrg.run.history import History
from gluon_svrg.run.position import require_estimator
from gluon_svrg.workers.process import is_started_again

_SECONDS_BETWEEN_FLUSHES = 10.0


class LogHandler(TrainBegin, SafePoint, EpochEnd, TrainEnd):
    """Writes the history into a file: a row at the end of each epoch. The first worker does.

    The file holds ``estimator.history``: after a resume it has the rows from before, none
    twice and none missing, and after a roll-back to a checkpoint it no longer has the rows after
    it. It may be read during the run: a row is appended whole; if older rows change (a figure that
    no epoch had before is a new column of a CSV file), a new file is written, which then replaces
    the old one. If it cannot be written (a full disk), the run continues with a warning in the log,
    and the next epoch tries again.

    Numbers have all their digits. A figure that an epoch does not have, or that is NaN, is an empty
    cell of a CSV file; in JSON it is left out, or null. True and False are 1 and 0 in CSV. An
    infinite value is ``inf`` in CSV and null in JSON, which has no other way to write it.

    Parameters
    ----------
    path : str or path
        ``.csv``: a table with a header; ``.jsonl``: one JSON object per line. Parent folders are
        made.
    overwrite : bool
        Whether a new run replaces an existing file; if not, that is an error before any training.
        A run that continues from a checkpoint replaces it in any case, and one with
        ``initial_epoch`` goes on in the file of its own history, and so does one that the launcher
        has started again. So give True to a
        job that is started again with ``resume='auto'``, perhaps before its first checkpoint.
    priority : float
        Last, so that every figure is there.

    Attributes
    ----------
    path : Path
        As given.

    Raises
    ------
    TypeError
        If `overwrite` is no bool.
    ValueError
        If `path` has another suffix.
    """

    def __init__(
        self,
        path: str | PathLike[str],
        overwrite: bool = False,
        priority: float = Order.LAST,
    ) -> None:
        self.path = Path(path).expanduser().absolute()
        if self.path.suffix.lower() not in (".csv", ".jsonl"):
            raise ValueError(
                f"path must end in .csv or .jsonl, got {fspath(path)!r}: the suffix says what is "
                "written, a table or one JSON object per line"
            )
        if not isinstance(overwrite, bool):
            raise TypeError(
                f"overwrite must be a bool, got {overwrite!r}: it says whether a new run may "
                "replace the file of another"
            )
        self.overwrite = overwrite
        self.priority = float(priority)
        self._is_table = self.path.suffix.lower() == ".csv"
        # What is in the file: this number of rows of this history, under these columns.
        self._history: History | None = None
        self._rows = 0
        self._columns: list[str] = []

    def train_begin(self, estimator: Run, *args: Any, **kwargs: Any) -> None:
        """Make sure that the file can be written, and that there is none of another run.

        Raises
        ------
        FileExistsError
            If the run is new and the file exists already.
        IsADirectoryError, PermissionError
            If the file cannot be written.
        """
        require_estimator(self, estimator)
        self._history, self._rows, self._columns = None, 0, []
        if not estimator.workers.is_first:
            return
        name = fspath(self.path)
        if self.path.is_dir():
            raise IsADirectoryError(f"path {name!r} is a folder: give the name of a file in it")
        is_new = estimator.resumed_from is None and not self._is_of(estimator.history)
        # A job that the launcher starts again may have got as far as the file, and no further.
        is_its_own = self.overwrite or is_started_again()
        if is_new and self.path.exists() and not is_its_own:
            raise FileExistsError(
                f"the file {name!r} exists already and this run is a new one: give another path, "
                "continue the run of the file by fit(..., resume='auto'), or replace the file by "
                "overwrite=True"
            )
        try:
            make_folder(self.path.parent)
        except OSError as e:
            raise PermissionError(
                f"path {name!r} cannot be written ({e}): give one in a folder that you may write to"
            ) from e

    def safe_point(self, estimator: Run, *args: Any, **kwargs: Any) -> None:
        """Write the history that was restored from a checkpoint."""
        if estimator.history is not self._history:
            self._update(estimator)

    def epoch_end(self, estimator: Run, *args: Any, **kwargs: Any) -> None:
        """Write the row."""
        self._update(estimator)

    def train_end(self, estimator: Run, *args: Any, **kwargs: Any) -> None:
        """Write the rows that are not written yet."""
        self._update(estimator)

    def _update(self, estimator: Run) -> None:
        """Make the file hold the history; the first worker does."""
        if not estimator.workers.is_first:
            return
        history = estimator.history
        is_same = history is self._history and self.path.exists()
        if is_same and len(history) == self._rows:
            return
        self._history = history
        try:
            if is_same and len(history) == self._rows + 1 and self._has_columns_of(history[-1]):
                self._append(history[-1])
            else:
                self._write_all(history)
            self._rows = len(history)
        except OSError as e:
            self._rows = -1  # everything is to be written next time
            estimator.logger.warning(
                "the history cannot be written into %r (%s): the run continues, and the next epoch "
                "tries again",
                fspath(self.path),
                e,
            )

    def _has_columns_of(self, row: Mapping[str, object]) -> bool:
        return not self._is_table or set(row) <= set(self._columns)

    def _append(self, row: Mapping[str, object]) -> None:
        size = self.path.stat().st_size
        try:
            with self.path.open("ab") as file:
                file.write(self._line(row).encode("utf-8"))  # in one piece, at its end
        except OSError:
            with suppress(OSError):
                os.truncate(self.path, size)  # a full disk takes the part that fits
            raise

    def _is_of(self, history: History) -> bool:
        """Return whether the file holds these rows and no others, so that they can go on in it."""
        return (
            bool(history) and self.path.exists() and self.path.read_bytes() == self._text(history)
        )

    def _write_all(self, history: History) -> None:
        if history:
            write_whole(self.path, self._text(history))
        else:
            self._columns = []
            self.path.unlink(missing_ok=True)

    def _text(self, history: History) -> bytes:
        self._columns = History(history).names()
        lines = [self._line(row) for row in history]
        if self._is_table:
            lines.insert(0, _csv_line(self._columns))
        return "".join(lines).encode("utf-8")

    def _line(self, row: Mapping[str, object]) -> str:
        if self._is_table:
            return _csv_line([_cell(row.get(name)) for name in self._columns])
        return json.dumps(_json_value(row), allow_nan=False) + "\n"


class TensorBoardHandler(TrainBegin, BatchEnd, EpochEnd, TrainEnd, ExceptionRaised):
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
        file_class = _event_file_class()
        self.log_dir = Path(log_dir).expanduser().absolute()
        self.every_n_batches = every_n_batches
        self.priority = float(priority)
        self._epochs = _Scalars(file_class, self.log_dir)
        self._batches = _Scalars(file_class, self.log_dir / "batches")
        self._writes = True

    def train_begin(self, estimator: Run, *args: Any, **kwargs: Any) -> None:
        """Begin new files."""
        require_estimator(self, estimator)
        self._close(estimator)
        self._writes = estimator.workers.is_first

    def batch_end(self, estimator: Run, *args: Any, **kwargs: Any) -> None:
        """Write the training metrics, if it is time."""
        if self.every_n_batches is None or not self._writes:
            return
        step = estimator.position.batch + 1  # this batch is done, too
        if step % self.every_n_batches:
            self._batches.go_to(step, estimator.logger)
            return
        figures = {
            f"batch/{name}": value
            for metric in estimator.train_metrics
            for name, value in metric.get_name_value()
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

    def __init__(self, file_class: Callable[..., _EventFile], folder: Path) -> None:
        self._file_class = file_class
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
            self._file = self._file_class(self._folder, step, f".{number:04d}")
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


def _event_file_class() -> Callable[..., _EventFile]:
    try:
        import tensorboardX  # noqa: F401  # now, and not in the first epoch
    except ImportError as e:
        raise ImportError(
            f"TensorBoardHandler needs tensorboardX, which cannot be imported ({e}): install it "
            "with pip install 'gluon-svrg[tensorboard]'"
        ) from e
    return _EventFile


def _csv_line(cells: Sequence[object]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(cells)
    return text.getvalue()


def _cell(value: object) -> Any:
    """Return what csv writes for `value`: a float with all its digits, None and NaN as nothing."""
    value = _plain(value)
    if isinstance(value, float) and math.isnan(value):
        return None
    if isinstance(value, bool):
        return int(value)  # most readers take all columns of a table of figures as numbers
    return json.dumps(_json_value(value)) if isinstance(value, (list, dict)) else value


def _json_value(value: object) -> Any:
    """Return `value` as JSON has it, with None for NaN and infinities."""
    value = _plain(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(name): _json_value(item) for name, item in value.items()}
    return [_json_value(item) for item in value] if isinstance(value, list) else value


def _plain(value: object) -> Any:
    """Return NumPy's values as Python's, and anything that is no plain data as its text."""
    if isinstance(value, (np.generic, np.ndarray)):
        value = value.tolist()
    if isinstance(value, tuple):
        return list(value)
    if value is None or isinstance(value, (str, bool, int, float, list, dict)):
        return value
    return str(value)
