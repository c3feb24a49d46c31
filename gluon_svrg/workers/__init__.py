"""Several processes that train one network: who they are, and what they do together.

Every worker runs the same lines of the same script. What one of them has to know of the others goes
through a :class:`Workers`: sums of arrays, and small messages that all gather. One process is the
simplest of them, :class:`Single`. The launcher (``python -m gluon_svrg.launch``) makes several.
"""

from typing import TYPE_CHECKING as _TYPE_CHECKING

from gluon_svrg import _lazy

if _TYPE_CHECKING:
    from gluon_svrg.workers.base import Single, WorkerError, Workers
    from gluon_svrg.workers.mpi import MPIWorkers
    from gluon_svrg.workers.process import alone, current, workers_on
    from gluon_svrg.workers.sockets import SocketWorkers
    from gluon_svrg.workers.store import StoreWorkers

__all__ = [
    "MPIWorkers",
    "Single",
    "SocketWorkers",
    "StoreWorkers",
    "WorkerError",
    "Workers",
    "alone",
    "current",
    "workers_on",
]

_NAMES = {
    "MPIWorkers": "gluon_svrg.workers.mpi",
    "Single": "gluon_svrg.workers.base",
    "SocketWorkers": "gluon_svrg.workers.sockets",
    "StoreWorkers": "gluon_svrg.workers.store",
    "WorkerError": "gluon_svrg.workers.base",
    "Workers": "gluon_svrg.workers.base",
    "alone": "gluon_svrg.workers.process",
    "current": "gluon_svrg.workers.process",
    "workers_on": "gluon_svrg.workers.process",
}
"""Where each of them stands: a server runs a module of this package before it imports MXNet."""

if not _TYPE_CHECKING:
    __getattr__, __dir__ = _lazy.attach(__name__, _NAMES)
