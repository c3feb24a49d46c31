"""``python -m gluon_svrg.workers.server``: ps-lite's server or scheduler, which unpickles nothing.

The role is in ``DMLC_ROLE``, as for MXNet's own, which is one line: ``import mxnet``. MXNet's runs
``pickle.loads`` on what anybody sends to its open port. This one refuses: nobody needs it here,
since over workers the optimizer runs in the workers. It ends as MXNet's does, when the first worker
has ended.

It loads MXNet's library and none of MXNet's Python, which takes seconds: all workers wait for the
servers, at each start.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from gluon_svrg import _compat

ROLES = ("scheduler", "server")
_CONTROLLER = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)


def main() -> int:
    """Run what ``DMLC_ROLE`` says until the workers have ended."""
    role = os.environ.get("DMLC_ROLE")
    if role not in ROLES:
        print(
            f"DMLC_ROLE must be one of {', '.join(ROLES)}, got {role!r}: it says what this "
            "process is; python -m gluon_svrg.launch sets it",
            file=sys.stderr,
        )
        return 2
    # The workers need it until they have ended, and a terminal tells all to end at once.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    run(_refuse)
    return 0


def run(controller: Callable[[int, bytes], None]) -> None:
    """Be what ``DMLC_ROLE`` says until the workers have ended.

    Parameters
    ----------
    controller : callable
        Gets each command that is not for the library: its number, and what came with it.

    Raises
    ------
    RuntimeError
        What the library says, if it cannot.

    References
    ----------
    MXNet 1.9.1, ``include/mxnet/c_api.h``: its public interface.
    """
    _compat.use_every_core(os.environ, mxnet_is_loaded=False)
    library = ctypes.CDLL(mxnet_library(), ctypes.RTLD_LOCAL)
    library.MXGetLastError.restype = ctypes.c_char_p

    def check(result: int) -> None:
        if result:
            raise RuntimeError(library.MXGetLastError().decode(errors="replace"))

    called = _CONTROLLER(lambda command, body, _: controller(command, body))
    store = ctypes.c_void_p()
    check(library.MXKVStoreCreate(b"dist", ctypes.byref(store)))
    check(library.MXKVStoreRunServer(store, called, None))
    check(library.MXKVStoreFree(store))
    check(library.MXNotifyShutdown())


def mxnet_library() -> str:
    """Return where MXNet would load its library from.

    Raises
    ------
    RuntimeError
        If it is nowhere; with MXNet's own words.
    """
    found = importlib.util.find_spec("mxnet")
    assert found is not None  # else this module would not have been imported
    assert found.origin is not None
    # MXNet's own file for the purpose, which imports nothing of MXNet.
    spec = importlib.util.spec_from_file_location(
        "_libinfo_of_mxnet", Path(found.origin).with_name("libinfo.py")
    )
    assert spec is not None
    assert spec.loader is not None
    libinfo = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(libinfo)
    path: str = libinfo.find_lib_path()[0]
    return path


def _refuse(command: int, body: bytes) -> None:
    print(
        f"gluon_svrg.workers.server: refused command {command} ({len(body)} bytes): this server "
        "adds up arrays and unpickles nothing; make the trainer with update_on_kvstore=False",
        file=sys.stderr,
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main())
