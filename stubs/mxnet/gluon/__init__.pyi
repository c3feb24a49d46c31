from mxnet.gluon import contrib as contrib
from mxnet.gluon import data as data
from mxnet.gluon import loss as loss
from mxnet.gluon import nn as nn
from mxnet.gluon import rnn as rnn
from mxnet.gluon import utils as utils
from mxnet.gluon.block import (
    Block as Block,
)
from mxnet.gluon.block import (
    HybridBlock as HybridBlock,
)
from mxnet.gluon.block import (
    SymbolBlock as SymbolBlock,
)
from mxnet.gluon.parameter import (
    Constant as Constant,
)
from mxnet.gluon.parameter import (
    DeferredInitializationError as DeferredInitializationError,
)
from mxnet.gluon.parameter import (
    Parameter as Parameter,
)
from mxnet.gluon.parameter import (
    ParameterDict as ParameterDict,
)
from mxnet.gluon.trainer import Trainer as Trainer
