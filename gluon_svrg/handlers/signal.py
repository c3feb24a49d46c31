"""SignalHandler: Ctrl-C and SIGTERM end a run at the next safe moment."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, TypeAlias

from gluon_svrg.events import ExceptionRaised, HasExclusiveTasks, Run, TrainBegin, TrainEnd
from gluon_svrg.run.position import StopReason, require_estimator

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
# As `signal.signal` returns it; None for one that was not installed from Python.
_Handler: TypeAlias = Callable[[int, FrameType | None], Any] | int | None


class SignalHandler(TrainBegin, TrainEnd, ExceptionRaised, HasExclusiveTasks):
    """Lets Ctrl-C and SIGTERM end the run after the current batch.

    That is a batch of the training, of SVRG's full pass or of a ValidationHandler's evaluation; a
    full pass or an evaluation that was interrupted is repeated after a resume. A checkpoint that
    is being written is finished. A CheckpointHandler then writes a checkpoint, `fit` returns with
    ``StopReason.SIGNAL``, and ``fit(..., resume='auto')`` continues the run later. A second signal
    acts as if there were no handler: Ctrl-C raises KeyboardInterrupt at once, SIGTERM ends the
    process. If one of several workers gets a signal, all of them stop after the same batch.

    The Estimator adds this handler to runs with a CheckpointHandler. Python delivers signals to
    the main thread only: in another thread this handler does nothing.
    """

    def __init__(self) -> None:
        self._before: dict[signal.Signals, _Handler] = {}

    def exclusive_tasks(self) -> list[str]:
        """Return its tasks."""
        return [f"handle {number.name}" for number in _SIGNALS]

    def train_begin(self, estimator: Run, *args: Any, **kwargs: Any) -> None:
        """Install this handler for both signals."""
        require_estimator(self, estimator)
        if threading.current_thread() is not threading.main_thread():
            return

        def stop(number: int, _: FrameType | None) -> None:
            self._give_back()
            estimator.stop(StopReason.SIGNAL)
            # All workers get the launcher's signal: one of them warns.
            estimator.logger.log(
                logging.WARNING if estimator.workers.is_first else logging.INFO,
                "%s: stopping after this batch; %s again to stop at once",
                *(("Ctrl-C", "press it") if number == signal.SIGINT else ("SIGTERM", "send it")),
            )

        self._before = {number: signal.signal(number, stop) for number in _SIGNALS}

    def train_end(self, estimator: Run, *args: Any, **kwargs: Any) -> None:
        """Install the earlier handlers again."""
        self._give_back()

    def exception_raised(self, estimator: Run, *args: Any, **kwargs: Any) -> None:
        """Install the earlier handlers again."""
        self._give_back()

    def _give_back(self) -> None:
        before, self._before = self._before, {}
        for number, handler in before.items():
            # One that was not installed from Python cannot be installed from here.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
