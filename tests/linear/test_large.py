"""Memory maps and chunks give what the same rows in one array give."""

import itertools
import warnings

import large_data
import numpy as np
import pytest
from gluon_svrg.linear import SVRGClassifier, SVRGRegressor, blocks, disk, per_row, plan
from sklearn.exceptions import ConvergenceWarning

TABLE = list(itertools.product(["uint8", "float32", "float64"], ["weights", "none"]))
N, P = 6000, 8


@pytest.fixture(autouse=True)
def _small_is_large(monkeypatch):
    """A few thousand rows take the ways of many millions."""
    monkeypatch.setattr(disk, "SMALL", 0)
    monkeypatch.setattr(blocks, "BLOCK_BYTES", 1 << 13)
    monkeypatch.setattr(blocks, "PART_ROWS", 1000)


@pytest.fixture
def long(monkeypatch):
    """Numbers for each row are too many to be copied, and the rows for Newton's method."""
    monkeypatch.setattr(per_row, "MANY", 0)
    monkeypatch.setattr(plan, "_MOST_NUMBERS", 0)


def features(dtype, n=N, p=P):
    rng = np.random.default_rng(5)
    X = rng.normal(size=(n, p)) @ (np.eye(p) + 0.4)
    if dtype == "uint8":
        X = np.clip(40 * X + 120, 0, 255)
    return X.astype(dtype)


def standard(X):
    return (X - X.mean(axis=0, dtype=float)) / X.std(axis=0, dtype=float)


def labels_of(X, classes, seed=8):
    rng = np.random.default_rng(seed)
    z = standard(X) @ rng.normal(size=(X.shape[1], classes)) / 2
    z[:, 0] += 2
    return (z + rng.gumbel(size=z.shape)).argmax(axis=1)


def weights_of(given, n):
    return np.random.default_rng(7).integers(0, 4, n).astype(float) if given == "weights" else None


def sorted_by_class(X, classes):
    y = labels_of(X, classes)
    order = np.argsort(y, kind="stable")
    return X[order], y[order]


def fitted(model, X, y, weight=None):
    with warnings.catch_warnings():
        # At such a tol both may say that float64 has no more digits.
        warnings.simplefilter("ignore", ConvergenceWarning)
        return model.fit(X, y, sample_weight=weight)


def same(model, peer, X, tolerance):
    ours, theirs = (
        np.column_stack([np.atleast_2d(m.coef_) * X.std(axis=0, dtype=float), m.intercept_])
        for m in (model, peer)
    )
    assert np.abs(ours - theirs).max() <= tolerance * np.abs(theirs).max()


@pytest.mark.parametrize("form", large_data.NAMES)
@pytest.mark.parametrize("dtype", ["uint8", "float32", "float64"])
@pytest.mark.parametrize("given", ["weights", "none"])
def test_two_classes_bit_for_bit(tmp_path, form, dtype, given):
    X = features(dtype)
    y, weight = labels_of(X, 2), weights_of(given, N)
    X_disk = large_data.forms(tmp_path, X)[form]
    X = np.asfortranarray(X) if form == "memmap by columns" else X
    how = {"C": 0.1, "class_weight": "balanced", "random_state": 0}
    model = SVRGClassifier(**how).fit(X_disk, y, weight)
    peer = SVRGClassifier(**how).fit(X, y, weight)
    assert np.array_equal(model.coef_, peer.coef_)
    assert np.array_equal(model.decision_function(X_disk), peer.decision_function(X))
    assert np.array_equal(model.predict(X_disk), peer.predict(X))
    assert model.score(X_disk, y) == peer.score(X, y)


@pytest.mark.parametrize("form", ["memmap", "files"])
@pytest.mark.parametrize("metric", ["hessian", "diagonal"])
@pytest.mark.parametrize("classes", [2, 4])
@pytest.mark.parametrize(("dtype", "given"), TABLE)
def test_many_rows_sorted_by_class(tmp_path, long, form, metric, classes, dtype, given):
    X, y = sorted_by_class(features(dtype, p=4), classes)
    weight = weights_of(given, N)
    how = {"C": 0.1, "tol": 1e-12, "max_iter": 200, "random_state": 0, "class_weight": {0: 2.0}}
    model = SVRGClassifier(metric=metric, **how)
    fitted(model, large_data.forms(tmp_path, X)[form], y, weight)
    peer = fitted(SVRGClassifier(**how), X, y, weight)
    assert "sorted by class" in model.why_
    same(model, peer, X, 1e-6)


@pytest.mark.parametrize("loss", ["squared", "huber", "poisson"])
@pytest.mark.parametrize(("dtype", "given"), TABLE)
def test_regressions_of_many_rows(tmp_path, long, loss, dtype, given):
    X = features(dtype)
    rng = np.random.default_rng(9)
    z = standard(X) @ rng.normal(size=P) / 3
    y = rng.poisson(np.exp(z)) if loss == "poisson" else z + rng.standard_t(3, N)
    weight = weights_of(given, N)
    how = {"loss": loss, "alpha": 1e-3, "tol": 1e-12, "random_state": 0}
    X_disk = large_data.forms(tmp_path, X)["files"]
    model = fitted(SVRGRegressor(**how), X_disk, y, weight)
    peer = fitted(SVRGRegressor(**how), X, y, weight)
    same(model, peer, X, 1e-6)
    assert np.allclose(model.predict(X_disk), peer.predict(X), rtol=1e-5, atol=1e-6)
    assert model.score(X_disk, y) == pytest.approx(peer.score(X, y))
