"""Workers that no launcher of this package has started: by a kvstore, or under ``mpirun``."""

from __future__ import annotations

import os
import secrets
import socket
from contextlib import suppress

import mxnet as mx
import numpy as np
from gluon_svrg._compat import NumPyArray
from gluon_svrg.launch.environment import ENGINE, EXACT
from gluon_svrg.workers.base import Single, Workers
from gluon_svrg.workers.connection import listen
from gluon_svrg.workers.ends import watched
from gluon_svrg.workers.mpi import MPIWorkers
from gluon_svrg.workers.pmi import INSTALL
from gluon_svrg.workers.store import StoreWorkers, begin_keys
from mxnet.kvstore import KVStoreBase

_LONGEST, _KEY_OF_TEXT = 400, 99_999
_BACKLOG = 128


def workers_under_mpirun() -> Workers:
    """Return the workers whom ``mpirun`` or ``srun`` has started, with any MPI that mpi4py knows.

    It is the environment that asks for it: a script must not hang in MPI that is not meant.
    """
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise ImportError(f"{ENGINE}=mpi needs mpi4py and an MPI: {INSTALL} ({error})") from None
    world = MPI.COMM_WORLD
    rank, size = world.rank, world.size
    if size == 1:
        return Single()
    is_one_machine = world.Split_type(MPI.COMM_TYPE_SHARED).size == size
    host = "127.0.0.1" if is_one_machine else socket.gethostname()
    listener, told = _listening(host) if rank == 0 else (None, "")
    numbers = _as_numbers(told)
    world.Bcast(numbers)
    host, port, key = _as_text(numbers).split(":")
    address = host, int(port)
    return watched(lambda: MPIWorkers(rank, size, address, bytes.fromhex(key), listener=listener))


def workers_of_store(store: KVStoreBase) -> Workers:
    """Return the workers of a kvstore; the first one listens, and tells the others where."""
    rank, size = store.rank, store.num_workers
    if size == 1:
        return Single()
    listener, told = _listening(_own_host()) if rank == 0 else (None, "")
    told = _of_first(told, store)
    if told.count(":") != 2:
        raise ValueError(
            f"the kvstore {type(store).__name__} does not add up what its {size} workers give: its "
            "pushpull has to leave the sum over all workers, not their mean, in out"
        )
    host, port, key = told.split(":")
    exact = os.environ.get(EXACT, "1") != "0"
    address = host, int(port)
    return watched(
        lambda: StoreWorkers(
            rank, size, address, bytes.fromhex(key), listener=listener, store=store, exact=exact
        )
    )


def _listening(host: str) -> tuple[socket.socket, str]:
    """Return what the first worker listens with; and where, with a key, for the others."""
    with suppress(OSError):
        if socket.inet_aton(host):
            listener = listen(host, 0, _BACKLOG)
            return listener, f"{host}:{listener.getsockname()[1]}:{secrets.token_hex(16)}"
    # Its own name may stand for another address here than elsewhere.
    listener = listen("", 0, _BACKLOG)
    return listener, f"{host}:{listener.getsockname()[1]}:{secrets.token_hex(16)}"


def _own_host() -> str:
    """Return where the others reach this process: the address that the scheduler sees, if any."""
    if host := os.environ.get("DMLC_NODE_HOST"):
        return host
    if "DMLC_PS_ROOT_URI" not in os.environ:
        return socket.gethostname()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:  # sends nothing
        probe.connect((os.environ["DMLC_PS_ROOT_URI"], 9))
        return str(probe.getsockname()[0])


def _of_first(text: str, store: KVStoreBase) -> str:
    """Return the first worker's text on all of them, as numbers that are added up."""
    array = mx.nd.zeros(_LONGEST)
    begin_keys(store, [_KEY_OF_TEXT], [array])
    array[:] = mx.nd.array(_as_numbers(text))
    try:
        store.pushpull(_KEY_OF_TEXT, array, out=array)
    except mx.base.MXNetError as error:
        raise ValueError(
            f"the kvstore must add up what all workers give, and says {str(error).strip()!r}: make "
            "it without gradient compression"
        ) from None
    return _as_text(array.asnumpy())


def _as_numbers(text: str) -> NumPyArray:
    numbers: NumPyArray = np.zeros(_LONGEST, np.float32)
    numbers[: len(text)] = np.frombuffer(text.encode(), np.uint8)
    return numbers


def _as_text(numbers: NumPyArray) -> str:
    return bytes(numbers.astype(np.uint8)).rstrip(b"\0").decode(errors="replace")
