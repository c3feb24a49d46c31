"""An ONNX file from an untrusted source: what is refused before onnxruntime reads it."""

import random

import mxnet as mx
import numpy as np
import pytest
from gluon_svrg import deploy
from gluon_svrg.deploy import onnx_graph
from gluon_svrg.deploy.model_dir import read_model
from gluon_svrg.files import DamagedError
from gluoncv.model_zoo import get_model
from mxnet import gluon

onnx = pytest.importorskip("onnx", reason="the extra onnx is not installed")
pytest.importorskip("onnxruntime")
from onnx import TensorProto, helper, numpy_helper  # noqa: E402


def file_of(*nodes, initializers=(), dtype=TensorProto.FLOAT, **parts):
    """A file with the input data and the output out."""
    data = helper.make_tensor_value_info("data", dtype, ["batch", 4])
    out = helper.make_tensor_value_info("out", TensorProto.FLOAT, ["batch", 4])
    graph = helper.make_graph(list(nodes), "graph", [data], [out], list(initializers))
    opsets = [helper.make_opsetid("", 13)]
    return helper.make_model(graph, opset_imports=opsets, **parts)


def node(op, *inputs, out="out", **attributes):
    return helper.make_node(op, inputs, [out], **attributes)


def array(name, values, dtype="float32"):
    return numpy_helper.from_array(np.array(values, dtype), name)


def external():
    tensor = array("w", [1.0] * 4)
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    entry = tensor.external_data.add()
    entry.key, entry.value = "location", "/etc/passwd"
    return file_of(node("Add", "data", "w"), initializers=[tensor])


def external_constant():
    (tensor,) = external().graph.initializer
    return file_of(node("Constant", out="w", value=tensor), node("Add", "data", "w"))


def loop():
    body = helper.make_graph([], "body", [], [])
    return file_of(node("Loop", "", "", "data", body=body))


def a_graph_in_an_attribute():
    return file_of(node("Relu", "data", body=helper.make_graph([], "body", [], [])))


def a_function():
    function = helper.make_function(
        "", "Relu", ["x"], ["y"], [helper.make_node("Loop", ["x"], ["y"])], []
    )
    return file_of(node("Relu", "data"), functions=[function])


def of_another_domain():
    return file_of(node("FusedConv", "data", domain="com.microsoft"))


def of_a_hidden_domain():
    return file_of(node("Relu", "data", domain="com.microsoft"))


def an_opset_of_another_domain():
    model = file_of(node("Relu", "data"))
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    return model


def two_graphs():
    one = file_of(node("Relu", "data")).SerializeToString()
    return one + one


def integer_division():
    return file_of(
        node("Cast", "data", out="i", to=TensorProto.INT64),
        node("Div", "i", "zero", out="q"),
        node("Cast", "q", to=TensorProto.FLOAT),
        initializers=[array("zero", [0], "int64")],
    )


def hidden_integer_division():
    return file_of(
        node("Shape", "data", out="s"),
        node("Gather", "s", "zero", out="n"),
        node("Div", "n", "zero", out="q"),
        node("Cast", "q", to=TensorProto.FLOAT),
        initializers=[array("zero", [0], "int64")],
    )


def division_of_an_input_of_integers():
    return file_of(node("Div", "data", "data"), dtype=TensorProto.INT32)


def a_convolution(**attributes):
    weight = array("w", np.ones((1, 4, 1)))
    return file_of(node("Conv", "data", "w", **attributes), initializers=[weight])


def an_unknown_array():
    return file_of(node("Add", "data", "later"), node("Relu", "data", out="later"))


def a_sparse_array():
    model = file_of(node("Relu", "data"))
    model.graph.sparse_initializer.add()
    return model


def texts():
    tensor = helper.make_tensor("w", TensorProto.STRING, [1], [b"a"])
    return file_of(node("Relu", "data"), initializers=[tensor])


FILES = {
    "another file": (external, "its tensor has the field 1[34]"),
    "another file, of a constant": (external_constant, "its tensor has the field 1[34]"),
    "a loop": (loop, "operator b'Loop' is not known"),
    "a graph": (a_graph_in_an_attribute, "its attribute has the field 6"),
    "a function": (a_function, "its model has the field 25"),
    "another domain": (of_another_domain, "operator b'FusedConv' is not known to be safe"),
    "a hidden domain": (of_a_hidden_domain, "of b'com.microsoft', which are not known"),
    "an opset": (an_opset_of_another_domain, "of b'com.microsoft', which are not known"),
    "two graphs": (two_graphs, "it has 2 graphs"),
    "a division": (integer_division, "its Div divides integers"),
    "a hidden division": (hidden_integer_division, "its Div divides integers"),
    "an input": (division_of_an_input_of_integers, "its Div divides integers"),
    "no groups": (lambda: a_convolution(group=0), r"an operator has group=\[0\]"),
    "no stride": (lambda: a_convolution(strides=[0]), r"an operator has strides=\[0\]"),
    "a negative kernel": (lambda: a_convolution(kernel_shape=[-1]), r"kernel_shape=\[-1\]"),
    "a great pad": (lambda: a_convolution(pads=[2**40, 0]), r"has pads=\[1099511627776, 0\]"),
    "an order": (an_unknown_array, "reads what no other has written before"),
    "a sparse array": (a_sparse_array, "its graph has the field 15"),
    "texts": (texts, "its tensor has the field 6"),
    "a size": (lambda: file_of(node("Range", "data", "data", "data")), "b'Range' is not known"),
    "nothing": (lambda: b"", "it has 0 graphs"),
    "text": (lambda: b"# a text\n" * 9, "."),
}  # fmt: skip


@pytest.mark.parametrize("name", FILES)
def test_what_export_does_not_write(name, model):
    make, message = FILES[name]
    content = make()
    if not isinstance(content, bytes):
        content = content.SerializeToString()
    with pytest.raises(DamagedError, match=message):
        onnx_graph.check(content)
    predictor = deploy.Predictor(read_model(model)._replace(onnx=content))
    assert predictor.engine == "mxnet"


def test_divisions_of_floats_are_run():
    content = file_of(
        node("Div", "data", "two", out="half"),
        node("Shape", "data", out="s"),
        node("Reshape", "half", "s", out="r"),
        node("Pow", "r", "two"),
        initializers=[array("two", [2.0])],
    ).SerializeToString()
    onnx_graph.check(content)


@pytest.mark.parametrize("at", [1, 10, 100, 1000, -1])
def test_a_file_that_is_cut_off(at, model):
    content = (model / "model.onnx").read_bytes()
    onnx_graph.check(content)
    with pytest.raises(DamagedError):
        onnx_graph.check(content[:at])


@pytest.mark.slow
def test_damaged_bytes_end_with_one_sentence_or_the_right_answer(model, x, with_onnx):
    """The checksums would find each of them; here they are computed again, as an attacker can."""
    whole = read_model(model, with_onnx=True)
    expected = deploy.Predictor(whole, engine="mxnet")(x)
    rng = random.Random(0)
    engines = set()
    for _ in range(60):
        content = bytearray(whole.onnx)
        for _ in range(rng.choice([1, 1, 2, 8])):
            content[rng.randrange(len(content))] = rng.randrange(256)
        predictor = deploy.Predictor(with_onnx(whole, bytes(content)))
        engines.add(predictor.engine)
        try:
            found = predictor(x)
        except ValueError as e:
            assert "\n" not in str(e)  # noqa: PT017
        else:
            np.testing.assert_allclose(found, expected, atol=1e-2)
    assert engines == {"mxnet", "onnxruntime"}


ZOO = ["resnet18_v2", "densenet121", "squeezenet1.0", "mobilenetv2_1.0", "cifar_resnet20_v1",
       "se_resnet18_v1", "mobilenetv3_large"]  # fmt: skip


@pytest.mark.full
@pytest.mark.parametrize("name", ZOO)
def test_the_model_zoos_are_run_by_onnxruntime(name, tmp_path):
    is_of_gluoncv = "cifar" in name or "se_" in name or "v3" in name
    make = get_model if is_of_gluoncv else gluon.model_zoo.vision.get_model
    net = make(name, classes=10)
    net.initialize(mx.init.Xavier())
    size = 32 if "cifar" in name else 224
    x = np.random.default_rng(0).normal(size=(2, 3, size, size)).astype("float32")
    predictor = deploy.Predictor(deploy.export(net, tmp_path / "model", x, onnx=True))
    assert predictor.engine == "onnxruntime"
    np.testing.assert_allclose(predictor(x), net(mx.nd.array(x)).asnumpy(), rtol=1e-4, atol=1e-4)
