"""What export writes, what it refuses, and that it leaves the network alone."""

import hashlib
import json
import os
import threading
from pathlib import Path

import gluon_svrg as gs
import mxnet as mx
import numpy as np
import problems
import pytest
from gluon_svrg import deploy
from gluon_svrg.arrays import params
from gluon_svrg.deploy import model_dir
from gluon_svrg.files import exchange
from mxnet import autograd, gluon
from mxnet.gluon import nn


def outputs_of(net, x, context=None):
    return net(problems.array(x, x.dtype, context)).asnumpy()


@pytest.mark.usefixtures("mode")
def test_the_card(model):
    card = deploy.read_card(model)
    assert card["inputs"] == [{"name": "data", "shape": [3, 8, 6], "dtype": "float32"}]
    assert card["outputs"] == {"structure": "array", "shapes": [[3]], "dtypes": ["float32"]}
    assert card["normalization"]["mean"] == [0.5, 0.4, 0.3]
    assert card["class_names"] == ["ant", "bee", "cat"]
    assert card["metrics"] == {"accuracy": 0.5}
    assert card["versions"] == {
        "mxnet": "1.9.1",
        "numpy": np.__version__,
        "gluon_svrg": gs.__version__,
    }
    for name, checksum in card["files"].items():
        content = (model / name).read_bytes()
        assert checksum == {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    files = {"model-0000.params", "model-symbol.json"}
    assert set(card["files"]) - {"model.onnx"} == files  # the last one with the extra onnx
    assert {path.name for path in model.iterdir()} == {*card["files"], "model.json"}


@pytest.mark.usefixtures("mode")
def test_gluon_itself_reads_the_files(model, net, x):
    block = gluon.SymbolBlock.imports(
        str(model / "model-symbol.json"), ["data"], str(model / "model-0000.params")
    )
    np.testing.assert_allclose(outputs_of(block, x), outputs_of(net, x), atol=1e-5)


def test_no_file_is_a_pickle(model):
    json.loads((model / "model.json").read_text())
    json.loads((model / "model-symbol.json").read_text())
    # MXNet's own magic number of a list of arrays.
    assert int.from_bytes((model / "model-0000.params").read_bytes()[:8], "little") == 0x112


FLAGS = [None, {}, {"static_alloc": True, "static_shape": True}]


def with_dropout(contexts, flags):
    gs.seed_everything(1)
    net = nn.HybridSequential(prefix="t_")
    with net.name_scope():
        net.add(nn.Conv2D(4, 3, in_channels=3), nn.BatchNorm(), nn.Dropout(0.5), nn.Dense(3))
    net.initialize(ctx=contexts)
    if flags is not None:
        net.hybridize(**flags)
    return net


def step(net, trainer, x, contexts):
    shares = np.array_split(x, len(contexts))
    parts = [problems.array(s, ctx=ctx) for s, ctx in zip(shares, contexts, strict=True)]
    with autograd.record():
        losses = [(net(part) ** 2).sum() for part in parts]
    autograd.backward(losses)
    trainer.step(len(x))


def values_of(net):
    arrays = []
    for param in net.collect_params().values():
        arrays += param.list_data() + (param.list_grad() if param.grad_req != "null" else [])
    return [array.asnumpy() for array in arrays]


@pytest.mark.usefixtures("mode")
@pytest.mark.parametrize("flags", FLAGS)
def test_training_goes_on_bit_for_bit(flags, tmp_path, x):
    def train(export_after):
        net = with_dropout(mx.cpu(), flags)
        trainer = gluon.Trainer(net.collect_params(), "adam")
        for number in range(4):
            step(net, trainer, x, [mx.cpu()])
            if number == export_after:
                deploy.export(net, tmp_path / "model", x)
        return values_of(net)

    for one, other in zip(train(None), train(1), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.usefixtures("mode")
@pytest.mark.parametrize("flags", FLAGS)
@pytest.mark.parametrize("contexts", [[mx.cpu(0)], [mx.cpu(0), mx.cpu(1)]], ids=len)
def test_the_network_is_left_as_it_was(flags, contexts, tmp_path, x):
    def state():
        return net._active, list(net._flags), net[0]._active, net[0]._forward_hooks

    net = with_dropout(contexts, flags)
    trainer = gluon.Trainer(net.collect_params(), "adam")
    step(net, trainer, x, contexts)
    before, flags_before = values_of(net), state()
    deploy.export(net, tmp_path / "model", x)
    assert state() == flags_before
    assert all(param.list_ctx() == contexts for param in net.collect_params().values())
    for one, other in zip(values_of(net), before, strict=True):
        np.testing.assert_array_equal(one, other)
    step(net, trainer, x, contexts)


@pytest.mark.usefixtures("mode")
def test_running_means_that_differ_are_averaged(tmp_path, net, x):
    net.collect_params().reset_ctx([mx.cpu(0), mx.cpu(1)])
    running = net[1].running_mean
    for index, array in enumerate(running.list_data()):
        array[:] = index
    path = deploy.export(net, tmp_path / "model", x * 0)
    loaded = params.from_bytes((path / "model-0000.params").read_bytes())
    np.testing.assert_array_equal(loaded[f"aux:{running.name}"].asnumpy(), 0.5)


@pytest.mark.usefixtures("mode")
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [("float16", 2e-2), ("float32", 1e-5), ("float64", 1e-5)]
)
def test_dtypes(dtype, tolerance, tmp_path):
    net = nn.HybridSequential()
    # MXNet has no matrix product of float16 on the CPU.
    products = [] if dtype == "float16" else [nn.Conv2D(3, 3, in_channels=3)]
    net.add(*products, nn.BatchNorm(in_channels=3), nn.GlobalAvgPool2D())
    net.initialize()
    net.cast(dtype)
    x = np.random.default_rng(0).normal(size=(5, 3, 4, 4)).astype(dtype)
    predictor = deploy.Predictor.load(deploy.export(net, tmp_path / "model", x))
    assert predictor.card["inputs"][0]["dtype"] == dtype
    result = predictor(x)
    assert result.dtype == dtype
    np.testing.assert_allclose(result, outputs_of(net, x), atol=tolerance)


@pytest.mark.usefixtures("mode")
def test_numpys_default_dtype_is_taken_as_that_of_the_parameters(net, tmp_path):
    path = deploy.export(net, tmp_path / "model", np.zeros((1, 3, 8, 6)))
    assert deploy.read_card(path)["inputs"][0]["dtype"] == "float32"


def test_a_model_that_is_replaced_is_there_all_the_time(model, net, x, monkeypatch):
    """Two directories change places at once; in 0.7 there was none for a moment."""
    one, other = (model.parent / name for name in ("one", "other"))
    for path in (one, other):
        path.mkdir()
    if not exchange(one, other):
        pytest.skip("the file system cannot exchange two names")
    seen = []

    def looking(move):
        def moved(*args):
            result = move(*args)
            seen.append((model / "model.json").exists())
            return result

        return moved

    monkeypatch.setattr(Path, "rename", looking(Path.rename))
    monkeypatch.setattr(model_dir, "exchange", looking(model_dir.exchange))
    deploy.export(net, model, x, overwrite=True)
    assert seen
    assert all(seen)


def test_a_model_that_was_read_can_be_exported_again(model, x, tmp_path, net):
    block = gluon.SymbolBlock.imports(
        str(model / "model-symbol.json"), ["data"], str(model / "model-0000.params")
    )
    again = deploy.export(block, tmp_path / "again", x)
    np.testing.assert_allclose(deploy.Predictor.load(again)(x), outputs_of(net, x), atol=1e-5)


class OutOfGraph(gluon.HybridBlock):
    def __init__(self, function, **kwargs):
        super().__init__(**kwargs)
        self._function = function

    def hybrid_forward(self, F, x):
        return self._function(F, x)


class Plain(gluon.Block):
    def forward(self, x):
        return x


def made_of(container, *layers):
    net = container()
    net.add(*layers)
    return net


def both(container, *layers):
    net = made_of(container, *layers)
    net.initialize()
    return net


UNHYBRIDIZABLE = {
    "asnumpy": (lambda F, x: x * float(x.asnumpy().max()), "'1.0' .OutOfGraph 'outofgraph"),
    "shape": (lambda F, x: x.reshape((x.shape[0], -1)), "'1.0' .OutOfGraph 'outofgraph"),
    "if": (lambda F, x: x if x.sum() > 0 else -x, "'1.0' .OutOfGraph 'outofgraph"),
    "dict": (lambda F, x: {"a": x}, "dict"),
}


@pytest.mark.parametrize("case", UNHYBRIDIZABLE)
def test_the_layer_that_cannot_be_hybridized_is_named(case, tmp_path):
    function, message = UNHYBRIDIZABLE[case]
    inner = both(nn.HybridSequential, OutOfGraph(function))
    net = both(nn.HybridSequential, nn.Dense(3, in_units=2), inner)
    with pytest.raises(ValueError, match=f"net cannot be hybridized: its layer .*{message}"):
        deploy.export(net, tmp_path / "model", mx.nd.ones((1, 2)))
    assert not (tmp_path / "model").exists()


@pytest.mark.parametrize(
    ("net", "message"),
    [
        (
            both(nn.Sequential, nn.Dense(1), Plain(prefix="p_")),
            r"layer '1' \(Plain 'p'\) is a gluon.Block: make it a HybridBlock with a hybrid_for",
        ),
        (
            both(nn.Sequential, nn.Dense(1)),
            r"layer 'net' \(Sequential 'sequential\d+'\) is a gluon.Block: make it an "
            "nn.HybridSequential of the same layers",
        ),
    ],
)
def test_a_plain_block_is_named(net, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        deploy.export(net, tmp_path / "model", mx.nd.ones((1, 2)))


def test_the_weights_of_a_plain_sequential_are_kept_as_the_error_says(tmp_path):
    def layers():
        return nn.Dense(4, activation="relu"), nn.BatchNorm(), nn.Dense(2)

    plain = both(nn.Sequential, made_of(nn.Sequential, *layers()), nn.Dense(3))
    x = mx.nd.random.normal(shape=(5, 6))
    expected = plain(x).asnumpy()
    way_out = r"trained weights stay: net.save_parameters\('net.params'\), then load_parameters"
    with pytest.raises(ValueError, match=way_out):
        deploy.export(plain, tmp_path / "model", x)
    plain.save_parameters(str(tmp_path / "net.params"))
    net = made_of(nn.HybridSequential, made_of(nn.HybridSequential, *layers()), nn.Dense(3))
    net.load_parameters(str(tmp_path / "net.params"))
    predictor = deploy.Predictor(deploy.export(net, tmp_path / "model", x))
    np.testing.assert_allclose(predictor(x), expected, rtol=1e-5, atol=1e-6)


def of(function, in_units=2):
    return both(nn.HybridSequential, nn.Dense(3, in_units=in_units), OutOfGraph(function))


class Unused(gluon.HybridBlock):
    def hybrid_forward(self, F, x, y):
        return x * 2


X = np.ones((2, 2), "float32")
BAD = {
    "no block": (lambda: 3, X, {}, TypeError, "net must be a gluon HybridBlock, got 3"),
    "no array": (lambda: of(lambda F, x: x), "x", {}, TypeError, "sample 0 must be an NDArray or"),
    "no sample": (lambda: of(lambda F, x: x), (), {}, ValueError, "sample is empty"),
    "empty": (lambda: of(lambda F, x: x), X[:0], {}, ValueError, r"got the shape \(0, 2\)"),
    "wrong shape": (lambda: of(lambda F, x: x), np.ones((2, 3)), {}, ValueError, "net takes no ba"),
    "wrong dtype": (
        lambda: of(lambda F, x: x),
        X.astype("int32"),
        {},
        ValueError,
        r"net takes no batch of 2 samples .* dtypes \['int32'\] \(its arrays do not fit",
    ),
    "no batch axis": (
        lambda: of(lambda F, x: x.sum()),
        X,
        {},
        ValueError,
        "output 0 of net has the",
    ),
    "fixed batch": (
        lambda: of(lambda F, x: x.reshape((2, 3)) * 2),
        X,
        {},
        ValueError,
        "net takes no batch of 3 samples|output 0 of net has the shape",
    ),
    "unused input": (Unused, (X, X), {}, ValueError, "no layer of net uses the input 'data1'"),
    "other graph": (
        lambda: of(lambda F, x: x * (2 if F is mx.nd else 3)),
        X,
        {},
        ValueError,
        "output 0 of the graph differs from the net's by",
    ),
    "names": (
        lambda: of(lambda F, x: x),
        X,
        {"input_names": ["a", "b"]},
        ValueError,
        "1 different",
    ),
    "name of text": (
        lambda: of(lambda F, x: x),
        X,
        {"input_names": "a"},
        ValueError,
        "1 different",
    ),
    "classes": (
        lambda: of(lambda F, x: x),
        X,
        {"class_names": ["a"]},
        ValueError,
        r"class_names has 1 names, net has outputs of the shapes \[\(3,\)\]",
    ),
    "class": (
        lambda: of(lambda F, x: x),
        X,
        {"class_names": "abc"},
        TypeError,
        "class_names must be",
    ),
    "metrics": (
        lambda: of(lambda F, x: x),
        X,
        {"metrics": {"a": "b"}},
        TypeError,
        "metrics must be",
    ),
    "normalization": (
        lambda: of(lambda F, x: x),
        X,
        {"normalization": ([0], [1])},
        ValueError,
        "normalization is for one input of images",
    ),
    "no normalization": (
        lambda: of(lambda F, x: x),
        X,
        {"normalization": {"average": 1}},
        TypeError,
        "normalization must be a Normalization",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_errors(case, tmp_path):
    net, sample, options, error, message = BAD[case]
    with pytest.raises(error, match=message):
        deploy.export(net(), tmp_path / "model", sample, **options)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (([0.5], [0.5]), "mean must have a finite number for each of the 3 channels"),
        (([0.5] * 3, [0.5] * 2), "std must have a finite number for each of the 3"),
        (([float("nan")] * 3, [0.5] * 3), "mean must have a finite"),
        (([0.5] * 3, [0.5, 0, 1]), "std and scale must be above 0"),
        (([0.5] * 3, [0.5] * 3, 0), "std and scale must be above 0"),
    ],
)
def test_normalizations_that_do_not_fit(net, x, tmp_path, given, message):
    with pytest.raises(ValueError, match=message):
        deploy.export(net, tmp_path / "model", x, normalization=given)


def test_a_network_without_values(tmp_path):
    net = nn.HybridSequential()
    net.add(nn.Dense(3))
    with pytest.raises(
        ValueError, match=r"net is not initialized: its parameter 'dense\d+_weight'"
    ):
        deploy.export(net, tmp_path / "model", mx.nd.ones((1, 2)))


def test_the_input_may_not_be_called_as_a_parameter(net, x, tmp_path):
    name = net[0].weight.name
    with pytest.raises(ValueError, match=f"input_names has '{name}', which is a parameter"):
        deploy.export(net, tmp_path / "model", x, input_names=[name])


def test_a_custom_operator_is_refused(tmp_path):
    @mx.operator.register("deploy_test_identity")
    class Identity(mx.operator.CustomOpProp):
        def create_operator(self, ctx, shapes, dtypes):
            return mx.operator.CustomOp()

    net = of(lambda F, x: F.Custom(x, op_type="deploy_test_identity", name="mine"))
    with pytest.raises(ValueError, match=r"its operator '.*mine' is the custom operator"):
        deploy.export(net, tmp_path / "model", X)


class TestTarget:
    def test_an_empty_folder_is_taken(self, net, x, tmp_path):
        (tmp_path / "a").mkdir()
        assert deploy.read_card(deploy.export(net, tmp_path / "a", x))

    def test_a_model_is_replaced_on_demand_alone(self, model, net, x):
        net[5].bias.data()[:] = 7
        with pytest.raises(FileExistsError, match="exists already: replace it with overwrite=Tr"):
            deploy.export(net, model, x)
        deploy.export(net, model, x, overwrite=True)
        np.testing.assert_allclose(deploy.Predictor.load(model)(x), outputs_of(net, x), atol=1e-5)
        assert [p.name for p in model.parent.iterdir()] == ["model"]

    @pytest.mark.parametrize("name", ["a file", "a folder", "a model with more"])
    def test_nothing_else_is_replaced(self, name, model, net, x, tmp_path):
        path = tmp_path / "other"
        if name == "a file":
            path.write_text("mine")
        else:
            model.rename(path) if "model" in name else path.mkdir()
            (path / "notes.txt").write_text("mine")
        with pytest.raises(FileExistsError, match=r"holds (notes.txt|other): only a model"):
            deploy.export(net, path, x, overwrite=True)

    def test_a_failure_leaves_what_was_there(self, model, net, x, monkeypatch):
        before = {path.name: path.read_bytes() for path in model.iterdir()}

        def fail(path, content):
            raise OSError("no space left")

        monkeypatch.setattr("gluon_svrg.deploy.model_dir.write_through", fail)
        with pytest.raises(OSError, match="no space left"):
            deploy.export(net, model, x, overwrite=True)
        assert {path.name: path.read_bytes() for path in model.iterdir()} == before
        assert [path.name for path in model.parent.iterdir()] == ["model"]

    def test_a_system_that_cannot_exchange_names(self, model, x, monkeypatch):
        monkeypatch.setattr("gluon_svrg.deploy.model_dir.exchange", lambda one, other: False)
        net = nn.Dense(2)
        net.initialize()
        deploy.export(net, model, x, overwrite=True)
        assert deploy.Predictor(model)(x).shape == (5, 2)
        assert [path.name for path in model.parent.iterdir()] == ["model"]

    def test_what_is_left_of_a_killed_export_goes_once_there_is_a_model(
        self, model, net, x, monkeypatch
    ):
        host = os.uname().nodename.replace(".", "_")
        # It may be the only model.
        left = model.parent / f".model.{host}.{2**31 - 1}-01234567-0.tmp"
        left.mkdir()
        with monkeypatch.context() as patch:
            patch.setattr("gluon_svrg.deploy.model_dir.write_through", lambda path, content: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                deploy.export(net, model, x, overwrite=True)
        assert left.exists()
        deploy.export(net, model, x, overwrite=True)
        assert [path.name for path in model.parent.iterdir()] == ["model"]

    def test_threads_that_export_to_one_name(self, x, tmp_path):
        errors, nets = [], [nn.Dense(3, in_units=x[0].size) for _ in range(3)]

        def export(net):
            try:
                net.initialize()
                for _ in range(5):
                    deploy.export(net, tmp_path / "new", x, overwrite=True)
            except Exception as e:
                errors.append(e)

        threads = [threading.Thread(target=export, args=[net]) for net in nets]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not errors
        assert deploy.Predictor(tmp_path / "new")(x).shape == (5, 3)
        assert [path.name for path in tmp_path.iterdir()] == ["new"]
