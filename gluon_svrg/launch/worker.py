"""Run a script as one worker: ``mpiexec -n 4 python -m gluon_svrg.launch.worker train.py``.

It initialises MPI before the script can fail, because mpiexec waits for ever if a worker ends
before that. Then it runs the script, or a module after ``-m``. Without an MPI launcher it only runs
it.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
import traceback
from types import ModuleType, TracebackType

from gluon_svrg.launch import ends
from gluon_svrg.launch.environment import SUPERVISED, is_under_mpi


def main() -> None:
    """Run the script that the command line names."""
    arguments = sys.argv[1:]
    is_module = arguments[:1] == ["-m"]
    sys.argv = arguments = arguments[is_module:]
    if not arguments:
        print("usage: python -m gluon_svrg.launch.worker [-m] train.py [its arguments]")
        sys.exit(2)
    if is_under_mpi():
        _begin()
    try:
        if is_module:
            runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)
        else:
            sys.path[0] = os.path.dirname(os.path.abspath(arguments[0]))
            runpy.run_path(arguments[0], run_name="__main__")
    except SystemExit as error:
        ends.set_exit_code(error.code)
        raise
    except BaseException as error:
        error.__traceback__ = _of_script(error)
        ends.fail(error)
        os._exit(1)


def _begin() -> None:
    """Become one of several workers."""
    parent = os.getppid()
    ends.say("process", str(os.getpid()))
    for stream in (sys.stdout, sys.stderr):
        # mpiexec puts the rank before each piece that it is given: pieces are to be lines.
        stream.reconfigure(line_buffering=True, write_through=False)  # type: ignore[union-attr]
    try:
        if SUPERVISED in os.environ:
            ends.end_with(parent)
            ends.keep_connection()
        mpi = ends.initialise_mpi()
    except BaseException as error:
        if isinstance(error, ImportError):
            error = ImportError(f"{error}: pip install 'gluon-svrg[workers]' on this machine")
        reason = traceback.format_exception_only(error)[-1].strip()
        print(f"MPI does not start: {reason}", file=sys.stderr, flush=True)
        ends.say("why", f"1 {reason}")
        # mpiexec notices an end before MPI_Init only if it is by a signal.
        os.kill(os.getpid(), signal.SIGKILL)
    if mpi.COMM_WORLD.rank > 0:
        # A read from the standard input that mpiexec gives to others than the first never returns.
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.close(null)
    _set_threads(mpi)


def _set_threads(mpi: ModuleType) -> None:
    """Divide the cores of this machine among its workers, unless OMP_NUM_THREADS is set."""
    own = mpi.COMM_WORLD.Split_type(mpi.COMM_TYPE_SHARED)
    cores = len(os.sched_getaffinity(0))
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, cores // own.size)))
    own.Free()


def _of_script(error: BaseException) -> TracebackType | None:
    """Return the traceback without the frames that lead to the script."""
    own = (__file__, runpy.__file__, "<frozen runpy>")
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename in own:
        trace = trace.tb_next
    return trace


if __name__ == "__main__":
    main()
