"""Checks of arguments: the value, the reason, the way out."""

from __future__ import annotations

import numbers
from typing import Any


def check_integer(name: str, value: Any, least: int, meaning: str) -> int:
    """Return `value` as an int.

    Parameters
    ----------
    name : str
        What the caller calls it.
    value : object
        What was given.
    least : int
        The smallest that is allowed, 0 or 1.
    meaning : str
        What the number says.

    Raises
    ------
    TypeError
        If `value` is no integer.
    ValueError
        If it is less than `least`.
    """
    kind = "a positive integer" if least == 1 else "a non-negative integer"
    message = f"{name} must be {kind}, got {value!r}: {meaning}"
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise TypeError(message)
    if value < least:
        raise ValueError(message)
    return int(value)


def check_number(
    name: str, value: Any, meaning: str, least: float = -float("inf"), above: bool = False
) -> float:
    """Return `value` as a float that is at least `least`, or `above` it; raises as above."""
    bound = "" if least == -float("inf") else f" {'above' if above else 'of at least'} {least:g}"
    message = f"{name} must be a number{bound}, got {value!r}: {meaning}"
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(message)
    if not (float(value) > least if above else float(value) >= least):
        raise ValueError(message)
    return float(value)
