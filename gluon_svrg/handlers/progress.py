"""ProgressHandler: a bar an epoch on a terminal, a line an epoch elsewhere."""

from __future__ import annotations

import sys
from typing import Any, TextIO

from gluon_svrg.batches import length_of
from gluon_svrg.events import (
    BatchEnd,
    EpochBegin,
    EpochEnd,
    ExceptionRaised,
    TrainBegin,
    TrainEnd,
)
from tqdm.auto import tqdm


class ProgressHandler(TrainBegin, EpochBegin, BatchEnd, EpochEnd, TrainEnd, ExceptionRaised):
    """Shows how far the run is, and the figures of each epoch.

    On a terminal: one tqdm bar over the epochs (or batches) of the run and one over the batches
    of the epoch. Elsewhere: one line an epoch through ``estimator.logger``.

    Parameters
    ----------
    file : text stream, optional
        Where the bars go, by default ``sys.stderr``; its ``isatty()`` decides between bars and
        lines.
    priority : float
        Last, so that every figure is there.
    """

    def __init__(self, file: TextIO | None = None, priority: float = float("inf")) -> None:
        self.priority = priority
        self._file = file
        self._is_terminal = False
        self._run_bar: tqdm | None = None
        self._epoch_bar: tqdm | None = None

    def train_begin(self, estimator: Any, *args: Any, **kwargs: Any) -> None:
        """Open the bar of the run."""
        self._is_terminal = (self._file or sys.stderr).isatty()
        if self._is_terminal:
            self._run_bar = tqdm(
                total=estimator.max_epoch or estimator.max_batch,
                desc="training",
                unit="epoch" if estimator.max_epoch else "batch",
                file=self._file,
            )

    def epoch_begin(self, estimator: Any, *args: Any, **kwargs: Any) -> None:
        """Open the bar of the epoch."""
        if self._is_terminal:
            self._epoch_bar = tqdm(
                total=length_of(estimator.train_data),
                desc=f"epoch {len(estimator.history)}",
                unit="batch",
                leave=False,
                file=self._file,
            )

    def batch_end(self, estimator: Any, *args: Any, **kwargs: Any) -> None:
        """Move the bars by one batch."""
        if self._epoch_bar is not None:
            self._epoch_bar.update()
        if self._run_bar is not None and not estimator.max_epoch:
            self._run_bar.update()

    def epoch_end(self, estimator: Any, *args: Any, **kwargs: Any) -> None:
        """Show the row of the epoch."""
        row = estimator.history[-1]
        if self._run_bar is None:
            estimator.logger.info(_line(row))
            return
        self._close_epoch_bar()
        tqdm.write(_line(row), file=self._file or sys.stderr)
        if estimator.max_epoch:
            self._run_bar.update()

    def train_end(self, estimator: Any, *args: Any, **kwargs: Any) -> None:
        """Close the bars."""
        self._close_epoch_bar()
        if self._run_bar is not None:
            self._run_bar.close()
            self._run_bar = None

    def exception_raised(self, estimator: Any, *args: Any, **kwargs: Any) -> None:
        """Close the bars."""
        self.train_end(estimator)

    def _close_epoch_bar(self) -> None:
        if self._epoch_bar is not None:
            self._epoch_bar.close()
            self._epoch_bar = None


def _line(row: dict[str, Any]) -> str:
    """Return one line for a row of the history; any figure whose name is new is shown as well."""
    rate = row["samples"] / row["seconds"] if row["seconds"] else 0
    known = {"epoch", "seconds", "samples", "learning_rate"}
    figures = [f"{name} {value:.4g}" for name, value in row.items() if name not in known]
    figures.append(f"learning rate {row['learning_rate']:.4g}")
    return f"epoch {row['epoch']}: {', '.join(figures)} ({row['seconds']:.1f} s, {rate:.0f}/s)"
