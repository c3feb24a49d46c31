"""The method: the rule, the snapshot, its table, and what the correction does to the variance."""

from typing import TYPE_CHECKING as _TYPE_CHECKING

from gluon_svrg import _lazy

if _TYPE_CHECKING:
    from gluon_svrg.svrg.coefficient import OptimalCoefficient, linear_decay
    from gluon_svrg.svrg.gradient import BatchGradient, FullGradient
    from gluon_svrg.svrg.interval import Interval
    from gluon_svrg.svrg.locks import MaskLock
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

_NAMES = {
    "Smoothness": "gluon_svrg.svrg.smoothness",
    "BatchGradient": "gluon_svrg.svrg.gradient",
    "FullGradient": "gluon_svrg.svrg.gradient",
    "GradientMoments": "gluon_svrg.svrg.variance",
    "GradientTable": "gluon_svrg.svrg.table",
    "Interval": "gluon_svrg.svrg.interval",
    "MaskLock": "gluon_svrg.svrg.locks",
    "OptimalCoefficient": "gluon_svrg.svrg.coefficient",
    "Snapshot": "gluon_svrg.svrg.snapshot",
    "VarianceMeter": "gluon_svrg.svrg.variance",
    "correct": "gluon_svrg.svrg.rule",
    "linear_decay": "gluon_svrg.svrg.coefficient",
}
"""Where each of them stands: `rule` is used without MXNet."""

if not _TYPE_CHECKING:
    __getattr__, __dir__ = _lazy.attach(__name__, _NAMES)
