"""How a worker process begins and ends under MPI, so that no other worker waits for it for ever.

mpiexec ends a job when one of its processes is killed by a signal. It does not when a process fails
before MPI is initialised, or with an exception after it: the others then wait in their next sum. A
process that leaves without finalising MPI may crash the others in their last sum. So a bad end here
is always an MPI_Abort, and a good one is a barrier and MPI_Finalize.
"""

from __future__ import annotations

import atexit
import ctypes
import faulthandler
import fcntl
import logging
import os
import resource
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

from gluon_svrg.launch.environment import PEER_FAILED, SUPERVISED, progress_timeout

MARK = "\x1d"
"""Begins a line on standard error that is for the supervisor, not for a reader."""
_PAUSE = 0.2
"""Seconds between the last words and MPI_Abort, which does not wait until they are read: without a
pause 1 of 46 tracebacks was lost, with it 0 of 32."""
_HOLD = 2.0
"""Seconds in which a worker that fails because of another one is normally ended by mpiexec. Its own
traceback would only hide the one that matters."""
_LAST_WORDS = 10.0
"""Seconds in which a failing process has told the others."""
_INTERVAL = 0.02
"""Seconds between two looks whether all workers have come to the end."""
_SHARED_MEMORY = Path("/dev/shm")


def _out_of_reach(descriptor: int) -> int:
    """Return a copy of a descriptor whose number is too large for a script's `os.closerange`."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        least = min(number for number in (soft, hard - 64, 1 << 14) if number > 0)
        return fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, least)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


# A script may redirect or close its own.
_STANDARD_ERROR = _out_of_reach(2) if SUPERVISED in os.environ else -1
_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None, use_errno=True)  # not in a child: loading takes locks


def limit_step() -> None:
    """Print the stack of every thread, and end, if the progress limit passes before the next call.

    Under the supervisor this process prints only: it is ended after all others have printed theirs,
    or the one that hangs may be ended by mpiexec before it has shown where.
    """
    if (seconds := progress_timeout()) is not None:
        faulthandler.dump_traceback_later(seconds, exit=SUPERVISED not in os.environ)


def initialise_mpi() -> ModuleType:
    """Initialise MPI, together with all other workers, and return ``mpi4py.MPI``.

    From here on this process ends as the others need it to. Later calls only return the module.

    Raises
    ------
    ImportError
        If mpi4py is not installed.
    RuntimeError
        If mpi4py does not find an MPI library.
    """
    limit_step()  # another worker may never come to MPI_Init
    try:
        import mpi4py

        mpi4py.rc.finalize = False
        from mpi4py import MPI

        if not _ends:
            MPI.COMM_WORLD.Barrier()
            _unlink_shared_memory()
            _ends.append(_End(MPI))
    finally:
        faulthandler.cancel_dump_traceback_later()
    return MPI


def keep_connection() -> None:
    """Keep the connection to mpiexec open if the script closes all descriptors; before MPI starts.

    mpiexec takes its end for that of the worker, and kills all of them without a reason.
    """
    if "PMI_FD" in os.environ:
        descriptor = int(os.environ["PMI_FD"])
        os.environ["PMI_FD"] = str(_out_of_reach(descriptor))
        os.close(descriptor)


def connect(leave: Callable[[], None], abort: Callable[[str], None]) -> None:
    """Let workers take part in the end of this process.

    Parameters
    ----------
    leave : callable
        Wait until all workers have come to the end of the script. It replaces a barrier.
    abort : callable
        Tell the others the reason why this process ends. It is not to wait for an answer.
    """
    _ends[0].leave, _ends[0].abort = leave, abort


def say(word: str, text: str) -> None:
    """Tell the supervisor something, if there is one."""
    if _STANDARD_ERROR >= 0:
        line = " ".join(text.split("\n"))[:4000]
        with suppress(OSError):
            os.write(_STANDARD_ERROR, f"{MARK}{word} {line}\n".encode(errors="replace"))


def fail(error: BaseException) -> None:
    """Print the traceback of an error that nobody has caught, and end all workers.

    Returns if MPI does not run, or in a child process.
    """
    sys.excepthook(type(error), error, error.__traceback__)


def set_exit_code(code: object) -> None:
    """Let the process end with this code, as by `sys.exit`, instead of going on to the end."""
    if _ends:
        _ends[0].code = code


class _End:
    """The end of this process.

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
        self._hook, sys.excepthook = sys.excepthook, self._failed
        # Nothing calls a hook for SystemExit; sys.exit is what argparse and others use.
        self._exit = 0
        sys.exit = self._exits
        os.register_at_fork(before=_before_fork, after_in_child=_after_fork_in_child)
        atexit.register(self._end)

    def _failed(
        self, kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        """Print the traceback, and end all workers."""
        if os.getpid() != self._process:
            self._hook(kind, error, trace)
            return
        is_from_peer = getattr(error, "is_from_peer", isinstance(error, self._mpi.Exception))
        if is_from_peer:
            time.sleep(_HOLD)
        self._hook(kind, error, trace)
        code = PEER_FAILED if is_from_peer else 1
        if isinstance(error, KeyboardInterrupt):
            code = 128 + signal.SIGINT
        reason = "".join(traceback.format_exception_only(kind, error)).strip()
        self._abort(code, reason, is_from_peer=is_from_peer)

    def _exits(self, code: object = None) -> NoReturn:
        if threading.current_thread() is not threading.main_thread():  # ends the thread alone
            raise SystemExit(code)
        exit_ = _Exit(code)
        self.code, self._exit = code, id(exit_)
        exit_.end = self
        try:
            raise exit_
        finally:
            del exit_  # or its traceback would keep it alive

    def goes_on(self, exit_: _Exit) -> None:
        """Forget the exit code of a `sys.exit` that the script has caught."""
        if id(exit_) == self._exit:
            self.code = 0

    def _end(self) -> None:
        """Finalise MPI together with the others, or abort it."""
        if os.getpid() != self._process:
            return
        if self.code not in (None, 0):
            code = self.code & 0xFF if isinstance(self.code, int) else 1
            self._abort(code or 1, f"exit code {code or 1}")
        try:
            self.leave()
        except Exception as error:
            self._failed(type(error), error, None)
        # If a worker leaves by os._exit(0), mpiexec kills the others, and its exit code is 0, too.
        say("done", "")
        limit_step()
        if not self._mpi.Is_finalized():
            self._mpi.Finalize()
        faulthandler.cancel_dump_traceback_later()

    def _wait_for_all(self) -> None:
        if self._mpi.Is_finalized():  # by the script
            return
        request = self._mpi.COMM_WORLD.Ibarrier()
        while not request.Test():
            time.sleep(_INTERVAL)

    def _abort(self, code: int, reason: str, *, is_from_peer: bool = False) -> NoReturn:
        faulthandler.dump_traceback_later(_LAST_WORDS, exit=True)
        say("heard" if is_from_peer else "why", f"{code} {reason}")
        with suppress(Exception):
            self.abort(reason)
        logging.shutdown()
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError, AttributeError):
                stream.flush()
        time.sleep(_PAUSE)
        self._mpi.COMM_WORLD.Abort(code)
        os._exit(code)


class _Exit(SystemExit):
    """What `sys.exit` raises. Python lets go of it behind the last frame, unless it was caught."""

    end: _End | None = None

    def __del__(self) -> None:
        if self.end is not None and sys._getframe().f_back is not None:
            self.end.goes_on(self)


_ends: list[_End] = []


def _unlink_shared_memory() -> None:
    """Remove the names of the memory that MPICH shares; else it would outlive a killed process."""
    for line in Path("/proc/self/maps").read_bytes().strip().split(b"\n"):
        path = Path(os.fsdecode(line.split(maxsplit=5)[-1]))
        if path.parent == _SHARED_MEMORY and path.name.startswith("mpich_shm_"):
            start = path.name.rpartition("_")[0]  # the rest is the number of a process
            for one in _SHARED_MEMORY.glob(f"{start}_*"):
                one.unlink(missing_ok=True)


# --- Processes that end with another one -----------------------------------------------------

_parent: list[int] = []


def end_with(parent: int) -> None:
    """Let this process be killed when its parent ends, of which the caller knows the number."""
    if sys.platform == "linux":
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)


def _before_fork() -> None:
    # The signal comes when the thread that has forked ends, so that a thread of a pool would take
    # its child with it.
    is_main = threading.current_thread() is threading.main_thread()
    _parent[:] = [os.getpid()] if is_main else []


def _after_fork_in_child() -> None:
    """Let a DataLoader's worker end with the process that it reads for, however that ends."""
    if _parent:
        end_with(_parent[0])
        # mpiexec sends signals to the group: Ctrl-C is for the worker, which still needs its data.
        with suppress(OSError):
            os.setpgid(0, 0)
