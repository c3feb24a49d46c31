"""What MXNet 1.9.1 does by NumPy 1: text of parameters, packed images, thresholds."""

from __future__ import annotations

import re
from collections.abc import Iterable
from types import ModuleType
from typing import Any

import mxnet as mx
import numpy
from gluon_svrg._typing import NumPyArray

_SCALAR_OF_NUMPY_2 = re.compile(r"\bnp\.(?:\w+\(([^()]*)\)|(True|False)_)")


def text_of(value: object) -> str:
    """Return ``str(value)``, with NumPy's scalars in it as NumPy 1 prints them.

    MXNet hands the parameters of an operator to its library as text, and the library does not read
    the shape ``(np.int64(2), 3)``, which is what NumPy 2 prints for ``(2, 3)``.
    """
    text = str(value)
    if "np." not in text or isinstance(value, str):
        return text
    return _SCALAR_OF_NUMPY_2.sub(lambda found: found[1] or found[2] or "", text)


class _LooksLikeStr(type):
    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, str)


class Text(metaclass=_LooksLikeStr):
    """`text_of` for a module that also asks ``isinstance(value, str)``."""

    def __new__(cls, value: object) -> str:  # type: ignore[misc]
        """Return the text."""
        return text_of(value)


def _in_words(metric: mx.metric.EvalMetric) -> str:
    return f"EvalMetric: {text_of(dict(metric.get_name_value()))}"


def print_scalars_as_numpy_1() -> None:
    """Let the modules of MXNet that make text of parameters use ``text_of`` for ``str``.

    There is no function to exchange: each has a loop of ``str(value)`` in its middle. A module's
    own name ``str`` goes before the built-in and touches nothing outside the module;
    ``numpy.set_printoptions(legacy="1.25")`` would change what users see.
    """
    for module in (mx._ctypes.ndarray, mx._ctypes.symbol, mx.io.io):
        vars(module)["str"] = text_of
    vars(mx.symbol.symbol)["str"] = Text
    mx.metric.EvalMetric.__str__ = _in_words  # type: ignore[method-assign,assignment]


class _Bytes(numpy.ndarray):  # type: ignore[type-arg]
    """An array with the method `tostring`, which NumPy 2.3 removed, under its old name."""

    def tostring(self) -> bytes:
        return self.tobytes()


class _OpenCV(ModuleType):
    """OpenCV for `mx.recordio`, which packs an image as ``imencode(...)[1].tostring()``."""

    def __init__(self, cv2: ModuleType) -> None:
        super().__init__(cv2.__name__)
        self._cv2 = cv2

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cv2, name)

    def imencode(self, *args: Any) -> tuple[bool, NumPyArray]:
        is_done, encoded = self._cv2.imencode(*args)
        return is_done, encoded.view(_Bytes)


def c_array_of_numbers(ctype: type, values: Iterable[Any]) -> Any:
    """Return MXNet's `c_array` of `values`, of which some are arrays with one number.

    Thresholds of quantization are; NumPy 2.5 makes no number of them.
    """
    numbers = [value.item() if isinstance(value, numpy.ndarray) else value for value in values]
    return mx.base.c_array(ctype, numbers)


def do_as_with_numpy_1() -> None:
    """Let MXNet do what NumPy 2.3 and 2.5 no longer do for it: pack images, quantize."""
    if getattr(mx.recordio, "cv2", None) is not None:
        vars(mx.recordio)["cv2"] = _OpenCV(mx.recordio.cv2)
    vars(mx.contrib.quantization)["c_array"] = c_array_of_numbers


if repr(numpy.int64(2)) != "2":
    print_scalars_as_numpy_1()
    do_as_with_numpy_1()
