"""Numba's `njit`, with a cache that several processes may fill at once.

Numba keeps, for each function, an index of the types that it was compiled for and a file of code
for each. Two processes that compile a function for different types at the same time choose the same
file. The index then names code of other types, and each later call fails with "can't unbox array"
until the cache is deleted: https://github.com/numba/numba/issues/10128.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from typing import Any

import numba

__all__ = ["njit"]


def njit(**options: Any) -> Callable[[Callable[..., Any]], Any]:
    """Return `numba.njit(**options)` with a cache that one process at a time reads or writes."""

    def compiled(function: Callable[..., Any]) -> Any:
        dispatcher = numba.njit(cache=True, **options)(function)
        if dispatcher is function:
            return function  # NUMBA_DISABLE_JIT
        cache = dispatcher._cache
        for name in ("load_overload", "save_overload"):
            setattr(cache, name, _alone(getattr(cache, name), cache.cache_path))
        return dispatcher

    return compiled


def _alone(method: Callable[..., Any], folder: str) -> Callable[..., Any]:
    def locked(*args: Any) -> Any:
        os.makedirs(folder, exist_ok=True)
        with open(os.path.join(folder, "numba.lock"), "a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            return method(*args)

    return locked
