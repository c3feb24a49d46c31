"""Which networks and losses are known to be convex, and the point at which they are measured."""

import mxnet as mx
import numpy as np
import pytest
from gluon_svrg.batch.parts import BatchParts
from gluon_svrg.svrg.convexity import LinearModel, UnsupportedProblemError
from mxnet import gluon
from mxnet.gluon import nn

SOFTMAX = gluon.loss.SoftmaxCELoss()


def of(net, loss=SOFTMAX, trained=None):
    params = list(net.collect_params().values()) if trained is None else trained
    return LinearModel.of(net, loss, params)


def chain(*layers, cls=nn.HybridSequential):
    net = cls()
    net.add(*layers)
    return net


class Own(gluon.HybridBlock):
    """A class of the user's own, with a layer of another name."""

    def __init__(self, before=None, after=None, **kwargs):
        super().__init__()
        self.before, self.after = before, after
        with self.name_scope():
            self.classifier = nn.Dense(3, **kwargs)

    def hybrid_forward(self, F, x):
        x = F.flatten(x) if self.before is None else self.before(F, x)
        x = self.classifier(x)
        return x if self.after is None else self.after(F, x)


KNOWN = {
    "a layer": lambda: nn.Dense(3),
    "a layer that knows its shape": lambda: nn.Dense(3, in_units=4),
    "without a bias": lambda: nn.Dense(3, use_bias=False),
    "a chain": lambda: chain(nn.Flatten(), nn.Dense(3)),
    "a chain in a chain": lambda: chain(chain(nn.Flatten()), chain(nn.Dense(3))),
    "a chain that is not hybrid": lambda: chain(chain(nn.Dense(3)), cls=nn.Sequential),
    "a class of one's own": Own,
    "one that reshapes the output": lambda: Own(after=lambda F, x: F.reshape(x, shape=(-1, 3))),
}


@pytest.mark.parametrize("make", KNOWN.values(), ids=KNOWN)
@pytest.mark.parametrize("is_hybridized", [False, True])
def test_known(make, is_hybridized):
    net = make()
    net.initialize()
    if is_hybridized and isinstance(net, gluon.HybridBlock):
        net.hybridize(static_alloc=True, static_shape=True)
    known = of(net)
    names = list(net.collect_params())
    assert known.weight in names
    assert known.bias == next((name for name in names if name.endswith("bias")), None)
    assert known.loss.kind == "softmax"
    net(mx.nd.ones((2, 4)))  # it has left no trace
    assert known == of(net)


def with_frozen_features():
    net = chain(nn.Dense(5, activation="relu"), nn.Dense(3))
    net[0].collect_params().setattr("grad_req", "null")
    return net


class Python(gluon.Block):
    def forward(self, x):
        return x.asnumpy()


OTHERS = {
    "a hidden layer": (
        lambda: chain(nn.Dense(5, activation="tanh"), nn.Dense(3)),
        r"the operator Activation \(.*\) where only one fully connected layer would be linear",
    ),
    "two layers": (lambda: chain(nn.Dense(5), nn.Dense(3)), "the operator FullyConnected"),
    "an activation": (lambda: nn.Dense(3, activation="sigmoid"), "the operator Activation"),
    "dropout": (lambda: chain(nn.Dropout(0.5), nn.Dense(3)), "the operator Dropout"),
    "batch norm": (lambda: chain(nn.BatchNorm(), nn.Dense(3)), "the operator BatchNorm"),
    "a convolution": (lambda: nn.Conv2D(3, 1), "the operator Convolution"),
    "frozen features": (with_frozen_features, "the operator Activation"),
    "the square of the output": (lambda: Own(after=lambda F, x: x * x), "operator elemwise_mul"),
    "probabilities": (lambda: Own(after=lambda F, x: F.softmax(x)), "the operator softmax"),
    "two outputs": (lambda: Own(after=lambda F, x: F.split(x, 3)), "it has 3 outputs"),
    "Python": (Python, r"its graph cannot be read \(.*\)"),
}  # fmt: skip


@pytest.mark.parametrize(("make", "reason"), OTHERS.values(), ids=OTHERS)
def test_other_networks(make, reason):
    with pytest.raises(UnsupportedProblemError, match=reason):
        of(make())


def test_a_layer_that_gets_no_data():
    net = Own(before=lambda F, x: F.zeros_like(x))
    with pytest.raises(UnsupportedProblemError, match="the operator zeros_like"):
        of(net)


def test_a_trainer_of_other_parameters():
    net, other = nn.Dense(3), nn.Dense(2)
    params = [*net.collect_params().values(), *other.collect_params().values()]
    with pytest.raises(
        UnsupportedProblemError, match=f"trains '{other.weight.name}', which is not in its"
    ):
        of(net, trained=params)
    assert of(net, trained=[net.bias]).weight == net.weight.name


class OwnLoss(gluon.loss.L2Loss):
    """A loss whose formula is not known."""


KINDS = {
    gluon.loss.SoftmaxCELoss(sparse_label=False, weight=2.0): "softmax",
    gluon.loss.SoftmaxCELoss(axis=1): "softmax",
    gluon.loss.SigmoidBCELoss(): "logistic",
    gluon.loss.LogisticLoss(): "logistic",
    gluon.loss.L2Loss(): "squared",
    gluon.loss.HuberLoss(rho=2.0): "huber",
    gluon.loss.SoftmaxCELoss(from_logits=True): None,
    gluon.loss.SoftmaxCELoss(axis=0): None,
    gluon.loss.SigmoidBCELoss(from_sigmoid=True): None,
    gluon.loss.L2Loss(batch_axis=1): None,
    gluon.loss.PoissonNLLLoss(): None,  # its curvature has no bound
    gluon.loss.L1Loss(): None,
    OwnLoss(): None,
}


@pytest.mark.parametrize(
    ("loss", "kind"), KINDS.items(), ids=lambda value: getattr(value, "name", str(value))
)
def test_losses(loss, kind):
    net = nn.Dense(3)
    if kind is not None:
        assert of(net, loss).loss.kind == kind
        return
    with pytest.raises(
        UnsupportedProblemError, match=f"its loss is {type(loss).__name__}, and supported"
    ):
        of(net, loss)


def parts(data, label, weight=None):
    arrays = [None if a is None else mx.nd.array(np.asarray(a)) for a in (data, label, weight)]
    return BatchParts(*arrays)


def test_norms_count_the_bias_and_the_weight_of_a_sample():
    x = np.arange(12.0).reshape(3, 2, 2)
    squares = (x**2).sum(axis=(1, 2))
    known = of(nn.Dense(3))
    assert np.allclose(known.squared_norms(parts(x, [0, 1, 2])), squares + 1)
    assert np.allclose(
        known.squared_norms(parts(x, [0, 1, 2], [1.0, 0.5, 0.0])), (squares + 1) * [1, 0.5, 0]
    )
    without = of(nn.Dense(3, use_bias=False))
    assert np.allclose(without.squared_norms(parts(x, [0, 1, 2], [[2], [2], [2]])), 2 * squares)
    bytes_ = parts(np.full((1, 40), 255), [0])
    bytes_ = bytes_._replace(data=bytes_.data.astype("uint8"))
    assert without.squared_norms(bytes_) == [40 * 255**2]


@pytest.mark.parametrize("is_sparse", [True, False])
def test_the_point_of_softmax_has_the_probabilities_of_the_classes(is_sparse):
    net = nn.Dense(4, in_units=2)
    known = of(net, gluon.loss.SoftmaxCELoss(sparse_label=is_sparse))
    labels = np.array([0] * 700 + [1] * 200 + [2] * 100)
    weight = np.where(labels == 1, 2.0, 1.0)
    y = labels if is_sparse else np.eye(4)[labels]
    weights = {known.weight: np.ones((4, 2)), known.bias: np.ones(4)}
    point = known.measurement_point(weights, [parts(np.ones((1000, 2)), y, weight)])
    assert not point[known.weight].any()
    frequencies = np.exp(point[known.bias])
    assert frequencies.sum() == pytest.approx(1)
    assert frequencies[:3] == pytest.approx(np.array([7, 4, 1]) / 12, rel=0.01)
    assert 0 < frequencies[3] < 0.01  # a class that is not there may come


def test_labels_that_are_no_classes_do_not_matter():
    known = of(nn.Dense(3, in_units=2))
    weights = {known.weight: np.ones((3, 2)), known.bias: np.ones(3)}
    point = known.measurement_point(weights, [parts(np.ones((4, 2)), [-1, np.nan, 7, 1])])
    assert np.isfinite(point[known.bias]).all()


def test_points_and_labels_of_the_other_losses():
    for loss in (gluon.loss.L2Loss(), gluon.loss.HuberLoss(), gluon.loss.SigmoidBCELoss()):
        known = of(nn.Dense(1), loss)
        weights = {known.weight: np.ones((1, 2)), known.bias: np.ones(1)}
        batch = parts(np.ones((4, 2)), [1.0, 0, 1, 0])
        point = known.measurement_point(weights, [batch])
        assert not any(array.any() for array in point.values())
        is_kept = known.loss.kind == "logistic"
        assert known.measurement_batch(batch).label.asnumpy().any() == is_kept


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (mx.nd.ones((3, 2)).tostype("csr"), "not one dense array with a row per sample"),
        (mx.nd.ones(3), "not one dense array"),
        ((mx.nd.ones((3, 2)), mx.nd.ones((3, 2))), "not one dense array"),
        (mx.nd.ones((3, 2, 2)), "has flatten=False and the data have 3 axes, so that a sample has"),
    ],
    ids=["sparse", "one axis", "two arrays", "three axes"],
)
def test_data_that_are_no_rows(data, reason):
    known = of(nn.Dense(1, flatten=False), gluon.loss.L2Loss())
    with pytest.raises(UnsupportedProblemError, match=reason):
        known.check_batch(BatchParts(data, mx.nd.ones(3)))
    known.check_batch(BatchParts(mx.nd.ones((3, 2)), mx.nd.ones(3)))
    of(nn.Dense(1)).check_batch(BatchParts(mx.nd.ones((3, 2, 2)), mx.nd.ones(3)))
