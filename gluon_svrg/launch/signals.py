"""Signals: what the launcher is sent, and what wakes it."""

from __future__ import annotations

import os
import signal
import time
from types import FrameType

_AT_ONCE = 2.0
"""Seconds within which a signal that comes from two machines is one: a queue sends it to all."""


class Signals:
    """Writes down Ctrl-C, SIGTERM and SIGHUP, and makes a descriptor readable at any signal.

    The end of a process is one, too, so that it is seen at once. A signal that is ignored when
    the launcher starts stays so: ``nohup`` and shell scripts do that.

    Attributes
    ----------
    received : list of int
        The signals, in their order.
    """

    def __init__(self) -> None:
        self.received: list[int] = []
        self._from_afar = -_AT_ONCE
        self._read, write = os.pipe()
        os.set_blocking(self._read, False)
        os.set_blocking(write, False)
        signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, self._note)

    def fileno(self) -> int:
        """Return the descriptor that is readable after a signal."""
        return self._read

    def clear(self) -> None:
        """Wait for the next one."""
        try:
            while os.read(self._read, 4096):
                pass
        except BlockingIOError:
            pass

    def hear(self, number: int) -> None:
        """Write down a signal to another machine of the job: the first one counts, for all."""
        if not self.received:
            self._from_afar = time.monotonic()
            self.received.append(number)

    def _note(self, number: int, _: FrameType | None) -> None:
        if time.monotonic() - self._from_afar < _AT_ONCE:
            self._from_afar = -_AT_ONCE
            return
        self.received.append(number)
