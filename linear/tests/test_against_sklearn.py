"""The coefficients of scikit-learn's estimators, each at the end of its precision.

Coefficients of features in other units cannot be compared as they are: 1e-5 of the greatest would
say nothing about the smallest. So each is multiplied by its feature's standard deviation, which is
what it adds to a score, and the greatest difference is relative to the greatest of them. The
intercept is compared at the mean of the features, as a part of the same vector.
"""

import itertools
import warnings

import numpy as np
import pytest
from provenglm import GLMClassifier, GLMRegressor
from scipy.optimize import root
from scipy.special import expit
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import (
    GammaRegressor,
    HuberRegressor,
    LogisticRegression,
    PoissonRegressor,
    Ridge,
    TweedieRegressor,
)
from threadpoolctl import threadpool_limits

TOLERANCE = 1e-5
# Coefficients have half the digits of the objective.
TIGHT = 1e-12
TABLE = list(
    itertools.product(
        ["float32", "float64"], ["weights", "none"], ["balanced", "skewed"], ["scaled", "raw"]
    )
)


def features(dtype, units, n=300, p=6):
    """Correlated features; raw ones with scales from 1e-2 to 1e2 and offsets."""
    rng = np.random.default_rng(5)
    X = rng.normal(size=(n, p)) @ (np.eye(p) + 0.4)
    if units == "raw":
        X = (X + rng.normal(size=p)) * 10.0 ** np.linspace(-2, 2, p)
    return X.astype(dtype)


def scores(X, outputs=1):
    z = (X - X.mean(axis=0)) / X.std(axis=0)
    return z @ np.random.default_rng(6).normal(size=(X.shape[1], outputs)) / 2


def weights_of(given, n):
    return np.random.default_rng(7).integers(0, 4, n).astype(float) if given == "weights" else None


def vector(model, X):
    """What each feature adds to the scores, and the scores at the mean, (K, p + 1)."""
    X = X.astype(np.float64)
    coef = np.atleast_2d(model.coef_)
    middle = np.atleast_1d(model.intercept_) + coef @ X.mean(axis=0)
    return np.column_stack([coef * X.std(axis=0), middle])


def difference(model, peer, X):
    ours, theirs = vector(model, X), vector(peer, X)
    return np.abs(ours - theirs).max() / np.abs(theirs).max()


def fitted(model, X, y, weight):
    with warnings.catch_warnings():
        # At such a tol both may say that float64 has no more digits.
        warnings.simplefilter("ignore", ConvergenceWarning)
        warnings.filterwarnings("ignore", message="Line search")
        return model.fit(X, y, sample_weight=weight)


@pytest.mark.parametrize("classes", [2, 4])
@pytest.mark.parametrize("C", [1.0, 100.0])
@pytest.mark.parametrize(("dtype", "given", "shares", "units"), TABLE)
def test_logistic_regression(dtype, given, shares, units, C, classes):
    X = features(dtype, units)
    rng = np.random.default_rng(8)
    z = scores(X, classes)
    if shares == "skewed":
        z[:, 0] += 3
    y = (z + rng.gumbel(size=z.shape)).argmax(axis=1)
    counts = np.bincount(y)
    assert (counts.max() > 4 * counts.min()) == (shares == "skewed")
    weight = weights_of(given, len(y))
    model = fitted(GLMClassifier(C, tol=TIGHT), X, y, weight)
    peer = LogisticRegression(C=C, solver="newton-cholesky", tol=1e-12, max_iter=1000)
    fitted(peer, X.astype(np.float64), y, weight)
    assert difference(model, peer, X) < TOLERANCE


@pytest.mark.parametrize("alpha", [1e-4, 0.1])
@pytest.mark.parametrize(("dtype", "given", "shares", "units"), TABLE)
def test_ridge(dtype, given, shares, units, alpha):
    X = features(dtype, units)
    y = target(X, shares)
    weight = weights_of(given, len(y))
    total = len(y) if weight is None else weight.sum()
    model = fitted(GLMRegressor(alpha=alpha, tol=TIGHT), X, y, weight)
    peer = Ridge(alpha=alpha * total, solver="svd").fit(X.astype(np.float64), y, weight)
    assert difference(model, peer, X) < TOLERANCE


@pytest.mark.parametrize("alpha", [1e-4, 0.1])
@pytest.mark.parametrize(("dtype", "given", "shares", "units"), TABLE)
def test_poisson_regressor(dtype, given, shares, units, alpha):
    X = features(dtype, units)
    mean = np.exp(scores(X)[:, 0] - (2 if shares == "skewed" else -1))  # most counts are 0, or few
    y = np.random.default_rng(9).poisson(mean)
    assert (np.mean(y == 0) > 0.5) == (shares == "skewed")
    weight = weights_of(given, len(y))
    model = fitted(GLMRegressor("poisson", alpha=alpha, tol=TIGHT), X, y, weight)
    peer = PoissonRegressor(alpha=alpha, solver="newton-cholesky", tol=1e-12, max_iter=1000)
    fitted(peer, X.astype(np.float64), y, weight)
    assert difference(model, peer, X) < TOLERANCE


@pytest.mark.parametrize("power", [1.0, 1.1, 1.9, 2.0])
@pytest.mark.parametrize("alpha", [0.0, 1e-3, 0.1])
@pytest.mark.parametrize(("dtype", "given", "shares", "units"), TABLE)
def test_tweedie_regressor(dtype, given, shares, units, alpha, power):
    X = features(dtype, units)
    mean = np.exp(scores(X)[:, 0] + (5 if shares == "skewed" else -1))
    rng = np.random.default_rng(9)
    y = rng.gamma(2, mean / 2) * (1 if power == 2 else rng.random(len(mean)) < 0.7)
    weight = weights_of(given, len(y))
    model = fitted(GLMRegressor("tweedie", power=power, alpha=alpha, tol=TIGHT), X, y, weight)
    settings = {"alpha": alpha, "solver": "newton-cholesky", "tol": 1e-12, "max_iter": 1000}
    peer = fitted(TweedieRegressor(power=power, link="log", **settings), X.astype(float), y, weight)
    assert difference(model, peer, X) < TOLERANCE
    if power == 2:
        of_gamma = fitted(GLMRegressor("gamma", alpha=alpha, tol=TIGHT), X, y, weight)
        np.testing.assert_array_equal(of_gamma.coef_, model.coef_)
        peer = fitted(GammaRegressor(**settings), X.astype(float), y, weight)
        assert difference(of_gamma, peer, X) < TOLERANCE


def to_the_end(peer, X, y, weight):
    """HuberRegressor moved to where the derivatives of its objective are 0.

    L-BFGS-B, the only way that it has, ends where the objective falls by less than 2e-9 of itself:
    its coefficients then have two to five digits.
    """
    s = np.ones(len(y)) if weight is None else weight
    unit = X.std(axis=0)

    def derivatives(v):
        w, b, sigma = v[:-2] / unit, v[-2], v[-1]
        z = np.clip((y - X @ w - b) / sigma, -peer.epsilon, peer.epsilon)
        of_w = (peer.alpha * w - (s * z) @ X) / unit
        return np.append(of_w, [-(s @ z), (s @ (1 - z**2)) / 2]) / s.sum()

    start = np.append(peer.coef_ * unit, [peer.intercept_, peer.scale_])
    found = root(derivatives, start, tol=1e-14)
    assert np.abs(found.fun).max() < 1e-12
    assert np.abs(found.x - start).max() < 0.05 * np.abs(start).max()  # it was there, nearly
    peer.coef_, peer.intercept_, peer.scale_ = found.x[:-2] / unit, *found.x[-2:]
    return peer


@pytest.mark.parametrize("epsilon", [1.1, 1.35])
@pytest.mark.parametrize(("dtype", "given", "shares", "units"), TABLE)
def test_huber_regressor(dtype, given, shares, units, epsilon):
    X = features(dtype, units)
    y = target(X, shares)
    weight = weights_of(given, len(y))
    total = len(y) if weight is None else weight.sum()
    model = fitted(GLMRegressor("huber", alpha=1e-3, epsilon=epsilon, tol=TIGHT), X, y, weight)
    peer = HuberRegressor(epsilon=epsilon, alpha=1e-3 * total, tol=1e-12, max_iter=10_000)
    to_the_end(fitted(peer, X.astype(np.float64), y, weight), X.astype(np.float64), y, weight)
    assert difference(model, peer, X) < TOLERANCE
    assert model.scale_ == pytest.approx(peer.scale_, rel=TOLERANCE)


def target(X, shares):
    rng = np.random.default_rng(10)
    noise = rng.normal(size=len(X))
    if shares == "skewed":  # outliers on one side
        noise += 30 * rng.exponential(size=len(X)) * (rng.random(len(X)) < 0.1)
    return 3 + scores(X)[:, 0] + noise


# --- What must make no difference --------------------------------------------------------------


@pytest.fixture(scope="module")
def large():
    """Beyond what the exact Newton method takes."""
    rng = np.random.default_rng(11)
    X = rng.normal(size=(30_000, 40)) * 10.0 ** rng.uniform(-2, 2, 40) + 5
    z = (X - X.mean(axis=0)) / X.std(axis=0)
    return X, z @ rng.normal(size=40) / 4


LARGE = {
    "classifier": (GLMClassifier(C=0.1), lambda z, rng: rng.random(len(z)) < expit(z)),
    "squared": (GLMRegressor(alpha=1e-3), lambda z, rng: z + rng.normal(size=len(z))),
    "huber": (GLMRegressor("huber", alpha=1e-3), lambda z, rng: z + rng.standard_t(2, len(z))),
    "poisson": (GLMRegressor("poisson", alpha=1e-3), lambda z, rng: rng.poisson(np.exp(z / 2))),
}


@pytest.fixture(params=LARGE)
def large_case(request, large):
    model, make = LARGE[request.param]
    X, z = large
    return model, X, make(z, np.random.default_rng(12))


def again(model, X, y, weight=None, **arguments):
    return fitted(clone(model).set_params(tol=1e-11, random_state=0, **arguments), X, y, weight)


@pytest.mark.slow
def test_weights_are_repeated_rows_and_zero_leaves_out(large_case):
    model, X, y = large_case
    weight = np.random.default_rng(13).integers(0, 3, len(y))
    weighted = again(model, X, y, weight)
    if isinstance(model, GLMClassifier):
        assert weighted.objective_ > 0
    repeated = again(model, X.repeat(weight, axis=0), y.repeat(weight))
    # Two ways to the same optimum, each to a relative gap of 1e-11: half the digits, less one.
    assert difference(weighted, repeated, X) < 2e-5


@pytest.mark.slow
def test_float32_is_close_to_float64(large_case):
    model, X, y = large_case
    single = X.astype(np.float32)
    # The features themselves differ by 6e-8 of their size, offsets included.
    assert difference(again(model, single, y), again(model, X, y), X) < 2e-5


@pytest.mark.slow
def test_another_seed_goes_to_the_same_point(large_case):
    model, X, y = large_case
    one = again(model, X, y)
    assert difference(one, again(model, X, y).set_params(), X) == 0
    assert difference(one, fitted(one.set_params(random_state=1), X, y, None), X) < 2e-5


@pytest.mark.slow
def test_one_thread_is_two(large_case):
    model, X, y = large_case
    found = []
    for threads in (1, 2):
        with threadpool_limits(threads):
            found.append(again(model, X, y))
    assert difference(*found, X) < 2e-5
