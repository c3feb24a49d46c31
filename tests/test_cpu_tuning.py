"""The tuned network computes what it did: outputs, gradients, names and files."""

import copy
import json
import pickle
import warnings

import gluon_svrg as gs
import mxnet as mx
import numpy as np
import pytest
from gluon_svrg.cpu_tuning import tune_for_cpu
from mxnet import autograd, gluon
from mxnet.gluon import nn

STATIC = {"static_alloc": True, "static_shape": True}
HYBRIDIZE = {"eager": None, "hybridized": {}, "static": STATIC}


class Weighted(nn.GlobalAvgPool2D):
    """A user's own pooling, which only looks like Gluon's."""

    def hybrid_forward(self, F, x):
        return 2 * super().hybrid_forward(F, x)


class Plain(gluon.Block):
    """A Block that no symbol can hold, with a hybridizable stage that it uses twice."""

    def __init__(self):
        super().__init__(prefix="plain_")
        with self.name_scope():
            self.stage = nn.HybridSequential()
            with self.stage.name_scope():
                self.stage.add(nn.Conv2D(4, 3, padding=1, in_channels=4), nn.GlobalAvgPool2D())
            self.stem = nn.Conv2D(4, 3, in_channels=3)
            self.dense = nn.Dense(3, in_units=8)

    def forward(self, x):
        x = self.stem(x)
        twice = mx.nd.concat(self.stage(x), self.stage(2 * x), dim=1)
        return self.dense(twice)


def nested():
    net = nn.HybridSequential(prefix="nested_")
    with net.name_scope():
        features = nn.HybridSequential()
        with features.name_scope():
            features.add(
                nn.Conv2D(16, 3, padding=1, use_bias=False, in_channels=3),
                nn.BatchNorm(in_channels=16),
                nn.Activation("relu"),
                nn.GlobalAvgPool2D(),
                nn.Flatten(),
            )
        net.add(features, nn.Dense(3, in_units=16))
    return net


NETS = {"nested": nested, "plain": Plain}
POOLS = {"nested": ["nested_hybridsequential0_pool0"], "plain": ["plain_hybridsequential0_pool0"]}


def initialized(name, hybridize=None, dtype="float64"):
    mx.random.seed(1)
    net = NETS[name]()
    net.initialize(mx.init.Normal(0.3))
    net.cast(dtype)
    if hybridize is not None:
        net.hybridize(**hybridize)
    return net


def images(dtype="float64", shape=(5, 3, 7, 6)):
    return mx.nd.array(np.random.default_rng(0).normal(size=shape), dtype=dtype)


def outputs_and_gradients(net, x):
    """Return the output and the gradients, by the parameters' names, of one training step."""
    x.attach_grad()
    with autograd.record():
        out = net(x)
        loss = (out * out).sum()
    loss.backward()
    grads = {
        n: p.grad().asnumpy() for n, p in net.collect_params().items() if p.grad_req == "write"
    }
    return out.asnumpy(), grads | {"x": x.grad.asnumpy()}


def runs_pooling(net):
    """Whether the graph that `net` has cached runs MXNet's Pooling."""
    nodes = json.loads(net._cached_graph[1].tojson())["nodes"]
    return any(node["op"] == "Pooling" for node in nodes)


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("hybridize", HYBRIDIZE.values(), ids=HYBRIDIZE)
@pytest.mark.parametrize("name", NETS)
def test_the_same_outputs_and_gradients(name, hybridize, when):
    plain, tuned = initialized(name, hybridize), initialized(name, hybridize)
    if when == "after":  # with graphs cached
        outputs_and_gradients(tuned, images())
        for ours, theirs in zip(
            tuned.collect_params().values(), plain.collect_params().values(), strict=True
        ):
            ours.set_data(theirs.data())  # the step has moved BatchNorm's running statistics
    assert tune_for_cpu(tuned) == POOLS[name]
    expected, expected_grads = outputs_and_gradients(plain, images())
    out, grads = outputs_and_gradients(tuned, images())
    np.testing.assert_allclose(out, expected, rtol=1e-13, atol=1e-14)
    assert grads.keys() == expected_grads.keys()
    for key, grad in grads.items():
        scale = np.abs(expected_grads[key]).max()
        np.testing.assert_allclose(grad, expected_grads[key], atol=1e-12 * scale, err_msg=key)


def test_in_float32_it_differs_by_rounding_alone():
    plain, tuned = (
        initialized("nested", STATIC, "float32"),
        initialized("nested", STATIC, "float32"),
    )
    tune_for_cpu(tuned)
    x = images("float32", (8, 3, 16, 16))
    expected, expected_grads = outputs_and_gradients(plain, x.copy())
    out, grads = outputs_and_gradients(tuned, x.copy())
    np.testing.assert_allclose(out, expected, rtol=1e-5, atol=1e-6)
    for key, grad in grads.items():
        scale = np.abs(expected_grads[key]).max()
        np.testing.assert_allclose(grad, expected_grads[key], atol=1e-4 * scale, err_msg=key)


@pytest.mark.parametrize("hybridize", HYBRIDIZE.values(), ids=HYBRIDIZE)
def test_no_pooling_is_left_in_a_graph_and_twice_is_once(hybridize):
    net = initialized("nested", hybridize)
    net(images())
    tune_for_cpu(net)
    net.hybridize(**(hybridize or {}))
    net(images())
    assert not runs_pooling(net)
    graph = net._cached_graph
    assert tune_for_cpu(net) == []
    assert net._cached_graph is graph


def test_what_mxnet_cached_is_made_again_with_the_same_flags():
    net = initialized("nested", STATIC)
    net(images())
    assert runs_pooling(net)
    flags = list(net._flags)
    tune_for_cpu(net)
    assert (net._flags, net._active) == (flags, True)
    net(images())
    assert net._cached_op is not None
    assert not runs_pooling(net)


def test_a_block_without_such_a_layer_keeps_its_cache():
    net = Plain()
    net.initialize()
    net.dense.hybridize()
    net.stage.hybridize()
    net(images("float32"))
    dense, stage = net.dense._cached_op, net.stage._cached_op
    tune_for_cpu(net)
    assert net.dense._cached_op is dense
    assert net.stage._cached_op is not stage


def test_a_net_without_such_a_layer_is_left_alone():
    net = nn.HybridSequential()
    net.add(nn.Conv2D(4, 3, in_channels=3), nn.AvgPool2D(), nn.GlobalMaxPool2D(), nn.Dense(2))
    net.initialize()
    net.hybridize()
    net(images("float32"))
    cached = net._cached_op
    assert tune_for_cpu(net) == []
    assert net._cached_op is cached
    assert [type(child) for child in net] == [
        nn.Conv2D, nn.AvgPool2D, nn.GlobalMaxPool2D, nn.Dense,
    ]  # fmt: skip


def other_pool_type():
    layer = nn.GlobalAvgPool2D()
    layer._kwargs["pool_type"] = "lp"
    return layer


def own_forward():
    layer = nn.GlobalAvgPool2D()
    layer.hybrid_forward = lambda F, x: x
    return layer


@pytest.mark.parametrize(
    "make",
    [
        Weighted,
        lambda: nn.GlobalAvgPool2D(layout="NHWC"),
        nn.GlobalMaxPool2D,
        nn.GlobalAvgPool1D,
        nn.GlobalAvgPool3D,
        other_pool_type,
        own_forward,
    ],
    ids=["derived", "NHWC", "max", "1D", "3D", "pool type", "own forward"],
)
def test_other_layers_are_left_alone(make):
    layer = make()
    kind = type(layer)
    assert tune_for_cpu(layer) == []
    assert type(layer) is kind


def test_the_layer_itself_may_be_the_net():
    layer = nn.GlobalAvgPool2D(prefix="mine_")
    x = images()
    expected = layer(x).asnumpy()
    assert tune_for_cpu(layer) == ["mine"]
    np.testing.assert_allclose(layer(x).asnumpy(), expected, rtol=1e-14)


def test_it_looks_the_same():
    net = initialized("nested", {})
    net(images())
    shown, outputs = repr(net), net._cached_graph[1].get_internals().list_outputs()
    names = list(net.collect_params())
    pool = net[0][3]
    children, prefix = dict(net[0]._children), pool.prefix
    tune_for_cpu(net)
    net(images())
    assert repr(net) == shown
    assert net._cached_graph[1].get_internals().list_outputs() == outputs
    assert list(net.collect_params()) == names
    assert net[0]._children == children
    assert net[0][3] is pool
    assert pool.prefix == prefix
    assert isinstance(pool, nn.GlobalAvgPool2D)


def test_the_names_of_later_layers_do_not_move():
    first = nn.GlobalAvgPool2D()
    tune_for_cpu(first)
    number = int(first.name.removeprefix("pool"))
    assert nn.GlobalAvgPool2D().name == f"pool{number + 1}"


def test_hooks_stay():
    net = initialized("nested")
    shapes = []
    net[0][3].register_forward_hook(lambda block, args, out: shapes.append(out.shape))
    tune_for_cpu(net)
    net(images())
    assert shapes == [(5, 16, 1, 1)]


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_a_copy_of_the_layer_is_tuned(copied):
    layer = nn.GlobalAvgPool2D()
    tune_for_cpu(layer)
    assert type(copied(layer)) is type(layer)


@pytest.mark.parametrize("ours_saves", [True, False], ids=["save", "load"])
def test_parameters_are_saved_and_loaded_by_the_same_names(ours_saves, tmp_path):
    tuned, plain = initialized("nested"), initialized("nested")
    tune_for_cpu(tuned)
    saver, loader = (tuned, plain) if ours_saves else (plain, tuned)
    loader.initialize(mx.init.Zero(), force_reinit=True)
    saver.save_parameters(str(tmp_path / "net.params"))
    loader.load_parameters(str(tmp_path / "net.params"))
    x = images()
    np.testing.assert_allclose(loader(x).asnumpy(), saver(x).asnumpy(), rtol=1e-13, atol=1e-14)


def test_it_is_exported_and_served_without_its_class(tmp_path):
    net = initialized("nested", STATIC, "float32")
    x = images("float32")
    expected = net(x).asnumpy()
    tune_for_cpu(net)
    net(x)
    net.export(str(tmp_path / "net"))
    served = gluon.SymbolBlock.imports(
        str(tmp_path / "net-symbol.json"), ["data"], str(tmp_path / "net-0000.params")
    )
    np.testing.assert_array_equal(served(x).asnumpy(), net(x).asnumpy())
    np.testing.assert_allclose(served(x).asnumpy(), expected, rtol=1e-5, atol=1e-6)
    larger = images("float32", (2, 3, 9, 12))
    np.testing.assert_array_equal(served(larger).asnumpy(), net(larger).asnumpy())


def test_onnx(tmp_path):
    pytest.importorskip("onnx", reason="needs gluon-svrg[onnx]")
    onnxruntime = pytest.importorskip("onnxruntime", reason="needs gluon-svrg[onnx]")
    net = initialized("nested", {}, "float32")
    x = images("float32")
    tune_for_cpu(net)
    expected = net(x).asnumpy()
    net.export(str(tmp_path / "net"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # other people's
        mx.onnx.export_model(
            str(tmp_path / "net-symbol.json"),
            str(tmp_path / "net-0000.params"),
            [x.shape],
            [np.float32],
            str(tmp_path / "net.onnx"),
        )
    session = onnxruntime.InferenceSession(str(tmp_path / "net.onnx"))
    np.testing.assert_allclose(session.run(None, {"data": x.asnumpy()})[0], expected, atol=1e-5)


def test_a_snapshot_taken_before_follows():
    net = initialized("nested", STATIC)
    x = images()

    def backward(batch):
        with autograd.record():
            loss = (net(batch) ** 2).sum(axis=1)
        loss.backward()
        return loss

    snapshot = gs.Snapshot(net)
    snapshot.take()
    before = {n: g[0].asnumpy() for n, g in snapshot.gradient(backward, x).sums.items()}
    tune_for_cpu(net)
    after = snapshot.gradient(backward, x).sums
    for name, grad in before.items():
        atol = 1e-12 * np.abs(grad).max()
        np.testing.assert_allclose(after[name][0].asnumpy(), grad, atol=atol)


def test_float16_keeps_mxnets_own_which_adds_up_in_float32():
    x = 100 * mx.nd.ones((1, 2, 64, 64), dtype="float16")  # its sum is no float16
    tuned_first = nn.HybridSequential()
    tuned_first.add(nn.GlobalAvgPool2D(), nn.BatchNorm(in_channels=2))
    tune_for_cpu(tuned_first)
    tuned_first.cast("float16")
    cast_first = nn.HybridSequential()
    cast_first.add(nn.GlobalAvgPool2D(), nn.Dense(2, in_units=2))
    cast_first.cast(np.float16)
    assert tune_for_cpu(cast_first) == []
    for net in (tuned_first, cast_first):
        assert net[0](x).asnumpy().max() == 100
    tuned_first.cast("float32")
    assert len(tune_for_cpu(tuned_first)) == 1


@pytest.mark.parametrize("hybridize", [False, True])
def test_in_the_numpy_mode_it_computes_the_same(hybridize):
    values = np.random.default_rng(0).normal(size=(2, 3, 4, 4))
    layer = nn.GlobalAvgPool2D()
    tune_for_cpu(layer)
    if hybridize:
        layer.hybridize()
    mx.npx.set_np()
    try:
        x = mx.np.array(values)
        x.attach_grad()
        with autograd.record():
            out = layer(x)
            loss = out * out
        loss.backward()
        gradient = 2 * values.mean(axis=(2, 3), keepdims=True) / 16
        np.testing.assert_allclose(x.grad.asnumpy(), np.broadcast_to(gradient, x.shape), rtol=1e-5)
    finally:
        mx.npx.reset_np()
    assert type(out) is mx.np.ndarray
    np.testing.assert_allclose(out.asnumpy(), values.mean(axis=(2, 3), keepdims=True), rtol=1e-5)


@pytest.mark.parametrize("shape", [(2, 3, 4), (2, 3, 4, 4, 4)], ids=["3 axes", "5 axes"])
def test_an_input_that_was_refused_still_is(shape):
    layer = nn.GlobalAvgPool2D()
    tune_for_cpu(layer)
    with pytest.raises(mx.MXNetError):
        layer(mx.nd.ones(shape)).wait_to_read()


@pytest.mark.parametrize("net", ["resnet", None, mx.sym.var("data")], ids=str)
def test_something_else_than_a_block_is_an_error(net):
    with pytest.raises(TypeError, match=r"net must be a gluon Block, got .*: give the network"):
        tune_for_cpu(net)
