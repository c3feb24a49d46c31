"""A fitted model as a layer of Gluon, and in a model directory."""

import pickle
import sys

import gluon_svrg as gs
import mxnet as mx
import numpy as np
import provenglm
import pytest
from gluon_svrg.linear import GLMClassifier, GLMRegressor
from sklearn.datasets import load_breast_cancer, load_diabetes, load_wine
from sklearn.exceptions import NotFittedError


def scores_of(model, X):
    if hasattr(model, "decision_function"):
        return model.decision_function(X).reshape(len(X), -1)
    return (
        np.log(model.predict(X))[:, None] if model.loss == "poisson" else model.predict(X)[:, None]
    )


MODELS = {
    "two classes": (GLMClassifier(), load_breast_cancer, 1),
    "three classes": (GLMClassifier(fit_intercept=False), load_wine, 3),
    "squared": (GLMRegressor(alpha=1e-3), load_diabetes, 1),
    "poisson": (GLMRegressor("poisson", alpha=1e-3), load_diabetes, 1),
}


@pytest.fixture(params=MODELS.values(), ids=MODELS)
def fitted(request):
    model, load, units = request.param
    X, y = load(return_X_y=True)
    return model.fit(X, y), X, units


# The sums of at most 30 products differ by some units of the last place of the largest product.
@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-5), ("float64", 1e-14)])
def test_the_layer_has_the_scores(fitted, dtype, tolerance):
    model, X, units = fitted
    layer = model.to_gluon(dtype)
    assert layer.weight.shape == (units, X.shape[1])
    assert layer.weight.dtype == np.dtype(dtype)
    outputs = layer(mx.nd.array(X, dtype=dtype)).asnumpy()
    largest = (np.abs(X) @ np.abs(np.atleast_2d(model.coef_)).T + np.abs(model.intercept_)).max()
    np.testing.assert_allclose(outputs, scores_of(model, X), rtol=0, atol=tolerance * largest)


def test_an_exported_model_has_the_scores(fitted, tmp_path):
    model, X, _ = fitted
    gs.deploy.export(model.to_gluon(), tmp_path / "model", X[:2].astype(np.float32))
    outputs = gs.deploy.Predictor(tmp_path / "model").predict(X.astype(np.float32))
    expected = model.to_gluon()(mx.nd.array(X)).asnumpy()
    # The same float32 operator, in batches of another size.
    np.testing.assert_allclose(outputs, expected, rtol=1e-5, atol=1e-5 * np.abs(expected).max())


@pytest.mark.parametrize("name", ["Classifier", "ClassifierCV", "Regressor", "RegressorCV"])
def test_the_old_name_is_the_same_class(name):
    new, old = getattr(gs.linear, f"GLM{name}"), getattr(gs.linear, f"SVRG{name}")
    assert old is new
    assert issubclass(new, getattr(provenglm, f"GLM{name}"))
    assert {f"GLM{name}", f"SVRG{name}"} <= set(gs.linear.__all__)
    assert repr(old()) == f"GLM{name}()"
    assert type(pickle.loads(pickle.dumps(old()))) is new


def test_a_pickle_of_version_0_8_is_found_by_the_old_name():
    model = GLMClassifier().fit([[0.0], [1.0]], [0, 1])
    text = pickle.dumps(model, protocol=0).replace(b"GLMClassifier", b"SVRGClassifier")
    assert type(pickle.loads(text)) is GLMClassifier


def test_before_fit():
    with pytest.raises(NotFittedError, match="GLMClassifier instance is not fitted yet"):
        GLMClassifier().to_gluon()


def test_without_mxnet(monkeypatch):
    model = GLMClassifier().fit([[0.0], [1.0]], [0, 1])
    monkeypatch.delitem(sys.modules, "gluon_svrg.linear.to_gluon", raising=False)
    monkeypatch.setitem(sys.modules, "mxnet", None)
    with pytest.raises(ImportError, match=r"gluon_svrg needs MXNet 1.9.1, .*pip install"):
        model.to_gluon()
