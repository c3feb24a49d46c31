"""The files of the other workers in a checkpoint: how their states differ from worker 0's.

A state is a tree of dicts, lists and tuples; its leaves are arrays and parts without arrays. Each
node has a digest. A worker compares its digests with those of worker 0, and sends only the parts
that differ. So a checkpoint takes two gathers: :func:`exchange_states`, of digests and problems,
and :func:`gather_worker_files`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import mxnet as mx
import numpy as np
from gluon_svrg._typing import NumPyArray
from gluon_svrg.arrays.encoding import (
    data_from_bytes,
    data_to_bytes,
    decode,
    encode,
    from_bytes,
    to_bytes,
)
from gluon_svrg.events import State
from gluon_svrg.workers import Reduction, Workers
from mxnet.ndarray import NDArray

Digests = dict[str, str]
"""The digest of each node of a state, by the path to it."""

_Path = tuple[Any, ...]

_LABEL = "a checkpoint"

_SAME, _IS, _DICT, _LIST, _TUPLE = "same", "is", "dict", "list", "tuple"


def tree_digests(state: object) -> Digests:
    """Return the digests of all nodes of `state`, which is data that `encode` takes."""
    digests: Digests = {}
    _add_digests(state, (), digests)
    return digests


def tree_diff(state: object, digests: Digests, first: Digests) -> list[Any]:
    """Return, as plain data, the changes that turn the first worker's state into `state`.

    Parameters
    ----------
    state : object
        The state of this worker.
    digests, first : dict
        What :func:`tree_digests` returned for it, and for the state of the first worker.
    """
    return _diff(state, (), digests, first)


def is_empty_diff(changes: list[Any]) -> bool:
    """Return whether :func:`tree_diff` found no difference."""
    return changes == [_SAME]


def apply_diff(changes: list[Any], first: object) -> Any:
    """Return the state for which :func:`tree_diff` returned `changes`; it may share arrays."""
    kind, *content = changes
    if kind == _SAME:
        return first
    if kind == _IS:
        return content[0]
    first_items = dict(_items(first) or ())
    children = {key: apply_diff(change, first_items.get(key)) for key, change in content[0]}
    if kind == _DICT:
        return children
    return {_LIST: list, _TUPLE: tuple}[kind](children.values())


def worker_file_name(rank: int) -> str:
    """Return the name of the file of a worker other than the first."""
    return f"worker-{rank}.npz"


class Exchange(NamedTuple):
    """What a worker knows after :func:`exchange_states`.

    Attributes
    ----------
    states : dict
        The states of this worker, with the results of all reductions.
    digests, first : dict
        The digests of this worker's states, and of the first worker's. A reduction is the same on
        all workers, and counts as such.
    note : object
        The first worker's note.
    """

    states: State
    digests: Digests
    first: Digests
    note: Any


def exchange_states(
    workers: Workers, states: State | None, problem: str | None, note: object = None
) -> Exchange:
    """Exchange, in one gather, what the workers need from each other for a checkpoint.

    Parameters
    ----------
    workers : Workers
        The workers: all of them call this together.
    states : dict or None
        The states of this worker, as plain data with a :class:`Reduction` for each part that all
        workers compute together; None if there is a problem.
    problem : str or None
        Why this worker cannot write a checkpoint.
    note : object
        Plain data; all workers get the first one's.

    Raises
    ------
    FloatingPointError
        On all workers, if one of them has a problem; no reduction has been made then.
    """
    digests = {} if states is None else tree_digests(states)
    own: list[Any] = []
    replace_reductions(states, lambda reduction: own.append(reduction.value))
    given = [problem, own, *([digests, note] if workers.is_first else [])]
    answers = [data_from_bytes(d) for d in workers.all_gather_bytes(data_to_bytes(given), _LABEL)]
    for rank, (message, *_) in enumerate(answers):
        if message is not None:
            raise FloatingPointError(f"{message} (worker {rank})")
    values = zip(*(answer[1] for answer in answers), strict=True)
    states = replace_reductions(states, lambda reduction: reduction.reduce(list(next(values))))
    return Exchange(states, digests, *answers[0][2:])


def replace_reductions(state: object, replace: Callable[[Reduction], Any]) -> Any:
    """Return a copy of `state` in which each :class:`Reduction` is replaced by a call, in order."""
    if isinstance(state, Reduction):
        return replace(state)
    if isinstance(state, dict):
        return {key: replace_reductions(item, replace) for key, item in state.items()}
    if isinstance(state, list | tuple):
        items = [replace_reductions(item, replace) for item in state]
        return items if isinstance(state, list) else tuple(items)
    return state


def gather_worker_files(
    workers: Workers, states: State, digests: Digests, first: Digests
) -> dict[str, bytes]:
    """Return the file of each worker whose states differ from the first worker's.

    Parameters
    ----------
    workers : Workers
        The workers: all of them call this together.
    states : dict
        The states of this worker, as plain data.
    digests, first : dict
        Those of :class:`Exchange`.
    """
    changes = tree_diff(states, digests, first)
    arrays: dict[str, NumPyArray] = {}
    content = b""
    if not is_empty_diff(changes):
        content = to_bytes({"changes": encode(changes, arrays)}, arrays)
    contents = enumerate(workers.all_gather_bytes(content, _LABEL))
    return {worker_file_name(rank): content for rank, content in contents if content}


def apply_worker_file(content: bytes, first: State) -> Any:
    """Return the states of the worker whose file has this `content`."""
    meta, arrays = from_bytes(content)
    return apply_diff(decode(meta["changes"], arrays, mx.cpu()), first)


def _diff(value: object, path: _Path, digests: Digests, first: Digests) -> list[Any]:
    name = _name(path)
    if first.get(name) == digests[name]:
        return [_SAME]
    items = _items(value) if _has_arrays(value) else None
    if items is None:
        return [_IS, value]
    changes = [[key, _diff(item, (*path, key), digests, first)] for key, item in items]
    return [_container_kind(value), changes]


def _add_digests(value: object, path: _Path, digests: Digests) -> bytes:
    """Store the digests of the node at `path` and of all nodes below; return the first."""
    content = hashlib.blake2b(digest_size=16)
    items = _items(value) if _has_arrays(value) else None
    if isinstance(value, Reduction):
        content.update(b"reduction")
    elif items is None:
        arrays: dict[str, NumPyArray] = {}
        content.update(json.dumps(encode(value, arrays, path)).encode())
        for array in arrays.values():
            content.update(f"{array.dtype.str} {array.shape}".encode())
            content.update(array.tobytes())
    else:
        content.update(_container_kind(value).encode())
        for key, item in items:
            content.update(json.dumps(key).encode())
            content.update(_add_digests(item, (*path, key), digests))
    digests[_name(path)] = content.hexdigest()
    return content.digest()


def _name(path: _Path) -> str:
    return json.dumps(path)


def _container_kind(value: object) -> str:
    if isinstance(value, dict):
        return _DICT
    return _LIST if isinstance(value, list) else _TUPLE


def _items(value: object) -> Iterable[tuple[Any, Any]] | None:
    """Return the items of a dict, list or tuple by key or number; None of anything else."""
    if isinstance(value, dict):
        return [(k.item() if isinstance(k, np.integer) else k, v) for k, v in value.items()]
    return enumerate(value) if isinstance(value, list | tuple) else None


def _has_arrays(value: object) -> bool:
    """Return whether a node has parts with digests of their own: arrays and reductions."""
    if isinstance(value, NDArray | np.ndarray | Reduction):
        return True
    return any(_has_arrays(item) for _, item in _items(value) or ())
