"""Several processes that train one network: who they are, and what they do together.

Every worker runs the same lines of the same script. Whatever one of them needs from the others goes
through a :class:`Workers`: sums of arrays, and small messages that all gather. One process is the
simplest of them, :class:`Single`. An MPI launcher (``mpiexec``, ``python -m gluon_svrg.launch``)
starts several: :class:`MPIWorkers`.
"""

from gluon_svrg import _lazy

__getattr__, __dir__, __all__ = _lazy.attach_stub(__name__)
