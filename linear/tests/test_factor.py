"""Systems over some rows of a matrix, whose factor is that of nearly the same rows."""

import numpy as np
import pytest
from provenglm import constants
from provenglm.methods.factor import Factor


def matrix_of(m, rng):
    A = rng.normal(size=(3 * m, m)) * 10.0 ** rng.uniform(-2, 2, m)
    return A.T @ A


@pytest.mark.parametrize("part", [0.0, 0.5, 10.0])
def test_systems_whose_rows_join_and_leave(monkeypatch, part):
    monkeypatch.setattr(constants, "CHANGED_ROWS", part)
    rng = np.random.default_rng(0)
    whole, factor = matrix_of(30, rng), Factor()
    for count in (20, 20, 20, 30, 30):
        H = whole[:count, :count]
        rows = np.flatnonzero(rng.random(count) < 0.8)
        right = np.zeros(count)
        right[rows] = rng.normal(size=len(rows))
        expected = np.zeros(count)
        expected[rows] = np.linalg.solve(H[np.ix_(rows, rows)], right[rows])
        found, is_regular = factor.solve(H, rows, right)
        assert is_regular
        np.testing.assert_allclose(found, expected, rtol=1e-7, atol=1e-9 * np.abs(expected).max())


def test_no_rows_are_no_system():
    found, is_regular = Factor().solve(np.eye(3), np.zeros(0, np.intp), np.zeros(3))
    assert is_regular
    assert not found.any()


def test_an_equal_column_that_joins():
    # The small system is singular but for rounding.
    rng = np.random.default_rng(0)
    A = rng.normal(size=(60, 20))
    A[:, 19] = A[:, 4]
    H, factor = A.T @ A, Factor()
    factor.solve(H, np.arange(19), rng.normal(size=20) * (np.arange(20) < 19))
    x = rng.normal(size=20)
    found, _ = factor.solve(H, np.arange(20), H @ x)
    np.testing.assert_allclose(H @ found, H @ x, rtol=1e-8, atol=1e-8)
