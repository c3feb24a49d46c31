"""Estimator.predict: the outputs for all samples, in their order."""

import gluon_svrg as gs
import mxnet as mx
import numpy as np
import pandas as pd
import pytest
from gluon_svrg.batch import prediction
from gluon_svrg.data import ArrayLoader
from mxnet import gluon
from mxnet.gluon import nn
from problems import ONE, TWO
from scipy.sparse import csr_matrix

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(21, 4)), RNG.normal(size=(21, 1))


class Heads(gluon.Block):
    """Returns a dict of a sum and a tuple."""

    def __init__(self):
        super().__init__()
        with self.name_scope():
            self.first, self.second = nn.Dense(2, in_units=4), nn.Dense(3, in_units=4)

    def forward(self, a, b=None):
        b = a if b is None else b
        return {"sum": self.first(a) + 1, "pair": (self.second(b), self.first(b))}


def heads(contexts=ONE):
    net = Heads()
    mx.random.seed(1)
    net.initialize(mx.init.Normal(0.5), ctx=contexts)
    net.cast("float64")
    layers = [
        [param.data(contexts[0]).asnumpy() for param in layer.collect_params().values()]
        for layer in (net.first, net.second)
    ]
    return net, [lambda x, w=w, b=b: x @ w.T + b for w, b in layers]


def estimator_of(net, contexts=ONE, **arguments):
    arguments.setdefault("trainer", gluon.Trainer(net.collect_params(), "sgd"))
    return gs.Estimator(net, gluon.loss.L2Loss(), context=contexts, **arguments)


DATA = {
    "pairs": lambda: [(X[i : i + 8], Y[i : i + 8]) for i in range(0, 21, 8)],
    "weighted": lambda: [(X[:20], Y[:20], Y[:20, 0]), {"data": X[20:], "label": Y[20:]}],
    "arrays": lambda: [mx.nd.array(X[:5], dtype="float64"), X[5:]],
    "ones": lambda: [(X[:5],), {"data": X[5:]}],
    "names": lambda: [{"a": X[:5], "b": X[:5]}, {"a": X[5:]}],
    "whole": lambda: X,
    "whole by name": lambda: {"b": X, "a": X},
    "loader": lambda: ArrayLoader(X, Y, batch_size=4),
    "data loader": lambda: gluon.data.DataLoader(gluon.data.ArrayDataset(X, Y), 6),
    "iterator": lambda: mx.io.NDArrayIter(X, Y, batch_size=8),
}


@pytest.mark.slow
@pytest.mark.parametrize("contexts", [ONE, TWO], ids=["one", "two"])
@pytest.mark.parametrize("kind", DATA)
def test_the_outputs_are_those_of_the_samples_in_order(kind, contexts):
    net, (first, second) = heads(contexts)
    output = estimator_of(net, contexts).predict(DATA[kind]())
    # MXNet's iterator hands on float32.
    tolerance = 1e-6 if kind == "iterator" else 1e-14
    assert list(output) == ["sum", "pair"]
    for ours, theirs in (
        (output["sum"], first(X) + 1),
        (output["pair"][0], second(X)),
        (output["pair"][1], first(X)),
    ):
        assert ours.context == mx.cpu(0)
        np.testing.assert_allclose(ours.asnumpy(), theirs, rtol=0, atol=10 * tolerance)


def test_a_shuffled_loader_is_named():
    net, _ = heads()
    loader = ArrayLoader(X, Y, batch_size=4, shuffle=True)
    with pytest.warns(UserWarning, match=r"shuffle=True: the outputs are in its order, not in"):
        estimator_of(net).predict(loader)


def test_batches_of_arrays_have_the_size_that_is_asked_for():
    sizes = []

    class Noting(nn.Dense):
        def forward(self, x):
            sizes.append(len(x))
            return super().forward(x)

    net = Noting(1, in_units=4)
    net.initialize()
    estimator_of(net).predict(X, batch_size=8)
    estimator_of(net).predict(X)
    assert sizes == [8, 8, 5, 21]


def test_along_another_axis():
    net = nn.Dense(2, in_units=4, flatten=False)
    net.initialize()
    x = RNG.normal(size=(3, 6, 4)).astype("float32")
    whole = estimator_of(net).predict([x])
    parts = estimator_of(net).predict([x[:, :4], x[:, 4:]], batch_axis=1)
    np.testing.assert_allclose(parts.asnumpy(), whole.asnumpy(), atol=1e-6)


def test_it_computes_in_prediction_with_the_weights_to_evaluate():
    net = nn.HybridSequential()
    net.add(nn.Dense(3, in_units=4), nn.Dropout(0.9), nn.BatchNorm(in_channels=3))
    mx.random.seed(1)
    net.initialize(mx.init.Normal(0.5))
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.5})
    estimator = estimator_of(net, trainer=trainer)
    ema = gs.EMAHandler(decay=0.9)
    seen = []

    class Look(gs.events.EpochEnd):
        def epoch_end(self, estimator, *args, **kwargs):
            with ema.applied(), mx.autograd.pause(train_mode=False):
                averaged = net(mx.nd.array(X)).asnumpy()
            before = [p.data().asnumpy() for p in net.collect_params().values()]
            ours = estimator.predict(X, batch_size=7).asnumpy()
            after = [p.data().asnumpy() for p in net.collect_params().values()]
            seen.append((averaged, ours, net(mx.nd.array(X)).asnumpy(), before, after))

    estimator.fit(
        [(X, np.zeros((21, 3)))], epochs=3, event_handlers=[ema, Look()], sanity_check=False
    )
    for averaged, ours, _, before, after in seen:
        np.testing.assert_allclose(ours, averaged, atol=1e-6)
        assert all(np.array_equal(a, b) for a, b in zip(before, after, strict=True))
    assert not np.allclose(seen[-1][1], seen[-1][2], atol=1e-3)


def test_an_evaluate_batch_of_ones_own_decides():
    class Own(gs.BatchProcessor):
        def evaluate_batch(self, estimator, batch, batch_axis=0):
            x = mx.nd.array(batch["x"])
            output = estimator.val_net(x)
            return [x], [x], [output], [output]

    class MXNets(gluon.contrib.estimator.BatchProcessor):
        evaluate_batch = Own.evaluate_batch

    net = nn.Dense(1, in_units=4)
    net.initialize()
    plain = estimator_of(net).predict(X.astype("float32"))
    for processor in (Own(), MXNets()):
        estimator = estimator_of(net, batch_processor=processor)
        parts = estimator.predict([{"x": X[:9]}, {"x": X[9:]}])
        np.testing.assert_allclose(parts.asnumpy(), plain.asnumpy(), atol=1e-6)


@pytest.mark.parametrize(
    ("data", "batch_size", "message"),
    [
        ([], None, "data is empty: give at least one batch"),
        (3, None, "data must be an iterable"),
        ([X], 8, "batch_size=8 is for arrays, and the data are batches already: leave it out"),
        ({"a": X, "b": X[:3]}, None, r"all the same number, got \[21, 3\]"),
        (X[:0], None, r"must have samples along axis 0, all the same number, got \[0\]"),
        (["text"], None, "a batch of them is a str: give the array itself, numpy.asarray"),
        (X.tolist(), None, "a batch of them is a list of 4: give the array itself, numpy.asarray"),
        ([1.0, 2.0], None, "a batch of them is a float: give the array itself"),
        ([(X, X, X, X)], None, "a batch of them is a tuple of 4: give the array itself"),
        (pd.DataFrame(X), None, r"got a DataFrame: give data.to_numpy\(\)"),
        (csr_matrix(X), None, r"got a csr_matrix: give data.toarray\(\)"),
    ],
)
def test_what_cannot_be_predicted(data, batch_size, message):
    net, _ = heads()
    with pytest.raises(ValueError, match=message):
        estimator_of(net).predict(data, batch_size)


@pytest.mark.parametrize("data", [X[:, :3], X[None], X[0], list(X), [(X[:, :3], X)]])
def test_data_of_another_shape_are_named(data):
    net = nn.Dense(1, in_units=4)
    net.initialize()
    way_out = "compute a batch of {}, an array .*Shape.*: give data of the shapes that the network"
    with pytest.raises(ValueError, match=way_out.format("the data to predict")):
        estimator_of(net).predict(data)
    batch = data[0] if isinstance(data, list) and isinstance(data[0], tuple) else (data, data)
    if isinstance(batch[0], np.ndarray):
        with pytest.raises(ValueError, match=way_out.format("val_data")):
            estimator_of(net).evaluate([batch])


def test_outputs_that_cannot_be_joined():
    net = nn.Dense(2, in_units=4, flatten=False)
    net.initialize()
    data = [RNG.normal(size=(2, length, 4)) for length in (3, 5)]
    with pytest.raises(ValueError, match=r"shapes \[\(2, 3, 2\), \(2, 5, 2\)\] cannot be joined"):
        estimator_of(net).predict(data)


def test_no_batch_is_ahead_of_the_one_before_the_last(monkeypatch):
    waited = []
    monkeypatch.setattr(prediction, "wait_for", lambda arrays: waited.append(len(arrays)))
    net, _ = heads()
    trainer = gluon.Trainer(net.collect_params(), "sgd")
    estimator = gs.Estimator(net, gluon.loss.L2Loss(), trainer=trainer)
    estimator.predict(X, batch_size=6)
    assert waited == [0, 0, 3, 3]
