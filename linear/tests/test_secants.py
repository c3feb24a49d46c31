"""The two loops of L-BFGS against the update of the whole inverse matrix."""

from dataclasses import dataclass

import numpy as np
import pytest
from linear_oracle import bfgs, ridged
from provenglm.methods.secants import Secants
from provenglm.model.cholesky import CholeskyMetric


@dataclass
class DiagonalMetric:
    inverse: np.ndarray

    def solve(self, gradient):
        return gradient * self.inverse


def pairs_of(shape, count, seed=0):
    rng = np.random.default_rng(seed)
    size = int(np.prod(shape))
    half = rng.normal(size=(size, size))
    hessian = half @ half.T / size + 0.1 * np.eye(size)
    steps = rng.normal(size=(count, *shape))
    return [(step, (hessian @ step.ravel()).reshape(shape)) for step in steps]


@pytest.mark.parametrize("count", [0, 1, 3, 20, 24])
@pytest.mark.parametrize("shape", [(5,), (4, 3)])
def test_two_loops(shape, count):
    rng = np.random.default_rng(1)
    diagonal = rng.random(shape) + 0.5
    secants, pairs = Secants(), pairs_of(shape, count)
    for pair in pairs:
        secants.add(*pair)
    gradient = rng.normal(size=shape)
    before = gradient.copy()
    got = secants.solve(DiagonalMetric(diagonal), gradient)
    # The last twenty.
    exact = bfgs(np.diag(diagonal.ravel()), pairs[-20:]) @ gradient.ravel()
    np.testing.assert_allclose(got.ravel(), exact, rtol=1e-9, atol=1e-9 * np.abs(exact).max())
    assert np.array_equal(gradient, before)


def test_the_last_pair_is_solved_exactly():
    secants, pairs = Secants(), pairs_of((5,), 4)
    for pair in pairs:
        secants.add(*pair)
    step, change = pairs[-1]
    np.testing.assert_allclose(secants.solve(DiagonalMetric(np.ones(5)), change), step, rtol=1e-9)


def test_on_top_of_a_hessian():
    half = np.random.default_rng(0).normal(size=(5, 5))
    matrix = half @ half.T + np.eye(5)
    secants, pairs = Secants(), pairs_of((5,), 2)
    for pair in pairs:
        secants.add(*pair)
    gradient = np.arange(5.0)
    np.testing.assert_allclose(
        secants.solve(CholeskyMetric(matrix.copy(), is_exact=True), gradient),
        bfgs(np.linalg.inv(ridged(matrix, 1e-12)), pairs) @ gradient,
        rtol=1e-9,
    )


@pytest.mark.parametrize("change", [[-1.0, 0.0], [0.0, 1.0], [np.nan, 0.0]])
def test_a_pair_without_curvature_is_not_taken(change):
    secants, ones = Secants(), DiagonalMetric(np.ones(2))
    secants.add(np.array([1.0, 0.0]), np.array(change))
    assert secants.solve(ones, np.array([3.0, 4.0])).tolist() == [3.0, 4.0]


def test_clear():
    secants, ones = Secants(), DiagonalMetric(np.ones(5))
    secants.add(*pairs_of((5,), 1)[0])
    assert secants.solve(ones, np.ones(5)).tolist() != [1.0] * 5
    secants.clear()
    assert secants.solve(ones, np.ones(5)).tolist() == [1.0] * 5
