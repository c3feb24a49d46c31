"""SVRGHandler: when the snapshot is taken, and that every batch is corrected."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from gluon_svrg import _mxnet, events
from gluon_svrg.checkpoint.optimizer_states import names_by_place
from gluon_svrg.data.sharding import sharded
from gluon_svrg.data.training_data import training_data
from gluon_svrg.events import Order, Run, State
from gluon_svrg.handlers.variance import Measured, VarianceHandler
from gluon_svrg.run.backward import backward_of, shape_inference_of
from gluon_svrg.run.mxnet_run import located
from gluon_svrg.svrg import GradientTable, Interval, OptimalCoefficient
from gluon_svrg.svrg.choices import check_choices
from gluon_svrg.svrg.coefficient import Coefficient, checked_coefficient
from gluon_svrg.svrg.cost import passes_of
from gluon_svrg.svrg.course import Course
from gluon_svrg.svrg.giving_up import GivingUp
from gluon_svrg.svrg.saved_state import Parts, load_state, state_of
from gluon_svrg.svrg.snapshot_epochs import SnapshotEpochs
from gluon_svrg.svrg.sparse_checks import checked_for_rows, warn_of_other_batches
from gluon_svrg.trainer import svrg_trainer_of


class SVRGHandler(
    events.TrainBegin,
    events.EpochBegin,
    events.BatchBegin,
    events.GradientReady,
    events.InsteadOfGradientReady,
    events.EpochEnd,
    events.TrainEnd,
    events.ExceptionRaised,
    events.CatchesUp,
    events.Stateful,
    events.HasCompanions,
    events.HasPasses,
):
    """Runs SVRG: snapshot and full gradient at an epoch's begin, then a correction per batch.

    For this package's Estimator and MXNet's own, with a :class:`gluon_svrg.SVRGTrainer`. An epoch
    with a snapshot costs three gradients per sample, two with a gradient table.

    Parameters
    ----------
    update_freq : int
        A snapshot every that many epochs. Johnson & Zhang (2013) took 2 (convex problems) and 5.
    coefficient : float in [0, 1], callable, 'auto' or OptimalCoefficient
        1 is SVRG, 0 the plain optimizer, without a snapshot. A callable gets training progress in
        [0, 1] at each snapshot. 'auto' is ``OptimalCoefficient()``, estimated for each parameter.
    gradient_table : bool or 'auto'
        Whether the full pass keeps each batch's gradient, if batches repeat (lists, ArrayLoaders).
    start_epoch, stop_epoch : int
        The first epoch with SVRG, after a warm start by the plain optimizer; the first without it.
    train_data : iterable of batches, optional
        For MXNet's Estimator, which does not tell its own.
    progress_bar : bool
        Whether the full pass shows a bar, on a terminal on which `fit` shows bars.
    priority : float
        Before the optimizer's step, which in MXNet's Estimator has -2000.
    table_memory : float
        The largest table that 'auto' makes, in bytes: one copy of the gradients per batch, device.
    lock : 'auto', 'require' or 'off'
        Whether augmentation and masks stay from one full pass to the next; 'require': or an error.
    give_up_above : float, optional
        Switch SVRG off when the variance ratio of an epoch exceeds this (it pays under about 1/3),
        and on again if the next one's is at most half of it. This package's Estimator measures.
        The epoch of the first snapshot begins plain: the full pass comes within its first third,
        or, if the ratio is too great, not at all (:class:`gluon_svrg.svrg.trial.Trial`).
    look_again_every : int, optional
        Measure again every that many epochs after SVRG was switched off.
    sparse_correction : 'exact' or 'sparse'
        Whether row_sparse gradients are corrected on each row that ever occurs, or the batch's.

    Attributes
    ----------
    interval, giving_up : Interval, GivingUp
        What lives from snapshot to snapshot; when SVRG was switched off: ``giving_up.epoch``.

    Raises
    ------
    TypeError, ValueError
        If an argument is of the wrong type or out of its range.
    """

    state_key = "svrg"

    def __init__(
        self,
        update_freq: int = 1,
        coefficient: Coefficient | str | OptimalCoefficient = 1.0,
        gradient_table: str | bool = "auto",
        start_epoch: int = 0,
        stop_epoch: int | None = None,
        *,
        train_data: Iterable[object] | None = None,
        progress_bar: bool = True,
        priority: float = Order.SVRG,
        table_memory: float = 2**30,
        lock: str = "auto",
        give_up_above: float | None = None,
        look_again_every: int | None = None,
        sparse_correction: str = "exact",
    ) -> None:
        self._epochs = SnapshotEpochs(update_freq, start_epoch, stop_epoch).checked()
        check_choices(gradient_table, table_memory, lock, sparse_correction)
        self.update_freq, self.start_epoch, self.stop_epoch = self._epochs
        self.coefficient = checked_coefficient(coefficient)
        self.gradient_table, self.table_memory, self.lock = gradient_table, table_memory, lock
        self.train_data, self.progress_bar = train_data, progress_bar
        self.priority, self.sparse_correction = float(priority), sparse_correction
        self.giving_up = GivingUp(give_up_above, look_again_every, stop_epoch)

    @property
    def _is_on(self) -> bool:
        """Whether batches are corrected at present; anybody may clear the control variate."""
        return self._trainer.control_variate.full_gradient is not None

    @property
    def table(self) -> GradientTable | None:
        """The table in use, after a run its counts; None if gradients are recomputed."""
        return self.interval.table if "interval" in vars(self) else None

    @property
    def gradient_evaluations(self) -> int:
        """How many samples' gradients SVRG has computed, in addition to the network's own."""
        return self.interval.gradient_evaluations if "interval" in vars(self) else 0

    def companions(self) -> list[type[events.EventHandler]]:
        """Return who measures whether SVRG is to be switched off."""
        return [] if self.giving_up.above is None else [VarianceHandler]

    def passes(self) -> list[str]:
        """Return what SVRG costs in passes per sample."""
        return passes_of(self)

    def train_begin(self, estimator: Run, *args: Any, **kwargs: Any) -> None:
        """Check what the estimator brings, and begin without a snapshot."""
        self._trainer = checked_for_rows(svrg_trainer_of(estimator), self)
        data = None if self.train_data is None else training_data(self.train_data)
        self._run = located(estimator, data)
        self._data = sharded(data or self._run.data, self._run.workers, self._run.batch_axis)
        warn_of_other_batches(self._trainer, self, self._data, estimator.logger)
        self.interval = Interval(
            estimator.net,
            backward_of(estimator),
            [param.name for param in _mxnet.parameters_of(self._trainer)],
            gradient_table=self.gradient_table,
            table_memory=self.table_memory,
            lock=self.lock,
            loss_scaler=self._trainer,
            infer_shapes=shape_inference_of(estimator),
            progress_bar=self.progress_bar and self._run.verbose not in (0, 2),
            is_cancelled=lambda: self._run.stop_agreed("batch of the full pass"),
            workers=self._trainer.workers,
            logger=estimator.logger,
        )
        self.interval.masks.skip(self._epochs.number_before(self._run.position.epoch))
        self.giving_up.reset()
        self._course = Course(
            self._run,
            self._data,
            self._trainer,
            self.interval,
            self._epochs,
            self.coefficient,
            self.sparse_correction,
            self.giving_up,
        )
        self._course.end()
        self._data.unlock()  # a run that failed may have left it locked
        course = self._course
        measured = Measured(self.interval, self.giving_up, course.coefficient_now, course.consider)
        self.giving_up.is_metered = measured.is_given_to(self._run.handlers)

    def epoch_begin(self, estimator: Run, *args: Any, **kwargs: Any) -> None:
        """Take the snapshot and the full gradient, if it is time for one."""
        self.giving_up.check(estimator)
        self._run.note_epoch_begin()
        self._course.begin_epoch()
        if not isinstance(self.coefficient, OptimalCoefficient):
            self._course.tell_coefficient()

    def batch_begin(self, estimator: Run, *args: Any, **kwargs: Any) -> None:
        """Let the network draw the random numbers that are drawn at the snapshot."""
        if self._is_on and self.interval.masks.is_needed:
            self.interval.before(kwargs["batch"], self._run.position.batch_in_epoch)

    def gradient_ready(self, estimator: Run, *args: Any, **kwargs: Any) -> None:
        """Correct the gradient of the batch."""
        if self._is_on:
            index = self._run.position.batch_in_epoch
            self._trainer.correct(self.interval.gradient(kwargs["batch"], index))

    def batch_end(self, estimator: Run, *args: Any, **kwargs: Any) -> None:
        """Correct the gradient, in MXNet's Estimator."""
        self.gradient_ready(estimator, *args, **kwargs)
        self._run.note_batch_end()

    def epoch_end(self, estimator: Run, *args: Any, **kwargs: Any) -> None:
        """Raise if the batches of the epoch were others than those of the full pass."""
        self.interval.check()
        self._run.note_epoch_end()
        self._course.tell_coefficient()

    def train_end(self, estimator: Run, *args: Any, **kwargs: Any) -> None:
        """Leave a trainer that steps by itself again, and hold on to nothing of the run."""
        if "_course" in vars(self):  # else an exception came before train begin
            self._course.end()
            self.interval.release()
            del self._course, self._trainer, self._run, self._data

    exception_raised = train_end

    def catch_up(self, estimator: Run) -> bool:
        """Take the snapshot that a stop has broken off in the middle of an epoch."""
        return self._course.take_what_is_due()

    def state_dict(self, estimator: Run) -> State:
        """Return the snapshot, the full gradient and the counts, but not the table."""
        return state_of(self._parts(estimator))

    def load_state_dict(self, estimator: Run, state: State) -> None:
        """Continue from `state`; computes a table again, if the epoch under way needs it."""
        position, parts = self._run.position, self._parts(estimator)
        self.interval.epoch = self._epochs.last_snapshot(position.epoch)
        is_used = position.is_in_epoch or self._epochs.outlives(position.epoch)
        load_state(state, parts, self._data, self.coefficient, estimator.context, is_used)

    def _parts(self, estimator: Run) -> Parts:
        names = names_by_place(estimator.net, _mxnet.parameters_of(self._trainer))
        return Parts(self._trainer, self.interval, self.giving_up, names, self.sparse_correction)
