from mxnet.gluon import (
    contrib as contrib,
    data as data,
    loss as loss,
    nn as nn,
    rnn as rnn,
    utils as utils,
)
from mxnet.gluon.block import (
    Block as Block,
    HybridBlock as HybridBlock,
    SymbolBlock as SymbolBlock,
)
from mxnet.gluon.parameter import (
    Constant as Constant,
    DeferredInitializationError as DeferredInitializationError,
    Parameter as Parameter,
    ParameterDict as ParameterDict,
)
from mxnet.gluon.trainer import Trainer as Trainer
