"""Passes by columns, columns that are left out, and products that are kept: with an L1 penalty."""

import numpy as np
import pytest
from provenglm import GLMClassifier, GLMRegressor, constants
from provenglm.methods import descent, descent_columns
from provenglm.methods.descent_columns import ByColumns, screened_columns
from provenglm.methods.kept_products import KeptProducts
from provenglm.model.losses import Huber, Logistic, Poisson, Squared
from provenglm.model.problem import Problem
from provenglm.model.sampling import prepare
from provenglm.proof.duality import duality_gap
from provenglm.workers import Workers
from scipy.sparse import csr_array, random as random_matrix
from sklearn.datasets import load_breast_cancer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold

LOSSES = [Logistic(), Squared(), Poisson(), Huber(1.0)]
MANY = pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.name)


def objective_of(loss, *, size=0, intercept=True, l1=0.01, dtype=np.float64, dense=False):
    """Sparse rows, of which many columns are rare."""
    rng = np.random.default_rng(0)
    X = random_matrix(300, 40, 0.2, "csr", dtype=dtype, random_state=0)
    X = csr_array(X.multiply(10.0 ** rng.uniform(-2, 0.5, 40)), dtype=dtype)
    X.data *= rng.choice([-1, 1], len(X.data))
    y = rng.integers(0, 2, 300)
    weight = rng.uniform(0.2, 2, 300)
    features = X.toarray() if dense else X
    problem = Problem(features, y, loss, 0.01, weight, intercept, l1)
    objective, _ = prepare(problem, Workers(0), size, rng, precise=True)
    return objective.precise()


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("size", [0, 200])
@MANY
def test_a_pass_by_columns_is_one_by_rows(monkeypatch, loss, size, intercept, dtype):
    monkeypatch.setattr(descent_columns, "_SURE", -1.0)  # all columns stay
    objective = objective_of(loss, size=size, intercept=intercept, dtype=dtype)
    small, arrays, kept = screened_columns(objective)
    np.testing.assert_array_equal(kept, np.arange(41))
    theta = np.random.default_rng(1).normal(size=(41, 1))
    theta[np.arange(41) % 3 != 0] = 0
    theta[-1] = intercept
    expected, found = (
        objective.snapshot(theta),
        small.extended(ByColumns, arrays=arrays).snapshot(theta),
    )
    assert found.objective == pytest.approx(expected.objective, rel=1e-12)
    np.testing.assert_allclose(found.gradient, expected.gradient, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(found.scores, expected.scores, rtol=1e-9, atol=1e-12)
    for own, other in zip(small.moments, objective.moments, strict=True):
        np.testing.assert_allclose(own, other, rtol=1e-9, atol=1e-12)
    gap = duality_gap(objective, expected)
    assert duality_gap(small, found) == pytest.approx(gap, rel=1e-9)
    if found.sums is not None:
        np.testing.assert_allclose(found.sums.products, expected.sums.products, atol=1e-12)


@pytest.mark.parametrize("size", [0, 200])
def test_a_column_is_left_out_if_no_residuals_bring_it_beyond_the_penalty(size):
    objective = objective_of(Logistic(), size=size)
    _, _, kept = screened_columns(objective)
    X, y, share = objective.rows.block(slice(0, 300)).toarray(), objective.target, objective.share
    # A residual is between -y and 1 - y.
    low, high = X * -y[:, None], X * (1 - y)[:, None]
    most, least = np.maximum(low, high).T @ share, np.minimum(low, high).T @ share
    np.testing.assert_array_equal(
        kept, np.append(np.flatnonzero(np.maximum(most, -least) > 0.01), 40)
    )
    assert 5 < len(kept) < 35


@pytest.mark.parametrize("loss", [Squared(), Poisson()], ids=lambda loss: loss.name)
def test_unbounded_residuals_leave_no_column_out(loss):
    _, _, kept = screened_columns(objective_of(loss))
    assert len(kept) == 41


@pytest.fixture
def text():
    rng = np.random.default_rng(0)
    X = csr_array(random_matrix(4000, 3000, 0.003, "csr", random_state=0))
    y = X @ (6 * rng.normal(size=3000)) + rng.logistic(size=4000) > 0.3
    return X, y


@pytest.mark.slow
@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("C", [0.1, 0.3])
def test_columns_that_are_left_out_have_no_coefficient(monkeypatch, text, C, intercept):
    X, y = text
    kwargs = {"C": C, "l1_ratio": 0.5, "fit_intercept": intercept, "tol": 1e-10}
    counts = []

    def counted(objective):
        found = screened_columns(objective)
        counts.append(len(found[2]) - 1)
        return found

    monkeypatch.setattr(descent, "screened_columns", counted)
    model = GLMClassifier(**kwargs).fit(X, y)
    monkeypatch.setattr(descent_columns, "_SURE", -1.0)
    other = GLMClassifier(**kwargs).fit(X, y)
    assert counts[0] < 2999
    assert counts[1] == 3000
    assert model.objective_ == pytest.approx(other.objective_, rel=1e-10)
    np.testing.assert_allclose(model.coef_, other.coef_, atol=1e-5)
    # Before scikit-learn 1.8 l1_ratio alone did nothing.
    named = {"penalty": "elasticnet"} if LogisticRegression().penalty == "l2" else {}
    peer = LogisticRegression(solver="saga", max_iter=5000, **{**kwargs, **named, "tol": 1e-9})
    peer.fit(X, y)
    np.testing.assert_allclose(model.coef_, peer.coef_, atol=1e-5)


def test_a_start_with_coefficients_of_columns_that_are_left_out(text):
    X, y = text
    kwargs = {"l1_ratio": 0.5, "tol": 1e-10}
    warm = GLMClassifier(C=30.0, warm_start=True, **kwargs).fit(X, y)
    warm.set_params(C=0.3).fit(X, y)
    cold = GLMClassifier(C=0.3, **kwargs).fit(X, y)
    assert warm.objective_ == pytest.approx(cold.objective_, rel=1e-9)
    np.testing.assert_allclose(warm.coef_, cold.coef_, atol=1e-5)


@pytest.mark.parametrize("intercept", [True, False])
def test_kept_columns_and_their_products(intercept):
    objective = objective_of(Squared(), size=200, intercept=intercept, dense=True)
    null = objective.snapshot(np.zeros((41, 1)))
    X = objective.rows.block(slice(0, 300))
    A = (X - objective.scaling.center) * objective.scaling.inverse
    theta = np.zeros((41, 1))
    theta[[3, 20, -1], 0] = [0.5, -2.0, intercept]
    expected = objective.snapshot(theta)
    if intercept:
        A = A - objective.share @ A
    hessian = A.T @ (objective.share[:, None] * A) + np.diag(objective.penalty[:-1])
    products = KeptProducts()
    assert products.columns.scores(null.theta[:, 0]) is None
    for wanted in ([3, 7], [1, 3, 20], [7, 8], np.arange(40)):
        places = products.join(objective, np.array(wanted))
        assert set(wanted) <= set(products.features)
        values = products.columns.values[places]
        np.testing.assert_allclose(values, A[:, products.features].T, atol=1e-12)
        found = products.hessian(objective.penalty[products.features])
        count = len(products.features)
        of_these = np.ix_(products.features, products.features)
        np.testing.assert_allclose(found[:count, :count], hessian[of_these], atol=1e-12)
        has_all = {3, 20} <= set(products.features)
        scores = products.columns.scores(theta[:, 0])
        assert (scores is not None) == has_all
        if scores is not None:
            np.testing.assert_allclose(scores, expected.scores[:, 0], atol=1e-12)
            known = objective.at_scores(theta, scores[:, None])
            assert known.objective == pytest.approx(expected.objective, rel=1e-12)
            np.testing.assert_allclose(known.gradient, expected.gradient, atol=1e-12)


def test_a_lasso_of_kept_products_is_that_of_fresh_products(monkeypatch):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(120, 500)) + rng.normal(size=(120, 1))
    y = X[:, :30] @ rng.normal(size=30) + rng.normal(size=120)
    kept = GLMRegressor(alpha=0.01, l1_ratio=1.0, tol=1e-10).fit(X, y)
    monkeypatch.setattr(constants, "KEPT_NUMBERS", 0)
    fresh = GLMRegressor(alpha=0.01, l1_ratio=1.0, tol=1e-10).fit(X, y)
    assert kept.objective_ == pytest.approx(fresh.objective_, rel=1e-10)
    np.testing.assert_allclose(kept.coef_, fresh.coef_, atol=1e-5)


@pytest.mark.parametrize("C", [1e4, 1e6, 1e8])
def test_an_objective_with_few_digits_does_not_end_a_run(C):
    # The classes are all but separable: scores of 1e5 leave few digits in losses near 0, and the
    # last steps only reduce the gap.
    X, y = load_breast_cancer(return_X_y=True)
    for rows, _ in StratifiedKFold(5).split(X, y):
        model = GLMClassifier(C, l1_ratio=1.0).fit(X[rows], y[rows])
        assert model.gap_ <= 1e-6
