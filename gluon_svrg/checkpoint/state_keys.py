"""Stable keys for states: they do not depend on a class's module."""

from __future__ import annotations

from gluon_svrg.class_names import class_key
from gluon_svrg.events import Stateful
from mxnet.gluon.contrib import estimator as mx_estimator

RANDOM_STATE = "random_state"
"""The key of the handler that keeps the run's random numbers, a part of its own."""


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
