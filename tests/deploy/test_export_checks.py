"""What export checks: numbers that are not finite, and arguments of another kind."""

import mxnet as mx
import numpy as np
import pytest
from gluon_svrg import deploy
from gluon_svrg.deploy.numerics import max_difference, output_scale
from mxnet import autograd, gluon
from mxnet.gluon import nn

BFLOAT16 = np.dtype([("bfloat16", np.uint16)])  # MXNet's
NAN, INF = float("nan"), float("inf")


class Infinite(gluon.HybridBlock):
    """Has an infinite number in each output; the others are `error` greater with arrays."""

    def __init__(self, error, sign=-1):
        super().__init__()
        self._error, self._sign = error, sign

    def hybrid_forward(self, F, x):
        if F is mx.nd:
            x = x + self._error
        infinite = F.slice_axis(x, axis=1, begin=0, end=1) * 0 + 1e38
        return F.concat(x, infinite * 10 * (self._sign if F is mx.nd else -1), dim=1)


@pytest.mark.parametrize(("error", "sign"), [(5, -1), (0, 1)])
def test_outputs_beside_an_infinity_are_compared(error, sign, tmp_path):
    with pytest.raises(ValueError, match="output 0 of the graph differs from the net's by"):
        deploy.export(Infinite(error, sign), tmp_path / "model", np.ones((2, 3), "float32"))


def test_infinite_outputs(tmp_path):
    path = deploy.export(Infinite(0), tmp_path / "model", np.ones((2, 3), "float32"))
    expected = [[1, 1, 1, -INF]]
    np.testing.assert_array_equal(deploy.Predictor.load(path)(np.ones((1, 3), "f")), expected)
    pytest.importorskip("onnx", reason="the extra onnx is not installed")
    assert deploy.export_onnx(path, tmp_path / "model.onnx") == 0


@pytest.mark.parametrize(
    ("one", "other", "difference"),
    [
        ([1, 2], [1, 4], 2),
        ([1, INF], [3, INF], 2),
        ([1, NAN], [3, NAN], 2),
        ([1, 2], [1, NAN], INF),
        ([1, NAN], [1, 2], INF),
        ([1, INF], [1, -INF], INF),
        ([1, 2], [1], INF),
        ([], [], 0),
    ],
)
def test_the_difference(one, other, difference):
    assert max_difference(np.array(one, "f"), np.array(other, "f")) == difference


def test_the_scale():
    assert output_scale(np.array([0.5, -3, INF, NAN])) == 3
    assert output_scale(np.array([0.5])) == output_scale(np.array([])) == 1


def test_parameters_that_are_nan(net, x, tmp_path):
    net[0].weight.data()[0] = NAN
    with pytest.raises(ValueError, match="parameter 'tiny_conv0_weight' has NaN: its training has"):
        deploy.export(net, tmp_path / "model", x)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"class_names": 3}, TypeError, "class_names must be a sequence of names, got 3"),
        ({"class_names": range(3)}, TypeError, r"class_names must be a .* got range\(0, 3\)"),
        ({"input_names": 5}, ValueError, "input_names must be 1 different names, got 5"),
        ({"input_names": [""]}, ValueError, r"input_names must be 1 different names, got \[''\]"),
        ({"from_logits": "no"}, TypeError, "from_logits must be a bool, got 'no'"),
        ({"metrics": {"a": NAN}}, ValueError, "metrics has 'a' as nan, which the card's JSON can"),
        ({"metrics": {"a": INF}}, ValueError, "metrics has 'a' as inf"),
        ({"normalization": ("a", "b")}, ValueError, "mean must have a finite number for each"),
        ({"normalization": 0.5}, TypeError, "normalization must be a Normalization, .* got 0.5"),
        ({"normalization": ([0.5] * 3, [1] * 3, "1")}, ValueError, "std and scale must be above 0"),
        ({"normalization": ([0.5] * 3, [1] * 3, INF)}, ValueError, "std and scale must be above 0"),
    ],
)
def test_options_of_another_kind(options, error, message, net, x, tmp_path):
    with pytest.raises(error, match=message):
        deploy.export(net, tmp_path / "model", x, **options)
    assert not list(tmp_path.iterdir())


def test_class_names_of_numpy(net, x, tmp_path):
    names = np.array(["ant", "bee", "cat"])
    path = deploy.export(net, tmp_path / "model", x, class_names=names)
    assert deploy.read_card(path)["class_names"] == ["ant", "bee", "cat"]


def test_a_list_of_samples_for_one_input(net, x, tmp_path):
    with pytest.raises(
        ValueError, match=r"a sequence of 5 arrays, .* takes one input: give one ba"
    ):
        deploy.export(net, tmp_path / "model", list(x))


class Cast(gluon.HybridBlock):
    """Casts as AMP does: the input to bfloat16, and back or not."""

    def __init__(self, is_back, **kwargs):
        super().__init__(**kwargs)
        self.is_back = is_back

    def hybrid_forward(self, F, x):
        x = F.amp_cast(x, dtype=BFLOAT16).reshape((0, -1))
        return F.amp_cast(x, dtype="float32").reshape((0, -1)) if self.is_back else x


@pytest.mark.parametrize("is_back", [True, False])
def test_casts_of_amp_are_left_out(is_back, net, x, tmp_path):
    net.add(Cast(is_back))
    predictor = deploy.Predictor(deploy.export(net, tmp_path / "model", x))
    assert predictor.card["outputs"]["dtypes"] == ["float32"]
    assert "amp_cast" not in (tmp_path / "model" / "model-symbol.json").read_text()
    with autograd.pause(train_mode=False):
        expected = net(mx.nd.array(x)).astype("float32").asnumpy()
    assert max_difference(predictor(x), expected) < 0.01 * output_scale(expected)


def test_a_network_whose_shapes_are_not_known_takes_them_from_the_sample(tmp_path):
    net = nn.HybridSequential()
    net.add(nn.Conv2D(4, 3), nn.BatchNorm(), nn.Dense(2))
    net.initialize()
    sample = np.random.default_rng(0).normal(size=(2, 3, 8, 8))
    predictor = deploy.Predictor(deploy.export(net, tmp_path / "model", sample))
    expected = net(mx.nd.array(sample)).asnumpy()
    np.testing.assert_allclose(predictor(sample), expected, rtol=1e-4, atol=1e-6)


MIXING = {
    "LSTM in TNC": lambda: gluon.rnn.LSTM(8, input_size=5),
    "both directions": lambda: gluon.rnn.LSTM(8, input_size=5, bidirectional=True),
    "less the mean of the batch": lambda: nn.HybridLambda(
        lambda F, x: F.broadcast_sub(x, x.mean(axis=0, keepdims=True))
    ),
    "softmax over the batch": lambda: nn.HybridLambda(lambda F, x: F.softmax(x, axis=0)),
}


@pytest.mark.parametrize("count", [1, 2, 70])
@pytest.mark.parametrize("name", MIXING)
def test_samples_that_depend_on_each_other_are_refused(name, count, tmp_path):
    net = MIXING[name]()
    net.initialize(mx.init.Normal(1))
    sample = np.random.default_rng(0).normal(size=(count, 3, 5)).astype("float32")
    with pytest.raises(ValueError, match=r"depends on the other samples of the batch .* 'NTC'"):
        deploy.export(net, tmp_path / "model", sample)
    assert not list(tmp_path.iterdir())


def test_an_lstm_in_ntc_is_exported(tmp_path):
    net = gluon.rnn.LSTM(8, input_size=5, layout="NTC")
    net.initialize(mx.init.Normal(1))
    sample = np.random.default_rng(0).normal(size=(70, 3, 5)).astype("float32")
    predictor = deploy.Predictor(deploy.export(net, tmp_path / "model", sample))
    np.testing.assert_allclose(predictor(sample), net(mx.nd.array(sample)).asnumpy(), atol=1e-5)


def test_scores_are_no_probabilities(net, x, tmp_path):
    with pytest.raises(ValueError, match=r"from_logits is False, .* from -?\d.* to \d.*, which"):
        deploy.export(net, tmp_path / "model", x * 9, from_logits=False)


def test_a_sample_of_zeros_hides_no_dependence(tmp_path):
    net = gluon.rnn.LSTM(8, input_size=5)  # TNC: the first axis is time
    net.initialize(mx.init.Uniform(0.5))
    with pytest.raises(ValueError, match="depends on the other samples of the batch"):
        deploy.export(net, tmp_path / "model", np.zeros((4, 7, 5), "float32"))


def test_outputs_that_are_no_numbers(tmp_path):
    net = nn.HybridLambda("log")
    with pytest.raises(ValueError, match="output 0 of net has NaN for sample: give samples like"):
        deploy.export(net, tmp_path / "model", np.full((2, 3), -1, "float32"))
    assert deploy.export(net, tmp_path / "model", np.ones((2, 3), "float32"))
