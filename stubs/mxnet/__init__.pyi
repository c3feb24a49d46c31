"""The names of MXNet 1.9.1 that this package uses, with the types that it relies on."""

from mxnet import (
    _ctypes as _ctypes,
    autograd as autograd,
    base as base,
    context as context,
    contrib as contrib,
    gluon as gluon,
    initializer as init,
    initializer as initializer,
    io as io,
    kvstore as kv,
    kvstore as kvstore,
    lr_scheduler as lr_scheduler,
    metric as metric,
    ndarray as nd,
    ndarray as ndarray,
    numpy as np,
    numpy as numpy,
    onnx as onnx,
    optimizer as optimizer,
    profiler as profiler,
    random as random,
    recordio as recordio,
    registry as registry,
    runtime as runtime,
    symbol as sym,
    symbol as symbol,
    test_utils as test_utils,
    util as util,
)
from mxnet.base import MXNetError as MXNetError
from mxnet.context import (
    Context as Context,
    cpu as cpu,
    current_context as current_context,
    gpu as gpu,
)

__version__: str
