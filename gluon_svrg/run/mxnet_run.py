"""MXNetRun: data and position of a run, which MXNet's own Estimator does not tell its handlers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gluon_svrg.run.position import Located, Position

if TYPE_CHECKING:
    from gluon_svrg.data.training_data import TrainingData


class MXNetRun(Located):
    """A run of MXNet's Estimator, which keeps neither its data nor its position.

    The handler that makes it moves its `position` on.

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
