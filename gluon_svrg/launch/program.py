"""Program: what an agent is started by, on the launcher's machine: ssh, or Python itself."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress

from gluon_svrg.launch.keeper import Keeper
from gluon_svrg.launch.output import Sink

_EXIT_WAIT = 1.0
"""Seconds in which a program has ended whose output has."""


class Program:
    """A program with pipes at its standard streams.

    Parameters
    ----------
    command : sequence of str
        What to run.
    keeper : Keeper
        Who ends it if the launcher is killed.
    errors : Sink
        Who takes its standard error.

    Attributes
    ----------
    pid : int
        Its number, and its group's.
    reads, writes : int
        The descriptors of its output and of its input, which are the caller's.
    error_pipe : int
        That of its standard error; -1 once it has ended.
    """

    def __init__(self, command: Sequence[str], keeper: Keeper, errors: Sink) -> None:
        pipe = subprocess.PIPE
        self._popen = subprocess.Popen(
            command, bufsize=0, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True
        )
        self.pid = self._popen.pid
        self._keeper, self._errors = keeper, errors
        keeper.add(self.pid)
        ends = []
        for own in (self._popen.stdin, self._popen.stdout, self._popen.stderr):
            assert own is not None
            ends.append(os.dup(own.fileno()))
            own.close()
        self.writes, self.reads, self.error_pipe = ends
        os.set_blocking(self.error_pipe, False)

    def read_errors(self, *, is_last: bool = False) -> bool:
        """Take what it has said; return whether more may come."""
        try:
            data = os.read(self.error_pipe, 1 << 16)
        except BlockingIOError:
            if not is_last:
                return True
            data = b""
        if data:
            self._errors.feed(data)
            return True
        self._errors.end()
        os.close(self.error_pipe)
        self.error_pipe = -1
        return False

    def exit_code(self) -> int | None:
        """Return its exit code, now that its output has ended; None if it runs on."""
        with suppress(subprocess.TimeoutExpired):
            return self._popen.wait(_EXIT_WAIT)
        return None

    def end(self, patience: float) -> None:
        """Give it some seconds, kill it, and take what it has said."""
        end = time.monotonic() + patience
        while self._popen.poll() is None and time.monotonic() < end:
            time.sleep(0.005)
        if self._popen.returncode is None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)
            self._popen.wait()
        self._keeper.remove(self.pid)
        while self.error_pipe >= 0 and self.read_errors(is_last=True):
            pass
