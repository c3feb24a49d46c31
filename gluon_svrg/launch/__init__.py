"""Start several workers with MPI's mpiexec, restart them after a failure, and say what failed.

The supervisor imports neither MXNet nor MPI.
"""

from gluon_svrg import _lazy

__getattr__, __dir__ = _lazy.attach(__name__)
