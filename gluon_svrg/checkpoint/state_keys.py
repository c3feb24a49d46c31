"""Stable keys for states: they do not depend on a class's module."""

from __future__ import annotations

from gluon_svrg.events import Stateful
from mxnet.gluon.contrib import estimator as mx_estimator

RANDOM_STATE = "random_state"
"""The key of the handler that keeps the run's random numbers, a part of its own."""

SVRG = "svrg"
"""The key of the SVRGHandler, whose state has the control variate."""

_PACKAGE = __name__.partition(".")[0]


def state_key(handler: object) -> str:
    """Return the key under which the state of `handler` is saved.

    This is the ``state_key`` that its class declares; for MXNet's own handlers a name such as
    ``mxnet.StoppingHandler``; for any other handler the :func:`class_key`.
    """
    if isinstance(handler, Stateful) and handler.state_key is not None:
        return handler.state_key
    handler_class = type(handler)
    if handler_class is getattr(mx_estimator, handler_class.__name__, None):
        return f"mxnet.{handler_class.__name__}"
    return class_key(handler)


def class_key(value: object) -> str:
    """Return a name for the class of `value`.

    For a class of this package, which may move to another module, it is the package and the class
    name: ``gluon_svrg.LARS``. For any other class it is the module and the class name.
    """
    kind = type(value)
    if kind.__module__.startswith(f"{_PACKAGE}."):
        return f"{_PACKAGE}.{kind.__qualname__}"
    return class_path(value)


def class_path(value: object) -> str:
    """Return module and name of the class of `value`."""
    return f"{type(value).__module__}.{type(value).__qualname__}"
