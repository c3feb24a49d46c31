"""The method: the rule, the snapshot and the randomness that its two gradients share."""

from gluon_svrg.svrg.randomness import MaskLock
from gluon_svrg.svrg.rule import correct, linear_decay
from gluon_svrg.svrg.snapshot import BatchGradient, FullGradient, Snapshot

__all__ = ["BatchGradient", "FullGradient", "MaskLock", "Snapshot", "correct", "linear_decay"]
