"""Checks of arguments and of optional packages: the value, the reason and the way out."""

from __future__ import annotations

import difflib
import functools
import importlib
import inspect
import math
import numbers
from collections.abc import Callable, Iterable, Mapping
from os import PathLike
from pathlib import Path
from types import ModuleType
from typing import ParamSpec, TypeVar

_P = ParamSpec("_P")
_Result = TypeVar("_Result")


def hint_for(name: str, known: Iterable[str], elsewhere: Mapping[str, str]) -> str:
    """Return what to do in the place of an argument that a function or a class does not have.

    Parameters
    ----------
    name : str
        The argument.
    known : iterable of str
        The arguments that it has.
    elsewhere : mapping of str to str
        For arguments of other libraries the name here, or a sentence that says what to do.
    """
    known = list(dict.fromkeys(known))
    near = difflib.get_close_matches(name, known, 1)
    hint = elsewhere.get(name) or next(iter(near), f"it has {', '.join(known)}")
    return f"did you mean {hint}?" if hint in known else hint


def explains_unknown(**elsewhere: str) -> Callable[[Callable[_P, _Result]], Callable[_P, _Result]]:
    """Let a function say what an argument that it does not have is called here.

    Parameters
    ----------
    **elsewhere : str
        As for :func:`hint_for`.

    Returns
    -------
    callable
        A decorator.
    """

    def decorate(function: Callable[_P, _Result]) -> Callable[_P, _Result]:
        known = [name for name in inspect.signature(function).parameters if name != "self"]
        owner = function.__qualname__.removesuffix(".__init__")

        @functools.wraps(function)
        def explaining(*args: _P.args, **kwargs: _P.kwargs) -> _Result:
            for name in kwargs:
                if name not in known:
                    hint = hint_for(name, known, elsewhere)
                    raise TypeError(f"{owner} got an unexpected keyword argument {name!r}: {hint}")
            return function(*args, **kwargs)

        return explaining

    return decorate


def check_integer(name: str, value: object, least: int, meaning: str) -> int:
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


def check_periods(
    every_n_epochs: object, every_n_batches: object, what: str, done: str = "is written"
) -> None:
    """Check two periods of which one may be None; raises as :func:`check_integer`, or ValueError.

    Parameters
    ----------
    every_n_epochs, every_n_batches : object
        What was given.
    what : str
        What is done once in a period, with its article: ``'a checkpoint'``.
    done : str
        The verb for it: ``'is written'``.
    """
    for unit, value in (("epochs", every_n_epochs), ("batches", every_n_batches)):
        if value is not None:
            check_integer(f"every_n_{unit}", value, 1, f"{what} {done} every that many {unit}")
    if every_n_epochs is None and every_n_batches is None:
        raise ValueError(
            f"every_n_epochs and every_n_batches are both None, so there would never be {what}: "
            "give one of them"
        )


def check_number(
    name: str, value: object, meaning: str, least: float = -math.inf, above: bool = False
) -> float:
    """Return `value` as a float that is at least `least`, or `above` it.

    The other parameters, and what is raised, are as for :func:`check_integer`.
    """
    bound = "" if least == -math.inf else f" {'above' if above else 'of at least'} {least:g}"
    message = f"{name} must be a number{bound}, got {value!r}: {meaning}"
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(message)
    if not (float(value) > least if above else float(value) >= least):
        raise ValueError(message)
    return float(value)


def check_path(name: str, value: object, meaning: str) -> Path:
    """Return `value`, a str or a path, as an absolute Path; raise TypeError if it is neither."""
    if not isinstance(value, str | PathLike):
        raise TypeError(f"{name} must be a str or a path, got {value!r}: {meaning}")
    return Path(value).expanduser().absolute()


def check_finite(
    name: str, value: object, meaning: str, least: float = -math.inf, above: bool = False
) -> float:
    """Return `value` as :func:`check_number` does; raise ValueError if it is NaN or infinite."""
    if isinstance(value, numbers.Real) and not math.isfinite(value):
        raise ValueError(f"{name} must be a finite number, got {value!r}: {meaning}")
    return check_number(name, value, meaning, least, above)


def require(module: str, extra: str, for_what: str) -> ModuleType:
    """Import `module`, which an optional dependency of this package provides, and return it.

    Parameters
    ----------
    module : str
        The full name of the module.
    extra : str
        The extra of gluon-svrg that installs it.
    for_what : str
        What needs it, as the subject of a sentence: ``"MLflowHandler"``.

    Raises
    ------
    ImportError
        If it cannot be imported. The message has the reason and the command that installs it.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(
            f"{for_what} needs {module.partition('.')[0]}, which cannot be imported ({error}): "
            f"install it with pip install 'gluon-svrg[{extra}]'",
            name=error.name,
        ) from error
