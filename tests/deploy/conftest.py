"""Networks that are small enough to be exported in each test."""

import mxnet as mx
import numpy as np
import pytest
from gluon_svrg import deploy
from gluon_svrg.deploy import model_dir
from mxnet import gluon
from mxnet.gluon import nn

CLASSES = ["ant", "bee", "cat"]


def convolutional(channels=3, classes=3, context=None):
    net = nn.HybridSequential(prefix="tiny_")
    with net.name_scope():
        net.add(
            nn.Conv2D(4, 3, padding=1, in_channels=channels),
            nn.BatchNorm(in_channels=4),
            nn.Activation("relu"),
            nn.Dropout(0.5),
            nn.GlobalAvgPool2D(),
            nn.Dense(classes, in_units=4),
        )
    net.initialize(mx.init.Xavier(magnitude=6), ctx=context)
    return net


@pytest.fixture
def net():
    return convolutional()


@pytest.fixture
def x():
    return np.random.default_rng(0).normal(size=(5, 3, 8, 6)).astype("float32")


@pytest.fixture
def model(net, x, tmp_path):
    """A model directory of `net`, for images of 6 x 8 pixels (width x height)."""
    return deploy.export(
        net,
        tmp_path / "model",
        x,
        normalization=deploy.Normalization([0.5, 0.4, 0.3], [0.25, 0.5, 0.2]),
        class_names=CLASSES,
        metrics={"accuracy": 0.5},
    )


@pytest.fixture
def grey(tmp_path):
    """A model directory for grey images."""
    sample = mx.nd.zeros((1, 1, 8, 6))
    normalization = ([0.5], [0.25], 1.0)
    return deploy.export(convolutional(1), tmp_path / "grey", sample, normalization=normalization)


class Nested(gluon.HybridBlock):
    """Two inputs; outputs in tuples and lists, one of them None, one operator with two outputs."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        with self.name_scope():
            self.dense = nn.Dense(4, in_units=3)

    def hybrid_forward(self, F, x, y):
        h = self.dense(x)
        return (h, [h + y, None, (y * 2,)]), F.split(h, num_outputs=2, axis=1)


class Backwards(gluon.HybridBlock):
    """Two inputs; its graph reads the second one first, where `backwards`."""

    def __init__(self, backwards=True, **kwargs):
        super().__init__(**kwargs)
        self._backwards = backwards
        with self.name_scope():
            self.dense, self.other = nn.Dense(4, in_units=3), nn.Dense(4, in_units=5)

    def hybrid_forward(self, F, x, y):
        if self._backwards:
            return self.other(y) + self.dense(x)
        return self.dense(x) + self.other(y)


@pytest.fixture(params=[True, False])
def backwards(request):
    net = Backwards(request.param)
    net.initialize(mx.init.Normal(1))
    return net


@pytest.fixture
def pair():
    """A batch for each input of `backwards`, of unequal shapes."""
    random = np.random.default_rng(0)
    return [random.normal(size=(40, size)).astype("float32") for size in (3, 5)]


@pytest.fixture
def nested():
    net = Nested(prefix="nested_")
    net.initialize()
    return net


@pytest.fixture
def with_onnx():
    """A function that gives a model another ONNX file, with valid checksums."""

    def replaced(model, content):
        files = {**model.card["files"], model_dir.ONNX: model_dir._checksum(content)}
        return model._replace(onnx=content, card={**model.card, "files": files})

    return replaced
