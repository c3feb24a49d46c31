"""SVRGHandler: when the snapshot is taken, and that every batch is corrected."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from gluon_svrg import _mxnet
from gluon_svrg.arguments import check_integer
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

    It works in :class:`gluon_svrg.Estimator` and in MXNet's own, with a
    :class:`gluon_svrg.SVRGTrainer`. An epoch with a snapshot costs three gradients per sample, two
    with a gradient table. What lives from snapshot to snapshot is an
    :class:`gluon_svrg.svrg.Interval`.

    Parameters
    ----------
    update_freq : int
        A snapshot every `update_freq` epochs. Johnson & Zhang (2013) took one every 2 epochs for
        convex problems, every 5 for others.
    coefficient : float in [0, 1], callable, 'auto' or OptimalCoefficient
        1 is SVRG, 0 the plain optimizer (no snapshot is taken then). A callable gets the fraction
        of training that is done, in [0, 1], at each snapshot; its value holds until the next.
        'auto' is ``OptimalCoefficient()``: estimated in training, for each parameter.
    gradient_table : bool or 'auto'
        Whether the gradient of each batch at the snapshot is kept from the full pass, instead of
        recomputed at each step. That needs batches that repeat exactly, in any order: a list of
        batches, or a :class:`gluon_svrg.data.ArrayLoader`. 'auto' keeps them if the batches repeat
        and the table takes at most `table_memory`; the log says what was decided.
    start_epoch : int
        The first epoch (from 0) with SVRG; those before are a warm start by the plain optimizer.
    stop_epoch : int, optional
        The first epoch without SVRG again.
    train_data : iterable of batches, optional
        The training data, needed in MXNet's Estimator only.
    progress_bar : bool
        Whether the full pass shows a bar; only ever on a terminal.
    priority : float
        Before the optimizer's step, which in MXNet's Estimator has -2000.
    table_memory : float
        The largest table that 'auto' makes, in bytes, on all devices together. A table takes one
        copy of the gradients per batch and device.
    lock : 'auto', 'require' or 'off'
        Whether a sample has the same random augmentation, and a batch the same dropout masks, in
        the full pass and in the epochs until the next. An ArrayLoader with transforms of
        :mod:`gluon_svrg.data.transforms` is locked; if the data cannot be, 'auto' warns and
        'require' is an error. 'off' locks nothing, to see what it is worth.
    give_up_above : float, optional
        Switch SVRG off when the variance ratio, averaged over the epoch, exceeds this. An epoch
        with SVRG takes about three gradients per sample, so it pays under 1/3 (Defazio & Bottou
        2019). The ratio is measured once more in the next epoch, without a full pass, and SVRG is
        switched on again after it if the ratio is small enough. A
        :class:`gluon_svrg.VarianceHandler` measures; the Estimator adds one unless one is given.
        In this package's Estimator only.
    look_again_every : int, optional
        Measure again every that many epochs after SVRG was switched off.

    Attributes
    ----------
    giving_up : GivingUp
        Whether, and when, SVRG was switched off: ``giving_up.epoch``.

    Raises
    ------
    TypeError, ValueError
        If an argument is of the wrong type or out of its range.

    References
    ----------
    R. Johnson, T. Zhang, "Accelerating stochastic gradient descent using predictive variance
    reduction", NeurIPS 2013. Y. Yin et al., "A coefficient makes SVRG effective", ICLR 2025.
    A. Defazio, L. Bottou, "On the ineffectiveness of variance reduced optimization for deep
    learning", NeurIPS 2019.
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
        check_integer(
            "update_freq", update_freq, 1, "the full gradient is computed every update_freq epochs"
        )
        _check_epochs(start_epoch, stop_epoch)
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
        self._interval: Interval | None = None
        self._run: Located
        self._data: TrainingData

    @property
    def interval(self) -> Interval:
        """What lives from snapshot to snapshot, from *train begin* on."""
        assert self._interval is not None, "made at train begin"
        return self._interval

    @property
    def table(self) -> GradientTable | None:
        """The table in use; None if gradients at the snapshot are recomputed."""
        return None if self._interval is None else self._interval.table

    @property
    def gradient_evaluations(self) -> int:
        """How many samples' gradients SVRG has computed, in addition to the network's own."""
        return 0 if self._interval is None else self._interval.gradient_evaluations

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
        self._interval = Interval(
            estimator.net,
            backward_of(estimator),
            [param.name for param in _mxnet.parameters_of(trainer)],
            gradient_table=self.gradient_table,
            table_memory=self.table_memory,
            lock=self.lock,
            loss_scaler=trainer,
            infer_shapes=lambda batch: infer_shapes(estimator, batch),
            bar=self._bar,
            logger=estimator.logger,
        )
        self._end_interval(trainer)
        self.giving_up.reset()
        for handler in () if isinstance(self._run, MXNetRun) else estimator.handlers:
            if isinstance(handler, VarianceHandler):
                self.giving_up.is_metered = True
                handler.measure(
                    Measured(self._interval, self.giving_up, self._coefficient_now, self._consider)
                )

    def epoch_begin(self, estimator: Run, *args: Any, **kwargs: Any) -> None:
        """Take the snapshot and the full gradient, if it is time for one."""
        self.giving_up.check(estimator)
        if isinstance(self._run, MXNetRun):
            self._run.epoch_begin()
        epoch = self._run.position.epoch
        is_over = self.stop_epoch is not None and epoch >= self.stop_epoch
        if self.giving_up.epoch is not None or is_over:
            self._end_interval(_trainer_of(estimator))
        elif self._renews_at(epoch):
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
        if self._interval is not None and isinstance(estimator.trainer, SVRGTrainer):
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
        position = self._run.position
        self.interval.epoch = (
            position.epoch - (position.epoch - self.start_epoch) % self.update_freq
        )
        is_used = position.is_in_epoch or not self._renews_at(position.epoch)
        # Version 0.1 had some of the interval's state beside it.
        of_interval = state | state["pass"]
        self.interval.load_state_dict(of_interval, self._data, full_gradient, is_used)
        if full_gradient is not None:
            coefficient = resumed_coefficient(self.coefficient, state["coefficient"])
            trainer.load_control_variate_state(estimator.net, state, coefficient)

    def _renews_at(self, epoch: int) -> bool:
        """Return whether a snapshot is taken, or SVRG ends, at the begin of `epoch`."""
        if self.stop_epoch is not None and epoch >= self.stop_epoch:
            return True
        return epoch >= self.start_epoch and (epoch - self.start_epoch) % self.update_freq == 0

    def _begin_interval(self, trainer: SVRGTrainer) -> None:
        """Take a snapshot, and correct by its full gradient from now on."""
        coefficient = self._coefficient_now()
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

    def _coefficient_now(self) -> float | OptimalCoefficient:
        """Return the coefficient that a snapshot now would have."""
        if isinstance(self.coefficient, OptimalCoefficient):
            return self.coefficient
        run = self._run
        if run.max_epoch:
            return coefficient_at(self.coefficient, run.position.epoch / run.max_epoch)
        return coefficient_at(self.coefficient, run.position.batch / (run.max_batch or 1))

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

    def _bar(self, batches: Iterator[Numbered], total: int | None) -> tqdm[Numbered]:
        return tqdm(
            batches,
            total=total,
            desc="full gradient",
            unit="batch",
            leave=False,
            # None: off if the output is no terminal.
            disable=None if self.progress_bar else True,
        )


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


def _check_epochs(start_epoch: int, stop_epoch: int | None) -> None:
    check_integer("start_epoch", start_epoch, 0, "SVRG is on from epoch start_epoch on")
    if stop_epoch is None:
        return
    check_integer("stop_epoch", stop_epoch, 0, "SVRG is off from epoch stop_epoch on")
    if stop_epoch <= start_epoch:
        raise ValueError(
            f"stop_epoch must be greater than start_epoch, got {stop_epoch} and {start_epoch}: "
            "SVRG would never be on; leave the handler out for that"
        )
