"""ProgressHandler: a bar an epoch on a terminal, a line an epoch elsewhere."""

from __future__ import annotations

import numbers
import sys
from contextlib import ExitStack
from time import monotonic
from typing import Any, TextIO

import mxnet as mx
from gluon_svrg.data.training_data import length_of
from gluon_svrg.events import (
    BatchEnd,
    EpochBegin,
    EpochEnd,
    ExceptionRaised,
    Stateful,
    TrainBegin,
    TrainEnd,
)
from tqdm.auto import tqdm
from tqdm.contrib.logging import logging_redirect_tqdm

# To read the metrics waits for the device.
_SECONDS_BETWEEN_READS = 0.5
# What a line shows at its end, or not at all.
_SHOWN_APART = (
    "epoch",
    "seconds",
    "samples",
    "samples_per_second",
    "learning_rate",
    "coefficient",
    "peak_memory_mib",
)


class ProgressHandler(
    TrainBegin, EpochBegin, BatchEnd, EpochEnd, TrainEnd, ExceptionRaised, Stateful
):
    """Shows how far the run is, and the figures of each epoch.

    On a terminal: one tqdm bar over the epochs (or batches) of the run and one over the batches
    of the epoch, with the training metrics so far, and a line an epoch. They are read at most
    twice a second, since to read them waits for the device. Elsewhere: the line an epoch, through
    ``estimator.logger``. It has the metrics, what other handlers have added to the row, learning
    rate, SVRG's coefficient where it is on, and, in brackets, seconds and samples a second, as
    :class:`gluon_svrg.HistoryHandler` defines them.

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
        self._next_read = 0.0
        self._redirection = ExitStack()

    def train_begin(self, estimator: Any, *args: Any, **kwargs: Any) -> None:
        """Open the bar of the run."""
        self._close_bars()
        self._is_terminal = (self._file or sys.stderr).isatty()
        if estimator.resumed_from is None:  # else the position is not known yet
            self._open_bars(estimator)

    def load_state_dict(self, estimator: Any, state: dict[str, Any]) -> None:
        """Open the bars where the run goes on, which may be where it was before."""
        self._close_bars(leave=False)
        self._open_bars(estimator)

    def state_dict(self, estimator: Any) -> dict[str, Any]:
        """Return nothing: the estimator's position says it all."""
        return {}

    def epoch_begin(self, estimator: Any, *args: Any, **kwargs: Any) -> None:
        """Open the bar of the epoch."""
        self._open_bars(estimator)

    def batch_end(self, estimator: Any, *args: Any, **kwargs: Any) -> None:
        """Move the bars by one batch."""
        if not self._is_terminal:
            return
        run_bar, epoch_bar = self._run_bar, self._epoch_bar
        if run_bar is None or epoch_bar is None:  # resumed from a run without a ProgressHandler
            run_bar, epoch_bar = self._opened_run_bar(estimator), self._opened_epoch_bar(estimator)
        # True where tqdm has drawn the bar, which it does about ten times a second.
        if epoch_bar.update() and monotonic() >= self._next_read:
            self._next_read = monotonic() + _SECONDS_BETWEEN_READS
            epoch_bar.set_postfix_str(_metrics_of(estimator), refresh=False)
        if not estimator.max_epoch:
            run_bar.update()

    def epoch_end(self, estimator: Any, *args: Any, **kwargs: Any) -> None:
        """Show the row of the epoch."""
        line = _line(estimator.history[-1])
        if not self._is_terminal:
            estimator.logger.info(line)
            return
        self._close_epoch_bar()
        tqdm.write(line, file=self._file or sys.stderr)
        run_bar = self._opened_run_bar(estimator)
        if estimator.max_epoch:
            run_bar.update()

    def train_end(self, estimator: Any, *args: Any, **kwargs: Any) -> None:
        """Close the bars."""
        self._close_bars()

    def exception_raised(self, estimator: Any, *args: Any, **kwargs: Any) -> None:
        """Close the bars."""
        self._close_bars()

    def _open_bars(self, estimator: Any) -> None:
        if self._is_terminal:
            # A line of the log goes above the bars, not through them.
            self._redirection.close()
            self._redirection.enter_context(logging_redirect_tqdm([estimator.logger]))
            self._opened_run_bar(estimator)
            if estimator.position.is_in_epoch:
                self._opened_epoch_bar(estimator)

    def _opened_run_bar(self, estimator: Any) -> tqdm:
        """Return the bar of the run; open it at the estimator's position unless it is open."""
        if self._run_bar is None:
            position = estimator.position
            self._run_bar = tqdm(
                total=estimator.max_epoch or estimator.max_batch,
                initial=position.epoch if estimator.max_epoch else position.batch,
                desc="training",
                unit="epoch" if estimator.max_epoch else "batch",
                file=self._file,
            )
        return self._run_bar

    def _opened_epoch_bar(self, estimator: Any) -> tqdm:
        """Return the bar of the epoch; open it at the estimator's position unless it is open."""
        if self._epoch_bar is None:
            self._epoch_bar = tqdm(
                total=length_of(estimator.train_data),
                initial=estimator.position.batch_in_epoch,
                desc=f"epoch {estimator.position.epoch}",
                unit="batch",
                leave=False,
                file=self._file,
            )
            self._next_read = 0.0
        return self._epoch_bar

    def _close_bars(self, leave: bool = True) -> None:
        self._redirection.close()
        self._close_epoch_bar()
        if self._run_bar is not None:
            self._run_bar.leave = leave
            self._run_bar.close()
            self._run_bar = None

    def _close_epoch_bar(self) -> None:
        if self._epoch_bar is not None:
            self._epoch_bar.close()
            self._epoch_bar = None


def _metrics_of(estimator: Any) -> str:
    """Return the training metrics so far, by short names: a terminal has few columns."""
    return ", ".join(
        f"{'loss' if type(metric) is mx.metric.Loss else name.removeprefix('training ')} "
        f"{_text_of(value)}"
        for metric in estimator.train_metrics
        for name, value in metric.get_name_value()
    )


def _line(row: dict[str, Any]) -> str:
    """Return one line for a row of the history; what handlers have added is shown as well."""
    figures = [
        f"{name.replace('_', ' ')} {_text_of(value)}"
        for name, value in row.items()
        if name not in _SHOWN_APART
    ]
    figures.append(f"learning rate {_text_of(row['learning_rate'])}")
    if "coefficient" in row:
        figures.append(f"coefficient {_text_of(row['coefficient'])}")
    return (
        f"epoch {row['epoch']}: {', '.join(figures)} "
        f"({row['seconds']:.1f} s, {row['samples_per_second']:.0f} samples/s)"
    )


def _text_of(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, numbers.Real) else str(value)
