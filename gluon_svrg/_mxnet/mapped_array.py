"""MappedArray: the memory of an NDArray as a NumPy array, to read and write without a copy."""

from __future__ import annotations

import ctypes

import numpy as np
from gluon_svrg._typing import NumPyArray
from mxnet.base import _LIB, check_call
from mxnet.ndarray import NDArray


class MappedArray:
    """The memory of a dense array on the CPU, as a flat NumPy array.

    Parameters
    ----------
    array : NDArray
        The array; it is kept alive.
    """

    def __init__(self, array: NDArray) -> None:
        self._array = array
        self._handle = array.handle
        self._pointer = ctypes.c_void_p()
        self._reference = ctypes.byref(self._pointer)
        self._address: int | None = None
        self._numbers: NumPyArray = np.empty(0)

    def numbers(self) -> NumPyArray:
        """Return the array's numbers, after MXNet's engine has finished with the array.

        An array in a layout of oneDNN's is first copied into the plain layout.
        """
        check_call(_LIB.MXNDArrayWaitToWrite(self._handle))
        check_call(_LIB.MXNDArrayGetData(self._handle, self._reference))
        if self._pointer.value != self._address:
            self._address = self._pointer.value
            size, dtype = self._array.size, np.dtype(self._array.dtype)
            buffer = (ctypes.c_char * (size * dtype.itemsize)).from_address(self._address or 0)
            self._numbers = np.ndarray(size, dtype, memoryview(buffer))
        return self._numbers
