"""FitResult: what a call of `fit` returns."""

from __future__ import annotations

import html
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from os import PathLike
from pathlib import Path
from typing import Any

from gluon_svrg.files import write_whole
from gluon_svrg.reporting.curves import SPLITS, broken_off
from gluon_svrg.reporting.history import History
from gluon_svrg.reporting.report import duration, report_of
from gluon_svrg.reporting.text_table import cell, terminal_width
from gluon_svrg.stops import StopReason
from gluon_svrg.workers import current


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
            page = report_of(
                title,
                details or {},
                ended=self.ended,
                length=self.length,
                began=self.began,
                seconds=self.seconds,
                resumed_from=self.resumed_from,
                history=self.history,
                profile=self.profile,
                settings=self.settings,
            )
            write_whole(path, page.encode("utf-8", "replace"))
        return path
