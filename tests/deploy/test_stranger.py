"""A model directory from somebody else: sealed anew after a change, as anybody can do it."""

import ctypes
import hashlib
import json
import os
import subprocess
import sys

import gluoncv  # noqa: F401  # its models are made of the operators that are loaded
import mxnet as mx
import numpy as np
import pytest
from gluon_svrg import deploy
from gluon_svrg.deploy import graph
from gluon_svrg.deploy.__main__ import main
from gluon_svrg.deploy.card import _sealed
from gluoncv.model_zoo import get_model
from mxnet import gluon
from mxnet.gluon import nn


def seal(model):
    """Write card and checksums anew."""
    card = json.loads((model / "model.json").read_text())
    card.pop("sha256", None)
    for name in card.get("files", {}):
        content = (model / name).read_bytes()
        card["files"][name] = {
            "bytes": len(content),
            "sha256": hashlib.sha256(content).hexdigest(),
        }
    (model / "model.json").write_text(_sealed(card))


def with_graph(model, change):
    path = model / "model-symbol.json"
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))
    seal(model)


def convolution(content):
    return next(node for node in content["nodes"] if node["op"] == "Convolution")


def set_op(op, **attrs):
    def change(content):
        convolution(content).update(op=op, attrs=attrs)

    return change


def set_output(content):
    convolution(content)["inputs"][0][1] = 7


def set_head(content):
    content["heads"][0][1] = 10**9


def set_later_node(content):
    convolution(content)["inputs"][0][0] = len(content["nodes"]) - 1


def set_negative_node(content):
    convolution(content)["inputs"][0][0] = -1


def set_second_output(content):
    convolution(content)["inputs"][1][1] = 1


GRAPHS = {
    "_NDArray": (set_op("_NDArray", info="0x41414141"), "because it can run code"),
    "_Native": (set_op("_Native", info="0x41414141"), "because it can run code"),
    "Custom": (set_op("Custom", op_type="x"), "because it can run code"),
    "gather_nd": (set_op("gather_nd"), "'gather_nd' is none of those that are loaded"),
    "no such operator": (set_op("nothing"), "'nothing' is none of those"),
    "an output that is not there": (set_output, "names output 7 of node 0, which is not there"),
    "another": (set_second_output, "names output 1 of node 1"),
    "a head that is not there": (set_head, "names output 1000000000 of node"),
    "a later node": (set_later_node, "which is not there"),
    "a negative node": (set_negative_node, "names output 0 of node -1"),
    "no nodes": (lambda content: content.pop("nodes"), "not as MXNet writes it"),
    "no heads": (lambda content: content.update(heads=[]), "it has no output"),
    "an attribute of another kind": (
        lambda content: convolution(content)["attrs"].update(kernel=3),
        "an attribute that is no text",
    ),
    "an attribute that is wrong": (
        lambda content: convolution(content)["attrs"].update(kernel="(9999999999999,)"),
        "the node 'tiny_conv0_fwd'|shapes do not fit",
    ),
    "a subgraph": (
        lambda content: convolution(content).update(subgraphs=[]),
        "'Convolution' has a subgraph",
    ),
}


@pytest.mark.parametrize("name", GRAPHS)
def test_a_graph_that_export_does_not_write(name, model):
    change, message = GRAPHS[name]
    with_graph(model, change)
    with pytest.raises(ValueError, match=message):
        deploy.Predictor.load(model)


def test_no_address_in_a_graph_is_called(model):
    called = []
    table = ctypes.CFUNCTYPE(ctypes.c_bool)(lambda: bool(called.append(1)))
    address = ctypes.cast(table, ctypes.c_void_p).value
    before = (model / "model-symbol.json").read_bytes()
    for op in ("_NDArray", "_Native"):
        (model / "model-symbol.json").write_bytes(before)
        with_graph(model, set_op(op, info=hex(address)))
        for operators in ([], [op]):
            with pytest.raises(ValueError, match="can run code"):
                deploy.Predictor(model, operators=operators)
    assert called == []


def deep():
    return "[" * 100_000


CARDS = {
    "no inputs": lambda card: card.pop("inputs"),
    "no files": lambda card: card.pop("files"),
    "inputs are a text": lambda card: card.update(inputs="data"),
    "a great shape": lambda card: card["inputs"][0].update(shape=[2**40]),
    "a negative shape": lambda card: card["inputs"][0].update(shape=[-1, 8, 6]),
    "another shape": lambda card: card["inputs"][0].update(shape=[4, 8, 6]),
    "another name": lambda card: card["inputs"][0].update(name="other"),
    "an object dtype": lambda card: card["inputs"][0].update(dtype="object"),
    "a structure": lambda card: card["outputs"].update(structure={"tuple": ["array", "array"]}),
    "a structure of what": lambda card: card["outputs"].update(structure={"what": []}),
    "output shapes": lambda card: card["outputs"].update(shapes=[[4]]),
    "class names": lambda card: card.update(class_names=["a"]),
    "class names of numbers": lambda card: card.update(class_names=[1, 2, 3]),
    "logits": lambda card: card.update(from_logits=1),
    "precision": lambda card: card.update(precision="float8"),
    "normalization": lambda card: card.update(normalization={"mean": [1]}),
    "format": lambda card: card.update(format="1"),
    "size": lambda card: card["files"]["model-symbol.json"].update(bytes="9"),
}


@pytest.mark.parametrize("name", CARDS)
def test_a_card_that_export_does_not_write(name, model, capsys):
    card = json.loads((model / "model.json").read_text())
    card.pop("sha256")
    CARDS[name](card)
    (model / "model.json").write_text(_sealed(card))
    with pytest.raises(ValueError, match=r"."):
        deploy.Predictor.load(model)
    assert main(["predict", str(model), "nothing.png"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize("name", ["model.json", "model-symbol.json", "model-0000.params"])
def test_a_pipe_is_not_waited_for(name, model):
    (model / name).unlink()
    os.mkfifo(model / name)
    with pytest.raises(ValueError, match="is no regular file"):
        deploy.Predictor.load(model)


def test_deep_json_is_refused(model):
    (model / "model-symbol.json").write_text(deep())
    seal(model)
    with pytest.raises(ValueError, match="is none that export writes"):
        deploy.Predictor.load(model)
    (model / "model.json").write_text(deep())
    with pytest.raises(ValueError, match="is not as it was written"):
        deploy.Predictor.load(model)


def test_an_operator_that_is_not_known_needs_its_name(tmp_path):
    class Gathers(gluon.HybridBlock):
        def hybrid_forward(self, F, x):
            rows = F.contrib.arange_like(x, axis=0)
            return F.gather_nd(x, F.stack(rows, F.zeros_like(rows))).reshape((-1, 1))

    x = np.ones((1, 3), "float32")
    with pytest.warns(UserWarning, match=r"load the model with operators=\['gather_nd'\]"):
        path = deploy.export(Gathers(), tmp_path / "model", np.ones((2, 3), "float32"))
    with pytest.raises(ValueError, match="'gather_nd' is none of those that are loaded"):
        deploy.Predictor.load(path)
    assert deploy.Predictor.load(path, operators=["gather_nd"])(x).shape == (1, 1)


GLUON = ["resnet18_v2", "vgg11_bn", "alexnet", "densenet121", "squeezenet1.0", "inceptionv3",
         "mobilenet1.0", "mobilenetv2_1.0"]  # fmt: skip
GLUONCV = ["cifar_resnet20_v1", "cifar_wideresnet16_10", "cifar_resnext29_32x4d", "resnet50_v1d",
           "se_resnet18_v1", "senet_154", "mobilenetv3_large", "xception", "resnest14"]  # fmt: skip


@pytest.mark.parametrize("name", [*GLUON, *GLUONCV])
def test_the_model_zoos_are_made_of_operators_that_are_loaded(name):
    make = gluon.model_zoo.vision.get_model if name in GLUON else get_model
    symbol = make(name)(mx.sym.var("data"))
    assert graph.operators_in(symbol) <= graph.OPERATORS
    loaded = graph.load(symbol.tojson())
    assert loaded.list_inputs() == symbol.list_inputs()
    assert loaded.list_outputs() == symbol.list_outputs()


def test_layers_of_gluon_are_made_of_operators_that_are_loaded():
    layers = [
        nn.Dense(2, activation="tanh"), nn.LayerNorm(), nn.InstanceNorm(), nn.GroupNorm(),
        nn.Embedding(3, 2), nn.PReLU(), nn.SELU(), nn.GELU(), nn.Swish(), nn.ELU(), nn.LeakyReLU(1),
        nn.ReflectionPad2D(1), nn.Conv2DTranspose(2, 3), nn.Conv3D(2, 3), nn.AvgPool1D(),
        nn.BatchNorm(), nn.Flatten(), nn.GlobalMaxPool3D(), gluon.rnn.GRU(2, layout="NTC"),
        gluon.rnn.LSTM(2, bidirectional=True), gluon.contrib.nn.PixelShuffle2D(2),
    ]  # fmt: skip
    for layer in layers:
        out = layer(mx.sym.var("data"))
        assert graph.operators_in(out) <= graph.OPERATORS, layer


def test_layers_of_gluon_in_numpy_mode_are_made_of_operators_that_are_loaded():
    mx.npx.set_np()
    try:
        layers = [
            nn.Dense(2, activation="tanh"), nn.LayerNorm(), nn.Embedding(3, 2), nn.PReLU(),
            nn.SELU(), nn.GELU(), nn.Swish(), nn.ELU(), nn.LeakyReLU(1), nn.Conv1D(2, 3),
            nn.Conv2D(2, 3), nn.Conv3D(2, 3), nn.Conv2DTranspose(2, 3), nn.AvgPool1D(),
            nn.MaxPool2D(), nn.BatchNorm(), nn.Flatten(), nn.GlobalAvgPool2D(), nn.Dropout(0.5),
            nn.GlobalMaxPool3D(), nn.Activation("relu"), gluon.rnn.RNN(2),
            gluon.rnn.GRU(2, layout="NTC"), gluon.rnn.LSTM(2, bidirectional=True),
        ]  # fmt: skip
        for layer in layers:
            out = layer(mx.sym.var("data").as_np_ndarray())
            assert graph.operators_in(out) <= graph.OPERATORS, layer
            loaded = graph.load(out.tojson())
            assert loaded.list_inputs() == out.list_inputs()
    finally:
        mx.npx.reset_np()


def test_other_names_of_the_operators_that_run_code_are_refused_too(model):
    before = (model / "model-symbol.json").read_text()
    for name in ("_npi_Custom", "_npi_cvimread", "_npi_cvimdecode"):
        (model / "model-symbol.json").write_text(before)
        with_graph(model, set_op(name, op_type="x"))
        with pytest.raises(ValueError, match="is none of those that are loaded, because it can"):
            deploy.Predictor.load(model, operators=[name])


def test_no_registered_operator_of_a_dangerous_kind_is_loaded():
    assert not graph.OPERATORS & graph.REFUSED
    for word in ("Custom", "Native", "NDArray", "imread", "imdecode", "gather_nd", "scatter_nd"):
        assert not [name for name in graph.OPERATORS if word in name]


def test_the_command_line_ends_with_one_line(model, tmp_path):
    with_graph(model, set_op("_Native", info="0x1"))
    done = subprocess.run(
        [sys.executable, "-m", "gluon_svrg.deploy", "benchmark", str(model)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
