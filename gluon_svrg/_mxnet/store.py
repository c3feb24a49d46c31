"""The part of the kvstore's C interface that MXNet's Python leaves out or hides."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable

import mxnet as mx
from mxnet.base import _LIB, check_call
from mxnet.kvstore import KVStore

_CONTROLLER = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)


def servers_of_cluster() -> int:
    """Return how many servers the cluster has: ps-lite knows it from the environment alone."""
    return int(os.environ.get("DMLC_NUM_SERVER", "1"))


def end_without_barrier(store: KVStore) -> None:
    """Let this process end without waiting for all other workers to end, too."""
    check_call(_LIB.MXKVStoreSetBarrierBeforeExit(store.handle, ctypes.c_int(0)))


def free(store: KVStore) -> None:
    """End a kvstore now, with its part of the cluster.

    When Python ends, whatever still refers to it may keep it until MXNet's libraries have been
    taken down, and its threads abort the process then.
    """
    mx.nd.waitall()
    handle, store.handle = store.handle, ctypes.c_void_p(None)  # its destructor frees nothing then
    check_call(_LIB.MXKVStoreFree(handle))


def run_server(role: str, controller: Callable[[int, bytes], None]) -> None:
    """Be a scheduler or a server until the workers have ended.

    Parameters
    ----------
    role : str
        'scheduler' or 'server'. It must not have been in ``DMLC_ROLE`` when MXNet was imported.
    controller : callable
        Gets each command that is for Python: its number, and what came with it.
    """
    os.environ["DMLC_ROLE"] = role
    called = _CONTROLLER(lambda command, body, _: controller(command, body))
    store = mx.kv.create("dist")  # what nobody holds is freed
    check_call(_LIB.MXKVStoreRunServer(store.handle, called, None))
