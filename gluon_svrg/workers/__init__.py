"""Several processes that train one network: who they are, and what they do together.

Every worker runs the same lines of the same script. Whatever one of them needs from the others goes
through a :class:`Workers`: sums of arrays, and small messages that all gather. One process is the
simplest of them, :class:`Single`. An MPI launcher (``mpiexec``, ``python -m gluon_svrg.launch``)
starts several: :class:`MPIWorkers`.
"""

from typing import TYPE_CHECKING as _TYPE_CHECKING

from gluon_svrg import _lazy

if _TYPE_CHECKING:
    from gluon_svrg.workers.base import Reduction, Single, WorkerError, Workers
    from gluon_svrg.workers.mpi import MPIWorkers
    from gluon_svrg.workers.process import alone, current, workers_on

__all__ = [
    "MPIWorkers",
    "Reduction",
    "Single",
    "WorkerError",
    "Workers",
    "alone",
    "current",
    "workers_on",
]

_NAMES = {
    "MPIWorkers": "gluon_svrg.workers.mpi",
    "Reduction": "gluon_svrg.workers.base",
    "Single": "gluon_svrg.workers.base",
    "WorkerError": "gluon_svrg.workers.base",
    "Workers": "gluon_svrg.workers.base",
    "alone": "gluon_svrg.workers.process",
    "current": "gluon_svrg.workers.process",
    "workers_on": "gluon_svrg.workers.process",
}
"""Where each of them is: nothing here imports MXNet before a name is asked for."""

if not _TYPE_CHECKING:
    __getattr__, __dir__ = _lazy.attach(__name__, _NAMES)
