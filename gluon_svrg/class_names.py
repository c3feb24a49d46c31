"""Names of classes, for saved states and messages."""

from __future__ import annotations

_PACKAGE = __name__.partition(".")[0]


def class_path(value: object) -> str:
    """Return module and name of the class of `value`."""
    return f"{type(value).__module__}.{type(value).__qualname__}"


def class_key(value: object) -> str:
    """Return a name for the class of `value` that stays the same when this package's files move.

    For a class of this package it is the package and the class name: ``gluon_svrg.LARS``. For any
    other class it is the :func:`class_path`.
    """
    kind = type(value)
    if kind.__module__.startswith(f"{_PACKAGE}."):
        return f"{_PACKAGE}.{kind.__qualname__}"
    return class_path(value)
