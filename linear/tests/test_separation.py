"""Quasi-complete separation without a penalty, judged by a linear program."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
from linear_oracle import prepared
from provenglm import Chunks, GLMClassifier, GLMClassifierCV, GLMRegressor, GLMRegressorCV
from provenglm.model.losses import Logistic, Poisson, Softmax
from provenglm.model.problem import Problem
from provenglm.model.solution import StopReason
from provenglm.proof import separation
from provenglm.rows.kinds import rows_of
from scipy import sparse
from scipy.optimize import linprog
from sklearn.exceptions import ConvergenceWarning

UNBOUNDED = [reason.value for reason in StopReason if reason.is_unbounded]


def random_problem(seed):
    """Return few rows, of several kinds of columns and scales, with classes, weights or none."""
    rng = np.random.default_rng(seed)
    X = random_rows(rng, seed)
    n, K = len(X), rng.choice([2, 2, 3, 4])
    scores = X / np.maximum(X.std(axis=0), 1e-3) @ rng.normal(size=(X.shape[1], K))
    scores = scores * rng.uniform(0.2, 4) + rng.gumbel(size=(n, K))
    y = np.unique(scores.argmax(axis=1), return_inverse=True)[1]
    if y.max() == 0:
        y[0] = 1
    weight = rng.integers(0, 4, n) * 1.0
    if seed % 3 or (np.bincount(y, weight) == 0).any():
        weight = None
    return X * 10.0 ** rng.uniform(-3, 6, X.shape[1]), y, weight, bool(seed % 4)


def random_rows(rng, seed):
    n, p = rng.integers(8, 120), rng.integers(1, 6)
    kind = ["normal", "counts", "binary", "groups", "mixed"][seed % 5]
    X = rng.normal(size=(n, p))
    if kind == "counts":
        X = rng.integers(0, 3, size=(n, p))
    elif kind == "binary":
        X = rng.random((n, p)) < rng.uniform(0.03, 0.5, p)
    elif kind == "groups":
        X = np.eye(p + 2)[rng.integers(0, p + 2, n)]
    elif kind == "mixed":
        X = np.column_stack([X, rng.random((n, 2)) < 0.08, X[:, 0]])
    return X


def of_some_weight(X, y, weight, has_intercept):
    """Return the rows that count, scaled, with a column of ones for an intercept."""
    if weight is not None:
        X, y = X[weight > 0], y[weight > 0]
    X = X / np.maximum(np.abs(X).max(axis=0), 1e-300)
    return (np.column_stack([X, np.ones(len(X))]) if has_intercept else X), y


def is_separated(X, y, weight, has_intercept):
    """Whether some direction takes no row from its class, and some row nearer to it."""
    X, y = of_some_weight(X, y, weight, has_intercept)
    classes = np.eye(y.max() + 1)
    gains = [
        np.kron(classes[own] - other, row)
        for row, own in zip(X, y, strict=True)
        for other in np.delete(classes, own, axis=0)
    ]
    gains = np.array(gains)
    found = linprog(-gains.sum(axis=0), A_ub=-gains, b_ub=np.zeros(len(gains)), bounds=(-1, 1))
    return -found.fun > 1e-6


def warnings_of(model, X, y, weight):
    """Fit, and return the warnings but for the one that columns may have that depend on others.

    An optimum has no proof there.
    """
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.fit(X, y, weight)
    if model.stop_reason_ != StopReason.UNPROVEN.value:
        return [str(warning.message) for warning in caught]
    assert [warning.category for warning in caught] == [ConvergenceWarning]
    block = rows_of(X, np.dtype(np.float64)).block(slice(0, X.shape[0]))
    dense = block.toarray() if sparse.issparse(block) else block
    ones = np.ones((len(dense), 1 if model.fit_intercept else 0))
    counts = np.ones(len(dense), bool) if weight is None else weight > 0
    columns = np.hstack([dense, ones])[counts]
    columns = columns / np.maximum(np.abs(columns).max(axis=0), 1e-300)
    assert np.linalg.matrix_rank(columns, tol=1e-9) < columns.shape[1]
    return []


def fitted(X, y, weight=None, **arguments):
    """Return the model, and whether it says that there is no optimum; both in the same way."""
    model = GLMClassifier(C=math.inf, random_state=0, **arguments)
    told = warnings_of(model, X, y, weight)
    assert len(told) == (model.stop_reason_ in UNBOUNDED)
    assert all("found no finite optimum with C=inf: " in line for line in told)
    return model, bool(told)


@pytest.mark.slow
def test_what_is_told_is_what_a_linear_program_finds():
    told = []
    for seed in range(100):
        X, y, weight, has_intercept = random_problem(seed)
        _, is_told = fitted(X, y, weight, fit_intercept=has_intercept)
        assert is_told == is_separated(X, y, weight, has_intercept), seed
        told.append(is_told)
    assert 20 <= sum(told) <= 80


@pytest.mark.parametrize("kind", ["dense", "sparse", "chunks"])
@pytest.mark.parametrize("classes", [2, 4])
def test_a_column_of_one_class_only(kind, classes):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(4000, 6)) * [1, 1, 1e-4, 1, 1, 1e5]
    y = (X[:, :1] * np.arange(classes) + rng.gumbel(size=(4000, classes))).argmax(axis=1)
    X[:, 3] = (y == 1) & (rng.random(4000) < 0.02)
    X[:, 4] = X[:, 1] / 3 - X[:, 0] / 7
    overlap = X.copy()
    for k in range(classes):
        overlap[np.flatnonzero(y == k)[0], 3] = 1
    make = {
        "dense": lambda x: x,
        "sparse": sparse.csr_array,
        "chunks": lambda x: Chunks([x[:1500], x[1500:]]),
    }[kind]
    model, is_told = fitted(make(X), y)
    assert is_told
    assert model.stop_reason_ == StopReason.UNBOUNDED_IN_PART.value
    assert not fitted(make(overlap), y)[1]
    why = "infinite coefficients" if classes == 2 else "standard errors are for two"
    with pytest.raises(ValueError, match=why):
        model.covariance(X, y)


@pytest.mark.parametrize("make", [np.asarray, sparse.csr_array], ids=["dense", "sparse"])
@pytest.mark.parametrize("loss", [Logistic(), Softmax(3), Poisson()], ids=lambda loss: loss.name)
def test_a_small_number_beside_a_large_one_has_its_sign(loss, make):
    rng = np.random.default_rng(0)
    y = np.arange(60) % max(2, loss.outputs)
    X = rng.normal(size=(60, 2))
    X[:, 1] = 0
    # The least and the greatest of the rows that may have them: those of one class.
    rows = np.flatnonzero(y == 0)[:2]
    for values, is_direction in [([1e17, -1], False), ([1e17, 1], True), ([-1e17, -1], True)]:
        X[rows, 1] = values
        objective, _, _ = prepared(Problem(make(X), y, loss, 0.0))
        assert separation._has_column(objective) == is_direction


def test_several_columns_of_one_class_with_many_rows():
    rng = np.random.default_rng(1)
    X = rng.normal(size=(60_000, 12))
    y = X[:, 0] + rng.logistic(size=len(X)) > 0
    assert not fitted(X, y)[1]
    X[:, 2:7] = y[:, None] & (rng.random((len(X), 5)) < 1e-3)
    assert fitted(X, y)[1]


def test_probabilities_of_one_leave_a_hessian_with_a_factor():
    X = np.array([[2.0]] * 6 + [[0.0]] * 9)
    y = np.array([0] * 6 + [0, 0, 0, 1, 1, 1, 2, 2, 2])
    assert fitted(X, y, fit_intercept=False)[1]


def test_a_search_that_chooses_no_penalty_says_so():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(400, 2))
    y = X[:, 0] + rng.logistic(size=400) > 0
    X[:, 1] = y & (rng.random(400) < 0.3)
    with pytest.warns(ConvergenceWarning) as caught:
        GLMClassifierCV(Cs=[1e-6, math.inf], cv=3).fit(X, y)
    path, chosen = (str(warning.message) for warning in caught)
    assert "at 3 of 6 points" in path
    assert path.endswith("nothing is penalised: leave math.inf out of Cs")
    assert "chose C=inf" in chosen
    assert "at no cost to the others" in chosen


def has_far_infimum(X, y, weight, has_intercept):
    """Whether scores of some rows with the target 0 can sink, and no other score changes."""
    X, y = of_some_weight(X, y, weight, has_intercept)
    zero, above = X[y == 0], X[y > 0]
    if not len(zero):
        return False
    found = linprog(
        zero.sum(axis=0),
        A_ub=zero,
        b_ub=np.zeros(len(zero)),
        A_eq=above,
        b_eq=np.zeros(len(above)),
        bounds=(-1, 1),
    )
    return -found.fun > 1e-6


def fitted_numbers(loss, X, y, weight=None, **arguments):
    """Return the model, and whether it says that there is no optimum; both in the same way."""
    model = GLMRegressor(loss, alpha=0, random_state=0, **arguments)
    told = warnings_of(model, X, y, weight)
    assert len(told) == (model.stop_reason_ == StopReason.UNBOUNDED_AT_ZERO.value)
    assert all("GLMRegressor found no finite optimum: predictions" in line for line in told)
    assert all("give a penalty, such as alpha=1e-6" in line for line in told)
    return model, bool(told)


@pytest.mark.slow
@pytest.mark.parametrize("loss", ["poisson", "tweedie"])
def test_what_is_told_of_targets_of_0_is_what_a_linear_program_finds(loss):
    told = []
    for seed in range(100):
        rng = np.random.default_rng(seed)
        X = random_rows(rng, seed)
        n = len(X)
        scores = X / np.maximum(X.std(axis=0), 1e-3) @ rng.normal(size=X.shape[1])
        y = 1.0 * rng.poisson(np.exp(np.clip(scores * rng.uniform(0.1, 1) - 2, -20, 4)))
        weight = rng.integers(0, 4, n) * 1.0 if seed % 3 == 0 else None
        if not (y if weight is None else weight * y).any():
            y[0], weight = 1, None
        X, has_intercept = X * 10.0 ** rng.uniform(-3, 6, X.shape[1]), bool(seed % 4)
        _, is_told = fitted_numbers(loss, X, y, weight, fit_intercept=has_intercept)
        assert is_told == has_far_infimum(X, y, weight, has_intercept), seed
        told.append(is_told)
    assert 20 <= sum(told) <= 80


@pytest.mark.parametrize("kind", ["dense", "sparse", "chunks"])
@pytest.mark.parametrize("loss", ["poisson", "tweedie"])
def test_a_category_without_claims(kind, loss):
    rng = np.random.default_rng(0)
    category = np.sort(rng.integers(0, 12, 4000))
    X = np.column_stack([np.eye(12)[category], rng.normal(size=(4000, 2)) * [1e-4, 1e5]])
    y = rng.poisson(np.exp(-1.5 + X[:, 12] * 3e3)) * 1.0
    y[category == 4] = 0
    with_one = y.copy()
    with_one[np.flatnonzero(category == 4)[7]] = 1
    make = {
        "dense": lambda x: x,
        "sparse": sparse.csr_array,
        "chunks": lambda x: Chunks([x[:1500], x[1500:]]),
    }[kind]
    model, is_told = fitted_numbers(loss, make(X), y)
    assert is_told
    assert not fitted_numbers(loss, make(X), with_one)[1]
    with pytest.raises(ValueError, match="infinite coefficients"):
        model.covariance(X, y)
    with pytest.warns(ConvergenceWarning, match="leave 0 out of alphas"):
        GLMRegressorCV(loss, alphas=[0, 1e-3], cv=2).fit(X, y)


@pytest.mark.parametrize("classes", [0, 2, 4])
def test_a_column_is_found_among_more_than_a_linear_program_has(classes, monkeypatch):
    monkeypatch.setattr(separation, "_MOST_WEIGHTS", 0)
    rng = np.random.default_rng(0)
    category = rng.integers(0, 40, 3000)
    X = sparse.csr_array(np.eye(40)[category])
    y = rng.poisson(1.0, 3000) * 1.0 if classes == 0 else rng.integers(0, classes, 3000)
    weight = np.ones(3000)

    def is_told():
        if classes == 0:
            return fitted_numbers("poisson", X, y, weight)[1]
        return fitted(X, y, weight)[1]

    assert not is_told()
    here = category == 7
    # All of one class, or in one of several not at all, but for a row without weight.
    y[here & (y == 1) if classes == 4 else here] = 0
    y[np.flatnonzero(here)[0]], weight[np.flatnonzero(here)[0]] = 1, 0
    assert is_told()
    X = -X.toarray()
    assert is_told()
