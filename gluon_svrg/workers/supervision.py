"""The protocol between a worker and its supervisor, ``python -m gluon_svrg.launch``.

The supervisor sets environment variables before a worker starts. The worker sends reports back: a
report is a line on standard error that begins with `MARK`, and the supervisor does not show it.

This module imports neither MXNet nor MPI, because the supervisor also uses it.
"""

from __future__ import annotations

import fcntl
import os
import resource
from contextlib import suppress

ATTEMPT = "GLUON_SVRG_ATTEMPT"
"""Environment variable: the number of restarts so far. Above 0, `fit` resumes without being asked
to."""

PROGRESS_TIMEOUT = "GLUON_SVRG_PROGRESS_TIMEOUT"
"""Environment variable: the longest time between two steps, in seconds."""

SUPERVISED = "GLUON_SVRG_SUPERVISED"
"""Environment variable: set if there is a supervisor that reads reports."""

PEER_FAILED = 75
"""Exit code of a worker that stopped because another one failed (EX_TEMPFAIL)."""

MARK = "\x1d"
"""First character of a report."""

MAX_REPORT_LENGTH = 4000
"""Characters of a report. A longer write to a pipe could be mixed with the output of other
workers."""

_LAUNCHER_VARIABLES = ("PMI_SIZE", "PMIX_RANK", "OMPI_COMM_WORLD_SIZE")


def is_under_mpi() -> bool:
    """Return whether an MPI launcher (mpiexec, srun, mpirun) has started this process."""
    return any(name in os.environ for name in _LAUNCHER_VARIABLES)


def is_supervised() -> bool:
    """Return whether a supervisor reads the reports of this process."""
    return SUPERVISED in os.environ


def report(kind: str, text: str) -> None:
    """Send a report to the supervisor, if there is one.

    Parameters
    ----------
    kind : str
        "pid" when the worker starts, "failed" or "peer_failed" with the exit code and the reason
        before it stops, "done" at the end of the script.
    text : str
        The content.
    """
    if _REPORT_DESCRIPTOR >= 0:
        line = " ".join(text.split("\n"))[:MAX_REPORT_LENGTH]
        with suppress(OSError):
            os.write(_REPORT_DESCRIPTOR, f"{MARK}{kind} {line}\n".encode(errors="replace"))


def duplicate_high(descriptor: int) -> int:
    """Return a copy of a descriptor, with a number that `os.closerange` in a script does not reach.

    The number is 16384, or near the limit of open files if that is lower.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        least = min(number for number in (soft, hard - 64, 1 << 14) if number > 0)
        return fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, least)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


# A copy, because a script may redirect or close its standard error.
_REPORT_DESCRIPTOR = duplicate_high(2) if is_supervised() else -1
