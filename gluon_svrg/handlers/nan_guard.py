"""NaNGuardHandler: notices a NaN or an infinity, without waiting at each batch."""

from __future__ import annotations

from typing import Any

import numpy as np
from gluon_svrg._mxnet.trainer import parameters_of, scales_losses, trained_parameters
from gluon_svrg.arguments import check_integer, check_number
from gluon_svrg.arrays.finite import NonFiniteDetector
from gluon_svrg.arrays.replicas import by_device
from gluon_svrg.events import (
    EpochBegin,
    EpochEnd,
    ExceptionRaised,
    GradientReady,
    HasExclusiveTasks,
    NotFiniteError,
    Order,
    RequiresRun,
    Run,
    State,
    Stateful,
    TrainBegin,
    TrainEnd,
)
from gluon_svrg.stops import StopReason
from mxnet import gluon
from mxnet.ndarray import NDArray

__all__ = ["NaNGuardHandler", "NotFiniteError"]

_ADVICE = ": look at the data of the batch, or lower the learning rate"
_ACTIONS = ("raise", "stop", "roll_back")


class NaNGuardHandler(
    TrainBegin,
    EpochBegin,
    GradientReady,
    EpochEnd,
    TrainEnd,
    ExceptionRaised,
    Stateful,
    HasExclusiveTasks,
    RequiresRun,
):
    """Ends a run, or goes back to a checkpoint, when a loss or a gradient is NaN or infinite.

    The sums of squares of the gradients are computed on the device at each batch, after SVRG's
    correction. They and the losses are read every `every_n_batches` batches and at the end of each
    epoch. So the message names the first bad batch and parameter exactly, though it may come later.
    (A value beyond 1e19, whose square overflows float32, counts as infinite.) A checkpoint with a
    NaN is never written, with this handler or without it. Over several workers all check together,
    and the earliest finding of any of them counts for all. If MXNet's AMP scales the loss, an
    overflow of a gradient is no error, and only the losses are checked.

    Parameters
    ----------
    action : 'raise', 'stop' or 'roll_back'
        'raise' a NotFiniteError, which is a FloatingPointError; 'stop' the run with
        ``StopReason.NOT_FINITE`` (the weights may be NaN by then); or 'roll_back' to the newest
        checkpoint, which needs a CheckpointHandler, and continue with a smaller learning rate. A
        NaN that SVRG's full pass finds is treated in the same way.
    every_n_batches : int
        Check every `every_n_batches` batches, counted from the beginning of the run. Each check
        waits for the device.
    factor : float in (0, 1)
        With 'roll_back': what the learning rate is multiplied by each time. It goes into every
        parameter's ``lr_mult``, so it acts together with any schedule; the row of the epoch
        in the history has it as ``learning_rate_factor``. After the run ``lr_mult`` is as it was.
    max_roll_backs : int
        With 'roll_back': raise after this many roll-backs.
    priority : float
        After SVRG's correction and before everything else that uses the gradient.

    Raises
    ------
    TypeError, ValueError
        If an argument is of the wrong type, or out of its range.
    """

    state_key = "nan_guard"

    def __init__(
        self,
        action: str = "raise",
        every_n_batches: int = 50,
        factor: float = 0.1,
        max_roll_backs: int = 3,
        *,
        priority: float = Order.GUARD,
    ) -> None:
        if action not in _ACTIONS:
            raise ValueError(f"action must be one of {', '.join(_ACTIONS)}, got {action!r}")
        check_integer(
            "every_n_batches", every_n_batches, 1, "a check is made every that many batches"
        )
        check_number("factor", factor, "the learning rate is multiplied by it", 0, above=True)
        if factor >= 1:
            raise ValueError(f"factor must be less than 1, got {factor!r}: the rate is to fall")
        check_integer("max_roll_backs", max_roll_backs, 1, "raise after this many roll-backs")
        self.action = action
        self.every_n_batches = every_n_batches
        self.factor = factor
        self.max_roll_backs = max_roll_backs
        self.priority = float(priority)
        self._roll_backs = 0
        self._lr_mults: list[tuple[gluon.Parameter, float]] = []
        self._begin = 0
        self._losses: list[list[NDArray]] = []
        self._detector = NonFiniteDetector()
        self._gradients: list[list[NDArray]] = []
        self._names: list[str] = []

    def exclusive_tasks(self) -> list[str]:
        """Return its task."""
        return ["decide what a NaN does"]

    def train_begin(self, estimator: Run, *args: Any, **kwargs: Any) -> None:
        """Forget earlier runs, and decide about what others find in this one."""
        estimator.on_non_finite = self.on_non_finite
        self._roll_backs = 0
        self._lr_mults = [(param, param.lr_mult) for param in parameters_of(estimator.trainer)]
        self._start(estimator)

    def epoch_begin(self, estimator: Run, *args: Any, **kwargs: Any) -> None:
        """Watch the epoch."""
        self._start(estimator)

    def gradient_ready(self, estimator: Run, *args: Any, **kwargs: Any) -> None:
        """Note the losses and gradients of the batch; check them if it is time."""
        self._losses.append(kwargs["loss"])
        if not scales_losses(estimator.trainer):
            if not self._gradients:
                self._collect(estimator.trainer)
            self._detector.add(self._gradients)
        if estimator.position.is_due("gradient_ready", every_n_batches=self.every_n_batches):
            self._check(estimator)

    def epoch_end(self, estimator: Run, *args: Any, **kwargs: Any) -> None:
        """Check the batches that have not been checked yet."""
        self._check(estimator)
        if self._roll_backs:
            estimator.figures["learning_rate_factor"] = self.factor**self._roll_backs

    def train_end(self, estimator: Run, *args: Any, **kwargs: Any) -> None:
        """Set the learning rates of the parameters back."""
        if self._roll_backs:
            for param, lr_mult in self._lr_mults:
                param.lr_mult = lr_mult
        self._lr_mults = []

    def exception_raised(self, estimator: Run, *args: Any, **kwargs: Any) -> None:
        """Set the learning rates of the parameters back."""
        self.train_end(estimator)

    def state_dict(self, estimator: Run) -> State:
        """Return the number of roll-backs."""
        return {"roll_backs": self._roll_backs}

    def load_state_dict(self, estimator: Run, state: State) -> None:
        """Lower the learning rate again; roll-backs in this run count, too."""
        self._roll_backs = max(self._roll_backs, state["roll_backs"])
        self._lower_learning_rate()
        self._start(estimator)

    def on_non_finite(self, estimator: Run, message: str) -> None:
        """Do what `action` says about a NaN or an infinity that another handler has found."""
        # SVRG's full pass gives its own advice.
        self._act(estimator, message, "" if "learning rate" in message else _ADVICE)

    def _start(self, estimator: Run) -> None:
        self._begin = estimator.position.batch_in_epoch
        self._losses, self._detector = [], NonFiniteDetector()
        self._gradients, self._names = [], []

    def _collect(self, trainer: gluon.Trainer) -> None:
        trained = trained_parameters(trainer)
        for grads in by_device(param.list_grad() for param in trained):
            kinds = sorted({np.dtype(grad.dtype).name for grad in grads})
            for kind in kinds:
                chosen = [i for i, grad in enumerate(grads) if np.dtype(grad.dtype).name == kind]
                self._gradients.append([grads[i] for i in chosen])
                self._names += [trained[i].name for i in chosen]

    def _check(self, estimator: Run) -> None:
        """Check the batches since the last check, on all workers."""
        what, step = self._first_found()
        batch = self._begin + step
        self._begin += len(self._losses)
        self._losses, self._detector = [], NonFiniteDetector()
        workers, epoch = estimator.workers, estimator.position.epoch
        gathered = workers.all_gather_object(
            [batch, what], f"check for NaN before batch {self._begin}"
        )
        findings = [
            (bad_batch, rank, what) for rank, (bad_batch, what) in enumerate(gathered) if what
        ]
        if findings:
            batch, rank, what = min(findings)
            where = f" on worker {rank}" if workers.is_distributed else ""
            self._act(
                estimator,
                f"{what} is NaN or infinite in batch {batch} of epoch {epoch} (both count from 0)"
                f"{where}",
            )

    def _first_found(self) -> tuple[str, int]:
        """Return what is not finite, or '', and in which batch since the last check."""
        first_loss = next(
            (step for step, losses in enumerate(self._losses) if not _are_finite(losses)), None
        )
        first_gradient = self._detector.first_bad()
        what, step = "", 0
        if first_gradient is not None:
            step, index = first_gradient
            what = f"the gradient of parameter {self._names[index]!r}"
        if first_loss is not None and (first_gradient is None or first_loss <= step):
            what, step = "the loss", first_loss
        return what, step

    def _act(self, estimator: Run, message: str, advice: str = _ADVICE) -> None:
        if self.action == "stop":
            estimator.logger.error("%s%s: the run ends", message, advice)
            estimator.stop(StopReason.NOT_FINITE)
        elif self.action == "raise":
            raise NotFiniteError(f"{message}{advice}")
        elif self._roll_backs == self.max_roll_backs:
            raise NotFiniteError(
                f"after the learning rate was lowered {self._roll_backs} times, {message}{advice}"
            )
        else:
            self._roll_backs += 1
            self._lower_learning_rate()
            estimator.roll_back(message)

    def _lower_learning_rate(self) -> None:
        for param, lr_mult in self._lr_mults:
            param.lr_mult = lr_mult * self.factor**self._roll_backs


def _are_finite(losses: list[NDArray]) -> bool:
    return all(np.isfinite(loss.asnumpy()).all() for loss in losses)
