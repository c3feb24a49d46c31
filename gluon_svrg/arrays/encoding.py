"""Encode plain data and arrays in one .npz file, without pickle.

Arrays are entries of the .npz; the rest is the JSON text of its entry ``meta``, which refers to
them by name.
"""

from __future__ import annotations

import io
import json
import reprlib
from collections.abc import Iterable
from typing import Any

import mxnet as mx
import numpy as np
from gluon_svrg._mxnet.array_mode import is_mx_np, to_active_mode
from gluon_svrg._mxnet.block import array_from_numpy
from gluon_svrg._typing import NumPyArray
from gluon_svrg.arrays.row_sparse import row_sparse
from gluon_svrg.files import DAMAGED, DamagedError
from mxnet.ndarray import NDArray

_OF_NUMPY = "numpy"  # in the place of a storage type: an mx.np.ndarray, which is always dense

_KINDS = "biufcSU"  # of NumPy's dtypes: numbers and text

_SEQUENCES: dict[str, Any] = {"list": list, "tuple": tuple, "set": set}


def to_bytes(meta: dict[str, Any], arrays: dict[str, NumPyArray]) -> bytes:
    """Return the content of an .npz file."""
    content = io.BytesIO()
    text = np.frombuffer(json.dumps(meta).encode(), dtype=np.uint8)
    np.savez(content, meta=text, **arrays)
    return content.getvalue()


def from_bytes(content: bytes) -> tuple[dict[str, Any], dict[str, NumPyArray]]:
    """Return the arguments of :func:`to_bytes`; nothing in `content` is executed.

    Raises
    ------
    DamagedError
        If `content` was not written by it.
    """
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
        meta = json.loads(arrays.pop("meta").tobytes())
        if not isinstance(meta, dict):
            raise ValueError(f"its text is a {type(meta).__name__}")
    except DAMAGED as e:
        raise DamagedError(str(e)) from e
    return meta, arrays


def data_to_bytes(value: object) -> bytes:
    """Return plain data and arrays, as :func:`encode` takes them, as an .npz file."""
    arrays: dict[str, NumPyArray] = {}
    return to_bytes({"data": encode(value, arrays)}, arrays)


def data_from_bytes(content: bytes) -> Any:
    """Return the argument of :func:`data_to_bytes`, with new arrays on the CPU."""
    meta, arrays = from_bytes(content)
    return decode(meta["data"], arrays, mx.cpu())


def plain_attributes(
    owner: object, arrays: dict[str, NumPyArray], without: frozenset[str] = frozenset()
) -> dict[str, Any]:
    """Encode those attributes of `owner` that are data; functions and objects stay as made."""
    return {
        name: encode(value, arrays)
        for name, value in vars(owner).items()
        if name not in without and is_data(value)
    }


def is_data(value: object) -> bool:
    """Return whether `value` is made of what :func:`encode` takes."""
    if isinstance(value, dict):
        keys = (int, str, np.integer)
        return all(isinstance(key, keys) and is_data(item) for key, item in value.items())
    if isinstance(value, list | tuple | set):
        return all(is_data(item) for item in value)
    if isinstance(value, np.ndarray | np.generic):
        return value.dtype.kind in _KINDS
    return value is None or isinstance(value, bool | int | float | str | NDArray)


def encode(value: object, arrays: dict[str, NumPyArray], path: Iterable[object] = ()) -> Any:
    """Turn data into JSON, and the arrays in it into entries of `arrays`.

    Parameters
    ----------
    value : object
        The data.
    arrays : dict of str to numpy.ndarray
        Gets the arrays.
    path : iterable
        The keys and indices that lead to `value`, for the message of an error.

    Raises
    ------
    TypeError
        If `value` holds anything but None, numbers, strings, arrays, and lists, tuples, sets and
        dicts (with string or integer keys) of them. The message says where.
    """
    try:
        return _encode(value, arrays)
    except _NotDataError:
        place, found = _find_what_is_no_data(value)
        where = "".join(f"[{key!r}]" for key in (*path, *place))
        raise TypeError(
            f"{where}{': ' if where else ''}{reprlib.repr(found)} cannot be saved: data is None, "
            "numbers, strings, arrays, and lists, tuples, sets and dicts (by strings or integers) "
            "of them"
        ) from None


class _NotDataError(TypeError):
    pass


def _encode(value: object, arrays: dict[str, NumPyArray]) -> Any:
    if isinstance(value, NDArray):
        name = f"array{len(arrays)}"
        arrays[name] = value.asnumpy()
        return {"array": name, "stype": _OF_NUMPY if is_mx_np(value) else value.stype}
    if isinstance(value, np.ndarray | np.generic):
        if value.dtype.kind not in _KINDS:
            raise _NotDataError
        name = f"array{len(arrays)}"
        arrays[name] = np.asarray(value)
        return {"numpy" if isinstance(value, np.ndarray) else "scalar": name}
    if isinstance(value, dict):
        return {"dict": [[_key(key), _encode(item, arrays)] for key, item in value.items()]}
    for kind, make in _SEQUENCES.items():
        if isinstance(value, make):
            return {kind: [_encode(item, arrays) for item in value]}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise _NotDataError


def _key(key: object) -> object:
    if not isinstance(key, int | str | np.integer):
        raise _NotDataError
    return key.item() if isinstance(key, np.integer) else key


def _find_what_is_no_data(value: object) -> tuple[list[object], object]:
    """Return the path to the first item that is no data, and the item."""
    items: Iterable[tuple[object, object]] = ()
    if isinstance(value, dict):
        items = value.items()
    elif isinstance(value, list | tuple | set):
        items = enumerate(value)
    for key, item in items:
        if not is_data(item):
            path, found = _find_what_is_no_data(item)
            return [key, *path], found
    return [], value


def decode(value: Any, arrays: dict[str, NumPyArray], context: mx.Context) -> Any:
    """Turn what `encode` made back into data, with new arrays on `context`."""
    if not isinstance(value, dict):
        return value
    ((kind, content),) = ((k, v) for k, v in value.items() if k != "stype")
    if kind == "array":
        return _decoded(arrays[content], value["stype"], context)
    if kind == "numpy":
        return arrays[content]
    if kind == "scalar":
        return arrays[content][()]
    if kind == "dict":
        return {key: decode(item, arrays, context) for key, item in content}
    return _SEQUENCES[kind](decode(item, arrays, context) for item in content)


def _decoded(values: NumPyArray, stype: str, context: mx.Context) -> NDArray:
    if stype == "row_sparse":
        # With the rows that are zero: optimizers take a state for one that has all rows.
        return row_sparse(values, np.arange(len(values)), values.shape, context)
    array = array_from_numpy(values, context)
    # What was an mx.np.ndarray is one again, if MXNet is in that mode.
    if stype == _OF_NUMPY:
        return to_active_mode(array)
    return array if stype == "default" else array.tostype(stype)
