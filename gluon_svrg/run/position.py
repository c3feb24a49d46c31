"""What a run is: where it stands, why it ended, and what it returns."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from gluon_svrg.run.history import History


class StopReason(Enum):
    """Why a run ended."""

    EPOCHS_DONE = "all epochs are done"
    BATCHES_DONE = "all batches are done"
    HANDLER = "a handler asked to stop"
    REQUESTED = "stop() was called"
    NO_IMPROVEMENT = "the monitored figure improved no longer"
    NOT_FINITE = "a loss or a gradient was NaN or infinite"
    SIGNAL = "a signal (Ctrl-C or SIGTERM) asked to stop"
    TIME_LIMIT = "the time limit was reached"


@dataclass
class Position:
    """Where a run stands.

    Attributes
    ----------
    epoch : int
        The number of epochs that are done, which is the number of the one under way.
    batch : int
        The number of batches that are done, in all epochs.
    batch_in_epoch : int
        Those of them in the epoch under way.
    is_in_epoch : bool
        Whether an epoch is under way: from its *epoch begin* until after its *epoch end*.
    is_cut : bool
        Whether a handler has asked for no more batches in the epoch under way.
    """

    epoch: int = 0
    batch: int = 0
    batch_in_epoch: int = 0
    is_in_epoch: bool = False
    is_cut: bool = False

    def begin_epoch(self) -> None:
        """Go on to the beginning of an epoch."""
        self.batch_in_epoch = 0
        self.is_in_epoch = True

    def end_batch(self) -> None:
        """Go on by a batch."""
        self.batch += 1
        self.batch_in_epoch += 1

    def end_epoch(self) -> None:
        """Go on to the end of the epoch."""
        self.epoch += 1
        self.batch_in_epoch = 0
        self.is_in_epoch = self.is_cut = False


@dataclass(frozen=True)
class FitResult:
    """What :meth:`Estimator.fit` returns.

    Attributes
    ----------
    stop_reason : StopReason
        Why the run ended.
    epochs_run : int
        The number of epochs that were begun, a last one that was cut short included; after a
        resume, those before it as well.
    history : History
        A list with one row (a dict) an epoch: see :class:`HistoryHandler`.
    """

    stop_reason: StopReason
    epochs_run: int
    history: History
