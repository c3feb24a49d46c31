"""GLMClassifierCV against independent fits and against LogisticRegressionCV."""

import itertools
import pickle
import warnings

import numpy as np
import provenglm.path.joint as joint
import pytest
import sklearn
from provenglm import GLMClassifier, GLMClassifierCV
from provenglm.api import search as base
from provenglm.api.scoring import HeldOut
from provenglm.model.solution import StopReason
from provenglm.path import folds, solve_path as path
from scipy.sparse import csr_array, issparse
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
from sklearn.utils.estimator_checks import parametrize_with_checks

CS = np.logspace(-3, 3, 5)


def problem(n=400, p=6, classes=2, seed=0):
    """Features of unequal scales with offsets, and labels of a noisy teacher."""
    rng = np.random.default_rng(seed)
    scale = 10.0 ** rng.uniform(-1, 1, p)
    X = rng.normal(size=(n, p)) @ (np.eye(p) + 0.2 * rng.normal(size=(p, p)))
    scores = X @ rng.normal(size=(p, classes)) + rng.gumbel(size=(n, classes))
    return (X + rng.normal(size=p)) * scale, scores.argmax(axis=1)


@pytest.fixture(params=["together", "one by one"])
def way(request, solve_together):
    """Folds in one pass, or each by itself."""
    solve_together(request.param == "together")
    return request.param


def weights_of(y, seed=1):
    weight = np.random.default_rng(seed).uniform(0.2, 3, len(y))
    weight[:7] = 0
    return weight


@pytest.mark.slow
# The checks compare predictions to 1e-7 of themselves.
@parametrize_with_checks([GLMClassifierCV(Cs=3, cv=3, tol=1e-12)])
def test_scikit_learns_checks(estimator, check):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check(estimator)


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
# Fold by fold, what is done with weights and classes is the solver's.
ONE_BY_ONE = ["multiclass", "balanced", "no intercept", "iterable", "unsorted"]


def with_ways(name, together, one_by_one):
    """Run cases in both ways, or in the one of which they are a case."""
    cases = [*(("together", c) for c in together), *(("one by one", c) for c in one_by_one)]
    return pytest.mark.parametrize(("way", name), cases, indirect=["way"])


@with_ways("case", CASES, ONE_BY_ONE)
def test_every_point_equals_an_independent_fit(way, case):
    kwargs = {"Cs": CS, "cv": 3, "tol": 1e-13, **CASES[case]}
    X, y = problem(classes=kwargs.pop("classes", 2))
    weight = weights_of(y) if kwargs.pop("weighted", False) else None
    if kwargs["cv"] == "iterable":
        kwargs["cv"] = [(np.arange(50, 400), np.arange(50)), (np.arange(300), np.arange(250, 400))]
    model = GLMClassifierCV(**kwargs, random_state=0).fit(X, y, weight)
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
            one = GLMClassifier(C=C, tol=1e-13, fit_intercept=model.fit_intercept)
            one.fit(X[train], y[train], own[train])
            point = model.coefs_paths_[f, 0, c]
            wanted = one.coef_
            if model.fit_intercept:
                wanted = np.column_stack([wanted, one.intercept_])
            np.testing.assert_allclose(point, wanted, rtol=0, atol=1e-6 * np.abs(wanted).max())
            test_weight = None if weight is None else weight[test]
            score = accuracy_score(y[test], one.predict(X[test]), sample_weight=test_weight)
            assert model.scores_[f, 0, c] == pytest.approx(score, rel=1e-14)
    last = GLMClassifier(C=model.C_, tol=1e-13, fit_intercept=model.fit_intercept).fit(X, y, own)
    size = max(np.abs(last.coef_).max(), np.abs(last.intercept_).max())
    np.testing.assert_allclose(model.coef_, last.coef_, rtol=0, atol=1e-6 * size)
    np.testing.assert_allclose(model.intercept_, last.intercept_, rtol=0, atol=1e-6 * size)


SCORINGS = ["accuracy", "neg_log_loss", "roc_auc", "f1", "neg_brier_score", "balanced_accuracy"]


@with_ways("scoring", [*SCORINGS, "function"], ["neg_log_loss", "function"])
def test_scores_are_those_of_cross_val_score(way, scoring):
    X, y = problem()
    if scoring == "function":

        def scoring(estimator, X, y):
            return -np.abs(estimator.decision_function(X) - y).mean() - len(X)

    model = GLMClassifierCV(Cs=CS, cv=3, tol=1e-13, scoring=scoring).fit(X, y)
    for c, C in list(enumerate(CS))[::2]:
        one = GLMClassifier(C=C, tol=1e-13)
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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("way", "classes", "refit", "weighted", "scoring", "class_weight"),
    [
        ("together", 2, True, False, None, None),
        ("one by one", 2, False, False, "neg_log_loss", None),
        ("together", 2, True, True, "neg_log_loss", "balanced"),
        ("one by one", 3, True, True, None, {0: 2.0, 1: 1.0, 2: 0.5}),
        ("together", 3, False, True, "neg_log_loss", None),
        ("one by one", 3, True, False, "roc_auc_ovr", "balanced"),
    ],
    indirect=["way"],
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
    model = GLMClassifierCV(**kwargs, tol=1e-13, random_state=0).fit(X, y, weight)
    np.testing.assert_allclose(model.Cs_, other.Cs_)
    assert pytest.approx(np.ravel(other.C_)[0]) == model.C_
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
    model = GLMClassifierCV(Cs, cv=3, scoring=lambda estimator, X, y: 1.0).fit(X, y)
    assert model.C_ == 10.0
    model.set_params(refit=False).fit(X, y)
    assert model.C_ == 10.0


def test_without_refit_it_is_the_mean_of_the_best_points():
    X, y = problem(n=120, seed=5)
    model = GLMClassifierCV(7, cv=4, refit=False, scoring="neg_log_loss").fit(X, y)
    best = model.scores_[:, 0].argmax(axis=1)
    points = [model.coefs_paths_[fold, 0, k] for fold, k in enumerate(best)]
    np.testing.assert_array_equal(model.coef_, np.mean(points, axis=0)[:, :-1])
    assert model.Cs_[best].mean() == model.C_
    assert not hasattr(model, "gap_")


def test_every_gap_is_a_bound_of_the_distance(way):
    X, y = problem()
    model = GLMClassifierCV(CS, cv=3, tol=1e-3, random_state=0).fit(X, y)
    exact = GLMClassifierCV(CS, cv=3, tol=1e-13, random_state=0).fit(X, y)
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


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"Cs": []}, ValueError, "at least one C"),
        ({"Cs": [1.0, -2.0]}, ValueError, "above 0, got -2"),
        ({"Cs": [1.0, 0.0]}, ValueError, "above 0, got 0"),
        ({"Cs": [np.nan]}, ValueError, "above 0, got nan"),
        ({"Cs": 0}, ValueError, "Cs must be a positive integer, got 0"),
        ({"Cs": True}, TypeError, "Cs must be a number of Cs or a list"),
        ({"Cs": "many"}, TypeError, "Cs must be a number of Cs or a list"),
        ({"Cs": [[1.0, 2.0]]}, TypeError, "Cs must be a number of Cs or a list"),
        ({"Cs": [1e-320]}, ValueError, "overflows float64"),
        ({"l1_ratios": []}, ValueError, "from 0 to 1, got"),
        ({"l1_ratios": [0.5, 1.5]}, ValueError, "from 0 to 1, got"),
        ({"l1_ratios": 0.5}, TypeError, "from 0 to 1, got 0.5"),
        ({"cv": 1000}, ValueError, "n_splits=1000"),
        ({"cv": "five"}, ValueError, "cv"),
        ({"cv": [(np.arange(5), np.arange(0))]}, ValueError, "at least one of each"),
        ({"cv": [(np.arange(400), np.arange(7))]}, ValueError, "but X has 60 rows"),
        ({"scoring": "beauty"}, ValueError, "beauty"),
        (
            {"scoring": lambda estimator, X, y: np.nan},
            ValueError,
            "all scores of the path are NaN",
        ),
        ({"refit": "yes"}, TypeError, "refit must be True, False or 'one-standard-error'"),
        ({"tol": -1}, ValueError, "tol must be a number of at least 0"),
        ({"max_iter": 0}, ValueError, "max_iter must be a positive integer"),
        ({"fit_intercept": 1}, TypeError, "fit_intercept must be True or False"),
        ({"class_weight": "even"}, ValueError, "class_weight"),
    ],
)
def test_bad_arguments_are_refused_in_a_sentence(change, error, words):
    X, y = problem(60)
    with pytest.raises(error, match=words):
        GLMClassifierCV(**change).fit(X, y)


def test_a_training_set_without_a_class_is_refused():
    X, y = problem(60, classes=3)
    y[:] = np.arange(60) % 2
    y[7] = 2
    with pytest.raises(ValueError, match="fold 0 contain none of the 1 rows of the class 2"):
        GLMClassifierCV(cv=KFold(5)).fit(X, y)
    with pytest.raises(ValueError, match="fold 0 contain none of the 30 rows of the class b"):
        GLMClassifierCV(cv=KFold(2)).fit(X, np.where(np.arange(60) < 30, "b", "a"))


def test_test_rows_of_no_weight_have_no_accuracy():
    X, y = problem(60)
    weight = (np.arange(60) >= 20).astype(float)
    with pytest.raises(ValueError, match="sample_weight 0"):
        GLMClassifierCV(cv=KFold(3)).fit(X, y, weight)


def test_what_is_not_reached_is_warned_of_once():
    X, y = problem()
    with pytest.warns(ConvergenceWarning) as seen:
        GLMClassifierCV(Cs=[1e-2, 1e4], max_iter=1, tol=1e-12).fit(X, y)
    assert ["of the path" in str(one.message) for one in seen] == [True, False]
    with pytest.warns(ConvergenceWarning) as seen:
        GLMClassifierCV(Cs=[np.inf], cv=3).fit(X, X[:, 0] > 0)
    assert "leave math.inf out" in str(seen[1].message)


def test_c_may_be_infinite(way):
    X, y = problem()
    model = GLMClassifierCV(Cs=[np.inf, 1.0], cv=3, tol=1e-12).fit(X, y)
    train = next(StratifiedKFold(3).split(X, y))[0]
    one = GLMClassifier(C=np.inf, tol=1e-12).fit(X[train], y[train])
    np.testing.assert_allclose(model.coefs_paths_[0, 0, 0, :, :-1], one.coef_, rtol=1e-5)


def test_it_is_an_estimator_like_others(tmp_path):
    X, y = problem(200)
    labels = np.array(["no", "yes"])[y]
    model = GLMClassifierCV(Cs=3, cv=3, random_state=0).fit(X, labels)
    again = clone(model).fit(X, labels)
    np.testing.assert_array_equal(again.coef_, model.coef_)
    np.testing.assert_array_equal(again.coefs_paths_, model.coefs_paths_)
    copy = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(copy.predict_proba(X), model.predict_proba(X))
    names = "Cs l1_ratios fit_intercept cv scoring refit class_weight tol max_iter random_state"
    names += " max_time n_jobs"
    assert set(model.get_params()) == {*names.split(), "verbose"}
    search = GridSearchCV(
        make_pipeline(StandardScaler(), GLMClassifierCV(cv=3)),
        {"glmclassifiercv__Cs": [[0.1], [1.0, 10.0]]},
        cv=2,
    ).fit(X, labels)
    assert search.best_score_ > 0.5
    assert set(model.predict(X)) == {"no", "yes"}
    assert str(model.score(X, labels)) == str(accuracy_score(labels, model.predict(X)))


def test_groups_reach_the_splitter_and_weights_the_scorer():
    X, y = problem(120)
    groups = np.arange(120) // 10
    weight = weights_of(y)
    with pytest.raises(ValueError, match="enable_metadata_routing"):
        GLMClassifierCV(cv=GroupKFold(3)).fit(X, y, groups=groups)
    with sklearn.config_context(enable_metadata_routing=True):
        scorer = get_scorer("neg_log_loss").set_score_request(sample_weight=True)
        model = GLMClassifierCV(Cs=3, cv=GroupKFold(3), scoring=scorer)
        model.set_fit_request(sample_weight=True)
        model.fit(X, y, sample_weight=weight, groups=groups)
    splits = list(GroupKFold(3).split(X, y, groups))
    other = GLMClassifierCV(Cs=3, cv=splits, scoring="neg_log_loss").fit(X, y, weight)
    np.testing.assert_array_equal(model.scores_, other.scores_)


def test_a_scorer_may_look_at_the_rows():
    X, y = problem(120)
    seen = []

    def scorer(estimator, X, y):
        seen.append(X)
        return float(estimator.score(X, y))

    model = GLMClassifierCV(Cs=2, cv=3, scoring=scorer).fit(X, y)
    test = next(StratifiedKFold(3).split(X, y))[1]
    np.testing.assert_array_equal(seen[0], X[test])
    plain = GLMClassifierCV(Cs=2, cv=3).fit(X, y)
    np.testing.assert_array_equal(model.scores_, plain.scores_)
    own = make_scorer(accuracy_score)
    named = GLMClassifierCV(Cs=2, cv=3, scoring=own).fit(X, y)
    np.testing.assert_array_equal(named.scores_, plain.scores_)
    assert len(HeldOut(test, 6)) == 40


def test_an_interrupt_keeps_what_was(monkeypatch, way):
    X, y = problem()
    model = GLMClassifierCV(Cs=3, cv=3, random_state=0).fit(X, y)
    before = model.coef_.copy(), model.C_
    monkeypatch.setattr("provenglm.stopping.Stopping.add", interrupted)
    monkeypatch.setattr("provenglm.path.joint.JointPath._values", interrupted)
    with pytest.raises(KeyboardInterrupt):
        model.fit(X, y)
    np.testing.assert_array_equal(model.coef_, before[0])
    assert before[1] == model.C_


def interrupted(*args, **kwargs):
    raise KeyboardInterrupt


@pytest.mark.parametrize("kind", ["float32", "uint8", "fortran", "memmap"])
def test_rows_of_any_kind(way, kind, tmp_path):
    X, y = problem(300, 5)
    X = np.rint(40 * (X - X.min(0)) / np.ptp(X, axis=0))
    plain = GLMClassifierCV(Cs=3, cv=3, tol=1e-10, random_state=0).fit(X, y)
    if kind == "memmap":
        np.save(tmp_path / "x.npy", X)
        other = np.load(tmp_path / "x.npy", mmap_mode="r")
    else:
        other = np.asfortranarray(X) if kind == "fortran" else X.astype(kind)
    model = GLMClassifierCV(Cs=3, cv=3, tol=1e-10, random_state=0).fit(other, y)
    np.testing.assert_allclose(model.coefs_paths_, plain.coefs_paths_, rtol=0, atol=1e-4)
    np.testing.assert_array_equal(model.scores_, plain.scores_)


def test_float32_ends_where_it_is_asked_to(way):
    X, y = problem(3000, 5)
    model = GLMClassifierCV(Cs=3, cv=3, tol=1e-8, random_state=0).fit(X.astype(np.float32), y)
    exact = GLMClassifierCV(Cs=3, cv=3, tol=1e-12, random_state=0).fit(X, y)
    np.testing.assert_allclose(model.coefs_paths_, exact.coefs_paths_, rtol=0, atol=1e-3)


def test_lines_are_shown_on_request(caplog):
    X, y = problem(100)
    with caplog.at_level("INFO", "provenglm"):
        GLMClassifierCV(Cs=2, cv=3, verbose=2).fit(X, y)
    lines = [record.getMessage() for record in caplog.records]
    assert sum("fold" in line for line in lines) == 3
    assert any("snapshot" in line for line in lines)


def test_a_fold_that_steps_do_not_lead_is_solved_by_itself(monkeypatch, solve_together):
    solve_together(True)
    X, y = problem()
    wanted = GLMClassifierCV(Cs=CS, cv=3, tol=1e-12, random_state=0).fit(X, y)

    # No step is accepted, so that all the points are the solver's own.
    def refused(walk, value):
        walk.tries = joint._TRIES

    monkeypatch.setattr(joint.FoldState, "accept", refused)
    model = GLMClassifierCV(Cs=CS, cv=3, tol=1e-12, random_state=0).fit(X, y)
    np.testing.assert_allclose(model.coefs_paths_, wanted.coefs_paths_, rtol=0, atol=1e-5)
    monkeypatch.undo()
    solve_together(True)
    monkeypatch.setattr(joint, "_SLOW", 0.0)
    model = GLMClassifierCV(Cs=CS, cv=3, tol=1e-12, random_state=0).fit(X, y)
    np.testing.assert_allclose(model.coefs_paths_, wanted.coefs_paths_, rtol=0, atol=1e-5)


def test_folds_share_a_hessian_that_is_dear_for_one_fit(monkeypatch):
    X, y = problem(2500, 300)

    def one_fold(*_):
        raise AssertionError

    monkeypatch.setattr(path, "_one_fold", one_fold)
    model = GLMClassifierCV(Cs=[1e-4], cv=2, tol=1e-4, random_state=0).fit(X, y)
    # The last fit is a single one.
    assert model.solver_ != "sampled-newton"


@pytest.mark.slow
@pytest.mark.parametrize("classes", [2, 3])
def test_every_ratio_is_tried_with_every_c(classes):
    X, y = problem(200, classes=classes)
    ratios, Cs = [0.0, 0.5, 1.0], [0.03, 0.3]
    kwargs = {"Cs": Cs, "l1_ratios": ratios, "cv": 3, "tol": 1e-10, "scoring": "neg_log_loss"}
    model = GLMClassifierCV(**kwargs).fit(X, y)
    assert model.scores_.shape == (3, 3, 2)
    assert model.coefs_paths_.shape == (3, 3, 2, 1 if classes == 2 else 3, 7)
    for (r, ratio), (c, C) in itertools.product(enumerate(ratios), enumerate(Cs)):
        for f, (train, test) in enumerate(StratifiedKFold(3).split(X, y)):
            one = GLMClassifier(C=C, l1_ratio=ratio, tol=1e-10).fit(X[train], y[train])
            score = get_scorer("neg_log_loss")(one, X[test], y[test])
            assert model.scores_[f, r, c] == pytest.approx(score, rel=1e-5)
            point = model.coefs_paths_[f, r, c, :, :-1]
            np.testing.assert_allclose(point, one.coef_, rtol=0, atol=1e-4)
    r, c = np.unravel_index(model.scores_.mean(axis=0).argmax(), (3, 2))
    assert (model.C_, model.l1_ratio_) == (Cs[c], ratios[r])
    model.set_params(refit=False).fit(X, y)
    best = [np.unravel_index(of_fold.argmax(), (3, 2)) for of_fold in model.scores_]
    assert model.l1_ratio_ == np.mean([ratios[r] for r, _ in best])


SPARSE = [
    *((400, 12, 2, True), (400, 12, 2, False)),
    *((300, 8, 3, True), (300, 8, 3, False)),
    (120, 300, 2, False),
]


@pytest.mark.slow
def test_of_equal_scores_the_first_c_has_it_then_the_first_ratio():
    X, y = problem(120)

    model = GLMClassifierCV([1.0, 0.1], l1_ratios=[0.5, 0.0], cv=3, scoring=lambda *_: 1.0)
    model.fit(X, y)
    assert (model.C_, model.l1_ratio_) == (1.0, 0.5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("way", "n", "p", "classes", "is_small"),
    [
        *(("together", *case) for case in SPARSE),
        *(("one by one", *case) for case in SPARSE if not case[-1]),
    ],
    indirect=["way"],
)
def test_sparse_features_give_the_same(monkeypatch, way, n, p, classes, is_small):
    rng = np.random.default_rng(4)
    X = np.where(rng.random((n, p)) < 0.2, rng.normal(size=(n, p)), 0.0)
    y = (X @ rng.normal(size=(p, classes)) + rng.gumbel(size=(n, classes))).argmax(axis=1)
    kwargs = {"Cs": [0.1, 10.0], "cv": 3, "tol": 1e-13, "random_state": 0}
    dense = GLMClassifierCV(**kwargs, scoring="neg_log_loss").fit(X, y)
    if not is_small:
        monkeypatch.setattr("provenglm.constants.SMALL_DATA", 0)
    for scoring in ("neg_log_loss", rows_are_sparse):
        sparse = GLMClassifierCV(**kwargs, scoring=scoring).fit(csr_array(X), y)
        size = np.abs(dense.coefs_paths_).max()
        np.testing.assert_allclose(
            sparse.coefs_paths_, dense.coefs_paths_, rtol=0, atol=2e-5 * size
        )
        if scoring == "neg_log_loss":
            np.testing.assert_allclose(sparse.scores_, dense.scores_, rtol=1e-4)


def rows_are_sparse(estimator, X, y):
    assert issparse(X)
    return estimator.decision_function(X).sum()


def test_max_time_is_that_of_all_points(way):
    X, y = problem()
    settings = {"Cs": [0.1, 1.0, 1e4], "cv": 3, "tol": 1e-13, "random_state": 0}
    with pytest.warns(ConvergenceWarning) as caught:
        model = GLMClassifierCV(**settings, max_time=1e-9).fit(X, y)
    of_path = str(caught[0].message)
    assert "because max_time was over: raise max_time or tol, or leave out" in of_path
    assert "max_time=1e-09 seconds were over" in str(caught[1].message)
    assert model.n_iter_.max() <= 3
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        unlimited = GLMClassifierCV(**settings).fit(X, y)
        enough = GLMClassifierCV(**settings, max_time=1e3).fit(X, y)
    assert unlimited.n_iter_.max() > 3
    np.testing.assert_array_equal(enough.coefs_paths_, unlimited.coefs_paths_)


@pytest.mark.slow
def test_processes_share_the_folds():
    X, y = problem()
    one, two = (GLMClassifierCV(Cs=3, cv=3, n_jobs=jobs).fit(X, y) for jobs in (None, 2))
    np.testing.assert_allclose(two.coefs_paths_, one.coefs_paths_, rtol=1e-9)
    np.testing.assert_array_equal(two.scores_, one.scores_)


def test_a_distance_that_is_not_known_is_called_so():
    far = folds.PathPoint(np.zeros((1, 1)), np.zeros(1), 1.0, 1.0, np.inf, 3, StopReason.MAX_ITER)
    told = base._furthest([[far]], "C", np.array([100.0]))
    assert told == (
        "1 of 1 points of the path; the furthest is fold 0 with C=100, at a distance from the "
        "optimum that is not known yet, because max_iter snapshots were taken: raise max_iter or "
        "tol, or leave out the Cs of the weakest penalties"
    )


@pytest.mark.parametrize("classes", [2, 3])
def test_the_path_and_the_one_standard_error_rule(classes):
    X, y = problem(classes=classes)
    search = GLMClassifierCV(Cs=[0.01, 0.1, 1.0, 100.0], scoring="neg_log_loss", tol=1e-10)
    found = search.path(X, y)
    for k, C in enumerate(search.Cs):
        model = GLMClassifier(C, tol=1e-10).fit(X, y)
        expected = np.column_stack([model.coef_, model.intercept_])
        np.testing.assert_allclose(found.coefs[0, k], expected, atol=1e-3)
        assert found.gaps[0, k] <= 1e-9
    chosen = search.set_params(refit="one-standard-error").fit(X, y)
    mean = chosen.scores_.mean(axis=0)[0]
    error = chosen.scores_[:, 0, mean.argmax()].std(ddof=1) / np.sqrt(len(chosen.scores_))
    # The strongest penalty is the smallest C.
    assert (
        min(C for C, m in zip(search.Cs, mean, strict=True) if m >= max(mean) - error) == chosen.C_
    )
