"""Signals: what the supervisor is sent, and what wakes it."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from types import FrameType


class Signals:
    """Records Ctrl-C, SIGTERM, SIGUSR1 and SIGHUP, and makes a descriptor readable at any signal.

    The end of a child process is one, too, so that it is seen at once. A signal that is ignored
    when the supervisor starts stays ignored: ``nohup`` and shell scripts do that.

    Attributes
    ----------
    received : list of int
        The signals, in their order.
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
                signal.signal(number, self._note)

    def fileno(self) -> int:
        """Return the descriptor that is readable after a signal."""
        return self._read

    def clear(self) -> None:
        """Wait for the next one."""
        with suppress(BlockingIOError):
            while os.read(self._read, 4096):
                pass

    def _note(self, number: int, _: FrameType | None) -> None:
        self.received.append(number)


def name_of(number: int) -> str:
    """Return a signal's name."""
    with suppress(ValueError):
        return signal.Signals(number).name
    return f"signal {number}"
