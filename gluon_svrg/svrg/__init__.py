"""The method: the rule, the snapshot, its table and the randomness that both gradients share."""

from gluon_svrg.svrg.gradient import BatchGradient, FullGradient
from gluon_svrg.svrg.randomness import MaskLock
from gluon_svrg.svrg.rule import correct, linear_decay
from gluon_svrg.svrg.snapshot import Snapshot
from gluon_svrg.svrg.table import GradientTable

__all__ = [
    "BatchGradient",
    "FullGradient",
    "GradientTable",
    "MaskLock",
    "Snapshot",
    "correct",
    "linear_decay",
]
