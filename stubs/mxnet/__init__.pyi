"""The names of MXNet 1.9.1 that this package uses, with the types that it relies on."""

from mxnet import _ctypes as _ctypes
from mxnet import autograd as autograd
from mxnet import base as base
from mxnet import context as context
from mxnet import contrib as contrib
from mxnet import gluon as gluon
from mxnet import initializer as init
from mxnet import initializer as initializer
from mxnet import io as io
from mxnet import kvstore as kv
from mxnet import kvstore as kvstore
from mxnet import lr_scheduler as lr_scheduler
from mxnet import metric as metric
from mxnet import ndarray as nd
from mxnet import ndarray as ndarray
from mxnet import numpy as np
from mxnet import numpy as numpy
from mxnet import onnx as onnx
from mxnet import optimizer as optimizer
from mxnet import profiler as profiler
from mxnet import random as random
from mxnet import recordio as recordio
from mxnet import registry as registry
from mxnet import runtime as runtime
from mxnet import symbol as sym
from mxnet import symbol as symbol
from mxnet import test_utils as test_utils
from mxnet import util as util
from mxnet.base import MXNetError as MXNetError
from mxnet.context import Context as Context
from mxnet.context import cpu as cpu
from mxnet.context import current_context as current_context
from mxnet.context import gpu as gpu

__version__: str
