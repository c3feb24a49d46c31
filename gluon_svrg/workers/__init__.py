"""Several processes that train one network together.

Every worker runs the same script. The workers exchange data through a :class:`Workers`: sums of
arrays, and small messages that every worker receives. A run in one process uses
:class:`SingleProcess`. An MPI launcher (``mpiexec``, ``python -m gluon_svrg.launch``) starts
several processes, which use :class:`MPIWorkers`.
"""

from gluon_svrg import _lazy

__getattr__, __dir__, __all__ = _lazy.attach_stub(__name__)
