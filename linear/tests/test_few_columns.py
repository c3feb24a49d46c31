"""Lasso and elastic net of up to 300 dense columns: a few are tried first, else all are taken."""

import numpy as np
import pytest
from provenglm import constants
from provenglm.methods import descent
from provenglm.model.losses import Squared
from provenglm.model.problem import Problem
from provenglm.model.solution import Settings
from provenglm.solve import Session, solve
from sklearn.linear_model import ElasticNet

N, P = 600, 120


@pytest.fixture
def made(monkeypatch):
    """Return the lists of features whose Hessian was made as a whole."""
    lists, of_losses = [], descent._loss_hessian

    def noted(objective, chosen, curvature):
        lists.append(chosen)
        return of_losses(objective, chosen, curvature)

    monkeypatch.setattr(descent, "_loss_hessian", noted)
    return lists


def problem_of(used, ratio, intercept=True, l1_ratio=1.0, kind="float64"):
    """Return a problem whose first `used` features matter, at a part of the greatest penalty."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(N, P)) + 0.5 * rng.normal(size=(N, 1)) + rng.normal(size=P)
    X[:, -1] = 2.0
    y = X[:, :used] @ rng.normal(size=used) + rng.normal(size=N) + 3
    X = np.asarray(X, kind.split()[0], order="F" if kind.endswith("F") else "C")
    moved = (X - X.mean(axis=0), y - y.mean()) if intercept else (X, y)
    alpha = ratio * np.abs(moved[0].T @ moved[1]).max() / N / l1_ratio
    l2 = (1 - l1_ratio) * alpha
    return Problem(X, y, Squared(), l2, fit_intercept=intercept, l1=l1_ratio * alpha)


def expected(problem):
    alpha = problem.l1 + problem.l2
    model = ElasticNet(
        alpha=alpha,
        l1_ratio=problem.l1 / alpha,
        fit_intercept=problem.fit_intercept,
        tol=1e-14,
        max_iter=100_000,
    )
    return model.fit(problem.features.astype(np.float64), problem.target).coef_


@pytest.mark.parametrize("kind", ["float64", "float64 F", "float32"])
@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("l1_ratio", [1.0, 0.5])
def test_few_that_matter_are_found_without_the_hessian_of_all(made, kind, intercept, l1_ratio):
    problem = problem_of(3, 0.2, intercept, l1_ratio, kind)
    solution = solve(problem, Settings())
    assert solution.reason.is_success
    assert np.abs(solution.coef[:, 0] - expected(problem)).max() < 1e-7
    assert 0 < np.count_nonzero(solution.coef) < constants.FEW_JOINING
    assert made == []


@pytest.mark.parametrize("intercept", [True, False])
def test_all_are_taken_where_many_matter(made, intercept):
    problem = problem_of(100, 0.001, intercept)
    solution = solve(problem, Settings())
    assert solution.reason.is_success
    assert np.abs(solution.coef[:, 0] - expected(problem)).max() < 1e-7
    # All but a constant column beside an intercept.
    assert [len(chosen) for chosen in made] == [P - intercept]


def test_the_hessian_of_a_squared_loss_is_made_once_for_a_path(made):
    problem = problem_of(100, 0.001)
    session = Session(problem, Settings())
    with session.running():
        for part in (1.0, 0.5, 0.1):
            l1, l2 = part * problem.l1, 1e-3 * part
            found = session.solve(l2=l2, l1=l1)
            alone = Problem(problem.features, problem.target, Squared(), l2, l1=l1)
            assert found.reason.is_success
            assert np.abs(found.coef[:, 0] - expected(alone)).max() < 1e-7
    assert len(made) == 1


def test_columns_that_hardly_vary_in_the_rows_of_the_coordinates(monkeypatch):
    """Such as marks of a few rows: whatever the rows say of them, their coefficients are right."""
    monkeypatch.setattr(constants, "MEASURED_ROWS", 16)
    rng = np.random.default_rng(1)
    X = (rng.random((N, 40)) < 0.02).astype(float)
    X[:, :5] = rng.standard_t(2, (N, 5))
    y = X @ rng.normal(size=40) + 0.1 * rng.normal(size=N)
    problem = Problem(X, y, Squared(), 0.0, l1=1e-3)
    solution = solve(problem, Settings())
    assert solution.reason.is_success
    assert np.abs(solution.coef[:, 0] - expected(problem)).max() < 1e-6
    assert np.count_nonzero(solution.coef[5:]) > 20
