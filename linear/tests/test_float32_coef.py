"""Coefficients in float32, and the bound for them, beside the objective in NumPy."""

import numpy as np
import provenglm
import pytest
from scipy import sparse
from scipy.special import logsumexp

ROWS = 80


def data(offset, count):
    random = np.random.default_rng(count)
    X = (random.normal(size=(ROWS, 4)) * [1, 10, 0.1, 1] + offset).astype(np.float32)
    scores = (X - offset) @ [1.0, -0.2, 3.0, 0.0]
    return X, scores[:, None] * [1, 2] + random.normal(size=(ROWS, 2)), random


def squared(model, X, y):
    """Return the mean loss and the penalty of each target."""
    scores = X.astype(np.float64) @ np.atleast_2d(model.coef_).T.astype(np.float64)
    residual = scores + np.asarray(model.intercept_, np.float64) - y.reshape(ROWS, -1)
    return (residual**2).mean(axis=0) / 2


def penalty(coef, strength, l1_ratio):
    coef = np.atleast_2d(coef).astype(np.float64)
    l2 = (1 - l1_ratio) / 2 * (coef**2).sum(axis=1)
    return strength * (l2 + l1_ratio * abs(coef).sum(axis=1))


@pytest.mark.parametrize("offset", [0, 300])
@pytest.mark.parametrize("storage", [np.asarray, sparse.csr_matrix])
@pytest.mark.parametrize(
    ("make", "strength", "l1_ratio"),
    [
        (lambda: provenglm.Ridge(alpha=0.5), 0.5 / ROWS, 0.0),
        (lambda: provenglm.Ridge(alpha=np.array([0.5, 20])), np.array([0.5, 20]) / ROWS, 0.0),
        (lambda: provenglm.Lasso(alpha=0.05), 0.05, 1.0),
        (lambda: provenglm.ElasticNet(alpha=0.05, l1_ratio=0.3), 0.05, 0.3),
    ],
    ids=["ridge", "two-ridges", "lasso", "elastic-net"],
)
def test_the_bound_holds_for_the_rounded_coefficients(make, strength, l1_ratio, storage, offset):
    X, y, _ = data(offset, 0)
    y = y if np.size(strength) == 2 else y[:, 0]
    fitted = make().fit(storage(X), y)
    best = make().set_params(tol=1e-15).fit(X.astype(np.float64), y)
    assert fitted.coef_.dtype == fitted.intercept_.dtype == np.float32
    assert best.coef_.dtype == np.float64
    values = [squared(m, X, y) + penalty(m.coef_, strength, l1_ratio) for m in (fitted, best)]
    above = values[0] - values[1]
    assert (above <= fitted.gap_ + 1e-14 * values[1]).all()
    # And it says something: 1e-8 of the objective at zero.
    assert (np.asarray(fitted.gap_) <= 1e-8 * (y.reshape(ROWS, -1) ** 2).mean(axis=0)).all()
    assert fitted.predict(storage(X)).dtype == np.float32
    assert fitted.predict(X.astype(np.float64)).dtype == np.float64
    if l1_ratio:
        assert fitted.dual_gap_ == fitted.gap_


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("offset", [0, 300])
def test_the_bound_of_a_classifier_holds(classes, offset):
    X, y, random = data(offset, classes)
    labels = np.digitize(y[:, 0], np.quantile(y[:, 0], np.linspace(0, 1, classes + 1)[1:-1]))
    weight = random.uniform(size=ROWS)
    fitted = provenglm.LogisticRegression(C=2.0).fit(X, labels, weight)
    best = provenglm.LogisticRegression(C=2.0, tol=1e-15).fit(X.astype(float), labels, weight)
    assert fitted.coef_.dtype == fitted.intercept_.dtype == np.float32

    def objective(model):
        scores = X.astype(float) @ model.coef_.T.astype(float) + model.intercept_.astype(float)
        if classes == 2:
            scores = np.c_[np.zeros(ROWS), scores]
        losses = logsumexp(scores, axis=1) - scores[np.arange(ROWS), labels]
        return np.average(losses, weights=weight) + (model.coef_.astype(float) ** 2).sum() / (
            4 * weight.sum()
        )

    assert objective(fitted) - objective(best) <= fitted.gap_ + 1e-15
    assert fitted.gap_ <= 1e-6


def test_it_is_the_rounding_that_is_paid_for():
    X, y, _ = data(300, 0)
    wide = provenglm.Ridge(alpha=0.5, tol=1e-15).fit(X.astype(np.float64), y[:, 0])
    narrow = provenglm.Ridge(alpha=0.5, tol=1e-15).fit(X, y[:, 0])
    values = [squared(m, X, y[:, 0]) + penalty(m.coef_, 0.5 / ROWS, 0.0) for m in (narrow, wide)]
    assert wide.gap_ < (values[0] - values[1])[0] <= narrow.gap_


def test_models_that_stay_in_float64():
    X, y, _ = data(0, 0)
    for model in (provenglm.PoissonRegressor(), provenglm.HuberRegressor()):
        assert model.fit(X, np.exp(y[:, 0] / 10)).coef_.dtype == np.float64
