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


def check_periods(every_n_epochs: Any, every_n_batches: Any, what: str) -> None:
    """Check two periods of which one may be None; raises as :func:`check_integer`, or ValueError.

    Parameters
    ----------
    every_n_epochs, every_n_batches : object
        What was given.
    what : str
        What is done after as many, with its article.
    """
    for name, value in (("every_n_epochs", every_n_epochs), ("every_n_batches", every_n_batches)):
        if value is not None:
            check_integer(name, value, 1, f"{what} follows as many")
    if every_n_epochs is None and every_n_batches is None:
        raise ValueError(
            f"every_n_epochs and every_n_batches are both None, so there would never be {what}: "
            "give one of them"
        )


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
