"""MXNet's two kinds of arrays: ``mx.nd.NDArray`` and, in its NumPy mode, ``mx.np.ndarray``.

This package computes with NDArrays. Networks, losses and users' code get the kind that MXNet is set
to, by `npx.set_np()` or not. Both conversions share the memory and the recorded gradient, so they
cost a call and no copy. Nothing else in the package asks which mode is on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from mxnet import numpy as mx_np
from mxnet.gluon import Parameter
from mxnet.ndarray import NDArray
from mxnet.symbol import Symbol
from mxnet.util import is_np_array, is_np_shape, set_np

_Kind = TypeVar("_Kind", NDArray, Symbol, NDArray | Symbol)


def as_legacy(array: _Kind) -> _Kind:
    """Return `array` as an NDArray, which the operators in ``mx.nd`` take; a Symbol alike."""
    return array.as_nd_ndarray()


def as_current(array: _Kind) -> _Kind:
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


def is_of_numpy(array: NDArray) -> bool:
    """Return whether `array` is an ``mx.np.ndarray``."""
    return isinstance(array, mx_np.ndarray)


def check_kind(params: Iterable[Parameter]) -> None:
    """Check that parameters have the kind of array that MXNet is set to.

    Raises
    ------
    ValueError
        If the network was initialised in the other mode.
    """
    for param in params:
        if param._data and is_of_numpy(param._data[0]) != is_np_array():
            made, now, way_out = (
                ("in", "off", "call mxnet.npx.set_np()")
                if is_of_numpy(param._data[0])
                else ("outside of", "on", "call mxnet.npx.reset_np()")
            )
            raise ValueError(
                f"parameter {param.name!r} was initialised {made} MXNet's NumPy mode, which is "
                f"{now} now: {way_out}, or make and initialise the network again in this mode"
            )


def mode_of_thread() -> Callable[[], None]:
    """Return what sets another thread to the mode of this one: MXNet keeps it per thread."""
    shape, array = is_np_shape(), is_np_array()
    return lambda: set_np(shape, array)
