"""Small problems for the tests: data, a network and its NumPy gradient."""

from typing import Any, NamedTuple

import mxnet as mx
import numpy as np
import oracle
from gluon_svrg.events import BatchBegin, BatchEnd, GradientReady
from mxnet import autograd, gluon
from mxnet.gluon import nn


def has_bfloat16():
    """Return whether oneDNN multiplies matrices of bfloat16 here: it wants AVX-512."""
    kind = np.dtype([("bfloat16", np.uint16)])  # MXNet's
    x, weight = (mx.nd.amp_cast(mx.nd.ones((2, 2)), dtype=kind) for _ in range(2))
    try:
        mx.nd.FullyConnected(x, weight, no_bias=True, num_hidden=2).wait_to_read()
    except mx.base.MXNetError:
        return False
    return True


ONE, TWO = [mx.cpu(0)], [mx.cpu(0), mx.cpu(1)]


class Problem(NamedTuple):
    """A problem as NumPy batches, its network, loss, and NumPy gradient."""

    batches: list
    net: gluon.Block
    loss: Any
    gradient: Any

    @property
    def params(self):
        """The network's parameters as NumPy arrays."""
        return weights_of(self.net)

    def ndarrays(self, dtype="float64"):
        """The batches as NDArrays; in MXNet's NumPy mode as its arrays."""
        return [tuple(array(part, dtype) for part in batch) for batch in self.batches]


def array(values, dtype="float32", ctx=None):
    """Return an array of the kind that MXNet is set to."""
    make = mx.np.array if mx.util.is_np_array() else mx.nd.array
    return make(values, dtype=dtype, ctx=ctx)


def weights_of(net):
    """Return copies of the parameters, in their order, as NumPy arrays."""
    return [param.data(param.list_ctx()[0]).asnumpy() for param in net.collect_params().values()]


def make(kind, contexts=ONE, dtype="float64", samples=37, batch_size=8, seed=0):
    """Return a problem of `kind`: 'linear', 'softmax' or 'mlp'; its last batch is smaller."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(samples, 6))
    y = rng.normal(size=samples) if kind == "linear" else rng.integers(0, 3, samples).astype(float)
    batches = [
        (x[i : i + batch_size], y[i : i + batch_size]) for i in range(0, samples, batch_size)
    ]
    net = nn.HybridSequential()
    if kind == "mlp":
        net.add(nn.Dense(5, activation="tanh", in_units=6), nn.Dense(3, in_units=5))
    else:
        net.add(nn.Dense(1 if kind == "linear" else 3, in_units=6))
    mx.random.seed(seed)
    initialize(net, mx.init.Normal(0.5), contexts, dtype)
    loss = gluon.loss.L2Loss() if kind == "linear" else gluon.loss.SoftmaxCELoss()
    return Problem(batches, net, loss, getattr(oracle, f"{kind}_gradient"))


def initialize(net, init, contexts, dtype="float32"):
    """Initialise a network of this dtype; in NumPy mode MXNet's initializers draw float32 only."""
    if not mx.util.is_np_array():
        net.cast(dtype)
    net.initialize(init, ctx=list(contexts))
    if mx.util.is_np_array():
        net.cast(dtype)


def backward_of(net, loss):
    """Return the forward and backward pass of one batch on one context."""

    def backward(batch):
        data, label = batch
        with autograd.record():
            value = loss(net(data), label)
        value.backward()
        return value

    return backward


class Recorder(BatchBegin, GradientReady, BatchEnd):
    """Keeps the weights after each step and the gradients that the step used."""

    priority = -1500  # after the step, which has -2000

    def __init__(self):
        self.weights = []
        self.gradients = []

    def gradient_ready(self, estimator, *args, **kwargs):
        self.gradients.append(
            [
                sum(grad.asnumpy() for grad in param.list_grad())
                for param in estimator.net.collect_params().values()
                if param.grad_req != "null"
            ]
        )

    def batch_end(self, estimator, *args, **kwargs):
        self.weights.append(weights_of(estimator.net))


class Scripted(mx.metric.EvalMetric):
    """A metric whose value in each epoch is written down (None: NaN); `epoch` is for the test."""

    def __init__(self, values, name="figure"):
        self.values = values
        self.epoch = 0
        super().__init__(name)

    def update(self, labels, preds):
        pass

    def get(self):
        value = self.values[self.epoch]
        return self.name, float("nan") if value is None else value


def relative_difference(ours, theirs):
    """Return the largest difference of two lists of arrays, relative to the largest value.

    Bounds on it in the tests: 1e-14 where float64 rounds once or twice, 1e-12 over a few dozen
    steps whose sums are taken in another order, 1e-10 for whole runs against NumPy.
    """
    return max(np.abs(a - b).max() / np.abs(b).max() for a, b in zip(ours, theirs, strict=True))


def same(ours, theirs):
    """Return whether two lists of arrays are equal, bit for bit."""
    return all(np.array_equal(a, b) for a, b in zip(ours, theirs, strict=True))
