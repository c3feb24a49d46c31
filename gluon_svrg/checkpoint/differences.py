"""What of a worker's state is not as the first worker's: found by digests, without sending all.

A state is a tree of dicts, lists and tuples, down to arrays and to parts without any array. Each
node has a digest, so that a worker only has to know those of the first one to say what differs.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from typing import Any

import numpy as np
from gluon_svrg._compat import NumPyArray
from gluon_svrg.checkpoint.encoding import encode
from mxnet.ndarray import NDArray

Digests = dict[str, str]
"""The digest of each node of a state, by the way to it."""

_Way = tuple[Any, ...]

_SAME, _IS, _DICT, _LIST, _TUPLE = "same", "is", "dict", "list", "tuple"


def digests_of(state: object) -> Digests:
    """Return the digests of all nodes of `state`, which is data as `encode` takes it."""
    found: Digests = {}
    _note_digest(state, (), found)
    return found


def difference(state: object, digests: Digests, first: Digests) -> list[Any]:
    """Return, as plain data, what is to be put into the first worker's state to make `state`.

    Parameters
    ----------
    state : object
        This worker's.
    digests, first : dict
        What :func:`digests_of` returned for it, and for that of the first worker.
    """
    return _difference(state, (), digests, first)


def is_none(changes: list[Any]) -> bool:
    """Return whether :func:`difference` has found nothing."""
    return changes == [_SAME]


def applied(changes: list[Any], first: object) -> Any:
    """Return the state of which :func:`difference` returned `changes`; both may share parts."""
    kind, *content = changes
    if kind == _SAME:
        return first
    if kind == _IS:
        return content[0]
    own = dict(_items(first) or ())
    children = {key: applied(change, own.get(key)) for key, change in content[0]}
    if kind == _DICT:
        return children
    return {_LIST: list, _TUPLE: tuple}[kind](children.values())


def _difference(value: object, way: _Way, digests: Digests, first: Digests) -> list[Any]:
    name = _name(way)
    if first.get(name) == digests[name]:
        return [_SAME]
    items = _items(value) if _has_arrays(value) else None
    if items is None:
        return [_IS, value]
    changes = [[key, _difference(item, (*way, key), digests, first)] for key, item in items]
    return [_kind_of(value), changes]


def _note_digest(value: object, way: _Way, found: Digests) -> bytes:
    """Note the digest of the node at the end of `way`, and of all under it; return it."""
    content = hashlib.blake2b(digest_size=16)
    items = _items(value) if _has_arrays(value) else None
    if items is None:
        arrays: dict[str, NumPyArray] = {}
        content.update(json.dumps(encode(value, arrays)).encode())
        for array in arrays.values():
            content.update(f"{array.dtype.str} {array.shape}".encode())
            content.update(array.tobytes())
    else:
        content.update(_kind_of(value).encode())
        for key, item in items:
            content.update(json.dumps(key).encode())
            content.update(_note_digest(item, (*way, key), found))
    found[_name(way)] = content.hexdigest()
    return content.digest()


def _name(way: _Way) -> str:
    return json.dumps(way)


def _kind_of(value: object) -> str:
    if isinstance(value, dict):
        return _DICT
    return _LIST if isinstance(value, list) else _TUPLE


def _items(value: object) -> Iterable[tuple[Any, Any]] | None:
    """Return what is in a dict, a list or a tuple, by its key or number; None of anything else."""
    if isinstance(value, dict):
        return [(k.item() if isinstance(k, np.integer) else k, v) for k, v in value.items()]
    return enumerate(value) if isinstance(value, list | tuple) else None


def _has_arrays(value: object) -> bool:
    if isinstance(value, NDArray | np.ndarray):
        return True
    return any(_has_arrays(item) for _, item in _items(value) or ())
