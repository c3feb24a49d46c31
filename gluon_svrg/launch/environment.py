"""What a worker process reads from its environment before MPI runs."""

from __future__ import annotations

import math
import os

ATTEMPT = "GLUON_SVRG_ATTEMPT"
"""How often the job was started before this time; above 0, `fit` resumes by itself."""

PROGRESS_TIMEOUT = "GLUON_SVRG_PROGRESS_TIMEOUT"
"""Seconds that a step may take; a worker that needs longer prints its stack and ends."""

SUPERVISED = "GLUON_SVRG_SUPERVISED"
"""Set by ``python -m gluon_svrg.launch``: workers tell it their process and why they end."""

PEER_FAILED = 75
"""The exit code of a worker that ended because another one had failed (EX_TEMPFAIL)."""

_OF_LAUNCHERS = ("PMI_SIZE", "PMIX_RANK", "OMPI_COMM_WORLD_SIZE")


def is_under_mpi() -> bool:
    """Return whether an MPI launcher (mpiexec, srun, mpirun) has started this process."""
    return any(name in os.environ for name in _OF_LAUNCHERS)


def progress_timeout() -> float | None:
    """Return the seconds that a step may take; None if there is no limit."""
    try:
        seconds = float(os.environ.get(PROGRESS_TIMEOUT, "inf"))
    except ValueError:
        return None
    return seconds if 0 < seconds < math.inf else None
