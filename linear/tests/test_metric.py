"""The metric of a sample's Hessian against dense linear algebra."""

import numpy as np
import pytest
from linear_oracle import LOSSES, NAMES, Dense, prepared, problem_of, to_columns
from provenglm.methods.metric import HessianMetric
from provenglm.methods.newton import factor

MANY = pytest.mark.parametrize("loss", LOSSES, ids=NAMES)


def case(loss, weights=False, l2=1e-2, p=3):
    """A sample of all rows, with the dense problem and a point."""
    problem = problem_of(loss, n=80, p=p, l2=l2, weights=weights, scales=(-1, 1))
    objective, null, sample = prepared(problem)
    theta = null.theta + 0.1
    dense = Dense.of(problem, objective.scaling.center, objective.scaling.inverse)
    return sample, dense, theta


@pytest.mark.parametrize("shape", [(4,), (4, 3)])
def test_metrics_divide(shape):
    rng = np.random.default_rng(0)
    gradient = rng.normal(size=shape)
    half = rng.normal(size=(gradient.size, gradient.size))
    matrix = half @ half.T + np.eye(len(half))
    step = HessianMetric(factor(matrix.copy(), 0.0)).solve(gradient)
    np.testing.assert_allclose(step.ravel(), np.linalg.solve(matrix, gradient.ravel()), rtol=1e-9)


@pytest.mark.parametrize("weights", [False, True])
@MANY
def test_hessian_of_a_sample(loss, weights):
    sample, dense, theta = case(loss, weights)
    scores = sample.rows @ theta
    hessian = dense.hessian(to_columns(theta))
    if loss.name == "huber":
        # What stands for the curvature where there is none.
        weight = np.maximum(loss.curvature(scores, sample.target), 1e-3)
        hessian = (dense.X.T * (weight * dense.share)) @ dense.X + np.diag(dense.penalty)
    np.testing.assert_allclose(sample.hessian(scores), hessian, atol=1e-12)
