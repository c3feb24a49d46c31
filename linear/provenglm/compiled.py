"""Import loops that Numba compiles, and cache the compiled code safely.

Numba keeps, for each function, an index of the types that it was compiled for and a file of code
for each. Two processes that compile a function for different types at the same time choose the same
file. The index then names code of other types, and each later call fails with "can't unbox array"
until the cache is deleted: https://github.com/numba/numba/issues/10128.

A cache saves a second or two and is optional: if none can be written, each process compiles.
"""

from __future__ import annotations

import fcntl
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType
from typing import Any

__all__ = ["kernels", "njit"]


def kernels(name: str) -> ModuleType:
    """Return a module of compiled loops of this package, such as 'descent_kernels'.

    Importing Numba takes half a second, so it is imported by the first fit that needs it. Ctrl-C is
    delayed until the import ends, because a partial import of Numba cannot be repeated.
    """
    full = f"{__package__}.{name}"
    if full in sys.modules:
        return import_module(full)
    with _sigint_after():
        return import_module(full)


def njit(**options: Any) -> Callable[[Callable[..., Any]], Any]:
    """Return `numba.njit(**options)` with a cache that only one process uses at a time."""
    import numba
    from numba.core.registry import cpu_target

    # The first compilation imports more of Numba: do it here, where Ctrl-C is delayed.
    cpu_target.typing_context.refresh()
    cpu_target.target_context.refresh()

    def compiled(function: Callable[..., Any]) -> Any:
        try:
            dispatcher = numba.njit(cache=True, **options)(function)
        except RuntimeError:  # neither the package's folder nor a home directory can be written
            return numba.njit(**options)(function)
        if dispatcher is function:
            return function  # NUMBA_DISABLE_JIT
        cache = dispatcher._cache
        for method in ("load_overload", "save_overload"):
            setattr(cache, method, _alone(getattr(cache, method), cache.cache_path))
        return dispatcher

    return compiled


def _alone(method: Callable[..., Any], folder: str) -> Callable[..., Any]:
    """Wrap a method of the cache with a lock; without a usable cache it returns None."""

    def locked(*args: Any) -> Any:
        try:
            os.makedirs(folder, exist_ok=True)
            with open(os.path.join(folder, "numba.lock"), "a") as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                return method(*args)
        except Exception:
            # On a full disk, a file system without locks or a damaged file, Numba compiles again.
            return None

    return locked


@contextmanager
def _sigint_after() -> Iterator[None]:
    """Delay SIGINT until the end of the block. Only the main thread receives SIGINT."""
    before = signal.getsignal(signal.SIGINT)
    if before is None or threading.current_thread() is not threading.main_thread():
        yield
        return
    held = []
    signal.signal(signal.SIGINT, lambda *_: held.append(True))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if held:
            signal.raise_signal(signal.SIGINT)
