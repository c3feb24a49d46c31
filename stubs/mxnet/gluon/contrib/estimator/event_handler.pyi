from collections.abc import Callable, Sequence
from typing import Any

from mxnet.metric import EvalMetric

# In every event the estimator is MXNet's own, or any class that has what the handler asks for.

class EventHandler: ...

class TrainBegin(EventHandler):
    def train_begin(self, estimator: Any, *args: Any, **kwargs: Any) -> None: ...

class TrainEnd(EventHandler):
    def train_end(self, estimator: Any, *args: Any, **kwargs: Any) -> None: ...

class EpochBegin(EventHandler):
    def epoch_begin(self, estimator: Any, *args: Any, **kwargs: Any) -> None: ...

class EpochEnd(EventHandler):
    def epoch_end(self, estimator: Any, *args: Any, **kwargs: Any) -> bool | None: ...

class BatchBegin(EventHandler):
    def batch_begin(self, estimator: Any, *args: Any, **kwargs: Any) -> None: ...

class BatchEnd(EventHandler):
    def batch_end(self, estimator: Any, *args: Any, **kwargs: Any) -> bool | None: ...

class StoppingHandler(TrainBegin, BatchEnd, EpochEnd):
    max_epoch: int | None
    max_batch: int | None
    current_batch: int
    current_epoch: int
    stop_training: bool
    def __init__(self, max_epoch: int | None = None, max_batch: int | None = None) -> None: ...

class MetricHandler(EpochBegin, BatchEnd):
    metrics: list[EvalMetric]
    priority: float
    def __init__(
        self, metrics: EvalMetric | Sequence[EvalMetric], priority: float = -1000
    ) -> None: ...

class ValidationHandler(TrainBegin, BatchEnd, EpochEnd):
    val_data: Any
    eval_fn: Callable[..., Any] | None
    epoch_period: int | None
    batch_period: int | None
    current_batch: int
    current_epoch: int
    priority: float
    event_handlers: Any
    def __init__(
        self,
        val_data: Any,
        eval_fn: Callable[..., Any] | None,
        epoch_period: int | None = 1,
        batch_period: int | None = None,
        priority: float = -1000,
        event_handlers: Any = None,
    ) -> None: ...

class LoggingHandler(TrainBegin, TrainEnd, EpochBegin, EpochEnd, BatchBegin, BatchEnd):
    metrics: list[EvalMetric]
    batch_index: int
    current_epoch: int
    processed_samples: int
    priority: float
    log_interval: int | str
    log_interval_time: float
    train_start: float
    epoch_start: float
    batch_start: float
    def __init__(
        self,
        log_interval: int | str = "epoch",
        metrics: EvalMetric | Sequence[EvalMetric] | None = None,
        priority: float = ...,
    ) -> None: ...

class CheckpointHandler(TrainBegin, BatchEnd, EpochEnd):
    model_dir: str
    model_prefix: str
    monitor: EvalMetric | None
    save_best: bool
    epoch_period: int | None
    batch_period: int | None
    current_batch: int
    current_epoch: int
    max_checkpoints: int
    resume_from_checkpoint: bool
    saved_checkpoints: list[str]
    best: float
    trained_epoch: int
    trained_batch: int
    def __init__(
        self,
        model_dir: str,
        model_prefix: str = "model",
        monitor: EvalMetric | None = None,
        verbose: int = 0,
        save_best: bool = False,
        mode: str = "auto",
        epoch_period: int | None = 1,
        batch_period: int | None = None,
        max_checkpoints: int = 5,
        resume_from_checkpoint: bool = False,
    ) -> None: ...

class EarlyStoppingHandler(TrainBegin, EpochEnd, TrainEnd):
    monitor: EvalMetric
    baseline: float | None
    patience: int
    min_delta: float
    wait: int
    stopped_epoch: int
    current_epoch: int
    stop_training: bool
    best: float
    def __init__(
        self,
        monitor: EvalMetric,
        min_delta: float = 0,
        patience: int = 0,
        mode: str = "auto",
        baseline: float | None = None,
    ) -> None: ...

class GradientUpdateHandler(BatchEnd):
    priority: float
    def __init__(self, priority: float = -2000) -> None: ...
