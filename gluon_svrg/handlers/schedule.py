"""ScheduleHandler and PlateauHandler: an optimizer's hyper-parameter that changes in a run."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import mxnet as mx
from gluon_svrg.arguments import check_finite, check_integer, check_number, explains_unknown
from gluon_svrg.events import (
    BatchBegin,
    EpochBegin,
    EpochEnd,
    EventHandler,
    HasExclusiveTasks,
    Order,
    RequiresRun,
    Run,
    State,
    Stateful,
    TrainBegin,
)
from gluon_svrg.metrics.monitor import Monitor
from gluon_svrg.optimizer.hyperparameters import (
    begin_schedule,
    check_no_lr_scheduler,
    hyperparameter_value,
    pop_leftover_values,
    set_hyperparameter,
    set_scheduled_value,
)
from gluon_svrg.schedules import Schedule, check_schedule


class ScheduleHandler(TrainBegin, EpochBegin, BatchBegin, HasExclusiveTasks, RequiresRun):
    """Sets a hyper-parameter of the optimizer to a function of training progress.

    The value is a function of ``estimator.progress`` alone (the fraction of ``epochs`` or
    ``batches`` that is done: by batches if the data has a length, else by whole epochs), so it is
    right after a resume, too. A resume with a greater ``epochs`` stretches the schedule: the
    progress is then a fraction of the new number. After the run the optimizer keeps the last value,
    as in Keras; a later run without a ScheduleHandler begins with it, and says so in the log.

    Parameters
    ----------
    hyperparameter : str
        ``'learning_rate'``, or the name of a numeric attribute of the optimizer: ``'wd'``,
        ``'momentum'``, ``'beta1'``, ...
    schedule : callable
        From progress in [0, 1] to the value, one of :mod:`gluon_svrg.schedules` or your own.
    per : 'batch' or 'epoch'
        Whether the value is set at the beginning of each batch or of each epoch.
    priority : float
        First, so that other handlers see the value of the batch.

    Raises
    ------
    TypeError
        If `hyperparameter` is no string, `schedule` cannot be called or is an ``LRScheduler`` of
        MXNet's, which is a function of the number of updates, or (while training) it returns no
        number.
    ValueError
        If `per` is neither, or `hyperparameter` is SVRG's coefficient. At *train begin*: if the
        optimizer has no such number, has an lr_scheduler that sets the learning rate as well, or
        has a momentum of 0 that is to be scheduled. In `fit`: if another handler sets the same
        number.
        While training: if the schedule's value is NaN or infinite, or a momentum is not above 0.
    """

    def __init__(
        self,
        hyperparameter: str,
        schedule: Schedule,
        per: str = "batch",
        priority: float = Order.SCHEDULE,
    ) -> None:
        check_schedule(schedule)
        if per not in ("batch", "epoch"):
            raise ValueError(
                f"per must be 'batch' or 'epoch', got {per!r}: the value is set at its beginning"
            )
        self.hyperparameter = _check_name(hyperparameter)
        self.schedule = schedule
        self.per = per
        self.priority = float(priority)

    def exclusive_tasks(self) -> list[str]:
        """Return that it sets the hyper-parameter."""
        return [f"set {self.hyperparameter!r}"]

    def train_begin(self, estimator: Run, *args: Any, **kwargs: Any) -> None:
        """Check that the optimizer has the hyper-parameter, and that nothing else sets it."""
        if self.hyperparameter == "learning_rate":
            check_no_lr_scheduler(estimator.trainer, type(self).__name__)
        value = hyperparameter_value(self.hyperparameter, estimator.trainer)
        if self.hyperparameter == "momentum" and value == 0:
            raise ValueError(
                "the optimizer's momentum is 0 and cannot be scheduled: optimizers that begin "
                "without momentum make no state for it; make this one with momentum=0.9, or "
                "whatever the schedule begins with"
            )
        begin_schedule(self.hyperparameter, estimator.trainer)

    def epoch_begin(self, estimator: Run, *args: Any, **kwargs: Any) -> None:
        """Set the value of the epoch."""
        if self.per == "epoch":
            self._set(estimator)

    def batch_begin(self, estimator: Run, *args: Any, **kwargs: Any) -> None:
        """Set the value of the batch."""
        if self.per == "batch":
            self._set(estimator)

    def _set(self, estimator: Run) -> None:
        progress = estimator.progress
        what = f"the schedule's value of {self.hyperparameter!r} at progress {progress:.3g}"
        value = check_finite(what, self.schedule(progress), "look at the schedule")
        if self.hyperparameter == "momentum" and not value > 0:
            raise ValueError(
                f"{what} must be above 0, got {value!r}: optimizers keep no state for a momentum "
                "of 0; begin and end with a small one"
            )
        set_scheduled_value(self.hyperparameter, estimator.trainer, value)


def warn_of_leftover_value(estimator: Run, handlers: Iterable[EventHandler]) -> None:
    """Warn, once, of each value that an earlier schedule has left and none of `handlers` sets."""
    set_now = {h.hyperparameter for h in handlers if isinstance(h, ScheduleHandler)}
    for name, before, last in pop_leftover_values(estimator.trainer, set_now):
        way = (
            "trainer.set_learning_rate"
            if name == "learning_rate"
            else f"trainer.optimizer.{name} ="
        )
        value = f"({before:g})" if name == "learning_rate" else f" {before:g}"
        estimator.logger.warning(
            "%s is %.4g, as the ScheduleHandler of an earlier fit has left it, and nothing sets it "
            "in this one: if you do not want that, begin with %s%s, or give a ScheduleHandler",
            name,
            last,
            way,
            value,
        )


class PlateauHandler(TrainBegin, EpochEnd, Stateful, HasExclusiveTasks, RequiresRun):
    """Multiplies a hyper-parameter by `factor` when the monitored figure stops improving.

    It is reduced after `patience` epochs in a row without improvement, as in Keras'
    ``ReduceLROnPlateau``; PyTorch's waits for one epoch more. The next epoch is the first
    with the new value. `cooldown` is PyTorch's: that many epochs after a reduction do not count.

    A NaN is no improvement. An epoch without the figure, because there was no evaluation, does not
    count. Checkpoints have the best value, the counts, and the optimizer's hyper-parameter. After
    the run the optimizer keeps the last value.

    Parameters
    ----------
    monitor : str or EvalMetric
        The figure, as in the history: ``'validation accuracy'``.
    mode : 'auto', 'min' or 'max'
        Which value is better; 'auto' infers it from the name, or raises.
    hyperparameter : str
        ``'learning_rate'``, or the name of a numeric attribute of the optimizer.
    factor : float above 0 and below 1
        What the hyper-parameter is multiplied by.
    patience : int
        The number of epochs in a row without improvement after which it is multiplied.
    min_delta : float
        A value is an improvement if it is better than the best one by more than this.
    cooldown : int
        The number of epochs after a reduction that do not count.
    minimum : float
        The hyper-parameter is not reduced below this.
    priority : float
        After the HistoryHandler, which has 1000, so that the figure is there.

    Raises
    ------
    TypeError
        If an argument is of the wrong type.
    ValueError
        If an argument is out of its range. At *train begin*: if the run has no such figure, if the
        optimizer has no such number or has an lr_scheduler that sets the learning rate as well. In
        `fit`: if another handler sets the same number.
    """

    state_key = "plateau"

    @explains_unknown(
        min_lr="minimum",
        threshold="min_delta",
    )
    def __init__(
        self,
        monitor: str | mx.metric.EvalMetric,
        mode: str = "auto",
        hyperparameter: str = "learning_rate",
        factor: float = 0.1,
        *,
        patience: int = 10,
        min_delta: float = 0.0,
        cooldown: int = 0,
        minimum: float = 0.0,
        priority: float = Order.MONITOR,
    ) -> None:
        meaning = "the hyper-parameter is multiplied by it"
        if not check_number("factor", factor, meaning, 0, above=True) < 1:
            raise ValueError(f"factor must be below 1, got {factor!r}: {meaning}, to become less")
        self.monitor = Monitor(monitor, mode)
        self.hyperparameter = _check_name(hyperparameter)
        self.factor = float(factor)
        self.patience = check_integer(
            "patience", patience, 1, "that many epochs in a row have to bring no improvement"
        )
        self.min_delta = check_number(
            "min_delta", min_delta, "an improvement has to be greater than it", 0
        )
        self.cooldown = check_integer(
            "cooldown", cooldown, 0, "that many epochs after a reduction do not count"
        )
        self.minimum = check_number(
            "minimum", minimum, "the hyper-parameter is not reduced below it", 0
        )
        self.priority = float(priority)
        self._best: float | None = None
        self._wait = 0
        self._cooldown_left = 0

    def exclusive_tasks(self) -> list[str]:
        """Return that it sets the hyper-parameter."""
        return [f"set {self.hyperparameter!r}"]

    def train_begin(self, estimator: Run, *args: Any, **kwargs: Any) -> None:
        """Check figure and hyper-parameter, and forget earlier runs."""
        self.monitor.check(estimator)
        if self.hyperparameter == "learning_rate":
            check_no_lr_scheduler(estimator.trainer, type(self).__name__)
        hyperparameter_value(self.hyperparameter, estimator.trainer)
        self._best, self._wait, self._cooldown_left = None, 0, 0

    def epoch_end(self, estimator: Run, *args: Any, **kwargs: Any) -> None:
        """Count the epoch, and reduce if it is time."""
        value = self.monitor.read(estimator)
        if value is None:
            return
        if self.monitor.is_better(value, self._best, self.min_delta):
            self._best, self._wait = value, 0
        elif self._cooldown_left == 0:
            self._wait += 1
        self._cooldown_left = max(0, self._cooldown_left - 1)
        if self._wait >= self.patience:
            self._wait, self._cooldown_left = 0, self.cooldown
            self._reduce(estimator)

    def state_dict(self, estimator: Run) -> State:
        """Return the best value and the counts."""
        return {
            **self.monitor.state_dict(),
            "best": self._best,
            "wait": self._wait,
            "cooldown_left": self._cooldown_left,
        }

    def load_state_dict(self, estimator: Run, state: State) -> None:
        """Continue to count; start fresh if the figure is another one."""
        if not self.monitor.is_of(state, self, estimator.logger):
            return
        self._best, self._wait = state["best"], state["wait"]
        self._cooldown_left = state["cooldown_left"]

    def _reduce(self, estimator: Run) -> None:
        before = hyperparameter_value(self.hyperparameter, estimator.trainer)
        after = max(before * self.factor, self.minimum)
        if after < before:
            set_hyperparameter(self.hyperparameter, estimator.trainer, after)
            estimator.logger.info(
                "epoch %d: %s has not improved%s for %d epochs: %s %.4g -> %.4g",
                estimator.position.epoch,
                self.monitor.name,
                "" if self._best is None else f" on {self._best:.4g}",
                self.patience,
                self.hyperparameter,
                before,
                after,
            )


def _check_name(hyperparameter: object) -> str:
    if not isinstance(hyperparameter, str):
        raise TypeError(
            "hyperparameter must be 'learning_rate' or the name of a number of the optimizer, got "
            f"{hyperparameter!r}: give 'wd', for example"
        )
    if hyperparameter == "coefficient":
        raise ValueError(
            "hyperparameter 'coefficient' is SVRG's, which stays constant between two snapshots: "
            "give it a schedule by SVRGHandler(coefficient=schedule)"
        )
    return hyperparameter
