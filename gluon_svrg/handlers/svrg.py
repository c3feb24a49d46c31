"""SVRGHandler: when the snapshot is taken, and that every batch is corrected."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

from gluon_svrg import _mxnet
from gluon_svrg.data.training_data import TrainingData, training_data
from gluon_svrg.events import (
    BatchBegin,
    BatchEnd,
    EpochBegin,
    EpochEnd,
    EventHandler,
    ExceptionRaised,
    GradientReady,
    HasCompanions,
    HasPasses,
    Order,
    Run,
    Stateful,
    TrainBegin,
    TrainEnd,
)
from gluon_svrg.handlers.variance import Measured, VarianceHandler
from gluon_svrg.run.batch_processor import backward_of, infer_shapes
from gluon_svrg.run.mxnet_run import Located, MXNetRun
from gluon_svrg.svrg.coefficient import (
    Coefficient,
    OptimalCoefficient,
    checked_coefficient,
    coefficient_at,
    resumed_coefficient,
)
from gluon_svrg.svrg.cost import passes_of
from gluon_svrg.svrg.epochs import SnapshotEpochs
from gluon_svrg.svrg.giving_up import GivingUp
from gluon_svrg.svrg.interval import Interval, Numbered, check_table_and_lock
from gluon_svrg.svrg.table import GradientTable
from gluon_svrg.trainer import SVRGTrainer
from tqdm.auto import tqdm


class SVRGHandler(
    TrainBegin,
    EpochBegin,
    BatchBegin,
    GradientReady,
    BatchEnd,
    EpochEnd,
    TrainEnd,
    ExceptionRaised,
    Stateful,
    HasCompanions,
    HasPasses,
):
    """Runs SVRG: snapshot and full gradient at an epoch's begin, then a correction per batch.

    For this package's Estimator and MXNet's own, with a :class:`gluon_svrg.SVRGTrainer`. An epoch
    with a snapshot costs three gradients per sample, two with a gradient table. What lives from
    snapshot to snapshot is a :class:`gluon_svrg.svrg.Interval`.

    Parameters
    ----------
    update_freq : int
        A snapshot every `update_freq` epochs. Johnson & Zhang (2013) took one every 2 epochs for
        convex problems, every 5 for others.
    coefficient : float in [0, 1], callable, 'auto' or OptimalCoefficient
        1 is SVRG, 0 the plain optimizer, without a snapshot. A callable gets training progress in
        [0, 1] at each snapshot. 'auto' is ``OptimalCoefficient()``, estimated for each parameter.
    gradient_table : bool or 'auto'
        Whether the gradient of each batch at the snapshot is kept from the full pass, which needs
        batches that repeat exactly (a list, or a :class:`gluon_svrg.data.ArrayLoader`), or computed
        again. 'auto' keeps them if they repeat and fit `table_memory`; the log says which it is.
    start_epoch, stop_epoch : int
        The first epoch with SVRG, after a warm start by the plain optimizer; the first without it.
    train_data : iterable of batches, optional
        The training data, needed in MXNet's Estimator only.
    progress_bar : bool
        Whether the full pass shows a bar; only ever on a terminal.
    priority : float
        Before the optimizer's step, which in MXNet's Estimator has -2000.
    table_memory : float
        The largest table that 'auto' makes, in bytes: one copy of the gradients per batch, device.
    lock : 'auto', 'require' or 'off'
        Whether a sample has the same augmentation, and a batch the same dropout masks, from one
        full pass to the next. If the data cannot be locked (an ArrayLoader with transforms of
        :mod:`gluon_svrg.data.transforms` can), 'auto' warns and 'require' is an error.
    give_up_above : float, optional
        Switch SVRG off when the variance ratio, averaged over the epoch, exceeds this: it pays
        under about 1/3 (Defazio & Bottou 2019). If the ratio is smaller in the next epoch, it is
        switched on again. Needs a :class:`gluon_svrg.VarianceHandler`, which the Estimator adds;
        not for MXNet's Estimator.
    look_again_every : int, optional
        Measure again every that many epochs after SVRG was switched off.

    Attributes
    ----------
    interval : Interval
        What lives from snapshot to snapshot, from *train begin* on.
    giving_up : GivingUp
        Whether, and when, SVRG was switched off: ``giving_up.epoch``.

    Raises
    ------
    TypeError, ValueError
        If an argument is of the wrong type or out of its range.

    References
    ----------
    R. Johnson, T. Zhang, "Accelerating stochastic gradient descent using predictive variance
    reduction", NeurIPS 2013. A. Defazio, L. Bottou, "On the ineffectiveness of variance reduced
    optimization for deep learning", NeurIPS 2019.
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
    ) -> None:
        self._epochs = SnapshotEpochs(update_freq, start_epoch, stop_epoch)
        self._epochs.check()
        check_table_and_lock(gradient_table, table_memory, lock)
        self.update_freq = update_freq
        self.coefficient = checked_coefficient(coefficient)
        self.gradient_table = gradient_table
        self.table_memory = table_memory
        self.start_epoch = start_epoch
        self.stop_epoch = stop_epoch
        self.train_data = train_data
        self.progress_bar = progress_bar
        self.priority = priority
        self.lock = lock
        self.giving_up = GivingUp(give_up_above, look_again_every, stop_epoch)
        self.interval: Interval
        self._run: Located
        self._data: TrainingData

    @property
    def table(self) -> GradientTable | None:
        """The table in use; None if gradients at the snapshot are recomputed."""
        return self.interval.table if "interval" in vars(self) else None

    @property
    def gradient_evaluations(self) -> int:
        """How many samples' gradients SVRG has computed, in addition to the network's own."""
        return self.interval.gradient_evaluations if "interval" in vars(self) else 0

    def companions(self) -> list[type[EventHandler]]:
        """Return who measures whether SVRG is to be switched off."""
        return [] if self.giving_up.above is None else [VarianceHandler]

    def passes(self) -> list[str]:
        """Return what SVRG costs in passes per sample."""
        return passes_of(self)

    def train_begin(self, estimator: Run, *args: Any, **kwargs: Any) -> None:
        """Check what the estimator brings, and begin without a snapshot."""
        trainer = _trainer_of(estimator)
        self._data = _data_of(estimator, self.train_data)
        self._run = estimator if isinstance(estimator, Located) else MXNetRun(estimator, self._data)
        self.interval = _interval_of(self, estimator, trainer)
        self._end_interval(trainer)
        self.giving_up.reset()
        for handler in () if isinstance(self._run, MXNetRun) else estimator.handlers:
            if isinstance(handler, VarianceHandler):
                self.giving_up.is_metered = True
                now = partial(_coefficient_now, self.coefficient, self._run)
                handler.measure(Measured(self.interval, self.giving_up, now, self._consider))

    def epoch_begin(self, estimator: Run, *args: Any, **kwargs: Any) -> None:
        """Take the snapshot and the full gradient, if it is time for one."""
        self.giving_up.check(estimator)
        if isinstance(self._run, MXNetRun):
            self._run.epoch_begin()
        epoch = self._run.position.epoch
        if self.giving_up.epoch is not None or self._epochs.is_over(epoch):
            self._end_interval(_trainer_of(estimator))
        elif self._epochs.has_snapshot(epoch):
            self._begin_interval(_trainer_of(estimator))
        if not isinstance(self.coefficient, OptimalCoefficient):
            self._tell_coefficient(estimator)

    def batch_begin(self, estimator: Run, *args: Any, **kwargs: Any) -> None:
        """Let the network draw the random numbers that are drawn at the snapshot."""
        if self.is_on(estimator):
            self.interval.before(kwargs["batch"], self._run.position.batch_in_epoch)

    def gradient_ready(self, estimator: Run, *args: Any, **kwargs: Any) -> None:
        """Correct the gradient of the batch."""
        if self.is_on(estimator):
            index = self._run.position.batch_in_epoch
            _trainer_of(estimator).correct(self.interval.gradient(kwargs["batch"], index))

    def batch_end(self, estimator: Run, *args: Any, **kwargs: Any) -> None:
        """Correct the gradient in MXNet's Estimator, which fires no *gradient ready*."""
        if isinstance(self._run, MXNetRun):
            # The last event before the step, by the priority.
            self.gradient_ready(estimator, *args, **kwargs)
            self._run.batch_end()

    def epoch_end(self, estimator: Run, *args: Any, **kwargs: Any) -> None:
        """Raise if the batches of the epoch were others than those of the full pass."""
        self.interval.check()
        if isinstance(self._run, MXNetRun):
            self._run.epoch_end()
        self._tell_coefficient(estimator)

    def train_end(self, estimator: Run, *args: Any, **kwargs: Any) -> None:
        """Leave a trainer that steps by itself again."""
        self._end_interval(_trainer_of(estimator))

    def exception_raised(self, estimator: Run, *args: Any, **kwargs: Any) -> None:
        """Leave a trainer that steps by itself again."""
        if "interval" in vars(self) and isinstance(estimator.trainer, SVRGTrainer):
            self._end_interval(estimator.trainer)

    def is_on(self, estimator: Run) -> bool:
        """Return whether the batches are corrected at present."""
        return _trainer_of(estimator).full_gradient is not None

    def state_dict(self, estimator: Run) -> dict[str, Any]:
        """Return the snapshot, the full gradient and the counts, but not the table."""
        return {
            "giving_up": self.giving_up.state_dict(),
            "pass": self.interval.state_dict(),
            **_trainer_of(estimator).control_variate_state(estimator.net),
        }

    def load_state_dict(self, estimator: Run, state: dict[str, Any]) -> None:
        """Continue from `state`; computes a table again, if the epoch under way needs it."""
        trainer = _trainer_of(estimator)
        trainer.clear_control_variate()
        self.giving_up.load_state_dict(state["giving_up"])
        full_gradient = trainer.saved_full_gradient(estimator.net, state)
        epoch = self._run.position.epoch
        self.interval.epoch = self._epochs.last_snapshot(epoch)
        is_renewed = self._epochs.has_snapshot(epoch) or self._epochs.is_over(epoch)
        is_used = self._run.position.is_in_epoch or not is_renewed
        # Version 0.1 had some of the interval's state beside it.
        of_interval = state | state["pass"]
        self.interval.load_state_dict(of_interval, self._data, full_gradient, is_used)
        if full_gradient is not None:
            coefficient = resumed_coefficient(self.coefficient, state["coefficient"])
            trainer.load_control_variate_state(estimator.net, state, coefficient)

    def _begin_interval(self, trainer: SVRGTrainer) -> None:
        """Take a snapshot, and correct by its full gradient from now on."""
        coefficient = _coefficient_now(self.coefficient, self._run)
        # What the last interval held goes before the full pass takes its own memory.
        trainer.clear_control_variate()
        if coefficient == 0:
            # The plain optimizer, bit for bit: no pass, no random number drawn.
            self._end_interval(trainer)
            return
        full_gradient = self.interval.begin(self._data, self._run.position.epoch)
        trainer.set_control_variate(full_gradient, coefficient)
        self.giving_up.check_workers(trainer)

    def _end_interval(self, trainer: SVRGTrainer) -> None:
        """Continue with the plain optimizer, and with an augmentation of each epoch's own."""
        trainer.clear_control_variate()
        self._data.unlock()

    def _consider(self, estimator: Run, ratio: float, at: float, epoch: int, is_last: bool) -> None:
        """Switch SVRG off, or on again, as the variance ratio says: see `GivingUp.decide`."""
        is_on = self.is_on(estimator)
        stays_on = self.giving_up.decide(estimator, is_on, ratio, at, epoch, is_last)
        if is_on and not stays_on:
            self._tell_coefficient(estimator)
            # The data stays locked to the end of the epoch, whose batches are under way.
            self.interval.drop_table()
            _trainer_of(estimator).clear_control_variate()

    def _tell_coefficient(self, estimator: Run) -> None:
        """Let the row of the epoch have the coefficient; one that is estimated is waited for."""
        if self.is_on(estimator):
            self._run.figures["coefficient"] = _trainer_of(estimator).coefficient


def _interval_of(handler: SVRGHandler, estimator: Run, trainer: SVRGTrainer) -> Interval:
    return Interval(
        estimator.net,
        backward_of(estimator),
        [param.name for param in _mxnet.parameters_of(trainer)],
        gradient_table=handler.gradient_table,
        table_memory=handler.table_memory,
        lock=handler.lock,
        loss_scaler=trainer,
        infer_shapes=lambda batch: infer_shapes(estimator, batch),
        bar=partial(_bar, is_wanted=handler.progress_bar),
        logger=estimator.logger,
    )


def _coefficient_now(
    coefficient: Coefficient | OptimalCoefficient, run: Located
) -> float | OptimalCoefficient:
    """Return the coefficient that a snapshot now would have."""
    if isinstance(coefficient, OptimalCoefficient):
        return coefficient
    if run.max_epoch:
        return coefficient_at(coefficient, run.position.epoch / run.max_epoch)
    return coefficient_at(coefficient, run.position.batch / (run.max_batch or 1))


def _trainer_of(estimator: Run) -> SVRGTrainer:
    trainer = estimator.trainer
    if not isinstance(trainer, SVRGTrainer):
        raise ValueError(
            f"SVRGHandler needs an SVRGTrainer, got {type(trainer).__name__}: make it with "
            "gluon_svrg.SVRGTrainer, which takes the same arguments as gluon.Trainer"
        )
    return trainer


def _data_of(estimator: Run, data: Iterable[object] | None) -> TrainingData:
    if data is not None:
        return training_data(data)
    if isinstance(estimator, Located):
        return estimator.data
    raise ValueError(
        f"SVRGHandler does not know the training data: {type(estimator).__module__}."
        f"{type(estimator).__name__} does not tell it; give SVRGHandler(train_data=...)"
    )


def _bar(
    batches: Iterator[Numbered], total: int | None, is_wanted: bool
) -> AbstractContextManager[Iterable[Numbered]]:
    bar: AbstractContextManager[Iterable[Numbered]] = tqdm(
        batches,
        total=total,
        desc="full gradient",
        unit="batch",
        leave=False,
        # None: off if the output is no terminal.
        disable=None if is_wanted else True,
    )
    return bar
