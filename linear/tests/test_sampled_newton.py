"""Steps in the metric of a sample's Hessian, against dense inverses; the sample; the plan."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from linear_oracle import (
    Dense,
    Draws,
    bfgs,
    curvatures,
    length_along,
    prepared,
    problem_of,
    ridged,
)
from provenglm import plan
from provenglm.methods.base import Step, Target
from provenglm.methods.newton import Newton
from provenglm.model.losses import Huber, Logistic, Poisson, Softmax, Squared
from provenglm.model.problem import Problem
from provenglm.model.sample import Sample
from provenglm.model.sampling import draw
from provenglm.model.solution import Settings, StopReason
from provenglm.rows.dense import DenseRows
from provenglm.rows.table import Table
from provenglm.solve import Session, advanced, solve
from provenglm.workers import Workers
from scipy.sparse import csr_array
from walking import walk

SMOOTH = [Logistic(), Softmax(3), Poisson(), Squared()]
IDS = [loss.name for loss in SMOOTH]


class Expected:
    """The method's run on whole arrays, a step at a time."""

    def __init__(self, dense, sample, theta):
        self.dense, self.sample, self.theta = dense, sample, theta
        self.pairs, self.last, self.renewed = [], np.inf, -1
        self._renew()

    def _renew(self):
        self.renewed += 1
        self.metric = np.linalg.inv(ridged(self.sample.hessian(self.theta), 1e-10))
        self.curvature = self._curvatures()

    def _curvatures(self):
        s = self.sample
        return np.einsum("ikk->ik", curvatures(s.loss, s.scores(self.theta), s.target))

    def step(self):
        gradient = self.dense.gradient(self.theta)
        step = bfgs(self.metric, self.pairs[-20:]) @ gradient.ravel()
        return step.reshape(gradient.shape), 0.5 * gradient.ravel() @ step

    def decrement(self):
        """At the present point, after a new Hessian if the last step left too much."""
        step, decrement = self.step()
        change = (self.sample.share @ np.abs(self._curvatures() - self.curvature)).sum()
        before = (self.sample.share @ self.curvature).sum()
        if decrement > 0.05 * self.last and change > 0.05 * before:
            self._renew()
            step, decrement = self.step()
        self.last = decrement
        return step, decrement

    def go(self, step):
        value, slope = self.dense.along(self.theta, -step)
        theta = self.theta - length_along(value, slope, is_end_known=True) * step
        change = self.dense.gradient(theta) - self.dense.gradient(self.theta)
        self.pairs.append((theta - self.theta, change))
        self.theta = theta


def case(loss, weights, size=100):
    """Softmax without intercepts: the Hessian leaves their common shift to rounding."""
    intercept = not isinstance(loss, Softmax)
    problem = problem_of(loss, n=400, l2=1e-2, weights=weights, intercept=intercept)
    draws = Draws()
    objective, null, sample = prepared(problem, size=size)
    sample.rare = None  # test_rare_features has those
    rows, _ = draw(loss, problem.table(Workers(0)), size, draws)
    dense = Dense.of(problem, objective.scaling.center, objective.scaling.inverse)
    dense = replace(dense, penalty=objective.penalty)
    # With weights the rows are drawn by them, and count alike.
    of_sample = dense.part(rows, share=np.ones(len(rows)))
    return objective, null.theta, sample, dense, of_sample


@pytest.mark.parametrize("weights", [False, True])
@pytest.mark.parametrize("loss", SMOOTH, ids=IDS)
def test_every_step(loss, weights):
    objective, theta, sample, dense, of_sample = case(loss, weights)
    if loss.name == "poisson" or sample.share.std() > 0:
        # Drawn by groups: the shares make up for it, and are tested below.
        of_sample = replace(of_sample, share=sample.share)
    np.testing.assert_allclose(sample.rows, of_sample.X, atol=1e-12)
    expected = Expected(dense, of_sample, theta)
    count = 0
    for point, proposed in walk(Newton(objective, sample), theta):
        step, decrement = expected.decrement()
        np.testing.assert_allclose(point.theta, expected.theta, rtol=0, atol=1e-10)
        assert point.objective == pytest.approx(dense.value(expected.theta), rel=1e-12)
        assert proposed.decrement == pytest.approx(decrement, rel=1e-6, abs=1e-18)
        if decrement < 1e-14:
            break
        expected.go(step)
        count += 1
    assert 2 < count < 12
    if loss.name == "squared":
        # Its Hessian is the same everywhere.
        assert expected.renewed == 0


def started(problem, size):
    """A session with a sample of this size, and what it has drawn."""
    way = replace(plan.choose(problem, only="sampled-newton"), sample_size=size)
    session = Session(problem, Settings(max_iter=0), way)
    return session, *session.prepare()


def test_start_is_the_optimum_of_a_quarter_of_the_sample():
    problem = problem_of(Logistic(), n=20_000, l2=1e-2)
    session, objective, sample = started(problem, 8000)
    with session.running():
        solution = session.solve()
    assert len(solution.history) == 1
    theta = objective.scaling.from_user(solution.coef, solution.intercept)
    head = Dense(
        sample.rows[:2000],
        sample.target[:2000],
        np.full(2000, 1 / 2000),
        problem.loss,
        objective.penalty,
        True,
    )
    best, least = head.minimum(np.zeros((4, 1)))
    # To the error of its size: a tenth of p / n in units of the loss.
    assert 0 <= head.value(theta) - least < 0.1 * np.log(2) * 4 / 2000
    assert np.abs(theta - best).max() < 0.1


def test_a_bad_start_of_the_sample_is_not_taken():
    # All of the sample's head in one class.
    rng = np.random.default_rng(0)
    X = rng.normal(size=(9000, 3))
    target = (rng.random(9000) < 0.5) * 1.0
    session, objective, sample = started(Problem(X, target, Logistic(), 1e-6), 8000)
    sample.target[:2000] = 1
    with session.running():
        solution = session.solve()
    assert solution.history[0].objective <= objective.null()[1] * (1 + 1e-15)


@pytest.mark.parametrize("factor", [0.01, 1.0, 100.0])
def test_a_step_of_a_wrong_length_is_lengthened_or_shortened(factor):
    problem = problem_of(Logistic(), n=400, l2=1e-2)
    objective, null, sample = prepared(problem, size=200)
    method = Newton(objective, sample)
    step = method.step(null, Target(0.0, 0.0, np.inf))
    far = Step(factor * step.change, step.decrement, factor * step.fall)
    new, length = advanced(method, null, far)
    dense = Dense.of(problem, objective.scaling.center, objective.scaling.inverse)
    value, slope = dense.along(null.theta, far.change)
    assert length == pytest.approx(length_along(value, slope, is_end_known=True), rel=1e-9)
    assert new.objective == pytest.approx(value(length), rel=1e-12)
    assert new.objective < null.objective
    assert 0.3 < length * factor < 3


@pytest.mark.parametrize("loss", [Logistic(), Softmax(3), Poisson()], ids=lambda loss: loss.name)
def test_sample_with_rare_targets_estimates_the_whole(loss):
    rng = np.random.default_rng(0)
    n = 5000
    target = (rng.random(n) < 0.01) * (1 if loss.outputs > 1 else 1.0)
    if loss.outputs > 1:
        target[:10] = 2
    share = rng.random(n)
    share /= share.sum()
    numbers = rng.normal(size=n) + 3 * target
    exact, found, rare = share @ numbers, [], []
    for _ in range(200):
        rows, of_sample = draw(loss, table_of(target, share), 400, rng)
        assert of_sample.sum() == pytest.approx(1)
        found.append(of_sample @ numbers[rows])
        rare.append((target[rows] > 0).mean())
    # The mean of 200 samples, in units of its own deviation.
    assert abs(np.mean(found) - exact) < 4 * np.std(found) / np.sqrt(200) + 2e-3
    assert np.mean(rare) > 0.2


def table_of(target, share):
    return Table(DenseRows(np.zeros((len(target), 1))), target, share, Workers(0))


def test_sample_without_weights_has_no_row_twice():
    table = table_of(np.zeros(100), np.full(100, 0.01))
    rows, share = draw(Squared(), table, 60, np.random.default_rng(0))
    assert len(set(rows)) == 60
    np.testing.assert_allclose(share, 1 / 60)


def test_sample_leaves_out_rows_of_no_weight():
    share = np.append(np.zeros(50), np.full(50, 0.02))
    rows, _ = draw(Squared(), table_of(np.zeros(100), share), 60, np.random.default_rng(0))
    assert rows.min() >= 50


def test_a_column_that_is_constant_in_the_sample_alone():
    # One row in 2,000 has it: a dummy of a rare category.
    rng = np.random.default_rng(0)
    X = rng.normal(size=(4000, 3))
    X[:, 2] = 0
    X[[3, 3999], 2] = 5.0
    problem = Problem(X, rng.normal(size=4000), Squared(), 1e-3)
    objective, null, sample = prepared(problem, size=100, seed=1)
    assert not sample.rows[:, 2].any() or np.ptp(sample.rows[:, 2]) == 0
    assert objective.scaling.inverse[2] * X[:, 2].std() == pytest.approx(1)
    assert objective.scaling.center[2] == pytest.approx(X[:, 2].mean())
    # Steps in the sample's metric arrive all the same.
    *_, (last, _) = itertools.islice(walk(Newton(objective, sample), null.theta), 40)
    dense = Dense.of(problem, objective.scaling.center, objective.scaling.inverse)
    _, least = dense.minimum(null.theta)
    assert last.objective == pytest.approx(least, rel=1e-9)


@pytest.mark.parametrize(
    ("shape", "loss", "l2", "name"),
    [
        ((1000, 20), Logistic(), 1.0, "newton-cholesky"),
        ((200, 5000), Logistic(), 1.0, "row-space-newton"),
        ((1_000_000, 100), Logistic(), 1.0, "sampled-newton"),
        ((60_000, 784), Softmax(10), 0.0, "sampled-newton-cg"),
        ((60_000, 784), Softmax(10), 1.0, "dual-coordinate-ascent"),
        ((60_000, 3000), Logistic(), 1.0, "subspace-newton"),
        ((3000, 2400), Poisson(), 1.0, "subspace-newton"),
        ((30_000, 2000), Logistic(), 1.0, "subspace-newton"),
        ((1_000_000, 2000), Logistic(), 1.0, "sampled-newton"),
        ((600_000, 54), Softmax(7), 0.0, "sampled-newton-cg"),
        ((4000, 20), Softmax(1000), 0.0, "newton-cg"),
    ],
)
def test_plan(shape, loss, l2, name):
    X = np.lib.stride_tricks.as_strided(np.zeros(1), shape, (0, 0))
    problem = Problem(X, np.zeros(shape[0]), loss, l2)
    got = plan.choose(problem)
    assert got.name == name
    assert 0 < got.sample_size <= shape[0]
    of_shape = plan.Shape(problem)
    costs = {row.name: row.seconds(of_shape) for row in plan.TABLE if row.can(of_shape)}
    assert costs[name] == min(costs.values())
    assert all(other in got.why for other in costs) or len(costs) == 1
    for row in plan.TABLE:
        asked = plan.choose(problem, only=row.name)
        assert (asked.name, asked.sample_size) == (row.name, row.rows(of_shape))


def test_which_problems_keep_a_hessian_that_is_dear():
    X = np.random.default_rng(0).normal(size=(12_000, 1000))
    X[:, 0] *= 1000

    def name(features, l2, loss=SMOOTH[0], **folds):
        return plan.choose(Problem(features, np.zeros(12_000), loss, l2), **folds).name

    assert name(X, 0.2) == "subspace-newton"
    # No penalty, or a tiny one beside the largest variance.
    assert name(X, 0.05) == name(X, 0.0) == "sampled-newton"
    assert name(X, 0.2, folds=5) == "sampled-newton"
    assert name(csr_array(X), 0.2) == "sampled-newton"
    # It is computed once.
    assert name(X, 0.2, Squared()) == "sampled-newton"


@pytest.mark.parametrize("loss", [Logistic(), Poisson(), Huber()], ids=lambda loss: loss.name)
def test_where_a_hessian_is_dear_the_optimum_is_the_same(loss):
    rng = np.random.default_rng(0)
    n, p = 3000, 320
    turn, _ = np.linalg.qr(rng.normal(size=(p, p)))
    normal = rng.normal(size=(n, p))
    X = 5 + (normal * np.logspace(0, -4, p)) @ turn
    y = rng.poisson(np.exp(normal @ rng.normal(size=p) / np.sqrt(p)))
    y = (y > 0 if loss.has_classes else y).astype(float)
    problem = Problem(X, y, loss, 1e-6, rng.random(n))
    found = solve(problem, Settings(method="subspace-newton"))
    expected = solve(problem, Settings(1e-10, method="newton-cholesky"))
    assert (found.method, expected.method) == ("subspace-newton", "newton-cholesky")
    assert found.reason is StopReason.CONVERGED
    gained = found.history[0].objective - expected.objective
    assert found.gap <= 1e-6 * gained
    assert -1e-9 * gained <= found.objective - expected.objective <= found.gap


@pytest.mark.slow
def test_rare_features(monkeypatch):
    # Eighty features, each in six rows of 20,000: one or two of them are in the sample.
    rng = np.random.default_rng(0)
    X = np.zeros((20_000, 90))
    X[:, :10] = rng.normal(size=(20_000, 10))
    for j in range(10, 90):
        X[rng.choice(20_000, 6, replace=False), j] = 1
    scores = X @ np.append(rng.normal(size=10) / 3, rng.normal(size=80) * 2)
    target = (scores + rng.logistic(size=20_000) > 0).astype(float)
    problem = Problem(X, target, Logistic(), 1e-4 / 20_000)

    def snapshots():
        settings = Settings(method="sampled-newton", tol=1e-6, max_iter=100)
        solution = solve(problem, settings)
        return len(solution.history), solution

    count, solution = snapshots()
    assert solution.objective == pytest.approx(solve(problem, Settings()).objective, abs=1e-7)
    assert count < 40
    # Without what is added for them to the diagonal it does not arrive.
    monkeypatch.setattr(Sample, "unseen", lambda sample: np.zeros(sample.rows.shape[1]))
    assert snapshots()[0] > 2 * count
