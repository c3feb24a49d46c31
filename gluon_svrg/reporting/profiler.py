"""ProfilerHandler: where the time of an epoch goes."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from os import PathLike, fspath
from os.path import realpath
from pathlib import Path
from typing import Any, cast

from gluon_svrg.arguments import check_integer, check_path
from gluon_svrg.checkpoint.handler import CheckpointHandler
from gluon_svrg.events import (
    EventHandler,
    ExceptionRaised,
    HandlerList,
    HasExclusiveTasks,
    Order,
    RequiresRun,
    Run,
    TrainBegin,
    TrainEnd,
)
from gluon_svrg.files import make_folder
from gluon_svrg.reporting.history import History
from gluon_svrg.reporting.operator_trace import OperatorTrace
from gluon_svrg.reporting.timings import PhaseClock, table_of
from gluon_svrg.svrg.handler import SVRGHandler
from mxnet.gluon.contrib import estimator as mx_estimator

# What the time before an event belongs to, when the handlers of the event before are done.
_BEFORE = {
    "epoch_begin": "data",
    "batch_begin": "data",
    "gradient_ready": "forward and backward",
    "epoch_end": "data",  # the data were asked once more than they have batches
}
_OF_HANDLERS: list[tuple[type[EventHandler], str]] = [
    (SVRGHandler, "correction"),
    (mx_estimator.GradientUpdateHandler, "step"),
    (mx_estimator.MetricHandler, "metrics"),
    (mx_estimator.ValidationHandler, "validation"),
    (CheckpointHandler, "checkpoint"),
]


class ProfilerHandler(TrainBegin, TrainEnd, ExceptionRaised, HasExclusiveTasks, RequiresRun):
    """Measures where the time of an epoch goes: a table, and a trace of MXNet's operators.

    The phases: ``data`` (waiting for batches), ``forward and backward``, ``full pass`` and
    ``correction`` (the SVRGHandler, at the begin of an epoch and at a batch), ``step`` (the
    optimizer), ``metrics`` (of the training), ``validation``, ``checkpoint``, and ``other`` (the
    other handlers, and the loop). Each moment belongs to one of them, so they add up to the time of
    the epoch. An epoch ends when the next begins: what is written after it is its own.

    MXNet computes in threads of its own, while Python is ahead. So that the time of a computation
    goes to the phase that has asked for it, the profiled epochs wait for MXNet after each phase.
    The results are the same bits; the cost is that Python and MXNet take turns, which a small
    network feels (docs/howto/profile.md has figures).

    Over several workers the first one is measured: what it waits for the others is part of the
    phase in which it does.

    Parameters
    ----------
    epochs : int or iterable of int, optional
        The epochs to profile, from 0; by default all. The first one of a run includes what
        MXNet sets up once.
    synchronize : bool
        Whether each phase waits for MXNet. If not, nothing is slowed down, and a phase has the time
        that Python spends in it: computations count in the phase that waits for their results.
    trace : str or path, optional
        A ``.json`` file for the trace: MXNet's operators by thread, and the phases, for
        ``chrome://tracing`` or https://ui.perfetto.dev. MXNet has one profiler
        (``mxnet.profiler``), whose settings it replaces.
    trace_batches : pair of int
        Of the first profiled epoch, the batch with which the trace begins (from 0), and the one
        before which it ends.
    overwrite : bool
        Whether an existing trace is replaced; if not, that is an error before any training.
    priority : float
        Last, so that the table follows what the others log.

    Attributes
    ----------
    profile : History
        One row for each profiled epoch: ``epoch``, ``seconds``, ``batches``, and the seconds of
        each phase, by its name.
    calls : list of dict
        For each handler and event: ``handler``, ``event``, ``phase``, ``calls`` and ``seconds``
        over all profiled epochs, the longest first. It is there when the run has ended.

    Raises
    ------
    TypeError, ValueError
        If an argument is of the wrong type or out of its range.
    """

    def __init__(
        self,
        epochs: int | Iterable[int] | None = None,
        *,
        synchronize: bool = True,
        trace: str | PathLike[str] | None = None,
        trace_batches: tuple[int, int] = (5, 15),
        overwrite: bool = False,
        priority: float = Order.LAST,
    ) -> None:
        self.epochs = _checked_epochs(epochs)
        for name, value in (("synchronize", synchronize), ("overwrite", overwrite)):
            if not isinstance(value, bool):
                raise TypeError(f"{name} must be a bool, got {value!r}: give True or False")
        first, end = trace_batches
        check_integer("trace_batches[0]", first, 0, "the trace begins with that batch")
        check_integer("trace_batches[1]", end, first + 1, "the trace ends before that batch")
        self.synchronize, self.overwrite, self.priority = synchronize, overwrite, float(priority)
        self.trace = None if trace is None else check_path("trace", trace, "the file of the trace")
        if self.trace is not None and self.trace.suffix.lower() != ".json":
            raise ValueError(
                f"trace must end in .json, got {fspath(self.trace)!r}: it is in the JSON format of "
                "Chrome's traces"
            )
        self.trace_batches = (first, end)
        self._reset()

    def _reset(self) -> None:
        self.profile = History()
        self.calls: list[dict[str, Any]] = []
        self._clock: PhaseClock | None = None
        self._epoch = self._batches = 0
        self._begin = 0.0
        self._calls: dict[tuple[str, str, str], list[float]] = {}
        self._tracing: OperatorTrace | None = None
        self._has_traced = False

    def exclusive_tasks(self) -> list[str]:
        """Return its tasks."""
        trace = [] if self.trace is None else [f"write {realpath(self.trace)!r}"]
        return ["measure the time of the other handlers", *trace]

    def train_begin(self, estimator: Run, *args: Any, **kwargs: Any) -> None:
        """Make sure that the trace can be written, and listen to all events.

        Raises
        ------
        FileExistsError, PermissionError
            If the trace exists already, or cannot be written.
        ValueError
            If the run is one of MXNet's own Estimator, or has another ProfilerHandler.
        """
        self._reset()
        if not estimator.workers.is_first:
            return
        if self.trace is not None:
            _check_file(self.trace, self.overwrite)
        cast(HandlerList, estimator.handlers).interceptor = self._observe

    def train_end(self, estimator: Run, *args: Any, **kwargs: Any) -> None:
        """Log the table."""
        if not estimator.workers.is_first:
            return
        self._end(estimator)
        if self.profile:
            estimator.logger.info("%s", self.table())
        else:
            estimator.logger.warning(
                "nothing was profiled: epochs=%r are not among the epochs of this run",
                sorted(self.epochs or ()),
            )
        if self.trace is not None and not self._has_traced:
            estimator.logger.warning(
                "there is no trace: no profiled epoch has come to the batch trace_batches[0]=%d",
                self.trace_batches[0],
            )

    def exception_raised(self, estimator: Run, *args: Any, **kwargs: Any) -> None:
        """Stop MXNet's profiler."""
        if self._tracing is not None:
            self._tracing.cancel()
            self._tracing = None
        if getattr(estimator, "handlers", None) is not None:
            cast(HandlerList, estimator.handlers).interceptor = None

    def table(self) -> str:
        """Return the phases of all profiled epochs as text, with their shares."""
        epochs = ", ".join(str(row["epoch"]) for row in self.profile)
        plural = "s" if len(self.profile) > 1 else ""
        return f"profile of epoch{plural} {epochs or '(none)'}\n{table_of(self.profile)}"

    def _observe(
        self,
        event: str,
        handlers: Sequence[EventHandler],
        estimator: Run,
        details: dict[str, Any],
    ) -> list[EventHandler]:
        """Call the handlers, and measure if the epoch is to be profiled."""
        if event in ("epoch_begin", "batch_begin"):
            self._look_at_epoch(event, estimator)
        elif event == "train_end":
            self._end(estimator)
        clock = self._clock
        if clock is None:
            return [h for h in handlers if getattr(h, event)(estimator, **details)]
        clock.lap(_BEFORE.get(event, "other"))
        if self.trace is not None:
            self._look_at_trace(event, estimator, clock)
        self._batches += event == "batch_begin"
        answered = []
        for handler in handlers:
            if getattr(handler, event)(estimator, **details):
                answered.append(handler)
            name, phase = type(handler).__name__, _phase_of(handler, event)
            seconds = clock.lap(phase, f"{name}.{event}")
            call = self._calls.setdefault((name, event, phase), [0, 0.0])
            call[0] += 1
            call[1] += seconds
        return answered

    def _look_at_epoch(self, event: str, estimator: Run) -> None:
        """End the epoch before, and begin this one, if it is to be profiled."""
        epoch = estimator.position.epoch
        if self._clock is not None and event == "batch_begin" and epoch == self._epoch:
            return
        is_profiled = self.epochs is None or epoch in self.epochs
        clock, self._clock = self._clock, None
        if clock is not None:
            self._append_row(clock)
            if self._tracing is not None:  # the epoch was left without its end, to go back
                self._write_trace(estimator, clock)
                clock.last = time.perf_counter()
        if not is_profiled:
            return
        if clock is None:
            clock = PhaseClock(self.synchronize)
        clock.clear()
        self._clock, self._epoch, self._batches, self._begin = clock, epoch, 0, clock.last

    def _append_row(self, clock: PhaseClock) -> None:
        seconds = clock.last - self._begin
        row = {"epoch": self._epoch, "seconds": seconds, "batches": self._batches}
        self.profile.append(row | clock.seconds)

    def _look_at_trace(self, event: str, estimator: Run, clock: PhaseClock) -> None:
        """Begin or end the trace, if it is time; none of it counts."""
        first, end = self.trace_batches
        batch = estimator.position.batch_in_epoch
        if self._tracing is None:
            if event == "batch_begin" and not self._has_traced and first <= batch < end:
                self._tracing, clock.spans = OperatorTrace(), []
        elif event == "epoch_end" or (event == "batch_begin" and batch >= end):
            self._write_trace(estimator, clock)
        else:
            return
        now = time.perf_counter()
        self._begin += now - clock.last
        clock.last = now

    def _write_trace(self, estimator: Run, clock: PhaseClock) -> None:
        assert self._tracing is not None
        assert self.trace is not None
        tracing, self._tracing, self._has_traced = self._tracing, None, True
        spans, clock.spans = clock.spans or [], None
        try:
            operators = tracing.finish(self.trace, spans)
        except OSError as e:
            estimator.logger.warning(
                "the trace cannot be written into %r (%s): the run continues without",
                fspath(self.trace),
                e,
            )
        else:
            estimator.logger.info(
                "%s has the trace of %d operators: open it in chrome://tracing or "
                "https://ui.perfetto.dev",
                fspath(self.trace),
                operators,
            )

    def _end(self, estimator: Run) -> None:
        """End the last epoch, and no longer listen."""
        cast(HandlerList, estimator.handlers).interceptor = None
        clock, self._clock = self._clock, None
        if clock is not None:
            if self._tracing is not None:
                self._write_trace(estimator, clock)
            self._append_row(clock)
        self.calls = [
            {"handler": name, "event": event, "phase": phase, "calls": calls, "seconds": seconds}
            for (name, event, phase), (calls, seconds) in sorted(
                self._calls.items(), key=lambda item: -item[1][1]
            )
        ]


def _phase_of(handler: EventHandler, event: str) -> str:
    phase = next((phase for kind, phase in _OF_HANDLERS if isinstance(handler, kind)), "other")
    if event == "evaluate":
        return "validation"
    return "full pass" if phase == "correction" and event == "epoch_begin" else phase


def _checked_epochs(epochs: int | Iterable[int] | None) -> frozenset[int] | None:
    if epochs is None:
        return None
    try:
        numbers = [epochs] if isinstance(epochs, int) else list(epochs)
    except TypeError:
        raise TypeError(
            f"epochs must be an integer or several, got {epochs!r}: they count from 0"
        ) from None
    for number in numbers:
        check_integer("epochs", number, 0, "the profiled epochs count from 0")
    if not numbers:
        raise ValueError("epochs must hold at least one epoch, got none: leave it out for all")
    return frozenset(numbers)


def _check_file(path: Path, overwrite: bool) -> None:
    if path.exists() and not overwrite:
        raise FileExistsError(
            f"the file {fspath(path)!r} exists already: give another trace, or replace the file by "
            "overwrite=True"
        )
    try:
        make_folder(path.parent)
    except OSError as e:
        raise PermissionError(
            f"trace {fspath(path)!r} cannot be written ({e}): give one in a folder that you may "
            "write to"
        ) from e
