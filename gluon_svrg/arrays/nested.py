"""Arrays in lists, tuples and dicts, one in another."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from mxnet.ndarray import NDArray


def tree_leaves(value: object) -> list[Any]:
    """Return what the lists, tuples and dicts in `value` hold, in order, without None.

    Anything else is a leaf, `value` itself too. A dict's are in the order of its keys' insertion.
    """
    # An array first, here and below: what is asked at each batch is one, nearly always.
    if isinstance(value, NDArray):
        return [value]
    if value is None:
        return []
    if not isinstance(value, (list, tuple)):
        if not isinstance(value, Mapping):
            return [value]
        value = value.values()
    leaves = []
    for item in value:
        if isinstance(item, NDArray):
            leaves.append(item)
        else:
            leaves += tree_leaves(item)
    return leaves


def tree_map(function: Callable[[Any], Any], value: object) -> Any:
    """Return `value` with ``function(leaf)`` in the place of each leaf; None stays.

    A list stays a list and a dict a dict; any tuple but a named one becomes a plain one.
    """
    if isinstance(value, NDArray):
        return function(value)
    if value is None:
        return None
    if isinstance(value, Mapping):
        return {key: tree_map(function, item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        items = [tree_map(function, item) for item in value]
        if isinstance(value, list):
            return items
        return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
    return function(value)
