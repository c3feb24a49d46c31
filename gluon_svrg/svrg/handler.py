"""SVRGHandler: SVRG in an Estimator."""

from __future__ import annotations

from typing import Any

from gluon_svrg import events
from gluon_svrg._mxnet.trainer import parameters_of
from gluon_svrg.arguments import explains_unknown
from gluon_svrg.events import Order, Run, State
from gluon_svrg.optimizer.states import names_by_structure
from gluon_svrg.svrg import GradientTable, Interval, OptimalCoefficient
from gluon_svrg.svrg.coefficient import Coefficient, checked_coefficient
from gluon_svrg.svrg.controller import SVRGController
from gluon_svrg.svrg.interval import check_interval_options
from gluon_svrg.svrg.payoff import PayoffCriterion
from gluon_svrg.svrg.snapshot_schedule import SnapshotSchedule
from gluon_svrg.svrg.sparse_checks import check_run_with_rows, warn_of_other_batches
from gluon_svrg.svrg.trainer import require_svrg_trainer
from gluon_svrg.svrg.variance_handler import VarianceHandler


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

    Needs a :class:`gluon_svrg.SVRGTrainer`. An epoch
    with a snapshot costs three gradients per sample, two with a gradient table.

    Parameters
    ----------
    update_freq : int
        The number of epochs from one snapshot to the next. Johnson & Zhang (2013) used 2 for convex
        problems and 5 for neural networks.
    coefficient : float in [0, 1], callable, 'auto' or OptimalCoefficient
        1 is SVRG, 0 the plain optimizer, without a snapshot. A callable gets training progress in
        [0, 1] at each snapshot. 'auto' is ``OptimalCoefficient()``, estimated for each parameter.
    gradient_table : bool or 'auto'
        Whether the full pass keeps each batch's gradient, if batches repeat (lists, ArrayLoaders).
    start_epoch, stop_epoch : int
        The first epoch with SVRG, after a warm start by the plain optimizer; the first without it.
    progress_bar : bool
        Whether the full pass shows a bar, on a terminal on which `fit` shows bars.
    priority : float
        Before the optimizer's step, which in MXNet's Estimator has -2000.
    table_memory : float
        The largest table that 'auto' makes, in bytes: one copy of the gradients per batch, device.
    lock : 'auto', 'require' or 'off'
        Whether augmentation and dropout masks are the same from one full pass to the next
        ("transform locking"); 'require' raises an error if they cannot be.
    max_variance_ratio : float, optional
        Switch SVRG off when the variance ratio of an epoch exceeds this (it pays below about 1/3),
        and on again if that of the next is at most half of it. Needs this package's Estimator,
        which measures the ratio. The epoch of the first snapshot begins with the plain optimizer:
        the full pass follows within its first third, or not at all if the ratio is too large
        (:class:`gluon_svrg.svrg.payoff.PayoffCriterion`).
    recheck_every_n_epochs : int, optional
        Measure again every n epochs after SVRG was switched off.
    sparse_correction : 'exact' or 'sparse'
        Whether row_sparse gradients are corrected on all rows that occur, or on the batch's.

    Attributes
    ----------
    interval : Interval
        The snapshot, its gradients and its locks.
    criterion : PayoffCriterion
        Decides whether SVRG is on: ``criterion.off_since`` is the epoch in which it was switched
        off, or None.

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
        """Return its task."""
        return ["correct the gradients"]

    def train_begin(self, estimator: Run, *args: Any, **kwargs: Any) -> None:
        """Check trainer and data, and begin with the plain optimizer."""
        trainer = require_svrg_trainer(estimator)
        check_run_with_rows(
            trainer, self.coefficient, self.sparse_correction, self.max_variance_ratio
        )
        self._run = run = estimator
        data = run.data
        if self.sparse_correction == "sparse" and self.coefficient != 0:
            warn_of_other_batches(trainer, self.update_freq, data, estimator.logger)
        self.interval = Interval.of(
            run,
            gradient_table=self.gradient_table,
            table_memory=self.table_memory,
            lock=self.lock,
            progress_bar=self.progress_bar,
        )
        self._controller = SVRGController(
            run,
            data,
            trainer,
            self.interval,
            self._schedule,
            self.criterion,
            self.coefficient,
            self.sparse_correction,
        )
        self._controller.train_begin()
        meters = [handler for handler in run.handlers if isinstance(handler, VarianceHandler)]
        for meter in meters:
            meter.attach(self._controller)

    def epoch_begin(self, estimator: Run, *args: Any, **kwargs: Any) -> None:
        """Take the snapshot and compute the full gradient, if this epoch is due for one."""
        self._controller.epoch_begin()

    def batch_begin(self, estimator: Run, *args: Any, **kwargs: Any) -> None:
        """Seed MXNet so that the network draws the same numbers as at the snapshot."""
        self._controller.take_interrupted_snapshot()
        self._controller.before(kwargs["batch"])

    def gradient_ready(self, estimator: Run, *args: Any, **kwargs: Any) -> None:
        """Correct the gradient of the batch."""
        self._controller.correct(kwargs["batch"])

    def epoch_end(self, estimator: Run, *args: Any, **kwargs: Any) -> None:
        """Raise ValueError if the epoch's batches differ from those of the full pass."""
        self._controller.epoch_end()

    def train_end(self, estimator: Run, *args: Any, **kwargs: Any) -> None:
        """Stop correcting the trainer's gradients, and free what belongs to the run."""
        if "_controller" in vars(self):  # else an exception came before train begin
            self._controller.train_end()
            self.interval.release()
            del self._controller, self._run

    exception_raised = train_end

    def state_dict(self, estimator: Run) -> State:
        """Return the snapshot, the full gradient and the counts, but not the table."""
        return self._controller.state_dict(self._names(estimator))

    def load_state_dict(self, estimator: Run, state: State) -> None:
        """Continue from `state`; recompute a gradient table, if the current epoch needs it."""
        self._controller.load_state_dict(state, self._names(estimator), estimator.context)

    def _names(self, estimator: Run) -> dict[str, str]:
        return names_by_structure(estimator.net, parameters_of(self._controller.trainer))
