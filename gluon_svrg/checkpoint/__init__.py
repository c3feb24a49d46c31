"""What is saved, and how: the parts of a checkpoint, its folder, the encoding of its files."""

from typing import TYPE_CHECKING as _TYPE_CHECKING

from gluon_svrg import _lazy
from gluon_svrg.checkpoint.folder import Checkpoint, Key

__all__ = ["Checkpoint", "Key"]

if not _TYPE_CHECKING:
    __getattr__, __dir__ = _lazy.attach(__name__, {})
