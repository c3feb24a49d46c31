"""Steps of softmax with an L1 penalty on dense rows: their model, their parts, and whole fits."""

import time
import warnings
from dataclasses import replace

import numpy as np
import pytest
from provenglm import GLMClassifier
from provenglm.methods import softmax_descent
from provenglm.methods.softmax_descent import SoftmaxSteps, common_shift
from provenglm.model.losses import Softmax
from provenglm.model.problem import Problem
from provenglm.solve import Settings, solve
from sklearn.linear_model import LogisticRegression
from test_descent import hessian_of_classes, objective_of, point_of


def model_of(objective, chosen):
    """A model at a point whose coefficients of other features are 0."""
    theta, kept = np.zeros_like(point_of(objective)), np.append(chosen, 8)
    theta[kept] = point_of(objective)[kept]
    snapshot = objective.snapshot(theta)
    return SoftmaxSteps(objective)._model(snapshot, chosen, 0.0), snapshot, kept


def curvature_of(objective, snapshot):
    return objective.loss.second_derivative(snapshot.scores, objective.target)


@pytest.mark.parametrize("chosen", [[0, 3, 4, 7], []], ids=["four", "none"])
@pytest.mark.parametrize("intercept", [True, False])
def test_the_product_is_the_gradient_s_difference(intercept, chosen):
    objective = objective_of(Softmax(3), intercept, size=31)
    model, snapshot, kept = model_of(objective, np.array(chosen, np.intp))
    way = np.zeros_like(snapshot.theta)
    way[kept] = np.random.default_rng(2).normal(size=way[kept].shape)
    if not intercept:
        way[-1] = 0
    ahead, behind = (objective.snapshot(snapshot.theta + h * way).gradient for h in (1e-5, -1e-5))
    difference = (ahead - behind)[kept] / 2e-5
    assert np.allclose(model._product(way[kept]), difference, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("intercept", [True, False])
def test_the_matrices_are_blocks_of_the_hessian(intercept):
    objective = objective_of(Softmax(4), intercept, size=31)
    chosen = np.array([1, 2, 5])
    model, snapshot, _ = model_of(objective, chosen)
    whole = hessian_of_classes(
        replace(objective, penalty=np.zeros(9)), chosen, curvature_of(objective, snapshot)
    ).reshape(4, 4, 4, 4)
    for k in range(4):
        assert np.allclose(model._grams[k], whole[:, k, :, k], rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("l2", [0.0, 0.01])
@pytest.mark.parametrize("classes", [3, 4])
def test_a_step_ends_where_the_conditions_of_the_optimum_hold(monkeypatch, classes, l2, intercept):
    monkeypatch.setattr(softmax_descent, "_FORCING", 0.0)
    monkeypatch.setattr(softmax_descent, "_LEAST_FORCING", 0.0)
    monkeypatch.setattr(softmax_descent, "_SYSTEM_RESIDUAL", 1e-8)  # below it only rounding moves
    objective = objective_of(Softmax(classes), intercept, l1=0.005, size=31)
    objective.penalty[:-1] = l2
    chosen = np.array([0, 2, 3, 5, 6])
    model, snapshot, kept = model_of(objective, chosen)
    t = model.minimise(np.inf)
    hessian = hessian_of_classes(objective, chosen, curvature_of(objective, snapshot))
    change = (t - snapshot.theta[kept]).ravel()
    gradient = (snapshot.gradient[kept].ravel() + hessian @ change).reshape(t.shape)
    l1 = objective.l1[kept][:, None] * np.ones_like(t)
    there = t != 0
    assert 0 < there[:-1].sum() < there[:-1].size
    assert np.abs(gradient + l1 * np.sign(t))[there].max() < 1e-9
    assert (np.abs(gradient) - l1)[~there].max(initial=0) < 1e-9
    fall, slope = model.promise(t)
    before = snapshot.theta[kept]
    size = float((l1 * (np.abs(t) - np.abs(before))).sum())
    expected = snapshot.gradient[kept].ravel() @ change + size
    assert slope == pytest.approx(-expected, rel=1e-9)
    assert fall == pytest.approx(-expected - 0.5 * change @ hessian @ change, rel=1e-9)


@pytest.mark.parametrize("classes", [2, 3, 4, 5])
@pytest.mark.parametrize("l2", [0.0, 0.3])
def test_no_other_shift_has_a_lower_penalty(classes, l2):
    rng = np.random.default_rng(classes)
    t = rng.normal(size=(200, classes)) * (rng.random((200, classes)) < 0.7) + rng.normal(
        size=(200, 1)
    ) * (rng.random((200, 1)) < 0.5)
    l1, l2 = rng.uniform(0.1, 1, 200), np.full(200, l2)

    def penalty(shift):
        moved = t - shift[:, None]
        return l1 * np.abs(moved).sum(axis=1) + 0.5 * l2 * np.square(moved).sum(axis=1)

    shift = common_shift(t, l1, l2)
    best = penalty(shift)
    for other in np.linspace(-3, 3, 601):
        assert (best <= penalty(np.full(200, other)) + 1e-12).all()
    # No zero is lost to rounding.
    assert (shift[penalty(np.zeros(200)) <= best] == 0).all()
    assert not common_shift(t, np.zeros(200), np.zeros(200)).any()


def made(kind, n=500, p=12, classes=4):
    rng = np.random.default_rng(len(kind))
    X = rng.normal(size=(n, p))
    weights, bias, scale = rng.normal(size=(p, classes)), np.zeros(classes), 0.5
    if kind == "correlated":
        for j in range(1, p):
            X[:, j] = 0.95 * X[:, j - 1] + 0.3 * X[:, j]
    if kind == "unbalanced":
        bias = -1.5 * np.arange(classes)
    if kind == "nearly apart":
        scale = 8.0
    if kind == "equal columns":
        X[:, 1], X[:, 3] = X[:, 0], -X[:, 2]
    y = np.argmax(scale * X @ weights + bias + rng.gumbel(size=(n, classes)), axis=1)
    if kind == "constant":
        X[:, 4] = 7
    return X, y


KINDS = ["normal", "correlated", "unbalanced", "nearly apart", "equal columns", "constant"]


def loss_of(X, y, coef, intercept, weight):
    scores = X @ coef.T + intercept
    scores -= scores.max(axis=1, keepdims=True)
    each = np.log(np.exp(scores).sum(axis=1)) - scores[np.arange(len(y)), y]
    return float(weight @ each), weight


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("ratio", [1.0, 0.5])
@pytest.mark.parametrize("C", [0.05, 1, 50])
@pytest.mark.parametrize("kind", KINDS)
def test_no_run_of_saga_is_lower(kind, C, ratio, weighted):
    X, y = made(kind)
    weight = np.random.default_rng(3).uniform(0.2, 2, len(y)) if weighted else np.ones(len(y))
    model = GLMClassifier(C=C, l1_ratio=ratio, tol=1e-6).fit(X, y, weight)
    # Versions before 1.8 need the penalty, later ones warn of it.
    settings = {"penalty": "elasticnet", "C": C, "l1_ratio": ratio, "max_iter": 300, "tol": 1e-9}
    peer = LogisticRegression(solver="saga", **settings)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        peer.fit(X, y, weight)

    def value(coef, intercept):
        size = ratio * np.abs(coef).sum() + 0.5 * (1 - ratio) * np.square(coef).sum()
        return (C * loss_of(X, y, coef, intercept, weight)[0] + size) / (C * weight.sum())

    own = value(model.coef_, model.intercept_)
    shares = np.bincount(y, weight) / weight.sum()
    null = -float(shares @ np.log(shares))
    assert model.gap_ <= 1e-6 * (null - own)
    assert own <= value(peer.coef_, peer.intercept_) + 1e-6 * (null - own)
    # The conditions of the optimum, in the user's coordinates.
    scores = X @ model.coef_.T + model.intercept_
    odds = np.exp(scores - scores.max(axis=1, keepdims=True))
    residual = odds / odds.sum(axis=1, keepdims=True)
    residual[np.arange(len(y)), y] -= 1
    gradient = C * (residual * weight[:, None]).T @ X + (1 - ratio) * model.coef_
    there = model.coef_ != 0
    assert np.abs(gradient[~there]).max(initial=0) <= ratio * 1.01
    assert np.abs(gradient + ratio * np.sign(model.coef_))[there].max(initial=0) <= 0.05 * ratio


@pytest.mark.parametrize("after", [0, 3, 5, 8])
def test_a_step_that_runs_out_of_time_is_no_higher(monkeypatch, after):
    objective = objective_of(Softmax(3), size=31)
    snapshot = objective.snapshot(point_of(objective))
    read, count = softmax_descent._Columns._block, []

    def block(self, part):
        count.append(part)
        if len(count) > after:
            raise softmax_descent.OutOfTimeError
        return read(self, part)

    monkeypatch.setattr(softmax_descent._Columns, "_block", block)
    to, fall, slope = SoftmaxSteps(objective).step(snapshot, np.arange(8), 0.0, np.inf)
    assert len(count) == after + 1
    assert fall >= 0
    if after <= 3:  # no more than the matrices of three classes
        assert np.array_equal(to, snapshot.theta)
        assert fall == slope == 0
    else:
        assert fall > 0
        assert objective.snapshot(to).objective < snapshot.objective


@pytest.mark.parametrize("seconds", [0.05, 0.3])
def test_a_fit_ends_soon_after_max_time(seconds):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(20_000, 200))
    y = np.argmax(X @ rng.normal(size=(200, 10)) + rng.gumbel(size=(20_000, 10)), axis=1)
    GLMClassifier(l1_ratio=1.0).fit(X[:200, :3], y[:200])  # Numba is loaded
    began = time.process_time()
    with pytest.warns(UserWarning, match="max_time"):
        GLMClassifier(C=100.0, l1_ratio=1.0, tol=1e-10, max_time=seconds).fit(X, y)
    assert time.process_time() - began < seconds + 1.0


def test_the_whole_problem_is_solved_in_few_steps():
    X, y = made("nearly apart", n=2000, p=40, classes=10)
    problem = Problem(X, y, Softmax(10), 0.0, None, True, l1=1e-5)
    found = solve(problem, Settings(tol=1e-8))
    assert found.method == "coordinate-descent"
    assert found.gap <= 1e-8 * found.history[0].objective
    assert len(found.history) < 30
