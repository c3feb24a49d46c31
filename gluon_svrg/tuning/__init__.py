"""Find a learning rate or a batch size by training steps that are undone afterwards."""

from typing import TYPE_CHECKING as _TYPE_CHECKING

from gluon_svrg import _lazy

if not _TYPE_CHECKING:
    __getattr__, __dir__ = _lazy.attach(__name__)
