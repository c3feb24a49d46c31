"""Which workers this process belongs to: what the launcher has put into its environment."""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import mxnet as mx
import numpy as np
from gluon_svrg.launch.environment import ADDRESS, ENGINE, EXACT, KEY, RANK, SIZE
from gluon_svrg.workers.base import Single, Workers
from gluon_svrg.workers.connection import listen
from gluon_svrg.workers.ends import watched
from gluon_svrg.workers.sockets import SocketWorkers
from gluon_svrg.workers.store import StoreWorkers
from mxnet.kvstore import KVStore

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
    size = int(os.environ.get(SIZE, "1"))
    if size == 1:
        return Single()
    host, _, port = os.environ[ADDRESS].rpartition(":")
    key = bytes.fromhex(os.environ[KEY])
    rank, address = int(os.environ[RANK]), (host, int(port))
    engine = os.environ.get(ENGINE, "dist_sync")
    if engine == "sockets":
        return watched(lambda: SocketWorkers(rank, size, address, key))
    if engine == "dist_sync":
        exact = os.environ.get(EXACT, "1") != "0"
        return watched(lambda: StoreWorkers(rank, size, address, key, exact=exact))
    raise ValueError(
        f"{ENGINE} must be 'dist_sync' or 'sockets', got {engine!r}: it says what adds up the "
        "arrays of the workers"
    )


def workers_on(kvstore: str | KVStore, compression_params: object = None) -> Workers:
    """Return the workers of a distributed kvstore: those of the launcher, or of a cluster by hand.

    By hand is: scheduler, servers and workers were started with the ``DMLC_*`` variables of ps-lite
    in their environment. Their messages go over sockets all the same, of which the first worker
    tells the others through the kvstore. A process has one kvstore for its workers, which the first
    call makes or is given; :func:`current` knows them from then on.

    Parameters
    ----------
    kvstore : str or KVStore
        'dist_sync', 'dist_device_sync' or 'dist', or a kvstore of such a type.
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
    _check_kind(kind)
    if compression_params:
        raise ValueError(
            f"compression_params must be None with the kvstore {kind!r}, got "
            f"{compression_params!r}: MXNet compresses no sum that is read back in one step, and "
            "the workers would not equal one process; leave it out"
        )
    own = current()
    if own.are_several or len(_workers) > 1:  # the launcher's, or inside of alone()
        return own
    if "DMLC_NUM_WORKER" not in os.environ:
        raise ValueError(
            f"the kvstore {kind!r} needs a cluster, and DMLC_NUM_WORKER is not in the environment: "
            "start the script by python -m gluon_svrg.launch -n 2 script.py, or leave kvstore out"
        )
    _workers[0] = _by_hand(mx.kv.create(kvstore) if isinstance(kvstore, str) else kvstore)
    return _workers[0]


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


def _by_hand(store: KVStore) -> Workers:
    """Return the workers of a kvstore; the first one listens, and tells the others where."""
    rank, size = store.rank, store.num_workers
    if size == 1:
        return Single()
    listener = listen(_own_host(), 0, size) if rank == 0 else None
    told = ""
    if listener is not None:
        host, port = listener.getsockname()
        told = f"{host}:{port}:{secrets.token_hex(16)}"
    host, port, key = _of_first(told, store).split(":")
    exact = os.environ.get(EXACT, "1") != "0"
    address = host, int(port)
    return watched(
        lambda: StoreWorkers(
            rank, size, address, bytes.fromhex(key), listener=listener, store=store, exact=exact
        )
    )


def _own_host() -> str:
    """Return where the others reach this process: the address that the scheduler sees."""
    if host := os.environ.get("DMLC_NODE_HOST"):
        return host
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:  # sends nothing
        probe.connect((os.environ["DMLC_PS_ROOT_URI"], 9))
        return str(probe.getsockname()[0])


def _of_first(text: str, store: KVStore) -> str:
    """Return the first worker's text on all of them, as numbers that are added up."""
    array = mx.nd.zeros(_LONGEST)
    store.init(_KEY_OF_TEXT, array)
    numbers = np.zeros(_LONGEST, np.float32)
    numbers[: len(text)] = np.frombuffer(text.encode(), np.uint8)
    array[:] = mx.nd.array(numbers)
    try:
        store.pushpull(_KEY_OF_TEXT, array, out=array)
    except mx.base.MXNetError as error:
        raise ValueError(
            f"the kvstore must add up what all workers give, and says {str(error).strip()!r}: make "
            "it without gradient compression"
        ) from None
    return bytes(array.asnumpy().astype(np.uint8)).rstrip(b"\0").decode()


_LONGEST, _KEY_OF_TEXT = 400, 99_999
