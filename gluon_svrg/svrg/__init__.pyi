"""The public names of this package; each is imported when it is first asked for."""

from gluon_svrg.svrg.coefficient import (
    OptimalCoefficient as OptimalCoefficient,
    linear_decay as linear_decay,
)
from gluon_svrg.svrg.gradient import BatchGradient as BatchGradient, FullGradient as FullGradient
from gluon_svrg.svrg.interval import Interval as Interval
from gluon_svrg.svrg.locks import MaskLock as MaskLock
from gluon_svrg.svrg.rule import correct as correct
from gluon_svrg.svrg.snapshot import Snapshot as Snapshot
from gluon_svrg.svrg.table import GradientTable as GradientTable
from gluon_svrg.svrg.variance import (
    GradientMoments as GradientMoments,
    VarianceMeter as VarianceMeter,
)
