"""The method: the rule, the snapshot, its table, and what the correction does to the variance."""

from gluon_svrg.svrg.coefficient import OptimalCoefficient, linear_decay
from gluon_svrg.svrg.gradient import BatchGradient, FullGradient
from gluon_svrg.svrg.interval import Interval
from gluon_svrg.svrg.randomness import MaskLock
from gluon_svrg.svrg.rule import correct
from gluon_svrg.svrg.smoothness import Smoothness
from gluon_svrg.svrg.snapshot import Snapshot
from gluon_svrg.svrg.table import GradientTable
from gluon_svrg.svrg.variance import GradientMoments, VarianceMeter

__all__ = [
    "BatchGradient",
    "FullGradient",
    "GradientMoments",
    "GradientTable",
    "Interval",
    "MaskLock",
    "OptimalCoefficient",
    "Smoothness",
    "Snapshot",
    "VarianceMeter",
    "correct",
    "linear_decay",
]
