"""A thin supervisor of MPI's mpiexec: starts the workers, starts them again, says what failed."""

from gluon_svrg import _lazy

__getattr__, __dir__ = _lazy.attach(__name__)
