"""SVRG, and a training loop to run it in, for Gluon (Apache MXNet 1.9.1); linear models without it.

Nothing here imports MXNet before a name is asked for that needs it.
"""

import sys as _sys
from typing import TYPE_CHECKING as _TYPE_CHECKING

from gluon_svrg import (
    _compat as _compat,  # before MXNet is imported
    _lazy,
)

if _TYPE_CHECKING:
    from gluon_svrg import data as data, deploy as deploy, schedules as schedules
    from gluon_svrg.estimator import Estimator
    from gluon_svrg.finders.batch_size import BatchSizeTest, find_batch_size
    from gluon_svrg.finders.learning_rate import LearningRateTest, find_learning_rate
    from gluon_svrg.handlers.checkpoint import CheckpointHandler
    from gluon_svrg.handlers.early_stopping import EarlyStoppingHandler
    from gluon_svrg.handlers.ema import EMAHandler
    from gluon_svrg.handlers.gradient_update import GradientUpdateHandler
    from gluon_svrg.handlers.history import HistoryHandler
    from gluon_svrg.handlers.history_file import HistoryFileHandler
    from gluon_svrg.handlers.learning_rate import AutoLearningRateHandler
    from gluon_svrg.handlers.metric import MetricHandler
    from gluon_svrg.handlers.mlflow import MLflowHandler
    from gluon_svrg.handlers.nan_guard import NaNGuardHandler
    from gluon_svrg.handlers.profiler import ProfilerHandler
    from gluon_svrg.handlers.progress import ProgressHandler
    from gluon_svrg.handlers.random_state import RandomStateHandler
    from gluon_svrg.handlers.sanity_check import SanityCheckHandler
    from gluon_svrg.handlers.schedule import PlateauHandler, ScheduleHandler
    from gluon_svrg.handlers.signal import SignalHandler
    from gluon_svrg.handlers.svrg import SVRGHandler
    from gluon_svrg.handlers.tensorboard import TensorBoardHandler
    from gluon_svrg.handlers.time_limit import TimeLimitHandler
    from gluon_svrg.handlers.validation import ValidationHandler
    from gluon_svrg.handlers.variance import VarianceHandler
    from gluon_svrg.machine.cpu_tuning import tune_for_cpu
    from gluon_svrg.machine.versions import show_versions
    from gluon_svrg.optimizer import LARS, MARS, NAG, AdamW, Signum
    from gluon_svrg.run.batch_processor import BatchProcessor
    from gluon_svrg.run.history import History
    from gluon_svrg.run.monitor import Monitor
    from gluon_svrg.run.position import FitResult, Position, StopReason
    from gluon_svrg.seeding import seed_everything
    from gluon_svrg.summary import summary as summary
    from gluon_svrg.svrg.coefficient import OptimalCoefficient, linear_decay
    from gluon_svrg.svrg.snapshot import Snapshot
    from gluon_svrg.trainer import SVRGTrainer

__version__ = _compat.version()

__all__ = [
    "LARS",
    "MARS",
    "NAG",
    "AdamW",
    "AutoLearningRateHandler",
    "BatchProcessor",
    "BatchSizeTest",
    "CheckpointHandler",
    "EMAHandler",
    "EarlyStoppingHandler",
    "Estimator",
    "FitResult",
    "GradientUpdateHandler",
    "History",
    "HistoryFileHandler",
    "HistoryHandler",
    "LearningRateTest",
    "MLflowHandler",
    "MetricHandler",
    "Monitor",
    "NaNGuardHandler",
    "OptimalCoefficient",
    "PlateauHandler",
    "Position",
    "ProfilerHandler",
    "ProgressHandler",
    "RandomStateHandler",
    "SVRGHandler",
    "SVRGTrainer",
    "SanityCheckHandler",
    "ScheduleHandler",
    "SignalHandler",
    "Signum",
    "Snapshot",
    "StopReason",
    "TensorBoardHandler",
    "TimeLimitHandler",
    "ValidationHandler",
    "VarianceHandler",
    "find_batch_size",
    "find_learning_rate",
    "linear_decay",
    "seed_everything",
    "show_versions",
    "summary",
    "tune_for_cpu",
]

_NAMES = {
    "AdamW": "gluon_svrg.optimizer",
    "AutoLearningRateHandler": "gluon_svrg.handlers.learning_rate",
    "BatchProcessor": "gluon_svrg.run.batch_processor",
    "BatchSizeTest": "gluon_svrg.finders.batch_size",
    "CheckpointHandler": "gluon_svrg.handlers.checkpoint",
    "EMAHandler": "gluon_svrg.handlers.ema",
    "EarlyStoppingHandler": "gluon_svrg.handlers.early_stopping",
    "Estimator": "gluon_svrg.estimator",
    "FitResult": "gluon_svrg.run.position",
    "GradientUpdateHandler": "gluon_svrg.handlers.gradient_update",
    "History": "gluon_svrg.run.history",
    "HistoryHandler": "gluon_svrg.handlers.history",
    "LARS": "gluon_svrg.optimizer",
    "LearningRateTest": "gluon_svrg.finders.learning_rate",
    "MARS": "gluon_svrg.optimizer",
    "MLflowHandler": "gluon_svrg.handlers.mlflow",
    "HistoryFileHandler": "gluon_svrg.handlers.history_file",
    "MetricHandler": "gluon_svrg.handlers.metric",
    "Monitor": "gluon_svrg.run.monitor",
    "NAG": "gluon_svrg.optimizer",
    "NaNGuardHandler": "gluon_svrg.handlers.nan_guard",
    "OptimalCoefficient": "gluon_svrg.svrg.coefficient",
    "PlateauHandler": "gluon_svrg.handlers.schedule",
    "Position": "gluon_svrg.run.position",
    "ProfilerHandler": "gluon_svrg.handlers.profiler",
    "ProgressHandler": "gluon_svrg.handlers.progress",
    "RandomStateHandler": "gluon_svrg.handlers.random_state",
    "SVRGHandler": "gluon_svrg.handlers.svrg",
    "SVRGTrainer": "gluon_svrg.trainer",
    "SanityCheckHandler": "gluon_svrg.handlers.sanity_check",
    "ScheduleHandler": "gluon_svrg.handlers.schedule",
    "SignalHandler": "gluon_svrg.handlers.signal",
    "Signum": "gluon_svrg.optimizer",
    "Snapshot": "gluon_svrg.svrg.snapshot",
    "StopReason": "gluon_svrg.run.position",
    "TensorBoardHandler": "gluon_svrg.handlers.tensorboard",
    "TimeLimitHandler": "gluon_svrg.handlers.time_limit",
    "ValidationHandler": "gluon_svrg.handlers.validation",
    "VarianceHandler": "gluon_svrg.handlers.variance",
    "find_batch_size": "gluon_svrg.finders.batch_size",
    "find_learning_rate": "gluon_svrg.finders.learning_rate",
    "linear_decay": "gluon_svrg.svrg.coefficient",
    "seed_everything": "gluon_svrg.seeding",
    "show_versions": "gluon_svrg.machine.versions",
    "summary": "gluon_svrg.summary",
    "tune_for_cpu": "gluon_svrg.machine.cpu_tuning",
}
"""Where each of them stands."""

_OLD_NAMES = {"LogHandler": ("gluon_svrg.handlers.history_file", "HistoryFileHandler")}
"""The module and the new name of each name that has changed."""

if not _TYPE_CHECKING:
    __getattr__, __dir__ = _lazy.attach(__name__, _NAMES, _OLD_NAMES)
    _sys.modules[__name__].__class__ = _lazy.PackageWithFunctions
