import logging
from collections.abc import Sequence
from typing import Any

from mxnet.context import Context
from mxnet.gluon.block import Block
from mxnet.gluon.contrib.estimator.batch_processor import BatchProcessor
from mxnet.gluon.contrib.estimator.event_handler import EventHandler
from mxnet.gluon.loss import Loss
from mxnet.gluon.trainer import Trainer
from mxnet.initializer import Initializer
from mxnet.metric import EvalMetric

class Estimator:
    net: Block
    loss: Loss
    val_net: Block
    val_loss: Loss
    trainer: Trainer
    context: list[Context]
    logger: logging.Logger
    batch_processor: BatchProcessor
    max_epoch: int | None
    max_batch: int | None
    batch_axis: int
    _train_metrics: list[EvalMetric]
    _val_metrics: list[EvalMetric]
    def __init__(
        self,
        net: Block,
        loss: Loss,
        train_metrics: EvalMetric | Sequence[EvalMetric] | None = None,
        val_metrics: EvalMetric | Sequence[EvalMetric] | None = None,
        initializer: Initializer | None = None,
        trainer: Trainer | None = None,
        context: Context | Sequence[Context] | None = None,
        val_net: Block | None = None,
        val_loss: Loss | None = None,
        batch_processor: BatchProcessor | None = None,
    ) -> None: ...
    @property
    def train_metrics(self) -> list[EvalMetric]: ...
    @property
    def val_metrics(self) -> list[EvalMetric]: ...
    def evaluate(
        self,
        val_data: Any,
        batch_axis: int = 0,
        event_handlers: EventHandler | Sequence[EventHandler] | None = None,
    ) -> Any: ...
    def fit(
        self,
        train_data: Any,
        val_data: Any = None,
        epochs: int | None = None,
        event_handlers: EventHandler | Sequence[EventHandler] | None = None,
        batches: int | None = None,
        batch_axis: int = 0,
    ) -> Any: ...
    def _check_context(self, context: Context | list[Context] | None) -> list[Context]: ...
    def _add_default_training_metrics(self) -> None: ...
    def _add_validation_metrics(self) -> None: ...
    def _prepare_default_handlers(
        self, val_data: Any, event_handlers: Any
    ) -> list[EventHandler]: ...
