"""FolderLock: no two runs write their checkpoints into one folder."""

from __future__ import annotations

import fcntl
import os
from os import fspath
from pathlib import Path

# The descriptors of the folders in use. A loader's worker that outlives a killed run must not go
# on to hold them.
_locks: set[int] = set()


def _close_in_child() -> None:
    while _locks:
        os.close(_locks.pop())


os.register_at_fork(after_in_child=_close_in_child)


class FolderLock:
    """Lets one run at a time write into a folder, until it gives the lock back or its process ends.

    Parameters
    ----------
    folder : Path
        Which folder.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock: int | None = None

    def take(self) -> None:
        """Make sure that no other run writes into the folder.

        Raises
        ------
        FileExistsError
            If one does.
        """
        self.give_back()
        lock = os.open(self._folder, os.O_RDONLY)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            raise FileExistsError(
                f"directory {fspath(self._folder)!r} is in use by another run, which is still "
                "going on: give each run a directory of its own"
            ) from None
        except OSError:  # a file system without locks
            os.close(lock)
            return
        self._lock = lock
        _locks.add(lock)

    def give_back(self) -> None:
        """Let others write into it."""
        if self._lock is not None:
            if self._lock in _locks:  # else this is a process that was forked
                _locks.remove(self._lock)
                os.close(self._lock)
            self._lock = None
