"""A model directory from an untrusted source, with valid checksums after a change."""

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
from gluon_svrg.arrays.params import to_bytes
from gluon_svrg.deploy import graph
from gluon_svrg.deploy.__main__ import main
from gluon_svrg.deploy.model_dir import _sealed, write_model
from gluon_svrg.files import DamagedError
from gluoncv.model_zoo import get_model
from mxnet import gluon
from mxnet.gluon import nn


def seal(model):
    """Write card and checksums again."""
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
    "_NDArray": (set_op("_NDArray", info="0x41414141"), "because they can run code"),
    "_Native": (set_op("_Native", info="0x41414141"), "because they can run code"),
    "Custom": (set_op("Custom", op_type="x"), "because they can run code"),
    "gather_nd": (set_op("gather_nd"), r"\['gather_nd'\] are not known to check"),
    "no such operator": (set_op("nothing"), r"\['nothing'\] are not known to check"),
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
        r"'tiny_conv0_fwd' of Convolution has kernel=\(9999999999999,\)",
    ),
    "a subgraph": (
        lambda content: convolution(content).update(subgraphs=[{}]),
        "'Convolution' has 1 subgraphs",
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
    with pytest.raises(ValueError, match="cannot be loaded: its graph is not as MXNet writes it"):
        deploy.Predictor.load(model)
    (model / "model.json").write_text(deep())
    with pytest.raises(ValueError, match="is not as it was written"):
        deploy.Predictor.load(model)


class Picks(gluon.HybridBlock):
    """Has an operator that is loaded only if it is named."""

    def __init__(self):
        super().__init__()
        with self.name_scope():
            self.dense = nn.Dense(4, in_units=3)

    def hybrid_forward(self, F, x):
        x = self.dense(x)
        return F.pick(x, F.argmax(x, axis=1), axis=1).reshape((-1, 1))


@pytest.fixture
def picks(tmp_path):
    net = Picks()
    net.initialize(mx.init.Normal(1))
    x = np.random.default_rng(0).normal(size=(40, 3)).astype("float32")
    with pytest.warns(UserWarning, match=r"load the model with operators=\['pick'\]"):
        return deploy.export(net, tmp_path / "model", x), x


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*no VNNI")
def test_an_operator_that_is_not_known_needs_its_name(picks, tmp_path, capsys):
    path, x = picks
    for load in (
        lambda **named: deploy.Predictor(path, **named),
        lambda **named: deploy.benchmark(path, [1], 0.01, **named),
        lambda **named: deploy.quantize(path, tmp_path / "int8", x, **named),
    ):
        with pytest.raises(ValueError, match=r"cannot be loaded: .* load it with operators=\['p"):
            load()
        load(operators=["pick"])
    pytest.importorskip("onnx", reason="the extra onnx is not installed")
    with pytest.raises(ValueError, match=r"load it with operators=\['pick'\]"):
        deploy.export_onnx(path, tmp_path / "model.onnx")
    with pytest.raises(ValueError, match=r"cannot translate the model .* op type pick"):
        deploy.export_onnx(path, tmp_path / "model.onnx", operators=["pick"])
    assert deploy.Predictor(tmp_path / "int8", operators=("pick",))(x).shape == (40, 1)
    assert main(["benchmark", str(path)]) == 2
    assert "give --operator for each of ['pick']" in capsys.readouterr().err
    assert main(["benchmark", str(path), "--operator", "pick", "--seconds", "0.01"]) == 0


@pytest.mark.parametrize("operators", ["pick", None, [1]])
def test_operators_of_another_type(operators, picks):
    with pytest.raises(TypeError, match="operators must be a sequence of names of operators, got"):
        deploy.Predictor(picks[0], operators=operators)


def write_graph(path, node, params, shape, outputs):
    """Write a model of one input and one operator, without `export`."""
    op, attrs = node
    names = ["data", *params]
    nodes = [{"op": "null", "name": name, "inputs": []} for name in names]
    inputs = [[i, 0, 0] for i in range(len(names))]
    nodes.append({"op": op, "name": "node", "attrs": attrs, "inputs": inputs})
    content = {
        "nodes": nodes,
        "arg_nodes": list(range(len(names))),
        "heads": [[len(names), 0, 0]],
        "attrs": {"mxnet_version": ["int", 10901]},
    }
    card = {
        "inputs": [{"name": "data", "shape": list(shape), "dtype": "float32"}],
        "outputs": {"structure": "array", "shapes": [list(outputs)], "dtypes": ["float32"]},
        "precision": "float32", "normalization": None, "class_names": None, "from_logits": True,
        "metrics": {},
    }  # fmt: skip
    stored = {
        f"{'aux' if name in ('mean', 'var') else 'arg'}:{name}": mx.nd.ones(size)
        for name, size in params.items()
    }
    return write_model(path, card, json.dumps(content), stored, False)


CONV = {"kernel": "(3, 3)", "num_filter": "4", "no_bias": "True"}
NORM = dict.fromkeys(("gamma", "beta", "mean", "var"), (1,))
HEADS = "_contrib_interleaved_matmul_selfatt_valatt"
# Each of them killed the process, hung it, or let it go beyond its memory.
HOSTILE = {
    "a convolution of no groups": (
        ("Convolution", {**CONV, "num_group": "0"}), {"w": (4, 3, 3, 3)}, (3, 8, 8), (4, 6, 6),
        "has num_group=0"),
    "its transpose": (
        ("Deconvolution", {**CONV, "num_group": "0"}), {"w": (3, 4, 3, 3)}, (3, 8, 8), (4, 10, 10),
        "has num_group=0"),
    "a norm of no groups": (
        ("GroupNorm", {"num_groups": "0"}), {"g": (4,), "b": (4,)}, (4, 8), (4, 8),
        "has num_groups=0"),
    "no repeats": (
        ("_contrib_arange_like", {"repeat": "0"}), {}, (4, 4), (4, 4), "has repeat=0"),
    "no heads": (
        (HEADS, {"heads": "0"}), {"att": (2, 5, 5)}, (5, 24), (5, 8), "has heads=0"),
    "too many heads": (
        (HEADS, {"heads": "100"}), {"att": (5, 1, 1)}, (5, 24), (5, 8), "arrays do not fit"),
    "many outputs": (
        ("SliceChannel", {"num_outputs": "100000000"}), {}, (4, 4), (4, 4),
        "has num_outputs=100000000"),
    "fewer outputs than none": (
        ("amp_multicast", {"num_outputs": "-1"}), {}, (4, 4), (4, 4), "not known to check"),
    "more arguments than it has": (
        ("add_n", {"num_args": "5"}), {}, (4, 4), (4, 4), "has num_args=5"),
    "a negative kernel": (
        ("Pooling", {"kernel": "(-2, -2)", "pool_type": "sum", "stride": "(1, 1)"}), {}, (3, 8, 8),
        (3, 11, 11), r"has kernel=\(-2, -2\)"),
    "a norm of other channels": (
        ("BatchNorm", {}), NORM, (3, 8, 8), (3, 8, 8), r"'gamma' is .*\(1,\).* not .*\(3,\)"),
    "a part of the numbers": (
        ("Reshape", {"shape": "(1, 8)"}), {}, (4, 4), (8,), "arrays do not fit: 'node' is given"),
    "lengths of a softmax": (
        ("softmax", {"use_length": "True", "axis": "1"}), {"length": (1, 4)}, (8, 4), (8, 4),
        "has use_length=True"),
    "lengths of sequences": (
        ("SequenceLast", {"use_sequence_length": "True"}), {"length": (4,)}, (4, 8), (8,),
        "not known to check"),
    "a fused layer without its layers": (
        ("_sg_mkldnn_fully_connected", {}), {"w": (4, 4)}, (4,), (4,), "has 0 subgraphs"),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_what_mxnet_does_not_check(name, tmp_path):
    *model, message = HOSTILE[name]
    path = write_graph(tmp_path / "model", *model)
    with pytest.raises(ValueError, match=f"cannot be loaded: .*{message}"):
        deploy.Predictor.load(path)


def test_an_array_in_the_middle_has_no_more_numbers_than_32_bits_count():
    large = mx.sym.tile(mx.sym.var("data"), reps=(1, 65536, 65536))
    given = {"data": graph.Array((1, 1, 1), np.dtype("float32"))}
    with pytest.raises(DamagedError, match=r"has the shape \(1, 65536, 65536\), which is not comp"):
        graph.check_arrays(mx.sym.max(large, axis=(1, 2)), given)


def test_a_named_operator_is_not_checked(tmp_path):
    node = ("softmax", {"use_length": "True", "axis": "1"})
    path = write_graph(tmp_path / "model", node, {"length": (1,)}, (4,), (4,))
    params = {"arg:length": mx.nd.array([2], dtype="int32")}
    (path / "model-0000.params").write_bytes(to_bytes(params))
    seal(path)
    with pytest.raises(ValueError, match=r"load it with operators=\['softmax'\]"):
        deploy.Predictor(path)
    found = deploy.Predictor(path, operators=["softmax"])(np.zeros((1, 4), "float32"))
    np.testing.assert_allclose(found, [[0.5, 0.5, 0, 0]])


# These fit batches of one sample alone.
ONE_ROW = {
    "a shape": (("Reshape", {"shape": "(1, 16)"}), {}, (4, 4), (16,)),
    "a choice": (("where", {}), {"w": (1, 4, 4), "v": (1, 4, 4)}, (4, 4), (4, 4)),
}


@pytest.mark.parametrize("name", ONE_ROW)
def test_batches_for_which_the_arrays_do_not_suffice(name, tmp_path):
    predictor = deploy.Predictor(write_graph(tmp_path / "model", *ONE_ROW[name]))
    assert predictor(np.ones((1, 4, 4), "float32")).size == 16
    with pytest.raises(ValueError, match="its arrays do not fit"):
        predictor(np.ones((4, 4, 4), "float32"))


POOLS = [
    {"kernel": "(2, 2)", "pad": "(5, 5)", "pool_type": "max"},
    {"kernel": "(2, 2)", "pool_type": "lp", "p_value": "0"},
]


@pytest.mark.parametrize("attrs", POOLS)
def test_what_mxnet_notices_when_it_runs(attrs, tmp_path, capsys):
    size = 17 if "pad" in attrs else 7
    node = ("Pooling", attrs)
    path = write_graph(tmp_path / "model", node, {}, (3, 8, 8), (3, size, size))
    with pytest.raises(ValueError, match="MXNet cannot run the model"):
        deploy.Predictor.load(path)(np.ones((1, 3, 8, 8), "float32"))
    assert main(["benchmark", str(path)]) == 2
    assert capsys.readouterr().err.startswith("error: MXNet cannot run the model")


@pytest.mark.parametrize("dtype", ["float64", "int32"])
def test_other_dtypes_than_the_graph_needs(dtype, model, capfd):
    card = json.loads((model / "model.json").read_text())
    card["inputs"][0]["dtype"] = dtype
    (model / "model.json").write_text(json.dumps(card))
    seal(model)
    with pytest.raises(ValueError, match="its arrays do not fit"):
        deploy.Predictor(model)
    assert capfd.readouterr().out == ""


def test_shapes_that_do_not_fit_are_not_printed(model, capfd):
    card = json.loads((model / "model.json").read_text())
    card["inputs"][0]["shape"] = [4, 8, 6]
    (model / "model.json").write_text(json.dumps(card))
    seal(model)
    with pytest.raises(ValueError, match="its arrays do not fit"):
        deploy.Predictor(model)
    assert capfd.readouterr().out == ""


def test_a_card_that_takes_all_memory(model):
    with open(model / "model.json", "r+b") as file:
        file.truncate(2**36)
    with pytest.raises(ValueError, match="bytes, more than"):
        deploy.Predictor(model)


GLUON = ["resnet18_v2", "vgg11_bn", "alexnet", "densenet121", "squeezenet1.0", "inceptionv3",
         "mobilenet1.0", "mobilenetv2_1.0"]  # fmt: skip
GLUONCV = ["cifar_resnet20_v1", "cifar_wideresnet16_10", "cifar_resnext29_32x4d", "resnet50_v1d",
           "se_resnet18_v1", "senet_154", "mobilenetv3_large", "xception", "resnest14"]  # fmt: skip


@pytest.mark.parametrize("name", [*GLUON, *GLUONCV])
def test_the_model_zoos_are_made_of_operators_that_are_loaded(name):
    make = gluon.model_zoo.vision.get_model if name in GLUON else get_model
    symbol = make(name)(mx.sym.var("data"))
    assert not graph.unlisted_in(symbol)
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
        assert not graph.unlisted_in(out), layer


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
            assert graph.unlisted_in(out) == set(), layer
            loaded = graph.load(out.tojson())
            assert loaded.list_inputs() == out.list_inputs()
    finally:
        mx.npx.reset_np()


def test_other_names_of_the_operators_that_run_code_are_refused_too(model):
    before = (model / "model-symbol.json").read_text()
    for name in ("_npi_Custom", "_npi_cvimread", "_npi_cvimdecode"):
        (model / "model-symbol.json").write_text(before)
        with_graph(model, set_op(name, op_type="x"))
        with pytest.raises(ValueError, match="are never loaded, because they can run code"):
            deploy.Predictor.load(model, operators=[name])


def test_no_registered_operator_of_a_dangerous_kind_is_loaded():
    assert not graph.OPERATORS & graph.REFUSED
    for word in ("Custom", "Native", "NDArray", "imread", "imdecode", "gather_nd", "scatter_nd"):
        assert not [name for name in graph.OPERATORS if word in name]


@pytest.mark.full
def test_the_command_line_ends_with_one_line(model, tmp_path):
    with_graph(model, set_op("_Native", info="0x1"))
    done = subprocess.run(
        [sys.executable, "-m", "gluon_svrg.deploy", "benchmark", str(model)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
