"""HistoryFileHandler: writes the history of a run into a CSV or JSON Lines file."""

from __future__ import annotations

import csv
import io
import json
import math
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from os import PathLike, fspath
from os.path import realpath
from typing import Any

import numpy as np
from gluon_svrg.arguments import check_path
from gluon_svrg.events import (
    EpochEnd,
    HasExclusiveTasks,
    Order,
    RequiresRun,
    Run,
    SafePoint,
    TrainBegin,
    TrainEnd,
)
from gluon_svrg.files import make_folder, write_whole
from gluon_svrg.reporting.history import History
from gluon_svrg.run import Row
from gluon_svrg.workers.process import is_restart


class HistoryFileHandler(TrainBegin, SafePoint, EpochEnd, TrainEnd, HasExclusiveTasks, RequiresRun):
    """Writes the history into a file: a row at the end of each epoch. Only worker 0 writes.

    The file holds ``estimator.history``: after a resume it has each earlier row once, and after a
    roll-back to a checkpoint it has no later rows. It may be read during the run: a row is
    appended whole, and if older rows change (a new figure is a new column of a CSV file), a new
    file replaces the old one. If the file cannot be written (a full disk), the run continues with
    a warning in the log, and the next epoch tries again.

    Numbers have all their digits. A figure that an epoch does not have, or that is NaN, is an empty
    cell of a CSV file; in JSON it is left out, or null. True and False are 1 and 0 in CSV. An
    infinite value is ``inf`` in CSV and null in JSON, which has no other way to write it. Names and
    texts are written as they are: a spreadsheet takes one that begins with ``=``, ``+``, ``-`` or
    ``@`` as a formula, so give your metrics other names if you open the file in one.

    Parameters
    ----------
    path : str or path
        ``.csv``: a table with a header; ``.jsonl``: one JSON object per line. Parent folders are
        made.
    overwrite : bool
        Whether a new run replaces an existing file; if not, an existing file is an error before
        any training. A run that continues from a checkpoint always replaces it, as does a run that
        the launcher has restarted; a run with ``initial_epoch`` continues the file of its history.
        Use True for a job that may be restarted with ``resume='auto'`` before its first checkpoint.
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

    may_request = False

    def __init__(
        self,
        path: str | PathLike[str],
        overwrite: bool = False,
        priority: float = Order.LAST,
    ) -> None:
        self.path = check_path("path", path, "the file for the history, .csv or .jsonl")
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
        self._history: list[Row] | None = None
        self._rows = 0
        self._columns: list[str] = []

    def exclusive_tasks(self) -> list[str]:
        """Return its task."""
        return [f"write {realpath(self.path)!r}"]

    def train_begin(self, estimator: Run, *args: Any, **kwargs: Any) -> None:
        """Check that the file can be written, and that it is not another run's.

        Raises
        ------
        FileExistsError
            If the run is new and the file exists already.
        IsADirectoryError, PermissionError
            If the file cannot be written.
        """
        self._history, self._rows, self._columns = None, 0, []
        if not estimator.workers.is_first:
            return
        name = fspath(self.path)
        if self.path.is_dir():
            raise IsADirectoryError(f"path {name!r} is a folder: give the name of a file in it")
        is_new = estimator.resumed_from is None and not self._is_of(estimator.history)
        # A job that the launcher starts again may have got as far as the file, and no further.
        is_its_own = self.overwrite or is_restart()
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
        """Write what the file lacks of the history, on worker 0."""
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

    def _is_of(self, history: list[Row]) -> bool:
        """Return whether the file holds exactly the beginning of this history."""
        return (
            bool(history) and self.path.exists() and self.path.read_bytes() == self._text(history)
        )

    def _write_all(self, history: list[Row]) -> None:
        if history:
            write_whole(self.path, self._text(history))
        else:
            self._columns = []
            self.path.unlink(missing_ok=True)

    def _text(self, history: list[Row]) -> bytes:
        self._columns = History(history).names()
        lines = [self._line(row) for row in history]
        if self._is_table:
            lines.insert(0, _csv_line(self._columns))
        return "".join(lines).encode("utf-8")

    def _line(self, row: Mapping[str, object]) -> str:
        if self._is_table:
            return _csv_line([_cell(row.get(name)) for name in self._columns])
        return json.dumps(_json_value(row), allow_nan=False) + "\n"


def _csv_line(cells: Sequence[object]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(cells)
    return text.getvalue()


def _cell(value: object) -> Any:
    """Return the cell for `value`: floats have all their digits, None and NaN are empty."""
    value = _to_plain(value)
    if isinstance(value, float) and math.isnan(value):
        return None
    if isinstance(value, bool):
        return int(value)  # most readers take all columns of a table of figures as numbers
    return json.dumps(_json_value(value)) if isinstance(value, (list, dict)) else value


def _json_value(value: object) -> Any:
    """Return `value` for JSON, with None for NaN and infinities."""
    value = _to_plain(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(name): _json_value(item) for name, item in value.items()}
    return [_json_value(item) for item in value] if isinstance(value, list) else value


def _to_plain(value: object) -> Any:
    """Convert NumPy's values to Python's, and anything that is no plain data to a string."""
    if isinstance(value, (np.generic, np.ndarray)):
        value = value.tolist()
    if isinstance(value, tuple):
        return list(value)
    if value is None or isinstance(value, (str, bool, int, float, list, dict)):
        return value
    return str(value)
