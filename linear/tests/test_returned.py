"""`objective_` and `gap_` are those of the coefficients that the user holds, rounding included."""

import math
import warnings
from fractions import Fraction

import numpy as np
import pandas as pd
import pytest
from long_double import LongDouble
from provenglm import Chunks, GLMClassifier, GLMClassifierCV, GLMRegressor, GLMRegressorCV
from provenglm.model.losses import Huber, Logistic, Poisson, Softmax, Squared
from provenglm.model.returned import shifted
from provenglm.model.tweedie import Gamma, Tweedie
from scipy.sparse import csr_array
from sklearn.exceptions import ConvergenceWarning

N = 300
LOSSES = [
    *(Logistic(), Softmax(3), Squared(), Huber(1.35)),
    *(Poisson(), Gamma(), Tweedie(1.5)),
]
NAMES = [loss.name for loss in LOSSES]


def data_of(loss, ratio, seed=0):
    """A column whose mean is `ratio` times its deviation beside an ordinary one, and targets."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(N, 2))
    X[:, 0] += ratio
    # What float64 has stored of it is what the targets are made of.
    z = (X[:, 0] - ratio) - 0.5 * X[:, 1]
    if isinstance(loss, Logistic):
        return X, (z + rng.logistic(size=N) > 0).astype(float)
    if isinstance(loss, Softmax):
        return X, np.digitize(z + rng.logistic(size=N), [-1, 1])
    if isinstance(loss, Poisson):
        return X, rng.poisson(np.exp(z / 2)) + (np.arange(N) == 0.0)
    if isinstance(loss, Gamma | Tweedie):
        return X, rng.gamma(2, np.exp(z / 2)) + 0.01
    return X, z + 0.5 * rng.normal(size=N)


def model_of(loss, l1_ratio=0.0, **settings):
    if loss.has_classes:
        return GLMClassifier(C=10.0, l1_ratio=l1_ratio, **settings)
    return GLMRegressor(loss.name, alpha=1e-3, l1_ratio=l1_ratio, **settings)


def truth(model, loss, X, y, l1_ratio=0.0, C=10.0):
    """F of the fitted coefficients and the least F, both in long double."""
    strength = 1 / (C * N) if loss.has_classes else 1e-3
    penalty = strength * (1 - l1_ratio), strength * l1_ratio
    one = LongDouble.of(np.asarray(X, float), y, None, loss, penalty, True)
    at = one.theta_of(np.atleast_2d(model.coef_).T, np.atleast_1d(model.intercept_))
    return float(one.value(at)), float(one.least(at)), float(one.constant()[0])


KINDS = {
    "dense": np.asarray,
    "columns": np.asfortranarray,
    "sparse": csr_array,
    "chunks": lambda X: Chunks([X[:100], X[100:]]),
    "frame": lambda X: pd.DataFrame(X, columns=["time", "other"]),
}


@pytest.mark.parametrize("ratio", [1e5, 1e9, 1e12, 1e13])
@pytest.mark.parametrize("loss", LOSSES, ids=NAMES)
def test_a_column_far_from_0_counts_as_it_does_centred(loss, ratio):
    X, y = data_of(loss, ratio)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = model_of(loss).fit(X, y)
    found, least, constant = truth(model, loss, X, y)
    assert found - least <= model.gap_ + 1e-13
    assert model.objective_ == pytest.approx(found, rel=1e-9, abs=1e-13)
    # What the digits of the intercept allow: scores off by an ulp of the mean.
    assert found - least <= 1e-6 * (constant - least) + (ratio * 2**-52) ** 2
    if found - least > 1e-6 * (constant - least):
        assert [w.category for w in caught] == [ConvergenceWarning]


@pytest.mark.parametrize("l1_ratio", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("loss", [Squared(), Logistic(), Poisson()], ids=lambda loss: loss.name)
def test_every_container_and_penalty(loss, kind, l1_ratio):
    X, y = data_of(loss, 1e13)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = model_of(loss, l1_ratio).fit(KINDS[kind](X), y)
    found, least, constant = truth(model, loss, X, y, l1_ratio)
    assert found - least <= model.gap_ + 1e-13
    assert found - least < 1e-4 * (constant - least)
    assert caught or found - least <= 1e-6 * (constant - least)


PENALTIES = {"L2": (10.0, 0.0), "elastic": (10.0, 0.5), "L1": (10.0, 1.0), "none": (math.inf, 0.0)}


def assert_mean_0(intercepts):
    assert abs(intercepts.mean()) <= 4 * np.spacing(np.abs(intercepts).max())


@pytest.mark.parametrize("ratio", [3.0, 1e7, 1e10])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("penalty", PENALTIES)
def test_the_intercepts_of_classes_have_the_mean_0(penalty, kind, ratio):
    (X, y), (C, l1_ratio) = data_of(Softmax(3), ratio), PENALTIES[penalty]
    model = GLMClassifier(C=C, l1_ratio=l1_ratio, warm_start=True)
    digits = 1e-13 + 2.0**-62 * ratio  # of scores in long double
    with warnings.catch_warnings():
        warnings.simplefilter("error", ConvergenceWarning)
        for shift in (0.0, 5.0):  # the second fit begins at classes that are all shifted
            model.fit(KINDS[kind](X), y)
            found, least, _ = truth(model, Softmax(3), X, y, l1_ratio, C)
            assert_mean_0(model.intercept_)
            assert model.objective_ == pytest.approx(found, rel=1e-9)
            assert found - least <= model.gap_ + digits
            model.intercept_ += shift
            model.coef_ += shift if l1_ratio == 0 else 0
    model.set_params(fit_intercept=False, warm_start=False)
    assert not model.fit(X - [ratio, 0], y).intercept_.any()


@pytest.mark.parametrize("kind", ["dense", "sparse", "chunks"])
@pytest.mark.parametrize("refit", [True, False])
@pytest.mark.parametrize("penalty", PENALTIES)
def test_those_of_a_search_too(penalty, refit, kind):
    (X, y), (C, l1_ratio) = data_of(Softmax(3), 3.0), PENALTIES[penalty]
    model = GLMClassifierCV([0.1, C], l1_ratios=[l1_ratio], cv=3, refit=refit)
    model.fit(KINDS[kind](X), y)
    assert_mean_0(model.intercept_)
    for intercepts in model.coefs_paths_[..., -1].reshape(-1, 3):
        assert_mean_0(intercepts)


@pytest.mark.parametrize("loss", LOSSES, ids=NAMES)
def test_where_float64_has_no_digits_left_a_warning_names_the_column(loss):
    X, y = data_of(loss, 1e15)
    frame = KINDS["frame"](X)
    with pytest.warns(ConvergenceWarning, match=r"column 0 \('time'\).*subtract its mean") as seen:
        model = model_of(loss, tol=1e-8).fit(frame, y)
    assert len(seen) == 1
    assert model.stop_reason_ == "coef_ and intercept_ have no more digits"
    found, least, _ = truth(model, loss, X, y)
    assert found - least <= model.gap_ + 1e-13


@pytest.mark.parametrize("value", [0.1, 3.0, 1e13])
def test_what_is_constant_to_the_last_bit_has_no_coefficient(value):
    X, y = data_of(Squared(), 0)
    X = np.column_stack([X, np.full(N, value)])
    model = GLMRegressor(alpha=1e-3).fit(X, y)
    without = GLMRegressor(alpha=1e-3).fit(X[:, :2], y)
    assert model.coef_[2] == 0
    assert model.objective_ == pytest.approx(without.objective_, rel=1e-12)


def test_a_column_that_differs_in_one_row_by_1e_12_is_kept():
    rng = np.random.default_rng(0)
    x = np.full(N, 1e9)
    x[7] += 2.0**-10
    y = rng.normal(size=N) + 50.0 * (np.arange(N) == 7)
    model = GLMRegressor(alpha=0, tol=1e-3).fit(x[:, None], y)
    assert model.coef_[0] == pytest.approx((y[7] - np.delete(y, 7).mean()) / (x[7] - 1e9), rel=1e-6)


@pytest.mark.parametrize("search", [GLMRegressorCV, GLMClassifierCV])
@pytest.mark.parametrize("ratios", [[0.0], [1.0]])
def test_a_search_keeps_such_a_column(search, ratios):
    loss = Squared() if search is GLMRegressorCV else Logistic()
    X, y = data_of(loss, 1e12)
    plain = X - [1e12, 0]
    found, expected = (search(l1_ratios=ratios).fit(data, y) for data in (X, plain))
    np.testing.assert_allclose(found.coef_, expected.coef_, rtol=1e-2, atol=1e-3)
    np.testing.assert_allclose(found.scores_, expected.scores_, atol=0.02)


@pytest.mark.parametrize("seed", range(20))
def test_a_shift_is_rounded_once(seed):
    from fractions import Fraction

    rng = np.random.default_rng(seed)
    center = rng.normal(size=7) * 10.0 ** rng.uniform(-10, 14, 7)
    coef, intercept = rng.normal(size=(7, 2)), rng.normal(size=2) * 1e12
    for k, got in enumerate(shifted(intercept, center, coef)):
        exact = Fraction(float(intercept[k]))
        exact += sum(
            Fraction(float(c)) * Fraction(float(w)) for c, w in zip(center, coef[:, k], strict=True)
        )
        assert got == float(exact)


@pytest.mark.parametrize("l1_ratio", [0.0, 1.0])
@pytest.mark.parametrize("loss", [Logistic(), Squared(), Poisson()], ids=lambda loss: loss.name)
def test_an_intercept_less_the_mean_of_the_offsets_is_rounded_once_more(loss, l1_ratio):
    """The better intercept is sought with exact scores, which Newton's step does at once."""
    X, y = data_of(loss, 1e12)
    offset = np.random.default_rng(1).normal(size=N) * 3 + 1e3 / 7 * (not loss.has_classes)
    if isinstance(loss, Poisson):
        y = np.random.default_rng(2).poisson(np.exp(np.clip(offset - 140, -3, 9))).astype(float)
        offset -= 140
    model = model_of(loss, l1_ratio).fit(X, y, offset=offset)
    coef, intercept = np.ravel(model.coef_), float(np.ravel(model.intercept_)[0])
    rests = [Fraction(number) + Fraction(intercept) for number in offset.tolist()]
    exact = [
        float(
            sum(Fraction(x) * Fraction(w) for x, w in zip(row, coef.tolist(), strict=True)) + rest
        )
        for row, rest in zip(X.tolist(), rests, strict=True)
    ]
    scores = np.array(exact)[:, None]
    strength = 1 / (10.0 * N) if loss.has_classes else 1e-3
    penalty = (1 - l1_ratio) / 2 * coef @ coef + l1_ratio * np.abs(coef).sum()
    value = loss.value(scores, y).mean() + strength * penalty
    assert model.objective_ == pytest.approx(value, rel=1e-12)
    step = -loss.residual(scores, y).mean() / loss.curvature(scores, y).mean()
    lower = loss.value(scores, y).mean() - loss.value(scores + step, y).mean()
    assert lower <= model.gap_ + 1e-14 * value  # of the two means
