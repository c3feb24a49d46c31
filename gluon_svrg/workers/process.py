"""Which workers this process belongs to: what the launcher has put into its environment."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeGuard

import mxnet as mx
from gluon_svrg.launch.environment import ADDRESS, ENGINE, EXACT, KEY, RANK, SIZE
from gluon_svrg.workers.base import Single, Workers
from gluon_svrg.workers.by_hand import workers_of_store, workers_under_mpirun
from gluon_svrg.workers.ends import watched
from gluon_svrg.workers.mpi import MPIWorkers
from gluon_svrg.workers.sockets import SocketWorkers
from gluon_svrg.workers.store import StoreWorkers
from mxnet.kvstore import KVStore, KVStoreBase

_workers: list[Workers] = []


def current() -> Workers:
    """Return the workers of this process: one alone, unless the launcher has started several.

    The connections are made by the first call, which waits for the others.
    """
    if not _workers:
        _workers.append(_from_environment())
    return _workers[-1]


@contextmanager
def alone() -> Iterator[Workers]:
    """Let this process be one alone inside the ``with`` block: what it makes there is its own."""
    current()  # whoever waits for this process at the start is not to wait for the block
    _workers.append(Single())
    try:
        yield _workers[-1]
    finally:
        _workers.pop()


def _from_environment() -> Workers:
    engine = os.environ.get(ENGINE, "dist_sync")
    if engine == "mpi" and SIZE not in os.environ:
        return workers_under_mpirun()
    size = int(os.environ.get(SIZE, "1"))
    if size == 1:
        return Single()
    host, _, port = os.environ[ADDRESS].rpartition(":")
    key = bytes.fromhex(os.environ[KEY])
    rank, address = int(os.environ[RANK]), (host, int(port))
    if engine == "sockets":
        return watched(lambda: SocketWorkers(rank, size, address, key))
    if engine == "mpi":
        return watched(lambda: MPIWorkers(rank, size, address, key))
    if engine == "dist_sync":
        exact = os.environ.get(EXACT, "1") != "0"
        return watched(lambda: StoreWorkers(rank, size, address, key, exact=exact))
    raise ValueError(
        f"{ENGINE} must be 'dist_sync', 'mpi' or 'sockets', got {engine!r}: it says what adds up "
        "the arrays of the workers"
    )


def workers_on(kvstore: str | KVStoreBase, compression_params: object = None) -> Workers:
    """Return the workers of a distributed kvstore: those of the launcher, or of a cluster by hand.

    By hand is: scheduler, servers and workers were started with the ``DMLC_*`` variables of ps-lite
    in their environment. Their messages go over sockets all the same, of which the first worker
    tells the others through the kvstore. A process has one kvstore for its workers, which the first
    call makes or is given; :func:`current` knows them from then on.

    Parameters
    ----------
    kvstore : str or KVStoreBase
        'dist_sync', 'dist_device_sync' or 'dist', or a kvstore of such a type; or one that is not
        MXNet's own, whose `pushpull` leaves the sum over its workers in `out`.
    compression_params : object, optional
        What a trainer was given.

    Raises
    ------
    ValueError
        If the kvstore does not add up what all workers give: 'dist_async', or with compression.
    WorkerError
        If a worker or a server is missing, or a server rounds float64.
    """
    kind = kvstore if isinstance(kvstore, str) else kvstore.type
    is_foreign = is_of_somebody_else(kvstore)
    if not is_foreign:
        _check_kind(kind)
    if compression_params:
        raise ValueError(
            f"compression_params must be None with the kvstore {kind!r}, got "
            f"{compression_params!r}: MXNet compresses no sum that is read back in one step, and "
            "the workers would not equal one process; leave it out, or give {'type': 'fp16'} to "
            "SVRGTrainer alone"
        )
    own = current()
    if own.are_several or len(_workers) > 1:  # the launcher's, or inside of alone()
        return own
    if "DMLC_NUM_WORKER" not in os.environ and not is_foreign:
        raise ValueError(
            f"the kvstore {kind!r} needs a cluster, and DMLC_NUM_WORKER is not in the environment: "
            "start the script by python -m gluon_svrg.launch -n 2 script.py, or leave kvstore out"
        )
    _workers[0] = workers_of_store(mx.kv.create(kvstore) if isinstance(kvstore, str) else kvstore)
    return _workers[0]


def is_of_somebody_else(kvstore: object) -> TypeGuard[KVStoreBase]:
    """Return whether it is a kvstore that is none of MXNet's own."""
    return isinstance(kvstore, KVStoreBase) and not isinstance(kvstore, KVStore)


def _check_kind(kind: str) -> None:
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


_SYNCHRONOUS = ("dist_sync", "dist_device_sync", "dist_sync_device", "dist")
