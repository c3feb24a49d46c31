"""Keeper: ends the processes of a launcher that was killed, and their children."""

from __future__ import annotations

import os
import signal
from contextlib import suppress


class Keeper:
    """A process that does nothing but wait for the end of the one that made it.

    Each process of a job ends by its parent-death signal when the launcher does. What it has
    started itself need not: a program that a script calls, for instance. So this process is told
    of each process group, and kills those that are left when the pipe to it closes, which happens
    at any end of the launcher, a SIGKILL as well.
    """

    def __init__(self) -> None:
        read, self._pipe = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                _keep(read)
            finally:
                os._exit(0)
        os.close(read)

    def add(self, group: int) -> None:
        """Take charge of a process group."""
        self._tell(b"+%d\n" % group)

    def remove(self, group: int) -> None:
        """Leave a process group alone: it has ended, and its number may be given anew."""
        self._tell(b"-%d\n" % group)

    def close(self) -> None:
        """Let the process end, and wait for that."""
        os.close(self._pipe)
        with suppress(ChildProcessError):
            os.waitpid(self.pid, 0)

    def _tell(self, message: bytes) -> None:
        with suppress(BrokenPipeError):  # it was killed itself: the job goes on without it
            os.write(self._pipe, message)


def _keep(read: int) -> None:
    """Wait; kill what is left."""
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    os.setsid()
    _close_all_but(read)
    groups: set[int] = set()
    with open(read, "rb") as messages:
        for message in messages:
            group = int(message[1:])
            if message[:1] == b"+":
                groups.add(group)
            else:
                groups.discard(group)
    for group in groups:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)


def _close_all_but(read: int) -> None:
    """Hold nobody's pipe open: whoever reads the launcher's output is to see its end."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in range(3):
        os.dup2(nothing, number)
    os.closerange(3, read)
    os.closerange(read + 1, os.sysconf("SC_OPEN_MAX"))
