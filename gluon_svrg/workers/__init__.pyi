"""The public names of this package; each is imported when it is first asked for."""

from gluon_svrg.workers.base import (
    Reduction as Reduction,
    SingleProcess as SingleProcess,
    Workers as Workers,
)
from gluon_svrg.workers.errors import WorkerError as WorkerError
from gluon_svrg.workers.mpi import MPIWorkers as MPIWorkers
from gluon_svrg.workers.process import (
    current as current,
    single_process as single_process,
    workers_of_kvstore as workers_of_kvstore,
)
