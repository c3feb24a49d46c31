"""Problems with row_sparse gradients, and SVRG on them in naive NumPy."""

from typing import Any, NamedTuple

import mxnet as mx
import numpy as np
import oracle
from gluon_svrg._mxnet.block import full_data
from gluon_svrg.events import BatchEnd
from mxnet import gluon
from mxnet.gluon import nn

FEATURES, CLASSES, WORDS, WIDTH = 40, 3, 20, 4


class Wide(gluon.HybridBlock):
    """A linear model of sparse rows; the gradient of its weight has the columns that occur."""

    def __init__(self, features, outputs, grad_stype="row_sparse", dtype="float64"):
        super().__init__()
        with self.name_scope():
            self.weight = self.params.get(
                "weight", shape=(features, outputs), dtype=dtype, grad_stype=grad_stype
            )
            self.bias = self.params.get("bias", shape=(outputs,), dtype=dtype)

    def hybrid_forward(self, F, x, weight, bias):
        return F.broadcast_add(F.sparse.dot(x, weight), bias)


class WordBag(nn.HybridSequential):
    """The sum of the vectors of some words, and a layer on it."""

    def __init__(self, sparse_grad=True):
        super().__init__()
        self.add(
            nn.Embedding(FEATURES, WIDTH, sparse_grad=sparse_grad),
            nn.HybridLambda(lambda F, x: F.sum(x, axis=1)),
            nn.Dense(CLASSES, in_units=WIDTH),
        )


class PulledWordBag(gluon.Block):
    """The same with row_sparse weights, of which a forward pass pulls the rows that it needs."""

    def __init__(self):
        super().__init__()
        with self.name_scope():
            self.words = gluon.contrib.nn.SparseEmbedding(FEATURES, WIDTH, dtype="float64")
            self.dense = nn.Dense(CLASSES, in_units=WIDTH)

    def forward(self, x):
        return self.dense(self.words(x).sum(axis=1))


class Sparse(NamedTuple):
    """A problem as pairs of dense NumPy arrays, with what makes batches and the NumPy gradient."""

    batches: list
    net: gluon.Block
    loss: Any
    gradient: Any
    params: list
    data: list


def csr_of(x, dtype="float64"):
    return mx.nd.sparse.csr_matrix(x, dtype=dtype)


def make(kind, contexts=None, samples=37, batch_size=8, is_sparse=True, seed=0, dtype="float64"):
    """Return a problem of `kind`: 'wide' or 'embedding'; some features occur never."""
    rng = np.random.default_rng(seed)
    used = rng.permutation(FEATURES)[: FEATURES - 6]
    words = rng.choice(used, (samples, 3), p=zipf(len(used)))
    y = rng.integers(0, CLASSES, samples).astype(float)
    mx.random.seed(seed)
    if kind == "wide":
        x = np.zeros((samples, FEATURES))
        x[np.arange(samples)[:, None], words] = rng.normal(size=words.shape)
        net = Wide(FEATURES, CLASSES, "row_sparse" if is_sparse else "default", dtype)
        gradient = wide_gradient
    else:
        x, gradient = words.astype(float), bag_gradient
        net = PulledWordBag() if kind == "pulled" else WordBag(is_sparse)
        net.cast(dtype)
    net.initialize(mx.init.Normal(0.5), ctx=contexts or [mx.cpu(0)])
    pieces = [slice(i, i + batch_size) for i in range(0, samples, batch_size)]
    batches = [(x[piece], y[piece]) for piece in pieces]
    convert = csr_of if kind == "wide" else mx.nd.array
    data = [(convert(a, dtype=dtype), mx.nd.array(b, dtype=dtype)) for a, b in batches]
    return Sparse(batches, net, gluon.loss.SoftmaxCELoss(), gradient, weights_of(net), data)


def zipf(number):
    weights = 1 / np.arange(1, number + 1)
    return weights / weights.sum()


def weights_of(net):
    return [full_data(p)[0].asnumpy() for p in net.collect_params().values()]


def wide_gradient(params, x, y):
    weight, bias = params
    error = oracle.softmax(x @ weight + bias) - np.eye(CLASSES)[y.astype(int)]
    return [x.T @ error, error.sum(axis=0)]


def bag_gradient(params, x, y):
    table, weight, bias = params
    words = x.astype(int)
    hidden = table[words].sum(axis=1)
    error = oracle.softmax(hidden @ weight.T + bias) - np.eye(CLASSES)[y.astype(int)]
    by_word = np.zeros_like(table)
    for row, back in zip(words, error @ weight, strict=True):
        for word in row:
            by_word[word] += back
    return [by_word, error.T @ hidden, error.sum(axis=0)]


def rows_in(kind, x):
    """Which features a batch has."""
    mask = np.zeros(FEATURES, bool)
    mask[np.flatnonzero(x.any(axis=0)) if kind == "wide" else x.astype(int).ravel()] = True
    return mask


def shares(kind, batches):
    """Of each feature, the share of the samples whose batch has it."""
    counted = sum(len(x) * rows_in(kind, x) for x, _ in batches)
    return counted / sum(len(x) for x, _ in batches)


class SGD(oracle.SGD):
    """MXNet's SGD, of rows that are touched only, if there are such."""

    def lazy_step(self, params, velocity, gradients, batch_size, rows):
        lr, momentum, _ = (float(np.float32(s)) for s in self)
        rescale = float(np.float32(1 / batch_size))
        for i, (param, v, gradient) in enumerate(zip(params, velocity, gradients, strict=True)):
            at = rows if i == 0 else slice(None)
            v[at] = momentum * v[at] - lr * rescale * gradient[at]
            param[at] += v[at]


def svrg(kind, problem, optimizer, *, epochs, way, alpha=1.0, is_lazy=True):
    """Run SVRG; return the parameters after every step. The first parameter is the sparse one."""
    params = [p.copy() for p in problem.params]
    velocity = [np.zeros_like(p) for p in params]
    share = shares(kind, problem.batches)
    trajectory = []
    for _ in range(epochs):
        snapshot = [p.copy() for p in params]
        mean = oracle.full_gradient(problem.gradient, snapshot, problem.batches)
        for x, y in problem.batches:
            rows = rows_in(kind, x) if way == "sparse" else share > 0
            control = [m.copy() for m in mean]
            if way == "sparse":
                weights = np.where(rows, 1 / np.where(share > 0, share, 1), 0)
                control[0] = weights[:, None] * mean[0]
            corrected = [
                g - alpha * (s - len(x) * m)
                for g, s, m in zip(
                    problem.gradient(params, x, y),
                    problem.gradient(snapshot, x, y),
                    control,
                    strict=True,
                )
            ]
            if is_lazy:
                optimizer.lazy_step(params, velocity, corrected, len(x), rows)
            else:
                optimizer.step(params, velocity, corrected, len(x))
            trajectory.append([p.copy() for p in params])
    return trajectory


class Recorder(BatchEnd):
    """Keeps the weights after each step."""

    priority = -1500  # after the step, which has -2000

    def __init__(self):
        self.weights = []

    def batch_end(self, estimator, *args, **kwargs):
        self.weights.append(weights_of(estimator.net))
