from mxnet.gluon.contrib.estimator import event_handler as event_handler, utils as utils
from mxnet.gluon.contrib.estimator.batch_processor import BatchProcessor as BatchProcessor
from mxnet.gluon.contrib.estimator.estimator import Estimator as Estimator
from mxnet.gluon.contrib.estimator.event_handler import (
    BatchBegin as BatchBegin,
    BatchEnd as BatchEnd,
    CheckpointHandler as CheckpointHandler,
    EarlyStoppingHandler as EarlyStoppingHandler,
    EpochBegin as EpochBegin,
    EpochEnd as EpochEnd,
    EventHandler as EventHandler,
    GradientUpdateHandler as GradientUpdateHandler,
    LoggingHandler as LoggingHandler,
    MetricHandler as MetricHandler,
    StoppingHandler as StoppingHandler,
    TrainBegin as TrainBegin,
    TrainEnd as TrainEnd,
    ValidationHandler as ValidationHandler,
)
