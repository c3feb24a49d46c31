"""Starts the workers of a run, watches them, starts them again: by the standard library alone."""

from gluon_svrg import _lazy

__getattr__, __dir__ = _lazy.attach(__name__, {})
