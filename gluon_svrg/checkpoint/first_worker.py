"""Run something on worker 0 and give its result or error to all workers."""

from __future__ import annotations

import builtins
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from gluon_svrg.arrays.encoding import from_bytes, to_bytes
from gluon_svrg.checkpoint.storage import Checkpoint, CheckpointKey
from gluon_svrg.workers import Workers

Result = TypeVar("Result")

_DONE, _FAILED = b"D", b"F"


def run_on_first(workers: Workers, make: Callable[[], Any], label: str) -> Any:
    """Call `make` on the first worker, and return its result, plain data, on all workers.

    Parameters
    ----------
    workers : Workers
        The workers of the run: all of them call this together.
    make : callable
        Called on the first worker, for example to read its disk.
    label : str
        As for :meth:`Workers.all_gather_bytes`.

    Raises
    ------
    Exception
        What `make` raises; on the other workers, the nearest built-in exception.
    """
    return _run_on_first(
        workers,
        make,
        label,
        lambda result: json.dumps(result).encode(),
        lambda data: json.loads(data),
    )


def read_on_first(
    workers: Workers, find: Callable[[], Checkpoint | None], label: str
) -> Checkpoint | None:
    """Return the checkpoint that the first worker finds, on all workers, with its files."""
    return _run_on_first(workers, find, label, _to_bytes, _from_bytes)


def _run_on_first(
    workers: Workers,
    make: Callable[[], Result],
    label: str,
    dump: Callable[[Result], bytes],
    load: Callable[[bytes], Result],
) -> Result:
    if not workers.is_distributed:
        return make()
    if not workers.is_first:
        answer = workers.all_gather_bytes(b"", label)[0]
        if answer[:1] == _FAILED:
            raise _exception_in(answer[1:])
        return load(answer[1:])
    try:
        result = make()
    except Exception as e:
        workers.all_gather_bytes(_FAILED + _described(e), label)
        raise
    workers.all_gather_bytes(_DONE + dump(result), label)
    return result


def _described(exception: Exception) -> bytes:
    names = [kind.__name__ for kind in type(exception).__mro__ if kind.__module__ == "builtins"]
    return json.dumps([names, str(exception)]).encode()


def _exception_in(data: bytes) -> Exception:
    """Return the nearest built-in exception that takes a message alone."""
    names, message = json.loads(data)
    for name in names:
        try:
            exception = vars(builtins)[name](message)
        except TypeError:  # it takes more
            continue
        if isinstance(exception, Exception):
            return exception
    return RuntimeError(message)


def _to_bytes(checkpoint: Checkpoint | None) -> bytes:
    if checkpoint is None:
        return b""
    meta = {"path": str(checkpoint.path), "key": checkpoint.key, "manifest": checkpoint.manifest}
    files = {name: np.frombuffer(data, np.uint8) for name, data in checkpoint.files.items()}
    return to_bytes(meta, files)


def _from_bytes(data: bytes) -> Checkpoint | None:
    if not data:
        return None
    meta, arrays = from_bytes(data)
    files = {name: array.tobytes() for name, array in arrays.items()}
    return Checkpoint(Path(meta["path"]), CheckpointKey(*meta["key"]), meta["manifest"], files)
