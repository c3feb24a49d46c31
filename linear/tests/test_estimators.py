"""scikit-learn's conventions: its own checks, and what they leave out."""

import io
import logging
import math
import os
import pickle
import re
import signal
import subprocess
import sys
import warnings

import joblib
import numpy as np
import pandas as pd
import provenglm
import pytest
import sklearn
from provenglm import GLMClassifier, GLMClassifierCV, GLMRegressor, GLMRegressorCV
from provenglm.api import progress
from provenglm.model.solution import Record
from scipy.sparse import issparse
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_diabetes, load_iris, load_wine
from sklearn.exceptions import ConvergenceWarning, InconsistentVersionWarning
from sklearn.feature_selection import SelectFromModel
from sklearn.linear_model import GammaRegressor, LogisticRegression, PoissonRegressor, Ridge
from sklearn.model_selection import GridSearchCV, cross_val_score, cross_validate
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

ALL = [
    GLMClassifier(),
    # The checks compare predictions to 1e-7 of themselves.
    GLMClassifier(C=30.0, class_weight="balanced", tol=1e-9),
    GLMRegressor(),
    GLMRegressor("huber"),
    GLMRegressor("poisson"),
    GLMRegressor("gamma"),
    GLMRegressor("tweedie"),
]


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@parametrize_with_checks(ALL)
def test_the_checks_of_scikit_learn(estimator, check):
    check(estimator)


IRIS = load_iris(return_X_y=True)
CANCER = load_breast_cancer(return_X_y=True)
DIABETES = load_diabetes(return_X_y=True)
FITTED = {
    "two classes": GLMClassifier().fit(*CANCER),
    "three classes": GLMClassifier().fit(*IRIS),
    "squared": GLMRegressor(alpha=1e-3).fit(*DIABETES),
    "huber": GLMRegressor("huber", alpha=1e-3).fit(*DIABETES),
    "poisson": GLMRegressor("poisson", alpha=1e-3).fit(*DIABETES),
    "gamma": GLMRegressor("gamma", alpha=1e-3).fit(*DIABETES),
}
DATA = {"two classes": CANCER, "three classes": IRIS} | dict.fromkeys(FITTED, DIABETES)
DATA |= {"two classes": CANCER, "three classes": IRIS}


@pytest.fixture(params=FITTED, ids=FITTED)
def case(request):
    return FITTED[request.param], *DATA[request.param]


# --- What fit leaves behind --------------------------------------------------------------------


def test_shapes():
    p = {name: DATA[name][0].shape[1] for name in FITTED}
    for name, coef, intercept in [("two classes", (1,), (1,)), ("three classes", (3,), (3,))]:
        assert FITTED[name].coef_.shape == (*coef, p[name])
        assert FITTED[name].intercept_.shape == intercept
    for name in ("squared", "huber", "poisson", "gamma"):
        assert FITTED[name].coef_.shape == (p[name],)
        assert type(FITTED[name].intercept_) is float
        assert hasattr(FITTED[name], "scale_") == (name == "huber")


def objective_of(model, X, y):
    """The objective by the definition."""
    scores = X @ np.atleast_2d(model.coef_).T + model.intercept_
    if isinstance(model, GLMClassifier):
        codes = np.searchsorted(model.classes_, y)
        if len(model.classes_) == 2:
            scores = np.hstack([np.zeros_like(scores), scores])
        losses = np.logaddexp.reduce(scores, axis=1) - scores[np.arange(len(y)), codes]
        l2 = 1 / (model.C * len(y))
    else:
        losses = {
            "squared": lambda z: (y - z) ** 2 / 2,
            "poisson": lambda z: np.exp(z) - y * z,
            "gamma": lambda z: y / np.exp(z) - 1 - np.log(y / np.exp(z)),
            "huber": lambda z: model.scale_ / 2 + model.scale_ * huber((y - z) / model.scale_),
        }[model.loss](scores[:, 0])
        l2 = model.alpha
    return losses.mean() + l2 / 2 * (model.coef_**2).sum()


def huber(z, epsilon=1.35):
    return np.where(np.abs(z) <= epsilon, z**2 / 2, epsilon * (np.abs(z) - epsilon / 2))


def test_the_objective_is_that_of_the_coefficients(case):
    model, X, y = case
    np.testing.assert_allclose(model.objective_, objective_of(model, X, y), rtol=1e-12)


def test_the_gap_is_no_less_than_the_distance_to_a_better_point(case):
    model, X, y = case
    better = clone(model).set_params(tol=1e-13)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # perhaps float64 has no such digits
        better.fit(X, y)
    assert 0 <= model.gap_ < math.inf
    rounding = 1e-14 * abs(model.objective_)
    assert model.objective_ - better.objective_ <= model.gap_ + rounding
    assert model.gap_ <= 1e-2 * abs(model.objective_)


def test_the_history_is_a_table(case):
    model, _, _ = case
    table = pd.DataFrame(model.history_)
    assert set(table) == {"iteration", "passes", "seconds", "objective", "gap", "decrement"}
    assert table["iteration"].is_monotonic_increasing
    assert table["passes"].is_monotonic_increasing
    assert model.n_iter_ == table["iteration"].iloc[-1] >= 1
    assert table["objective"].iloc[-1] == pytest.approx(model.objective_, rel=1e-9)


def test_which_way_was_taken(case):
    model, _, _ = case
    assert model.solver_
    assert model.why_
    assert model.stop_reason_


def test_softmax_is_centred():
    X, y = load_wine(return_X_y=True)
    for C in (1.0, 1e3):
        model = GLMClassifier(C).fit(X, y)
        np.testing.assert_allclose(model.intercept_.mean(), 0, atol=1e-12)
        largest = np.abs(model.coef_).max()
        np.testing.assert_allclose(model.coef_.mean(axis=0), 0, atol=1e-12 * largest)


# --- Predictions -------------------------------------------------------------------------------


def test_scores_and_predictions(case):
    model, X, _ = case
    scores = X @ np.atleast_2d(model.coef_).T + model.intercept_
    if isinstance(model, GLMRegressor):
        expected = np.exp(scores[:, 0]) if model.loss in ("poisson", "gamma") else scores[:, 0]
        np.testing.assert_allclose(model.predict(X), expected, rtol=1e-12)
        return
    if len(model.classes_) == 2:
        np.testing.assert_allclose(model.decision_function(X), scores[:, 0], rtol=1e-10)
        scores = np.hstack([np.zeros_like(scores), scores])
    else:
        np.testing.assert_allclose(model.decision_function(X), scores, rtol=1e-10)
    odds = np.exp(scores - scores.max(axis=1, keepdims=True))
    probabilities = odds / odds.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(model.predict_proba(X), probabilities, rtol=1e-9)
    np.testing.assert_array_equal(model.predict(X), model.classes_[scores.argmax(axis=1)])


@pytest.mark.parametrize("name", ["two classes", "three classes"])
def test_logarithms_of_probabilities_that_underflow(name):
    model, X = FITTED[name], DATA[name][0]
    np.testing.assert_allclose(
        model.predict_log_proba(X), np.log(model.predict_proba(X)), rtol=1e-9, atol=1e-12
    )
    far = model.predict_log_proba(1e6 * X)
    assert np.isfinite(far).all()
    assert far.min() < -1000


def test_a_prediction_in_blocks(monkeypatch):
    model, X = FITTED["three classes"], IRIS[0].astype(np.float32)
    whole = model.decision_function(X.astype(np.float64))
    monkeypatch.setattr("provenglm.constants.BLOCK_BYTES", 1)  # 64 rows, the fewest
    np.testing.assert_allclose(model.decision_function(X), whole, rtol=1e-13)


def test_scores_of_regressors_are_those_of_scikit_learn():
    X, y = DIABETES
    weight = np.arange(len(y)) % 3
    peers = [("squared", Ridge()), ("poisson", PoissonRegressor()), ("gamma", GammaRegressor())]
    for name, peer in peers:
        model = FITTED[name]
        peer.fit(X[:10], y[:10])
        peer.coef_, peer.intercept_ = model.coef_, model.intercept_
        for given in (None, weight):
            assert model.score(X, y, given) == pytest.approx(peer.score(X, y, given), rel=1e-12)


def test_the_explained_deviance_at_its_ends():
    counts = np.array([0.0, 3.0])
    model = GLMRegressor("poisson").fit([[0.0], [1.0]], counts)
    model.coef_, model.intercept_ = np.array([2000.0]), -1000.0  # predicts 0 and infinity
    with np.errstate(over="ignore"):
        assert model.score([[0.0], [1.0]], counts) == -math.inf
    model.coef_, model.intercept_ = np.array([1000 + math.log(3)]), -1000.0  # predicts y
    assert model.score([[0.0], [1.0]], counts) == pytest.approx(1, abs=1e-12)
    assert model.score([[1.0], [1.0]], [3.0, 3.0]) == pytest.approx(1, abs=1e-12)
    assert model.score([[0.0], [0.0]], [3.0, 3.0]) == 0


@pytest.mark.parametrize("classes", [2, 3])
def test_coefficients_may_be_sparse(classes):
    X, y = load_iris(return_X_y=True)
    X, y = X[y < classes], y[y < classes]
    model = GLMClassifier(0.05, l1_ratio=1.0, warm_start=True).fit(X, y)
    dense, probability = model.coef_, model.predict_proba(X)
    assert (dense == 0).any()
    assert model.sparsify() is model
    assert issparse(model.coef_)
    assert model.coef_.nnz == (dense != 0).sum()
    np.testing.assert_array_equal(model.predict_proba(X), probability)
    np.testing.assert_array_equal(model.densify().coef_, dense)
    model.sparsify().fit(X, y)  # from where it was
    assert isinstance(model.coef_, np.ndarray)


# --- Company -----------------------------------------------------------------------------------


def test_string_labels_and_feature_names():
    X, y = load_iris(return_X_y=True, as_frame=True)
    names = load_iris().target_names[y]
    model = GLMClassifier(random_state=0).fit(X, names)
    assert model.classes_.tolist() == ["setosa", "versicolor", "virginica"]
    assert model.feature_names_in_.tolist() == list(X.columns)
    by_number = GLMClassifier(random_state=0).fit(X.to_numpy(), y)
    np.testing.assert_array_equal(model.coef_, by_number.coef_)
    assert (
        model.predict(X).tolist()
        == load_iris().target_names[by_number.predict(X.to_numpy())].tolist()
    )
    with pytest.raises(ValueError, match="feature names should match"):
        model.predict(X[X.columns[::-1]])
    with pytest.raises(ValueError, match="X has 3 features, but GLMClassifier is expecting 4"):
        by_number.predict(X.iloc[:, :3].to_numpy())


@pytest.mark.parametrize("copy", [lambda m: pickle.loads(pickle.dumps(m)), "joblib"])
def test_a_copy_predicts_the_same(case, copy, tmp_path):
    model, X, _ = case
    if copy == "joblib":
        joblib.dump(model, tmp_path / "model")
        again = joblib.load(tmp_path / "model")
    else:
        again = copy(model)
    np.testing.assert_array_equal(again.predict(X), model.predict(X))
    assert again.history_ == model.history_


def test_a_clone_has_the_arguments_alone():
    model = GLMClassifier(C=3, class_weight={0: 2}, verbose=2, max_time=5.0)
    again = clone(model.set_params(verbose=0).fit(*CANCER))
    assert again.get_params() == model.get_params()
    assert not hasattr(again, "coef_")
    assert repr(GLMRegressor("huber", alpha=2)) == "GLMRegressor(alpha=2, loss='huber')"


@pytest.mark.parametrize("make", [GLMClassifier, GLMClassifierCV, GLMRegressor, GLMRegressorCV])
def test_the_old_name_is_the_same_class(make):
    name = make.__name__
    old_name = name.replace("GLM", "SVRG")
    old = getattr(provenglm, old_name)
    assert old is make
    assert {name, old_name} <= set(provenglm.__all__)
    model = old(tol=1e-5)
    assert repr(model) == f"{name}(tol=1e-05)"
    assert type(clone(model)) is make
    assert clone(model).get_params() == model.get_params()
    assert type(pickle.loads(pickle.dumps(model))) is make
    assert list(make_pipeline(StandardScaler(), model).named_steps) == [
        "standardscaler", name.lower()
    ]  # fmt: skip


@pytest.mark.full
def test_a_search_in_a_pipeline():
    X, y = IRIS
    search = GridSearchCV(
        make_pipeline(StandardScaler(), GLMClassifier()),
        {"glmclassifier__C": [0.01, 1.0, 100.0]},
        n_jobs=2,
        return_train_score=True,
    ).fit(X, y)
    reference = GridSearchCV(
        make_pipeline(StandardScaler(), LogisticRegression(max_iter=10_000, tol=1e-8)),
        {"logisticregression__C": [0.01, 1.0, 100.0]},
        return_train_score=True,
    ).fit(X, y)
    for key in ("mean_test_score", "mean_train_score"):
        np.testing.assert_array_equal(search.cv_results_[key], reference.cv_results_[key])


def test_cross_validation_of_a_regression():
    X, y = DIABETES
    ours = cross_val_score(GLMRegressor(alpha=1e-2, tol=1e-10), X, y)
    # 353 or 354 rows in each training set, 353.6 on average
    theirs = [
        Ridge(alpha=1e-2 * len(train)).fit(X[train], y[train]).score(X[test], y[test])
        for train, test in sklearn.model_selection.KFold(5).split(X)
    ]
    np.testing.assert_allclose(ours, theirs, atol=1e-6)


def test_weights_are_routed():
    X, y = IRIS
    weight = np.where(y == 2, 0.0, 1.0)
    with sklearn.config_context(enable_metadata_routing=True):
        model = GLMClassifier().set_fit_request(sample_weight=True)
        model.set_score_request(sample_weight=True)
        result = cross_validate(
            model, X, y, params={"sample_weight": weight}, return_estimator=True
        )
    assert all(fitted.classes_.tolist() == [0, 1] for fitted in result["estimator"])
    assert result["test_score"].tolist() == [1.0] * 5


def test_weights_are_repeated_rows(case):
    fitted, X, y = case
    model = clone(fitted).set_params(tol=1e-13, random_state=0)
    weight = np.random.default_rng(1).integers(0, 4, len(y))
    repeated = clone(model)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(X, y, sample_weight=weight)
        repeated.fit(X.repeat(weight, axis=0), y.repeat(weight))
    np.testing.assert_allclose(
        model.coef_, repeated.coef_, rtol=0, atol=1e-6 * np.abs(repeated.coef_).max()
    )


def test_class_weights_multiply_the_weights_of_samples():
    X, y = IRIS
    weight = 1 + np.arange(len(y)) % 3
    by_class = GLMClassifier(class_weight={0: 2, 1: 1, 2: 0.5}, tol=1e-13)
    by_sample = GLMClassifier(tol=1e-13)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        by_class.fit(X, y, weight)
        by_sample.fit(X, y, weight * np.array([2, 1, 0.5])[y])
    np.testing.assert_allclose(by_class.coef_, by_sample.coef_, atol=1e-7)


def test_a_state_of_random_numbers_repeats():
    X, y = DIABETES
    one, two = (GLMRegressor(random_state=3).fit(X, y) for _ in range(2))
    np.testing.assert_array_equal(one.coef_, two.coef_)


# --- Warm starts -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FITTED)
def test_a_warm_start_at_the_optimum_ends_at_once(name):
    X, y = DATA[name]
    model = clone(FITTED[name]).set_params(warm_start=True).fit(X, y)
    first = len(model.history_)
    model.fit(X, y)
    assert len(model.history_) < first
    np.testing.assert_allclose(
        model.objective_, FITTED[name].objective_, rtol=1e-5, atol=FITTED[name].gap_
    )


def test_a_warm_start_elsewhere():
    X, y = CANCER
    model = GLMClassifier(warm_start=True).fit(X, y)
    with pytest.raises(
        ValueError, match=r"coef_ of the previous fit has the shape \(1, 30\), .* \(1, 5"
    ):
        model.fit(X[:, :5], y)
    model = GLMClassifier(warm_start=True).fit(X, y)
    with pytest.raises(ValueError, match=r"had the classes \[0 1\], but this fit has \[1 2\]"):
        model.fit(X, y + 1)


# --- Ends that are not the optimum -------------------------------------------------------------


@pytest.fixture(scope="module")
def hard():
    """So ill-conditioned that one snapshot is not enough, and so large that Newton is not taken."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(30_000, 60)) * 10.0 ** rng.uniform(-3, 3, 60)
    y = (X / X.std(axis=0)) @ rng.normal(size=60) + 3 * rng.normal(size=30_000) > 0
    return X, y


def test_max_iter(hard):
    model = GLMClassifier(max_iter=1)
    with pytest.warns(ConvergenceWarning) as caught:
        model.fit(*hard)
    message = str(caught[0].message)
    assert message == (
        f"GLMClassifier stopped with an objective of {model.objective_:.6g}, an estimated "
        f"{model.decrement_:.1e} above the optimum (proven: at most {model.gap_:.1e}), because "
        "max_iter=1 snapshots were over: raise max_iter or tol"
    )
    assert caught[0].filename == __file__


def test_max_time(hard):
    model = GLMClassifier(max_time=1e-6)
    with pytest.warns(
        ConvergenceWarning, match=r"max_time=1e-06 seconds were over: raise max_time"
    ):
        model.fit(*hard)
    assert np.isfinite(model.coef_).all()


@pytest.fixture
def ctrl_c():
    """Ctrl-C as on a terminal: a process in the background ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_ctrl_c_keeps_the_best_point(hard, monkeypatch, ctrl_c):
    seen = []

    def interrupt(self, record):
        seen.append(record)
        if len(seen) == 2:
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(progress.Progress, "__call__", interrupt)
    model = GLMClassifier(tol=1e-13)
    with pytest.warns(ConvergenceWarning, match=r"it was interrupted after .*: coef_ is the best"):
        model.fit(*hard)
    assert model.objective_ <= seen[1].objective <= seen[0].objective
    assert model.objective_ == pytest.approx(objective_of(model, *hard), rel=1e-6)


def test_no_finite_optimum():
    X, y = [[-2.0], [-1.0], [1.0], [2.0]], [0, 0, 1, 1]
    with pytest.warns(ConvergenceWarning) as caught:
        GLMClassifier(C=math.inf).fit(X, y)
    assert re.fullmatch(
        r"GLMClassifier found no finite optimum with C=inf: the "
        r"classes can be separated, and nothing is penalised; the loss falls for ever as the "
        r"coefficients grow, and the fit stopped at \|\|coef_\|\| = \S+ with an objective of \S+: "
        r"give a smaller C, such as 1e4; more snapshots do not help",
        str(caught[0].message),
    )


# --- What is shown -----------------------------------------------------------------------------


LINE = re.compile(
    r"GLMRegressor, snapshot \d+: [\d.]+ passes, [\d.]+ s, objective [\d.e+-]+, about \S+ above "
    r"the optimum \(proven: at most \S+\)"
)


def test_nothing_is_shown(capsys, root_logger):
    GLMRegressor().fit(*DIABETES)
    assert capsys.readouterr() == ("", "")


def test_a_line_a_snapshot(capsys, root_logger):
    model = GLMRegressor(verbose=2).fit(*DIABETES)
    out, err = capsys.readouterr()
    *lines, last = out.splitlines()
    assert len(lines) == len(model.history_)
    assert all(LINE.fullmatch(line) for line in lines), lines
    way = f"GLMRegressor: {model.solver_}, because {model.why_}; ended after "
    where = f" s: {model.stop_reason_}; objective {model.objective_:.8g}, about "
    assert last.startswith(way)
    assert where in last
    assert last.endswith(f" above the optimum (proven: at most {model.gap_:.1e})")
    assert err == ""


def test_a_bar(capsys, root_logger):
    GLMRegressor(verbose=1).fit(*DIABETES)
    out, err = capsys.readouterr()
    assert LINE.search(out)
    assert re.search(r"GLMRegressor: [\d.]+ of 6 digits \|", err)


def test_lines_go_where_the_program_sends_them(capsys, root_logger):
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    root_logger.addHandler(handler)
    GLMRegressor(verbose=2).fit(*DIABETES)
    assert LINE.search(stream.getvalue())
    assert capsys.readouterr() == ("", "")


def record(**figures):
    return Record(
        **{"iteration": 3, "passes": 7.0, "seconds": 0.5, "objective": 0.25}
        | {"gap": math.inf, "decrement": math.inf}
        | figures
    )


def test_lines_with_and_without_a_bound():
    start = "Model, snapshot 3: 7.0 passes, 0.50 s, objective 0.25"
    assert progress.line_of("Model", record()) == start
    about = f"{start}, about 1.0e-04 above the optimum"
    assert progress.line_of("Model", record(decrement=1e-4)) == about
    both = record(decrement=1e-4, gap=2e-3)
    assert progress.line_of("Model", both) == f"{about} (proven: at most 2.0e-03)"


def test_digits_of_the_bar():
    bar = progress.Progress("Model", 0, 1e-6)
    bar(record(objective=1.25))
    assert bar._digits_of(record(gap=1e-3)) == pytest.approx(3)
    assert bar._digits_of(record(decrement=1e-5)) == pytest.approx(4)
    assert bar._digits_of(record(gap=0.0)) == 6
    assert bar._digits_of(record(objective=2.0, gap=1e-3)) == 0
    assert bar._digits_of(record()) == 0


@pytest.mark.parametrize("metric", ["hessian", "diagonal"])
@pytest.mark.parametrize("make", [GLMClassifier, GLMRegressor])
def test_the_metric_is_deprecated_and_has_no_effect(make, metric):
    X, y = load_breast_cancer(return_X_y=True)
    words = (
        f"metric='{metric}' has no effect, and the parameter metric will be removed in version "
        "0.10: leave it out; the solver is chosen from the data, and why_ explains the choice"
    )
    with pytest.warns(FutureWarning, match=re.escape(words)) as caught:
        model = make(metric=metric).fit(X, y)
    assert [warning.filename for warning in caught] == [__file__]
    same = make().fit(X, y)
    assert model.solver_ == same.solver_
    np.testing.assert_array_equal(model.coef_, same.coef_)


@pytest.mark.slow
def test_what_a_fit_does_not_need_is_imported_later():
    code = (
        "import sys, provenglm\n"
        "assert 'sklearn.metrics' not in sys.modules\n"
        "assert set(provenglm.__all__) <= set(dir(provenglm))\n"
        "from provenglm import GLMClassifierCV, GLMRegressorCV\n"
        "assert 'sklearn.metrics' in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    with pytest.raises(AttributeError, match="no attribute 'SVRG'"):
        getattr(provenglm, "SVRG")  # noqa: B009


# --- What other programs ask of a model ----------------------------------------------------------

WITH_L1 = {
    "regressor": lambda ratio: GLMRegressor(alpha=5.0, l1_ratio=ratio),
    "classifier": lambda ratio: GLMClassifier(C=0.1, l1_ratio=ratio),
    "search of a regressor": lambda ratio: GLMRegressorCV(alphas=[5.0], l1_ratios=[ratio], cv=2),
    "search of a classifier": lambda ratio: GLMClassifierCV(Cs=[0.1], l1_ratios=[ratio], cv=2),
}


@pytest.mark.parametrize("name", WITH_L1)
def test_select_from_model_keeps_what_is_not_0_under_an_l1_penalty(name):
    X, y = load_diabetes(return_X_y=True, scaled=False)
    X = StandardScaler().fit_transform(X)
    target = y if "regressor" in name else y > 140
    chosen = SelectFromModel(WITH_L1[name](1.0)).fit(X, target)
    kept = chosen.estimator_.coef_.ravel() != 0
    assert 0 < kept.sum() < X.shape[1]
    np.testing.assert_array_equal(chosen.get_support(), kept)
    assert chosen.estimator_.penalty == "l1"
    for ratio, penalty in ((0.0, "l2"), (0.5, "elasticnet")):
        chosen = SelectFromModel(WITH_L1[name](ratio)).fit(X, target)
        size = np.abs(chosen.estimator_.coef_.ravel())
        np.testing.assert_array_equal(chosen.get_support(), size >= size.mean())
        assert chosen.estimator_.penalty == penalty


@pytest.mark.parametrize("make", [GLMClassifier, GLMRegressor, GLMClassifierCV, GLMRegressorCV])
def test_a_pickle_of_another_version_warns(make, monkeypatch):
    model = make()
    own = pickle.dumps(model)
    assert pickle.loads(own).get_params() == model.get_params()
    assert vars(pickle.loads(own)) == vars(model)
    monkeypatch.setattr(provenglm, "__version__", "99.0")
    words = rf"provenglm\.{make.__name__} from version .* when using version 99\.0"
    with pytest.warns(InconsistentVersionWarning, match=words):
        pickle.loads(own)
    state = model.__getstate__()
    del state["_provenglm_version"]  # as 0.8 wrote it
    with pytest.warns(InconsistentVersionWarning, match=r"from version 0\.8\.0 or earlier"):
        make().__setstate__(state)
    pickle.loads(pickle.dumps(model))


@pytest.mark.parametrize("power", [0, 0.5, 3])
def test_powers_that_are_not_there(power):
    words = (
        rf"power must be a number from 1 to 2, got {power}: for 0 .*; for 2 to 3 there is sklearn"
    )
    with pytest.raises(ValueError, match=words):
        GLMRegressor("tweedie", power=power).fit([[0.0], [1.0]], [1.0, 2.0])
