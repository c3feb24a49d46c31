"""Run: what handlers and the loop can ask of a run, and the values of one call of `fit`."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import Any, Generic, TypeAlias, TypeVar, overload

import mxnet as mx
from gluon_svrg._mxnet.trainer import optimizer_of
from gluon_svrg._typing import Verbose
from gluon_svrg.data.base import TrainingData
from gluon_svrg.optimizer.optimizer import merged_update_count
from gluon_svrg.stops import StopReason, StopRequests
from gluon_svrg.workers import Workers
from mxnet import gluon
from mxnet.gluon.contrib.estimator import BatchProcessor
from mxnet.gluon.contrib.estimator.event_handler import EventHandler

Row: TypeAlias = "dict[str, Any]"
"""The figures of an epoch, by name."""


EVENTS_OF_EPOCHS = ("epoch_begin", "steps_due", "epoch_end")
EVENTS_OF_BATCHES = ("batch_begin", "gradient_ready", "batch_end")


class Phase(Enum):
    """What a run is doing."""

    BETWEEN = "between"
    """Neither training nor evaluating: before an epoch, or at its end, with all figures known."""
    TRAINING = "training"
    EVALUATING = "evaluating"
    """Evaluating. At a safe point: a stop interrupted the evaluation, and a resume repeats it."""


@dataclass
class Position:
    """How far a run is.

    Attributes
    ----------
    epoch : int
        The number of epochs that are done, which is also the index of the current epoch.
    batch : int
        The number of batches that are done, in all epochs.
    batch_in_epoch : int
        The number of batches that are done in the current epoch.
    phase : Phase
        What the run is doing.
    is_trained : bool
        Whether the current epoch has no more batches: all are done, or a handler has ended it
        early.
    """

    epoch: int = 0
    batch: int = 0
    batch_in_epoch: int = 0
    phase: Phase = Phase.BETWEEN
    is_trained: bool = False

    @property
    def is_in_epoch(self) -> bool:
        """Whether the run is inside an epoch: from *epoch begin* until after *epoch end*."""
        return self.phase is not Phase.BETWEEN or self.batch_in_epoch > 0

    def is_due(
        self, event: str, every_n_epochs: int | None = None, every_n_batches: int | None = None
    ) -> bool:
        """Return whether something that is done every few epochs or batches is due at an event.

        Epochs and batches are counted from the beginning of the run, also after a resume. An epoch
        event uses only `every_n_epochs`, and a batch event only `every_n_batches`. *Epoch begin*
        and *batch begin* are due in the first epoch or batch of a period, the other events in the
        last one. A *safe point* belongs to the epoch or the batch that has just ended.

        Parameters
        ----------
        event : str
            The name of the event at which the run is.
        every_n_epochs, every_n_batches : int, optional
            The periods; with None, it is never due.
        """
        if event == "safe_point":
            is_of_epoch, is_counted = not self.is_in_epoch, True
            if self.is_in_epoch and not self.batch_in_epoch:  # the end of the previous epoch
                return False
        else:
            is_of_epoch, is_counted = event in EVENTS_OF_EPOCHS, event.endswith("_begin")
        every = every_n_epochs if is_of_epoch else every_n_batches
        done = (self.epoch if is_of_epoch else self.batch) + (not is_counted)
        return every is not None and done % every == 0

    def at_epoch(self, epoch: int, num_batches: int | None) -> Position:
        """Return the position before `epoch`; if it is elsewhere, with `num_batches` per epoch."""
        is_here = epoch == self.epoch and not self.is_in_epoch
        return Position(epoch, self.batch if epoch and is_here else epoch * (num_batches or 0))

    def begin_epoch(self) -> None:
        """Move to the beginning of an epoch."""
        self.batch_in_epoch = 0
        self.phase = Phase.TRAINING

    def end_batch(self) -> None:
        """Count one more batch."""
        self.batch += 1
        self.batch_in_epoch += 1

    def end_epoch(self) -> None:
        """Move to the end of the epoch."""
        self.epoch += 1
        self.batch_in_epoch = 0
        self.phase, self.is_trained = Phase.BETWEEN, False

    def state_dict(self) -> dict[str, Any]:
        """Return the fields as plain data."""
        return {**asdict(self), "phase": self.phase.value}

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> Position:
        """Return the position that :meth:`state_dict` returned."""
        return cls(**{**state, "phase": Phase(state["phase"])})


@dataclass
class RunState:
    """The values that belong to one call of `fit`. Each call creates a new object.

    Attributes
    ----------
    stops : StopRequests or None
        The requests to end the run; None if no `fit` is running.
    roll_back_because : str or None
        Why the run goes back to the newest checkpoint after the current event; otherwise None.
    evaluated_at : dict of str to list of int
        For each evaluated data set, the :meth:`Run.weights_key` of the last evaluated weights.
    evaluated_at_batch : int or None
        The batch of the current epoch after which the last evaluation was; None if there was none.
    publishes : bool
        Whether the next call of `evaluate` adds its figures to the history: True while the loop
        lets MXNet's own ValidationHandler evaluate.

    The other attributes are those of the Estimator, whose docstring describes them.
    """

    position: Position = field(default_factory=Position)
    history: list[Row] = field(default_factory=list)
    figures: Row = field(default_factory=dict)
    last_evaluation: dict[str, float] = field(default_factory=dict)
    evaluated_at: dict[str, list[int]] = field(default_factory=dict)
    evaluated_at_batch: int | None = None
    evaluation_seconds: float = 0.0
    publishes: bool = False
    stop_reason: StopReason | None = None
    handlers: Iterable[EventHandler] = ()
    settings: dict[str, dict[str, Any]] = field(default_factory=dict)
    frozen_at_start: frozenset[str] = frozenset()
    resumed_from: Any = None
    data: TrainingData | None = None
    train_data: Any = None
    val_data: Any = None
    verbose: Verbose = "auto"
    max_epoch: int | None = None
    max_batch: int | None = None
    batch_axis: int = 0
    stops: StopRequests | None = None
    roll_back_because: str | None = None
    on_non_finite: Callable[[Run, str], None] | None = None


_T = TypeVar("_T")


class Value(Generic[_T]):
    """An attribute of a Run whose value is in its :class:`RunState`."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, run: None, owner: type) -> Value[_T]: ...
    @overload
    def __get__(self, run: Run, owner: type) -> _T: ...
    def __get__(self, run: Run | None, owner: type) -> _T | Value[_T]:
        if run is None:
            return self
        value: _T = getattr(run.state, self._name)
        return value

    def __set__(self, run: Run, value: _T) -> None:
        setattr(run.state, self._name, value)


class Run:
    """What a handler and the loop can use of the Estimator, the first argument of every event.

    :class:`gluon_svrg.Estimator` describes the attributes. Handlers call this object `estimator`;
    other code calls it `run`.
    """

    net: gluon.Block
    loss: gluon.loss.Loss
    trainer: gluon.Trainer
    context: list[mx.Context]
    logger: logging.Logger
    val_net: gluon.Block
    val_loss: gluon.loss.Loss
    batch_processor: BatchProcessor
    workers: Workers
    evaluation_weights: Callable[[], AbstractContextManager[None]]
    state: RunState

    position = Value[Position]()
    history = Value[list[Row]]()
    figures = Value[Row]()
    last_evaluation = Value[dict[str, float]]()
    evaluation_seconds = Value[float]()
    stop_reason = Value["StopReason | None"]()
    handlers = Value[Iterable[EventHandler]]()
    settings = Value[dict[str, dict[str, Any]]]()
    frozen_at_start = Value[frozenset[str]]()
    resumed_from = Value[Any]()
    data = Value[TrainingData]()
    train_data = Value[Any]()
    val_data = Value[Any]()
    verbose = Value[Verbose]()
    max_epoch = Value["int | None"]()
    max_batch = Value["int | None"]()
    batch_axis = Value[int]()
    on_non_finite = Value["Callable[[Run, str], None] | None"]()

    @property
    def train_metrics(self) -> list[mx.metric.EvalMetric]:
        """The metrics of the training."""
        raise NotImplementedError

    @property
    def val_metrics(self) -> list[mx.metric.EvalMetric]:
        """The metrics of the evaluation."""
        raise NotImplementedError

    def metric_names(self) -> list[str]:
        """Return the names of the metrics in the history of this run."""
        raise NotImplementedError

    def weights_key(self) -> list[int]:
        """Return numbers that change with each batch and step, to detect that weights changed."""
        updates = merged_update_count(optimizer_of(self.trainer)).values()
        return [self.position.batch, sum(updates)]

    def has_evaluated(self, name: str) -> bool:
        """Return whether the last evaluation of the data of that name was of these weights."""
        return self.state.evaluated_at.get(name) == self.weights_key()

    def stop(self, reason: StopReason = StopReason.REQUESTED) -> None:
        """End the run after the current batch: `epoch_end` and `train_end` still fire.

        SVRG's full pass and an evaluation end after their current batch. Outside of `fit`, this
        method does nothing.

        Parameters
        ----------
        reason : StopReason
            The reason that `fit` returns. If there are several stops, the first reason is used.
        """
        # May be called at any time, also by a signal handler; takes effect at the next safe point.
        stops = self.state.stops
        if stops is not None:
            stops.request(reason)

    def stop_after(self, seconds: float) -> None:
        """End the run, as :meth:`stop` does, `seconds` from now.

        The reason is ``StopReason.TIME_LIMIT``. If there are several limits, the earliest applies.
        """
        if self.state.stops is not None:
            self.state.stops.request_after(seconds)

    @property
    def stop_requested(self) -> bool:
        """Whether a stop was requested on this worker; may be read at any time."""
        stops = self.state.stops
        return stops is not None and (stops.is_requested() or self.stop_reason is not None)

    def stop_check(self, what: str, includes_earlier: bool = False) -> Callable[[], bool]:
        """Return a function that says whether to abort a long pass.

        If there are several workers, all of them must call this method, and the function that it
        returns, together.

        Parameters
        ----------
        what : str
            The pass, the same on all workers: ``'the evaluation'``.
        includes_earlier : bool
            Whether every stop that was requested before the pass aborts it. By default, of the
            earlier requests only a signal and a time limit do; later requests always do.
        """
        stops = self.state.stops
        return (lambda: False) if stops is None else stops.check(what, includes_earlier)

    def roll_back(self, reason: str) -> None:
        """Go back to the newest checkpoint after the current event, and continue from there.

        Neither *safe point* nor, inside an epoch, *epoch end* fires; the optimizer still takes
        the step of the current batch. Outside of `fit`, this method does nothing.

        Parameters
        ----------
        reason : str
            A sentence for the log, and for the RuntimeError that `fit` raises if there is no
            CheckpointHandler, or no checkpoint yet.
        """
        if self.state.stops is not None:
            self.state.roll_back_because = reason

    @property
    def progress(self) -> float:
        """The fraction of the run that is done, in [0, 1].

        It counts batches if the length of the data is known, otherwise complete epochs.
        """
        if self.max_batch is not None:
            return min(1.0, self.position.batch / self.max_batch)
        if self.max_epoch is None:
            return 0.0
        batches = self.data.num_batches if self.train_data is not None else None
        part = self.position.batch_in_epoch / batches if batches else 0.0
        return min(1.0, (self.position.epoch + part) / self.max_epoch)
