"""The files of a checkpoint that hold what differs from worker to worker."""

from __future__ import annotations

from typing import Any

import mxnet as mx
from gluon_svrg._compat import NumPyArray
from gluon_svrg.checkpoint.differences import applied, difference, digests_of, is_none
from gluon_svrg.checkpoint.encoding import decode, encode, from_bytes, to_bytes
from gluon_svrg.events import State
from gluon_svrg.workers import Workers

_AT = "a checkpoint"


def file_of(rank: int) -> str:
    """Return the name of the file of a worker other than the first."""
    return f"worker-{rank}.npz"


def check_together(workers: Workers, problem: str | None) -> None:
    """Raise FloatingPointError, the same on all workers, if one of them has a problem."""
    for rank, said in enumerate(workers.gather_plain(problem, _AT)):
        if said is not None:
            raise FloatingPointError(f"{said} (worker {rank})")


def gathered_differences(workers: Workers, states: State) -> dict[str, bytes]:
    """Return the file of each worker whose states, as plain data, are not the first's."""
    own = digests_of(states)
    first = workers.of_first(own, _AT)
    changes = difference(states, own, first)
    arrays: dict[str, NumPyArray] = {}
    content = b""
    if not is_none(changes):
        content = to_bytes({"changes": encode(changes, arrays)}, arrays)
    contents = enumerate(workers.gather(content, _AT))
    return {file_of(rank): content for rank, content in contents if content}


def with_differences(content: bytes, first: State) -> Any:
    """Return the states of the worker whose file has this `content`."""
    meta, arrays = from_bytes(content)
    return applied(decode(meta["changes"], arrays, mx.cpu()), first)
