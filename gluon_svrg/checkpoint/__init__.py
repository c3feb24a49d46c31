"""What is saved, and how: the parts of a checkpoint, its folder, the encoding of its files."""

from gluon_svrg.checkpoint.folder import Checkpoint, Key

__all__ = ["Checkpoint", "Key"]
