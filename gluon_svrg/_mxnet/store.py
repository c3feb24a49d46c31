"""The part of the kvstore's C interface that MXNet's Python leaves out or hides."""

from __future__ import annotations

import ctypes
import os

import mxnet as mx
from mxnet.base import _LIB, check_call
from mxnet.kvstore import KVStore


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
