"""Checks of arguments. Each message states the value, the reason and what to do."""

from __future__ import annotations

import difflib
import functools
import inspect
import math
import numbers
from collections.abc import Callable, Iterable, Mapping
from typing import ParamSpec, TypeVar

import numpy as np

from provenglm.types import Verbose

_P = ParamSpec("_P")
_Result = TypeVar("_Result")

NO_NUMBERS = (bool, np.timedelta64)
"""Both are integers to Python, and a duration would lose its unit."""


def check_integer(name: str, value: object, least: int, meaning: str) -> int:
    """Return `value` as an int.

    Parameters
    ----------
    name : str
        The argument's name.
    value : object
        The value that the user gave.
    least : int
        The smallest valid value, 0 or 1.
    meaning : str
        The meaning of the argument, for the message.

    Raises
    ------
    TypeError
        If `value` is not an integer.
    ValueError
        If it is less than `least`.
    """
    kind = "a positive integer" if least == 1 else "a non-negative integer"
    message = f"{name} must be {kind}, got {value!r}: {meaning}"
    if isinstance(value, NO_NUMBERS) or not isinstance(value, numbers.Integral):
        raise TypeError(message)
    if value < least:
        raise ValueError(message)
    return int(value)


def check_number(
    name: str, value: object, meaning: str, least: float = -math.inf, above: bool = False
) -> float:
    """Return `value` as a float that is at least `least`, or greater than it if `above` is set.

    The other parameters and the exceptions are as in :func:`check_integer`.
    """
    bound = "" if least == -math.inf else f" {'above' if above else 'of at least'} {least:g}"
    message = f"{name} must be a number{bound}, got {value!r}: {meaning}"
    if isinstance(value, NO_NUMBERS) or not isinstance(value, numbers.Real):
        raise TypeError(message)
    if not (float(value) > least if above else float(value) >= least):
        raise ValueError(message)
    return float(value)


def check_finite(
    name: str, value: object, meaning: str, least: float = -math.inf, above: bool = False
) -> float:
    """Return `value` as :func:`check_number` does; raise ValueError if it is NaN or infinite."""
    if (
        isinstance(value, numbers.Real)
        and not isinstance(value, NO_NUMBERS)
        and not math.isfinite(value)
    ):
        raise ValueError(f"{name} must be a finite number, got {value!r}: {meaning}")
    return check_number(name, value, meaning, least, above)


def check_verbose(verbose: object) -> Verbose:
    """Return `verbose`, with True and False as 1 and 0; raise ValueError for any other value."""
    if verbose == "auto":
        return "auto"
    for known in (0, 1, 2):
        if isinstance(verbose, int) and verbose == known:
            return known
    raise ValueError(
        f"verbose must be 'auto', 0, 1 or 2, got {verbose!r}: 0 shows nothing but warnings, 1 a "
        "bar and a line per snapshot, 2 the lines alone, 'auto' the bar on a terminal and in a "
        "notebook only"
    )


def hint_for(name: str, known: Iterable[str], elsewhere: Mapping[str, str]) -> str:
    """Return what to write instead of an argument that does not exist.

    Parameters
    ----------
    name : str
        The argument.
    known : iterable of str
        The arguments that exist.
    elsewhere : mapping of str to str
        For arguments of other libraries: the name here, or a sentence.
    """
    known = list(known)
    near = difflib.get_close_matches(name, known, 1)
    hint = elsewhere.get(name) or next(iter(near), f"it has {', '.join(known)}")
    return f"did you mean {hint}?" if hint in known else hint


def explains_unknown(
    elsewhere: Mapping[str, str],
) -> Callable[[Callable[_P, _Result]], Callable[_P, _Result]]:
    """Decorate a constructor so that its TypeError says what an unknown argument is called here.

    Parameters
    ----------
    elsewhere : mapping of str to str
        As for :func:`hint_for`.
    """

    def decorate(function: Callable[_P, _Result]) -> Callable[_P, _Result]:
        known = [name for name in inspect.signature(function).parameters if name != "self"]

        @functools.wraps(function)
        def explaining(*args: _P.args, **kwargs: _P.kwargs) -> _Result:
            for name in kwargs:
                if name not in known:
                    raise TypeError(
                        f"{type(args[0]).__name__} got an unexpected keyword argument {name!r}: "
                        f"{hint_for(name, known, elsewhere)}"
                    )
            return function(*args, **kwargs)

        return explaining

    return decorate
