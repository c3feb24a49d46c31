"""DirectoryLock: prevents two runs from writing checkpoints into one directory."""

from __future__ import annotations

import fcntl
import os
from os import fspath
from pathlib import Path

# The descriptors of the locked folders. A forked process closes them: a DataLoader's worker that
# outlives a killed run must not keep its lock.
_locks: set[int] = set()


def _close_in_child() -> None:
    while _locks:
        os.close(_locks.pop())


os.register_at_fork(after_in_child=_close_in_child)


class DirectoryLock:
    """Lets one run at a time write into a directory, until it releases the lock or exits.

    Parameters
    ----------
    folder : Path
        The directory.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock: int | None = None
        self._acquired: os.stat_result | None = None

    def acquire(self) -> OSError | None:
        """Lock the directory; return the error if its file system has no locks, else None.

        Raises
        ------
        FileExistsError
            If another run has locked it.
        """
        self.release()
        lock = os.open(self._folder, os.O_RDONLY)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            raise FileExistsError(
                f"directory {fspath(self._folder)!r} is in use by another run, which has not "
                "ended: give each run a directory of its own"
            ) from None
        except OSError as error:
            self._acquired = os.fstat(lock)
            os.close(lock)
            return error
        self._acquired = os.fstat(lock)
        self._lock = lock
        _locks.add(lock)
        return None

    def is_of_folder(self) -> bool:
        """Return whether the path still leads to the directory that was locked."""
        try:
            now = os.stat(self._folder)
        except OSError:
            return False
        return self._acquired is not None and os.path.samestat(self._acquired, now)

    def release(self) -> None:
        """Let other runs write into the directory."""
        self._acquired = None
        if self._lock is not None:
            if self._lock in _locks:  # else this process was forked, and has closed it
                _locks.remove(self._lock)
                os.close(self._lock)
            self._lock = None
