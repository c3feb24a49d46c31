"""Data that other solvers fail on: units, offsets, columns that say nothing, many classes."""

import math
import warnings

import numpy as np
import pytest
from provenglm import GLMClassifier, GLMRegressor
from scipy.sparse import csr_array
from sklearn.exceptions import ConvergenceWarning
from walking import take

N, P = 300, 4


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(N, P))
    z = X @ rng.normal(size=P)
    return X, z, {
        "classes": z + rng.logistic(size=N) > 0,
        "three": np.digitize(z + rng.logistic(size=N), [-1, 1]),
        "numbers": z + rng.normal(size=N),
        "counts": rng.poisson(np.exp(z / 2)),
    }  # fmt: skip


MODELS = {
    "logistic": (GLMClassifier(), "classes"),
    "softmax": (GLMClassifier(), "three"),
    "squared": (GLMRegressor(), "numbers"),
    "huber": (GLMRegressor("huber"), "numbers"),
    "poisson": (GLMRegressor("poisson"), "counts"),
}


# With Huber's loss nothing is proven without a penalty, and a warning says so.
UNPROVEN = "ignore:.*nothing proves it:sklearn.exceptions.ConvergenceWarning"
WITHOUT_PENALTY = [
    pytest.param(name, marks=[pytest.mark.filterwarnings(UNPROVEN)] if name == "huber" else [])
    for name in MODELS
]


def without_penalty(name):
    model, target = MODELS[name]
    penalty = {"C": math.inf} if isinstance(model, GLMClassifier) else {"alpha": 0}
    return type(model)(**(model.get_params() | penalty | {"tol": 1e-12})), target


def scores(model, X):
    return model.decision_function(X) if hasattr(model, "classes_") else model.predict(X)


@pytest.mark.parametrize("name", WITHOUT_PENALTY)
@pytest.mark.parametrize("exponent", [-120, -30, 30, 120])
def test_units_are_no_matter_without_a_penalty(name, exponent, data):
    X, _, targets = data
    model, target = without_penalty(name)
    expected = scores(model.fit(X, targets[target]), X)
    units = X * 10.0 ** np.array([exponent, 0, 0, -exponent])
    found = scores(model.fit(units, targets[target]), units)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5 * np.abs(expected).max())


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("scale", [1e-300, 1e-160])
def test_features_that_are_nothing_beside_the_penalty(name, scale, data):
    X, _, targets = data
    model, target = MODELS[name]
    tiny = model.fit(X * scale, targets[target])
    constant = scores(tiny, X * scale)
    np.testing.assert_allclose(constant, np.broadcast_to(constant[:1], constant.shape), atol=1e-9)
    assert np.isfinite(tiny.objective_)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("unit", [1e-4, 1e-8, 1e-10, 1e-16, 1e-30, 1e-100])
def test_a_feature_of_a_tiny_unit_disturbs_no_other(name, unit, data):
    X, _, targets = data
    model, target = MODELS[name]
    without = model.fit(X[:, 1:], targets[target]).objective_
    model.fit(X * [unit, 1, 1, 1], targets[target])
    # The penalty keeps its coefficient near 0: it can only help, and hardly does.
    assert without - 1e-4 <= model.objective_ <= without + 1e-6


@pytest.mark.parametrize("name", WITHOUT_PENALTY)
@pytest.mark.parametrize("spread", [1.0, 1e5])
def test_an_offset_such_as_of_dates(name, spread, data):
    X, _, targets = data
    model, target = without_penalty(name)
    dates = X.copy()
    dates[:, 0] = np.round(spread * X[:, 0] * 2**10) / 2**10 + 1.7e9  # a step of 2e-7 is left
    centred = dates - [1.7e9, 0, 0, 0]
    expected = scores(model.fit(centred, targets[target]), centred)
    found = scores(model.fit(dates, targets[target]), dates)
    # The mean itself has an error of 2e-7 of the spread, and so has every score.
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("fit_intercept", [True, False])
def test_columns_that_say_nothing_new(name, fit_intercept, data):
    X, _, targets = data
    model, target = MODELS[name]
    model = type(model)(**(model.get_params() | {"fit_intercept": fit_intercept, "tol": 1e-12}))
    more = np.column_stack([X, X[:, 1], np.zeros(N), np.full(N, 3.0)])
    columns = more.shape[1] - (0 if fit_intercept else 1)  # a constant is an intercept
    model.fit(more[:, :columns], targets[target])
    coef = np.atleast_2d(model.coef_)
    np.testing.assert_allclose(coef[:, 1], coef[:, P], rtol=1e-4, atol=1e-9)  # shared
    np.testing.assert_allclose(coef[:, P + 1 :], 0, atol=1e-7)


@pytest.mark.parametrize("name", WITHOUT_PENALTY)
def test_columns_that_say_nothing_new_without_a_penalty(name, data):
    X, _, targets = data
    model, target = without_penalty(name)
    expected = model.fit(X, targets[target]).objective_
    model.fit(np.column_stack([X, X[:, 1], np.zeros(N), np.full(N, 3.0)]), targets[target])
    assert np.isfinite(model.coef_).all()
    assert model.objective_ == pytest.approx(expected, rel=1e-9)


def test_constant_features_alone():
    y = np.arange(10) % 3
    model = GLMClassifier().fit(np.ones((10, 2)), y)
    np.testing.assert_allclose(model.coef_, 0, atol=1e-9)
    shares = np.bincount(y) / 10
    np.testing.assert_allclose(model.predict_proba([[1.0, 1.0]])[0], shares, rtol=1e-6)


@pytest.mark.slow
def test_a_thousand_classes():
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(1000, 8))
    y = np.arange(2000) % 1000
    X = centres[y] + 0.1 * rng.normal(size=(2000, 8))
    model = GLMClassifier(tol=0.1).fit(X, y)
    assert model.coef_.shape == (1000, 8)
    assert model.score(X, y) > 0.5


@pytest.mark.parametrize("name", ["squared", "huber", "poisson"])
def test_one_row(name):
    model = MODELS[name][0].fit([[2.0, 1.0]], [3.0])
    np.testing.assert_allclose(model.predict([[2.0, 1.0]]), [3.0], rtol=1e-6)


def test_more_features_than_rows(data):
    rng = np.random.default_rng(1)
    X, y = rng.normal(size=(40, 500)), np.arange(40) % 2
    model = GLMClassifier(tol=1e-10).fit(X, y)
    # At the optimum the coefficients are a sum of the rows: w = C sum (y - p) x.
    residual = y - model.predict_proba(X)[:, 1]
    largest = np.abs(model.coef_).max()
    np.testing.assert_allclose(model.coef_[0], residual @ X, atol=1e-4 * largest)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "strength"), [("logistic", {"C": 1e3}), ("softmax", {"C": 1.0})])
@pytest.mark.parametrize("unit", [1.0, 1e-6, 1e-12])
def test_a_feature_of_a_tiny_unit_among_many_rows(name, strength, unit):
    rng = np.random.default_rng(3)
    X = rng.normal(size=(40_000, 80))
    z = X @ rng.normal(size=80) / 5
    y = np.digitize(z + rng.logistic(size=len(z)), [0] if name == "logistic" else [-1, 1])
    model = GLMClassifier(**strength)
    without = model.fit(X[:, 1:], y).objective_
    model.fit(X * np.append(unit, np.ones(79)), y)
    assert model.objective_ <= without + 1e-6
    if unit == 1e-12:
        assert model.objective_ >= without - 1e-6


@pytest.mark.parametrize("is_classifier", [False, True])
def test_small_features_beside_more_huge_ones_than_rows(is_classifier):
    """The squares of the scales, of which the rows' products are made, have no digits for both."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 2680))
    X[:, :80] = np.outer(X[:, 0], rng.normal(size=80))  # of one direction
    y = X[:, 80] + X[:, 81]
    model = GLMClassifier(C=10) if is_classifier else GLMRegressor(alpha=1e-3)
    objectives = []
    for scale in (1e4, 1e8):
        scaled = X * np.where(np.arange(2680) < 80, scale, 1)
        model.fit(scaled, y > 0 if is_classifier else y)
        objectives.append(model.objective_)
    assert model.solver_ == "row-space-newton"
    assert objectives[1] == pytest.approx(objectives[0], rel=1e-4)


def test_far_apart_but_not_without_an_optimum():
    rng = np.random.default_rng(2)
    X = rng.normal(size=(500, 5))
    y = X.sum(axis=1) > 0
    model = GLMClassifier(C=1e6, tol=1e-8).fit(X, y)
    assert model.score(X, y) == 1
    assert model.gap_ < 1e-3 * model.objective_


@pytest.mark.parametrize("alpha", [0.0, 1e-3])
@pytest.mark.parametrize("is_small", [True, False])
def test_counts_of_1e13_without_an_intercept(monkeypatch, is_small, alpha):
    # From 0, the optimum is at 1e-12 of Newton's step.
    take(monkeypatch, "newton-cholesky" if is_small else "sampled-newton")
    rng = np.random.default_rng(0)
    X = rng.normal(size=(3000, 4))
    y = np.round(1e13 * np.exp(X @ rng.normal(size=4) / 3))
    with warnings.catch_warnings():
        warnings.simplefilter("error", ConvergenceWarning)
        model = GLMRegressor("poisson", alpha=alpha, fit_intercept=False, tol=1e-10).fit(X, y)
    # What is gained is 30 times the mean: coefficients may be off by sqrt(2 * 30 * tol).
    slope = X.T @ (model.predict(X) - y) / len(y) + alpha * model.coef_
    curvature = np.square(X).T @ model.predict(X) / len(y)
    assert np.abs(slope / curvature).max() < 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("form", [np.asarray, csr_array], ids=["dense", "sparse"])
@pytest.mark.parametrize("value", [1.0, 0.1])
def test_a_constant_column_of_many_rows_changes_nothing(form, value):
    rng = np.random.default_rng(0)
    n = 100_000
    X = np.where(rng.random((n, 101)) < 0.02, rng.random((n, 101)), 0.0)
    y = 5 * X[:, :10].sum(axis=1) + rng.logistic(size=n) > 0.5
    X[:, -1] = value
    model = GLMClassifier(C=np.inf, random_state=0).fit(form(X), y)
    without = GLMClassifier(C=np.inf, random_state=0).fit(form(X[:, :-1]), y)
    # The mean of a hundred thousand equal numbers is rounded: no deviation, no coefficient of 1e8.
    assert model.coef_[0, -1] == 0
    assert model.objective_ == pytest.approx(without.objective_, abs=2e-7)
    assert model.gap_ <= 1e-6


@pytest.mark.parametrize("is_classifier", [False, True])
def test_fewer_rows_than_features_of_scales_far_apart_and_next_to_no_penalty(is_classifier):
    """Conjugate gradients end at `max_iter` here, a gap of 0.05 away."""
    rng = np.random.default_rng(0)
    left, _, right = np.linalg.svd(rng.normal(size=(80, 200)), full_matrices=False)
    X = left @ np.diag(np.geomspace(1e2, 1e-6, 80)) @ right
    z = X @ rng.normal(size=200)
    if is_classifier:
        y = z + z.std() * rng.logistic(size=80) > 0
        model = GLMClassifier(C=1e9 / 80).fit(X, y)
    else:
        model = GLMRegressor(alpha=1e-9).fit(X, z + rng.normal(size=80))
    assert model.solver_ == "row-space-newton"
    assert model.stop_reason_ == "the optimum is as near as tol asks"
    assert model.n_iter_ < 30
