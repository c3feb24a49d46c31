"""TimeLimitHandler: ends the run after a time."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from gluon_svrg.arguments import check_number
from gluon_svrg.events import RequiresRun, Run, TrainBegin


class TimeLimitHandler(RequiresRun, TrainBegin):
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

    def train_begin(self, estimator: Run, *args: Any, **kwargs: Any) -> None:
        """Start the clock."""
        estimator.stop_after(self.seconds)
