"""Where a run stands and on what data, which MXNet's own Estimator does not tell its handlers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from gluon_svrg.run.position import Position
from mxnet.gluon.contrib.estimator.event_handler import EventHandler

if TYPE_CHECKING:
    from gluon_svrg.data.training_data import TrainingData


class Located:
    """A run that tells where it stands.

    Attributes
    ----------
    data : TrainingData
        The training data.
    position : Position
        The epochs and batches that are done.
    max_epoch, max_batch : int or None
        How long the run is to be: exactly one of them is given.
    figures : dict of str to number
        What is added to the row of the epoch; of MXNet's Estimator, which has no rows, nobody asks.
    handlers : iterable of EventHandler
        Those of the run; none if it does not tell them.
    """

    data: TrainingData
    position: Position
    max_epoch: int | None
    max_batch: int | None
    figures: dict[str, Any]
    handlers: Iterable[EventHandler]

    def note_epoch_begin(self) -> None:
        """Hear from a handler that an epoch begins; who knows it already does nothing."""

    def note_batch_end(self) -> None:
        """Hear from a handler that a batch ends."""

    def note_epoch_end(self) -> None:
        """Hear from a handler that an epoch ends."""

    @property
    def part_done(self) -> float:
        """The fraction of the run that is done, in [0, 1], by whole epochs or by batches."""
        if self.max_epoch:
            return self.position.epoch / self.max_epoch
        return self.position.batch / (self.max_batch or 1)


class MXNetRun(Located):
    """A run of MXNet's Estimator, which keeps neither its data nor its position.

    The handler that makes it tells it what happens.

    Parameters
    ----------
    estimator : mxnet.gluon.contrib.estimator.Estimator
        Whose run it is.
    data : TrainingData
        What its `fit` was given.
    """

    def __init__(self, estimator: Any, data: TrainingData) -> None:
        self.data = data
        self.position = Position()
        self.figures = {}
        self.handlers = ()
        self.max_epoch = estimator.max_epoch
        self.max_batch = estimator.max_batch

    def note_epoch_begin(self) -> None:
        """Count the epoch as begun."""
        self.position.begin_epoch()

    def note_batch_end(self) -> None:
        """Count the batch."""
        self.position.end_batch()

    def note_epoch_end(self) -> None:
        """Count the epoch."""
        self.position.end_epoch()


def located(estimator: object, data: TrainingData | None) -> Located:
    """Return who tells where a run stands: the estimator itself, or an MXNetRun.

    Parameters
    ----------
    estimator : Estimator
        This package's or MXNet's.
    data : TrainingData or None
        The training data, if the handler was given them.

    Raises
    ------
    ValueError
        If it is MXNet's, and there are no data.
    """
    if isinstance(estimator, Located):
        return estimator
    if data is None:
        raise ValueError(
            f"SVRGHandler does not know the training data: {type(estimator).__module__}."
            f"{type(estimator).__name__} does not tell it; give SVRGHandler(train_data=...)"
        )
    return MXNetRun(estimator, data)
