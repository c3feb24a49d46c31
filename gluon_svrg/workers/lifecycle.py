"""The start and the exit of a worker process under MPI, so that no other worker waits for ever.

mpiexec ends a job if one of its processes is killed by a signal. It does not end the job if a
process fails before MPI is initialised, or with an exception afterwards: the other processes then
wait in their next sum. If a process exits without finalising MPI, it may crash the last sum of the
others. So a failed worker calls MPI_Abort, and a successful one calls a barrier and MPI_Finalize.

This module imports MPI only inside a function, and never imports MXNet.
"""

from __future__ import annotations

import atexit
import faulthandler
import logging
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import ModuleType, TracebackType
from typing import NoReturn

from gluon_svrg.workers.errors import PeerError
from gluon_svrg.workers.parent_death import kill_forked_children_with_this_process
from gluon_svrg.workers.progress import cancel_timer, start_timer
from gluon_svrg.workers.supervision import PEER_FAILED, duplicate_high, report

OUTPUT_DELAY = 0.2
"""Seconds between the last output and MPI_Abort, which does not wait until the output is read.
Without the delay, 1 of 46 tracebacks was lost; with it, 0 of 32."""

PEER_FAILURE_DELAY = 2.0
"""Seconds that a worker waits before it reports another worker's failure. Normally mpiexec ends it
within this time, so that only the traceback with the cause is shown."""

ABORT_TIMEOUT = 10.0
"""Seconds after which a failed worker exits, even if it could not tell the others."""

POLL_INTERVAL = 0.02
"""Seconds between two checks whether all workers have finished the script."""

_SHARED_MEMORY = Path("/dev/shm")


def initialise_mpi() -> ModuleType:
    """Initialise MPI together with all other workers, and return ``mpi4py.MPI``.

    From then on, this process exits by the rules described in :mod:`gluon_svrg.workers.lifecycle`.
    Later calls only return ``mpi4py.MPI``.

    Raises
    ------
    ImportError
        If mpi4py is not installed.
    RuntimeError
        If mpi4py finds no MPI library.
    """
    start_timer()  # another worker may never reach MPI_Init
    try:
        import mpi4py

        mpi4py.rc.finalize = False
        from mpi4py import MPI

        if not _exit_handler:
            MPI.COMM_WORLD.Barrier()
            _unlink_shared_memory()
            _exit_handler.append(_ExitHandler(MPI))
    finally:
        cancel_timer()
    return MPI


def protect_mpiexec_connection() -> None:
    """Keep the connection to mpiexec open if the script closes all descriptors.

    mpiexec treats a closed connection as the end of the worker, and kills all workers without
    saying why. Call this before MPI starts.
    """
    if "PMI_FD" in os.environ:
        descriptor = int(os.environ["PMI_FD"])
        os.environ["PMI_FD"] = str(duplicate_high(descriptor))
        os.close(descriptor)


def set_exit_callbacks(leave: Callable[[], None], abort: Callable[[str], None]) -> None:
    """Set what this process calls when it exits.

    Parameters
    ----------
    leave : callable
        Waits until all workers have finished the script; used instead of a barrier.
    abort : callable
        Sends the reason of a failure to the other workers, without waiting for an answer.
    """
    _exit_handler[0].leave, _exit_handler[0].abort = leave, abort


def fail(error: BaseException) -> None:
    """Print the traceback of an uncaught error and end all workers.

    Without MPI, only the traceback is printed.
    """
    sys.excepthook(type(error), error, error.__traceback__)


def set_exit_code(code: object) -> None:
    """Set the exit code of this process, with the meaning of the argument of `sys.exit`."""
    if _exit_handler:
        _exit_handler[0].code = code


class _ExitHandler:
    """Ends all workers if this process fails, and finalises MPI if it succeeds.

    Parameters
    ----------
    mpi : module
        ``mpi4py.MPI``.
    """

    def __init__(self, mpi: ModuleType) -> None:
        self.code: object = 0
        self.leave: Callable[[], None] = self._wait_for_all
        self.abort: Callable[[str], None] = lambda _: None
        self._mpi = mpi
        self._process = os.getpid()
        self._original_hook, sys.excepthook = sys.excepthook, self._handle_exception
        # Python calls no hook for SystemExit, so sys.exit itself is replaced. argparse and others
        # use it.
        self._exit_id = 0
        sys.exit = self._sys_exit
        kill_forked_children_with_this_process()
        atexit.register(self._exit)

    def _handle_exception(
        self, kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        """Print the traceback, and end all workers."""
        if os.getpid() != self._process:
            self._original_hook(kind, error, trace)
            return
        is_from_peer = isinstance(error, (PeerError, self._mpi.Exception))
        if is_from_peer:
            time.sleep(PEER_FAILURE_DELAY)
        self._original_hook(kind, error, trace)
        code = PEER_FAILED if is_from_peer else 1
        if isinstance(error, KeyboardInterrupt):
            code = 128 + signal.SIGINT
        reason = "".join(traceback.format_exception_only(kind, error)).strip()
        self._abort(code, reason, is_from_peer=is_from_peer)

    def _sys_exit(self, code: object = None) -> NoReturn:
        if threading.current_thread() is not threading.main_thread():  # ends only this thread
            raise SystemExit(code)
        exit_ = _TrackedExit(code)
        self.code, self._exit_id = code, id(exit_)
        exit_.handler = self
        try:
            raise exit_
        finally:
            del exit_  # otherwise its traceback would keep it alive

    def exit_was_caught(self, exit_: _TrackedExit) -> None:
        """Reset the exit code, because the script has caught the exception of `sys.exit`."""
        if id(exit_) == self._exit_id:
            self.code = 0

    def _exit(self) -> None:
        """Finalise MPI together with the other workers, or abort it."""
        if os.getpid() != self._process:
            return
        if self.code not in (None, 0):
            code = self.code & 0xFF if isinstance(self.code, int) else 1
            self._abort(code or 1, f"exit code {code or 1}")
        try:
            self.leave()
        except Exception as error:
            self._handle_exception(type(error), error, None)
        # Without this report, os._exit(0) of a worker would look like a success: mpiexec then kills
        # the others, and its exit code is 0, too.
        report("done", "")
        start_timer()
        if not self._mpi.Is_finalized():
            self._mpi.Finalize()
        cancel_timer()

    def _wait_for_all(self) -> None:
        if self._mpi.Is_finalized():  # by the script
            return
        request = self._mpi.COMM_WORLD.Ibarrier()
        while not request.Test():
            time.sleep(POLL_INTERVAL)

    def _abort(self, code: int, reason: str, *, is_from_peer: bool = False) -> NoReturn:
        faulthandler.dump_traceback_later(ABORT_TIMEOUT, exit=True)
        report("peer_failed" if is_from_peer else "failed", f"{code} {reason}")
        with suppress(Exception):
            self.abort(reason)
        logging.shutdown()
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError, AttributeError):
                stream.flush()
        time.sleep(OUTPUT_DELAY)
        self._mpi.COMM_WORLD.Abort(code)
        os._exit(code)


class _TrackedExit(SystemExit):
    """The exception of `sys.exit`. It tells the exit handler if the script has caught it.

    Python frees an uncaught exception after the last frame has ended, and a caught one earlier.
    """

    handler: _ExitHandler | None = None

    def __del__(self) -> None:
        if self.handler is not None and sys._getframe().f_back is not None:
            self.handler.exit_was_caught(self)


_exit_handler: list[_ExitHandler] = []  # one, after `initialise_mpi`


def _unlink_shared_memory() -> None:
    """Remove the files of MPICH's shared memory, which would outlive a killed process."""
    for line in Path("/proc/self/maps").read_bytes().strip().split(b"\n"):
        path = Path(os.fsdecode(line.split(maxsplit=5)[-1]))
        if path.parent == _SHARED_MEMORY and path.name.startswith("mpich_shm_"):
            prefix = path.name.rpartition("_")[0]  # the rest is a process number
            for file in _SHARED_MEMORY.glob(f"{prefix}_*"):
                file.unlink(missing_ok=True)
