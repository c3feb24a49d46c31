"""TimeLimitHandler: ends the run after a time."""

from __future__ import annotations

import math
import time
from datetime import timedelta
from typing import Any

from gluon_svrg.arguments import check_number
from gluon_svrg.events import BatchEnd, MayStop, Run, TrainBegin
from gluon_svrg.run import StopReason, require_estimator


class TimeLimitHandler(TrainBegin, BatchEnd, MayStop):
    """Ends the run after a time, at the end of the current batch.

    That is a batch of the training, of SVRG's full pass or of an evaluation; a full pass or an
    evaluation that was interrupted is repeated after a resume. The run ends with
    ``StopReason.TIME_LIMIT``. A CheckpointHandler then writes a checkpoint, so leave time for that;
    no further evaluation begins. The clock starts at each call of `fit`: a resumed run has the
    whole time again, as with a job scheduler. Over several workers, the first clock that runs out
    ends the run on all of them.

    Parameters
    ----------
    seconds : float or datetime.timedelta
        The wall-clock time after which the run ends.

    Raises
    ------
    TypeError
        If `seconds` is neither.
    ValueError
        If it is not above 0.
    """

    def __init__(self, seconds: float | timedelta) -> None:
        if isinstance(seconds, timedelta):
            seconds = seconds.total_seconds()
        self.seconds = check_number(
            "seconds", seconds, "the run ends after that time", 0, above=True
        )
        self._end = math.inf

    def train_begin(self, estimator: Run, *args: Any, **kwargs: Any) -> None:
        """Start the clock."""
        require_estimator(self, estimator)
        self._end = time.monotonic() + self.seconds

    def batch_end(self, estimator: Run, *args: Any, **kwargs: Any) -> None:
        """End the run if the time is over."""
        self.stop_if_due(estimator)

    def stop_if_due(self, estimator: Run) -> None:
        """End the run if the time is over."""
        if estimator.stop_reason is None and time.monotonic() >= self._end:
            self._end = math.inf
            estimator.stop(StopReason.TIME_LIMIT)
            estimator.logger.info("the run ends: its time limit of %g s is over", self.seconds)
