"""The public names of this package; each is imported when it is first asked for."""

from gluon_svrg.workers.base import (
    Reduction as Reduction,
    Single as Single,
    WorkerError as WorkerError,
    Workers as Workers,
)
from gluon_svrg.workers.mpi import MPIWorkers as MPIWorkers
from gluon_svrg.workers.process import alone as alone, current as current, workers_on as workers_on
