"""RunningStatisticsHandler: average BatchNorm's running statistics over contexts and workers."""

from __future__ import annotations

from typing import Any

from gluon_svrg.events import Order, Run, TakesDueSteps
from gluon_svrg.handlers.ema import EMAHandler
from gluon_svrg.workers.batch_norm import average_copies, find_running_statistics


class RunningStatisticsHandler(TakesDueSteps):
    """Replaces running statistics, before an epoch's evaluation, by their mean over all copies.

    Each worker and each context normalises its own rows of a batch, so its running statistics
    describe only these; the mean replaces them on all of them. If all copies are equal nothing
    changes, bit for bit. An EMAHandler's averages of running statistics are averaged, too. `fit`
    adds this handler if there are several workers or contexts.

    Parameters
    ----------
    priority : float
        After the optimizer's step, before an average of the weights and an evaluation.
    """

    def __init__(self, priority: float = Order.RUNNING_STATISTICS) -> None:
        self.priority = float(priority)

    def steps_due(self, estimator: Run, *args: Any, **kwargs: Any) -> None:
        """Average the running statistics."""
        average_copies(find_running_statistics(estimator.net), estimator.workers)
        for handler in estimator.handlers:
            if isinstance(handler, EMAHandler):
                handler.average_running_statistics(estimator.workers)
