"""What is saved, and how: the parts of a checkpoint, its folder, the encoding of its files."""

from typing import TYPE_CHECKING as _TYPE_CHECKING

from gluon_svrg import _lazy
from gluon_svrg.checkpoint.storage import Checkpoint, CheckpointKey

__all__ = ["Checkpoint", "CheckpointKey"]

if not _TYPE_CHECKING:
    __getattr__, __dir__ = _lazy.attach(__name__)
