"""Models of two classes with one output: classes(), export, the command line, ONNX, int8."""

import json

import gluon_svrg as gs
import mxnet as mx
import numpy as np
import pytest
from gluon_svrg import deploy
from gluon_svrg.deploy.__main__ import main
from gluon_svrg.deploy.model_dir import read_model
from gluon_svrg.linear import GLMClassifier, GLMRegressor
from mxnet.gluon import nn
from sklearn.datasets import load_breast_cancer, load_diabetes, load_wine


def convolutional():
    net = nn.HybridSequential()
    net.add(nn.Conv2D(4, 3), nn.BatchNorm(), nn.Activation("relu"), nn.GlobalAvgPool2D())
    net.add(nn.Dense(1))
    net.initialize(mx.init.Xavier(magnitude=6))
    return net


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    ("load", "names"),
    [(load_breast_cancer, ["malignant", "benign"]), (load_breast_cancer, None), (load_wine, None)],
)
def test_a_linear_classifier_answers_as_itself(load, names, dtype, tmp_path):
    """In version 0.7 the answer of two classes was class '0' with probability 1 for every row."""
    X, y = load(return_X_y=True)
    X = (X - X.mean(axis=0)) / X.std(axis=0)
    labels = y if names is None else np.array(names)[y]
    model = GLMClassifier().fit(X, labels)
    deploy.export(model.to_gluon(dtype), tmp_path / "model", X[:5].astype(dtype))
    predictor = deploy.Predictor(tmp_path / "model")
    assert predictor.card["class_names"] == [str(name) for name in model.classes_]
    found = predictor.classes(X.astype(dtype), top=len(model.classes_))
    assert [row[0].name for row in found] == [str(name) for name in model.predict(X)]
    columns = {str(name): i for i, name in enumerate(model.classes_)}
    for row, expected in zip(found, model.predict_proba(X), strict=True):
        for name, probability in row:
            assert probability == pytest.approx(expected[columns[name]], rel=1e-3, abs=1e-6)
    assert predictor.classes(X[0].astype(dtype))[0].name == found[0][0].name


def test_one_number_that_is_no_class_is_refused(tmp_path):
    X, y = load_diabetes(return_X_y=True)
    deploy.export(GLMRegressor().fit(X, y).to_gluon(), tmp_path / "model", X[:5].astype("f"))
    predictor = deploy.Predictor(tmp_path / "model")
    with pytest.raises(ValueError, match=r"not two class names.*use predict\(\), or exp"):
        predictor.classes(X[:2].astype("f"))


def test_more_names_than_two_do_not_fit_one_number(x, tmp_path):
    with pytest.raises(ValueError, match=r"class_names has 3 names, .* \[\(1,\)\]: they need"):
        deploy.export(convolutional(), tmp_path / "model", x, class_names=["a", "b", "c"])


def test_one_name_is_no_class(x, tmp_path):
    with pytest.raises(ValueError, match="class_names has one name, 'spam', which no sample could"):
        deploy.export(convolutional(), tmp_path / "model", x, class_names=["spam"])
    path = deploy.export(convolutional(), tmp_path / "model", x)
    model = read_model(path)  # as version 0.7 wrote it
    predictor = deploy.Predictor(model._replace(card={**model.card, "class_names": ["spam"]}))
    with pytest.raises(ValueError, match="one output with one number and not two class names"):
        predictor.classes(x)


@pytest.fixture
def binary(x, tmp_path):
    """A network for images with one output, and its model directory."""
    net = convolutional()
    path = deploy.export(
        net,
        tmp_path / "binary",
        x,
        normalization=([0.5] * 3, [0.25] * 3),
        class_names=["cat", "dog"],
    )
    return net, path


@pytest.mark.parametrize("from_logits", [True, False])
def test_the_one_number_is_the_second_class(from_logits, x, tmp_path):
    net = convolutional()
    score = net(mx.nd.array(x))
    expected = score.sigmoid().asnumpy()[:, 0]
    if not from_logits:
        net.add(nn.HybridLambda("sigmoid"))
    options = {"class_names": ["cat", "dog"], "from_logits": from_logits}
    predictor = deploy.Predictor(deploy.export(net, tmp_path / "model", x, **options))
    for row, probability in zip(predictor.classes(x, top=2), expected, strict=True):
        assert dict(row) == pytest.approx({"cat": 1 - probability, "dog": probability}, rel=1e-4)
        assert row[0].probability >= row[1].probability
    with pytest.raises(ValueError, match="top is 3, the model has 2 classes"):
        predictor.classes(x, top=3)


@pytest.mark.slow
def test_the_command_line(binary, tmp_path, capsys):
    image = pytest.importorskip("PIL.Image")
    pixels = np.random.default_rng(0).integers(0, 256, (8, 6, 3)).astype("uint8")
    image.fromarray(pixels).save(tmp_path / "a.png")
    _, path = binary
    assert main(["predict", str(path), str(tmp_path / "a.png"), "--top", "2", "--json"]) == 0
    ((row,),) = [json.loads(capsys.readouterr().out)]
    predictor = deploy.Predictor(path)
    expected = predictor.classes(predictor.read_images(pixels[None]), top=2)[0]
    assert [tuple(entry.values()) for entry in row["classes"]] == [tuple(p) for p in expected]


def test_onnx_and_int8(binary, x, tmp_path):
    net, path = binary
    x = np.repeat(x, 40, axis=0) + np.random.default_rng(0).normal(size=(200, 3, 8, 6)).astype("f")
    labels = (net(mx.nd.array(x)).asnumpy()[:, 0] > 0).astype(int)
    report = deploy.quantize(path, tmp_path / "int8", x, evaluation_data=(x, labels))
    assert report["accuracy_float32"] == 1
    assert deploy.read_card(tmp_path / "int8")["class_names"] == ["cat", "dog"]
    onnxruntime = pytest.importorskip("onnxruntime")
    deploy.export_onnx(path, tmp_path / "model.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    (scores,) = session.run(None, {"data": x})
    best = [row[0].name for row in deploy.Predictor(path).classes(x)]
    assert best == ["dog" if score > 0 else "cat" for score in scores[:, 0]]


def test_a_model_that_version_0_7_would_answer_wrongly_has_another_format(binary, model):
    assert deploy.read_card(binary[1])["format"] == 2
    assert deploy.read_card(model)["format"] == 1
    assert gs.deploy.read_card(model)["class_names"] == ["ant", "bee", "cat"]
