"""Kill a process when its parent ends, so that no process outlives the job."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
from contextlib import suppress

_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None, use_errno=True)  # loaded here, because a forked child must not take locks
_fork_parent: list[int] = []


def die_with_parent(parent: int) -> None:
    """Let Linux kill this process when its parent ends.

    Parameters
    ----------
    parent : int
        The process number of the parent. If the parent has already ended, this process exits.
    """
    if sys.platform == "linux":
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)


def kill_forked_children_with_this_process() -> None:
    """From now on, let forked processes, such as a DataLoader's, end with this process."""
    os.register_at_fork(before=_before_fork, after_in_child=_after_fork_in_child)


def _before_fork() -> None:
    # Linux sends the signal when the forking *thread* ends. A child that was forked by a thread of
    # a pool would be killed too early, so only children of the main thread are included.
    is_main = threading.current_thread() is threading.main_thread()
    _fork_parent[:] = [os.getpid()] if is_main else []


def _after_fork_in_child() -> None:
    if _fork_parent:
        die_with_parent(_fork_parent[0])
        # mpiexec signals the whole process group. Ctrl-C is for the worker, which still needs the
        # data of its children.
        with suppress(OSError):
            os.setpgid(0, 0)
