"""MXNet's format of named arrays (``.params``), written to bytes and read without MXNet's C++.

MXNet's own writer does not see a full disk, and its reader takes every length for right: one that
is not makes it read beyond its memory. The format is that of ``NDArray::Save`` in MXNet 1.9.1's
``src/ndarray/ndarray.cc``: a header, the arrays, and their names.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from typing import Any

import mxnet as mx
import numpy as np
from gluon_svrg._mxnet.array_mode import to_nd
from gluon_svrg._mxnet.block import array_from_numpy
from gluon_svrg._typing import NumPyArray
from gluon_svrg.arrays.row_sparse import row_sparse
from gluon_svrg.files import DamagedError
from mxnet.ndarray import NDArray
from mxnet.util import is_np_shape

_HEADER = struct.Struct("<QQQ")
_LIST_MAGIC, _ARRAY_MAGIC = 0x112, 0xF993FAC9
# With the shapes of NumPy, in which 0 is a length: also arrays without axes or without an element.
_NUMPY_MAGIC = 0xF993FACA
_DENSE, _ROW_SPARSE = 0, 1
_DTYPES = dict(enumerate(("float32", "float64", "float16", "uint8", "int32", "int8", "int64")))
_MAX_AXES = 32


def to_bytes(arrays: Mapping[str, NDArray]) -> bytes:
    """Return what `mx.nd.save` writes into a file.

    It is the header that MXNet gives to lists of arrays, each array as MXNet gives it for pickling,
    and the names. MXNet reads a file only in the mode in which it was written, with NumPy's shapes
    or without; :func:`from_bytes` reads both.
    """
    parts = [_HEADER.pack(_LIST_MAGIC, 0, len(arrays))]
    for array in arrays.values():
        pickled: Any = to_nd(array).as_in_context(mx.cpu()).__getstate__()
        parts.append(bytes(pickled["handle"]))
    parts.append(struct.pack("<Q", len(arrays)))
    for name in arrays:
        encoded = name.encode()
        parts += [struct.pack("<Q", len(encoded)), encoded]
    return b"".join(parts)


def from_bytes(content: bytes) -> dict[str, NDArray]:
    """Return the arrays in `content`, on the CPU, by their names.

    Raises
    ------
    DamagedError
        If it is not in that form: each length is compared with the bytes that are left.
    """
    reader = _Reader(content)
    magic, reserved, count = reader.take(_HEADER)
    if magic != _LIST_MAGIC or reserved:
        raise DamagedError("it does not begin as MXNet's lists of arrays do")
    # The least array takes 24 bytes: a number beyond it would run on for long.
    if count > len(content) // 24:
        raise DamagedError(f"it says that it has {count} arrays, in {len(content)} bytes")
    arrays = [reader.array() for _ in range(count)]
    (names,) = reader.take(struct.Struct("<Q"))
    if names != count:
        raise DamagedError(f"it has {count} arrays and {names} names")
    found = {reader.text(): array for array in arrays}
    if len(found) != count:
        raise DamagedError("two of its arrays have the same name")
    if reader.left:
        raise DamagedError(f"{reader.left} bytes follow its end")
    return found


class _Reader:
    """Takes one thing after another from bytes; DamagedError if they do not suffice."""

    def __init__(self, content: bytes) -> None:
        self._content = memoryview(content)
        self._position = 0

    @property
    def left(self) -> int:
        return len(self._content) - self._position

    def raw(self, size: int) -> memoryview:
        if size > self.left:
            raise DamagedError(f"it needs {size} bytes where {self.left} are left")
        begin = self._position
        self._position += size
        return self._content[begin : self._position]

    def take(self, form: struct.Struct) -> tuple[Any, ...]:
        return form.unpack(self.raw(form.size))

    def number(self, form: str) -> int:
        (value,) = self.take(struct.Struct(f"<{form}"))
        return int(value)

    def text(self) -> str:
        try:
            return str(self.raw(self.number("Q")), "utf-8")
        except UnicodeDecodeError as e:
            raise DamagedError(f"the name of an array is no UTF-8 ({e})") from e

    def shape(self, is_numpy: bool = False) -> tuple[int, ...]:
        axes, least = self.number("i"), 0 if is_numpy else 1
        if not least <= axes <= _MAX_AXES:
            raise DamagedError(f"an array has {axes} axes")
        shape = tuple(self.take(struct.Struct(f"<{axes}q")))
        if min(shape, default=1) < least:
            raise DamagedError(f"an array has the shape {shape}")
        if not (axes and math.prod(shape)) and not is_np_shape():
            raise DamagedError(
                f"an array has the shape {shape}, which is one in MXNet's NumPy mode only: call "
                "mxnet.npx.set_np() first"
            )
        return shape

    def dtype(self) -> np.dtype[Any]:
        number = self.number("i")
        if number not in _DTYPES:
            raise DamagedError(f"an array has the dtype number {number}, which is not read")
        return np.dtype(_DTYPES[number])

    def values(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NumPyArray:
        count = math.prod(shape)
        return np.frombuffer(self.raw(count * dtype.itemsize), dtype).reshape(shape)

    def array(self) -> NDArray:
        magic, storage = self.number("I"), self.number("i")
        is_numpy = magic == _NUMPY_MAGIC and storage == _DENSE
        if not is_numpy and (magic != _ARRAY_MAGIC or storage not in (_DENSE, _ROW_SPARSE)):
            raise DamagedError(
                f"an array has the magic number {magic:#x} and the storage type {storage}"
            )
        if storage == _ROW_SPARSE:
            return self._rows()
        shape = self.shape(is_numpy)
        self.raw(8)  # the context, which is the CPU here
        dtype = self.dtype()
        values = self.values(shape, dtype)  # first: it checks the shape against the bytes
        return array_from_numpy(values, mx.cpu())

    def _rows(self) -> NDArray:
        """Take a row_sparse array: the shapes of its rows and of it, the indices of the rows."""
        stored, shape = self.shape(), self.shape()
        self.raw(8)
        dtype = self.dtype()
        kind, number = self.dtype(), self.shape()
        if kind != np.int64 or number != stored[:1] or stored[1:] != shape[1:]:
            raise DamagedError(f"a sparse array has rows {stored} for the shape {shape}")
        values, rows = self.values(stored, dtype), self.values(number, kind)
        if not (rows[0] >= 0 and rows[-1] < shape[0] and (np.diff(rows) > 0).all()):
            raise DamagedError(f"a sparse array of shape {shape} has rows that it cannot have")
        return row_sparse(values, rows, shape, mx.cpu())
