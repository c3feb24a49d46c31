"""The public names of this package; each is imported when it is first asked for."""

from gluon_svrg.run.position import (
    FitResult as FitResult,
    Position as Position,
    StopReason as StopReason,
)
