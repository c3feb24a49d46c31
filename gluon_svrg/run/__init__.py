"""What a run is: its position, its history, the figure that is watched, one batch."""

from typing import TYPE_CHECKING as _TYPE_CHECKING

from gluon_svrg import _lazy

if _TYPE_CHECKING:
    from gluon_svrg.run.position import FitResult, Position, StopReason

__all__ = ["FitResult", "Position", "StopReason"]

_NAMES = {
    "FitResult": "gluon_svrg.run.position",
    "Position": "gluon_svrg.run.position",
    "StopReason": "gluon_svrg.run.position",
}
"""Where each of them stands: the linear models log as a run does, without MXNet."""

if not _TYPE_CHECKING:
    __getattr__, __dir__ = _lazy.attach(__name__, _NAMES)
