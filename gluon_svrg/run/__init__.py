"""What a run is: its position, its history, the figure that is watched, one batch."""

from gluon_svrg.run.position import FitResult, Position, StopReason

__all__ = ["FitResult", "Position", "StopReason"]
