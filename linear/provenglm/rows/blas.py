"""Call SciPy's BLAS by address: without Python's lock, and into a given matrix.

SciPy's own wrapper keeps the lock, so that threads would wait for each other. NumPy's product of an
array with itself calls NumPy's BLAS, which is usually older and may not know the processor.
"""

from __future__ import annotations

import ctypes
from ctypes import byref, c_char, c_char_p, c_double, c_float, c_int, c_void_p, py_object
from typing import Any

import numpy as np
from scipy.linalg import cython_blas

from provenglm.types import NumPyArray


def _routine(name: str) -> Any:
    """Return a BLAS routine. All its arguments are addresses."""
    capsule = cython_blas.__pyx_capi__[name]
    python_api: Any = ctypes.pythonapi
    name_of = ctypes.PYFUNCTYPE(c_char_p, py_object)(("PyCapsule_GetName", python_api))
    address_of = ctypes.PYFUNCTYPE(c_void_p, py_object, c_char_p)(
        ("PyCapsule_GetPointer", python_api)
    )
    return ctypes.CFUNCTYPE(None, *[c_void_p] * 10)(address_of(capsule, name_of(capsule)))


_SYRK = {
    np.dtype(np.float64): (_routine("dsyrk"), c_double),
    np.dtype(np.float32): (_routine("ssyrk"), c_float),
}


def add_products(total: NumPyArray, rows: NumPyArray, factor: float) -> None:
    """Add ``factor * rows.T @ rows`` to the lower triangle of `total`, in place.

    Parameters
    ----------
    total : numpy.ndarray, (w, w)
        A float32 or float64 array; the numbers of a row are contiguous.
    rows : numpy.ndarray, (b, w)
        An array of the same dtype; the numbers of a row or those of a column are contiguous.
    """
    b, w = rows.shape
    if not b or not w:
        return
    routine, number = _SYRK[total.dtype]
    # BLAS stores matrices by columns: this lower triangle is its upper one, which is faster.
    is_by_rows = rows.strides[1] == rows.itemsize
    step = rows.strides[0 if is_by_rows else 1] // rows.itemsize
    assert total.strides[1] == total.itemsize
    assert total.dtype == rows.dtype
    assert is_by_rows or rows.strides[0] == rows.itemsize
    routine(
        byref(c_char(b"U")),
        byref(c_char(b"N" if is_by_rows else b"T")),
        byref(c_int(w)),
        byref(c_int(b)),
        byref(number(factor)),
        c_void_p(rows.ctypes.data),
        byref(c_int(max(step, w if is_by_rows else b))),
        byref(number(1.0)),
        c_void_p(total.ctypes.data),
        byref(c_int(max(total.strides[0] // total.itemsize, w))),
    )
