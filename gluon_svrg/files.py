"""Files that are written whole or not at all (aside, flushed, renamed), and folders for them."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


class DamagedError(ValueError):
    """The bytes are not what was once written."""


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
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def aside(path: Path) -> Path:
    """Return the name under which this process writes what is to become `path`."""
    return path.with_name(f".{path.name}.{os.getpid()}.tmp")


def write_through(path: Path, content: bytes) -> None:
    """Write `content` to `path`, and wait until it is on the disk."""
    with open(path, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def flush_folder(path: Path) -> None:
    """Wait until the names in the folder at `path` are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_folder(folder: Path) -> None:
    """Make `folder`, with those above it; raise OSError also if no file can be made in it."""
    folder.mkdir(parents=True, exist_ok=True)
    tempfile.TemporaryFile(dir=folder).close()
