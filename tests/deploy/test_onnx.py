"""ONNX files, in onnxruntime."""

import json
import sys

import mxnet as mx
import numpy as np
import problems
import pytest
from gluon_svrg import deploy, tune_for_cpu
from gluon_svrg.deploy import model_dir
from mxnet import gluon
from mxnet.gluon import nn

onnx = pytest.importorskip("onnx", reason="the extra onnx is not installed")
onnxruntime = pytest.importorskip("onnxruntime")


class MeanOverAxes(gluon.HybridBlock):
    def hybrid_forward(self, F, x):
        return F.mean(x, axis=(2, 3))


def run(path, *arrays):
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return session.run(None, dict(zip([i.name for i in session.get_inputs()], arrays, strict=True)))


@pytest.mark.usefixtures("mode")
@pytest.mark.parametrize("tuned", [False, True])
@pytest.mark.parametrize("from_predictor", [False, True])
def test_any_batch(tuned, from_predictor, net, x, tmp_path):
    if tuned:
        assert tune_for_cpu(net)
    model = deploy.export(net, tmp_path / "model", x)
    given = deploy.Predictor.load(model) if from_predictor else model
    difference = deploy.export_onnx(given, tmp_path / "folder" / "model.onnx")
    assert 0 <= difference <= 1e-5
    for batch in (x, x[:1]):
        (output,) = run(tmp_path / "folder" / "model.onnx", batch)
        np.testing.assert_allclose(output, net(problems.array(batch)).asnumpy(), atol=1e-5)
    assert [path.name for path in (tmp_path / "folder").iterdir()] == ["model.onnx"]


@pytest.mark.usefixtures("mode")
def test_the_parameters_are_constants(net, x, tmp_path):
    """As inputs, which MXNet makes them, onnxruntime would not fold them, and warn of each."""
    deploy.export_onnx(deploy.export(net, tmp_path / "model", x), tmp_path / "model.onnx")
    graph = onnx.load(str(tmp_path / "model.onnx")).graph
    assert [item.name for item in graph.input] == ["data"]
    assert len(graph.initializer) >= len(list(net.collect_params()))


def test_a_mean_over_axes(x, tmp_path):
    net = MeanOverAxes()
    deploy.export_onnx(deploy.export(net, tmp_path / "model", x), tmp_path / "model.onnx")
    (output,) = run(tmp_path / "model.onnx", x)
    np.testing.assert_allclose(output, x.mean(axis=(2, 3)), atol=1e-6)


@pytest.mark.parametrize("names", [["x", "y"], ["x", "a"]])
@pytest.mark.parametrize("dynamic", [True, False])
def test_inputs_in_any_order(names, dynamic, backwards, pair, tmp_path):
    model = deploy.export(backwards, tmp_path / "model", pair, input_names=names)
    assert deploy.export_onnx(model, tmp_path / "model.onnx", dynamic=dynamic) <= 1e-4
    session = onnxruntime.InferenceSession(
        str(tmp_path / "model.onnx"), providers=["CPUExecutionProvider"]
    )
    given = [array[:1] for array in pair]
    (output,) = session.run(None, dict(zip(names, given, strict=True)))
    expected = backwards(*(mx.nd.array(array) for array in given)).asnumpy()
    np.testing.assert_allclose(output, expected, atol=1e-4)


def test_the_metadata(model, tmp_path):
    difference = deploy.export_onnx(model, tmp_path / "model.onnx")
    proto = onnx.load(tmp_path / "model.onnx")
    metadata = {entry.key: entry.value for entry in proto.metadata_props}
    assert json.loads(metadata["gluon_svrg"]) == deploy.read_card(model)
    assert float(metadata["max_abs_difference"]) == difference
    onnx.checker.check_model(proto)


def test_a_batch_of_one(model, net, x, tmp_path):
    deploy.export_onnx(model, tmp_path / "model.onnx", dynamic=False)
    (output,) = run(tmp_path / "model.onnx", x[:1])
    np.testing.assert_allclose(output, net(mx.nd.array(x[:1])).asnumpy(), atol=1e-5)
    with pytest.raises(Exception, match="Got invalid dimensions"):
        run(tmp_path / "model.onnx", x)


@pytest.mark.parametrize("name", ["onnx", "onnxruntime"])
def test_without_the_extra(name, model, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ImportError, match=r"pip install 'gluon-svrg\[onnx\]'"):
        deploy.export_onnx(model, tmp_path / "model.onnx")
    assert not (tmp_path / "model.onnx").exists()


def test_outputs_that_differ(model, tmp_path, monkeypatch):
    predictor = deploy.Predictor.load(model, engine="mxnet")
    monkeypatch.setattr(predictor, "_run", lambda arrays, count: [np.ones((count, 3), "float32")])
    (tmp_path / "model.onnx").write_text("before")
    with pytest.raises(ValueError, match="output 0 of the ONNX file differs from MXNet's by"):
        deploy.export_onnx(predictor, tmp_path / "model.onnx")
    assert (tmp_path / "model.onnx").read_text() == "before"


def test_an_operator_that_has_no_translation(tmp_path):
    net = nn.HybridLambda("erfinv")
    model = deploy.export(net, tmp_path / "model", np.full((2, 3), 0.5, "float32"))
    with pytest.raises(ValueError, match=r"MXNet 1.9.1 cannot translate the model into ONNX \("):
        deploy.export_onnx(model, tmp_path / "model.onnx")


def test_int8_is_refused(model, x, tmp_path):
    deploy.quantize(model, tmp_path / "int8", x)
    with pytest.raises(ValueError, match="the model is of int8, whose operators are oneDNN's own"):
        deploy.export_onnx(tmp_path / "int8", tmp_path / "model.onnx")


@pytest.mark.parametrize(("tolerance", "error"), [(0, ValueError), ("1", TypeError)])
def test_wrong_tolerance(tolerance, error, model, tmp_path):
    with pytest.raises(error, match="tolerance must be a number above 0, got"):
        deploy.export_onnx(model, tmp_path / "model.onnx", tolerance=tolerance)


def text_net(kind):
    net = nn.HybridSequential(prefix="text_")
    with net.name_scope():
        net.add(nn.Embedding(1000, 8))
        if kind == "lstm":
            net.add(gluon.rnn.LSTM(4, layout="NTC", input_size=8))
        net.add(nn.Dense(2))
    mx.random.seed(0)
    net.initialize(mx.init.Normal(1))
    tokens = np.random.default_rng(1).integers(0, 1000, (5, 7))
    net(mx.nd.array(tokens))
    return net, tokens


@pytest.mark.parametrize("kind", ["dense", "lstm"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "int32"])
def test_tokens_of_any_dtype(kind, dtype, tmp_path):
    net, tokens = text_net(kind)
    model = deploy.export(net, tmp_path / "model", tokens.astype(dtype))
    (spec,) = deploy.read_card(model)["inputs"]
    assert spec["integers"] == [tokens.min(), tokens.max()]
    # A batch of one in the ONNX file: its LSTM has the batch size of the translation.
    deploy.export_onnx(model, tmp_path / "model.onnx", dynamic=kind == "dense")
    for row in tokens:
        (output,) = run(tmp_path / "model.onnx", row[None].astype(spec["dtype"]))
        expected = net(mx.nd.array(row[None])).asnumpy()
        np.testing.assert_allclose(output, expected, rtol=1e-4, atol=1e-4)


def without_range(model):
    """The directory as an earlier version wrote it."""
    model_card = deploy.read_card(model)
    for spec in model_card["inputs"]:
        del spec["integers"]
    (model / "model.json").write_text(model_dir._sealed(model_card))
    return model


def test_an_old_directory_is_compared_on_the_sample(tmp_path):
    net, tokens = text_net("dense")
    tokens = tokens.astype("float32")
    model = without_range(deploy.export(net, tmp_path / "model", tokens))
    predictor = deploy.Predictor(model)  # fused or not, its outputs are the network's
    np.testing.assert_allclose(predictor(tokens), net(mx.nd.array(tokens)).asnumpy(), atol=1e-4)
    with pytest.raises(ValueError, match=r"0 of the ONNX file differs .*, give some as sample"):
        deploy.export_onnx(model, tmp_path / "model.onnx")
    for sample in (tokens, [mx.nd.array(tokens)], tokens[0]):
        assert deploy.export_onnx(model, tmp_path / "model.onnx", sample=sample) < 1e-4
    with pytest.raises(ValueError, match=r"data must have the shape \(N, 7\)"):
        deploy.export_onnx(model, tmp_path / "model.onnx", sample=tokens[:, :3])


@pytest.mark.parametrize("sample", [np.zeros((2, 3, 8, 6)), np.full((1, 3, 8, 6), 0.5)])
def test_a_sample_that_is_constant_or_no_integers_has_no_range(sample, net, tmp_path):
    (spec,) = deploy.read_card(deploy.export(net, tmp_path / "model", sample))["inputs"]
    assert set(spec) == {"name", "shape", "dtype"}
