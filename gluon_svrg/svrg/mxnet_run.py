"""MXNetRun: data and position of a run of MXNet's own Estimator, which keeps neither."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gluon_svrg.run import Position, RunWithPosition

if TYPE_CHECKING:
    from gluon_svrg.data.training_data import TrainingData


class MXNetRun(RunWithPosition):
    """A run of MXNet's Estimator, which keeps neither its data nor its position.

    The handler that creates it advances its `position`.

    Parameters
    ----------
    estimator : mxnet.gluon.contrib.estimator.Estimator
        The estimator.
    data : TrainingData
        The training data that its `fit` got.
    """

    def __init__(self, estimator: Any, data: TrainingData) -> None:
        self.data = data
        self.position = Position()
        self.figures = {}
        self.handlers = ()
        self.max_epoch = estimator.max_epoch
        self.max_batch = estimator.max_batch


def run_with_position(estimator: object, data: TrainingData | None) -> RunWithPosition:
    """Return the estimator, wrapped in an MXNetRun if it is MXNet's own.

    Parameters
    ----------
    estimator : Estimator
        This package's or MXNet's.
    data : TrainingData or None
        The training data, if the handler has them.

    Raises
    ------
    ValueError
        If the estimator is MXNet's, and `data` is None.
    """
    if isinstance(estimator, RunWithPosition):
        return estimator
    if data is None:
        raise ValueError(
            f"{type(estimator).__module__}.{type(estimator).__name__} does not give SVRGHandler "
            "the training data: pass them, SVRGHandler(train_data=...)"
        )
    return MXNetRun(estimator, data)
