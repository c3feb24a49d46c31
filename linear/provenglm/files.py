"""Reading files that may be damaged."""

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
    SyntaxError,  # of a header of NumPy's, which is Python
    struct.error,
    tokenize.TokenError,
    zipfile.BadZipFile,
    zlib.error,
)
"""What NumPy and pyarrow raise on bytes that have been changed."""


def check_regular(path: str | os.PathLike[str]) -> None:
    """Raise ValueError if `path` is a pipe or a device, which a library would wait for.

    Raises OSError if there is nothing.
    """
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise ValueError(f"{os.fspath(path)} is no regular file")
