"""Find the workers that this process belongs to."""

from __future__ import annotations

import atexit
import functools
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import TypeGuard

from gluon_svrg._compat import SIZES_OF_JOBS
from gluon_svrg._mxnet.trainer import watch_plain_trainers
from gluon_svrg.workers import lifecycle
from gluon_svrg.workers.base import SingleProcess, Workers
from gluon_svrg.workers.mpi import MPIWorkers
from gluon_svrg.workers.supervision import ATTEMPT
from mxnet.kvstore import KVStore, KVStoreBase

_logger = logging.getLogger(__name__)

_RANK_VARIABLES = ("PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK")
"""Set by the launchers of MPICH, Slurm and Open MPI, as `SIZES_OF_JOBS` is."""
_HOW_TO_START = (
    "start it by `mpiexec -n 4 python train.py` or `python -m gluon_svrg.launch -n 4 train.py`"
)
_PARAMETER_SERVER_PAGE = "docs/howto/several_workers.md"
_SYNCHRONOUS_KVSTORES = ("dist_sync", "dist_device_sync", "dist_sync_device", "dist")

_workers: list[Workers] = []
"""The workers of the job, after the first call of `current`, and a SingleProcess for each block of
`single_process` that this process is in."""


def current() -> Workers:
    """Return the workers that this process belongs to; without an MPI launcher, SingleProcess.

    The first call initialises MPI and waits for the other workers.

    Raises
    ------
    ImportError
        If there are several workers and mpi4py is missing.
    RuntimeError
        If the processes were started in a way that lets each of them train on its own, such as
        ``srun`` without MPI, ``torchrun``, or MXNet's parameter servers.
    """
    if not _workers:
        _workers.append(_find_workers())
    return _workers[-1]


@contextmanager
def single_process() -> Iterator[Workers]:
    """Let this process act as the only worker inside the ``with`` block.

    What it trains there is not shared with the other workers.
    """
    current()  # outside the block, because it waits for the other workers
    _workers.append(SingleProcess())
    try:
        yield _workers[-1]
    finally:
        _workers.pop()


def is_restart() -> bool:
    """Return whether the launcher has restarted this job after a failure."""
    return int(os.environ.get(ATTEMPT) or 0) > 0


def workers_of_kvstore(kvstore: str | KVStoreBase) -> Workers:
    """Return the workers whose gradients a distributed kvstore sums: all workers of the job.

    Parameters
    ----------
    kvstore : str or KVStoreBase
        'dist_sync', 'dist_device_sync' or 'dist', or a kvstore of such a type; or a custom kvstore
        over the same processes.

    Raises
    ------
    ValueError
        If the kvstore does not sum the gradients of all workers, such as 'dist_async', or if it is
        for other processes.
    """
    workers = current()
    if is_custom_kvstore(kvstore):
        if (kvstore.num_workers, kvstore.rank) != (workers.size, workers.rank):
            raise ValueError(
                f"the kvstore {type(kvstore).__name__} is worker {kvstore.rank} of "
                f"{kvstore.num_workers}, but this process is worker {workers.rank} of "
                f"{workers.size} under MPI; {_HOW_TO_START}"
            )
        return workers
    kind = kvstore if isinstance(kvstore, str) else kvstore.type
    if "async" in kind:
        raise ValueError(
            f"kvstore must sum the gradients of all workers, got {kind!r}: with it, a worker "
            "steps with its own gradient at weights that the others have changed meanwhile, so "
            "the result does not equal that of one process; use 'dist_sync'"
        )
    if kind not in _SYNCHRONOUS_KVSTORES:
        raise ValueError(
            f"kvstore must be one of {', '.join(map(repr, _SYNCHRONOUS_KVSTORES))} to sum the "
            f"gradients of several processes, got {kind!r}"
        )
    if not workers.is_distributed and len(_workers) == 1:
        _logger.warning(
            "kvstore=%r has no effect: this process is the only worker; to train on several, %s",
            kind,
            _HOW_TO_START,
        )
    return workers


def is_custom_kvstore(kvstore: object) -> TypeGuard[KVStoreBase]:
    """Return whether this is a kvstore that is not one of MXNet's own."""
    return isinstance(kvstore, KVStoreBase) and not isinstance(kvstore, KVStore)


def _announced_size() -> int:
    """Return the number of processes according to the MPI launcher; 0 if it does not say."""
    return max(int(os.environ.get(name) or 0) for name in SIZES_OF_JOBS)


def _announced_rank_and_size() -> tuple[int, int]:
    """Return rank and size without initialising MPI, which would wait for the other workers."""
    if _workers:
        return _workers[0].rank, _workers[0].size
    ranks = [int(os.environ[name]) for name in _RANK_VARIABLES if os.environ.get(name)]
    return max(ranks, default=0), _announced_size()


def _should_warn() -> bool:
    """Return whether this is worker 0 of several, outside of `single_process`."""
    rank, size = _announced_rank_and_size()
    return rank == 0 and size > 1 and len(_workers) < 2


def _warn_of_plain_trainer() -> None:
    if _should_warn():
        _logger.warning(
            "gluon.Trainer does not sum the gradients of the %d workers, so each of them trains a "
            "network of its own: use gluon_svrg.SVRGTrainer, which takes the same arguments",
            _announced_rank_and_size()[1],
        )


class _PlainStepCounter:
    """Counts the steps of MXNet's own trainers, and logs a warning when the process exits."""

    def __init__(self) -> None:
        self._steps = 0
        self._process = os.getpid()
        atexit.register(self._warn)

    def add(self) -> None:
        """Count a step."""
        if _should_warn():
            self._steps += 1

    def _warn(self) -> None:
        if self._steps and os.getpid() == self._process:
            _logger.warning(
                "each of %d workers has trained a network of its own: gluon.Trainer took %d steps "
                "on each without summing the gradients; use gluon_svrg.SVRGTrainer, which takes "
                "the same arguments, and divide the batches by gluon_svrg.data.shard(train_data)",
                _announced_rank_and_size()[1],
                self._steps,
            )


@functools.cache  # once
def _watch_plain_trainers() -> None:
    watch_plain_trainers(_warn_of_plain_trainer, _PlainStepCounter().add)


if _announced_size() > 1:
    _watch_plain_trainers()


def _find_workers() -> Workers:
    _check_no_parameter_servers()
    size = _announced_size()
    if size == 1 or (size == 0 and not any(name in os.environ for name in _RANK_VARIABLES)):
        _check_no_other_launcher()
        return SingleProcess()
    mpi = _initialise_mpi(size)
    if mpi.COMM_WORLD.size == 1:
        if size > 1:
            library = mpi.Get_library_version().splitlines()[0].strip("\0 ")
            raise RuntimeError(
                f"the launcher has started {size} processes, but mpi4py finds only one: it uses "
                f"{library!r}, which does not belong to this launcher; use the mpiexec of that MPI"
            )
        _check_no_other_launcher()
        return SingleProcess()
    workers = MPIWorkers(mpi.COMM_WORLD)
    lifecycle.set_exit_callbacks(workers.leave, workers.abort)
    _watch_plain_trainers()
    # A process that this one starts is not a worker.
    for name in [*os.environ]:
        if name.startswith(("PMI_", "PMIX_", "OMPI_COMM_WORLD_")):
            del os.environ[name]
    return workers


def _check_no_parameter_servers() -> None:
    if "DMLC_ROLE" in os.environ or int(os.environ.get("DMLC_NUM_WORKER") or 1) > 1:
        raise RuntimeError(
            "the environment has DMLC_* variables, which start MXNet's parameter servers: in MXNet "
            f"1.9.1 they give wrong sums (see {_PARAMETER_SERVER_PAGE}) and are not supported; "
            f"unset DMLC_*, and {_HOW_TO_START}"
        )


def _check_no_other_launcher() -> None:
    """Raise RuntimeError if a launcher without MPI has started several processes."""
    sizes = {"srun": int(os.environ.get("SLURM_STEP_NUM_TASKS") or 1)}
    if "TORCHELASTIC_RUN_ID" in os.environ:
        sizes["torchrun"] = int(os.environ.get("WORLD_SIZE") or 1)
    for launcher, size in sizes.items():
        if size > 1:
            mpi = "with `srun --mpi=pmi2`, or " if launcher == "srun" else ""
            unset = "SLURM_STEP_NUM_TASKS" if launcher == "srun" else "TORCHELASTIC_RUN_ID"
            raise RuntimeError(
                f"{launcher} has started {size} processes without MPI, so each of them would train "
                f"on its own: start the script {mpi}by `mpiexec -n {size} python train.py`; if you "
                f"want {size} independent runs, unset {unset}"
            )


def _initialise_mpi(size: int) -> ModuleType:
    try:
        return lifecycle.initialise_mpi()
    except (ImportError, RuntimeError) as error:
        processes = f"{size} processes" if size else "this process as one of several"
        raise ImportError(
            f"an MPI launcher has started {processes}, which needs mpi4py and an MPI: "
            f"pip install 'gluon-svrg[workers]' ({error})"
        ) from None
