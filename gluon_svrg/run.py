"""Run: how far it is, and why it ended."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from gluon_svrg.workers import Single, Workers
from mxnet.gluon.contrib import estimator as mx_estimator
from mxnet.gluon.contrib.estimator.event_handler import EventHandler

if TYPE_CHECKING:
    from gluon_svrg.data.training_data import TrainingData


LOGGER = "gluon_svrg.estimator"
"""The name of the logger of all runs."""

Verbose: TypeAlias = Literal["auto", 0, 1, 2]
"""0: nothing; 1: bars and lines; 2: lines; 'auto': lines, and bars if they can be seen."""


class StopReason(Enum):
    """Why a run ended."""

    EPOCHS_DONE = "all epochs are done"
    BATCHES_DONE = "all batches are done"
    HANDLER = "a handler asked to stop"
    REQUESTED = "stop() was called"
    NO_IMPROVEMENT = "the monitored figure improved no longer"
    NOT_FINITE = "a loss, a gradient or a monitored figure was NaN or infinite"
    SIGNAL = "a signal (such as Ctrl-C or SIGTERM) asked to stop"
    TIME_LIMIT = "the time limit was reached"


@dataclass
class Position:
    """How far a run is.

    Attributes
    ----------
    epoch : int
        How many epochs are done, which is also the number of the current epoch.
    batch : int
        How many batches are done, in all epochs.
    batch_in_epoch : int
        How many of them in the current epoch.
    is_in_epoch : bool
        Whether the run is inside an epoch: from *epoch begin* until after *epoch end*.
    is_cut : bool
        Whether a handler has ended the current epoch early.
    heard : list of str
        The classes of the handlers that have got the current epoch's *epoch end* already, if a stop
        interrupted that event.
    """

    epoch: int = 0
    batch: int = 0
    batch_in_epoch: int = 0
    is_in_epoch: bool = False
    is_cut: bool = False
    heard: list[str] = field(default_factory=list)

    def at_epoch(self, epoch: int, num_batches: int | None) -> Position:
        """Return the position before `epoch`; if it is elsewhere, with `num_batches` per epoch."""
        is_here = epoch == self.epoch and not self.is_in_epoch
        return Position(epoch, self.batch if epoch and is_here else epoch * (num_batches or 0))

    def begin_epoch(self) -> None:
        """Move to the beginning of an epoch."""
        self.batch_in_epoch = 0
        self.is_in_epoch = True

    def end_batch(self) -> None:
        """Move on by one batch."""
        self.batch += 1
        self.batch_in_epoch += 1

    def end_epoch(self) -> None:
        """Move to the end of the epoch."""
        self.epoch += 1
        self.batch_in_epoch = 0
        self.is_in_epoch = self.is_cut = False
        self.heard = []

    def state_dict(self) -> dict[str, Any]:
        """Return the fields; without an empty `heard`."""
        return {name: value for name, value in asdict(self).items() if name != "heard" or value}


class RunWithPosition:
    """Base class of runs that know their data and position, with defaults for MXNet's Estimator.

    Attributes
    ----------
    data : TrainingData
        The training data.
    position : Position
        How many epochs and batches are done.
    max_epoch, max_batch : int or None
        The length of the run: exactly one of them is given.
    figures : dict of str to number
        Figures for the history's row of the current epoch; MXNet's Estimator has no history.
    handlers : iterable of EventHandler
        The handlers of the run; empty for MXNet's Estimator.
    verbose : 'auto', 0, 1 or 2
        How much is shown: see :meth:`Estimator.fit`.
    workers : Workers
        The processes that train together; MXNet's Estimator has one.
    batch_axis : int
        The axis of the samples.
    stop_requested : bool
        Whether the run is to end; always False for MXNet's Estimator.
    """

    data: TrainingData
    position: Position
    max_epoch: int | None
    max_batch: int | None
    figures: dict[str, Any]
    handlers: Iterable[EventHandler]
    verbose: Verbose = "auto"
    workers: Workers = Single()
    batch_axis: int = 0

    def should_stop_together(self, label: str) -> bool:
        """Return whether a stop was requested on any worker; all workers call this together."""
        return self.workers.any(self.stop_requested, label)

    @property
    def stop_requested(self) -> bool:
        """See the class."""
        return False

    def completed_fraction(self, extra_batches: int = 0) -> float:
        """Return the fraction of the run that is done, in [0, 1], for a coefficient schedule.

        In a run of `epochs` it counts whole epochs; :attr:`Estimator.progress` counts batches, too.
        `extra_batches` more batches count as done: 1 at *batch end*.
        """
        if self.max_epoch:
            return self.position.epoch / self.max_epoch
        return (self.position.batch + extra_batches) / (self.max_batch or 1)


def require_estimator(handler: EventHandler, estimator: object) -> None:
    """Raise ValueError if `estimator` is MXNet's, which does not know its position."""
    if isinstance(estimator, mx_estimator.Estimator) and not isinstance(estimator, RunWithPosition):
        raise ValueError(
            f"{type(handler).__name__} does not work with {type(estimator).__module__}."
            f"{type(estimator).__name__}: use gluon_svrg.Estimator, which takes the same arguments"
        )
