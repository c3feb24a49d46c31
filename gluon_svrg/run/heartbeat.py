"""Heartbeat: a byte for the launcher at each step, so that it sees a run that stands still."""

from __future__ import annotations

import os
import stat
from contextlib import suppress

from gluon_svrg.launch.environment import ATTEMPT, PROGRESS


class Heartbeat:
    """Tells the launcher, if there is one, that the run goes on."""

    def __init__(self) -> None:
        self._pipe = _pipe()

    def beat(self, *, is_step: bool = False) -> None:
        """Tell that the run goes on, and whether by a batch of the training."""
        self._write(b"." if is_step else b"-")

    def end(self) -> None:
        """Tell that nobody is to wait for the next beat."""
        self._write(b"e")

    def _write(self, byte: bytes) -> None:
        if self._pipe is not None:
            with suppress(OSError):  # nobody listens any longer
                os.write(self._pipe, byte)


def _pipe() -> int | None:
    """Return the descriptor of the launcher's pipe; None without one.

    In a process that a worker has started the number may be another file, or none.
    """
    text = os.environ.get(PROGRESS, "")
    try:
        return int(text) if text and stat.S_ISFIFO(os.fstat(int(text)).st_mode) else None
    except OSError:
        return None


def is_started_again() -> bool:
    """Return whether the launcher has started this job before: its last end was a failure."""
    return int(os.environ.get(ATTEMPT) or 0) > 0
