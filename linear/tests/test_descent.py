"""Proximal Newton with coordinate descent: its kernels, its models, its set, and its steps."""

from dataclasses import replace

import numpy as np
import pytest
from linear_oracle import values
from provenglm import constants, plan
from provenglm.methods import descent, descent_columns, descent_kernels as kernels
from provenglm.methods.descent import CoordinateDescent, least, minimise
from provenglm.methods.descent_columns import (
    Columns,
    ScalarQuadratic,
    SoftmaxQuadratic,
    dense_columns,
    least_along,
    sparse_columns,
)
from provenglm.methods.matrix_descent import sweep_matrix
from provenglm.model.conjugate_gradients import conjugate_gradients
from provenglm.model.losses import Huber, Logistic, Poisson, Softmax, Squared
from provenglm.model.problem import Problem
from provenglm.model.sampling import prepare
from provenglm.model.solution import Settings
from provenglm.plan import choose
from provenglm.rows.disk import DiskRows
from provenglm.rows.parts import ArrayPart
from provenglm.solve import solve
from provenglm.workers import Workers
from scipy.sparse import csr_array

CASES = range(16)
LOSSES = [Logistic(), Softmax(3), Squared(), Poisson(), Huber(1.0)]
MANY = pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.name)


def case(seed):
    """H, c and mu: correlated, some singular, with duplicate columns."""
    rng = np.random.default_rng(seed)
    m, n = int(rng.integers(3, 40)), int(rng.integers(10, 60))
    X = rng.normal(size=(n, m)) @ (np.eye(m) + (seed % 3) * rng.normal(size=(m, m)) / np.sqrt(m))
    if seed % 4 == 0:
        X[:, 1] = X[:, 0]
    H = X.T @ X / n
    c = X.T @ (X[:, :3].sum(axis=1) + rng.normal(size=n)) / n
    return H, c, np.full(m, np.abs(c).max() * 10 ** rng.uniform(-2, -0.2))


def value(H, c, l1, t):
    return 0.5 * t @ H @ t - c @ t + l1 @ np.abs(t)


def sweep(H, c, l1, t, visited=None):
    """One sweep of coordinate descent, as it is defined."""
    for j in range(len(t)) if visited is None else visited:
        rest = c[j] - H[j] @ t + H[j, j] * t[j]
        t[j] = np.sign(rest) * max(abs(rest) - l1[j], 0) / H[j, j]


def off(H, c, l1, t):
    """By how much the conditions of the optimum are violated, relative to the penalty."""
    gradient = H @ t - c
    beyond = np.maximum(np.abs(gradient) - l1, 0)
    return np.where(t != 0, np.abs(gradient + l1 * np.sign(t)), beyond).max() / l1.max()


@pytest.mark.parametrize("seed", CASES)
def test_sweeps_of_a_matrix_are_those_of_coordinate_descent(seed):
    H, c, l1 = case(seed)
    t = np.random.default_rng(1).normal(size=len(c))
    expected, gradient = t.copy(), H @ t - c
    for _ in range(3):
        before = value(H, c, l1, expected)
        rest = c - H @ expected + np.diag(H) * expected
        best = np.sign(rest) * np.maximum(np.abs(rest) - l1, 0) / np.diag(H)
        sweep(H, c, l1, expected, np.flatnonzero(np.abs(best - expected) > 1e-12))
        fell, _ = sweep_matrix(H, gradient, t, l1)
        assert np.abs(t - expected).max() < 1e-12
        assert np.abs(gradient - (H @ t - c)).max() < 1e-12
        assert 0 < fell <= before - value(H, c, l1, t) + 1e-12


@pytest.mark.parametrize("seed", CASES)
def test_the_least_of_a_matrix(seed):
    H, c, l1 = case(seed)
    for start in (np.zeros(len(c)), np.random.default_rng(1).normal(size=len(c))):
        t = minimise(H, H @ start - c, start, l1)
        assert off(H, c, l1, t) < 1e-9
        assert value(H, c, l1, t) <= value(H, c, l1, start)
        near = minimise(H, H @ start - c, start, l1, is_exact=False)
        fell = value(H, c, l1, start) - value(H, c, l1, t)
        assert value(H, c, l1, near) - value(H, c, l1, t) < 0.3 * fell


def test_a_system_that_is_singular_but_for_rounding():
    # One-hots add up to a constant, and so do others: no sweep and no whole step leads to the end.
    rng = np.random.default_rng(0)
    X = np.column_stack([np.eye(8)[rng.integers(0, 8, 300)], np.eye(9)[rng.integers(0, 9, 300)]])
    X = X - X.mean(axis=0)
    H, c = X.T @ X / 300, X.T @ (X[:, 0] + rng.normal(size=300)) / 300
    l1 = np.full(17, 1e-5)
    t = minimise(H, -c, np.zeros(17), l1)
    assert off(H, c, l1, t) < 1e-7


def test_a_diagonal_below_0_is_left_alone():
    # No ridge in proportion to it makes such a matrix positive definite.
    H, c, l1 = case(1)
    H[0], H[:, 0] = 0, 0
    H[0, 0] = -1e-9
    start = np.zeros(len(c))
    start[0] = 1.0
    t = minimise(H, H @ start - c, start, l1)
    assert t[0] == 1
    assert off(H[1:, 1:], c[1:], l1[1:], t[1:]) < 1e-9


@pytest.mark.parametrize("seed", CASES)
def test_the_least_along_a_step(seed):
    H, c, l1 = case(seed)
    rng = np.random.default_rng(seed)
    t, step = rng.normal(size=len(c)), rng.normal(size=len(c)) * 5
    slope = float((H @ t - c + l1 * np.sign(t)) @ step)
    if slope > 0:
        step, slope = -step, -slope
    found = least_along(t, step, l1, slope, float(step @ H @ step))
    lengths = np.linspace(0, 1, 2001)[1:]
    least_of_all = min(value(H, c, l1, t + length * step) for length in lengths)
    assert value(H, c, l1, t + found) <= least_of_all + 1e-12
    assert value(H, c, l1, t + found) < value(H, c, l1, t)


@pytest.mark.parametrize("outputs", [1, 3])
def test_intercepts_are_eliminated(outputs):
    rng = np.random.default_rng(3)
    X = rng.normal(size=(60, 8 + outputs)) + 1
    if outputs == 3:  # the loss does not see a shift of all of them
        X[:, -3:] -= X[:, -3:].mean(axis=1, keepdims=True)
    H = X.T @ X / 60
    c, l1 = H @ rng.normal(size=8 + outputs), np.append(np.full(8, 0.3), np.zeros(outputs))
    t = least(H, np.zeros(8 + outputs), -c, l1, outputs)
    gradient = H @ t - c
    assert np.abs(gradient[8:]).max() < 1e-12
    assert off(H, c, l1, t) < 1e-9


def objective_of(loss, intercept=True, l1=0.02, kind="dense", size=60):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 8)) + rng.normal(size=8)
    X[rng.random(X.shape) < 0.4] = 0
    X = csr_array(X) if kind == "sparse" else X
    y = rng.integers(0, max(2, loss.outputs), 60)
    weight = rng.integers(1, 4, 60).astype(float)
    problem = Problem(X, y, loss, 0.1, weight, intercept, l1=l1)
    # Coordinates of half of the rows: the features' means are not 0 in them.
    return prepare(problem, Workers(1), size, rng, precise=True)[0]


def hessian_over(objective, chosen, snapshot):
    method = CoordinateDescent(objective)
    method._chosen = chosen
    return method._hessian_over(snapshot)


def point_of(objective):
    theta = np.random.default_rng(1).normal(size=(9, objective.loss.outputs)) / 3
    if not objective.intercept:
        theta[-1] = 0
    return theta


@pytest.mark.parametrize("chosen", [[0, 3, 4, 7], []], ids=["four", "none"])
@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("loss", [Logistic(), Squared(), Poisson()], ids=lambda loss: loss.name)
def test_the_matrix_is_the_gradient_s_difference(loss, intercept, chosen):
    objective = objective_of(loss, intercept, size=31)
    chosen = np.array(chosen, np.intp)
    theta, way = point_of(objective), np.zeros_like(point_of(objective))
    kept = np.append(chosen, 8)
    way[kept] = np.random.default_rng(2).normal(size=way[kept].shape)
    if not intercept:
        way[-1] = 0
    hessian = hessian_over(objective, chosen, objective.snapshot(theta))
    ahead, behind = (objective.snapshot(theta + h * way).gradient for h in (1e-5, -1e-5))
    difference = (ahead - behind)[kept].ravel() / 2e-5
    assert np.allclose(hessian @ way[kept].ravel(), difference, rtol=1e-6, atol=1e-8)


def columns_of(objective, chosen):
    if objective.rows.__class__.__name__ == "CsrRows":
        center = objective.scaling.center[chosen] * objective.scaling.inverse[chosen]
        return Columns(sparse_columns(objective), chosen.astype(np.uint64), center)
    return dense_columns(objective, chosen)


def hessian_of_classes(objective, chosen, curvature):
    """The Hessian over some features and the intercept, theta raveled: entry by entry."""
    scaling, p = objective.scaling, curvature.probability
    X = (objective.rows.block(slice(0, objective.n)) - scaling.center) * scaling.inverse
    X = np.column_stack([X[:, chosen], np.full(objective.n, float(objective.intercept))])
    each = np.einsum("ik,kl->ikl", p, np.eye(p.shape[1])) - np.einsum("ik,il->ikl", p, p)
    hessian = np.einsum("i,ia,ib,ikl->akbl", objective.share, X, X, each)
    size = X.shape[1] * p.shape[1]
    penalty = np.append(objective.penalty[chosen], 0.0)
    return hessian.reshape(size, size) + np.diag(np.repeat(penalty, p.shape[1]))


@pytest.mark.parametrize("kind", ["dense", "sparse"])
@pytest.mark.parametrize("intercept", [True, False])
@MANY
def test_columns_lead_where_the_matrix_leads(monkeypatch, loss, intercept, kind):
    monkeypatch.setattr(constants, "LAST_SWEEP", 1e-22)
    monkeypatch.setattr(constants, "MOST_STEPS", 20_000)
    monkeypatch.setattr(descent_columns, "_LARGEST_INVERSE_OF_FLOAT32", 0.0)
    objective = objective_of(loss, intercept, kind=kind, size=31)
    chosen = np.array([1, 2, 5, 6])
    kept = np.append(chosen, 8)
    theta = np.zeros_like(point_of(objective))
    theta[kept] = point_of(objective)[kept]
    snapshot = objective.snapshot(theta)
    l1, l2 = objective.l1[chosen], objective.penalty[chosen]
    arguments = objective, columns_of(objective, chosen), snapshot, chosen, l1, l2, 0.0
    model = (SoftmaxQuadratic if loss.outputs > 1 else ScalarQuadratic)(*arguments)
    t, shift, fall, slope = model.solve()
    dense = objective_of(loss, intercept, size=31)
    if loss.outputs > 1:
        curvature = loss.second_derivative(snapshot.scores, objective.target)
        hessian = hessian_of_classes(dense, chosen, curvature)
    else:
        hessian = hessian_over(dense, chosen, snapshot)
    before, gradient = theta[kept].ravel(), snapshot.gradient[kept].ravel()
    outputs = loss.outputs
    each = np.repeat(objective.l1[kept], outputs)
    change = least(hessian, before, gradient, each, outputs)
    assert np.abs(t.ravel() - (before + change)[:-outputs]).max() < 1e-9
    shift = shift + arguments[1].center @ (t - theta[chosen])
    if intercept:
        off_by = np.ravel(shift) - change[-outputs:]
        assert np.abs(off_by - off_by.mean() * (outputs > 1)).max() < 1e-9
    expected = gradient @ change + each @ (np.abs(before + change) - np.abs(before))
    assert slope == pytest.approx(expected, rel=1e-7)
    assert fall == pytest.approx(-expected - 0.5 * change @ hessian @ change, rel=1e-6)


def sparse_case(outputs=1):
    rng = np.random.default_rng(5)
    X = rng.normal(size=(50, 7)) * (rng.random((50, 7)) < 0.5)
    C = csr_array(X).tocsc()
    arrays = C.data, C.indices.astype(np.uint32), C.indptr.astype(np.uint64)
    chosen = np.array([0, 2, 3, 6], np.uint64)
    shape = (4, outputs) if outputs > 1 else (4,)
    return X[:, chosen], arrays, chosen, rng.normal(size=shape), rng


def test_a_sweep_of_columns_is_coordinate_descent():
    X, arrays, chosen, t, rng = sparse_case()
    weight, l1, l2 = rng.uniform(0.1, 1, 50), np.full(4, 2.0), np.full(4, 0.3)
    of_loss = rng.normal(size=4) * 5
    mean, total = X.T @ weight, weight.sum()
    H = (X.T * weight) @ X - np.outer(mean, mean) / total + np.diag(l2)
    shift = 0.7
    # At the start the model's gradient is that of the losses, the shift's and the penalty's.
    c = H @ t - (of_loss + shift * mean + l2 * t)
    expected, moved, active = t.copy(), np.zeros(50), np.ones(4, bool)
    for _ in range(3):
        sweep(H, c, l1, expected)
        _, shift = kernels.sweep_columns(
            *arrays, chosen, active, t, of_loss, l1, l2, mean, H.diagonal(), total, weight, moved,
            shift,
        )  # fmt: skip
        assert np.abs(t - expected).max() < 1e-12
    assert np.array_equal(active[t != 0], np.ones((t != 0).sum(), bool))
    product, _, square = kernels.measure(*arrays, chosen, weight, weight)
    assert np.abs(product - mean).max() < 1e-12
    assert np.abs(square - (X**2).T @ weight).max() < 1e-12


def with_twins(seed):
    """Columns of which many are equal, some but for one number, and some but for their penalty."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(40, 5)) * (rng.random((40, 5)) < 0.3)
    X[:, 4] = 0
    X = X[:, rng.integers(0, 5, 30)]
    X[np.abs(X[:, 7]).argmax(), 7] *= 1.5
    X[:, 8] = 1e-3 * np.roll(X[:, 9], 1)
    C = csr_array(X).tocsc()
    arrays = C.data, C.indices.astype(np.uint32), C.indptr.astype(np.uint64)
    return X, arrays, np.where(rng.random(30) < 0.2, 2.0, 1.0)


@pytest.mark.parametrize("seed", CASES)
def test_equal_columns_are_found(seed):
    X, arrays, l1 = with_twins(seed)
    chosen = np.sort(np.random.default_rng(seed).permutation(30)[:25]).astype(np.uint64)
    X, l1 = X[:, chosen], l1[chosen]
    # With weights of 0 sums say nothing.
    weight = np.random.default_rng(1).uniform(size=40) * (seed % 4 > 0)
    _, mean, square = kernels.measure(*arrays, chosen, weight, weight)
    order = np.lexsort((square, mean)).astype(np.uint64)
    first = kernels.first_duplicates(*arrays, chosen, order, mean, square, l1)
    # Each is one of its own kind, and if sums tell columns apart all of a kind are the same one.
    assert all(np.array_equal(X[:, j], X[:, k]) and l1[j] == l1[k] for j, k in enumerate(first))
    assert np.array_equal(first[first], first)
    if seed % 4 > 0 and (l1 == l1[0]).all():
        assert len(np.unique(first)) == len(np.unique(X, axis=1).T)


@pytest.mark.parametrize("seed", CASES)
def test_equal_columns_share_no_coefficient(seed):
    X, *_ = with_twins(seed)
    rng = np.random.default_rng(seed)
    problem = Problem(csr_array(X), rng.integers(0, 2, 40), Logistic(), 0.0, None, True, l1=0.01)
    objective = prepare(problem, Workers(1), 40, rng, precise=True)[0]
    chosen, before = np.arange(30), rng.normal(size=30)
    snapshot = objective.snapshot(np.append(before, 0.1)[:, None])
    arguments = objective, columns_of(objective, chosen), snapshot, chosen
    model = ScalarQuadratic(*arguments, objective.l1[chosen], np.zeros(30), 0.0)
    merged = model._t
    kinds = np.unique(X, axis=1, return_inverse=True)[1].ravel()
    for kind in range(kinds.max() + 1):
        if not X[:, kinds == kind].any():
            continue
        assert (merged[kinds == kind] != 0).sum() <= 1
        assert merged[kinds == kind].sum() == pytest.approx(before[kinds == kind].sum(), abs=1e-14)
    t, _, fall, _ = model.solve()
    assert fall > 0
    assert all((t[kinds == kind] != 0).sum() <= 1 for kind in kinds)
    # A squared penalty is least if they share.
    model = ScalarQuadratic(*arguments, objective.l1[chosen], np.full(30, 0.01), 0.0)
    assert np.array_equal(model._t, before)


@pytest.mark.parametrize("seed", CASES)
def test_equal_columns_share_no_coefficient_of_classes(monkeypatch, seed):
    monkeypatch.setattr(constants, "SMALL_DATA", 0)
    X, *_ = with_twins(seed)
    rng = np.random.default_rng(seed)
    problem = Problem(csr_array(X), rng.integers(0, 3, 40), Softmax(3), 0.0, None, True, l1=0.01)
    found = solve(problem, Settings(tol=1e-8))
    assert found.gap <= 1e-8 * found.history[0].objective
    assert len(found.history) < 20
    kinds = np.unique(X, axis=1, return_inverse=True)[1].ravel()
    has_coef = (found.coef != 0).any(axis=1)
    assert has_coef.any()
    assert all(has_coef[kinds == kind].sum() <= 1 for kind in kinds)


@pytest.mark.parametrize("loss", [Logistic(), Softmax(3)], ids=lambda loss: loss.name)
def test_a_constant_column_beside_a_start_from_a_sample(monkeypatch, loss):
    monkeypatch.setattr(plan, "_starts_from_a_sample", lambda _: True)
    rng = np.random.default_rng(0)
    X = rng.normal(size=(400, 4))
    slopes = np.arange(max(2, loss.outputs))
    y = (X[:, :1] * slopes + rng.gumbel(size=(400, len(slopes)))).argmax(axis=1)
    X[:, 2] = 3
    settings = Settings(tol=1e-8)
    problem = Problem(X, y, loss, 1e-3, None, True, l1=1e-3)
    found = solve(problem, settings)
    # It begins where the sample's rows lead, here all of them.
    null = values(loss, np.zeros((400, loss.outputs)), y).mean()
    assert found.history[0].objective - found.objective < 0.01 * (null - found.objective)
    assert not found.coef[2].any()
    without = solve(replace(problem, features=X[:, [0, 1, 3]]), settings)
    assert found.objective == pytest.approx(without.objective, rel=1e-8)


def test_conjugate_gradients_solve_the_system():
    X, arrays, chosen, right, rng = sparse_case()
    weight, l2 = rng.uniform(0.1, 1, 50), np.full(4, 0.3)
    mean, total = X.T @ weight, weight.sum()
    H = (X.T * weight) @ X - np.outer(mean, mean) / total + np.diag(l2)
    assert np.abs(kernels.product(*arrays, chosen, l2, total, weight, right) - H @ right).max() < (
        1e-12
    )
    step = conjugate_gradients(
        lambda way: H @ way, right, lambda rest: rest / H.diagonal(), 0.1
    ).step
    rest = right - H @ step
    assert rest @ (rest / H.diagonal()) <= 0.0101 * (right @ (right / H.diagonal()))
    along = np.empty(50)
    kernels.scores(*arrays, chosen, step, along)
    assert np.abs(along - X @ step).max() < 1e-12


@pytest.mark.parametrize("intercept", [True, False])
def test_products_with_the_hessian_by_the_columns(intercept):
    objective = objective_of(Logistic(), intercept, kind="sparse")
    chosen = np.array([0, 1, 3, 4, 5, 7])
    snapshot = objective.snapshot(np.zeros((9, 1)))
    arguments = objective, columns_of(objective, chosen), snapshot, chosen
    model = ScalarQuadratic(*arguments, objective.l1[chosen], np.zeros(6), 0.0)
    H = hessian_over(objective_of(Logistic(), intercept), chosen, snapshot)
    H.ravel()[:: len(H) + 1] -= objective.penalty[np.append(chosen, 8)]
    if intercept:
        H -= np.outer(H[-1], H[-1]) / H[-1, -1]
    free = np.array([1, 3, 5])
    way = np.random.default_rng(2).normal(size=len(free))
    assert np.abs(model._hessian_over(free)(way) - H[np.ix_(free, free)] @ way).max() < 1e-12


def test_a_sweep_of_classes_is_a_step_in_a_metric_above_the_hessian():
    X, arrays, chosen, t, rng = sparse_case(3)
    probability = rng.dirichlet(np.ones(3), 50)
    share, l1, l2 = rng.uniform(0.1, 1, 50), np.full(4, 1.0), np.full(4, 0.3)
    of_loss, moved = rng.normal(size=(4, 3)) * 5, np.zeros((50, 3))
    square = kernels.squares_of_classes(*arrays, chosen, probability * share[:, None])
    assert np.abs(square - (X**2).T @ (probability * share[:, None])).max() < 1e-12
    curvature = square + l2[:, None]
    expected, of_scores = t.copy(), np.zeros((50, 3))
    kernels.sweep_classes(
        *arrays, chosen, np.ones(4, bool), t, of_loss, l1, l2, curvature, probability, share, moved
    )
    for j in range(4):
        here = of_loss[j] + l2[j] * expected[j] + X[:, j] @ of_scores
        wanted = expected[j] - here / curvature[j]
        new = np.sign(wanted) * np.maximum(np.abs(wanted) - l1[j] / curvature[j], 0)
        along = np.outer(X[:, j], new - expected[j])
        along -= (probability * along).sum(axis=1, keepdims=True)
        of_scores += share[:, None] * probability * along
        expected[j] = new
    assert np.abs(t - expected).max() < 1e-12
    assert np.abs(moved - of_scores).max() < 1e-12


def test_those_with_coefficients_and_the_worst_of_the_others(monkeypatch):
    objective = objective_of(Squared(), l1=1e-6)
    monkeypatch.setattr(constants, "LEAST_JOINING", 2)
    theta = np.zeros((9, 1))
    theta[3] = 0.1
    snapshot = objective.snapshot(theta)
    run = CoordinateDescent(objective)
    assert np.array_equal(run._choose(snapshot), np.arange(8))  # so few: all of them
    monkeypatch.setattr(constants, "ALL_FEATURES", 0)
    excess = np.abs(snapshot.gradient[:-1, 0])
    excess[3] = 0
    expected = np.sort(np.append(np.argsort(-excess)[:2], 3))
    assert np.array_equal(run._choose(snapshot), expected)


@pytest.mark.parametrize("loss", [Squared(), Logistic()])
def test_what_is_close_to_the_penalty_joins_with_what_is_beyond(monkeypatch, loss):
    monkeypatch.setattr(constants, "ALL_FEATURES", 0)
    objective = objective_of(loss, l1=1e-6)
    snapshot = objective.snapshot(np.zeros((9, 1)))
    size = np.abs(snapshot.gradient[:-1, 0])
    run = CoordinateDescent(objective)
    run._l1 = np.append(size / [1.2, 0.97, 0.3, 1.1, 0.99, 0.9, 0.98, 0.0001], 0)
    # Without columns that are kept it would cost a Hessian of more features.
    close = [0, 1, 3, 4, 6] if loss.is_quadratic else [0, 3]
    assert run._choose(snapshot).tolist() == close
    monkeypatch.setattr(constants, "LEAST_JOINING", 4)
    worst = sorted(close, key=lambda k: run._l1[k] - size[k])[:4]
    assert run._choose(snapshot).tolist() == sorted(worst)
    run._l1[[0, 3]] = size[[0, 3]] / 0.99
    assert run._choose(snapshot).tolist() == []


def test_no_more_are_chosen_of_far_rows_than_a_matrix_has_room_for(monkeypatch):
    monkeypatch.setattr(constants, "ALL_FEATURES", 0)
    objective = objective_of(Squared(), l1=1e-6)
    objective = objective.on(rows=DiskRows([ArrayPart(objective.rows.block(slice(0, 60)))]))
    theta = np.zeros((9, 1))
    theta[[3, 5]] = 0.1
    snapshot = objective.snapshot(theta)
    assert snapshot.kept is None
    excess = np.abs(snapshot.gradient[:-1, 0])
    excess[[3, 5]] = 0
    for columns in (1, 2, 6, 7):
        monkeypatch.setattr(constants, "KEPT_NUMBERS", (columns + 1) ** 2)
        run = CoordinateDescent(objective)
        if columns < 3:
            with pytest.raises(ValueError, match=r"^2 of 8 features .* a stronger penalty"):
                run._choose(snapshot)
            continue
        wanted = [3, 5, *np.argsort(-excess)[: columns - 2]]
        assert np.array_equal(run._choose(snapshot), np.sort(wanted))
    # Where none is missing, those that are there may fill it.
    snapshot.gradient[:] = 0
    monkeypatch.setattr(constants, "KEPT_NUMBERS", 9)
    assert np.array_equal(CoordinateDescent(objective)._choose(snapshot), [3, 5])


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["dense", "sparse"])
def test_rows_far_on_the_wrong_side(kind):
    """Raw counts, classes that can nearly be separated: whole steps overshoot by far."""
    rng = np.random.default_rng(2)
    X = rng.poisson(0.3, size=(300, 400)) * rng.integers(1, 60, 400)
    y = (X[:, :40].sum(axis=1) > np.median(X[:, :40].sum(axis=1))).astype(int)
    y[:3] = 1 - y[:3]
    features = csr_array(X.astype(float)) if kind == "sparse" else X.astype(float)
    problem = Problem(features, y, Logistic(), 0.0, None, True, l1=1e-5)
    found = solve(problem, Settings(tol=1e-8, max_iter=300))
    assert found.reason.is_success
    values = [record.objective for record in found.history]
    assert all(np.diff(values) <= 1e-12)
    assert found.gap <= 1e-8 * (values[0] - found.objective)


def test_huber_with_corners():
    # No estimator has it; the model does.
    rng = np.random.default_rng(4)
    X = rng.normal(size=(200, 12))
    y = X[:, :3].sum(axis=1) + rng.standard_t(1.5, 200)
    problem = Problem(X, y, Huber(1.0), 1e-3, None, True, l1=0.05)
    found = solve(problem, Settings(tol=1e-10))
    assert found.reason.is_success
    assert found.gap <= 1e-10 * found.history[0].objective
    assert 0 < (found.coef != 0).sum() < 12


def test_a_start_from_a_sample_of_many_rows_alone():
    """Of few, its Hessian is dearer than those of the working set: 1.2 to 30 times as long."""
    rng = np.random.default_rng(0)
    for n, has_start in ((3000, False), (8000, False), (40_000, True)):
        X, y = np.broadcast_to(rng.normal(size=400), (n, 400)), rng.integers(0, 2, n)
        assert choose(Problem(X, y, Logistic(), 0.0, l1=0.1)).measures_alone is not has_start


@MANY
def test_a_step_ends_after_max_time(monkeypatch, loss):
    monkeypatch.setattr(constants, "LAST_SWEEP", -1.0)
    objective = replace(objective_of(loss, True, kind="sparse", size=31), deadline=0.0)
    theta = point_of(objective)
    snapshot, chosen = objective.snapshot(theta), np.arange(8)
    l1, l2 = objective.l1[chosen], objective.penalty[chosen]
    arguments = objective, columns_of(objective, chosen), snapshot, chosen, l1, l2, 0.0
    name = "sweep_classes" if loss.outputs > 1 else "sweep_columns"
    sweep, sweeps = getattr(kernels, name), []

    def counted(*arguments):
        sweeps.append(name)
        return sweep(*arguments)

    monkeypatch.setattr(kernels, name, counted)
    (SoftmaxQuadratic if loss.outputs > 1 else ScalarQuadratic)(*arguments).solve()
    assert len(sweeps) == 1


@pytest.mark.parametrize("features", [30, 100])
@pytest.mark.parametrize(
    "loss", [Squared(), Logistic(), Softmax(4), Poisson()], ids=lambda loss: loss.name
)
def test_few_dense_columns_do_not_load_numba(monkeypatch, loss, features):
    def loaded(name):
        raise AssertionError(f"{name} is loaded")

    monkeypatch.setattr("provenglm.compiled.kernels", loaded)
    monkeypatch.setattr(descent, "kernels", loaded)
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(600, features)), rng.integers(0, max(2, loss.outputs), 600)
    for l1 in (1e-4, 0.02):
        found = solve(Problem(X, y, loss, 0.0, None, True, l1=l1), Settings(tol=1e-6))
        assert found.gap <= 1e-6 * found.history[0].objective
