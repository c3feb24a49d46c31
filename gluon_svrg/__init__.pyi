"""The public names of this package; each is imported when it is first asked for."""

from gluon_svrg import data as data, deploy as deploy, schedules as schedules
from gluon_svrg.batch.processor import BatchProcessor as BatchProcessor
from gluon_svrg.checkpoint.handler import CheckpointHandler as CheckpointHandler
from gluon_svrg.checkpoint.random_state import RandomStateHandler as RandomStateHandler
from gluon_svrg.cpu_tuning import tune_for_cpu as tune_for_cpu
from gluon_svrg.estimator import Estimator as Estimator
from gluon_svrg.evaluation.handler import ValidationHandler as ValidationHandler
from gluon_svrg.handlers.early_stopping import EarlyStoppingHandler as EarlyStoppingHandler
from gluon_svrg.handlers.ema import EMAHandler as EMAHandler
from gluon_svrg.handlers.function import on as on
from gluon_svrg.handlers.gradient_update import GradientUpdateHandler as GradientUpdateHandler
from gluon_svrg.handlers.nan_guard import NaNGuardHandler as NaNGuardHandler
from gluon_svrg.handlers.sanity_check import SanityCheckHandler as SanityCheckHandler
from gluon_svrg.handlers.schedule import (
    PlateauHandler as PlateauHandler,
    ScheduleHandler as ScheduleHandler,
)
from gluon_svrg.handlers.signal import SignalHandler as SignalHandler
from gluon_svrg.handlers.time_limit import TimeLimitHandler as TimeLimitHandler
from gluon_svrg.metrics.epoch_metric import EpochMetric as EpochMetric
from gluon_svrg.metrics.handler import MetricHandler as MetricHandler
from gluon_svrg.metrics.monitor import Monitor as Monitor
from gluon_svrg.optimizer import (
    LARS as LARS,
    MARS as MARS,
    NAG as NAG,
    AdamW as AdamW,
    Signum as Signum,
)
from gluon_svrg.reporting.history import History as History
from gluon_svrg.reporting.history_file import HistoryFileHandler as HistoryFileHandler
from gluon_svrg.reporting.history_handler import HistoryHandler as HistoryHandler
from gluon_svrg.reporting.mlflow import MLflowHandler as MLflowHandler
from gluon_svrg.reporting.profiler import ProfilerHandler as ProfilerHandler
from gluon_svrg.reporting.progress import ProgressHandler as ProgressHandler
from gluon_svrg.reporting.result import FitResult as FitResult
from gluon_svrg.reporting.tensorboard import TensorBoardHandler as TensorBoardHandler
from gluon_svrg.reporting.versions import show_versions as show_versions
from gluon_svrg.rng import seed_everything as seed_everything
from gluon_svrg.run import Phase as Phase, Position as Position
from gluon_svrg.stops import StopReason as StopReason
from gluon_svrg.summary import summary as summary
from gluon_svrg.svrg.coefficient import (
    OptimalCoefficient as OptimalCoefficient,
    linear_decay as linear_decay,
)
from gluon_svrg.svrg.handler import SVRGHandler as SVRGHandler
from gluon_svrg.svrg.snapshot import Snapshot as Snapshot
from gluon_svrg.svrg.trainer import SVRGTrainer as SVRGTrainer
from gluon_svrg.svrg.variance_handler import VarianceHandler as VarianceHandler
from gluon_svrg.tuning.batch_size import (
    BatchSizeTest as BatchSizeTest,
    find_batch_size as find_batch_size,
)
from gluon_svrg.tuning.learning_rate import (
    LearningRateTest as LearningRateTest,
    find_learning_rate as find_learning_rate,
)

__version__: str
