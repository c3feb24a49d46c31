"""Methods that need what the fit had: standard errors its data, predictions its offset."""

import math
import warnings

import numpy as np
import pytest
import sklearn
from provenglm import Chunks, GLMClassifier, GLMClassifierCV, GLMRegressor, GLMRegressorCV
from scipy.sparse import csr_array
from sklearn.model_selection import cross_val_score

pytestmark = pytest.mark.slow

N = 300
RNG = np.random.default_rng(0)
X = RNG.normal(size=(N, 3))
OFFSET = RNG.normal(size=N) / 2
WEIGHT = RNG.choice([1.0, 2.0], N)
MEAN = np.exp(X @ [0.4, -0.3, 0.0] + OFFSET)
TARGETS = {
    "squared": np.log(MEAN) + RNG.normal(size=N),
    "poisson": RNG.poisson(MEAN),
    "gamma": RNG.gamma(2, MEAN),
    "tweedie": RNG.gamma(2, MEAN) * (RNG.random(N) < 0.7),
    "logistic": np.log(MEAN) + RNG.logistic(size=N) > 0,
}
LOSSES = pytest.mark.parametrize("loss", TARGETS)


def model_of(loss, **arguments):
    if loss == "logistic":
        return GLMClassifier(C=1e3, **arguments)
    return GLMRegressor(loss, alpha=1e-3, **arguments)


OTHER_DATA = {
    "some rows": lambda y: (X[:100], y[:100], WEIGHT[:100], OFFSET[:100]),
    "all rows twice": lambda y: [np.concatenate([v, v]) for v in (X, y, WEIGHT, OFFSET)],
    "rows in another order": lambda y: (X[::-1], y, WEIGHT, OFFSET),
    "other rows": lambda y: (np.random.default_rng(1).normal(size=X.shape), y, WEIGHT, OFFSET),
    "another target": lambda y: (X, np.random.default_rng(1).permutation(y), WEIGHT, OFFSET),
    "no weights": lambda y: (X, y, None, OFFSET),
    "twice the weights": lambda y: (X, y, 2 * WEIGHT, OFFSET),
    "weights in another order": lambda y: (X, y, WEIGHT[::-1], OFFSET),
    "no offset": lambda y: (X, y, WEIGHT),
    "an offset of 0": lambda y: (X, y, WEIGHT, 0),
    "another offset": lambda y: (X, y, WEIGHT, OFFSET[::-1]),
    "columns in another order": lambda y: (X[:, ::-1], y, WEIGHT, OFFSET),
}


@pytest.mark.parametrize("what", OTHER_DATA)
@LOSSES
def test_standard_errors_of_other_data_are_refused(loss, what):
    y = TARGETS[loss]
    model = model_of(loss).fit(X, y, WEIGHT, OFFSET)
    for method in (model.standard_errors, model.covariance):
        with pytest.raises(ValueError, match=r"give (X, y|the rows and the weights|the offset)"):
            method(*OTHER_DATA[what](y))
    assert np.isfinite(model.standard_errors(X, y, WEIGHT, OFFSET)).all()


def test_an_offset_that_the_fit_had_not():
    y = TARGETS["poisson"]
    model = model_of("poisson").fit(X, y)
    with pytest.raises(
        ValueError, match=r"not the data of the fit: .* objective_ is .*: give X, y"
    ):
        model.standard_errors(X, y, offset=OFFSET)


FORMS = {
    "array": lambda rows: rows,
    "float32": lambda rows: rows.astype(np.float32),
    "CSR": csr_array,
    "chunks": lambda rows: Chunks([rows[:100], rows[100:]]),
}


@pytest.mark.parametrize("far", [0.0, 1e3, 1e9])
@pytest.mark.parametrize("stop", [{}, {"max_iter": 1, "tol": 1e-14}, {"tol": 1e-2}])
@pytest.mark.parametrize("form", FORMS)
@LOSSES
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_the_data_of_the_fit_are_never_refused(loss, form, stop, far):
    if form in ("float32", "CSR") and far == 1e9:
        pytest.skip("float32 and products of sparse rows keep nothing of such columns")
    y, rows = TARGETS[loss], FORMS[form](X + far)
    for given in ((), (WEIGHT,), (WEIGHT, OFFSET)):
        model = model_of(loss, **stop).fit(rows, y, *given)
        assert np.isfinite(model.standard_errors(rows, y, *given)).all()


@pytest.mark.parametrize("refit", [True, False])
def test_searches(refit):
    y = TARGETS["poisson"]
    for search, target in (
        (GLMRegressorCV("poisson", alphas=[0.1], cv=2, refit=refit), y),
        (GLMClassifierCV(Cs=[1.0], cv=2, refit=refit), y > 0),
    ):
        search.fit(X, target, WEIGHT)
        assert np.isfinite(search.standard_errors(X, target, WEIGHT)).all()
        with pytest.raises(ValueError, match=r"have the sum .* give the rows and the weights"):
            search.standard_errors(X[:100], target[:100], WEIGHT[:100])


# --- Predictions without the offset -------------------------------------------------------------

METHODS = {
    "logistic": ["predict", "predict_proba", "predict_log_proba", "decision_function", "score"],
    **{loss: ["predict", "score"] for loss in TARGETS if loss != "logistic"},
}


@pytest.mark.parametrize("method", sorted({name for names in METHODS.values() for name in names}))
@LOSSES
def test_a_forgotten_offset_is_told_once(loss, method):
    if method not in METHODS[loss]:
        pytest.skip("a method of classifiers")
    y = TARGETS[loss]
    call = [X] if method != "score" else [X, y]
    model = model_of(loss).fit(X, y, offset=OFFSET)
    words = rf"fit had an offset, but {method} has none.*give the offset of these rows, or offset=0"
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(3):
            getattr(model, method)(*call)
    assert [w.filename for w in caught] == [__file__]
    with pytest.warns(UserWarning, match=words):
        getattr(model.fit(X, y, offset=OFFSET), method)(*call)
    fresh = model_of(loss).fit(X, y, offset=OFFSET)
    for given in (OFFSET, 0):
        getattr(fresh, method)(*call, offset=given)  # a warning would be an error here
    getattr(model.fit(X, y), method)(*call)
    getattr(model.fit(X, y, offset=np.zeros(len(y))), method)(*call)  # nothing is forgotten


def test_a_cross_validation_that_forgets_the_offset():
    y = TARGETS["poisson"]
    with pytest.warns(UserWarning, match="fit had an offset, but score has none"):
        cross_val_score(model_of("poisson"), X, y, params={"offset": OFFSET}, error_score="raise")


# --- Too few rows, or too small weights ---------------------------------------------------------


@LOSSES
def test_fewer_rows_than_coefficients(loss):
    rows = np.random.default_rng(0).normal(size=(20, 30))
    plain = model_of(loss).set_params(**({"C": math.inf} if loss == "logistic" else {"alpha": 0}))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        plain.fit(rows, TARGETS[loss][:20])
    words = "there are 20 rows for 31 coefficients|no standard errors; give a penalty"
    with pytest.raises(ValueError, match=words):
        plain.standard_errors(rows, TARGETS[loss][:20])


def test_rows_without_a_weight_are_none():
    weight = np.where(np.arange(N) < 3, 1.0, 0.0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = GLMRegressor(alpha=0).fit(X, TARGETS["squared"], weight)
    words = r"there are 3 rows with a positive weight for 4 coefficients.*: give more rows"
    with pytest.raises(ValueError, match=words):
        model.standard_errors(X, TARGETS["squared"], weight)


@LOSSES
def test_weights_that_sum_to_one(loss):
    weight, y = WEIGHT / WEIGHT.sum(), TARGETS[loss]
    model = model_of(loss)
    model.set_params(**({"C": 1e9} if loss == "logistic" else {"alpha": 0})).fit(X, y, weight)
    words = (
        "sample_weight has the sum 1 in 300 rows, for 4 .*: give weights='variance' .* "
        r"or fit with sample_weight \* 300"
    )
    with pytest.raises(ValueError, match=words):
        model.standard_errors(X, y, weight)


# --- Weights in a search with metadata routing --------------------------------------------------


@pytest.mark.parametrize("loss", ["squared", "poisson", "logistic"])
def test_a_search_without_scoring_routes_its_weights_by_itself(loss):
    y = TARGETS[loss]
    make = {"logistic": lambda: GLMClassifierCV(Cs=2, cv=2)}.get(
        loss, lambda: GLMRegressorCV(loss, alphas=2, cv=2)
    )
    expected = make().fit(X, y, WEIGHT)
    with sklearn.config_context(enable_metadata_routing=True):
        routed = make().fit(X, y, WEIGHT)
        assert routed.score(X, y, WEIGHT) == pytest.approx(expected.score(X, y, WEIGHT), rel=1e-12)
    np.testing.assert_array_equal(routed.scores_, expected.scores_)
