"""Run a script as one worker: ``mpiexec -n 4 python -m gluon_svrg.launch.worker train.py``.

MPI is initialised before the script can fail, because mpiexec waits forever if a worker exits
before that. Then the script runs, or a module after ``-m``. Without an MPI launcher, only the
script runs.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
import traceback
from types import ModuleType, TracebackType

from gluon_svrg.workers import lifecycle
from gluon_svrg.workers.parent_death import die_with_parent
from gluon_svrg.workers.supervision import is_supervised, is_under_mpi, report


def main() -> None:
    """Run the script on the command line."""
    arguments = sys.argv[1:]
    is_module = arguments[:1] == ["-m"]
    sys.argv = arguments = arguments[is_module:]
    if not arguments:
        print("usage: python -m gluon_svrg.launch.worker [-m] train.py [its arguments]")
        sys.exit(2)
    if is_under_mpi():
        _start()
    try:
        if is_module:
            runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)
        else:
            sys.path[0] = os.path.dirname(os.path.abspath(arguments[0]))
            runpy.run_path(arguments[0], run_name="__main__")
    except SystemExit as error:
        lifecycle.set_exit_code(error.code)
        raise
    except BaseException as error:
        error.__traceback__ = _script_traceback(error)
        lifecycle.fail(error)
        os._exit(1)


def _start() -> None:
    """Initialise MPI and prepare this process for the script."""
    parent = os.getppid()
    report("pid", str(os.getpid()))
    for stream in (sys.stdout, sys.stderr):
        # mpiexec prints the rank before each write, so each line should be one write.
        stream.reconfigure(line_buffering=True, write_through=False)  # type: ignore[union-attr]
    try:
        if is_supervised():
            die_with_parent(parent)
            lifecycle.protect_mpiexec_connection()
        mpi = lifecycle.initialise_mpi()
    except BaseException as error:
        if isinstance(error, ImportError):
            error = ImportError(f"{error}: pip install 'gluon-svrg[workers]' on this machine")
        reason = traceback.format_exception_only(error)[-1].strip()
        print(f"MPI cannot be initialised: {reason}", file=sys.stderr, flush=True)
        report("failed", f"1 {reason}")
        # Before MPI_Init, mpiexec notices the exit of a worker only if it is killed by a signal.
        os.kill(os.getpid(), signal.SIGKILL)
    if mpi.COMM_WORLD.rank > 0:
        # mpiexec gives these workers a standard input from which a read never returns.
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.close(null)
    _set_threads(mpi)


def _set_threads(mpi: ModuleType) -> None:
    """Divide the cores of this machine among its workers, unless OMP_NUM_THREADS is set."""
    local_workers = mpi.COMM_WORLD.Split_type(mpi.COMM_TYPE_SHARED)
    cores = len(os.sched_getaffinity(0))
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, cores // local_workers.size)))
    local_workers.Free()


def _script_traceback(error: BaseException) -> TracebackType | None:
    """Return the traceback without the frames before the script's first one."""
    hidden = (__file__, runpy.__file__, "<frozen runpy>")
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename in hidden:
        trace = trace.tb_next
    return trace


if __name__ == "__main__":
    main()
