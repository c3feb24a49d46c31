"""EarlyStoppingHandler: ends a run when a figure stops improving."""

from __future__ import annotations

import math
from typing import Any

import mxnet as mx
from gluon_svrg._mxnet.block import has_data, parameters_by_structure
from gluon_svrg._mxnet.trainer import parameters_of
from gluon_svrg._typing import NumPyArray
from gluon_svrg.arguments import check_integer, check_number, explains_unknown
from gluon_svrg.arrays.replicas import distinct_replicas, write_replicas
from gluon_svrg.events import (
    EpochEnd,
    EvaluationEnd,
    HasExclusiveTasks,
    Order,
    RequiresRun,
    Run,
    State,
    Stateful,
    TrainBegin,
    TrainEnd,
)
from gluon_svrg.metrics.monitor import Monitor
from gluon_svrg.optimizer.states import refresh_kvstore
from gluon_svrg.stops import StopReason


class EarlyStoppingHandler(
    TrainBegin, EvaluationEnd, EpochEnd, TrainEnd, Stateful, HasExclusiveTasks, RequiresRun
):
    """Ends the run when the monitored figure stops improving, and can restore the best weights.

    `patience` is that of Keras: the run ends after `patience` epochs in a row without improvement
    (0 and 1 mean the same: the first such epoch ends it), with ``StopReason.NO_IMPROVEMENT``. An
    epoch without the figure, because there was no evaluation, does not count.

    A figure that is NaN or infinite ends the run at once, with ``StopReason.NOT_FINITE``, as in
    Lightning. With ``check_finite=False`` a NaN is no improvement, as in Keras.

    After a resume the count continues, unless the monitored figure is another one now. A run that
    this handler had ended ends again at once, with the same reason and the same weights, unless
    `patience` is greater now.

    Parameters
    ----------
    monitor : str or EvalMetric
        The figure, as in the history: ``'validation accuracy'``.
    mode : 'auto', 'min' or 'max'
        Which value is better; 'auto' infers it from the name.
    patience : int or None
        The number of epochs in a row without improvement after which the run ends. With None it
        never ends for that, and the handler is for `restore_best` alone.
    min_delta : float
        A value is an improvement if it is better than the last improvement by more than this.
    baseline : float, optional
        An improvement must also be better than this, by more than `min_delta`.
    check_finite : bool
        Whether a figure that is NaN or infinite ends the run at once, after an evaluation in
        mid-epoch as well.
    restore_best : bool
        Whether the parameters and auxiliary states of the best epoch are restored at *train end*
        (not after an exception). For a validation figure they are those of the last evaluation in
        the epoch, for a training figure those at the end of the epoch. A copy is kept in the host's
        memory and in checkpoints. The optimizer's states are not restored. To train further with
        ``multi_precision``, whose optimizers hold their own weights, make a new trainer.
    priority : float
        After the HistoryHandler, which has 1000, so that the figure is there.

    Attributes
    ----------
    best : float or None
        The best value, whether it was better by `min_delta` or less. None before the first value.
    best_epoch : int or None
        Its epoch, from 0.

    Raises
    ------
    TypeError
        If an argument is of the wrong type.
    ValueError
        If an argument is out of its range, if there is nothing to do (``patience=None`` without
        `restore_best`), or, at *train begin*, if the run has no such figure, or if its name does
        not say which value is better and `mode` is 'auto'.
    """

    state_key = "early_stopping"

    @explains_unknown(
        restore_best_weights="restore_best",
        load_best="restore_best",
        threshold="min_delta",
        score_function="give monitor, the name of a figure of the history",
    )
    def __init__(
        self,
        monitor: str | mx.metric.EvalMetric,
        mode: str = "auto",
        patience: int | None = 0,
        min_delta: float = 0.0,
        *,
        baseline: float | None = None,
        check_finite: bool = True,
        restore_best: bool = False,
        priority: float = Order.MONITOR,
    ) -> None:
        if patience is not None:
            check_integer(
                "patience",
                patience,
                0,
                "the run ends after that many epochs in a row without improvement",
            )
        elif not restore_best:
            raise ValueError(
                "patience=None never ends the run, and restore_best=False restores nothing: give "
                "one of them, or leave the handler out"
            )
        self.monitor = Monitor(monitor, mode)
        self.patience = patience
        self.min_delta = check_number(
            "min_delta", min_delta, "an improvement has to be greater than it", 0
        )
        if baseline is not None:
            baseline = check_number("baseline", baseline, "the figure has to be better than it")
        self.baseline = baseline
        self.check_finite = check_finite
        self.restore_best = restore_best
        self.priority = float(priority)
        self.best: float | None = None
        self.best_epoch: int | None = None
        self._to_beat: float | None = None
        self._wait = 0
        self._weights: dict[str, list[NumPyArray]] | None = None
        # Those of the last evaluation in the current epoch, if it may be the best.
        self._evaluated: dict[str, list[NumPyArray]] | None = None

    def exclusive_tasks(self) -> list[str]:
        """Return that it restores weights, if it does."""
        return ["set the network's weights when the run ends"] if self.restore_best else []

    def train_begin(self, estimator: Run, *args: Any, **kwargs: Any) -> None:
        """Check the figure, and forget earlier runs."""
        self.monitor.check(estimator)
        self.best = self.best_epoch = self._weights = self._evaluated = None
        self._to_beat = self.baseline
        self._wait = 0

    def evaluation_end(self, estimator: Run) -> None:
        """Keep the weights that were evaluated, if they may be the best; end the run on a NaN."""
        name = self.monitor.name
        value = estimator.last_evaluation.get(name)
        if value is not None and not estimator.has_evaluated(name.partition(" ")[0]):
            return  # it is of other weights: these were evaluated on other data
        self._evaluated = None
        if value is None or self._stops_at(value, estimator):
            return
        if self.restore_best and self.monitor.is_better(value, self.best):
            self._evaluated = _copied(estimator)

    def epoch_end(self, estimator: Run, *args: Any, **kwargs: Any) -> None:
        """Count the epoch; keep the weights if they are the best; end the run if it is time."""
        value = self.monitor.read(estimator)
        evaluated, self._evaluated = self._evaluated, None
        if value is None or self._stops_at(value, estimator):
            return
        if self.monitor.is_better(value, self.best):
            self.best, self.best_epoch = value, estimator.position.epoch
            if self.restore_best:
                with estimator.evaluation_weights():
                    self._weights = evaluated or _copied(estimator)
        if self.monitor.is_better(value, self._to_beat, self.min_delta):
            self._to_beat, self._wait = value, 0
        else:
            self._wait += 1
        if estimator.stop_reason is None:
            self._stop_if_patience_is_over(estimator)

    def train_end(self, estimator: Run, *args: Any, **kwargs: Any) -> None:
        """Restore the weights of the best epoch."""
        if self._weights is not None:
            _write(self._weights, estimator)
            self._weights = None  # free the memory

    def state_dict(self, estimator: Run) -> State:
        """Return the best value, its epoch and weights, and the count."""
        return {
            **self.monitor.state_dict(),
            "best": self.best,
            "best_epoch": self.best_epoch,
            "to_beat": self._to_beat,
            "wait": self._wait,
            "weights": self._weights,
            **({} if self._evaluated is None else {"evaluated": self._evaluated}),
        }

    def load_state_dict(self, estimator: Run, state: State) -> None:
        """Continue to count, or end the run again; start fresh if the figure is another one."""
        if not self.monitor.is_of(state, self, estimator.logger):
            return
        self.best, self.best_epoch = state["best"], state["best_epoch"]
        self._to_beat, self._wait = state["to_beat"], state["wait"]
        self._weights = state["weights"] if self.restore_best else None
        self._evaluated = state.get("evaluated") if self.restore_best else None
        if self.restore_best and self._weights is None and self.best is not None:
            estimator.logger.warning(
                "the checkpoint is of a run without restore_best and lacks the weights of the best "
                "epoch, %d: only if a later epoch is better will its weights be restored",
                self.best_epoch,
            )
        # Between two epochs, the last row of the history is that of the epoch that has ended.
        value = None if estimator.position.is_in_epoch else self.monitor.read(estimator)
        if value is None or not self._stops_at(value, estimator):
            self._stop_if_patience_is_over(estimator)

    def _stops_at(self, value: float, estimator: Run) -> bool:
        """Return whether a value is not finite and ends the run for that; request the end."""
        if not self.check_finite or math.isfinite(value):
            return False
        if not estimator.stop_requested:  # the evaluation that has ended the run gave it already
            estimator.logger.warning(
                "%s is %g in epoch %d: the run ends%s; try a smaller learning rate, or find the "
                "first bad batch with NaNGuardHandler() (check_finite=False trains on)",
                self.monitor.name,
                value,
                estimator.position.epoch - (not estimator.position.is_in_epoch),
                "" if self._weights is None else f" with the weights of epoch {self.best_epoch}",
            )
        estimator.stop(StopReason.NOT_FINITE)
        return True

    def _stop_if_patience_is_over(self, estimator: Run) -> None:
        if self.patience is None or self._wait < max(1, self.patience):
            return
        estimator.stop(StopReason.NO_IMPROVEMENT)
        estimator.logger.info(
            "the run ends after %d epochs without improvement: %s",
            self._wait,
            f"{self.monitor.name} was finite in none of them"
            if self.best is None
            else f"the best {self.monitor.name} {self.best:.4g} was in epoch {self.best_epoch}"
            + (", whose weights are restored" if self._weights is not None else ""),
        )


def _parameters(estimator: Run) -> dict[str, mx.gluon.Parameter]:
    """Return all initialised parameters of network and trainer.

    Those of the network have the name of their place in it, as in checkpoints. It is the same in a
    new network of the same architecture.
    """
    params = dict(parameters_by_structure(estimator.net))
    in_network = {id(param) for param in params.values()}
    others = [*estimator.net.collect_params().values(), *parameters_of(estimator.trainer)]
    params |= {param.name: param for param in others if id(param) not in in_network}
    return {name: param for name, param in params.items() if has_data(param)}


def _copied(estimator: Run) -> dict[str, list[NumPyArray]]:
    # With static_shape MXNet does not order a read after the backward pass that writes running
    # statistics.
    mx.nd.waitall()
    return {
        name: distinct_replicas(param.list_data()) for name, param in _parameters(estimator).items()
    }


def _write(weights: dict[str, list[NumPyArray]], estimator: Run) -> None:
    """Write the parameters in place: `Parameter.set_data` would reset the kvstore each time."""
    params = _parameters(estimator)
    for name, values in weights.items():
        write_replicas(values, params[name].list_data())
    refresh_kvstore(estimator.trainer)
