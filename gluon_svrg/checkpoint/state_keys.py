"""Under which names states are filed: such as do not depend on where a class lives."""

from __future__ import annotations

from gluon_svrg.events import Stateful
from mxnet.gluon.contrib import estimator as mx_estimator

RANDOM_STATE = "random_state"
"""The key of what keeps the random numbers of the run, which is a part of its own."""

_PACKAGE = __name__.partition(".")[0]


def state_key(handler: object) -> str:
    """Return the key under which the state of `handler` is filed.

    That is the ``state_key`` that its class declares; for one of MXNet's own handlers
    ``mxnet.StoppingHandler``, and for any other the :func:`class_key`.
    """
    if isinstance(handler, Stateful) and handler.state_key is not None:
        return handler.state_key
    kind = type(handler)
    if kind is getattr(mx_estimator, kind.__name__, None):
        return f"mxnet.{kind.__name__}"
    return class_key(handler)


def class_key(value: object) -> str:
    """Return what says of which class `value` is.

    A class of this package may move from one module to another, and is filed under the package and
    its name: ``gluon_svrg.LARS``. Any other is filed under its module and name.
    """
    kind = type(value)
    if kind.__module__.startswith(f"{_PACKAGE}."):
        return f"{_PACKAGE}.{kind.__qualname__}"
    return class_path(value)


def class_path(value: object) -> str:
    """Return module and name of the class of `value`."""
    return f"{type(value).__module__}.{type(value).__qualname__}"
