"""SignalHandler: Ctrl-C, SIGTERM and SIGUSR1 end a run at the next safe moment."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from types import FrameType
from typing import Any, TypeAlias

from gluon_svrg.events import (
    ExceptionRaised,
    HasExclusiveTasks,
    RequiresRun,
    Run,
    TrainBegin,
    TrainEnd,
)
from gluon_svrg.stops import StopReason

# The kernel does not let a process handle the first two. After a handler for one of the others,
# the instruction that has failed would fail again, for ever.
_REFUSED = frozenset(
    {
        *(signal.SIGKILL, signal.SIGSTOP),
        *(signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL),
    }
)
_DEFAULT = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
# As `signal.signal` returns it; None for one that was not installed from Python.
_Handler: TypeAlias = Callable[[int, FrameType | None], Any] | int | None


class SignalHandler(TrainBegin, TrainEnd, ExceptionRaised, HasExclusiveTasks, RequiresRun):
    """Lets Ctrl-C, SIGTERM and SIGUSR1 end the run after the current batch.

    That is a batch of the training, of SVRG's full pass or of a ValidationHandler's evaluation; a
    full pass or an evaluation that was interrupted is repeated after a resume. A checkpoint that
    is being written is finished. A CheckpointHandler then writes a checkpoint, `fit` returns with
    ``StopReason.SIGNAL``, and ``fit(..., resume='auto')`` continues the run later. A second signal
    acts as if there were no handler: Ctrl-C raises KeyboardInterrupt at once, SIGTERM and SIGUSR1
    end the process. If one of several workers gets a signal, all of them stop after the same batch.

    The Estimator adds this handler to runs with a CheckpointHandler. Python delivers signals to
    the main thread only: in another thread this handler does nothing.

    Parameters
    ----------
    signals : list of signal.Signals, optional
        The signals that end the run, such as ``[signal.SIGTERM, signal.SIGUSR2]``. By default
        SIGINT (Ctrl-C), SIGTERM, and SIGUSR1, which Slurm can send before a time limit; but not
        SIGUSR1 if your script or a library handles or ignores it already.

    Raises
    ------
    TypeError, ValueError
        If `signals` is no list of signals, is empty, or has one that cannot be handled.
    """

    def __init__(self, signals: Iterable[int] | None = None) -> None:
        self.signals = None if signals is None else _checked(signals)
        self._before: dict[int, _Handler] = {}

    def exclusive_tasks(self) -> list[str]:
        """Return the signals that it may handle."""
        return [f"handle {_name(number)}" for number in self.signals or _DEFAULT]

    def train_begin(self, estimator: Run, *args: Any, **kwargs: Any) -> None:
        """Install this handler for its signals."""
        if threading.current_thread() is not threading.main_thread():
            return

        def stop(number: int, _: FrameType | None) -> None:
            self._give_back()
            estimator.stop(StopReason.SIGNAL)
            # All workers get the launcher's signal: one of them warns.
            estimator.logger.log(
                logging.WARNING if estimator.workers.is_first else logging.INFO,
                "%s: stopping after this batch; %s again to stop at once",
                *(
                    ("Ctrl-C", "press it")
                    if number == signal.SIGINT
                    else (_name(number), "send it")
                ),
            )

        signals = self.signals
        if signals is None:
            signals = [signal.SIGINT, signal.SIGTERM]
            # In several workers MPICH has a handler of it, for jobs that continue after a failure.
            if signal.getsignal(signal.SIGUSR1) == signal.SIG_DFL and (
                estimator.workers.is_distributed or not _is_caught(signal.SIGUSR1)
            ):
                signals.append(signal.SIGUSR1)
        for number in signals:
            self._before[number] = signal.signal(number, stop)

    def train_end(self, estimator: Run, *args: Any, **kwargs: Any) -> None:
        """Install the earlier handlers again."""
        self._give_back()

    def exception_raised(self, estimator: Run, *args: Any, **kwargs: Any) -> None:
        """Install the earlier handlers again."""
        self._give_back()

    def _give_back(self) -> None:
        while self._before:
            number, handler = self._before.popitem()
            # One that was not installed from Python cannot be installed from here.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)


def _checked(signals: object) -> list[signal.Signals | int]:
    """Return the signals, each once; raise TypeError or ValueError with the way out."""
    way_out = "give a list such as [signal.SIGTERM, signal.SIGUSR1]"
    if isinstance(signals, (str, bytes)) or not isinstance(signals, Iterable):
        raise TypeError(f"signals must be a list of signals, got {signals!r}: {way_out}")
    numbers = list(dict.fromkeys(signals))
    for number in numbers:
        if isinstance(number, bool) or not isinstance(number, int):
            raise TypeError(f"signals must hold signals, got {number!r}: {way_out}")
        if number not in signal.valid_signals():
            raise ValueError(
                f"signals has {number!r}, which is no signal of this system: {way_out}"
            )
        if number in _REFUSED:
            raise ValueError(
                f"signals has {_name(number)}, after which no run can continue to the end of its "
                f"batch: {way_out}"
            )
    if not numbers:
        raise ValueError(f"signals is empty, so that no signal would end the run: {way_out}")
    return numbers


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return f"signal {number}"


def _is_caught(number: int) -> bool:
    """Return whether a signal has a handler, also one in C, as `faulthandler.register` makes."""
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:  # not on Linux
        return False
    caught = next((line for line in status.splitlines() if line.startswith("SigCgt:")), "SigCgt: 0")
    return bool(int(caught.split()[1], 16) >> (number - 1) & 1)
