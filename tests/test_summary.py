"""summary: counts by hand, shapes; and that nothing of the network changes."""

import random
import re

import gluon_svrg as gs
import mxnet as mx
import numpy as np
import pytest
from gluon_svrg.summary import summary
from gluoncv.model_zoo import get_model
from mxnet import autograd, gluon
from mxnet.gluon import nn

CPU0, CPU1 = mx.cpu(0), mx.cpu(1)


class Residual(nn.HybridBlock):
    def __init__(self, channels, in_channels):
        super().__init__()
        with self.name_scope():
            self.body = nn.HybridSequential()
            self.body.add(
                nn.Conv2D(channels, 3, padding=1, use_bias=False, in_channels=in_channels),
                nn.BatchNorm(in_channels=channels),
            )
            self.shortcut = nn.Conv2D(channels, 1, in_channels=in_channels)

    def hybrid_forward(self, F, x):
        return F.relu(self.body(x) + self.shortcut(x))


def resnet():
    net = nn.HybridSequential()
    net.add(Residual(4, 3), nn.GlobalAvgPool2D(), nn.Dropout(0.5), nn.Dense(10, in_units=4))
    return net


def one_line(text):
    return " ".join(text.split())


RESNET = [
    ("0.body.0", "Conv2D", "(2, 4, 8, 8)", 4 * 3 * 9),
    ("0.body.1", "BatchNorm", "(2, 4, 8, 8)", 4 * 4),
    ("0.shortcut", "Conv2D", "(2, 4, 8, 8)", 4 * 3 + 4),
    ("1", "GlobalAvgPool2D", "(2, 4, 1, 1)", 0),
    ("2", "Dropout", "(2, 4, 1, 1)", 0),
    ("3", "Dense", "(2, 10)", 10 * 4 + 10),
]


def rows_of(text):
    """The rows of the table."""
    header, _, *rest = text.splitlines()
    assert re.fullmatch(r"name +type +output shape +parameters", header)
    rows = [re.split(r" {2,}", line) for line in rest[: rest.index("")]]
    return [
        (*row[:3], int(row[3].replace(",", "")) if row[3][-1] != ")" else row[3]) for row in rows
    ]


def totals_of(text):
    """All, trainable, frozen and auxiliary parameters."""
    counts = re.search(
        r"^([\d,]+) parameters \(([\d,]+) trainable, ([\d,]+) frozen, ([\d,]+) auxiliary\), ",
        text,
        re.MULTILINE,
    )
    return tuple(int(count.replace(",", "")) for count in counts.groups())


@pytest.fixture(autouse=True)
def _wide_terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")


def initialised(net, ctx=CPU0, hybridize=None):
    net.initialize(mx.init.Xavier(), ctx=ctx)
    if hybridize is not None:
        net.hybridize(**hybridize)
    return net


@pytest.mark.parametrize("hybridize", [None, {}, {"static_alloc": True, "static_shape": True}])
@pytest.mark.parametrize("contexts", [CPU0, [CPU0, CPU1]], ids=["one", "two"])
def test_a_network_counted_by_hand(contexts, hybridize):
    text = summary(initialised(resnet(), contexts, hybridize), (2, 3, 8, 8))
    assert rows_of(text) == RESNET
    trainable = 108 + 8 + 16 + 50
    assert totals_of(text) == (trainable + 8, trainable, 0, 8)
    assert ("MiB, on each of 2 contexts" in text) == isinstance(contexts, list)
    assert "initialisation" not in text


def test_cifar_resnet20():
    """0.27 M parameters: He et al. (2016), table 6."""
    net = initialised(get_model("cifar_resnet20_v1"), hybridize={})
    text = summary(net, (4, 3, 32, 32))
    convolutions = 9 * (3 * 16 + 6 * 16 * 16 + 16 * 32 + 5 * 32 * 32 + 32 * 64 + 5 * 64 * 64)
    shortcuts = 16 * 32 + 32 * 64
    norms = 7 * 16 + (6 + 1) * 32 + (6 + 1) * 64
    trainable = convolutions + shortcuts + 2 * norms + 64 * 10 + 10
    assert totals_of(text) == (trainable + 2 * norms, trainable, 0, 2 * norms)
    assert 0.27e6 < trainable < 0.275e6
    assert "1.05 MiB" in text
    assert rows_of(text)[-1] == ("output", "Dense", "(4, 10)", 650)


class Nothing:
    """What a summary must leave as it is."""

    def __init__(self, net):
        self.net = net

    def __enter__(self):
        self.before = self.look()

    def __exit__(self, *exception):
        assert self.look() == self.before

    def look(self):
        found = {}

        def look_at(block):
            if isinstance(block, nn.HybridBlock):
                found[block.name] = (block._active, block._cached_op, block._cached_graph)
            assert not block._forward_hooks

        self.net.apply(look_at)
        for name, param in self.net.collect_params().items():
            found[name] = [
                (data.asnumpy().tobytes(), grad.asnumpy().tobytes())
                for data, grad in zip(
                    param.list_data(), param._grad or param.list_data(), strict=True
                )
            ]
        return found


@pytest.mark.parametrize("has_run", [False, True])
@pytest.mark.parametrize("hybridize", [None, {}, {"static_alloc": True}])
def test_nothing_changes(hybridize, has_run):
    """Parameters, gradients, running statistics, cached graphs and MXNet's random numbers."""
    net = initialised(resnet(), hybridize=hybridize)
    x = mx.nd.random.normal(shape=(2, 3, 8, 8))
    if has_run:
        with autograd.record():
            loss = net(x).sum()
        loss.backward()
    drawn = []
    for draws in (False, True):
        mx.random.seed(7)
        if draws:
            with Nothing(net), autograd.record():  # even where the caller records
                summary(net, x)
        drawn.append(mx.nd.random.uniform(shape=3).asnumpy().tolist())
    assert drawn[0] == drawn[1]


def test_the_graph_is_put_back_after_an_error():
    net = initialised(resnet(), hybridize={})
    net(mx.nd.ones((2, 3, 8, 8))).wait_to_read()
    with Nothing(net), pytest.raises(ValueError, match="cannot compute data of shape"):
        summary(net, (2, 5, 8, 8))


def deferred():
    net = nn.HybridSequential()
    net.add(nn.Conv2D(4, 3, use_bias=False), nn.BatchNorm(), nn.Dense(2))
    return net


@pytest.mark.parametrize("contexts", [CPU0, [CPU0, CPU1]], ids=["one", "two"])
@pytest.mark.parametrize("hybridize", [None, {}])
def test_it_finishes_the_initialisation_and_says_so(hybridize, contexts):
    net = initialised(deferred(), contexts, hybridize)
    text = summary(net, (2, 3, 5, 5))
    assert rows_of(text) == [
        ("0", "Conv2D", "(2, 4, 3, 3)", 108),
        ("1", "BatchNorm", "(2, 4, 3, 3)", 16),
        ("2", "Dense", "(2, 2)", 2 * 36 + 2),
    ]
    # All but the bias of the Dense, whose shape was known.
    assert "has initialised the layers whose input shape was not known (6 arrays" in one_line(text)
    assert "initialised" not in summary(net, (2, 3, 5, 5))
    x = mx.nd.random.normal(shape=(2, 3, 5, 5))
    first = net(x).asnumpy()
    if isinstance(contexts, list):
        np.testing.assert_array_equal(first, net(x.as_in_context(CPU1)).asnumpy())


def test_what_it_initialises_is_what_the_first_batch_would_have():
    values = []
    for summarises in (True, False):
        mx.random.seed(5)
        net = deferred()
        initialised(net)
        if summarises:
            summary(net, (2, 3, 5, 5))
        else:
            net(mx.nd.zeros((2, 3, 5, 5)))
        values.append([p.data().asnumpy().tolist() for p in net.collect_params().values()])
    assert values[0] == values[1]


def test_a_frozen_layer_is_counted_as_such():
    net = initialised(resnet())
    net[3].collect_params().setattr("grad_req", "null")
    assert totals_of(summary(net, (2, 3, 8, 8))) == (190, 132, 50, 8)


def test_a_shared_block_is_counted_once():
    dense = nn.Dense(4, in_units=4)
    net = nn.HybridSequential()
    net.add(dense, nn.Activation("relu"), dense)
    text = summary(initialised(net), (2, 4))
    assert rows_of(text) == [
        ("0", "Dense", "(2, 4), 2 calls", 20),
        ("1", "Activation", "(2, 4)", 0),
    ]
    assert totals_of(text) == (20, 20, 0, 0)


def test_a_shared_parameter_is_counted_once():
    net = nn.HybridSequential()
    net.add(nn.Dense(4, in_units=4))
    net.add(nn.Dense(4, in_units=4, params=net[0].params))
    text = summary(initialised(net), (2, 4))
    assert rows_of(text) == [
        ("0", "Dense", "(2, 4)", 20),
        ("1", "Dense", "(2, 4)", "0 (shared)"),
    ]
    assert totals_of(text) == (20, 20, 0, 0)


class Plain(gluon.Block):
    """A plain Block with a parameter of its own, nested outputs, and a layer that is not used."""

    def __init__(self):
        super().__init__()
        with self.name_scope():
            self.scale = self.params.get("scale", shape=(3,), init="ones")
            self.dense = nn.Dense(3, in_units=4, activation="relu")
            self.unused = nn.Dense(7)
            self.split = nn.Lambda(lambda x: (x, [x[0], "text"]))

    def forward(self, x):
        return self.split(self.dense(x) * self.scale.data())


def test_a_plain_block_with_nested_outputs():
    text = summary(initialised(Plain()), (2, 4))
    (name, *first), *rest = rows_of(text)
    assert re.fullmatch(r"plain\d+", name)
    assert first == ["Plain", "[(2, 3), [(3,), str]]", 3]
    assert rest == [
        ("dense", "Dense", "(2, 3)", 15),
        ("dense.act", "Activation", "(2, 3)", 0),
        ("unused", "Dense", "not called", 7),
        ("split", "Lambda", "[(2, 3), [(3,), str]]", 0),
    ]
    assert totals_of(text) == (25, 25, 0, 0)
    assert "Not counted: layers that were not called" in one_line(text)
    assert "(arrays of parameters: 1)" in one_line(text)
    assert "nor exported by gs.deploy.export, because 'split' (Lambda) is no" in one_line(text)


@pytest.mark.parametrize("container", [nn.Sequential, nn.HybridSequential])
def test_it_says_whether_the_network_can_be_exported(container):
    net = nn.HybridSequential()
    net.add(nn.Dense(2, in_units=3))
    outer = container()
    outer.add(nn.Dense(3, in_units=3), net)
    text = one_line(summary(initialised(outer), (4, 3)))
    says = "cannot be hybridized, nor exported by gs.deploy.export, because 'net' (Sequential)"
    assert (says in text) == (container is nn.Sequential)


def test_a_network_of_one_layer():
    text = summary(initialised(nn.Dense(3, in_units=2, prefix="only_")), (5, 2))
    assert rows_of(text) == [("only", "Dense", "(5, 3)", 9)]


def test_a_network_without_parameters():
    text = summary(nn.Activation("relu"), (5, 2))
    assert totals_of(text) == (0, 0, 0, 0)
    assert "0.00 MiB" in text


def test_a_recurrent_network():
    net = initialised(gluon.rnn.LSTM(5, num_layers=2, input_size=3))
    text = summary(net, (7, 2, 3))
    assert rows_of(text)[0][1:] == ("LSTM", "(7, 2, 5)", 4 * 5 * (3 + 5 + 5 + 5) + 4 * 4 * 5)


def test_an_imported_graph():
    x = mx.sym.var("data")
    block = gluon.SymbolBlock(resnet()(x), x)
    block.initialize()
    text = summary(block, (2, 3, 8, 8))
    assert totals_of(text) == (190, 182, 0, 8)


@pytest.mark.parametrize(("dtype", "size"), [("float16", 2), ("float32", 4), ("float64", 8)])
def test_the_size_is_that_of_the_dtype(dtype, size):
    net = nn.Embedding(1024, 1024, dtype=dtype)
    assert summary(initialised(net), (3,)).endswith(f", {size:.2f} MiB")


def batch(shape=(2, 3, 8, 8)):
    return np.ones(shape, "float32"), np.zeros(shape[0])


def dataset():
    return gluon.data.ArrayDataset(np.ones((8, 3, 8, 8), "float32"), np.zeros(8))


@pytest.mark.parametrize(
    "data",
    [
        (2, 3, 8, 8),
        (np.int64(2), 3, 8, 8),
        np.ones((2, 3, 8, 8)),
        np.ones((2, 3, 8, 8), "uint8"),
        mx.nd.ones((2, 3, 8, 8)),
        mx.nd.ones((2, 3, 8, 8), ctx=CPU1),
        [batch(), batch((1, 3, 8, 8))],
        (batch(), batch()),
        batch(),
        [([batch()[0]], batch()[1])],
        gs.data.ArrayLoader(*batch((4, 3, 8, 8)), batch_size=2),
        gs.data.ArrayLoader(*batch((4, 3, 8, 8)), batch_size=2, shuffle=True, seed=1),
        gluon.data.DataLoader(dataset(), batch_size=2, shuffle=True),
    ],
    ids=lambda data: type(data).__name__,
)
def test_data_may_be_a_batch_a_shape_or_training_data(data):
    states = np.random.get_state()[1].tolist(), random.getstate()
    assert rows_of(summary(initialised(resnet()), data)) == RESNET
    assert (np.random.get_state()[1].tolist(), random.getstate()) == states
    if isinstance(data, gs.data.ArrayLoader):
        assert data.epoch == 0


def test_several_inputs():
    class Sum(nn.HybridBlock):
        def hybrid_forward(self, F, x, y):
            return F.broadcast_add(x, y)

    net = nn.HybridSequential()
    batch = ([mx.nd.ones((2, 3)), mx.nd.ones((2, 1))], mx.nd.ones(2))
    net = Sum()
    assert rows_of(summary(net, [batch]))[0][2] == "(2, 3)"


@pytest.mark.parametrize(
    ("net", "data", "error", "match"),
    [
        ("net", (2, 2), TypeError, r"net must be a gluon Block, got 'net'"),
        (nn.Dense(1, in_units=2), (2, 2), ValueError, r"dense\d+_weight' .*: call net.initialize"),
        (None, (2, 0), ValueError, r"data must be a shape of positive integers, got \(2, 0\)$"),
        (None, "data", TypeError, r"data must be a batch .* got 'data': give \(32, 3, 32, 32\)"),
        (None, None, TypeError, r"data must be a batch .* got None: give"),
        (None, 7, TypeError, r"data must be a batch .* got 7: give"),
        (None, [], TypeError, r"data must be a batch .* got \[\]: give"),
        (None, (), TypeError, r"data must be a batch .* got \(\): give"),
        (None, iter([batch()]), TypeError, r"data must be a batch .* got <list_it.*>: give"),
        (None, {"x": 1}, TypeError, r"data must be a batch .* got \{'x': 1\}: give"),
        (None, [2, 2], TypeError, r"whose first batch is 2: give the data of a batch alone, or"),
        (None, [("x", "y")], TypeError, r"whose first batch is \('x', 'y'\): give the data of a"),
        (None, (2, 3), ValueError, r"compute data of shape \(2, 3\) \(.*\): give a batch as it is"),
        (None, [([np.ones((2, 2))] * 2, 0)], ValueError, r"shape \(2, 2\), \(2, 2\) \(.*argument"),
    ],
)
def test_wrong_arguments_are_errors(net, data, error, match):
    if net is None:
        net = initialised(nn.Dense(1, in_units=2))
    with pytest.raises(error, match=match):
        summary(net, data)


def test_the_data_may_be_an_iterator_of_mxnet():
    data = mx.io.NDArrayIter(np.ones((4, 2)), np.ones(4), batch_size=2)
    assert rows_of(summary(initialised(nn.Dense(1, in_units=2)), data))[0][2] == "(2, 1)"
    assert len(list(data)) == 2  # none of its batches is gone


class Tagger(nn.Block):
    def __init__(self):
        super().__init__()
        self.embedding_of_words_and_of_characters = nn.Embedding(1000, 200)
        self.lstm = gluon.rnn.LSTM(200, 2, input_size=200)

    def forward(self, x):
        state = self.lstm.begin_state(x.shape[1])
        return self.lstm(self.embedding_of_words_and_of_characters(x), state)[0]


def test_it_fits_80_columns(monkeypatch):
    shape = "[(35, 20, 200), [(2, 20, 200), (2, 20, 200)]]"
    net = initialised(Tagger())
    wide = summary(net, (35, 20))
    assert shape in wide
    monkeypatch.setenv("COLUMNS", "80")
    narrow = summary(net, (35, 20))
    assert max(map(len, narrow.splitlines())) <= 80
    assert sorted(narrow.replace("-", "").split()) == sorted(wide.replace("-", "").split())
    (line,) = (line for line in narrow.splitlines() if line.startswith("lstm"))
    assert line.endswith("643,200")  # the rest of its shape stands below
