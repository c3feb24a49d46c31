"""Write files whole or not at all: under a temporary name, flushed, renamed."""

from __future__ import annotations

import ctypes
import errno
import itertools
import os
import re
import secrets
import stat
import struct
import tempfile
import tokenize
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

# A temporary name: the final one, the host, the process, a token of the process, a number.
_ASIDE = re.compile(r"\.(.+)\.([^./]+)\.(\d+)-([0-9a-f]{8})-\d+\.tmp")
_HOST = os.uname().nodename.replace(".", "_")
_TOKEN, _numbers = secrets.token_hex(4), itertools.count()
_AT_FDCWD, _EXCHANGE = -100, 2  # of Linux: fcntl.h, RENAME_EXCHANGE


class DamagedError(ValueError):
    """A file does not have the content that was written."""


DAMAGED: tuple[type[Exception], ...] = (
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    ArithmeticError,
    EOFError,
    MemoryError,
    OSError,
    RuntimeError,  # NotImplementedError and RecursionError too
    StopIteration,
    SyntaxError,  # of a header of NumPy's, which is Python
    struct.error,
    tokenize.TokenError,
    zipfile.BadZipFile,
    zlib.error,
)
"""What NumPy, zipfile, zlib and json raise on damaged bytes."""


def write_whole(path: Path, content: bytes) -> None:
    """Write `content` to `path`: its old content stays until the new one is on the disk.

    Raises
    ------
    OSError
        If it cannot be written; the old content is there then, and nothing else.
    """
    temporary = aside(path)
    try:
        write_through(temporary, content)
        with naming(path):
            os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def aside(path: Path) -> Path:
    """Return a temporary name next to `path` which no other process uses."""
    writer = f"{_HOST}.{os.getpid()}-{_TOKEN}-{next(_numbers)}"
    return path.with_name(f".{path.name}.{writer}.tmp")


def write_through(path: Path, content: bytes) -> None:
    """Write `content` to `path`, and wait until it is on the disk."""
    with naming(path), open(path, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Add `path` to an OSError without a path, such as that of a write or a flush."""
    try:
        yield
    except OSError as e:
        if e.filename is not None or e.errno is None:
            raise
        raise OSError(e.errno, e.strerror, os.fspath(path)) from e


def read_regular(path: Path, size: int | None = None, at_most: int | None = None) -> bytes:
    """Return the content of a regular file, which may come from an untrusted source.

    Parameters
    ----------
    path : Path
        The file. A pipe or a device, which might never end, is not read.
    size : int, optional
        The size in bytes that it must have; checked before it is read.
    at_most : int, optional
        The largest size in bytes that it may have.

    Raises
    ------
    DamagedError
        If it is no regular file, has another size, or is too large.
    OSError
        If it cannot be read.
    """
    with open(path, "rb", opener=_without_waiting) as file:  # of a folder it raises OSError
        about = os.fstat(file.fileno())
        if not stat.S_ISREG(about.st_mode):
            raise DamagedError(f"{path.name} is no regular file")
        if size is not None and about.st_size != size:
            raise DamagedError(f"{path.name} has {about.st_size} bytes, not {size}")
        if at_most is not None and about.st_size > at_most:
            raise DamagedError(f"{path.name} has {about.st_size} bytes, more than {at_most}")
        return file.read()


def _without_waiting(path: str, flags: int) -> int:
    """Open a file; if it is a pipe, do not wait for a writer."""
    return os.open(path, flags | os.O_NONBLOCK)


def exchange(one: Path, other: Path) -> bool:
    """Exchange two names in one folder, in one step; return whether the system can do that."""
    try:
        renameat2 = ctypes.CDLL(None, use_errno=True).renameat2
    except (AttributeError, OSError):  # no glibc, or an old one
        return False
    if renameat2(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _EXCHANGE) == 0:
        return True
    code = ctypes.get_errno()
    if code in (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP):
        return False
    raise OSError(code, os.strerror(code), str(other))


def is_left_over(name: str) -> bool:
    """Return whether :func:`aside` made this name in a process that has ended.

    False for a process of another host, which cannot be checked.
    """
    match = _ASIDE.fullmatch(name)
    if match is None:
        return False
    _, host, pid, token = match.groups()
    if host != _HOST:
        return False
    if int(pid) == os.getpid():
        return token != _TOKEN  # an earlier process had the same id
    return not _is_running(int(pid))


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:  # another user's process
        return True
    return True


def flush_folder(path: Path) -> None:
    """Wait until the names in the folder at `path` are on the disk.

    A file system that cannot flush folders, as some over a network, raises nothing.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        with naming(path):
            os.fsync(descriptor)
    except OSError as e:
        if e.errno not in (errno.EBADF, errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)


def make_folder(folder: Path) -> None:
    """Make `folder` and its parents; raise OSError if no file can be created in it."""
    folder.mkdir(parents=True, exist_ok=True)
    tempfile.TemporaryFile(dir=folder).close()
