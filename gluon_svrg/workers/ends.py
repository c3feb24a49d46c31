"""How a worker ends: by MPI_Finalize together with all others, or by MPI_Abort for all of them."""

from __future__ import annotations

import atexit
import logging
import os
import signal
import sys
import threading
import time
import traceback
from types import TracebackType
from typing import NoReturn

from gluon_svrg.workers.base import PeerError, WorkerError
from gluon_svrg.workers.mpi import MPIWorkers

_PAUSE = 0.2
"""Seconds before MPI_Abort, after which mpiexec kills all: what was printed is to get out first. Of
46 tracebacks without it one was lost, of 32 with it none."""
_GRACE = 2.0  # seconds for another worker, which has failed, to call MPI_Abort with its own code


def end_together(workers: MPIWorkers) -> None:
    """Let the end of this process be one of all workers; to be called once."""
    _End(workers)


class _End:
    """The end of this process: its exit code decides whether the others go on."""

    def __init__(self, workers: MPIWorkers) -> None:
        self._workers = workers
        self._process = os.getpid()
        self._code: int | str | None = 0
        self._has_raised = False
        self._hook, sys.excepthook = sys.excepthook, self._failed
        # `raise SystemExit` in a script is seen by nobody; sys.exit is what argparse and all use.
        self._exit = 0
        sys.exit = self._exits
        atexit.register(self._end)

    def _failed(
        self, kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        """Print the traceback, unless it is another worker's fault; tell the others."""
        if os.getpid() != self._process:
            self._hook(kind, error, trace)
            return
        self._code = 128 + signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1
        self._has_raised = True
        if isinstance(error, PeerError):
            print(f"WorkerError: {error}", file=sys.stderr, flush=True)
            time.sleep(_GRACE)
            return
        self._hook(kind, error, trace)
        sys.stderr.flush()
        self._workers.abort("".join(traceback.format_exception_only(kind, error)).strip())

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
        """Wait for the others at a good end; end them all at any other."""
        if os.getpid() != self._process:
            return
        if self._code in (None, 0) and not self._has_raised:
            try:
                self._workers.leave()
            except WorkerError as error:
                print(f"WorkerError: {error}", file=sys.stderr, flush=True)
                self._code = 1
                if isinstance(error, PeerError):
                    time.sleep(_GRACE)
            else:
                return
        self._workers.abort(f"it has ended with exit code {self._code}")
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
        time.sleep(_PAUSE)
        code = self._code & 0xFF if isinstance(self._code, int) and self._code else 1
        self._workers.end_all(code)


class _Exit(SystemExit):
    """What `sys.exit` raises. Python lets go of it behind the last frame, unless it was caught."""

    end: _End | None = None

    def __del__(self) -> None:
        if self.end is not None and sys._getframe().f_back is not None:
            self.end.goes_on(self)
