"""The progress limit: a worker that completes no step in time prints its stacks and exits.

The timer is faulthandler's. It needs no Python thread, so it also fires while MXNet or MPI waits in
C++ code.
"""

from __future__ import annotations

import faulthandler
import math
import os
import time

from gluon_svrg.workers.supervision import PROGRESS_TIMEOUT, is_supervised


def progress_timeout() -> float | None:
    """Return the longest time between two steps in seconds (``--progress-timeout``), or None."""
    try:
        seconds = float(os.environ.get(PROGRESS_TIMEOUT, "inf"))
    except ValueError:
        return None
    return seconds if 0 < seconds < math.inf else None


def start_timer() -> None:
    """Start the timer with the full time, if there is a progress limit.

    When it fires, Python prints the stack of every thread and ends the process. Under a supervisor
    it only prints: the supervisor stops the workers when all of them have printed. Otherwise
    mpiexec could end the worker that hangs before it has printed its stack.
    """
    if (seconds := progress_timeout()) is not None:
        _start_timer(seconds)


def cancel_timer() -> None:
    """Cancel the timer."""
    faulthandler.cancel_dump_traceback_later()


def progress_limit() -> ProgressLimit | None:
    """Return the progress limit for a training; None if there is none."""
    seconds = progress_timeout()
    return None if seconds is None else ProgressLimit(seconds)


class ProgressLimit:
    """A limit on the time between two steps of a training.

    Parameters
    ----------
    seconds : float
        The limit.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        # faulthandler starts a thread per timer, which is too slow for a thousand steps a second.
        self._restart_interval = min(1.0, seconds / 20)
        self._started_at = -math.inf

    def step_completed(self) -> None:
        """Restart the timer. May be called often: it is restarted once per second at most."""
        now = time.monotonic()
        if now - self._started_at > self._restart_interval:
            _start_timer(self._seconds)
            self._started_at = now

    def cancel(self) -> None:
        """Cancel the timer: the training is over."""
        if self._started_at > -math.inf:
            cancel_timer()


def _start_timer(seconds: float) -> None:
    faulthandler.dump_traceback_later(seconds, exit=not is_supervised())
