"""What export checks: numbers that are not finite, and arguments of another kind."""

import mxnet as mx
import numpy as np
import pytest
from gluon_svrg import deploy
from gluon_svrg.deploy.difference import difference_of, scale_of
from mxnet import gluon

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
    assert difference_of(np.array(one, "f"), np.array(other, "f")) == difference


def test_the_scale():
    assert scale_of(np.array([0.5, -3, INF, NAN])) == 3
    assert scale_of(np.array([0.5])) == scale_of(np.array([])) == 1


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
