"""Functions on nested lists, tuples and dicts of arrays (trees, as in JAX)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from gluon_svrg._typing import NumPyArray
from mxnet.ndarray import NDArray


def tree_leaves(value: object) -> list[Any]:
    """Return the leaves of `value`, in order: all that is no list, tuple, dict or None.

    The leaves of a dict are in the order in which its keys were inserted.
    """
    # An array is tested for first, here and below: it is called at each batch, mostly with one.
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


def as_numpy(array: Any) -> NumPyArray:
    """Return an NDArray or a NumPy array as a NumPy array."""
    return np.asarray(array.asnumpy() if isinstance(array, NDArray) else array)


def check_no_mask(name: str, array: object) -> None:
    """Raise ValueError if `array` is one of numpy.ma with a masked value, which is no number."""
    if isinstance(array, np.ma.MaskedArray) and np.any(array.mask):
        row = np.argwhere(array.mask)[0][0]
        raise ValueError(
            f"{name} has a masked value in row {row}, and what is under a mask is no number: leave "
            "such rows out, or fill it in with numpy.ma.filled"
        )


def describe_value(value: object) -> str:
    """Return what `value` is, for an error message: ``'an array of shape (3, 4)'``."""
    if isinstance(value, (NDArray, np.ndarray)):
        dtype = np.dtype(value.dtype)
        kind = "" if dtype.kind in "fiub" else f" and dtype {dtype}"
        return f"an array of shape {value.shape}{kind}"
    if isinstance(value, Mapping):
        return f"a dict with the keys {list(value)}"
    name = type(value).__name__
    size = f" of {len(value)}" if isinstance(value, (list, tuple)) else ""
    return f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}{size}"
