"""ProgressHandler: bars on a terminal and in a notebook, and one line per epoch everywhere."""

from __future__ import annotations

import numbers
from collections.abc import Mapping
from contextlib import ExitStack
from time import monotonic
from typing import Any, TextIO

import mxnet as mx
from gluon_svrg.events import (
    BatchEnd,
    EpochBegin,
    EpochEnd,
    ExceptionRaised,
    HasExclusiveTasks,
    Order,
    RequiresRun,
    Run,
    State,
    Stateful,
    TrainBegin,
    TrainEnd,
)
from gluon_svrg.metrics.setup import figures_of
from gluon_svrg.reporting.curves import RATIO, RATIO_AT
from gluon_svrg.reporting.logger import redirect_to_tqdm
from gluon_svrg.reporting.verbosity import shows_bars
from tqdm.auto import tqdm

# Reading the metrics waits for the device.
_SECONDS_BETWEEN_READS = 0.5
_MAX_ITEMS = 4
# The figures that a line shows at its end, or not at all.
_SHOWN_APART = (
    "epoch",
    "seconds",
    "samples",
    "batches",
    "complete",
    "samples_per_second",
    "learning_rate",
    "coefficient",
    "peak_memory_mib",
)


class ProgressHandler(
    TrainBegin,
    EpochBegin,
    BatchEnd,
    EpochEnd,
    TrainEnd,
    ExceptionRaised,
    Stateful,
    HasExclusiveTasks,
    RequiresRun,
):
    """Shows how far the run is, and the figures of each epoch.

    On a terminal and in a notebook: one tqdm bar over the epochs (or batches) of the run, and one
    over the batches of the epoch with the training metrics so far. The metrics are read at most
    twice per second, because reading them waits for the device. Everywhere: one line per epoch, by
    ``estimator.logger``. It has the metrics, the figures that other handlers have added to the
    row, the learning rate, SVRG's coefficient if SVRG is on, and, in brackets, the seconds and the
    samples per second, as :class:`gluon_svrg.HistoryHandler` defines them. The argument `verbose`
    of :meth:`gluon_svrg.Estimator.fit` asks for bars and lines, or for lines alone, or for
    neither. Of several workers the first one shows them.

    Parameters
    ----------
    file : text stream, optional
        The stream for the bars, by default ``sys.stderr``; with ``verbose='auto'`` its
        ``isatty()`` says whether there are bars.
    priority : float
        Last, so that every figure is there.
    """

    state_key = "progress"

    def __init__(self, file: TextIO | None = None, priority: float = Order.LAST) -> None:
        self.priority = float(priority)
        self._file = file
        self._has_bars = False
        self._run_bar: tqdm | None = None
        self._epoch_bar: tqdm | None = None
        self._next_read = 0.0
        self._redirection = ExitStack()

    def exclusive_tasks(self) -> list[str]:
        """Return its task."""
        return ["show the progress"]

    def train_begin(self, estimator: Run, *args: Any, **kwargs: Any) -> None:
        """Open the bar of the run."""
        self._close_bars()
        self._has_bars = shows_bars(estimator.verbose, self._file)
        if estimator.resumed_from is None:  # at a resume the position is not known yet
            self._open_bars(estimator)

    def load_state_dict(self, estimator: Run, state: State) -> None:
        """Open the bars at the position of the checkpoint, which may be an earlier one."""
        self._close_bars(leave=False)
        self._open_bars(estimator)

    def state_dict(self, estimator: Run) -> State:
        """Return an empty state: the estimator's position is enough."""
        return {}

    def epoch_begin(self, estimator: Run, *args: Any, **kwargs: Any) -> None:
        """Open the bar of the epoch."""
        self._open_bars(estimator)

    def batch_end(self, estimator: Run, *args: Any, **kwargs: Any) -> None:
        """Move the bars by one batch."""
        if not self._has_bars:
            return
        run_bar, epoch_bar = self._run_bar, self._epoch_bar
        if run_bar is None or epoch_bar is None:  # resumed from a run without a ProgressHandler
            run_bar, epoch_bar = self._opened_run_bar(estimator), self._opened_epoch_bar(estimator)
        # True if tqdm has drawn the bar, which it does about ten times per second.
        if epoch_bar.update() and monotonic() >= self._next_read:
            self._next_read = monotonic() + _SECONDS_BETWEEN_READS
            epoch_bar.set_postfix_str(_metrics_of(estimator), refresh=False)
        if not estimator.max_epoch:
            run_bar.update()

    def epoch_end(self, estimator: Run, *args: Any, **kwargs: Any) -> None:
        """Show the row of the epoch."""
        self._close_epoch_bar()
        estimator.logger.info(_line(estimator.history[-1], estimator.data.num_batches))
        if self._has_bars and estimator.max_epoch:
            self._opened_run_bar(estimator).update()

    def train_end(self, estimator: Run, *args: Any, **kwargs: Any) -> None:
        """Close the bars."""
        self._close_bars()

    def exception_raised(self, estimator: Run, *args: Any, **kwargs: Any) -> None:
        """Close the bars."""
        self._close_bars()

    def _open_bars(self, estimator: Run) -> None:
        if self._has_bars:
            # Lines of the log are written above the bars, not into them.
            self._redirection.close()
            self._redirection.enter_context(redirect_to_tqdm(estimator.logger))
            self._opened_run_bar(estimator)
            if estimator.position.is_in_epoch:
                self._opened_epoch_bar(estimator)

    def _opened_run_bar(self, estimator: Run) -> tqdm:
        """Return the bar of the run, opened at the estimator's position if it was not open."""
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

    def _opened_epoch_bar(self, estimator: Run) -> tqdm:
        """Return the bar of the epoch, opened at the estimator's position if it was not open."""
        if self._epoch_bar is None:
            self._epoch_bar = tqdm(
                total=estimator.data.num_batches,
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


def _metrics_of(estimator: Run) -> str:
    """Return the training metrics so far, with short names: a terminal has few columns."""
    return ", ".join(
        f"{'loss' if type(metric) is mx.metric.Loss else name.removeprefix('training ')} "
        f"{_text_of(value)}"
        for metric in estimator.train_metrics
        for name, value in figures_of(metric)
    )


def _line(row: Mapping[str, object], num_batches: int | None) -> str:
    """Return one line for a row of the history, with the figures that handlers have added."""
    epoch = f"epoch {row['epoch']}"
    if row.get("complete") is False:
        of = "" if num_batches is None else f" of {num_batches}"
        epoch += f", broken off after {row['batches']}{of} batches"
    figures = [
        f"{name.replace('_', ' ')} {_text_of(value)}"
        for name, value in row.items()
        if name not in _SHOWN_APART and not name.startswith(RATIO)
    ]
    if RATIO in row:
        figures.append(f"variance ratio {_ratios_of(row)}")
    figures.append(f"learning rate {_text_of(row['learning_rate'])}")
    if "coefficient" in row:
        figures.append(f"coefficient {_text_of(row['coefficient'])}")
    return (
        f"{epoch}: {', '.join(figures)} "
        f"({row['seconds']:.1f} s, {row['samples_per_second']:.0f} samples/s)"
    )


def _ratios_of(row: Mapping[str, object]) -> str:
    """Return the average over the epoch and the range of what was measured.

    The average counts the beginning of the epoch, too, where the ratio is 0: it may be less than
    all that was measured.
    """
    values = [row[name] for name in row if name.startswith(RATIO_AT)]
    points = [float(value) for value in values if isinstance(value, numbers.Real)]
    average = row[RATIO]
    text = f"{average:.2g}" if isinstance(average, numbers.Real) else str(average)
    if not points:
        return text
    low, high = f"{min(points):.2g}", f"{max(points):.2g}"
    return f"{text} on average (measured {low if low == high else f'{low} to {high}'})"


def _text_of(value: object) -> str:
    if isinstance(value, list):
        shown = [_text_of(item) for item in value[:_MAX_ITEMS]]
        return f"[{', '.join(shown)}{', ...' if len(value) > _MAX_ITEMS else ''}]"
    return f"{value:.4g}" if isinstance(value, numbers.Real) else str(value)
