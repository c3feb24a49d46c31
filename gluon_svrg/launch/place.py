"""Place: that of the one agent that a job has on a machine."""

from __future__ import annotations

import errno
import os
import signal
import socket
import struct
from contextlib import suppress

_CREDENTIALS = struct.Struct("iII")


class Place:
    """A name that one process of a machine can have; it is free as soon as that one has ended.

    When a connection breaks, the launcher sees it at once, and the agent may only find out when it
    has heard nothing for too long. Until then its processes run on, so another agent of the same
    job has to wait for its end.

    Parameters
    ----------
    name : str
        What no other job has.
    """

    def __init__(self, name: str) -> None:
        # An abstract socket: the system gives the name back, however its owner ends. A child that
        # is forked does not get it into another program.
        self._address = f"\0gluon_svrg.{name}"
        self._own: socket.socket | None = None

    def take(self) -> bool:
        """Return whether the name is this process's."""
        if self._own is not None:
            return True
        own = socket.socket(socket.AF_UNIX)
        try:
            own.bind(self._address)
            own.listen(1)
        except OSError as error:
            own.close()
            # Where there are no such names, nobody can have it.
            return error.errno != errno.EADDRINUSE
        self._own = own
        return True

    def end_other(self) -> None:
        """Kill who has the name: it is stopped, for instance; all that it has started ends too."""
        with socket.socket(socket.AF_UNIX) as probe, suppress(OSError):
            probe.settimeout(0.1)
            probe.connect(self._address)
            size = _CREDENTIALS.size
            found = probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
            pid, user, _ = _CREDENTIALS.unpack(found)
            if pid > 0 and pid != os.getpid() and user == os.geteuid():
                os.kill(pid, signal.SIGKILL)

    def close(self) -> None:
        """Give the name back."""
        if self._own is not None:
            self._own.close()
            self._own = None
