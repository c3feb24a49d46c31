"""Standard errors: the formulas of GLMs, and the deviation of refitted coefficients."""

import re
from functools import partial

import large_data
import numpy as np
import pytest
from provenglm import GLMClassifier, GLMClassifierCV, GLMRegressor, GLMRegressorCV, constants
from scipy.sparse import csr_array
from scipy.special import expit
from sklearn.exceptions import ConvergenceWarning

RNG = np.random.default_rng(0)
N, P = 300, 4
X = RNG.normal(size=(N, P)) @ (np.eye(P) + 0.3) + [0, 1, -2, 0]
OFFSET = RNG.normal(size=N)
WEIGHT = RNG.integers(1, 4, N).astype(float)
MEAN = np.exp(X @ [0.3, -0.2, 0.4, 0.0] / 2 + OFFSET)
TARGETS = {
    "squared": np.log(MEAN) + RNG.normal(size=N),
    "poisson": RNG.poisson(MEAN).astype(float),
    "gamma": RNG.gamma(2, MEAN / 2),
    "tweedie": RNG.gamma(2, MEAN / 2) * (RNG.random(N) < 0.7),
    "logistic": (np.log(MEAN) + RNG.logistic(size=N) > 0).astype(float),
}
POWER = {"squared": 0.0, "poisson": 1.0, "gamma": 2.0, "tweedie": 1.5}


def textbook(name, model, y, weight, offset, strength, intercept):
    """McCullagh & Nelder 1989: information, Pearson's statistic, degrees of freedom."""
    A = np.column_stack([X, np.ones(N)]) if intercept else X
    s = np.ones(N) if weight is None else weight
    z = X @ np.ravel(model.coef_) + model.intercept_ + offset
    if name == "logistic":
        mean = expit(z)
        variance, slope = mean * (1 - mean), mean * (1 - mean)
    else:
        mean = z if name == "squared" else np.exp(z)
        variance, slope = mean ** POWER[name], np.ones(N) if name == "squared" else mean
    information = (A.T * (s * slope**2 / variance)) @ A
    penalised = information + np.diag(np.where(np.arange(A.shape[1]) < P, strength, 0.0))
    inverse = np.linalg.inv(penalised)
    dispersion = 1.0
    if name not in ("poisson", "logistic"):
        freedom = s.sum() - np.trace(inverse @ information)
        dispersion = (s * (y - mean) ** 2 / variance).sum() / freedom
    return dispersion * inverse @ information @ inverse


@pytest.mark.parametrize("penalty", [0.0, 0.05])
@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("name", TARGETS)
def test_the_covariance_is_that_of_the_textbook(name, weighted, intercept, penalty):
    y, weight = TARGETS[name], WEIGHT if weighted else None
    total = N if weight is None else weight.sum()
    if name == "logistic":
        C = 1 / (penalty * total) if penalty else np.inf
        model = GLMClassifier(C, fit_intercept=intercept).fit(X, y, weight)
        given, offset = (weight,), 0.0
    else:
        model = GLMRegressor(name, alpha=penalty, fit_intercept=intercept)
        model.fit(X, y, weight, OFFSET)
        given, offset = (weight, OFFSET), OFFSET
    expected = textbook(name, model, y, weight, offset, penalty * total, intercept)
    found = model.covariance(X, y, *given)
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-13)
    np.testing.assert_allclose(model.standard_errors(X, y, *given) ** 2, expected.diagonal())
    sparse = model.covariance(csr_array(X), y, *given)
    np.testing.assert_allclose(sparse, expected, rtol=1e-9, atol=1e-13)


@pytest.mark.slow
def test_they_are_the_deviation_of_coefficients_over_samples():
    # 400 samples: an estimated deviation is good to 4 percent, 15 is beyond what chance does.
    rng = np.random.default_rng(1)
    coefs, errors = [], []
    for _ in range(400):
        Z = rng.normal(size=(200, 2))
        y = rng.gamma(2, np.exp(Z @ [0.5, -0.3] + 1) / 2)
        model = GLMRegressor("gamma", alpha=0).fit(Z, y)
        coefs.append([*model.coef_, model.intercept_])
        errors.append(model.standard_errors(Z, y))
    np.testing.assert_allclose(np.mean(errors, axis=0), np.std(coefs, axis=0), rtol=0.15)


def test_units_and_origins_of_features_change_nothing_else():
    y = TARGETS["poisson"]
    scale, origin = 10.0 ** np.array([-8, 8, 0, 3]), np.array([0, 1e4, 1e4, 0])
    plain = GLMRegressor("poisson", alpha=0, tol=1e-10).fit(X, y)
    moved = (X + origin) * scale
    model = GLMRegressor("poisson", alpha=0, tol=1e-10).fit(moved, y)
    np.testing.assert_allclose(
        (model.standard_errors(moved, y)[:P] * scale), plain.standard_errors(X, y)[:P], rtol=1e-5
    )


def test_weights_are_frequencies():
    y, count = TARGETS["squared"], WEIGHT.astype(int)
    weighted = GLMRegressor(alpha=0).fit(X, y, WEIGHT).covariance(X, y, WEIGHT)
    rows, values = np.repeat(X, count, axis=0), np.repeat(y, count)
    repeated = GLMRegressor(alpha=0).fit(rows, values).covariance(rows, values)
    np.testing.assert_allclose(weighted, repeated, rtol=1e-6)


def test_labels_class_weights_and_the_chosen_C():
    y = np.where(TARGETS["logistic"] > 0, "yes", "no")
    model = GLMClassifier(class_weight={"yes": 2.0}).fit(X, y)
    same = GLMClassifier().fit(X, y, np.where(y == "yes", 2.0, 1.0))
    np.testing.assert_allclose(
        model.covariance(X, y), same.covariance(X, y, np.where(y == "yes", 2.0, 1.0))
    )
    chosen = GLMClassifierCV(Cs=[0.1, 1.0], cv=3).fit(X, y)
    one = GLMClassifier(chosen.C_).fit(X, y)
    np.testing.assert_allclose(chosen.covariance(X, y), one.covariance(X, y), rtol=1e-4)


def test_data_on_disk(monkeypatch, tmp_path):
    monkeypatch.setattr(constants, "SMALL", 0)
    y = TARGETS["gamma"]
    expected = GLMRegressor("gamma").fit(X, y).covariance(X, y)
    for name, form in large_data.forms(tmp_path, X).items():
        model = GLMRegressor("gamma").fit(form, y)
        np.testing.assert_allclose(model.covariance(form, y), expected, 1e-4, err_msg=name)


def same_twice(intercept=True):
    doubled = np.column_stack([X, X[:, 1] * 2])
    model = GLMRegressor(alpha=0, fit_intercept=intercept).fit(doubled, TARGETS["squared"])
    return model.covariance(doubled, TARGETS["squared"])


def constant():
    wider = np.column_stack([X, np.full(N, 0.1)])
    model = GLMRegressor(alpha=0).fit(wider, TARGETS["squared"])
    return model.covariance(wider, TARGETS["squared"])


def separated():
    with pytest.warns(ConvergenceWarning):
        return GLMClassifier(C=np.inf).fit(X, X[:, 0] > 0)


@pytest.mark.parametrize(
    ("of", "told"),
    [
        (same_twice, "columns 1, 4 of X are linearly dependent, so their"),
        (constant, "column 4 of X is the same in all rows, so its coefficient has no"),
        (
            lambda: GLMRegressor("huber").fit(X, MEAN).standard_errors(X, MEAN),
            "loss is 'huber', which has no likelihood",
        ),
        (
            lambda: GLMRegressor(l1_ratio=0.5).fit(X, MEAN).standard_errors(X, MEAN),
            "l1_ratio is 0.5, and coefficients that an L1 penalty sets to 0 have no standard",
        ),
        (
            lambda: GLMClassifier().fit(X, WEIGHT).covariance(X, WEIGHT),
            "there are 3 classes, and standard errors are for two",
        ),
        (
            lambda: GLMRegressor(alpha=0).fit(X[:5], MEAN[:5]).covariance(X[:5], MEAN[:5]),
            "there are 5 rows for 5 coefficients, which leaves none to estimate the dispersion",
        ),
        (
            lambda: separated().standard_errors(X, X[:, 0] > 0),
            "there is no finite optimum: the classes can be separated, and nothing is penalised: "
            "infinite coefficients have no standard errors; give a penalty",
        ),
    ],
)
def test_what_has_none(of, told):
    with pytest.raises(ValueError, match=re.escape(told)):
        of()


@pytest.mark.parametrize("name", [*TARGETS, "huber"])
@pytest.mark.parametrize("size", [1e2, 1e9, 1e100])
@pytest.mark.parametrize("target", [1.0, 1e25])
@pytest.mark.parametrize("container", [np.asarray, csr_array])
def test_a_row_of_weight_0_counts_nowhere(name, size, target, container):
    """Its prediction and its deviance may overflow: 0 times infinity is NaN."""
    logistic = name == "logistic"
    y = TARGETS["squared" if name == "huber" else name]
    features = np.vstack([X, np.full((1, P), size), np.full((1, P), -size)])
    targets = np.r_[y, [1.0, 0.0] if logistic else [target, target]]
    weight = np.r_[WEIGHT, 0, 0]
    make = GLMClassifier if logistic else partial(GLMRegressor, name, alpha=1e-3)
    model = make(tol=1e-12).fit(container(X), y, WEIGHT)
    given = container(features), targets, weight
    other = make(tol=1e-12).fit(*given)
    np.testing.assert_allclose(other.coef_, model.coef_, rtol=1e-5)
    assert other.score(*given) == pytest.approx(model.score(X, y, WEIGHT), rel=1e-6)
    if name != "huber":  # which has none
        errors = model.standard_errors(X, y, WEIGHT)
        np.testing.assert_allclose(other.standard_errors(*given), errors, rtol=1e-5)
    splits = [(np.r_[0:200, N], np.r_[200:N, N + 1]), (np.r_[100:N, N + 1], np.r_[0:100, N])]
    without = [tuple(part[part < N] for part in split) for split in splits]
    crossed = partial(GLMClassifierCV, 3) if logistic else partial(GLMRegressorCV, name, alphas=3)
    model = crossed(cv=without, tol=1e-10).fit(container(X), y, WEIGHT)
    with np.errstate(over="ignore"):  # of the predictions there
        other = crossed(cv=splits, tol=1e-10).fit(*given)
    np.testing.assert_allclose(other.scores_, model.scores_, rtol=1e-5)
