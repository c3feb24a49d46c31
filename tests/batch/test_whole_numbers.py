"""Whole numbers reach the network and the loss as they were given, by every path."""

import itertools
import re

import gluon_svrg as gs
import mxnet as mx
import numpy as np
import pytest
from gluon_svrg.arrays.batch import Batch
from gluon_svrg.data import ArrayLoader
from mxnet import gluon

pytestmark = pytest.mark.slow

# Numbers that float16, float32 or float64 would round, as far as the dtype has them.
_CANDIDATES = [0, 1, 3, 127, 255, 2049, 32767, 65535, 2**24 + 1, 2**24 + 3, 2**31 - 1, 2**53 - 1]
DTYPES = [
    *("bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"),
    *("float16", "float32", "float64"),
]
PRECISIONS = ["float16", "float32", "float64"]


def numbers_of(dtype):
    """Return 6 whole numbers of this dtype, up to the greatest of them that it has, (6, 1)."""
    if dtype == "bool":
        limit = 1
    elif dtype[0] in "iu":
        limit = np.iinfo(dtype).max
    else:
        limit = 2 ** (np.finfo(dtype).nmant + 1)
    known = [number for number in _CANDIDATES if number <= limit]
    return np.array((known * 3)[-6:], dtype).reshape(-1, 1)


class Probe(gluon.Block):
    """A table of one row per id; it keeps the ids that it is called with."""

    def __init__(self, precision):
        super().__init__()
        self.seen = []
        with self.name_scope():
            self.table = self.params.get("table", shape=(4, 3), dtype=precision)

    def forward(self, ids):
        self.seen.append(ids.asnumpy())
        weight = self.table.data()
        width = {"input_dim": 4, "output_dim": 3, "dtype": weight.dtype}
        return mx.nd.Embedding(ids, weight, **width).reshape((-1, 3))


class Loss(gluon.loss.SoftmaxCELoss):
    """Keeps the labels that it is called with."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def forward(self, pred, label, sample_weight=None):
        self.seen.append(label.asnumpy())
        return super().forward(pred, label, sample_weight)


def samples(data, label):
    return gluon.data.DataLoader(gluon.data.ArrayDataset(data, label), 3)


def ndarrays(*arrays):
    if arrays[0].dtype.name in ("int16", "uint16", "uint32", "uint64"):
        pytest.skip("MXNet has no NDArray of this dtype")
    return [mx.nd.array(array, dtype=array.dtype) for array in arrays]


def halves(data, label):
    return [(data[:3], label[:3]), (data[3:], label[3:])]


CONTAINERS = {
    "ArrayLoader": lambda *arrays: ArrayLoader(*arrays, batch_size=3),
    "ArrayLoader, shuffled": lambda *arrays: ArrayLoader(*arrays, batch_size=3, shuffle=True),
    "ArrayLoader of NDArrays": lambda *arrays: ArrayLoader(*ndarrays(*arrays), batch_size=3),
    "list of NumPy": halves,
    "list of NDArrays": lambda *arrays: halves(*ndarrays(*arrays)),
    "with weights": lambda *arrays: [(*half, np.ones((3, 1))) for half in halves(*arrays)],
    "dicts": lambda *arrays: [{"data": x, "label": y} for x, y in halves(*arrays)],
    "Batch": lambda *arrays: [Batch(half, i) for i, half in enumerate(halves(*arrays))],
    "DataLoader": samples,
    "DataLoader of NDArrays": lambda *arrays: samples(*ndarrays(*arrays)),
    "DataIter": lambda *arrays: mx.io.NDArrayIter(*ndarrays(*arrays), 3),
}


def fit(estimator, data, **arguments):
    """Train without the look at the first batch: there are more classes than outputs."""
    estimator.fit(data, epochs=1, verbose=0, sanity_check=False, **arguments)


PATHS = {
    "fit": fit,
    "fit with SVRG's table": lambda e, data: fit(e, data, event_handlers=[gs.SVRGHandler()]),
    "fit with val_data": lambda e, data: fit(e, data, val_data=data),
    "evaluate": lambda e, data: e.evaluate(data, verbose=0),
    "predict": lambda e, data: e.predict(data),
    "find_batch_size": lambda e, data: gs.find_batch_size(e, data, 3, 6),
    "find_learning_rate": lambda e, data: gs.find_learning_rate(e, data, num_batches=10),
}


def rows(seen):
    return set(itertools.chain(*(array.ravel().astype("float64").tolist() for array in seen)))


@pytest.mark.filterwarnings("ignore:the data to predict are")
@pytest.mark.filterwarnings("ignore:Accumulating with float16")
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("container", CONTAINERS)
@pytest.mark.parametrize("path", PATHS)
def test_what_reaches_network_and_loss_is_what_was_given(path, container, dtype, precision):
    """Fails on 0.8: ids above 2**24 and classes above 2,048 were rounded; bool crashed later."""
    numbers = numbers_of(dtype)
    net, loss = Probe(precision), Loss()
    net.initialize()
    trainer = gs.SVRGTrainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
    estimator = gs.Estimator(net, loss, mx.metric.Loss("loss"), trainer=trainer)
    try:
        PATHS[path](estimator, CONTAINERS[container](numbers, numbers.ravel()))
    except ValueError as error:
        if not re.search(f"dtype {dtype}, which MXNet (does not have|cannot)", str(error)):
            raise
        return
    mx.nd.waitall()
    for seen in (net.seen, loss.seen)[: 1 if path == "predict" else 2]:
        # A finder may stop before it has seen all.
        assert rows(seen) <= rows([numbers])
        assert path.startswith("find") or rows(seen) == rows([numbers])
        assert seen


class Mixed(gluon.Block):
    """Takes ids beside features, of which alone a cast is needed."""

    def __init__(self):
        super().__init__()
        self.seen = []
        with self.name_scope():
            self.table = self.params.get("table", shape=(4, 3))
            self.dense = gluon.nn.Dense(3, in_units=2)

    def forward(self, ids, features):
        self.seen.append(ids.asnumpy())
        rows = mx.nd.Embedding(ids, self.table.data(), input_dim=4, output_dim=3)
        return rows + self.dense(features)


@pytest.mark.parametrize("features", ["int32", "int64", "uint8", "float64"])
@pytest.mark.parametrize("container", ["ArrayLoader", "list of NDArrays", "list of NumPy"])
def test_ids_stay_what_they_are_beside_features_that_are_cast(container, features):
    ids = np.array([2**24 + 1, 2**24 + 3, 2**24 + 5])
    x, y = np.arange(6).reshape(3, 2).astype(features), np.array([0, 1, 2])
    arrays = [mx.nd.array(array, dtype=array.dtype) for array in (ids, x, y)]
    data = {
        "ArrayLoader": ArrayLoader((ids, x), y, batch_size=3),
        "list of NDArrays": [(tuple(arrays[:2]), arrays[2])],
        "list of NumPy": [((ids, x), y)],
    }[container]
    net = Mixed()
    net.initialize()
    trainer = gs.SVRGTrainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
    estimator = gs.Estimator(net, gluon.loss.SoftmaxCELoss(), trainer=trainer)
    fit(estimator, data)
    estimator.predict(data)
    assert all(array.tolist() == ids.tolist() for array in net.seen[-2:])


def test_numbers_that_a_cast_rounds_are_told_once(caplog):
    """One array for both: the dense layer takes floats only, and the ids in it are rounded."""

    class Columns(Mixed):
        def forward(self, x):
            ids = x.slice_axis(axis=1, begin=0, end=1).reshape((-1,))
            return super().forward(ids, x.slice_axis(axis=1, begin=1, end=3))

    x = np.array([[2**24 + 1, 5, 6], [2**24 + 3, 7, 8]])
    net = Columns()
    net.initialize()
    trainer = gs.SVRGTrainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
    estimator = gs.Estimator(net, gluon.loss.SoftmaxCELoss(), trainer=trainer)
    estimator.fit(ArrayLoader(x, np.array([0, 1]), batch_size=2), epochs=2)
    told = [message for message in caplog.messages if "are rounded to float32" in message]
    assert len(told) == 1
    assert told[0].startswith(f"whole numbers up to {2**24 + 3} are rounded to float32, which Col")
    assert "as an array of their own, of dtype int64" in told[0]


@pytest.mark.parametrize("weights", [None, np.ones(3), np.ones((3, 1))], ids=["no", "one", "two"])
def test_classes_above_2048_of_a_float16_network_are_trained(weights):
    """By the outcome: a step that is large enough makes each sample's class the greatest."""
    net = gluon.nn.Embedding(3, 3000, dtype="float16", weight_initializer="zeros")
    net.initialize()
    params = {"learning_rate": 500.0, "multi_precision": True}
    trainer = gs.SVRGTrainer(net.collect_params(), "sgd", params)
    estimator = gs.Estimator(net, gluon.loss.SoftmaxCELoss(), trainer=trainer)
    ids, label = np.arange(3), np.array([2049, 2051, 2999], "float32")
    estimator.fit([(ids, label) if weights is None else (ids, label, weights)], epochs=1)
    assert net.weight.data().asnumpy().argmax(axis=1).tolist() == label.tolist()


LOSSES = {
    "SoftmaxCELoss": (gluon.loss.SoftmaxCELoss(), 2),
    "SigmoidBCELoss": (gluon.loss.SigmoidBCELoss(), 1),
    "LogisticLoss": (gluon.loss.LogisticLoss(label_format="binary"), 1),
    "L2Loss": (gluon.loss.L2Loss(), 1),
    "HuberLoss": (gluon.loss.HuberLoss(), 1),
}


@pytest.mark.parametrize("metric", ["acc", "f1", "mse", "rmse"])
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("container", [name for name in CONTAINERS if name != "DataIter"])
def test_bool_labels_train_as_the_labels_0_and_1_do(container, loss, metric):
    x = np.random.default_rng(0).normal(size=(6, 4)).astype("float32")
    results = []
    for label in (x[:, 0] > 0, (x[:, 0] > 0).astype("float32")):
        function, outputs = LOSSES[loss]
        net = gluon.nn.Dense(outputs, in_units=4)
        mx.random.seed(0)
        net.initialize(mx.init.Normal(0.5))
        np.random.seed(0)
        trainer = gs.SVRGTrainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
        metrics = [mx.metric.Loss("loss"), *([mx.metric.create(metric)] if outputs == 1 else [])]
        estimator = gs.Estimator(net, function, metrics, trainer=trainer)
        result = estimator.fit(CONTAINERS[container](x, label), epochs=2, verbose=0)
        mx.nd.waitall()
        results.append((net.weight.data().asnumpy().tolist(), result.history[-1]["training loss"]))
    assert results[0] == results[1]


def test_a_data_iter_of_bool_is_refused_in_a_sentence():
    label = mx.nd.array([1, 0, 1], dtype="bool")
    data = mx.io.NDArrayIter(mx.nd.ones((3, 4)), label, 3)
    with pytest.raises(ValueError, match=r"'softmax_label' is of dtype bool, .* give it as uint8"):
        gs.data.first_batches(data, 1)
    mx.nd.waitall()


def test_a_data_loader_of_a_dtype_that_mxnet_has_not_is_refused_in_a_sentence():
    with pytest.raises(ValueError, match=r"data gives arrays of dtype int16, .* integers to int64"):
        gs.data.first_batches(samples(np.ones((4, 2), "int16"), np.ones(4)), 1)


def test_an_integer_that_mxnet_has_not_is_refused_in_a_sentence():
    net = Probe("float32")
    net.initialize()
    trainer = gs.SVRGTrainer(net.collect_params(), "sgd")
    estimator = gs.Estimator(net, Loss(), trainer=trainer)
    message = f"dtype uint64 has {2**63}, and MXNet's integers end at {2**63 - 1}"
    with pytest.raises(ValueError, match=message):
        estimator.predict([(np.array([2**63], "uint64"),)])


IDS = np.array([[2**24 + 1], [2**24 + 3]])
TABLES = {
    "NDArrayIter": (lambda y: mx.io.NDArrayIter(IDS, y, 2), 2**24 + 8, True),
    "mx.nd.array": (lambda y: [(mx.nd.array(IDS), mx.nd.array(y))], 2**24 + 8, True),
    "int64": (lambda y: [(mx.nd.array(IDS, dtype="int64"), mx.nd.array(y))], 2**24 + 8, False),
    "NumPy": (lambda y: [(IDS % 5, y), (IDS, y)], 2**24 + 8, False),
    "small table": (lambda y: [(mx.nd.array(IDS % 5), mx.nd.array(y))], 2048, False),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", TABLES)
def test_ids_that_come_as_floats_are_told(case, caplog):
    """MXNet makes float32 of NumPy's integers in an NDArrayIter, and in `mx.nd.array`."""
    make, rows, is_told = TABLES[case]
    net = gluon.nn.HybridSequential()
    net.add(gluon.nn.Embedding(rows, 1, sparse_grad=True), gluon.nn.Flatten())
    net.initialize(mx.init.Zero())
    trainer = gs.SVRGTrainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
    estimator = gs.Estimator(net, gluon.loss.L2Loss(), trainer=trainer)
    estimator.fit(make(np.ones((2, 1), "float32")), epochs=1, verbose=0)
    told = [message for message in caplog.messages if "come as float32" in message]
    assert len(told) == is_told
    if told:
        assert "whole numbers up to 16777216 only: give them as int64" in told[0]


def a_list(x, label):
    return [(x[:4], label[:4]), (x[4:], label[4:])]


MASKED = {
    "ArrayLoader": lambda run, x, label: run.fit(ArrayLoader(x, label, batch_size=4), epochs=1),
    "ArrayLoader of inputs": lambda run, x, label: ArrayLoader((x, x), label, batch_size=4),
    "fit": lambda run, x, label: run.fit(a_list(x, label), epochs=1),
    "evaluate": lambda run, x, label: run.evaluate(a_list(x, label)),
    "predict": lambda run, x, label: run.predict(x),
    "predict of batches": lambda run, x, label: run.predict(a_list(x, label)),
}


@pytest.mark.parametrize("part", ["data", "label"])
@pytest.mark.parametrize("way", MASKED)
def test_what_is_under_a_mask_is_no_number(way, part):
    """Fails on 0.8: the network was trained on it."""
    net = gluon.nn.Dense(2, in_units=1)
    net.initialize()
    trainer = gs.SVRGTrainer(net.collect_params(), "sgd")
    estimator = gs.Estimator(net, gluon.loss.SoftmaxCELoss(), trainer=trainer)
    arrays = [np.arange(6, dtype="float32").reshape(6, 1), np.arange(6) % 2]
    MASKED[way](estimator, *map(np.ma.array, arrays))  # masks nothing
    if part == "label" and "predict" in way:
        return
    place = ["data", "label"].index(part)
    arrays[place] = np.ma.array(arrays[place], mask=np.arange(6).reshape(arrays[place].shape) == 1)
    with pytest.raises(ValueError, match=r"has a masked value in row 1, .* numpy\.ma\.filled"):
        MASKED[way](estimator, *arrays)
