"""Which workers this process is one of: those that an MPI launcher has started, or one alone."""

from __future__ import annotations

import atexit
import functools
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import TypeGuard

from gluon_svrg import _mxnet
from gluon_svrg._compat import SIZES_OF_JOBS
from gluon_svrg.launch import ends
from gluon_svrg.launch.environment import ATTEMPT
from gluon_svrg.workers.base import SingleProcess, Workers
from gluon_svrg.workers.mpi import MPIWorkers
from mxnet.kvstore import KVStore, KVStoreBase

_logger = logging.getLogger(__name__)

_RANKS = ("PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK")
"""What the launchers of MPICH, Slurm and Open MPI tell a process by its environment; and how many
there are, `SIZES_OF_JOBS`."""
_START = "start it by `mpiexec -n 4 python train.py` or `python -m gluon_svrg.launch -n 4 train.py`"
_PAGE = "docs/howto/several_workers_0_8.md"
_SYNCHRONOUS = ("dist_sync", "dist_device_sync", "dist_sync_device", "dist")

_workers: list[Workers] = []


def current() -> Workers:
    """Return the workers of this process: one alone, unless an MPI launcher has started several.

    The first call starts MPI and waits for the others.

    Raises
    ------
    ImportError
        If there are several and mpi4py is missing.
    RuntimeError
        If the processes were started in a way by which each of them would train alone, such as
        ``srun`` without MPI, ``torchrun``, or MXNet's parameter servers.
    """
    if not _workers:
        _workers.append(_workers_of_job())
    return _workers[-1]


@contextmanager
def single_process() -> Iterator[Workers]:
    """Let this process be one alone inside the ``with`` block: what it makes there is its own."""
    current()  # the others wait for this process at the start, and not for the block
    _workers.append(SingleProcess())
    try:
        yield _workers[-1]
    finally:
        _workers.pop()


def is_restart() -> bool:
    """Return whether the launcher has started this job before: its last end was a failure."""
    return int(os.environ.get(ATTEMPT) or 0) > 0


def workers_of_kvstore(kvstore: str | KVStoreBase) -> Workers:
    """Return the workers that a distributed kvstore stands for: all of this job.

    Parameters
    ----------
    kvstore : str or KVStoreBase
        'dist_sync', 'dist_device_sync' or 'dist', or a kvstore of such a type; or one that is not
        MXNet's own, whose processes are those of the job.

    Raises
    ------
    ValueError
        If the kvstore does not add up what all workers give, as 'dist_async', or if it is one of
        other processes.
    """
    own = current()
    if is_custom_kvstore(kvstore):
        if (kvstore.num_workers, kvstore.rank) != (own.size, own.rank):
            raise ValueError(
                f"the kvstore {type(kvstore).__name__} is worker {kvstore.rank} of "
                f"{kvstore.num_workers}, and this process is worker {own.rank} of {own.size}: the "
                f"workers of a job are the processes of MPI; {_START}"
            )
        return own
    kind = kvstore if isinstance(kvstore, str) else kvstore.type
    if "async" in kind:
        raise ValueError(
            f"kvstore must add up the gradients of all workers, got {kind!r}: with it a worker "
            "steps by its own gradient, at weights that the others have changed meanwhile, so "
            "nothing equals one process; use 'dist_sync'"
        )
    if kind not in _SYNCHRONOUS:
        raise ValueError(
            f"kvstore must be one of {', '.join(map(repr, _SYNCHRONOUS))}, got {kind!r}: it is "
            "what adds up the gradients of several processes"
        )
    if not own.is_distributed and len(_workers) == 1:
        _logger.warning(
            "kvstore=%r means the workers of this job, and this process is its only one; to train "
            "on several, %s",
            kind,
            _START,
        )
    return own


def is_custom_kvstore(kvstore: object) -> TypeGuard[KVStoreBase]:
    """Return whether it is a kvstore that is none of MXNet's own."""
    return isinstance(kvstore, KVStoreBase) and not isinstance(kvstore, KVStore)


def _announced_size() -> int:
    """Return how many processes the launcher has started; 0 if it does not say so."""
    return max(int(os.environ.get(name) or 0) for name in SIZES_OF_JOBS)


def _rank_and_size() -> tuple[int, int]:
    """Return the place of this process in its job; does not start MPI, for which all would wait."""
    if _workers:
        return _workers[0].rank, _workers[0].size
    ranks = [int(os.environ[name]) for name in _RANKS if os.environ.get(name)]
    return max(ranks, default=0), _announced_size()


def _is_first_of_several() -> bool:
    rank, size = _rank_and_size()
    return rank == 0 and size > 1 and len(_workers) < 2  # two inside of `single_process`


def _warn_of_plain_trainer() -> None:
    if _is_first_of_several():
        _logger.warning(
            "gluon.Trainer trains alone on each of %d workers, which do not hear of each other's "
            "gradients: use gluon_svrg.SVRGTrainer, which takes the same arguments",
            _rank_and_size()[1],
        )


class _PlainSteps:
    """Counts the steps of this process's plain trainers, and tells of them when it ends."""

    def __init__(self) -> None:
        self._number = 0
        self._process = os.getpid()
        atexit.register(self._tell)

    def add(self) -> None:
        """Count a step."""
        if _is_first_of_several():
            self._number += 1

    def _tell(self) -> None:
        if self._number and os.getpid() == self._process:
            _logger.warning(
                "each of %d workers has trained a network of its own: gluon.Trainer, which has "
                "taken %d steps on each, does not add up their gradients; make the trainer with "
                "gluon_svrg.SVRGTrainer, which takes the same arguments, and divide the batches by "
                "gluon_svrg.data.share(train_data)",
                _rank_and_size()[1],
                self._number,
            )


@functools.cache  # once
def _watch_plain_trainers() -> None:
    _mxnet.watch_plain_trainers(_warn_of_plain_trainer, _PlainSteps().add)


if _announced_size() > 1:
    _watch_plain_trainers()


def _workers_of_job() -> Workers:
    _check_no_parameter_servers()
    size = _announced_size()
    if size == 1 or (size == 0 and not any(name in os.environ for name in _RANKS)):
        _check_no_other_launcher()
        return SingleProcess()
    mpi = _mpi(size)
    if mpi.COMM_WORLD.size == 1:
        if size > 1:
            library = mpi.Get_library_version().splitlines()[0].strip("\0 ")
            raise RuntimeError(
                f"the launcher has started {size} processes, and MPI knows of one: mpi4py uses "
                f"{library!r}, which does not belong to this launcher; use the mpiexec of that MPI"
            )
        _check_no_other_launcher()
        return SingleProcess()
    workers = MPIWorkers(mpi.COMM_WORLD)
    ends.connect(workers.leave, workers.abort)
    _watch_plain_trainers()
    # A process that this one starts is not a worker.
    for name in [*os.environ]:
        if name.startswith(("PMI_", "PMIX_", "OMPI_COMM_WORLD_")):
            del os.environ[name]
    return workers


def _check_no_parameter_servers() -> None:
    if "DMLC_ROLE" in os.environ or int(os.environ.get("DMLC_NUM_WORKER") or 1) > 1:
        raise RuntimeError(
            "DMLC_* is in the environment, as for MXNet's parameter servers: those of MXNet 1.9.1 "
            f"give wrong sums (see {_PAGE}), so they are not used here; unset DMLC_*, and {_START}"
        )


def _check_no_other_launcher() -> None:
    """Raise if several processes were started side by side, each of which would train alone."""
    found = {"srun": int(os.environ.get("SLURM_STEP_NUM_TASKS") or 1)}
    if "TORCHELASTIC_RUN_ID" in os.environ:
        found["torchrun"] = int(os.environ.get("WORLD_SIZE") or 1)
    for launcher, size in found.items():
        if size > 1:
            mpi = "with `srun --mpi=pmi2`, or " if launcher == "srun" else ""
            unset = "SLURM_STEP_NUM_TASKS" if launcher == "srun" else "TORCHELASTIC_RUN_ID"
            raise RuntimeError(
                f"{launcher} has started {size} processes, and to MPI each of them is alone, so "
                f"each would train by itself: start the script {mpi}by `mpiexec -n {size} python "
                f"train.py`; if they are to be {size} runs of their own, unset {unset}"
            )


def _mpi(size: int) -> ModuleType:
    try:
        return ends.initialise_mpi()
    except (ImportError, RuntimeError) as error:
        several = f"{size} processes" if size else "this process as one of several"
        raise ImportError(
            f"an MPI launcher has started {several}, which needs mpi4py and an MPI: "
            f"pip install 'gluon-svrg[workers]' ({error})"
        ) from None
