"""The working set: its columns, their Hessian as a matrix and as products, and who is chosen."""

import numpy as np
import pytest
from provenglm.l1 import working_set
from provenglm.l1.quadratic import Matrix, Products
from provenglm.l1.working_set import Columns, choose
from provenglm.losses import Logistic, Poisson, Softmax, Squared
from provenglm.problem import Problem
from provenglm.sampling import prepare
from provenglm.workers import Workers
from scipy.sparse import csr_array

LOSSES = [Logistic(), Softmax(3), Squared(), Poisson()]


def objective_of(loss, intercept=True, l1=0.02, kind="dense"):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 8)) + rng.normal(size=8)
    X = csr_array(X) if kind == "sparse" else X
    y = rng.integers(0, max(2, loss.outputs), 60)
    weight = rng.integers(1, 4, 60).astype(float)
    problem = Problem(X, y, loss, 0.1, weight, intercept, l1=l1)
    return prepare(problem, Workers(1), 60, rng, precise=True)[0]


def point_of(columns, intercept=True):
    outputs = columns.sample.loss.outputs
    shape = (len(columns.l1), *([outputs] if outputs > 1 else []))
    theta = np.random.default_rng(1).normal(size=shape) / 3
    if not intercept:
        theta[-1] = 0
    return theta


@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("kind", ["dense", "sparse"])
@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.name)
def test_columns_are_the_objective_of_some_features(loss, kind, intercept):
    objective = objective_of(loss, intercept, kind=kind)
    chosen = np.array([1, 2, 5])
    columns = Columns.of(objective, chosen)
    theta = point_of(columns, intercept)
    whole = np.zeros((9, *theta.shape[1:]))
    whole[np.append(chosen, 8)] = theta
    snapshot = objective.snapshot(whole)
    scores = columns.scores(theta)
    assert np.allclose(scores, snapshot.scores, atol=1e-12)
    l1 = objective.l1.reshape(-1, *[1] * (theta.ndim - 1))
    value = columns.value(theta, scores) + (l1 * np.abs(whole)).sum()
    assert value == pytest.approx(snapshot.objective, rel=1e-12)
    expected = snapshot.gradient[np.append(chosen, 8)]
    assert np.allclose(columns.gradient(theta, scores), expected, atol=1e-12)


@pytest.mark.parametrize("form", [Matrix, Products])
@pytest.mark.parametrize("kind", ["dense", "sparse"])
@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.name)
def test_the_hessian_is_the_gradient_s_difference(loss, kind, form, monkeypatch):
    if form is Products:
        monkeypatch.setattr(working_set, "_MOST_WEIGHTS", 0)
    chosen = np.array([0, 3, 4, 7])
    columns = Columns.of(objective_of(loss, kind=kind), chosen)
    theta = point_of(columns)
    quadratic = columns.quadratic(columns.scores(theta), 0.0)
    assert isinstance(quadratic, form) or (kind == "sparse" and loss.outputs > 1)
    way = np.random.default_rng(2).normal(size=theta.shape)

    def gradient(length):
        at = theta + length * way
        return columns.gradient(at, columns.scores(at)).ravel()

    difference = (gradient(1e-5) - gradient(-1e-5)) / 2e-5
    assert np.allclose(quadratic.times(way.ravel()), difference, rtol=1e-6, atol=1e-8)
    right = quadratic.times(way.ravel())
    free = np.ones(way.size, bool)
    solved = quadratic.solve(free, right, np.zeros(way.size))
    # Softmax is the same for a shift of all intercepts.
    left = quadratic.times(solved) - right
    assert np.abs(left).max() < (1e-9 if form is Matrix and kind == "dense" else 0.1)
    steepest = columns.steepest()
    dense = Columns.of(objective_of(loss), chosen).sample
    assert np.allclose(steepest, dense.share @ dense.rows**2)


@pytest.mark.parametrize("kind", ["dense", "sparse"])
def test_with_caution_the_quadratic_lies_above_the_objective(kind):
    columns = Columns.of(objective_of(Logistic(), kind=kind), np.arange(8))
    rng = np.random.default_rng(3)
    for size in (0.01, 1.0, 10.0):
        theta = point_of(columns) * size
        scores = columns.scores(theta)
        value, gradient = columns.value(theta, scores), columns.gradient(theta, scores)
        quadratic = columns.quadratic(scores, 1.0)
        for far in (1e-2, 1.0, 30.0):
            way = far * rng.normal(size=theta.shape)
            model = value + gradient @ way + 0.5 * way @ quadratic.times(way)
            there = columns.value(theta + way, columns.scores(theta + way))
            assert there <= model + 1e-9 * abs(model)


def test_those_with_coefficients_and_the_worst_of_the_others(monkeypatch):
    objective = objective_of(Squared(), l1=1e-6)
    monkeypatch.setattr(working_set, "_LEAST", 2)
    theta = np.zeros(9)
    theta[3] = 0.1
    snapshot = objective.snapshot(theta)
    assert np.array_equal(choose(objective, snapshot), np.arange(8))  # so few: all of them
    monkeypatch.setattr(working_set, "_ALL", 0)
    excess = np.abs(snapshot.gradient[:-1])
    excess[3] = 0
    expected = np.sort(np.append(np.argsort(-excess)[:2], 3))
    assert np.array_equal(choose(objective, snapshot), expected)


def test_no_more_are_chosen_than_there_is_room_for(monkeypatch):
    monkeypatch.setattr(working_set, "_ALL", 0)
    objective = objective_of(Squared(), l1=1e-6)
    theta = np.zeros(9)
    theta[[3, 5]] = 0.1
    snapshot = objective.snapshot(theta)
    excess = np.abs(snapshot.gradient[:-1])
    excess[[3, 5]] = 0
    for columns in (1, 2, 6, 7):
        # Eight numbers a row beside them, and the intercept's; in three quarters of the room.
        objective.room = (columns + 1 + 8) * 60 * 8 * 4 // 3 + 1
        if columns < 3:
            with pytest.raises(ValueError, match=r"^2 of 8 features .* higher memory_limit"):
                choose(objective, snapshot)
            continue
        wanted = [3, 5, *np.argsort(-excess)[: columns - 2]]
        assert np.array_equal(choose(objective, snapshot), np.sort(wanted))
    # Where none is missing, those that are there may fill it.
    snapshot.gradient[:] = 0
    objective.room = (2 + 1 + 8) * 60 * 8 * 4 // 3 + 1
    assert np.array_equal(choose(objective, snapshot), [3, 5])
