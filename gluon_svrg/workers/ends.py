"""How a process that has others beside it ends, so that none waits for one that is gone."""

from __future__ import annotations

import atexit
import ctypes
import logging
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from types import TracebackType
from typing import NoReturn, TypeVar

from gluon_svrg.launch.environment import PEER_FAILED
from gluon_svrg.workers.base import WorkerError
from gluon_svrg.workers.sockets import SocketWorkers

_W = TypeVar("_W", bound=SocketWorkers)
_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None, use_errno=True)  # not in the child: loading takes locks


class _End:
    """The end of this process, of which `workers` hear, once there are any."""

    def __init__(self) -> None:
        self.workers: SocketWorkers | None = None
        self._process = os.getpid()
        self._code: int | str | None = 0
        self._is_over = False
        self._hook, sys.excepthook = sys.excepthook, self._failed
        # `raise SystemExit` in a script is seen by nobody; sys.exit is what argparse and all use.
        self._exit = 0
        sys.exit = self._exits
        atexit.register(self._end)

    def _failed(
        self, kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        """Print the traceback; tell the others, so that they do not wait."""
        self._hook(kind, error, trace)
        if os.getpid() != self._process:
            return
        self._is_over = True
        if self.workers is not None:
            self.workers.abort("".join(traceback.format_exception_only(kind, error)).strip())
        if isinstance(error, WorkerError):
            self._code = PEER_FAILED
        elif isinstance(error, KeyboardInterrupt):
            self._code = 128 + signal.SIGINT

    def _exits(self, code: int | str | None = None) -> NoReturn:
        if threading.current_thread() is not threading.main_thread():  # ends the thread alone
            raise SystemExit(code)
        exit_ = _Exit(code)
        self._code, self._exit = code, id(exit_)
        exit_.end = self
        try:
            raise exit_
        finally:
            del exit_  # or its traceback would keep it alive

    def goes_on(self, exit_: _Exit) -> None:
        """Forget the exit code of a `sys.exit` that the script has caught."""
        if id(exit_) == self._exit:
            self._code = 0

    def _end(self) -> None:
        """Wait for the others, who may need the servers still; that no other way is one, too."""
        if os.getpid() != self._process:
            return
        if self._code not in (None, 0) and not self._is_over:
            if self.workers is not None:
                self.workers.abort(f"it has ended with exit code {self._code}")
        elif not self._is_over:
            try:
                if self.workers is not None:
                    self.workers.leave()
                return
            except WorkerError as error:
                print(f"WorkerError: {error}", file=sys.stderr)
                self._code = PEER_FAILED
        # What is left to do in MXNet's engine may wait for a worker that is gone.
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(self._code & 0xFF if isinstance(self._code, int) and self._code else 1)


class _Exit(SystemExit):
    """What `sys.exit` raises. Python lets go of it behind the last frame, unless it was caught."""

    end: _End | None = None

    def __del__(self) -> None:
        if self.end is not None and sys._getframe().f_back is not None:
            self.end.goes_on(self)


def watched(make: Callable[[], _W]) -> _W:
    """Return the workers that `make` makes; how this process ends, they will hear.

    To be called once a process. A start that fails for want of another worker has its exit code.
    What the process forks off from here on ends with it; one that is alone forks as ever.
    """
    os.register_at_fork(before=_before_fork, after_in_child=_after_fork_in_child)
    end = _End()
    workers = make()
    end.workers = workers
    return workers


# --- Processes that are forked off -----------------------------------------------------------

_parent: list[int] = []


def _before_fork() -> None:
    # The signal comes when the thread that has forked ends, so that a thread of a pool would take
    # its child with it.
    is_main = threading.current_thread() is threading.main_thread()
    _parent[:] = [os.getpid()] if is_main else []


def _after_fork_in_child() -> None:
    """Let a DataLoader's worker end with the process that it reads for, however that ends."""
    if _parent and sys.platform == "linux":
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != _parent[0]:
            os._exit(1)
