"""A sample that stays sparse is the dense one, product by product."""

from dataclasses import replace

import numpy as np
import pytest
from linear_oracle import LOSSES, NAMES, problem_of
from provenglm import constants
from provenglm.model.csr_sample import CenteredRows, column_moments, size as size_of
from provenglm.model.losses import Logistic, Softmax
from provenglm.model.sampling import _dense_column_moments, prepare
from provenglm.model.solution import Settings
from provenglm.plan import choose
from provenglm.solve import solve
from provenglm.workers import Workers
from scipy.sparse import csr_array

RNG = np.random.default_rng(0)


def columns(n=200, p=7, offset=0.0):
    """Of which one is full, one empty, and one in other units."""
    X = (RNG.normal(size=(n, p)) + offset) * (RNG.random((n, p)) < 0.3)
    X[:, 1] = RNG.normal(size=n) + 100
    X[:, 2] = 0
    X[:, 3] *= 1e6
    return X


@pytest.mark.parametrize("intercept", [True, False])
def test_products(intercept):
    X = columns()
    center, inverse = X.mean(axis=0), 1 / np.maximum(X.std(axis=0), 1e-3)
    rows = CenteredRows(csr_array(X), center, inverse, intercept)
    dense = np.column_stack([(X - center) * inverse, np.full(200, float(intercept))])
    assert rows.shape == dense.shape
    assert len(rows) == len(rows[:200]) == 200
    for outputs in (1, 3):
        theta, residual = RNG.normal(size=(8, outputs)), RNG.normal(size=(200, outputs))
        np.testing.assert_allclose(rows @ theta, dense @ theta, atol=1e-10)
        np.testing.assert_allclose(rows[:50] @ theta, dense[:50] @ theta, atol=1e-10)
        np.testing.assert_allclose(rows.products(residual), dense.T @ residual, atol=1e-10)
    for weight in (RNG.random(200), RNG.normal(size=200)):
        gram = rows.gram(weight, Workers(1))
        np.testing.assert_allclose(gram, (dense.T * weight) @ dense, atol=1e-8)
        np.testing.assert_allclose(gram, gram.T, atol=1e-11)


@pytest.mark.parametrize("intercept", [True, False])
def test_spread(intercept):
    X, share = columns(), RNG.random(200)
    share /= share.sum()
    found = column_moments(csr_array(X), share, intercept)
    expected = _dense_column_moments(X, share, intercept, Workers(0))
    # The units differ; the numbers in them do not.
    for power, name in ((1, "mean"), (2, "square"), (4, "fourth")):
        one, other = (getattr(each, name) * each.unit**power for each in (found, expected))
        np.testing.assert_allclose(one, other, rtol=1e-11)


def sparse_problem(loss, n=800, p=60, **arguments):
    problem = problem_of(loss, n=n, p=p, **arguments)
    X = problem.features * (np.random.default_rng(1).random((n, p)) < 0.03)
    return replace(problem, features=csr_array(X)), replace(problem, features=X)


@pytest.mark.parametrize("loss", LOSSES, ids=NAMES)
def test_hessian(loss):
    problem, dense = sparse_problem(loss, weights=True)
    samples = []
    for each in (problem, dense):
        rng = np.random.default_rng(0)
        _, sample = prepare(each, Workers(0), 300, rng, keeps_sparse=True)
        samples.append(sample)
    assert isinstance(samples[0].rows, CenteredRows)
    theta = 0.1 * RNG.normal(size=(61, loss.outputs))
    scores = samples[1].rows @ theta
    np.testing.assert_array_equal(samples[0].rare, samples[1].rare)
    for ask in ("hessian", "gradient"):
        given = (scores,) if ask == "hessian" else (theta, scores)
        one, other = (getattr(sample, ask)(*given) for sample in samples)
        np.testing.assert_allclose(one, other, atol=1e-12 * np.abs(other).max())
    head, peer = (sample.head(100) for sample in samples)
    np.testing.assert_allclose(head.hessian(scores[:100]), peer.hessian(scores[:100]), atol=1e-9)


@pytest.mark.parametrize("loss", LOSSES, ids=NAMES)
def test_the_same_optimum(monkeypatch, loss):
    monkeypatch.setattr("provenglm.constants.SMALL_DATA", 0)
    problem, dense = sparse_problem(loss, l2=1e-2)
    assert choose(problem, only="sampled-newton").row.keeps_sparse
    one = solve(problem, Settings(tol=1e-13, method="sampled-newton"))
    monkeypatch.setattr("provenglm.constants.SMALL_DATA", 8_000_000)
    other = solve(dense, Settings(tol=1e-13, method="newton-cholesky"))
    np.testing.assert_allclose(one.coef, other.coef, atol=1e-6 * np.abs(other.coef).max())


def test_size():
    def size(n, p, density, outputs=1):
        features = csr_array((n, p))
        features.data = np.broadcast_to(1.0, int(n * p * density))  # nothing else is read
        return size_of(features, outputs, 40_000)

    # Of data that are hardly sparse as of dense ones, as far as they fit.
    assert size(100_000, 500, 0.3) == 40_000
    assert size(100_000, 2000, 0.3) == constants.SAMPLE_NUMBERS // 2001
    # Of sparse ones at least ten rows a feature, and no more than there are.
    assert size(100_000, 1000, 0.02) == 10_000
    assert size(100_000, 100, 0.02) > 40_000
    assert size(3000, 500, 0.02) == 3000
    assert size(100_000, 100, 0.02, outputs=9) < size(100_000, 100, 0.02)


@pytest.mark.parametrize("loss", [Logistic(), Softmax(3)], ids=["logistic", "softmax"])
def test_prefixes_of_a_sample(monkeypatch, loss):
    # A run begins at the optimum of a part of its sample.
    monkeypatch.setattr("provenglm.constants.SMALL_DATA", 0)
    problem, _ = sparse_problem(loss, n=30_000, p=40, l2=1e-4)
    seen = []
    solution = solve(problem, Settings(watch=seen.append, method="sampled-newton"))
    assert solution.reason.is_success
    null = -np.log(1 / max(2, loss.outputs))
    assert seen[0].objective < null


@pytest.mark.parametrize("exponent", [-200, -60, 0, 60, 130])
def test_spread_of_extreme_scales(exponent):
    X, share = RNG.normal(size=(200, 3)), np.full(200, 1 / 200)
    scale = np.array([10.0**exponent, 1.0, 0.0])
    found, expected = (
        _dense_column_moments(X * scale, share, True, Workers(0)),
        _dense_column_moments(X, share, True, Workers(0)),
    )
    np.testing.assert_allclose(found.mean * found.unit, expected.mean * scale, rtol=1e-11)
    kept = scale > 0
    ratio = found.unit[kept] / scale[kept]
    np.testing.assert_allclose(found.square[kept] * ratio**2, expected.square[kept], rtol=1e-11)
    np.testing.assert_allclose(found.fourth[kept] * ratio**4, expected.fourth[kept], rtol=1e-11)
    assert found.square[2] == 0
