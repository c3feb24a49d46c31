"""Factors of a Hessian, and that of a sample, against dense linear algebra."""

import numpy as np
import pytest
from linear_oracle import LOSSES, NAMES, Dense, prepared, problem_of
from provenglm.model.cholesky import CholeskyMetric, factor, inverse

MANY = pytest.mark.parametrize("loss", LOSSES, ids=NAMES)


def case(loss, weights=False, l2=1e-2, p=3):
    """A sample of all rows, with the dense problem and a point."""
    problem = problem_of(loss, n=80, p=p, l2=l2, weights=weights, scales=(-1, 1))
    objective, null, sample = prepared(problem)
    theta = null.theta + 0.1
    dense = Dense.of(problem, objective.scaling.center, objective.scaling.inverse)
    return sample, dense, theta


@pytest.mark.parametrize("shape", [(4,), (4, 3)])
@pytest.mark.parametrize(("is_exact", "ridge"), [(True, 0.0), (False, 1e-10)])
def test_a_gradient_is_divided_by_the_matrix_and_its_ridge(shape, is_exact, ridge):
    rng = np.random.default_rng(0)
    gradient = rng.normal(size=shape)
    half = rng.normal(size=(gradient.size, gradient.size))
    matrix = half @ half.T + np.eye(len(half))
    step = CholeskyMetric(matrix.copy(), is_exact).solve(gradient)
    matrix += ridge * np.diag(matrix.diagonal())
    expected = np.linalg.solve(matrix, gradient.ravel())
    np.testing.assert_allclose(step.ravel(), expected, rtol=1e-13 * np.linalg.cond(matrix))


def test_the_inverse_has_1_where_the_diagonal_is_0():
    half = np.random.default_rng(0).normal(size=(5, 5)) * 10.0 ** np.arange(-4, 6, 2)
    matrix = half.T @ half
    matrix[2] = matrix[:, 2] = 0
    found = inverse(matrix.copy())
    others = [0, 1, 3, 4]
    scale = 1 / np.sqrt(matrix.diagonal()[others])
    scaled = matrix[np.ix_(others, others)] * np.outer(scale, scale)
    expected = np.linalg.inv(scaled) * np.outer(scale, scale)
    np.testing.assert_allclose(found[np.ix_(others, others)], expected, rtol=1e-7)
    np.testing.assert_allclose([found[2], found[:, 2]], [[0, 0, 1, 0, 0]] * 2, rtol=1e-9)


def test_a_factor_takes_the_ridge_that_it_needs():
    singular = np.ones((4, 4))
    chol = factor(singular.copy(), 1e-18)
    lower = np.tril(chol[0])
    np.testing.assert_allclose(lower @ lower.T, singular, atol=1e-6)


def test_a_factor_of_what_is_not_finite():
    with pytest.raises(FloatingPointError, match="is not finite"):
        factor(np.full((3, 3), np.nan))


@pytest.mark.parametrize("weights", [False, True])
@MANY
def test_hessian_of_a_sample(loss, weights):
    sample, dense, theta = case(loss, weights)
    scores = sample.rows @ theta
    hessian = dense.hessian(theta)
    if loss.name == "huber":
        # What stands for the curvature where there is none.
        weight = np.maximum(loss.curvature(scores, sample.target), 1e-3)[:, 0]
        hessian = (dense.X.T * (weight * dense.share)) @ dense.X + np.diag(dense.penalty)
    np.testing.assert_allclose(sample.hessian(scores), hessian, atol=1e-12)
