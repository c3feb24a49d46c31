"""SVRGClassifierCV against independent fits and against LogisticRegressionCV."""

import itertools
import pickle
import signal
import threading
import warnings

import gluon_svrg.linear.joint as joint
import numpy as np
import pytest
import sklearn
from gluon_svrg.linear import SVRGClassifier, SVRGClassifierCV
from gluon_svrg.linear.scoring import HeldOut
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegressionCV
from sklearn.metrics import accuracy_score, get_scorer, make_scorer
from sklearn.model_selection import (
    GridSearchCV,
    GroupKFold,
    KFold,
    ShuffleSplit,
    StratifiedKFold,
    TimeSeriesSplit,
    cross_val_score,
)
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

CS = np.logspace(-3, 3, 5)


def problem(n=400, p=6, classes=2, seed=0):
    """Features of unequal scales with offsets, and labels of a noisy teacher."""
    rng = np.random.default_rng(seed)
    scale = 10.0 ** rng.uniform(-1, 1, p)
    X = rng.normal(size=(n, p)) @ (np.eye(p) + 0.2 * rng.normal(size=(p, p)))
    scores = X @ rng.normal(size=(p, classes)) + rng.gumbel(size=(n, classes))
    return (X + rng.normal(size=p)) * scale, scores.argmax(axis=1)


@pytest.fixture(params=["together", "one by one"])
def way(request, monkeypatch):
    """Folds in one pass, or each by itself."""
    together = request.param == "together"
    monkeypatch.setattr(joint, "_WORK", 0.0 if together else np.inf)
    monkeypatch.setattr(joint, "_ROWS_OF_A_WEIGHT", 0 if together else 50)
    return request.param


def weights_of(y, seed=1):
    weight = np.random.default_rng(seed).uniform(0.2, 3, len(y))
    weight[:7] = 0
    return weight


CASES = {
    "binary": {},
    "multiclass": {"classes": 4},
    "weights": {"weighted": True},
    "balanced": {"class_weight": "balanced", "classes": 3, "weighted": True},
    "dict": {"class_weight": {0: 1.0, 1: 4.0}},
    "no intercept": {"fit_intercept": False},
    "no intercept, classes": {"fit_intercept": False, "classes": 3},
    "splitter": {"cv": ShuffleSplit(3, test_size=0.3, random_state=0)},
    "growing": {"cv": TimeSeriesSplit(3)},
    "iterable": {"cv": "iterable"},
    "unsorted": {"Cs": [1.0, 1e-3, 1e3, 0.1]},
}


@pytest.mark.parametrize("case", CASES)
def test_every_point_equals_an_independent_fit(way, case):
    kwargs = {"Cs": CS, "cv": 3, "tol": 1e-13, **CASES[case]}
    X, y = problem(classes=kwargs.pop("classes", 2))
    weight = weights_of(y) if kwargs.pop("weighted", False) else None
    if kwargs["cv"] == "iterable":
        kwargs["cv"] = [(np.arange(50, 400), np.arange(50)), (np.arange(300), np.arange(250, 400))]
    model = SVRGClassifierCV(**kwargs, random_state=0).fit(X, y, weight)
    cv = kwargs["cv"]
    splits = StratifiedKFold(3).split(X, y) if cv == 3 else cv
    splits = list(splits.split(X, y) if hasattr(splits, "split") else splits)
    own = np.ones(len(y)) if weight is None else weight.copy()
    if model.class_weight == "balanced":
        own *= (own.sum() / (len(set(y)) * np.bincount(y, own)))[y]
    elif model.class_weight:
        own *= np.array([model.class_weight[k] for k in range(2)])[y]
    for f, (train, test) in enumerate(splits):
        for c, C in enumerate(kwargs["Cs"]):
            one = SVRGClassifier(C=C, tol=1e-13, fit_intercept=model.fit_intercept)
            one.fit(X[train], y[train], own[train])
            point = model.coefs_paths_[f, 0, c]
            wanted = one.coef_
            if model.fit_intercept:
                wanted = np.column_stack([wanted, one.intercept_])
            np.testing.assert_allclose(point, wanted, rtol=0, atol=1e-6 * np.abs(wanted).max())
            test_weight = None if weight is None else weight[test]
            score = accuracy_score(y[test], one.predict(X[test]), sample_weight=test_weight)
            assert model.scores_[f, 0, c] == pytest.approx(score, rel=1e-14)
    last = SVRGClassifier(C=model.C_, tol=1e-13, fit_intercept=model.fit_intercept).fit(X, y, own)
    size = max(np.abs(last.coef_).max(), np.abs(last.intercept_).max())
    np.testing.assert_allclose(model.coef_, last.coef_, rtol=0, atol=1e-6 * size)
    np.testing.assert_allclose(model.intercept_, last.intercept_, rtol=0, atol=1e-6 * size)


SCORINGS = ["accuracy", "neg_log_loss", "roc_auc", "f1", "neg_brier_score", "balanced_accuracy"]


@pytest.mark.parametrize("scoring", [*SCORINGS, "function"])
def test_scores_are_those_of_cross_val_score(way, scoring):
    X, y = problem()
    if scoring == "function":

        def scoring(estimator, X, y):
            return -np.abs(estimator.decision_function(X) - y).mean() - len(X)

    model = SVRGClassifierCV(Cs=CS, cv=3, tol=1e-13, scoring=scoring).fit(X, y)
    for c, C in enumerate(CS):
        one = SVRGClassifier(C=C, tol=1e-13)
        scores = cross_val_score(one, X, y, cv=3, scoring=scoring)
        exact = scoring in ("accuracy", "roc_auc", "f1", "balanced_accuracy")
        np.testing.assert_allclose(model.scores_[:, 0, c], scores, rtol=1e-14 if exact else 1e-6)
    assert model.score(X, y) == get_score(scoring)(model, X, y)


def get_score(scoring):
    return scoring if callable(scoring) else get_scorer(scoring)


def peer(X, y, weight=None, **kwargs):
    """LogisticRegressionCV of scikit-learn, as the attributes are from 1.8 on."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        known = LogisticRegressionCV().get_params()
        if "use_legacy_attributes" in known:
            kwargs |= {"use_legacy_attributes": False, "l1_ratios": (0.0,)}
        kwargs.setdefault("scoring", None)
        model = LogisticRegressionCV(solver="newton-cholesky", tol=1e-12, max_iter=1000, **kwargs)
        model.fit(X, y, weight)
    return model, "use_legacy_attributes" in known


@pytest.mark.parametrize(
    ("classes", "refit", "weighted", "scoring", "class_weight"),
    [
        (2, True, False, None, None),
        (2, False, False, "neg_log_loss", None),
        (2, True, True, "neg_log_loss", "balanced"),
        (3, True, True, None, {0: 2.0, 1: 1.0, 2: 0.5}),
        (3, False, True, "neg_log_loss", None),
        (3, True, False, "roc_auc_ovr", "balanced"),
    ],
)
def test_it_is_logistic_regression_cv(way, classes, refit, weighted, scoring, class_weight):
    X, y = problem(300, 5, classes, seed=3)
    weight = weights_of(y) if weighted else None
    kwargs = {
        "Cs": 4,
        "cv": StratifiedKFold(4, shuffle=True, random_state=0),
        "refit": refit,
        "scoring": scoring,
        "class_weight": class_weight,
    }
    other, is_new = peer(X, y, weight, **kwargs)
    model = SVRGClassifierCV(**kwargs, tol=1e-13, random_state=0).fit(X, y, weight)
    np.testing.assert_allclose(model.Cs_, other.Cs_)
    assert model.C_ == pytest.approx(np.ravel(other.C_)[0])
    size = np.abs(other.coef_).max()
    np.testing.assert_allclose(model.coef_, other.coef_, rtol=0, atol=2e-5 * size)
    np.testing.assert_array_equal(model.predict(X), other.predict(X))
    if not is_new:
        return
    assert model.scores_.shape == other.scores_.shape
    assert model.coefs_paths_.shape == other.coefs_paths_.shape
    assert model.n_iter_.shape == other.n_iter_.shape == model.gaps_.shape
    assert isinstance(model.C_, float)
    assert model.l1_ratio_ == other.l1_ratio_
    np.testing.assert_allclose(model.scores_, other.scores_, rtol=1e-5)
    # Their intercepts of several classes are those of an arbitrary shift.
    paths, others = model.coefs_paths_[..., :-1], other.coefs_paths_[..., :-1]
    np.testing.assert_allclose(paths, others, rtol=0, atol=1e-4 * np.abs(others).max())


def test_of_equal_scores_the_first_c_is_chosen():
    X, y = problem()
    Cs = [10.0, 0.1, 1.0]
    model = SVRGClassifierCV(Cs, cv=3, scoring=lambda estimator, X, y: 1.0).fit(X, y)
    assert model.C_ == 10.0
    model.set_params(refit=False).fit(X, y)
    assert model.C_ == 10.0


def test_without_refit_it_is_the_mean_of_the_best_points():
    X, y = problem(n=120, seed=5)
    model = SVRGClassifierCV(7, cv=4, refit=False, scoring="neg_log_loss").fit(X, y)
    best = model.scores_[:, 0].argmax(axis=1)
    points = [model.coefs_paths_[fold, 0, k] for fold, k in enumerate(best)]
    np.testing.assert_array_equal(model.coef_, np.mean(points, axis=0)[:, :-1])
    assert model.C_ == model.Cs_[best].mean()
    assert not hasattr(model, "gap_")


def test_every_gap_is_a_bound_of_the_distance(way):
    X, y = problem()
    model = SVRGClassifierCV(CS, cv=3, tol=1e-3, random_state=0).fit(X, y)
    exact = SVRGClassifierCV(CS, cv=3, tol=1e-13, random_state=0).fit(X, y)
    for (f, c), C in itertools.product(np.ndindex(3, 5), [None]):
        train = list(StratifiedKFold(3).split(X, y))[f][0]
        C = CS[c]

        def objective(row, train=train, C=C):
            score = X[train] @ row[0, :-1] + row[0, -1]
            loss = np.logaddexp(0, score) - y[train] * score
            return loss.mean() + row[0, :-1] @ row[0, :-1] / (2 * C * len(train))

        above = objective(model.coefs_paths_[f, 0, c]) - objective(exact.coefs_paths_[f, 0, c])
        assert -1e-12 <= above <= model.gaps_[f, 0, c] + 1e-12
        assert above <= 1e-3
