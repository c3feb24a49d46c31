"""SVRGController: runs SVRG in one fit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import mxnet as mx
from gluon_svrg.arrays.row_sparse import is_row_sparse, row_indices, row_sparse, stored_values
from gluon_svrg.data.training_data import TrainingData
from gluon_svrg.events import Interrupted, State
from gluon_svrg.run import Run
from gluon_svrg.svrg.coefficient import (
    Coefficient,
    OptimalCoefficient,
    coefficient_at,
    resumed_coefficient,
)
from gluon_svrg.svrg.gradient import FullGradient
from gluon_svrg.svrg.interval import Interval
from gluon_svrg.svrg.payoff import Payoff, PayoffCriterion, Stage
from gluon_svrg.svrg.snapshot_schedule import SnapshotSchedule
from gluon_svrg.svrg.trainer import SVRGTrainer
from mxnet.ndarray import NDArray


class SVRGController:
    """Runs SVRG in one fit: takes snapshots, corrects gradients, switches SVRG off and on.

    Parameters
    ----------
    run : Run
        The run.
    data : TrainingData
        The batches of a full pass.
    trainer : SVRGTrainer
        The trainer, which corrects the gradients.
    interval : Interval
        The snapshot, its gradients and its locks.
    schedule : SnapshotSchedule
        The epochs of the snapshots.
    criterion : PayoffCriterion
        Decides whether SVRG is on.
    coefficient : float, callable or OptimalCoefficient
        As for :class:`gluon_svrg.SVRGHandler`.
    sparse_correction : str
        As for :meth:`gluon_svrg.SVRGTrainer.set_control_variate`.

    Attributes
    ----------
    payoff : Payoff
        Knows whether SVRG is on; a VarianceHandler measures with it.
    """

    def __init__(
        self,
        run: Run,
        data: TrainingData,
        trainer: SVRGTrainer,
        interval: Interval,
        schedule: SnapshotSchedule,
        criterion: PayoffCriterion,
        coefficient: Coefficient | OptimalCoefficient,
        sparse_correction: str,
    ) -> None:
        self.trainer, self.interval, self.criterion = trainer, interval, criterion
        self.payoff = Payoff(run, criterion, coefficient)
        self._run, self._data, self._schedule = run, data, schedule
        self._coefficient, self._sparse_correction = coefficient, sparse_correction

    @property
    def is_on(self) -> bool:
        """Whether gradients are corrected; False also after the user clears the control variate."""
        return self.payoff.is_on

    def train_begin(self) -> None:
        """Begin a run, with the plain optimizer."""
        self.trainer.on_clear = self._note_clear
        self.interval.masks.skip(self._schedule.num_snapshots_before(self._run.position.epoch))
        self.criterion.reset()
        self.turn_off()
        self._data.unlock()  # a run that failed may have left it locked

    def epoch_begin(self) -> None:
        """Take a snapshot, start the trial or turn SVRG off, as this epoch requires."""
        epoch = self._run.position.epoch
        if self.criterion.stage is Stage.OFF or self._schedule.is_over(epoch):
            self.turn_off()
        elif self._schedule.is_snapshot_epoch(epoch) or self.criterion.is_snapshot_overdue(epoch):
            coefficient = self.next_coefficient()
            if self.criterion.stage is Stage.WAITING and coefficient != 0:
                self.turn_off()
                self.interval.lock_data(self._data)
                self.criterion.start_trial(epoch)
            else:
                self._take_snapshot(coefficient, 0.0)
        if not isinstance(self._coefficient, OptimalCoefficient):
            self.record_coefficient()

    def before(self, batch: object) -> None:
        """Seed MXNet so that the network draws the same numbers for `batch` as at the snapshot."""
        if self.is_on and self.interval.masks.is_needed:
            self.interval.before(batch, self._run.position.batch_in_epoch)

    def correct(self, batch: object) -> None:
        """Correct the gradient of `batch`, if SVRG is on."""
        if self.is_on:
            gradient = self.interval.gradient(batch, self._run.position.batch_in_epoch)
            self.trainer.correct(gradient)

    def epoch_end(self) -> None:
        """Raise ValueError if the epoch's batches differ from those of the full pass."""
        self.interval.check_batches()
        self.record_coefficient()

    def train_end(self) -> None:
        """End the run, with the plain optimizer."""
        self.turn_off()
        self.trainer.on_clear = None

    def follow_payoff(self) -> None:
        """Do at *batch end* what the measurement there has decided: end SVRG, or begin it."""
        if self.criterion.stage is Stage.OFF and self.is_on:
            self.record_coefficient()
            self.interval.break_off()
            self.trainer.clear_control_variate()
        with suppress(Interrupted):  # the run ends with this batch, and a resume takes the snapshot
            self._take_due_snapshot(extra_batches=1)

    def take_interrupted_snapshot(self) -> None:
        """Take the snapshot that a stop has interrupted in the run before the resume.

        Raises
        ------
        Interrupted
            If a stop interrupts it again.
        """
        self._take_due_snapshot()

    def _take_due_snapshot(self, extra_batches: int = 0) -> None:
        """Take the snapshot that the trial of this epoch has decided on, if it is due.

        If a stop interrupts the full pass, the snapshot stays due. If the epoch has no more
        batches, the next one begins with it.

        Parameters
        ----------
        extra_batches : int
            How many more batches count as done: 1 at *batch end*.
        """
        if self.criterion.stage is not Stage.DUE:
            return
        fraction = (self._run.position.batch_in_epoch + extra_batches) / (
            self._data.num_batches or 1
        )
        # Nor if the run ends with this batch.
        if fraction >= 1 or self._run.completed_fraction(extra_batches) >= 1:
            return
        self._take_snapshot(self.next_coefficient(extra_batches), fraction)
        # Plain gradients that wait for an accumulated step are right as they are.
        self.trainer.is_corrected = self.trainer.has_waiting_gradient()
        self.record_coefficient()

    def next_coefficient(self, extra_batches: int = 0) -> float | OptimalCoefficient:
        """Return the coefficient of a snapshot that is taken now.

        It is one for the whole epoch, also if the snapshot is taken in the middle of it.
        """
        return coefficient_at(self._coefficient, self._run.completed_fraction(extra_batches))

    def record_coefficient(self) -> None:
        """Record the coefficient in the history; an estimated one waits for the devices."""
        if self.is_on:
            self._run.figures["coefficient"] = self.trainer.coefficient

    def turn_off(self) -> None:
        """Continue with the plain optimizer, and with a new augmentation in each epoch."""
        self.trainer.clear_control_variate()
        self.interval.end()

    def _take_snapshot(self, coefficient: float | OptimalCoefficient, fraction_done: float) -> None:
        """Take a snapshot, and correct by its full gradient from now on."""
        # First free the old gradients, before the full pass takes its own memory. The coefficient 0
        # is the plain optimizer, bit for bit: no pass, no random number drawn.
        self.turn_off()
        if coefficient != 0:
            full_gradient = self.interval.begin(self._data, self._run.position.epoch)
            self.trainer.set_control_variate(full_gradient, coefficient, self._sparse_correction)
            self.payoff.interval = self.interval
        self.criterion.snapshot_taken(fraction_done)

    def _note_clear(self) -> None:
        self.payoff.interval = None

    def state_dict(self, names: Mapping[str, str]) -> State:
        """Return the snapshot, the full gradient and the counts, but not the table.

        Parameters
        ----------
        names : dict of str to str
            The name of each of the trainer's parameters, by its structural name: a network that is
            created again may have other names.
        """
        full_gradient, optimal = self.trainer.full_gradient, self.trainer.optimal_coefficient
        shares = self.trainer.control_variate.row_shares
        return {
            "giving_up": self.criterion.state_dict(),
            "pass": self.interval.state_dict(),
            "coefficient": self.trainer.coefficient if optimal is None else optimal.state_dict(),
            # With accumulation over batches, corrected gradients may wait for the step.
            "is_corrected": self.trainer.is_corrected,
            "full_gradient": None
            if full_gradient is None
            else {
                place: _to_saved(full_gradient[name][0], shares.get(name))
                for place, name in names.items()
                if name in full_gradient
            },
        }

    def load_state_dict(
        self, state: State, names: Mapping[str, str], contexts: Sequence[mx.Context]
    ) -> None:
        """Continue from `state`; recompute a gradient table, if the current epoch needs it.

        Parameters
        ----------
        state, names
            What :meth:`state_dict` returned; as for that.
        contexts : list of Context
            The devices of the trainer.

        Raises
        ------
        ValueError
            If the data give another full gradient, or the coefficient is of another kind.
        """
        position = self._run.position
        self.interval.epoch = self._schedule.last_snapshot_epoch(position.epoch)
        self.trainer.clear_control_variate()
        self.criterion.load_state_dict(state["giving_up"])
        full_gradient = None
        if state["full_gradient"] is not None:
            saved = {names[place]: mean for place, mean in state["full_gradient"].items()}
            full_gradient = _full_gradient_of(saved, contexts[0])
        is_used = position.is_in_epoch or self._schedule.keeps_snapshot(position.epoch)
        self.interval.load_state_dict(state["pass"], self._data, full_gradient, is_used)
        if full_gradient is None:
            return
        coefficient = resumed_coefficient(self._coefficient, state["coefficient"])
        self.trainer.restore_control_variate(full_gradient, coefficient, self._sparse_correction)
        self.payoff.interval = self.interval
        if isinstance(coefficient, OptimalCoefficient):
            coefficient.load_state_dict(state["coefficient"], contexts)
        self.trainer.is_corrected = state["is_corrected"]


def _full_gradient_of(saved: Mapping[str, Any], context: mx.Context) -> FullGradient:
    """Return the full gradient that :meth:`SVRGController.state_dict` saved, by name."""
    means, shares = {}, {}
    for name, mean in saved.items():
        if isinstance(mean, NDArray):
            means[name] = mean
        else:
            shape = tuple(mean["shape"])
            means[name] = row_sparse(mean["values"], mean["rows"], shape, context)
            shares[name] = mx.nd.array(mean["shares"], dtype="float64")
    # The scale has been taken out, and all workers have the same mean: nothing is added up.
    return FullGradient(means, 1, loss_scale=1.0, is_of_all_workers=True, row_shares=shares)


def _to_saved(mean: NDArray, shares: NDArray | None) -> Any:
    """Return an array of a full gradient as plain data; a row_sparse one as its rows."""
    if not is_row_sparse(mean) or shares is None:
        return mean
    return {
        "rows": row_indices(mean),
        "values": stored_values(mean),
        "shares": shares.asnumpy(),
        "shape": list(mean.shape),
    }
