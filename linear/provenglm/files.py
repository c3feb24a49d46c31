"""Checks and exceptions for reading files that may be damaged."""

from __future__ import annotations

import os
import stat
import struct
import tokenize
import zipfile
import zlib

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
    SyntaxError,  # a header of NumPy is Python code
    struct.error,
    tokenize.TokenError,
    zipfile.BadZipFile,
    zlib.error,
)
"""The exceptions that NumPy and pyarrow raise for damaged files."""


def check_regular(path: str | os.PathLike[str]) -> None:
    """Raise ValueError if `path` is a pipe or a device, which a library would wait for.

    Raise OSError if the path does not exist.
    """
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise ValueError(f"{os.fspath(path)} is no regular file")
