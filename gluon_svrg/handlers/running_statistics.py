"""RunningStatisticsHandler: averages BatchNorm's running statistics over workers and devices."""

from __future__ import annotations

from typing import Any

from gluon_svrg.events import EpochEnd, Order, Run
from gluon_svrg.handlers.ema import EMAHandler
from gluon_svrg.run.running_statistics import even_out, running_statistics_of


class RunningStatisticsHandler(EpochEnd):
    """Replaces running statistics, at the end of each epoch, by their mean over all copies.

    Each worker and each context normalises its own rows of a batch, so its running statistics are
    those of its rows. The mean of all copies replaces them on all workers and contexts; equal
    copies do not change, bit for bit. An EMAHandler's averages of them are averaged, too. `fit`
    adds this handler if there are several workers or contexts.

    Parameters
    ----------
    priority : float
        After the optimizer's step, before an average of the weights and an evaluation.
    """

    def __init__(self, priority: float = Order.STEP + 100) -> None:
        self.priority = float(priority)

    def epoch_end(self, estimator: Run, *args: Any, **kwargs: Any) -> None:
        """Average the running statistics."""
        even_out(running_statistics_of(estimator.net), estimator.workers)
        for handler in estimator.handlers:
            if isinstance(handler, EMAHandler):
                handler.even_out(estimator.workers)
