"""Text that MXNet's library reads, and that people read of its errors."""

from __future__ import annotations

import re

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


def reason_of(error: BaseException) -> str:
    """Return the last line of an error's message, or its type if it has no message.

    MXNet puts the stack of C++ calls above the reason, and the reason last.
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
