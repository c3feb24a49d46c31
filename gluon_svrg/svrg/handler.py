"""SVRGHandler: SVRG in an Estimator."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import mxnet as mx
from gluon_svrg import events
from gluon_svrg._mxnet.trainer import parameters_of
from gluon_svrg.arguments import explains_unknown
from gluon_svrg.arrays.row_sparse import is_row_sparse, row_indices, row_sparse, stored_values
from gluon_svrg.events import Interrupted, Order, Run, State
from gluon_svrg.optimizer.states import names_by_structure
from gluon_svrg.svrg import GradientTable, Interval, OptimalCoefficient
from gluon_svrg.svrg.coefficient import (
    Coefficient,
    checked_coefficient,
    coefficient_at,
    resumed_coefficient,
    schedule_progress,
)
from gluon_svrg.svrg.gradient import FullGradient
from gluon_svrg.svrg.interval import check_interval_options
from gluon_svrg.svrg.payoff import Payoff, PayoffCriterion, Stage
from gluon_svrg.svrg.snapshot_schedule import SnapshotSchedule
from gluon_svrg.svrg.sparse_checks import check_run_with_rows, warn_of_other_batches
from gluon_svrg.svrg.trainer import require_svrg_trainer
from mxnet.ndarray import NDArray


class SVRGHandler(
    events.RequiresRun,
    events.TrainBegin,
    events.EpochBegin,
    events.BatchBegin,
    events.GradientReady,
    events.EpochEnd,
    events.TrainEnd,
    events.ExceptionRaised,
    events.Stateful,
    events.HasExclusiveTasks,
):
    """Run SVRG: take a snapshot every `update_freq` epochs, and correct each batch's gradient.

    Needs a :class:`gluon_svrg.SVRGTrainer`. An epoch with a snapshot costs three gradients per
    sample, or two with a gradient table.

    Parameters
    ----------
    update_freq : int
        The number of epochs from one snapshot to the next. Johnson & Zhang (2013) used 2 for convex
        problems and 5 for neural networks.
    coefficient : float in [0, 1], callable, 'auto' or OptimalCoefficient
        1 is SVRG; 0 is the plain optimizer, without a snapshot. A callable gets the progress of the
        training in [0, 1] at each snapshot. 'auto' is ``OptimalCoefficient()``, estimated for each
        parameter.
    gradient_table : bool or 'auto'
        Whether the full pass keeps each batch's gradient, if batches repeat (lists, ArrayLoaders).
    start_epoch, stop_epoch : int
        The first epoch with SVRG, after a warm start by the plain optimizer; the first epoch
        without SVRG again.
    progress_bar : bool
        Whether the full pass shows a bar, on a terminal on which `fit` shows bars.
    priority : float
        Before the optimizer's step, which in MXNet's Estimator has -2000.
    table_memory : float
        The largest table that 'auto' makes, in bytes. A table holds one copy of the gradients per
        batch and device.
    lock : 'auto', 'require' or 'off'
        Whether augmentation and dropout masks stay the same from one full pass to the next
        ("transform locking"); 'require' raises an error if that is not possible.
    max_variance_ratio : float, optional
        Switch SVRG off when the variance ratio of an epoch exceeds this value (SVRG pays below
        about 1/3), and on again if the ratio of the next epoch is at most half of this value. Needs
        this package's Estimator, which measures the ratio. The epoch of the first snapshot begins
        with the plain optimizer: the full pass follows within its first third, or not at all if the
        ratio is too large (:class:`gluon_svrg.svrg.payoff.PayoffCriterion`).
    recheck_every_n_epochs : int, optional
        Measure again every n epochs after SVRG was switched off.
    sparse_correction : 'exact' or 'sparse'
        Whether row_sparse gradients are corrected on all rows that occur, or only on the rows of
        the batch.

    Attributes
    ----------
    interval : Interval
        The snapshot, its gradients and its locks.
    criterion : PayoffCriterion
        Decides whether SVRG is on: ``criterion.off_since`` is the epoch in which it was switched
        off, or None.
    payoff : Payoff
        Only during a run: knows whether SVRG is on; a VarianceHandler uses it to measure.

    Raises
    ------
    TypeError, ValueError
        If an argument is of the wrong type or out of its range.
    """

    state_key = "svrg"
    saves_control_variate = True

    @explains_unknown(
        alpha="coefficient",
        snapshot_freq="update_freq",
        every_n_epochs="update_freq",
    )
    def __init__(
        self,
        update_freq: int = 1,
        coefficient: Coefficient | str | OptimalCoefficient = 1.0,
        gradient_table: str | bool = "auto",
        start_epoch: int = 0,
        stop_epoch: int | None = None,
        *,
        progress_bar: bool = True,
        priority: float = Order.SVRG,
        table_memory: float = 2**30,
        lock: str = "auto",
        max_variance_ratio: float | None = None,
        recheck_every_n_epochs: int | None = None,
        sparse_correction: str = "exact",
    ) -> None:
        self._schedule = SnapshotSchedule(update_freq, start_epoch, stop_epoch)
        check_interval_options(gradient_table, table_memory, lock, sparse_correction)
        self.update_freq, self.start_epoch, self.stop_epoch = update_freq, start_epoch, stop_epoch
        self.coefficient = checked_coefficient(coefficient)
        self.gradient_table, self.table_memory, self.lock = gradient_table, table_memory, lock
        self.progress_bar = progress_bar
        self.priority, self.sparse_correction = float(priority), sparse_correction
        self.criterion = PayoffCriterion(max_variance_ratio, recheck_every_n_epochs, stop_epoch)
        self.max_variance_ratio = max_variance_ratio
        self.recheck_every_n_epochs = recheck_every_n_epochs

    @property
    def table(self) -> GradientTable | None:
        """The gradient table (after a run only its counts); None if gradients are recomputed."""
        return self.interval.table if "interval" in vars(self) else None

    @property
    def gradient_evaluations(self) -> int:
        """How many gradients (one per sample) SVRG has computed in addition to the training's."""
        return self.interval.gradient_evaluations if "interval" in vars(self) else 0

    def exclusive_tasks(self) -> list[str]:
        """Return the task of this handler."""
        return ["correct the gradients"]

    def train_begin(self, estimator: Run, *args: Any, **kwargs: Any) -> None:
        """Check trainer and data, and begin with the plain optimizer."""
        trainer = require_svrg_trainer(estimator)
        check_run_with_rows(
            trainer, self.coefficient, self.sparse_correction, self.max_variance_ratio
        )
        if self.sparse_correction == "sparse" and self.coefficient != 0:
            warn_of_other_batches(trainer, self.update_freq, estimator.data, estimator.logger)
        interval = Interval.of(
            estimator,
            gradient_table=self.gradient_table,
            table_memory=self.table_memory,
            lock=self.lock,
            progress_bar=self.progress_bar,
        )
        self.payoff = Payoff(estimator, self.criterion, self.coefficient)
        # After all that may fail: `train_end` frees these together.
        self.interval = interval
        self._run, self._data, self._trainer = estimator, estimator.data, trainer
        trainer.on_clear = self._note_clear
        num_earlier = self._schedule.num_snapshots_before(estimator.position.epoch)
        self.interval.masks.skip(num_earlier)
        self.criterion.reset()
        self._turn_off()
        self._data.unlock()  # a run that failed may have left it locked

    def epoch_begin(self, estimator: Run, *args: Any, **kwargs: Any) -> None:
        """Take a snapshot, start the trial or turn SVRG off, as this epoch requires."""
        epoch = estimator.position.epoch
        if self.criterion.stage is Stage.OFF or self._schedule.is_over(epoch):
            self._turn_off()
        elif self._schedule.is_snapshot_epoch(epoch) or self.criterion.is_snapshot_overdue(epoch):
            coefficient = self._next_coefficient()
            if self.criterion.stage is Stage.WAITING and coefficient != 0:
                self._turn_off()
                self.interval.lock_data(self._data)
                self.criterion.start_trial(epoch)
            else:
                self._take_snapshot(coefficient, 0.0)
        if not isinstance(self.coefficient, OptimalCoefficient):
            self._record_coefficient()

    def batch_begin(self, estimator: Run, *args: Any, **kwargs: Any) -> None:
        """Seed MXNet so that the network draws the same numbers as at the snapshot.

        After a resume, it first takes a snapshot that a stop had interrupted.
        """
        self._take_due_snapshot()
        if self.payoff.is_on and self.interval.masks.is_needed:
            self.interval.before(kwargs["batch"], estimator.position.batch_in_epoch)

    def gradient_ready(self, estimator: Run, *args: Any, **kwargs: Any) -> None:
        """Correct the gradient of the batch, if SVRG is on."""
        if self.payoff.is_on:
            position = estimator.position
            gradient = self.interval.gradient(kwargs["batch"], position.batch_in_epoch)
            self._trainer.correct(gradient)

    def epoch_end(self, estimator: Run, *args: Any, **kwargs: Any) -> None:
        """Raise ValueError if the epoch's batches differ from those of the full pass."""
        self.interval.check_batches()
        self._record_coefficient()

    def train_end(self, estimator: Run, *args: Any, **kwargs: Any) -> None:
        """Stop correcting the trainer's gradients, and free what belongs to the run."""
        if "_trainer" in vars(self):  # otherwise an exception came before train begin
            self._turn_off()
            self._trainer.on_clear = None
            self.interval.release()
            del self.payoff, self._run, self._data, self._trainer

    exception_raised = train_end

    def follow_payoff(self) -> None:
        """Switch SVRG on or off, as the measurement at this *batch end* has decided."""
        if self.criterion.stage is Stage.OFF and self.payoff.is_on:
            self._record_coefficient()
            self.interval.break_off()
            self._trainer.clear_control_variate()
        with suppress(Interrupted):  # the run ends with this batch, and a resume takes the snapshot
            self._take_due_snapshot(extra_batches=1)

    def state_dict(self, estimator: Run) -> State:
        """Return the snapshot, the full gradient and the counts, but not the table."""
        trainer = self._trainer
        full_gradient, optimal = trainer.full_gradient, trainer.optimal_coefficient
        shares = trainer.control_variate.row_shares
        return {
            "giving_up": self.criterion.state_dict(),
            "pass": self.interval.state_dict(),
            "coefficient": trainer.coefficient if optimal is None else optimal.state_dict(),
            # With accumulation over batches, corrected gradients may wait for the step.
            "is_corrected": trainer.is_corrected,
            "full_gradient": None
            if full_gradient is None
            else {
                place: _to_saved(full_gradient[name][0], shares.get(name))
                for place, name in self._names().items()
                if name in full_gradient
            },
        }

    def load_state_dict(self, estimator: Run, state: State) -> None:
        """Continue from `state`; recompute a gradient table, if the current epoch needs it.

        Raises
        ------
        ValueError
            If the data give a different full gradient, or the coefficient is of another kind.
        """
        trainer, position = self._trainer, estimator.position
        self.interval.epoch = self._schedule.last_snapshot_epoch(position.epoch)
        trainer.clear_control_variate()
        self.criterion.load_state_dict(state["giving_up"])
        full_gradient = None
        if state["full_gradient"] is not None:
            names = self._names()
            saved = {names[place]: mean for place, mean in state["full_gradient"].items()}
            full_gradient = _full_gradient_of(saved, estimator.context[0])
        is_used = position.is_in_epoch or self._schedule.keeps_snapshot(position.epoch)
        self.interval.load_state_dict(state["pass"], self._data, full_gradient, is_used)
        if full_gradient is None:
            return
        coefficient = resumed_coefficient(self.coefficient, state["coefficient"])
        trainer.restore_control_variate(full_gradient, coefficient, self.sparse_correction)
        self.payoff.interval = self.interval
        if isinstance(coefficient, OptimalCoefficient):
            coefficient.load_state_dict(state["coefficient"], estimator.context)
        trainer.is_corrected = state["is_corrected"]

    def _names(self) -> dict[str, str]:
        """Map the structural name of each of the trainer's parameters to its name.

        States use structural names, because a network that is created again may have other names.
        """
        return names_by_structure(self._run.net, parameters_of(self._trainer))

    def _take_due_snapshot(self, extra_batches: int = 0) -> None:
        """Take the snapshot that the trial of this epoch has decided on, if it is due.

        If a stop interrupts the full pass, the snapshot stays due. If the epoch has no more
        batches, the snapshot is taken at the beginning of the next epoch.

        Parameters
        ----------
        extra_batches : int
            The number of batches to count as done in addition: 1 at *batch end*.
        """
        if self.criterion.stage is not Stage.DUE:
            return
        fraction = (self._run.position.batch_in_epoch + extra_batches) / (
            self._data.num_batches or 1
        )
        # The snapshot is not taken if the run ends with this batch.
        if fraction >= 1 or schedule_progress(self._run, extra_batches) >= 1:
            return
        self._take_snapshot(self._next_coefficient(extra_batches), fraction)
        # Plain gradients that wait for an accumulated step need no correction.
        self._trainer.is_corrected = self._trainer.has_waiting_gradient()
        self._record_coefficient()

    def _next_coefficient(self, extra_batches: int = 0) -> float | OptimalCoefficient:
        """Return the coefficient of a snapshot that is taken now.

        It is the same for the whole epoch, even if the snapshot is taken in its middle.
        """
        return coefficient_at(self.coefficient, schedule_progress(self._run, extra_batches))

    def _record_coefficient(self) -> None:
        """Record the coefficient in the history; an estimated one waits for the devices."""
        if self.payoff.is_on:
            self._run.figures["coefficient"] = self._trainer.coefficient

    def _turn_off(self) -> None:
        """Continue with the plain optimizer, and with a new augmentation in each epoch."""
        self._trainer.clear_control_variate()
        self.interval.end()

    def _take_snapshot(self, coefficient: float | OptimalCoefficient, fraction_done: float) -> None:
        """Take a snapshot, and correct gradients with it from now on."""
        # First free the old gradients, before the full pass takes its own memory. The coefficient 0
        # is the plain optimizer, bit for bit: no pass, no random number drawn.
        self._turn_off()
        if coefficient != 0:
            full_gradient = self.interval.begin(self._data, self._run.position.epoch)
            self._trainer.set_control_variate(full_gradient, coefficient, self.sparse_correction)
            self.payoff.interval = self.interval
        self.criterion.snapshot_taken(fraction_done)

    def _note_clear(self) -> None:
        self.payoff.interval = None


def _full_gradient_of(saved: Mapping[str, Any], context: mx.Context) -> FullGradient:
    """Return the full gradient that :meth:`SVRGHandler.state_dict` saved, by name."""
    means, shares = {}, {}
    for name, mean in saved.items():
        if isinstance(mean, NDArray):
            means[name] = mean
        else:
            shape = tuple(mean["shape"])
            means[name] = row_sparse(mean["values"], mean["rows"], shape, context)
            shares[name] = mx.nd.array(mean["shares"], dtype="float64")
    # The loss scale was divided out, and all workers have the same mean: nothing is added up.
    return FullGradient(means, 1, loss_scale=1.0, is_of_all_workers=True, row_shares=shares)


def _to_saved(mean: NDArray, shares: NDArray | None) -> Any:
    """Return an array of a full gradient as plain data; if row_sparse, only its rows."""
    if not is_row_sparse(mean) or shares is None:
        return mean
    return {
        "rows": row_indices(mean),
        "values": stored_values(mean),
        "shares": shares.asnumpy(),
        "shape": list(mean.shape),
    }
