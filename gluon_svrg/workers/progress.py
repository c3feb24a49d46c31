"""The progress limit: a process that stands still for too long prints its stacks and ends."""

from __future__ import annotations

import faulthandler
import time

from gluon_svrg.launch.ends import limit_step
from gluon_svrg.launch.environment import progress_timeout

_armed_at: float | None = None


def beat() -> None:
    """Note that the run goes on: the limit, ``--progress-timeout``, counts from here.

    If no other beat comes in time, Python prints the stack of every thread to standard error, and
    the process is ended. That needs no thread of Python's, so it also works while MXNet waits in
    C++.
    """
    global _armed_at
    seconds = progress_timeout()
    if seconds is None:
        return
    now = time.monotonic()
    # To set the timer starts a thread, so it is not done for each of a thousand steps a second.
    if _armed_at is None or now - _armed_at > min(1.0, seconds / 20):
        limit_step()
        _armed_at = now


def end() -> None:
    """Wait for no further beat: the run is over."""
    global _armed_at
    if _armed_at is not None:
        faulthandler.cancel_dump_traceback_later()
        _armed_at = None
