"""MXNet's two kinds of arrays: ``mx.nd.NDArray`` and, in its NumPy mode, ``mx.np.ndarray``.

This package computes with NDArrays. Networks, losses and users' code get the kind that MXNet is set
to, by `npx.set_np()` or not. Both conversions share the memory and the recorded gradient, so they
cost a call and no copy. Nothing else in the package asks which mode is on.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from mxnet import numpy as mx_np
from mxnet.base import _LIB, check_call
from mxnet.gluon import Block, SymbolBlock
from mxnet.ndarray import NDArray
from mxnet.symbol import Symbol
from mxnet.util import is_np_array, is_np_shape, set_np

_Kind = TypeVar("_Kind", NDArray, Symbol, NDArray | Symbol)


def to_nd(array: _Kind) -> _Kind:
    """Return `array` as an NDArray, which the operators in ``mx.nd`` take; a Symbol alike."""
    return array.as_nd_ndarray()


def kept_as_nd(array: NDArray) -> NDArray:
    """Return `array` as an NDArray, which is made once: for a parameter's gradient, not a batch.

    It is kept with the array: a conversion takes one to three microseconds, and each batch would
    need two for each parameter.
    """
    if not isinstance(array, mx_np.ndarray):
        return array
    kept: NDArray | None = array.__dict__.get("_gluon_svrg_legacy")
    if kept is None:
        kept = array.__dict__["_gluon_svrg_legacy"] = array.as_nd_ndarray()
    return kept


def to_active_mode(array: _Kind) -> _Kind:
    """Return `array` as the kind of array that MXNet is set to; a Symbol alike.

    Raises
    ------
    ValueError
        If it is sparse and MXNet is in its NumPy mode, which has no such arrays.
    """
    if not is_np_array():
        return array.as_nd_ndarray()
    stype = getattr(array, "stype", "default")  # a Symbol has none
    if stype != "default":
        raise ValueError(
            f"an array of storage type {stype!r} cannot be used in MXNet's NumPy mode, which "
            "has dense arrays only: make it dense with tostype('default'), or call "
            "mxnet.npx.reset_np() before the network is made"
        )
    return array.as_np_ndarray()


def is_mx_np(array: NDArray) -> bool:
    """Return whether `array` is an ``mx.np.ndarray``."""
    return isinstance(array, mx_np.ndarray)


def check_mode(net: Block) -> None:
    """Check that a network was made in the mode in which MXNet is.

    Raises
    ------
    ValueError
        If a parameter has the other kind of array, or a layer the operators of the other mode.
    """
    others: list[str] = []

    def look_at(block: Block) -> None:
        if isinstance(block, SymbolBlock):
            return  # a graph takes either kind
        # Convolutions keep the name of their operator, which differs between the modes.
        name = vars(block).get("_op_name")
        if isinstance(name, str) and name.islower() != is_np_array():
            others.append(f"layer {block.name!r} was made")
        others.extend(
            f"parameter {param.name!r} was initialised"
            for param in block._reg_params.values()
            if param._data and is_mx_np(param._data[0]) != is_np_array()
        )

    net.apply(look_at)
    if others:
        made, now, way_out = (
            ("outside of", "on", "call mxnet.npx.reset_np()")
            if is_np_array()
            else ("in", "off", "call mxnet.npx.set_np()")
        )
        raise ValueError(
            f"{others[0]} {made} MXNet's NumPy mode, which is {now} now: {way_out}, or make and "
            "initialise the network again in this mode"
        )


def mode_of_thread() -> Callable[[], None]:
    """Return what sets another thread to the mode of this one: MXNet keeps it per thread."""
    shape, array = is_np_shape(), is_np_array()
    return lambda: set_np(shape, array)


@contextmanager
def numpy_shapes(is_on: bool) -> Iterator[None]:
    """Let 0 be a length and () a shape inside the ``with`` block, if `is_on`, in this thread.

    As `mx.util.np_shape`, without the note that it logs, which would configure Python's logging.
    """
    if not is_on:
        yield
        return
    before, last = ctypes.c_int(), ctypes.c_int()
    check_call(_LIB.MXSetIsNumpyShape(ctypes.c_int(1), ctypes.byref(before)))
    try:
        yield
    finally:
        check_call(_LIB.MXSetIsNumpyShape(before, ctypes.byref(last)))


@contextmanager
def nd_mode() -> Iterator[None]:
    """Let MXNet be out of its NumPy mode inside the ``with`` block, in this thread."""
    put_back = mode_of_thread()
    set_np(False, False)
    try:
        yield
    finally:
        put_back()
