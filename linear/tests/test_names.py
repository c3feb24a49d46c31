"""scikit-learn's names: its arguments and attributes, its optima, its tools around them."""

import doctest
import inspect
import pickle
import re
import subprocess
import sys
import warnings

import numpy as np
import pandas as pd
import provenglm
import pytest
import sklearn
from provenglm import GLMClassifier, GLMClassifierCV, GLMRegressor, GLMRegressorCV
from provenglm.sklearn_names import base
from scipy.sparse import csr_array
from sklearn import linear_model
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import ColumnTransformer
from sklearn.datasets import load_breast_cancer, load_diabetes, load_iris
from sklearn.exceptions import ConvergenceWarning
from sklearn.feature_selection import SelectFromModel
from sklearn.model_selection import GridSearchCV, LeaveOneGroupOut
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks
from sklearn.utils.fixes import parse_version

NAMES = [
    *("LogisticRegression", "LogisticRegressionCV", "Ridge", "RidgeCV", "Lasso", "LassoCV"),
    *("ElasticNet", "ElasticNetCV", "PoissonRegressor", "GammaRegressor", "TweedieRegressor"),
    "HuberRegressor",
]

installed = parse_version(sklearn.__version__)
IS_OLD = installed < parse_version("1.6")
OF_OLDER_VERSIONS = pytest.mark.filterwarnings("ignore:The default value for alphas")

# What scikit-learn's LogisticRegressionCV wants to be told, if its version has the argument.
TOLD = {"use_legacy_attributes": False, "l1_ratios": (0.0,), "scoring": "accuracy"}
_parameters = inspect.signature(linear_model.LogisticRegressionCV).parameters
CV = {name: value for name, value in TOLD.items() if name in _parameters}
if "use_legacy_attributes" not in CV and "penalty" in _parameters:
    del CV["l1_ratios"]  # it was for penalty='elasticnet' only


def both(name, **kwargs):
    """This package's estimator and scikit-learn's, with the same arguments."""
    return getattr(provenglm, name)(**kwargs), getattr(linear_model, name)(**kwargs)


# --- Arguments -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_arguments_and_defaults_are_those_of_scikit_learn(name):
    own, original = (getattr(module, name) for module in (provenglm, linear_model))
    assert inspect.signature(own) == inspect.signature(original)
    assert own().get_params() == original().get_params()
    assert repr(own()) == repr(original())
    assert set(inspect.signature(original.fit).parameters) <= {
        *inspect.signature(own.fit).parameters
    }


CHECKED = [
    # The checks compare probabilities to 1e-7. With C=1 they differ by 3e-7, where the objectives
    # are equal to 1e-15.
    provenglm.LogisticRegression(C=0.3, tol=1e-8),
    provenglm.Ridge(),
    provenglm.RidgeCV(),
    provenglm.Lasso(),
    provenglm.LassoCV(cv=3, alphas=[0.1, 1.0]),
    provenglm.ElasticNet(),
    provenglm.ElasticNetCV(cv=3, alphas=[0.1, 1.0]),
    provenglm.PoissonRegressor(),
    provenglm.GammaRegressor(),
    provenglm.TweedieRegressor(),
    provenglm.HuberRegressor(),
]


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@parametrize_with_checks(CHECKED)
def test_the_checks_of_scikit_learn(estimator, check):
    check(estimator)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@parametrize_with_checks([provenglm.LogisticRegressionCV(Cs=3, cv=3, tol=1e-8, **CV)])
def test_the_checks_of_scikit_learn_for_a_search(estimator, check):
    check(estimator)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: GLMClassifier(penalty="l1"), "'penalty': 'l1' is l1_ratio=1"),
        (lambda: GLMClassifier(alpha=1.0), "'alpha': give C, which is 1 / (alpha * n)"),
        (lambda: GLMClassifier(solver="saga"), "'solver': leave it out, the solver is chosen"),
        (lambda: GLMClassifierCV(alphas=3), "'alphas': give Cs"),
        (lambda: GLMClassifierCV(l1_ratio=1), "'l1_ratio': did you mean l1_ratios?"),
        (lambda: GLMRegressor(C=1.0), "'C': give alpha, which is 1 / (C * n)"),
        (lambda: GLMRegressor(family="poisson"), "'family': did you mean loss?"),
        (lambda: GLMRegressor(exposure=1), "'exposure': give offset=numpy.log(exposure) to fit"),
        (lambda: GLMRegressor(aplha=1), "'aplha': did you mean alpha?"),
        (lambda: GLMRegressor(zzz=1), "'zzz': it has loss, alpha, l1_ratio"),
        (lambda: GLMRegressorCV(n_alphas=3), "'n_alphas': did you mean alphas?"),
        (lambda: provenglm.Lasso(l1=1), "Lasso got an unexpected keyword argument 'l1': it has"),
        (lambda: provenglm.Ridge(alhpa=1), "Ridge got an unexpected keyword argument 'alhpa': did"),
    ],
)
def test_an_unknown_argument_is_answered_with_its_name_here(make, message):
    with pytest.raises(TypeError, match=re.escape(message)):
        make()


X, Y = load_diabetes(return_X_y=True)
X = X * 20
COUNTS = np.round(Y / 30)
IRIS = load_iris(return_X_y=True)
CANCER = load_breast_cancer(return_X_y=True)
CANCER = StandardScaler().fit_transform(CANCER[0]), CANCER[1]
CANCER_FEW = CANCER[0][:, :3], CANCER[1]


@pytest.mark.parametrize(
    ("model", "error", "message"),
    [
        (provenglm.Lasso(alpha=-1.0), ValueError, "The 'alpha' parameter of Lasso must be"),
        (provenglm.LogisticRegression(solver="no"), ValueError, "The 'solver' parameter of Log"),
        (provenglm.TweedieRegressor(power=3), ValueError, "power is 3, and here it must be 0 or"),
        (provenglm.TweedieRegressor(power=1.5, link="identity"), ValueError, "it must be 'log' he"),
        (provenglm.ElasticNetCV(l1_ratio=0), ValueError, "Automatic alpha grid generation is not"),
        (provenglm.LassoCV(alphas=[1, "1"]), TypeError, "alphas[1] must be an instance of float"),
    ],
)
def test_arguments_that_cannot_be_followed(model, error, message):
    with pytest.raises(error, match=re.escape(message)):
        model.fit(X, COUNTS)


def test_an_argument_with_another_optimum_warns_once(monkeypatch):
    monkeypatch.setattr(base, "_told", set())
    model = provenglm.LogisticRegression(solver="liblinear")
    with pytest.warns(UserWarning, match="solver='liblinear' has no effect in LogisticRegression"):
        model.fit(*load_iris(return_X_y=True))
    model.fit(*load_iris(return_X_y=True))  # warnings are errors
    provenglm.LogisticRegression(solver="liblinear").fit(*CANCER)  # has the same optimum
    provenglm.LogisticRegression(solver="newton-cg", random_state=1).fit(*CANCER)


# --- Optima --------------------------------------------------------------------------------------

WEIGHT = np.random.default_rng(0).integers(0, 3, len(Y)).astype(float)
TIGHT = {"tol": 1e-10, "max_iter": 100_000}
REGRESSIONS = {
    "Ridge": {"alpha": 3.0, "solver": "auto", **TIGHT},
    "Lasso": {"alpha": 2.0, **TIGHT},
    "ElasticNet": {"alpha": 0.5, "l1_ratio": 0.7, **TIGHT},
    "PoissonRegressor": {"alpha": 0.1, "solver": "newton-cholesky", **TIGHT},
    "GammaRegressor": {"alpha": 0.1, "solver": "newton-cholesky", **TIGHT},
    "TweedieRegressor": {"power": 1.5, "alpha": 0.1, "solver": "newton-cholesky", **TIGHT},
    "HuberRegressor": {"alpha": 0.3, **TIGHT},
}


def near(own, original, rtol=1e-6):
    scale = np.abs(original.coef_).max()
    np.testing.assert_allclose(own.coef_, original.coef_, rtol=0, atol=rtol * scale)
    intercept = np.abs(original.intercept_).max() + scale
    np.testing.assert_allclose(own.intercept_, original.intercept_, rtol=0, atol=rtol * intercept)
    assert np.shape(own.coef_) == np.shape(original.coef_)
    assert np.shape(own.intercept_) == np.shape(original.intercept_)


def attributes_are_there(own, original):
    public = [name for name in vars(original) if name.endswith("_") and name[0] != "_"]
    for name in public:
        assert hasattr(own, name), name
        if name not in ("n_iter_", "solver_"):
            assert np.shape(getattr(own, name)) == np.shape(getattr(original, name)), name


def of_huber(model, features, y, weight):
    """scikit-learn's objective of HuberRegressor."""
    size = np.abs(y - model.predict(features)) / model.scale_
    loss = np.where(size <= model.epsilon, size**2, (2 * size - model.epsilon) * model.epsilon)
    weight = weight.get("sample_weight", np.ones(len(y)))
    return weight @ (model.scale_ * (1 + loss)) + model.alpha * model.coef_ @ model.coef_


@pytest.mark.parametrize("case", ["plain", "weights", "sparse", "no intercept"])
@pytest.mark.parametrize("name", REGRESSIONS)
def test_coefficients_of_regressions(name, case):
    kwargs = dict(REGRESSIONS[name])
    if case == "no intercept":
        kwargs["fit_intercept"] = False
    if name == "Ridge" and case == "sparse":
        kwargs["solver"] = "sparse_cg"
    own, original = both(name, **kwargs)
    y = Y if name in ("Ridge", "Lasso", "ElasticNet", "HuberRegressor") else Y + 1
    features = csr_array(X) if case == "sparse" else X
    weight = {"sample_weight": WEIGHT} if case == "weights" else {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # L-BFGS does not reach such a tol
        original.fit(features, y, **weight)
    own.fit(features, y, **weight)
    if name == "HuberRegressor":  # L-BFGS stops at 1e-4
        near(own, original, 1e-3)
        assert of_huber(own, features, y, weight) <= of_huber(original, features, y, weight)
    else:
        near(own, original, 1e-4 if IS_OLD else 1e-6)  # its Newton solver ended earlier
    attributes_are_there(own, original)
    assert own.gap_ <= 1e-10 * abs(own.objective_)
    assert own.score(features, y) == pytest.approx(original.score(features, y), rel=1e-5)
    if name == "HuberRegressor":
        assert own.scale_ == pytest.approx(original.scale_, rel=1e-4)
        np.testing.assert_array_equal(own.outliers_, original.outliers_)


@pytest.mark.parametrize("data", [CANCER, IRIS], ids=["two classes", "three classes"])
@pytest.mark.parametrize("case", ["plain", "weights", "sparse", "no intercept", "balanced", "l1"])
def test_coefficients_of_classifiers(data, case):
    kwargs = {"C": 0.3, "solver": "newton-cg", **TIGHT}
    if case == "l1":
        kwargs |= {"l1_ratio": 1.0, "solver": "saga"}
        if "penalty" in CLASSIFIER and CLASSIFIER["penalty"].default == "l2":
            kwargs["penalty"] = "elasticnet"
    if case == "no intercept":
        kwargs["fit_intercept"] = False
    if case == "balanced":
        kwargs["class_weight"] = "balanced"
    own, original = both("LogisticRegression", **kwargs)
    features, y = data
    weight = {}
    if case == "weights":
        weight["sample_weight"] = np.random.default_rng(1).integers(1, 4, len(y)).astype(float)
    features = csr_array(features) if case == "sparse" else features
    original.fit(features, y, **weight)
    own.fit(features, y, **weight)
    near(own, original)
    attributes_are_there(own, original)
    assert own.n_iter_.shape == original.n_iter_.shape
    np.testing.assert_array_equal(own.predict(features), original.predict(features))


CLASSIFIER = inspect.signature(linear_model.LogisticRegression).parameters


def test_without_a_penalty():
    expected = linear_model.LogisticRegression(C=1e12, tol=1e-10, max_iter=10_000).fit(*CANCER_FEW)
    model = provenglm.LogisticRegression(C=np.inf, tol=1e-8).fit(*CANCER_FEW)
    near(model, expected, 1e-4)
    if "penalty" in CLASSIFIER:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            old = provenglm.LogisticRegression(penalty=None, tol=1e-8).fit(*CANCER_FEW)
        np.testing.assert_array_equal(old.coef_, model.coef_)


def test_the_solution_of_least_norm():
    rng = np.random.default_rng(0)
    wide, y = rng.normal(size=(20, 50)), rng.normal(size=20)
    expected = linear_model.LinearRegression(fit_intercept=False).fit(wide, y)
    for alpha in (0, 1e-16):  # the smaller is rounded away
        model = provenglm.Ridge(alpha=alpha, fit_intercept=False).fit(wide, y)
        np.testing.assert_allclose(model.coef_, expected.coef_, rtol=1e-8)


@pytest.mark.parametrize("name", ["Ridge", "Lasso", "ElasticNet"])
def test_several_targets(name):
    own, original = both(name, alpha=0.5, tol=1e-10)
    targets = np.column_stack([Y, COUNTS, -Y])
    own.fit(X, targets), original.fit(X, targets)
    near(own, original)
    attributes_are_there(own, original)
    assert own.predict(X).shape == (len(Y), 3)
    assert own.score(X, targets) == pytest.approx(original.score(X, targets))
    assert own.gap_.shape == (3,)
    assert len(own.why_) == 3
    single = clone(own).fit(X, COUNTS)
    np.testing.assert_array_equal(single.coef_, own.coef_[1])
    if IS_OLD:
        return  # a column was a table of one target
    one, its = (model.fit(X, Y[:, np.newaxis]) for model in both(name, alpha=0.5))
    assert np.shape(one.coef_) == np.shape(its.coef_)
    assert np.shape(one.intercept_) == np.shape(its.intercept_)


def test_a_penalty_per_target():
    targets = np.column_stack([Y, Y])
    own, original = both("Ridge", alpha=np.array([1.0, 100.0]))
    near(own.fit(X, targets), original.fit(X, targets))
    with pytest.raises(ValueError, match="penalties do not correspond: 2 != 3"):
        own.fit(X, np.column_stack([Y, Y, Y]))


@pytest.mark.parametrize("name", ["Ridge", "Lasso", "ElasticNet"])
@pytest.mark.parametrize("fit_intercept", [True, False])
def test_positive_coefficients(name, fit_intercept):
    own, original = both(name, alpha=0.5, positive=True, fit_intercept=fit_intercept, tol=1e-8)
    near(own.fit(X, Y, WEIGHT), original.fit(X, Y, WEIGHT), 1e-12)
    assert own.coef_.min() >= 0
    total = WEIGHT.sum()
    alpha, l1 = (0.5 / total, 0) if name == "Ridge" else (0.5, own.l1_ratio)
    objective = WEIGHT @ (Y - own.predict(X)) ** 2 / total / 2
    objective += alpha * (l1 * own.coef_.sum() + (1 - l1) / 2 * own.coef_ @ own.coef_)
    assert own.objective_ == pytest.approx(objective)
    assert 0 <= own.gap_ < 1e-5 * objective
    # A worse point has a larger bound, and it is no less than its distance.
    rough = getattr(provenglm, name)(0.5, positive=True, fit_intercept=fit_intercept, tol=0.5)
    rough.fit(X, Y, WEIGHT)
    assert rough.gap_ >= rough.objective_ - own.objective_ - 1e-9 * objective


# --- Searches ------------------------------------------------------------------------------------


def test_a_search_of_lasso():
    own, original = both("LassoCV", cv=3, alphas=10 ** np.linspace(-1, 1, 7), **TIGHT)
    near(own.fit(X, Y), original.fit(X, Y))
    assert own.alpha_ == original.alpha_
    np.testing.assert_array_equal(own.alphas_, original.alphas_)
    np.testing.assert_allclose(own.mse_path_, original.mse_path_, rtol=1e-6)
    attributes_are_there(own, original)
    assert own.score(X, Y) == pytest.approx(original.score(X, Y))


def test_paths():
    search = provenglm.LogisticRegressionCV(Cs=[0.01, 1.0], **CV)
    assert search.path(*IRIS).coefs.shape == (1, 2, 3, 5)
    for name in ("Lasso", "LassoCV", "ElasticNet", "ElasticNetCV"):
        assert getattr(provenglm, name).path is getattr(linear_model, name).path


@OF_OLDER_VERSIONS
def test_the_default_grid_of_a_search():
    own, original = both("ElasticNetCV", l1_ratio=[0.5, 1.0], eps=1e-2, cv=3, **TIGHT)
    weight = None if IS_OLD else WEIGHT  # its grid had no weights
    own.fit(X, Y, sample_weight=weight), original.fit(X, Y, sample_weight=weight)
    near(own, original)
    np.testing.assert_allclose(own.alphas_, original.alphas_, rtol=1e-9)
    np.testing.assert_allclose(own.mse_path_, original.mse_path_, rtol=1e-5)
    assert own.l1_ratio_ == original.l1_ratio_
    attributes_are_there(own, original)


@pytest.mark.parametrize("cv", [None, 3])
def test_a_search_of_ridge(cv):
    own, original = both("RidgeCV", alphas=[0.1, 1.0, 10.0, 100.0], cv=cv)
    near(own.fit(X, Y), original.fit(X, Y))
    assert (own.alpha_, own.best_score_) == (original.alpha_, original.best_score_)
    assert own.gap_ < 1e-10 * own.objective_
    targets = np.column_stack([Y, COUNTS])
    near(own.fit(X, targets), original.fit(X, targets))


@pytest.mark.parametrize("data", [CANCER, IRIS], ids=["two classes", "three classes"])
@pytest.mark.parametrize("legacy", [True, False])
def test_a_search_of_logistic_regression(data, legacy):
    kwargs = {**CV, "use_legacy_attributes": legacy} if "use_legacy_attributes" in CV else CV
    if legacy is False and kwargs is CV and "use_legacy_attributes" not in CV:
        pytest.skip("this version of scikit-learn has one form of attributes")
    own, original = both("LogisticRegressionCV", Cs=[0.01, 1.0], cv=3, **TIGHT, **kwargs)
    own.fit(*data), original.fit(*data)
    near(own, original, 1e-5)
    names = ("C_", "Cs_", *(("l1_ratio_", "l1_ratios_") if "l1_ratios" in CV else ()))
    for name in names:
        np.testing.assert_array_equal(getattr(own, name), getattr(original, name))
    assert np.shape(own.n_iter_) == np.shape(original.n_iter_)
    for name in ("scores_", "coefs_paths_"):
        one, other = getattr(own, name), getattr(original, name)
        assert isinstance(one, dict) == isinstance(other, dict)
        for key in one if isinstance(one, dict) else [...]:
            np.testing.assert_allclose(one[key], other[key], rtol=1e-4, atol=1e-4)
    assert own.score(*data) == original.score(*data)


@pytest.mark.skipif(installed < parse_version("1.8"), reason="its paths lacked such a class")
def test_folds_without_a_class_are_scored():
    features, y = IRIS
    groups = np.repeat([0, 1, 2, 3], [25, 25, 75, 25])
    folds = list(LeaveOneGroupOut().split(features, y, groups))
    y = np.where(groups == 0, 3, y)  # the class 3 is in one group only
    kwargs = {"Cs": [1.0], "cv": folds, "fit_intercept": False, **TIGHT, **CV}
    own, original = both("LogisticRegressionCV", **kwargs)
    own.fit(features, y), original.fit(features, y)
    np.testing.assert_allclose(np.ravel(own.scores_), np.ravel(original.scores_))


# --- Besides scikit-learn's ----------------------------------------------------------------------


def test_offset_and_standard_errors():
    offset = np.random.default_rng(2).normal(size=len(Y)) / 10
    named = provenglm.PoissonRegressor(alpha=0).fit(X, COUNTS, offset=offset)
    model = GLMRegressor("poisson", alpha=0, tol=1e-10).fit(X, COUNTS, offset=offset)
    np.testing.assert_allclose(named.coef_, model.coef_, rtol=1e-6)
    np.testing.assert_allclose(
        named.standard_errors(X, COUNTS, offset=offset),
        model.standard_errors(X, COUNTS, offset=offset),
        rtol=1e-4,
    )
    assert named.why_
    summary = named.summary(X, COUNTS, offset=offset)
    assert summary.table.shape[0] == X.shape[1] + 1
    # The penalties of the objective are those of the sum and of C.
    ridge = provenglm.Ridge(alpha=2.0).fit(X, Y)
    same = GLMRegressor(alpha=2.0 / len(Y)).fit(X, Y)
    np.testing.assert_allclose(ridge.covariance(X, Y), same.covariance(X, Y), rtol=1e-6)
    assert ridge.objective_ == pytest.approx(same.objective_)
    logistic = provenglm.LogisticRegression(C=0.5).fit(*CANCER)
    own = GLMClassifier(C=0.5).fit(*CANCER)
    np.testing.assert_allclose(
        logistic.covariance(*CANCER), own.covariance(*CANCER), rtol=1e-3, atol=1e-5
    )


def test_warm_start_and_max_iter():
    model = provenglm.LogisticRegression(max_iter=1)
    with pytest.warns(ConvergenceWarning, match="LogisticRegression stopped with an objective"):
        model.fit(*CANCER)
    model.set_params(warm_start=True, max_iter=100).fit(*CANCER)
    again = clone(model).fit(*CANCER)
    np.testing.assert_allclose(model.coef_, again.coef_, rtol=1e-3)
    assert clone(model).set_params(tol=1e-9).fit(*CANCER).gap_ <= model.gap_ + 1e-12


class OfLogarithm(provenglm.Ridge):
    """A subclass that notes something before the fit, as scripts do."""

    def fit(self, X, y):
        self.shift = np.log(y).mean()
        return super().fit(X, np.log(y) - self.shift)

    def predict(self, X):
        return np.exp(super().predict(X) + self.shift)


def test_attributes_that_a_script_sets_stay():
    model = OfLogarithm().fit(X, Y)
    assert model.fit(X, Y).shift == np.log(Y).mean()
    assert np.corrcoef(model.predict(X), Y)[0, 1] > 0.6
    model = provenglm.LassoCV(cv=3, alphas=[1.0, 0.1])
    model.note = "ours"
    model.fit(X, Y)
    assert (model.note, model.alphas) == ("ours", [1.0, 0.1])
    assert "note" not in vars(clone(model))


@OF_OLDER_VERSIONS
@pytest.mark.parametrize(
    ("name", "attribute"),
    [
        *((name, "intercept_") for name in NAMES if not name.startswith("Logistic")),
        *((name, "alpha_") for name in ("LassoCV", "ElasticNetCV")),
        *(("HuberRegressor", "scale_"), ("Lasso", "dual_gap_"), ("ElasticNetCV", "l1_ratio_")),
    ],
)
def test_numbers_have_the_methods_of_numpy(name, attribute):
    own, original = (getattr(model.fit(X, COUNTS + 1), attribute) for model in both(name))
    assert type(own) is type(original) is np.float64
    assert own.round(3).shape == ()


def test_a_failed_fit_leaves_the_model_as_it_was():
    model = provenglm.Lasso().fit(X, Y)
    coef = model.coef_
    with pytest.raises(ValueError, match="NaN"):
        model.fit(np.full_like(X, np.nan), Y)
    assert model.coef_ is coef


# --- Tools around them ---------------------------------------------------------------------------


def test_pipelines_and_searches():
    grid = GridSearchCV(
        make_pipeline(StandardScaler(), provenglm.LogisticRegression()),
        {"logisticregression__C": [0.01, 1.0]},
        cv=3,
    ).fit(*CANCER)
    assert grid.best_score_ > 0.97
    calibrated = CalibratedClassifierCV(provenglm.LogisticRegression(), cv=3).fit(*CANCER)
    assert calibrated.score(*CANCER) > 0.95
    selected = SelectFromModel(provenglm.Lasso(alpha=5.0)).fit(X, Y)
    expected = SelectFromModel(linear_model.Lasso(alpha=5.0)).fit(X, Y)
    np.testing.assert_array_equal(selected.get_support(), expected.get_support())


def test_frames():
    frame = pd.DataFrame(X[:, :3], columns=["a", "b", "c"])
    frame["kind"] = np.where(X[:, 3] > 0, "x", "y")
    kinds = ("kinds", OneHotEncoder(sparse_output=False), ["kind"])
    columns = ColumnTransformer([("numbers", StandardScaler(), ["a", "b", "c"]), kinds])
    columns.set_output(transform="pandas")
    model = make_pipeline(columns, provenglm.Ridge()).fit(frame, Y)
    assert list(model[-1].feature_names_in_) == list(columns.get_feature_names_out())
    kept = SelectFromModel(provenglm.Lasso(alpha=5.0)).set_output(transform="pandas")
    its = SelectFromModel(linear_model.Lasso(alpha=5.0)).set_output(transform="pandas")
    numbers = frame[["a", "b", "c"]]
    assert list(kept.fit_transform(numbers, Y)) == list(its.fit_transform(numbers, Y))


def fitted(name, **kwargs):
    model = getattr(provenglm, name)(**kwargs)
    data = IRIS if "Logistic" in name else (X, Y + 1)
    return model.fit(*data), data[0]


ARGUMENTS = {"LogisticRegressionCV": CV, "LassoCV": {"cv": 3}, "ElasticNetCV": {"cv": 3}}


@OF_OLDER_VERSIONS
@pytest.mark.parametrize("name", NAMES)
def test_a_pickle_and_a_clone(name):
    model, features = fitted(name, **ARGUMENTS.get(name, {}))
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.predict(features), model.predict(features))
    assert not hasattr(clone(model), "coef_")
    assert vars(again).keys() == vars(model).keys()


OTHERS = {
    "two classes": (GLMClassifier(), CANCER),
    "elastic net of classes": (GLMClassifier(C=0.1, l1_ratio=0.5), IRIS),
    "no penalty": (GLMClassifier(C=np.inf), CANCER_FEW),
    "classes, searched": (GLMClassifierCV(Cs=2, cv=3), IRIS),
    "squared": (GLMRegressor(alpha=0.1), (X, Y)),
    "lasso": (GLMRegressor(alpha=0.1, l1_ratio=1), (X, Y)),
    "huber": (GLMRegressor("huber", alpha=0.1), (X, Y)),
    "poisson": (GLMRegressor("poisson"), (X, COUNTS)),
    "gamma": (GLMRegressor("gamma"), (X, Y)),
    "tweedie": (GLMRegressor("tweedie", power=1.3), (X, COUNTS)),
    "searched": (GLMRegressorCV("poisson", alphas=2, cv=3), (X, COUNTS)),
}
for _name in NAMES:
    _data = IRIS if "Logistic" in _name else (X, Y + 1)
    OTHERS[_name] = getattr(provenglm, _name)(**ARGUMENTS.get(_name, {})), _data


@pytest.mark.parametrize(("model", "data"), OTHERS.values(), ids=OTHERS)
def test_a_model_of_scikit_learn_with_the_same_predictions(model, data):
    model = clone(model).fit(*data)
    features = data[0]
    other = model.to_sklearn()
    assert type(other).__module__.startswith("sklearn.linear_model")
    assert b"provenglm" not in pickle.dumps(other)
    np.testing.assert_allclose(other.predict(features), model.predict(features), rtol=1e-14)
    if hasattr(model, "predict_proba"):
        expected = model.predict_proba(features)
        np.testing.assert_allclose(other.predict_proba(features), expected, rtol=0, atol=1e-15)
    # Its own fit has the same objective.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        again = clone(other).set_params(**TIGHT if "tol" in other.get_params() else {}).fit(*data)
    np.testing.assert_allclose(
        again.coef_, model.coef_, rtol=0, atol=0.02 * np.abs(model.coef_).max()
    )


def test_a_model_with_an_offset_warns_before_it_loses_it():
    model = GLMRegressor("poisson").fit(X, COUNTS, offset=np.ones(len(X)))
    with pytest.warns(UserWarning, match="fit had an offset, but to_sklearn has none"):
        model.to_sklearn()


@pytest.mark.parametrize("name", ["LogisticRegression", "Ridge"])
def test_onnx(name):
    skl2onnx = pytest.importorskip("skl2onnx", reason="skl2onnx is not installed")
    onnxruntime = pytest.importorskip("onnxruntime")
    model, features = fitted(name)
    features = features.astype(np.float32)
    graph = skl2onnx.to_onnx(model.to_sklearn(), features[:1])
    session = onnxruntime.InferenceSession(graph.SerializeToString())
    predicted = session.run(None, {session.get_inputs()[0].name: features})[0]
    np.testing.assert_allclose(np.ravel(predicted), model.predict(features), rtol=1e-5)


def test_patch_and_its_end():
    originals = {name: getattr(linear_model, name) for name in NAMES}
    with provenglm.patch_sklearn():
        from sklearn.linear_model import Lasso

        assert Lasso is provenglm.Lasso
        provenglm.patch_sklearn()
        assert linear_model.Ridge is provenglm.Ridge
        assert type(GLMRegressor().fit(X, Y).to_sklearn()) is originals["Ridge"]
        assert provenglm.Lasso().fit(X, Y).sparse_coef_.shape == (1, X.shape[1])
    assert {name: getattr(linear_model, name) for name in NAMES} == originals
    provenglm.unpatch_sklearn()
    provenglm.patch_sklearn()
    provenglm.unpatch_sklearn()
    assert linear_model.Lasso is originals["Lasso"]


def test_patch_before_the_first_conversion():
    code = (
        "import numpy as np, provenglm; provenglm.patch_sklearn();"
        "model = provenglm.GLMRegressor().fit(np.eye(3), np.arange(3.0)).to_sklearn();"
        "assert type(model).__module__.startswith('sklearn.'), type(model)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


# --- The examples of scikit-learn's docstrings, with one import changed ---------------------------


class Rounded(doctest.OutputChecker):
    """Compares numbers to 2 %, because scikit-learn's are cut off and ended by its tol."""

    number = re.compile(r"-?\d+\.?\d*(?:e[-+]?\d+)?")

    def check_output(self, want, got, optionflags):
        if super().check_output(want, got, optionflags):
            return True
        want, got = (re.sub(r"np\.float64\((.*?)\)", r"\1", text) for text in (want, got))
        want = want.replace("...", "")
        numbers = [[float(number) for number in self.number.findall(text)] for text in (want, got)]
        texts = [re.sub(r"\s+", "", self.number.sub("#", text)) for text in (want, got)]
        return texts[0] == texts[1] and np.allclose(*numbers, rtol=0.02, atol=1e-9)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_the_example_of_scikit_learn(name):
    text = inspect.getdoc(getattr(linear_model, name))
    with provenglm.patch_sklearn():
        example = doctest.DocTestParser().get_doctest(text, {}, name, None, 0)
        assert len(example.examples) >= 4
        flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
        runner = doctest.DocTestRunner(Rounded(), verbose=False, optionflags=flags)
        report = []
        runner.run(example, out=report.append)
    # scikit-learn's LassoCV chooses another alpha at its tol than at its optimum.
    assert not runner.failures or name == "LassoCV", "".join(report)


def test_arguments_without_a_meaning_warn_as_in_scikit_learn():
    X, y = load_iris(return_X_y=True)
    with pytest.warns(FutureWarning, match="'n_jobs' has no effect"):
        provenglm.LogisticRegression(n_jobs=2).fit(X, y)
    is_number = inspect.signature(linear_model.LogisticRegression).parameters["l1_ratio"].default
    if is_number is not None:  # from scikit-learn 1.8
        with pytest.warns(FutureWarning, match="'l1_ratio=None' was deprecated"):
            provenglm.LogisticRegression(l1_ratio=None).fit(X, y)


@pytest.mark.parametrize("scaling", [1.0, 10.0])
@pytest.mark.parametrize("penalty", ["l2", "l1"])
@pytest.mark.parametrize("storage", [np.asarray, csr_array, pd.DataFrame])
@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore:Inconsistent values")
def test_the_intercept_of_liblinear_is_penalised(storage, penalty, scaling):
    X, y = CANCER[0][:, :5] / CANCER[0][:, :5].std(axis=0) + 3, CANCER[1]
    arguments = {"solver": "liblinear", "C": 0.1, "intercept_scaling": scaling, "tol": 1e-8}
    own, original = both("LogisticRegression", penalty=penalty, **arguments)
    own.fit(storage(X), y)
    original.set_params(tol=1e-12, max_iter=100_000, random_state=0).fit(X, y)
    np.testing.assert_allclose(own.coef_, original.coef_, rtol=0, atol=2e-4)
    np.testing.assert_allclose(own.intercept_, original.intercept_, rtol=0, atol=2e-3)
    assert (own.fit_intercept, own.n_features_in_) == (True, 5)
    own.predict_proba(storage(X))
    free = provenglm.LogisticRegression(penalty=penalty, C=0.1, solver="saga").fit(X, y)
    assert abs(free.intercept_ - own.intercept_) > 0.02  # the test sees it
    with pytest.raises(ValueError, match="solver is 'liblinear', with which the intercept"):
        own.standard_errors(storage(X), y)
    # The next fit, with another solver, has a free intercept again.
    own.set_params(solver="lbfgs").fit(storage(X), y)
    np.testing.assert_allclose(own.intercept_, free.intercept_, rtol=1e-2)
