"""Proofs and steps without a penalty, where columns are nearly, or wholly, sums of others."""

from __future__ import annotations

import warnings

import nist
import numpy as np
import pytest
from provenglm import GLMClassifier, GLMRegressor
from provenglm.model.losses import Huber, Logistic, Loss, Poisson, Softmax, Squared
from provenglm.model.tweedie import Gamma
from provenglm.proof.certificate import Certificate, Model
from provenglm.proof.orthogonal import LARGEST_RATIO
from provenglm.rows.kinds import rows_of
from provenglm.rows.table import Table
from provenglm.workers import Workers
from rational import Rational
from scipy.sparse import csr_array
from test_certificate import targets

LOSSES = [Logistic(), Squared(), Huber(), Poisson(), Gamma()]


def bound(X, y, share, loss: Loss, coef, bias, intercept: bool = True, l2: float = 0.0) -> float:
    dense = X.toarray() if hasattr(X, "toarray") else X
    center, scale = dense.mean(axis=0), dense.std(axis=0)
    table = Table(rows_of(X), y, share, Workers(10))
    proof = Certificate(table, loss, intercept, center, scale)
    with np.errstate(over="ignore", invalid="ignore"):
        point = proof.at(Model(coef, bias, l2))
        return np.inf if point is None else proof.qr_bound(point)


def nearly_alike(random: np.random.Generator, seed: int, size: float | None = None) -> np.ndarray:
    """Return columns of which one is a sum of others but for 1e-2 to 1e-13."""
    n = int(random.integers(12, 40))
    X = random.standard_normal((n, 3)) * 10 ** random.uniform(-2, 2, 3)
    size = 10.0 ** -random.uniform(2, 13) if size is None else size
    last = X[:, 0] / X[:, 0].std() + X[:, 1] / X[:, 1].std()
    X = np.column_stack([X, last + size * random.standard_normal(n)])
    return X + random.choice([0, 10.0, 1000.0], 4) if seed % 3 == 0 else X


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.name)
def test_no_bound_is_below_the_truth(loss: Loss, seed: int) -> None:
    random = np.random.default_rng(seed)
    X = nearly_alike(random, seed)
    n, p = X.shape
    scaled = (X - X.mean(axis=0)) / X.std(axis=0)
    y = targets(loss, scaled @ random.standard_normal(p), random)
    share = random.random(n) * (random.random(n) < 0.8) if seed % 2 else np.ones(n)
    share[:6] = 1.0
    share /= share.sum()
    intercept = seed % 4 > 0
    rows = np.column_stack([X, np.ones(n)]) if intercept else X
    truth = Rational(rows, y, share, loss)
    least, theta = truth.least()
    best = np.array([float(number) for number in theta])
    features = csr_array(X) if seed % 4 == 3 else X
    for distance in (0.0, 1e-9, 1e-6, 1e-3, 1e-1):
        moved = best * (1 + distance * random.standard_normal(len(best)))
        coef, bias = moved[:p, None], moved[p:] if intercept else np.zeros(1)
        # Losses in long double have 19 digits.
        true = float(truth.value(moved) - least) - 1e-18
        assert bound(features, y, share, loss, coef, bias, intercept) >= true


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.name)
def test_near_the_optimum_a_bound_is_next_to_nothing_up_to_1e9(loss: Loss) -> None:
    random = np.random.default_rng(0)
    X = random.standard_normal((300, 3))
    for size in (1e-3, 1e-6, 1e-9):
        Z = np.column_stack([X, X[:, 0] + size * random.standard_normal(300)])
        y = targets(loss, X @ random.standard_normal(3), random)
        share = np.full(300, 1 / 300)
        truth = Rational(np.column_stack([Z, np.ones(300)]), y, share, loss)
        best = np.array([float(number) for number in truth.least()[1]])
        assert bound(Z, y, share, loss, best[:4, None], best[4:]) <= 1e-8


def test_two_classes_of_softmax_are_those_of_the_logistic_loss() -> None:
    random = np.random.default_rng(5)
    X = nearly_alike(random, 1, 1e-6)
    y = targets(Logistic(), X[:, 0] / X[:, 0].std(), random)
    share = np.full(len(y), 1 / len(y))
    truth = Rational(np.column_stack([X, np.ones(len(y))]), y, share, Logistic())
    least, theta = truth.least()
    for distance in (0.0, 1e-3, 1e-1):
        best = np.array([float(number) for number in theta])
        best = best * (1 + distance * random.standard_normal(5))
        both = np.column_stack([-best / 2, best / 2])
        found = bound(X, y.astype(int), share, Softmax(2), both[:4] + 0.3, both[4] - 0.1)
        true = float(truth.value(best) - least)
        assert found >= true - 1e-18
        if distance == 0:
            assert found < 1e-8


def test_separable_classes_are_not_proven() -> None:
    X = np.array([[-2.0], [-1.0], [1.0], [2.0]])
    share = np.full(4, 0.25)
    for weight in (1.0, 10.0, 30.0, 100.0):
        args = np.array([0.0, 0, 1, 1]), share, Logistic(), np.full((1, 1), weight), np.zeros(1)
        assert bound(X, *args) == np.inf


def test_a_penalty_counts_as_rows() -> None:
    random = np.random.default_rng(2)
    X = nearly_alike(random, 1)
    y = random.standard_normal(len(X))
    share, l2 = np.full(len(X), 1 / len(X)), 1e-9
    truth = Rational(X, y, share, Squared(), np.full(4, l2))
    least, theta = truth.least()
    for distance in (0.0, 1e-6, 1e-2):
        best = np.array([float(number) for number in theta])
        best = best * (1 + distance * random.standard_normal(4))
        true = float(truth.value(best) - least)
        found = bound(X, y, share, Squared(), best[:, None], np.zeros(1), False, l2)
        assert found >= true - 1e-18
        if distance > 0:
            assert found <= 1.1 * true + 1e-12


def test_sums_but_for_rounding_are_proven_for_coefficients_of_any_usual_size() -> None:
    random = np.random.default_rng(3)
    n = 60
    X = random.standard_normal((n, 3))
    Z = np.column_stack([X, X @ random.standard_normal((3, 2))])
    y = random.standard_normal(n)
    share = np.full(n, 1 / n)
    rows = np.column_stack([X, np.ones(n)])
    best = np.linalg.lstsq(rows, y, rcond=None)[0]
    coef = np.concatenate([best[:3], np.zeros(2)])
    found = bound(Z, y, share, Squared(), coef[:, None], best[3:])
    assert found <= 1e-9
    # The bound holds for all coefficients that are as large as it says.
    truth = Rational(np.column_stack([Z, np.ones(n)]), y, share, Squared())
    here, (_, least) = truth.value(np.append(coef, best[3])), truth.least()
    whole = np.array([float(number) for number in least])
    largest = LARGEST_RATIO * np.linalg.norm(coef)
    assert np.linalg.norm(whole) > largest
    towards = whole / np.linalg.norm(whole) * largest
    start = np.append(coef, best[3])
    for part in (1e-4, 1e-2, 1.0):
        other = truth.value(start + part * (towards - start))
        assert here - other <= found


def all_fits() -> dict:
    return {
        "squared": lambda: GLMRegressor(alpha=0),
        "huber": lambda: GLMRegressor("huber", alpha=0),
        "poisson": lambda: GLMRegressor("poisson", alpha=0),
        "gamma": lambda: GLMRegressor("gamma", alpha=0),
        "logistic": lambda: GLMClassifier(C=np.inf),
        "softmax": lambda: GLMClassifier(C=np.inf),
    }


def designs(random: np.random.Generator) -> dict[str, np.ndarray]:
    n = 400
    X = random.standard_normal((n, 6))
    groups = np.eye(4)[random.integers(0, 4, n)]
    t = np.linspace(1, 9, n)
    dummies = np.column_stack([X, groups])
    return {
        "duplicate": np.column_stack([X, X[:, 0]]),
        "constant": np.column_stack([X, np.full(n, 3.7)]),
        "dummies": dummies,
        "scaled dummies": (dummies - dummies.mean(axis=0)) / dummies.std(axis=0),
        "sums": np.column_stack([X, X @ random.standard_normal((6, 2))]),
        "nearly alike": np.column_stack([X, X[:, 0] + 1e-6 * random.standard_normal(n)]),
        "polynomial": t[:, None] ** np.arange(1, 8),
        "few different rows": np.repeat(random.standard_normal((n // 8, 60)), 8, axis=0),
    }


@pytest.mark.parametrize("design", designs(np.random.default_rng(0)))
@pytest.mark.parametrize("loss", all_fits())
def test_fits_without_a_penalty_are_proven(loss: str, design: str) -> None:
    random = np.random.default_rng(0)
    X = designs(random)[design]
    scores = X[:, :3] @ [1, -1, 0.5]
    scores = (scores - scores.mean()) / scores.std()
    y = {
        "squared": scores + random.standard_normal(400),
        "huber": scores + random.standard_t(2, 400),
        "poisson": random.poisson(np.exp(scores / 2)),
        "gamma": random.gamma(2, np.exp(scores / 2)),
        "logistic": random.random(400) < 1 / (1 + np.exp(-scores)),
        "softmax": random.integers(0, 3, 400),
    }[loss]
    if design == "few different rows" and loss in ("logistic", "softmax"):
        pytest.skip("some of the rows are all of one class")
    model = all_fits()[loss]().fit(X, y)  # a warning is an error
    assert model.stop_reason_ == "the optimum is as near as tol asks"


@pytest.mark.parametrize(
    ("data", "digits"),
    [
        # Digits that any order of sums has: more depends on the libraries, as the condition says.
        (nist.filip(), 4),
        (nist.longley(), 10),
        (nist.wampler(1), 6),
        (nist.wampler(2), 9),
        (nist.wampler(3), 6),
        (nist.wampler(4), 5.5),
        (nist.wampler(5), 5),
    ],
    ids=["filip", "longley", *(f"wampler{k}" for k in range(1, 6))],
)
def test_certified_digits_of_nist(data, digits: float) -> None:
    X, y, certified = data
    model = GLMRegressor(alpha=0).fit(X, y)
    found = np.append(model.intercept_, model.coef_)
    assert np.abs(found / certified - 1).max() < 10**-digits
    assert model.gap_ <= 1e-10 * np.var(y)


def test_a_tall_polynomial_takes_a_few_passes() -> None:
    """More numbers than are copied: the triangle comes from all rows, a block at a time."""
    random = np.random.default_rng(0)
    t = random.uniform(1, 9, 900_000)
    X = t[:, None] ** np.arange(1, 9)
    y = np.sin(t) + random.standard_normal(len(t))
    model = GLMRegressor(alpha=0).fit(X, y)
    z = (t - 5) / 4
    basis = np.polynomial.chebyshev.chebvander(z, 8)
    best = np.linalg.lstsq(basis, y, rcond=None)[0]
    least = 0.5 * float(np.mean((y - basis @ best) ** 2))
    assert model.stop_reason_ == "the optimum is as near as tol asks"
    assert -1e-12 <= model.objective_ - least <= model.gap_ + 1e-12
    assert model.history_[-1]["passes"] < 10


@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("kind", ["plain", "units", "far off", "dummies", "wide"])
@pytest.mark.parametrize("seed", range(4))
def test_squares_have_the_coefficients_of_lstsq(kind: str, seed: int, intercept: bool) -> None:
    random = np.random.default_rng(seed)
    n, p = int(random.integers(8, 60)), int(random.integers(4, 40))
    if kind == "wide":
        n, p = p, n + p
    rank = int(random.integers(1, max(2, min(n - 2, p))))
    X = random.standard_normal((n, rank)) @ random.standard_normal((rank, p))
    if kind == "units":
        X *= 10 ** random.uniform(-1, 1, p)
    if kind == "far off":
        X += 10 * random.standard_normal(p)
    if kind == "dummies":
        X = np.column_stack([X, np.full(n, 3.0), np.eye(3)[random.integers(0, 3, n)]])
    y = random.standard_normal(n) + 2
    with warnings.catch_warnings():
        # A perfect fit of few rows has no gap that is small beside what is rounding.
        warnings.simplefilter("ignore" if n <= rank + 2 else "error")
        model = GLMRegressor(alpha=0, fit_intercept=intercept).fit(X, y)
    Z, t = (X - X.mean(axis=0), y - y.mean()) if intercept else (X, y)
    expected = np.linalg.lstsq(Z, t, rcond=1e-11)[0]
    assert np.linalg.norm(model.coef_ - expected) <= 1e-8 * np.linalg.norm(expected)
    assert model.intercept_ == pytest.approx(
        y.mean() - X.mean(axis=0) @ expected if intercept else 0.0, abs=1e-7
    )


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("loss", all_fits())
def test_the_norm_is_the_least_one_for_all_losses(loss: str, intercept: bool, sparse: bool) -> None:
    """The optimum along a null direction of the features, in the user's units, is at 0."""
    random = np.random.default_rng(1)
    n = 300
    X = random.standard_normal((n, 3)) * [1, 10, 0.1]
    groups = np.eye(4)[random.integers(0, 4, n)]
    X = np.column_stack([X, groups, X[:, 0] - 2 * X[:, 2], np.full(n, 2.0)])
    scores = X[:, 0] + 0.05 * X[:, 1]
    y = {
        "squared": scores + random.standard_normal(n),
        "huber": scores + random.standard_t(2, n),
        "poisson": random.poisson(np.exp(scores / 2)),
        "gamma": random.gamma(2, np.exp(scores / 2)),
        "logistic": random.random(n) < 1 / (1 + np.exp(-scores)),
        "softmax": random.integers(0, 3, n),
    }[loss]
    model = all_fits()[loss]()
    model.set_params(fit_intercept=intercept, tol=1e-9)
    model.fit(csr_array(X) if sparse else X, y)
    centred = X - X.mean(axis=0) if intercept else X
    right = np.linalg.svd(centred)[2]
    rank = np.linalg.matrix_rank(centred)
    assert rank < X.shape[1]
    coef = np.atleast_2d(model.coef_)
    assert np.abs(coef @ right[rank:].T).max() <= 1e-9 * np.abs(coef).max()
    if loss == "softmax":
        assert np.abs(coef.sum(axis=0)).max() <= 1e-9 * np.abs(coef).max()


@pytest.mark.parametrize("loss", ["squared", "poisson", "gamma", "logistic"])
def test_it_is_where_the_path_of_a_vanishing_penalty_ends(loss: str) -> None:
    random = np.random.default_rng(2)
    n = 60
    X = random.integers(-9, 9, (n, 2)) / 8  # sums are exact
    X = np.column_stack([X, X[:, 0] + X[:, 1], 2 * X[:, 1]])
    scores = X[:, 0] - 0.5 * X[:, 2]
    y = {
        "squared": scores + random.standard_normal(n),
        "poisson": random.poisson(np.exp(scores / 2)).astype(float),
        "gamma": random.gamma(2, np.exp(scores / 2)),
        "logistic": (random.random(n) < 1 / (1 + np.exp(-scores))).astype(float),
    }[loss]
    losses = {"squared": Squared(), "poisson": Poisson(), "gamma": Gamma(), "logistic": Logistic()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # nobody can prove so much
        model = all_fits()[loss]().set_params(tol=1e-15).fit(X, y)
    found = np.append(model.coef_, model.intercept_)
    rows, share = np.column_stack([X, np.ones(n)]), np.full(n, 1 / n)
    for alpha in (1e-8, 1e-10):
        l2 = np.array([alpha] * 4 + [0.0])
        path = Rational(rows, y, share, losses[loss], l2).least()[1].astype(float)
        assert np.abs(found - path).max() <= 100 * alpha + 1e-9


@pytest.mark.parametrize("loss", ["squared", "poisson", "logistic"])
def test_offsets_are_in_the_scores(loss: str) -> None:
    random = np.random.default_rng(7)
    X = random.standard_normal((300, 3))
    X = np.column_stack([X, X[:, 0] + 1e-7 * random.standard_normal(300)])
    offset = random.standard_normal(300)
    y = {
        "squared": X[:, 0] + offset + random.standard_normal(300),
        "poisson": random.poisson(np.exp(X[:, 0] / 2 + offset)),
        "logistic": random.random(300) < 1 / (1 + np.exp(-X[:, 0] - offset)),
    }[loss]
    model = all_fits()[loss]().fit(X, y, offset=offset)
    assert model.stop_reason_ == "the optimum is as near as tol asks"
    scores = X @ np.ravel(model.coef_) + model.intercept_ + offset
    mean = {"squared": scores, "poisson": np.exp(scores), "logistic": 1 / (1 + np.exp(-scores))}
    rows = np.column_stack([X[:, :3], (X[:, 3] - X[:, 0]) * 1e7, np.ones(300)])
    assert np.abs(rows.T @ (mean[loss] - y)).max() / 300 < 1e-4
