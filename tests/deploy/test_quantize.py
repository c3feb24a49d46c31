"""Models in int8."""

import warnings

import mxnet as mx
import numpy as np
import pytest
from gluon_svrg import deploy
from gluon_svrg.deploy import numerics
from gluon_svrg.deploy.compiled import Compiled
from mxnet import gluon
from mxnet.gluon import nn
from mxnet.gluon.model_zoo.vision.resnet import BasicBlockV1, ResNetV1

needs_vnni = pytest.mark.skipif(
    numerics.int8_overflows(), reason="products of int8 overflow on this CPU, which has no VNNI"
)


def labels_of(net, x):
    return net(mx.nd.array(x)).asnumpy().argmax(axis=1)


@pytest.fixture
def data():
    random = np.random.default_rng(3)
    offsets = random.normal(size=(64, 3, 1, 1))  # samples that are told apart by their colour
    return (random.normal(size=(64, 3, 8, 6)) * 0.3 + 2 * offsets).astype("float32")


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["naive", "entropy"])
def test_it_keeps_most_classes(mode, net, x, data, tmp_path):
    model = deploy.export(net, tmp_path / "model", x, metrics={"accuracy": 0.25})
    labels = labels_of(net, data)
    report = deploy.quantize(
        model, tmp_path / "int8", data[:32], mode=mode, evaluation_data=(data, labels)
    )
    assert report["mode"] == mode
    assert report["calibration_samples"] == 32
    assert report["samples"] == 64
    assert report["accuracy_float32"] == 1
    assert report["accuracy_int8"] == report["agreement"] >= 0.9
    card = deploy.read_card(tmp_path / "int8")
    assert card["precision"] == "int8"
    assert card["quantization"] == {**report, "metrics_float32": {"accuracy": 0.25}}
    assert card["metrics"] == {"accuracy": report["accuracy_int8"]}
    predictor = deploy.Predictor.load(tmp_path / "int8", batch_size=16)
    assert predictor.backend is None
    output = predictor(data)
    assert (output.argmax(axis=1) == labels).mean() == report["agreement"]
    np.testing.assert_allclose(predictor(data[0]), output[0], atol=1e-5)
    assert b"quantized" in (tmp_path / "int8" / "model-symbol.json").read_bytes()


@pytest.mark.usefixtures("mode")
def test_without_labels_the_card_has_no_accuracy(model, data, tmp_path):
    report = deploy.quantize(model, tmp_path / "int8", [mx.nd.array(data)])
    assert report == {"mode": "naive", "calibration_samples": 64}
    card, before = deploy.read_card(tmp_path / "int8"), deploy.read_card(model)
    assert card["metrics"] == {}
    for key in ("inputs", "outputs", "normalization", "class_names"):
        assert card[key] == before[key]


@pytest.mark.usefixtures("mode")
def test_layers_may_stay_in_float32(net, x, data, tmp_path):
    model = deploy.export(net, tmp_path / "model", x)
    for name, layers in (("all", []), ("some", ["sg_mkldnn_fully_connected_0"])):
        deploy.quantize(model, tmp_path / name, data, exclude_layers=layers)
    sizes = [
        (tmp_path / name / "model-symbol.json").read_text().count("quantized_sg_mkldnn_fully")
        for name in ("all", "some")
    ]
    assert sizes[0] > sizes[1] == 0


def test_int8_runs_on_the_cpu_alone(model, data, tmp_path):
    deploy.quantize(model, tmp_path / "int8", data)
    with pytest.raises(ValueError, match=r"ctx is gpu\(0\), an int8 model runs on the CPU only"):
        deploy.Predictor.load(tmp_path / "int8", ctx=mx.gpu(0))
    with pytest.raises(ValueError, match="is of int8, only float32 can be quantized: give the"):
        deploy.quantize(tmp_path / "int8", tmp_path / "again", data)


@pytest.mark.parametrize(
    ("given", "options", "error", "message"),
    [
        (
            slice(None),
            {"mode": "none"},
            ValueError,
            "mode must be 'naive' or 'entropy', got 'none'",
        ),
        (0, {}, ValueError, "calibration_data must be batches, batch axis first, got a single"),
        (slice(0), {}, ValueError, "data has no sample"),
        (None, {}, TypeError, "data must be a NumPy array or an NDArray, got a NoneType"),
        (slice(None), {"evaluation_data": 3}, TypeError, r"must be \(x, labels\): samples and"),
        (
            slice(None),
            {"exclude_layers": "conv"},
            TypeError,
            r"exclude_layers must be a sequence of names, got 'conv': give \[name\] for one",
        ),
        (
            slice(None),
            {"exclude_layers": ["tiny_conv0_fwd"]},
            ValueError,
            "'tiny_conv0_fwd', which is no node of the fused graph: it has sg_mkldnn_conv_bn_act_0",
        ),
    ],
)
def test_errors(given, options, error, message, model, data, tmp_path):
    calibration = None if given is None else data[given]
    with pytest.raises(error, match=message):
        deploy.quantize(model, tmp_path / "int8", calibration, **options)
    assert not (tmp_path / "int8").exists()


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (float("nan"), "calibration_data of 'data' has NaN or infinities"),
        (float("inf"), "calibration_data of 'data' has NaN or infinities"),
        (0, "calibration_data of 'data' is all zeros, which give no range: give samples"),
    ],
)
def test_samples_without_a_range(value, message, model, data, tmp_path):
    given = data.copy()
    given[1 if value else slice(None)] = value
    with pytest.raises(ValueError, match=message):
        deploy.quantize(model, tmp_path / "int8", given)
    assert not (tmp_path / "int8").exists()


def test_labels_of_text(model, data, tmp_path):
    with pytest.raises(TypeError, match="labels of <U3: give the index of its class for each"):
        deploy.quantize(model, tmp_path / "int8", data, evaluation_data=(data, ["ant"] * 64))


def test_labels_of_another_length(model, data, tmp_path):
    with pytest.raises(ValueError, match=r"labels of shape \(3,\) for 64 samples: give one class"):
        deploy.quantize(model, tmp_path / "int8", data, evaluation_data=(data, [0, 1, 2]))


def test_a_model_that_is_there_is_replaced_on_demand(model, data, tmp_path):
    deploy.quantize(model, tmp_path / "int8", data)
    with pytest.raises(FileExistsError, match="replace it with overwrite=True"):
        deploy.quantize(model, tmp_path / "int8", data)
    deploy.quantize(model, tmp_path / "int8", data, overwrite=True)


def test_float64_is_refused(tmp_path):
    net = nn.Dense(2, in_units=3)
    net.initialize()
    net.cast("float64")
    model = deploy.export(net, tmp_path / "model", np.ones((1, 3)))
    with pytest.raises(ValueError, match="is of float64, only float32 can be quantized"):
        deploy.quantize(model, tmp_path / "int8", np.ones((4, 3)))


def test_several_inputs_and_outputs(tmp_path):
    class Two(gluon.HybridBlock):
        def __init__(self, **kwargs):
            super().__init__(**kwargs)
            with self.name_scope():
                self.dense = nn.Dense(4, in_units=3)

        def hybrid_forward(self, F, x, y):
            h = self.dense(x)
            return [h, (h + y,)]

    net = Two()
    net.initialize()
    x, y = (np.random.default_rng(0).normal(size=(20, n)).astype("float32") for n in (3, 4))
    model = deploy.export(net, tmp_path / "model", (x, y), input_names=["a", "b"])
    deploy.quantize(model, tmp_path / "int8", (x, y))
    one, (other,) = deploy.Predictor.load(tmp_path / "int8")(x, y)
    expected, (sums,) = net(mx.nd.array(x), mx.nd.array(y))
    np.testing.assert_allclose(one, expected.asnumpy(), atol=0.05)
    np.testing.assert_allclose(other, sums.asnumpy(), atol=0.1)


@needs_vnni
@pytest.mark.parametrize("names", [["x", "y"], ["x", "a"]])
def test_inputs_of_any_name(names, backwards, pair, tmp_path):
    model = deploy.export(backwards, tmp_path / "model", pair, input_names=names)
    deploy.quantize(model, tmp_path / "int8", pair)
    found = deploy.Predictor.load(tmp_path / "int8")(*pair)
    expected = backwards(*(mx.nd.array(array) for array in pair)).asnumpy()
    assert np.abs(found - expected).max() <= 0.05 * np.abs(expected).max()


@needs_vnni
@pytest.mark.parametrize("names", [["x", "y"], ["x", "a"]])
def test_each_input_has_its_own_range(names, tmp_path):
    class Apart(gluon.HybridBlock):
        def __init__(self):
            super().__init__()
            with self.name_scope():
                self.a, self.b = nn.Dense(4, in_units=3), nn.Dense(4, in_units=3)

        def hybrid_forward(self, F, x, y):
            return self.a(x), self.b(y)

    net = Apart()
    net.initialize(mx.init.Normal(1))
    x, y = np.random.default_rng(0).normal(size=(2, 40, 3)).astype("float32")
    y *= 100
    deploy.export(net, tmp_path / "model", (x, y), input_names=names)
    deploy.quantize(tmp_path / "model", tmp_path / "int8", (x, y))
    outputs = deploy.Predictor.load(tmp_path / "int8")(x, y)
    for one, other in zip(outputs, net(mx.nd.array(x), mx.nd.array(y)), strict=True):
        expected = other.asnumpy()
        assert np.abs(one - expected).max() <= 0.05 * np.abs(expected).max()


def test_the_float32_model_is_not_replaced_by_its_int8(model, data):
    with pytest.raises(ValueError, match=r"out_directory is the model directory .* itself"):
        deploy.quantize(model, model.parent / "." / model.name, data, overwrite=True)
    assert deploy.read_card(model)["precision"] == "float32"


def test_integers_are_refused(tmp_path):
    net = nn.HybridSequential()
    net.add(nn.Embedding(10, 4), nn.Dense(2, in_units=12))
    net.initialize()
    tokens = np.array([[1, 2, 3]], "int32")
    deploy.export(net, tmp_path / "model", tokens)
    with pytest.raises(ValueError, match="has inputs of int32, and int8 takes only float32"):
        deploy.quantize(tmp_path / "model", tmp_path / "int8", tokens)


def test_a_graph_that_would_crash_is_refused(nested, tmp_path):
    x, y = np.ones((2, 3), "float32"), np.ones((2, 4), "float32")
    model = deploy.export(nested, tmp_path / "model", (x, y))
    with pytest.raises(ValueError, match="has several outputs and reads an array that others rea"):
        deploy.quantize(model, tmp_path / "int8", (x, y))


def test_inputs_with_different_numbers_of_samples(tmp_path):
    class Sum(nn.HybridBlock):
        def hybrid_forward(self, F, x, y):
            return F.broadcast_add(x, y)

    x = np.ones((2, 3), "float32")
    path = deploy.export(Sum(), tmp_path / "model", (x, x))
    with pytest.raises(ValueError, match="inputs have 2 and 1 samples, give each the same number"):
        deploy.quantize(path, tmp_path / "int8", [x, x[:1]])


@pytest.mark.parametrize("overflows", [False, True])
def test_a_cpu_on_which_int8_overflows_is_told(overflows, model, data, tmp_path, monkeypatch):
    monkeypatch.setattr(numerics, "int8_overflows", lambda: overflows)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        deploy.quantize(model, tmp_path / "int8", data)
        deploy.Predictor.load(tmp_path / "int8")
        deploy.Predictor.load(model)
    said = [str(w.message) for w in seen if "VNNI" in str(w.message)]
    wheres = ["quantize", f"the model {str(tmp_path / 'int8')!r}"] if overflows else []
    assert [one.split(": on this CPU")[0] for one in said] == wheres


def test_two_ones_are_two_unless_it_is_told(tmp_path):
    net = nn.Dense(1, in_units=2, use_bias=False)
    net.initialize(mx.init.One())
    x = np.array([[1, 1], [-1, -1], [0.5, 0.5]], "float32")
    deploy.quantize(deploy.export(net, tmp_path / "model", x), tmp_path / "int8", x)
    found = deploy.Predictor.load(tmp_path / "int8")(x)[:, 0]
    assert numerics.int8_overflows() == (np.abs(found - x.sum(axis=1)).max() > 0.05)


def test_an_int8_model_that_would_fail_at_the_second_call(tmp_path, caplog):
    """Pooling of a single pixel after residual blocks, as in ResNet-18 on images of 32 x 32."""
    mx.random.seed(0)
    net = ResNetV1(BasicBlockV1, [2, 2], [8, 8, 16], classes=4)
    net.initialize(mx.init.Xavier())
    x = np.random.default_rng(0).normal(size=(40, 3, 8, 8)).astype("float32")
    model = deploy.export(net, tmp_path / "model", x[:4], onnx=False)
    deploy.quantize(model, tmp_path / "int8", x)
    assert "pool1_fwd), because one fails at the second call in int8: MXNetError" in caplog.text
    predictor = deploy.Predictor.load(tmp_path / "int8")
    int8 = predictor.model
    for count in (1, 16, 40):
        # A graph whose memory is not planned does not use it again.
        graph = Compiled(int8.symbol, int8.params, int8.card["inputs"], count, ctx=mx.cpu())
        (expected,) = graph([x[:count]])
        for _ in range(3):
            np.testing.assert_allclose(predictor(x[:count]), expected, rtol=1e-5, atol=1e-6)
