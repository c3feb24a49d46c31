"""Course: when an interval begins and ends in a run, at an epoch's begin or after a trial."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, cast

from gluon_svrg import _mxnet
from gluon_svrg.data.training_data import TrainingData
from gluon_svrg.events import Interrupted
from gluon_svrg.run.generators import host_states, set_host_states
from gluon_svrg.run.position import Located
from gluon_svrg.svrg.coefficient import Coefficient, OptimalCoefficient, coefficient_at
from gluon_svrg.svrg.giving_up import GivingUp
from gluon_svrg.svrg.interval import Interval
from gluon_svrg.svrg.saved_state import CorrectingTrainer
from gluon_svrg.svrg.snapshot_epochs import SnapshotEpochs

if TYPE_CHECKING:
    from gluon_svrg.events import Run
    from mxnet.gluon import Trainer


class Course(NamedTuple):
    """The snapshots of one run, as the epochs, the trial and what is measured want them.

    Attributes
    ----------
    run : Located
        Where it stands.
    data : TrainingData
        What a full pass goes over.
    trainer : SVRGTrainer
        Who corrects.
    interval : Interval
        What lives from snapshot to snapshot.
    epochs : SnapshotEpochs
        In which epochs a snapshot is taken.
    coefficient : float, callable or OptimalCoefficient
        As that of :class:`gluon_svrg.SVRGHandler`.
    sparse_correction : str
        As for :meth:`gluon_svrg.SVRGTrainer.set_control_variate`.
    giving_up : GivingUp
        Whether SVRG is switched off.
    """

    run: Located
    data: TrainingData
    trainer: CorrectingTrainer
    interval: Interval
    epochs: SnapshotEpochs
    coefficient: Coefficient | OptimalCoefficient
    sparse_correction: str
    giving_up: GivingUp

    @property
    def is_on(self) -> bool:
        """Whether batches are corrected at present; anybody may clear the control variate."""
        return self.trainer.full_gradient is not None

    def coefficient_now(self, under_way: int = 1) -> float | OptimalCoefficient:
        """Return the coefficient that a snapshot now, at *batch end*, would have."""
        return coefficient_at(self.coefficient, self.run.part_done(under_way))

    def begin_epoch(self) -> None:
        """Take the snapshot and the full gradient, if it is time for one."""
        epoch, trial = self.run.position.epoch, self.giving_up.trial
        if self.giving_up.epoch is not None or self.epochs.is_over(epoch):
            self.end()
        elif trial.is_left_over(epoch) or self.epochs.has_snapshot(epoch):
            coefficient = self.coefficient_now(under_way=0)
            if trial.epoch is None and not trial.is_over and coefficient != 0:
                self.end()
                self.interval.expect(self.data)
                trial.begin(epoch)
            else:
                self._begin(coefficient, 0.0)

    def consider(
        self,
        estimator: Run,
        ratio: float,
        at: float,
        epoch: int,
        is_last: bool,
        greatest: float,
    ) -> None:
        """Switch SVRG off, or on, as the variance ratio says: see :meth:`GivingUp.decide`."""
        is_on = self.is_on
        stays_on = self.giving_up.decide(estimator, is_on, ratio, at, epoch, is_last, greatest)
        if is_on and not stays_on:
            self.tell_coefficient()
            self.interval.break_off()
            self.trainer.clear_control_variate()
        self.take_what_is_due(under_way=1)

    def take_what_is_due(self, under_way: int = 0) -> bool:
        """Take the snapshot for which the trial of this epoch has decided; return whether it had.

        A stop may break it off, and a resume take it then. With no batch left of the epoch, the
        next one begins with it.

        Parameters
        ----------
        under_way : int
            How many more batches count as done: 1 at *batch end*.
        """
        position, length = self.run.position, self.data.num_batches or 1
        part = (position.batch_in_epoch + under_way) / length
        is_due = self.giving_up.trial.is_due and position.is_in_epoch and not position.is_cut
        # Not for a run that is to end with this batch either.
        if not is_due or part >= 1 or self.run.part_done(under_way) >= 1:
            return False
        drawn = host_states()
        try:
            self._begin(self.coefficient_now(under_way), part)
        except Interrupted:
            set_host_states(drawn)
        else:
            # Plain gradients that wait for an accumulated step are right as they are.
            self.trainer.is_corrected = _mxnet.has_fresh_gradient(cast("Trainer", self.trainer))
            self.tell_coefficient()
        return True

    def end(self) -> None:
        """Continue with the plain optimizer, and with an augmentation of each epoch's own."""
        self.trainer.clear_control_variate()
        self.interval.end()

    def tell_coefficient(self) -> None:
        """Let the row of the epoch have the coefficient; one that is estimated is waited for."""
        if self.is_on:
            self.run.figures["coefficient"] = self.trainer.coefficient

    def _begin(self, coefficient: float | OptimalCoefficient, part: float) -> None:
        """Take a snapshot, and correct by its full gradient from now on."""
        # What the last interval held goes before the full pass takes its own memory; with the
        # coefficient 0 it is the plain optimizer, bit for bit: no pass, no random number drawn.
        self.end()
        if coefficient != 0:
            full_gradient = self.interval.begin(self.data, self.run.position.epoch)
            self.trainer.set_control_variate(full_gradient, coefficient, self.sparse_correction)
        trial = self.giving_up.trial
        if trial.epoch is not None and not trial.is_over:
            trial.end(part)
