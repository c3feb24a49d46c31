"""Paths of a squared loss with an L1 penalty: the products of the features are made once."""

import numpy as np
import provenglm.path.squares as squares
import pytest
from provenglm import GLMRegressor, GLMRegressorCV, constants
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import ElasticNet
from sklearn.model_selection import KFold, RepeatedKFold, ShuffleSplit

ALPHAS = np.geomspace(1.0, 1e-3, 5)


def problem(n=200, p=12, seed=0):
    """Features of unequal scales with offsets, two of them equal and one constant."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, p)) + 0.5 * rng.normal(size=(n, 1))
    y = X[:, : p // 2] @ rng.normal(size=p // 2) + rng.normal(size=n) + 7
    X = (X + rng.normal(size=p)) * 10.0 ** rng.uniform(-2, 2, p)
    X[:, 3], X[:, 5] = X[:, 4], 2.5
    weight = rng.uniform(0.2, 3, n)
    weight[:7] = 0
    return X, y, weight


def objective(X, y, weight, l1, l2, coef, intercept):
    """What is minimised, from its definition."""
    mean = np.average(np.square(X @ coef + intercept - y), weights=weight) / 2
    return mean + l1 * np.abs(coef).sum() + l2 / 2 * np.square(coef).sum()


@pytest.fixture
def few_passes(monkeypatch):
    """Fail if a fit of a point goes back to the rows."""

    def no_fit(*_):
        raise AssertionError("a point was fitted by itself")

    monkeypatch.setattr(squares, "point_of", no_fit)


@pytest.mark.parametrize("shape", [(200, 12), (40, 60)])
@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("ratio", [1.0, 0.4])
def test_every_point_has_the_objective_of_an_independent_fit(
    request, ratio, intercept, weighted, shape
):
    if shape[0] > shape[1]:  # else the products may be singular, and the solver helps
        request.getfixturevalue("few_passes")
    X, y, weight = problem(*shape)
    weight = weight if weighted else None
    cv = ShuffleSplit(3, test_size=0.3, random_state=0)
    kwargs = {"fit_intercept": intercept, "tol": 1e-11, "cv": cv, "refit": False}
    model = GLMRegressorCV(alphas=ALPHAS, l1_ratios=[ratio], **kwargs).fit(X, y, weight)
    own = np.ones(len(y)) if weight is None else weight
    scale = X.std(axis=0) + (X.std(axis=0) == 0)
    for fold, (train, _) in enumerate(cv.split(X)):
        for k, alpha in enumerate(ALPHAS):
            penalties = alpha * ratio, alpha * (1 - ratio)
            data = X[train], y[train], own[train], *penalties
            row = model.coefs_paths_[fold, 0, k, 0]
            coef, bias = (row[:-1], row[-1]) if intercept else (row, 0.0)
            ours = objective(*data, coef, bias)
            # Independent of any product of two features, and far beyond the tolerance.
            exact = GLMRegressor(
                alpha=alpha, l1_ratio=ratio, fit_intercept=intercept, tol=1e-12
            ).fit(X[train], y[train], own[train])
            best = objective(*data, exact.coef_, exact.intercept_)
            null = objective(*data, 0 * coef, np.average(y[train], weights=own[train]))
            assert ours - best <= model.gaps_[fold, 0, k] + 1e-13 * null
            assert ours - best <= 1e-11 * null
            if ratio < 1:
                np.testing.assert_allclose(coef * scale, exact.coef_ * scale, atol=1e-4)


@pytest.mark.usefixtures("few_passes")
@pytest.mark.parametrize("ratio", [1.0, 0.4])
def test_coefficients_are_those_of_scikit_learn(ratio):
    X, y, _ = problem()
    X = (X - X.mean(axis=0)) / (X.std(axis=0) + (X.std(axis=0) == 0))
    X[:, 3] = np.random.default_rng(1).normal(size=len(X))
    cv = KFold(4, shuffle=True, random_state=0)
    model = GLMRegressorCV(alphas=ALPHAS, l1_ratios=[ratio], cv=cv, tol=1e-12).fit(X, y)
    for fold, (train, test) in enumerate(cv.split(X)):
        for k, alpha in enumerate(ALPHAS):
            peer = ElasticNet(alpha, l1_ratio=ratio, tol=1e-12, max_iter=100_000)
            peer.fit(X[train], y[train])
            found = model.coefs_paths_[fold, 0, k, 0]
            np.testing.assert_allclose(found, [*peer.coef_, peer.intercept_], atol=1e-5)
            score = peer.score(X[test], y[test])
            assert model.scores_[fold, 0, k] == pytest.approx(score, abs=1e-5)


@pytest.mark.usefixtures("few_passes")
def test_a_row_that_is_in_a_training_set_twice_counts_twice():
    X, y, weight = problem()
    rng = np.random.default_rng(0)
    folds = [(rng.integers(0, 150, 150), np.arange(150, 200)) for _ in range(2)]
    kwargs = {"alphas": [0.1], "l1_ratios": [0.5], "tol": 1e-12, "refit": False}
    model = GLMRegressorCV(cv=folds, **kwargs).fit(X, y, weight)
    for fold, (train, _) in enumerate(folds):
        one = GLMRegressor(alpha=0.1, l1_ratio=0.5, tol=1e-12)
        one.fit(X[train], y[train], weight[train])
        found = X @ model.coefs_paths_[fold, 0, 0, 0, :-1]
        np.testing.assert_allclose(found, X @ one.coef_, atol=1e-5)


@pytest.mark.usefixtures("few_passes")
@pytest.mark.parametrize("weighted", [True, False])
def test_many_groups_of_rows_leave_each_fold_products_of_its_own(weighted):
    X, y, weight = problem()
    weight = weight if weighted else np.ones(len(y))
    rng = np.random.default_rng(0)
    # More sets of rows than a fit keeps products of; many rows are there twice and more.
    folds = [(rng.integers(0, 150, 150), np.arange(150, 200)) for _ in range(8)]
    kwargs = {"l1_ratio": 0.5, "tol": 1e-12}
    model = GLMRegressorCV(alphas=ALPHAS, l1_ratios=[0.5], cv=folds, tol=1e-12, refit=False)
    model.fit(X, y, weight)
    for fold, (train, _) in enumerate(folds):
        for k in (0, 2, 4):
            one = GLMRegressor(alpha=ALPHAS[k], **kwargs).fit(X[train], y[train], weight[train])
            found = X @ model.coefs_paths_[fold, 0, k, 0, :-1]
            np.testing.assert_allclose(found, X @ one.coef_, atol=1e-5)


def test_many_groups_of_rows_with_many_features_are_fitted_fold_by_fold(monkeypatch):
    monkeypatch.setattr(constants, "ALL_FEATURES", 10)
    X, y, _ = problem(n=120)
    cv = RepeatedKFold(n_splits=2, n_repeats=8, random_state=0)
    kwargs = {"alphas": ALPHAS, "l1_ratios": [1.0], "tol": 1e-11, "cv": cv}
    model = GLMRegressorCV(**kwargs).fit(X, y)
    train, _ = next(cv.split(X))
    one = GLMRegressor(alpha=ALPHAS[2], l1_ratio=1.0, tol=1e-11).fit(X[train], y[train])
    found = X @ model.coefs_paths_[0, 0, 2, 0, :-1]
    np.testing.assert_allclose(found, X @ one.coef_, atol=1e-4)


def test_without_a_penalty_and_far_offsets():
    X, y, _ = problem(n=120, p=6)
    X = X[:, [0, 1, 2, 4]] + 1e6
    model = GLMRegressorCV(alphas=[0.1, 0.0], l1_ratios=[0.5], cv=3, tol=1e-10).fit(X, y)
    train, _ = next(KFold(3).split(X))
    A = np.column_stack([X[train] - X[train].mean(axis=0), np.ones(len(train))])
    exact = np.linalg.lstsq(A, y[train], rcond=None)[0]
    found = model.coefs_paths_[0, 0, 1, 0, :-1]
    np.testing.assert_allclose(found, exact[:-1], rtol=1e-4)
    one = GLMRegressor(alpha=0.1, l1_ratio=0.5, tol=1e-12).fit(X[train], y[train])
    np.testing.assert_allclose(model.coefs_paths_[0, 0, 0, 0, :-1], one.coef_, rtol=1e-4)


def test_time_that_is_over_is_warned_of():
    X, y, _ = problem()
    with pytest.warns(ConvergenceWarning, match="max_time"):
        GLMRegressorCV(alphas=ALPHAS, l1_ratios=[1.0], max_time=1e-9).fit(X, y)
