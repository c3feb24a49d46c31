from mxnet.gluon.contrib.estimator import event_handler as event_handler
from mxnet.gluon.contrib.estimator import utils as utils
from mxnet.gluon.contrib.estimator.batch_processor import BatchProcessor as BatchProcessor
from mxnet.gluon.contrib.estimator.estimator import Estimator as Estimator
from mxnet.gluon.contrib.estimator.event_handler import (
    BatchBegin as BatchBegin,
)
from mxnet.gluon.contrib.estimator.event_handler import (
    BatchEnd as BatchEnd,
)
from mxnet.gluon.contrib.estimator.event_handler import (
    CheckpointHandler as CheckpointHandler,
)
from mxnet.gluon.contrib.estimator.event_handler import (
    EarlyStoppingHandler as EarlyStoppingHandler,
)
from mxnet.gluon.contrib.estimator.event_handler import (
    EpochBegin as EpochBegin,
)
from mxnet.gluon.contrib.estimator.event_handler import (
    EpochEnd as EpochEnd,
)
from mxnet.gluon.contrib.estimator.event_handler import (
    EventHandler as EventHandler,
)
from mxnet.gluon.contrib.estimator.event_handler import (
    GradientUpdateHandler as GradientUpdateHandler,
)
from mxnet.gluon.contrib.estimator.event_handler import (
    LoggingHandler as LoggingHandler,
)
from mxnet.gluon.contrib.estimator.event_handler import (
    MetricHandler as MetricHandler,
)
from mxnet.gluon.contrib.estimator.event_handler import (
    StoppingHandler as StoppingHandler,
)
from mxnet.gluon.contrib.estimator.event_handler import (
    TrainBegin as TrainBegin,
)
from mxnet.gluon.contrib.estimator.event_handler import (
    TrainEnd as TrainEnd,
)
from mxnet.gluon.contrib.estimator.event_handler import (
    ValidationHandler as ValidationHandler,
)
