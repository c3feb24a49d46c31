"""SignalHandler: Ctrl-C and SIGTERM end a run at the next safe moment."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any

from gluon_svrg.events import ExceptionRaised, TrainBegin, TrainEnd
from gluon_svrg.run.position import StopReason

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class SignalHandler(TrainBegin, TrainEnd, ExceptionRaised):
    """Lets Ctrl-C and SIGTERM end the run after the batch that is under way.

    A CheckpointHandler then writes a checkpoint, `fit` returns with ``StopReason.SIGNAL``, and
    ``fit(..., resume='auto')`` goes on later. A second signal acts as if there were no handler:
    Ctrl-C raises KeyboardInterrupt at once, SIGTERM ends the process. The Estimator adds this
    handler to runs with a CheckpointHandler. Python delivers signals to the main thread only: in
    another one nothing is changed.

    During the full pass of SVRG the pass is finished first.
    """

    def __init__(self) -> None:
        self._before: dict[int, Any] = {}

    def train_begin(self, estimator: Any, *args: Any, **kwargs: Any) -> None:
        """Take the signals over."""
        if threading.current_thread() is not threading.main_thread():
            return

        def stop(number: int, _: FrameType | None) -> None:
            self._give_back()
            estimator.stop(StopReason.SIGNAL)
            estimator.logger.warning(
                "%s: the run ends after this batch; once more ends it at once",
                signal.Signals(number).name,
            )

        self._before = {number: signal.signal(number, stop) for number in _SIGNALS}

    def train_end(self, estimator: Any, *args: Any, **kwargs: Any) -> None:
        """Give the signals back."""
        self._give_back()

    def exception_raised(self, estimator: Any, *args: Any, **kwargs: Any) -> None:
        """Give the signals back."""
        self._give_back()

    def _give_back(self) -> None:
        before, self._before = self._before, {}
        for number, handler in before.items():
            # None: a handler that was not installed from Python, and cannot be from here.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
