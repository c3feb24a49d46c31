"""A meter that measures what is written down, and how many batches are corrected then."""

import gluon_svrg as gs
from gluon_svrg.events import BatchBegin, EpochBegin


class Scripted(gs.VarianceHandler):
    """Measures what is written down: a ratio for each epoch, or for each point of it."""

    def __init__(self, ratios, at=(50, 100), **arguments):
        super().__init__(at=at, batches=2, **arguments)
        self.ratios = ratios

    def train_begin(self, estimator, *args, **kwargs):
        super().train_begin(estimator, *args, **kwargs)
        payoff = self._payoff_of(estimator)
        measured = payoff._moments

        def moments(number, seed):
            found, ratio = measured(number, seed), self.ratios[estimator.position.epoch]
            found.ratio = lambda coefficient: ratio
            return found

        payoff._moments = moments


class Corrections(EpochBegin, BatchBegin):
    """Notes for each epoch how many of its batches are corrected."""

    priority = 2000

    def __init__(self):
        self.counts = []

    def epoch_begin(self, estimator, *args, **kwargs):
        self.counts.append(0)

    def batch_begin(self, estimator, *args, **kwargs):
        if not self.counts:  # a run that continues in the middle of an epoch
            self.counts.append(0)
        self.counts[-1] += estimator.trainer.full_gradient is not None
