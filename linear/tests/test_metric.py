"""Metrics and their measured constants against dense linear algebra."""

import numpy as np
import pytest
import scipy.linalg
from linear_oracle import LOSSES, NAMES, Dense, curvatures, prepared, problem_of, to_columns
from provenglm.epochs import Curvature
from provenglm.losses import Logistic, Poisson, Softmax, Squared
from provenglm.metric import DiagonalMetric, HessianMetric
from provenglm.newton import factor

MANY = pytest.mark.parametrize("loss", LOSSES, ids=NAMES)


def case(loss, weights=False, l2=1e-2, p=3):
    """A curvature of all rows at a point, with the dense problem and the point."""
    problem = problem_of(loss, n=80, p=p, l2=l2, weights=weights, scales=(-1, 1))
    objective, null, sample = prepared(problem)
    theta = null.theta + 0.1
    dense = Dense.of(problem, objective.scaling.center, objective.scaling.inverse)
    return objective, sample, Curvature(sample, theta), dense, theta


def random_like(theta, seed=0):
    return np.random.default_rng(seed).normal(size=theta.shape)


@pytest.mark.parametrize("shape", [(4,), (4, 3)])
def test_metrics_divide(shape):
    rng = np.random.default_rng(0)
    gradient = rng.normal(size=shape)
    half = rng.normal(size=(gradient.size, gradient.size))
    matrix = half @ half.T + np.eye(len(half))
    step = HessianMetric(factor(matrix.copy(), 0.0)).solve(gradient)
    np.testing.assert_allclose(step.ravel(), np.linalg.solve(matrix, gradient.ravel()), rtol=1e-9)
    diagonal = rng.random(shape) + 0.5
    np.testing.assert_allclose(DiagonalMetric(1 / diagonal).solve(gradient), gradient / diagonal)


@pytest.mark.parametrize("weights", [False, True])
@MANY
def test_hessian_of_a_sample(loss, weights):
    _, sample, _, dense, theta = case(loss, weights)
    scores = sample.rows @ theta
    hessian = dense.hessian(to_columns(theta))
    if loss.name == "huber":
        # What stands for the curvature where there is none.
        weight = np.maximum(loss.curvature(scores, sample.target), 1e-3)
        hessian = (dense.X.T * (weight * dense.share)) @ dense.X + np.diag(dense.penalty)
    np.testing.assert_allclose(sample.hessian(scores), hessian, atol=1e-12)


@pytest.mark.parametrize("weights", [False, True])
@MANY
def test_products_with_the_hessian(loss, weights):
    _, _, curvature, dense, theta = case(loss, weights)
    vector = random_like(theta)
    exact = dense.hessian(to_columns(theta)) @ vector.ravel()
    got = curvature.times(vector).ravel()
    # In float32.
    assert np.abs(got - exact).max() < 1e-5 * np.abs(exact).max()


def inverse_root(metric, theta):
    """The matrix of the metric's inverse, and its square root."""
    columns = [metric.solve(unit.reshape(theta.shape)).ravel() for unit in np.eye(theta.size)]
    inverse = np.array(columns)
    values, vectors = np.linalg.eigh((inverse + inverse.T) / 2)
    return inverse, vectors * np.sqrt(np.maximum(values, 0)) @ vectors.T


@pytest.mark.parametrize("kind", ["identity", "diagonal", "hessian"])
@MANY
def test_smoothness_is_exact_with_as_many_steps_as_weights(loss, kind):
    objective, sample, curvature, dense, theta = case(loss)
    hessian = dense.hessian(to_columns(theta))
    metric = metric_of(kind, objective, curvature, sample, theta)
    gradient = random_like(theta, 1)
    if loss.name == "softmax":
        # Ten steps do not reach the end of twelve weights; the common shift has no curvature.
        gradient -= gradient.mean(axis=1, keepdims=True)
    smoothness = curvature.smoothness(metric, gradient)
    _, root = inverse_root(metric, theta)
    largest = np.linalg.eigvalsh(root @ hessian @ root).max()
    tol = 1e-3 if loss.name != "softmax" else 0.05
    # Where all is gained early, further steps are rounding, of float32, and only add to it.
    above = 1.3 if kind == "hessian" else 1 + tol
    assert (1 - tol) * largest < smoothness < above * largest


def metric_of(kind, objective, curvature, sample, theta):
    if kind == "hessian":
        matrix = sample.hessian(sample.rows @ theta)
        return HessianMetric(factor(matrix + 1e-3 * np.eye(len(matrix)), 1e-10))
    return curvature.metric(kind, objective.scaling)


def largest_ritz(matrix, start, steps):
    """The largest eigenvalue within the span of start, A start, A^2 start, ..."""
    columns = [start]
    for _ in range(steps - 1):
        columns.append(matrix @ columns[-1])
    basis = scipy.linalg.orth(np.array([c / np.linalg.norm(c) for c in columns]).T)
    return np.linalg.eigvalsh(basis.T @ matrix @ basis).max()


def test_smoothness_of_few_steps_is_the_best_of_the_krylov_space(monkeypatch):
    monkeypatch.setattr("provenglm.epochs._LANCZOS", 3)
    objective, _, curvature, dense, theta = case(Squared(), p=8)
    hessian = dense.hessian(to_columns(theta))
    gradient = random_like(theta, 1)
    for kind in ("identity", "diagonal"):
        metric = curvature.metric(kind, objective.scaling)
        _, root = inverse_root(metric, theta)
        smoothness = curvature.smoothness(metric, gradient)
        matrix = root @ hessian @ root
        ritz = largest_ritz(matrix, root @ gradient, 3)
        assert smoothness == pytest.approx(ritz, rel=1e-4)
        largest = np.linalg.eigvalsh(matrix).max()
        # A Ritz value is never above the largest eigenvalue.
        assert 0.3 * largest < smoothness <= largest * (1 + 1e-5)


def test_smoothness_of_no_gradient():
    objective, _, curvature, _, theta = case(Squared())
    metric = curvature.metric("diagonal", objective.scaling)
    assert curvature.smoothness(metric, np.zeros_like(theta)) == 1.0


def test_diagonal_metric_is_the_diagonal():
    objective, _, curvature, dense, theta = case(Logistic())
    metric = curvature.metric("diagonal", objective.scaling)
    diagonal = dense.hessian(to_columns(theta)).diagonal()
    # Of the data's part a thousandth of its mean more.
    more = 1e-3 * (diagonal - dense.penalty).mean()
    np.testing.assert_allclose(1 / metric.inverse, diagonal + more, rtol=1e-5)


@pytest.mark.parametrize("loss", [Logistic(), Softmax(3)], ids=["logistic", "softmax"])
def test_identity_metric_is_that_of_the_users_weights(loss):
    # The step of the user's weights is the gradient with respect to them times one number.
    objective, _, curvature, _, theta = case(loss)
    metric = curvature.metric("identity", objective.scaling)
    step = metric.solve(random_like(theta))
    # d F / d W = (d F / d theta) d, and dW = d theta / d.
    gradient_of_user = (random_like(theta)[:-1].T / objective.scaling.inverse).T
    step_of_user, _ = objective.scaling.to_user(step)
    ratio = step_of_user / gradient_of_user
    assert ratio.std() < 1e-12 * abs(ratio.mean())


@pytest.mark.parametrize("metric_name", ["diagonal", "hessian"])
@pytest.mark.parametrize("weights", [False, True])
@pytest.mark.parametrize("loss", [Logistic(), Squared(), Poisson()], ids=lambda one: one.name)
def test_largest_of_a_row(loss, weights, metric_name):
    objective, sample, curvature, dense, theta = case(loss, weights)
    metric = metric_of(metric_name, objective, curvature, sample, theta)
    inverse, _ = inverse_root(metric, theta)
    h = curvatures(loss, dense.scores(to_columns(theta)), dense.target)[:, 0, 0]
    # A row stands for share x n of the mean: its own Hessian is n s_i l'' x x^T.
    naive = len(h) * dense.share * h * np.einsum("ia,ab,ib->i", dense.X, inverse, dense.X)
    assert curvature.largest_of_a_row(metric) == pytest.approx(naive.max(), rel=1e-5)


@pytest.mark.parametrize("weights", [False, True])
def test_largest_of_a_row_of_softmax_is_a_bound(weights):
    objective, _, curvature, dense, theta = case(Softmax(3), weights)
    metric = curvature.metric("diagonal", objective.scaling)
    _, root = inverse_root(metric, theta)
    h = curvatures(Softmax(3), dense.scores(theta), dense.target)
    of_rows = [
        np.linalg.eigvalsh(root @ np.kron(np.outer(x, x), of_row) @ root).max() * s * len(dense.X)
        for x, of_row, s in zip(dense.X, h, dense.share, strict=True)
    ]
    bound = curvature.largest_of_a_row(metric)
    assert max(of_rows) <= bound * (1 + 1e-5)
    # Of the right size: Gershgorin's circles and the largest metric cost a factor of a few.
    assert bound < 6 * max(of_rows)
