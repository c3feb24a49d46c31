"""The signals that the supervisor receives."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from types import FrameType


class Signals:
    """Records Ctrl-C, SIGTERM, SIGUSR1 and SIGHUP, and wakes a selector at any signal.

    SIGCHLD also wakes it, so that the exit of a child process is noticed immediately. A signal that
    is ignored when the supervisor starts, as after ``nohup``, stays ignored.

    Attributes
    ----------
    received : list of int
        The signals, in the order of their arrival.
    """

    def __init__(self) -> None:
        self.received: list[int] = []
        self._read, write = os.pipe()
        os.set_blocking(self._read, False)
        os.set_blocking(write, False)
        signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP):
            if signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, self._record)

    def fileno(self) -> int:
        """Return the descriptor that is readable after a signal."""
        return self._read

    def clear(self) -> None:
        """Make the descriptor wait for the next signal."""
        with suppress(BlockingIOError):
            while os.read(self._read, 4096):
                pass

    def _record(self, number: int, _: FrameType | None) -> None:
        self.received.append(number)


def signal_name(number: int) -> str:
    """Return the name of a signal, such as SIGTERM."""
    with suppress(ValueError):
        return signal.Signals(number).name
    return f"signal {number}"
