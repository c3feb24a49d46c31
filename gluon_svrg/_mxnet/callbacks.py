"""Raise errors of Python code that MXNet's C++ calls back; ctypes only prints them."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def callback_errors() -> Iterator[None]:
    """Raise what was raised in a callback of this thread, when the block ends.

    An optimizer that a kvstore runs, and the collector of a calibration, are called by C++ through
    ctypes, which can hand on no exception: it gives it to `sys.unraisablehook`, which prints it. A
    Ctrl-C, or an update that failed, would be lost, and the weights wrong without a word.

    Raises
    ------
    BaseException
        The first one of a callback; one of the block itself goes before it.
    """
    thread = threading.get_ident()
    before = sys.unraisablehook
    found: list[BaseException] = []

    def keep(unraisable: Any) -> None:
        is_of_ctypes = "ctypes callback" in (unraisable.err_msg or "")
        if threading.get_ident() != thread or not is_of_ctypes or unraisable.exc_value is None:
            before(unraisable)
        elif not found:
            found.append(unraisable.exc_value)

    sys.unraisablehook = keep
    try:
        yield
    finally:
        sys.unraisablehook = before
    if found:
        raise found[0]
