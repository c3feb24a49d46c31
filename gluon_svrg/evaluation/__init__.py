"""The evaluation: a phase of the loop, and the figures of some data."""

from typing import TYPE_CHECKING as _TYPE_CHECKING

from gluon_svrg import _lazy

if not _TYPE_CHECKING:
    __getattr__, __dir__ = _lazy.attach(__name__)
