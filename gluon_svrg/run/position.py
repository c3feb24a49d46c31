"""Position, StopReason and FitResult: how far a run is, why it ended, and what it returns."""

from __future__ import annotations

import html
import textwrap
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime
from enum import Enum
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gluon_svrg.files import write_whole
from gluon_svrg.run.curves import SPLITS, broken_off
from gluon_svrg.run.history import History
from gluon_svrg.run.report import duration, report_of
from gluon_svrg.run.text_table import cell, terminal_width
from gluon_svrg.run.verbosity import Verbose
from gluon_svrg.workers import Single, Workers, current
from mxnet.gluon.contrib import estimator as mx_estimator
from mxnet.gluon.contrib.estimator.event_handler import EventHandler

if TYPE_CHECKING:
    from gluon_svrg.data.training_data import TrainingData


class StopReason(Enum):
    """Why a run ended."""

    EPOCHS_DONE = "all epochs are done"
    BATCHES_DONE = "all batches are done"
    HANDLER = "a handler asked to stop"
    REQUESTED = "stop() was called"
    NO_IMPROVEMENT = "the monitored figure improved no longer"
    NOT_FINITE = "a loss, a gradient or a monitored figure was NaN or infinite"
    SIGNAL = "a signal (such as Ctrl-C or SIGTERM) asked to stop"
    TIME_LIMIT = "the time limit was reached"


@dataclass
class Position:
    """How far a run is.

    Attributes
    ----------
    epoch : int
        How many epochs are done, which is also the number of the current epoch.
    batch : int
        How many batches are done, in all epochs.
    batch_in_epoch : int
        How many of them in the current epoch.
    is_in_epoch : bool
        Whether the run is inside an epoch: from *epoch begin* until after *epoch end*.
    is_cut : bool
        Whether a handler has ended the current epoch early.
    heard : list of str
        The classes of the handlers that have got the current epoch's *epoch end* already, if a stop
        interrupted that event.
    """

    epoch: int = 0
    batch: int = 0
    batch_in_epoch: int = 0
    is_in_epoch: bool = False
    is_cut: bool = False
    heard: list[str] = field(default_factory=list)

    def at_epoch(self, epoch: int, num_batches: int | None) -> Position:
        """Return the position before `epoch`; if it is elsewhere, with `num_batches` per epoch."""
        is_here = epoch == self.epoch and not self.is_in_epoch
        return Position(epoch, self.batch if epoch and is_here else epoch * (num_batches or 0))

    def begin_epoch(self) -> None:
        """Move to the beginning of an epoch."""
        self.batch_in_epoch = 0
        self.is_in_epoch = True

    def end_batch(self) -> None:
        """Move on by one batch."""
        self.batch += 1
        self.batch_in_epoch += 1

    def end_epoch(self) -> None:
        """Move to the end of the epoch."""
        self.epoch += 1
        self.batch_in_epoch = 0
        self.is_in_epoch = self.is_cut = False
        self.heard = []

    def state_dict(self) -> dict[str, Any]:
        """Return the fields; without an empty `heard`, which version 0.2 does not know."""
        return {name: value for name, value in asdict(self).items() if name != "heard" or value}


class RunWithPosition:
    """Base class of runs that know their data and position, with defaults for MXNet's Estimator.

    Attributes
    ----------
    data : TrainingData
        The training data.
    position : Position
        How many epochs and batches are done.
    max_epoch, max_batch : int or None
        The length of the run: exactly one of them is given.
    figures : dict of str to number
        Figures for the history's row of the current epoch; MXNet's Estimator has no history.
    handlers : iterable of EventHandler
        The handlers of the run; empty for MXNet's Estimator.
    verbose : 'auto', 0, 1 or 2
        How much is shown: see :meth:`Estimator.fit`.
    workers : Workers
        The processes that train together; MXNet's Estimator has one.
    batch_axis : int
        The axis of the samples.
    stop_requested : bool
        Whether the run is to end; always False for MXNet's Estimator.
    """

    data: TrainingData
    position: Position
    max_epoch: int | None
    max_batch: int | None
    figures: dict[str, Any]
    handlers: Iterable[EventHandler]
    verbose: Verbose = "auto"
    workers: Workers = Single()
    batch_axis: int = 0

    def should_stop_together(self, label: str) -> bool:
        """Return whether a stop was requested on any worker; all workers call this together."""
        return self.workers.any(self.stop_requested, label)

    @property
    def stop_requested(self) -> bool:
        """See the class."""
        return False

    def completed_fraction(self, extra_batches: int = 0) -> float:
        """Return the fraction of the run that is done, in [0, 1], for a coefficient schedule.

        In a run of `epochs` it counts whole epochs; :attr:`Estimator.progress` counts batches, too.
        `extra_batches` more batches count as done: 1 at *batch end*.
        """
        if self.max_epoch:
            return self.position.epoch / self.max_epoch
        return (self.position.batch + extra_batches) / (self.max_batch or 1)


@dataclass(frozen=True, repr=False)
class FitResult:
    """What :meth:`Estimator.fit` returns.

    Attributes
    ----------
    stop_reason : StopReason
        Why the run ended.
    epochs_run : int
        The number of epochs in which a batch was trained, a last one that was cut short included;
        those before a resume and before `initial_epoch` count, too.
    history : History
        A list with one row (a dict) an epoch: see :class:`HistoryHandler`.
    settings : dict
        What optimizer, schedule, loss and handlers were given, as plain data.
    began : datetime or None
        When the call of `fit` began, with its time zone.
    seconds : float
        How long the call of `fit` took; the history's seconds include those before a resume.
    resumed_from : str
        The folder of the checkpoint from which the run was resumed, or an empty text.
    profile : History
        The row of each profiled epoch, if there was a :class:`ProfilerHandler`.
    not_finite : dict of str to float
        The losses that are NaN or infinite in the last epoch, by their names in the history.
    """

    stop_reason: StopReason
    epochs_run: int
    history: History
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    began: datetime | None = None
    seconds: float = 0.0
    resumed_from: str = ""
    profile: History = field(default_factory=History)
    not_finite: Mapping[str, float] = field(default_factory=dict)

    @property
    def ended(self) -> str:
        """Why the run ended, as text, and which losses are not finite."""
        bad = " and ".join(f"{name} is {value:g}" for name, value in self.not_finite.items())
        return f"{self.stop_reason.value}, but {bad}" if bad else self.stop_reason.value

    @property
    def length(self) -> str:
        """The number of epochs and how long they took, as text."""
        seconds = sum(row.get("seconds", 0.0) for row in self.history)
        return f"{self.epochs_run} epoch{'s' * (self.epochs_run != 1)} in {duration(seconds)}"

    def __repr__(self) -> str:
        """Return why the run ended, how long it was, and the metrics of its last epoch."""
        width = terminal_width()
        return "\n".join(
            textwrap.fill(line, width, subsequent_indent="    ") for line in self._lines()
        )

    def _repr_html_(self) -> str:
        """Return what a notebook shows: the same, and the history as a table."""
        lines = "<br>".join(map(html.escape, self._lines()))
        return f"<p>{lines}</p>{self.history._repr_html_() if self.history else ''}"

    def _lines(self) -> list[str]:
        last = self.history[-1] if self.history else {}
        metrics = [f"{name} {cell(v)}" for name, v in last.items() if name.startswith(SPLITS)]
        lines = [f"FitResult: {self.ended}", self.length]
        return list(filter(None, [*lines, broken_off(self.history[-1:]), ", ".join(metrics)]))

    def report(
        self,
        path: str | PathLike[str],
        title: str = "Training run",
        details: Mapping[str, object] | None = None,
    ) -> Path:
        """Write the run as one HTML page that needs no other file and no network.

        The page shows why and when the run ended, the last and the best value of each metric, the
        curves of all figures, where the time went (by phase, if there was a
        :class:`ProfilerHandler`), a table of all epochs, what optimizer, schedule, loss and
        handlers were given, and versions and devices of this process. It fits a phone and a
        wide screen, in light and in dark.

        Parameters
        ----------
        path : str or path
            The file, such as ``"run.html"``; an existing one is replaced. Parent folders are made.
            Of several workers the first one writes it.
        title : str
            The heading of the page.
        details : mapping of str to object, optional
            What the page tells besides, by name: a command, a data set, a result. A mapping, as of
            the options of a script, becomes a part of the configuration.

        Returns
        -------
        Path
            The file.

        Raises
        ------
        OSError
            If the file cannot be written; an existing one then is as it was.
        """
        path = Path(path)
        if current().is_first:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(path, report_of(self, title, details or {}).encode("utf-8", "replace"))
        return path


def require_estimator(handler: EventHandler, estimator: object) -> None:
    """Raise ValueError if `estimator` is MXNet's, which does not know its position."""
    if isinstance(estimator, mx_estimator.Estimator) and not isinstance(estimator, RunWithPosition):
        raise ValueError(
            f"{type(handler).__name__} does not work with {type(estimator).__module__}."
            f"{type(estimator).__name__}: use gluon_svrg.Estimator, which takes the same arguments"
        )
