"""Products with a sample's Hessian, against the matrix; which way is taken; what arrives."""

from dataclasses import replace

import numpy as np
import pytest
from linear_oracle import LOSSES, NAMES, Dense, curvatures, prepared, problem_of
from provenglm import constants
from provenglm.methods.base import Target
from provenglm.methods.sampled_newton_cg import SampledNewtonCG, SampleHessian, SecondMoments
from provenglm.model.float32_copy import in_float32
from provenglm.model.losses import Logistic, Poisson, Softmax
from provenglm.model.problem import Problem
from provenglm.model.shifts import centre_classes
from provenglm.model.solution import Settings, StopReason
from provenglm.solve import minimise, solve
from walking import walk

MANY = pytest.mark.parametrize("loss", LOSSES, ids=NAMES)

PENALTIES = [
    {},
    {"weights": True},
    {"intercept": False},
    {"l2": 0.0},
    {"l2": 1e-9, "scales": (-3, 3)},
]


def case(loss, n=300, p=5, **how):
    problem = problem_of(loss, n=n, p=p, **{"l2": 1e-2, **how})
    objective, null, sample = prepared(problem)
    sample.rare = objective.rare = None
    dense = Dense.of(problem, objective.scaling.center, objective.scaling.inverse)
    return objective, null.theta, sample, dense


@pytest.mark.parametrize("how", PENALTIES, ids=str)
def test_inverse_and_effective_dimension(how):
    problem = problem_of(Softmax(4), n=300, p=5, **{"l2": 1e-2, **how})
    objective, _, sample = prepared(problem)
    sample.rare = None
    second = SecondMoments(sample, objective)
    # At the null model.
    mean = np.exp(objective.null()[0][-1])
    mean /= mean.sum()
    curvature = (mean * (1 - mean)).mean()
    data = curvature * (sample.rows.T * sample.share) @ sample.rows
    if not objective.intercept:
        data[-1, -1] = curvature
    exact = np.linalg.inv(data + np.diag(sample.penalty))
    inverse = second.inverse_at(curvature)
    np.testing.assert_allclose(inverse, exact, rtol=1e-6, atol=1e-7 * np.abs(exact).max())
    assert second.dimension == pytest.approx(np.trace(data @ exact), rel=1e-6)
    # Of a curvature that is near it is the same, and of one that is far another.
    assert second.inverse_at(1.9 * curvature) is inverse
    exact = np.linalg.inv(3 * data + np.diag(sample.penalty))
    far = second.inverse_at(3 * curvature)
    np.testing.assert_allclose(far, exact, rtol=1e-6, atol=1e-7 * np.abs(exact).max())


@pytest.mark.parametrize("weights", [False, True])
@MANY
def test_products_and_mean_curvature(loss, weights):
    objective, theta, sample, dense = case(loss, weights=weights)
    rng = np.random.default_rng(0)
    theta = theta + 0.1 * rng.normal(size=theta.shape)
    part = slice(20, 220)
    rows = sample.rows.astype(np.float32)
    hessian = SampleHessian(objective, sample, rows, theta, part)
    some = dense.part(part)
    vector = rng.normal(size=theta.shape)
    exact = some.hessian(theta) @ vector.ravel()
    if loss.name == "huber":
        h = loss.second_derivative(some.scores(theta), some.target).diagonal[:, 0]
        exact = some.X.T @ (some.share * h * (some.X @ vector[:, 0])) + some.penalty * vector[:, 0]
    got = hessian.times(vector)
    # In float32.
    np.testing.assert_allclose(got.ravel(), exact, atol=2e-6 * np.abs(exact).max())
    scores = some.scores(theta)
    h = np.einsum("ikk->ik", curvatures(loss, scores, some.target))
    if loss.name == "huber":
        h = loss.second_derivative(scores, some.target).diagonal
    assert hessian.curvature == pytest.approx((some.share @ h).mean(), rel=1e-5)


@pytest.mark.parametrize("loss", [Logistic(), Softmax(4), Poisson()], ids=lambda loss: loss.name)
def test_conjugate_gradients_solve(monkeypatch, loss):
    monkeypatch.setattr(constants, "SAMPLE_FORCING", 1e-5)
    objective, theta, sample, dense = case(loss)
    theta = centre_classes(theta)
    hessian = SampleHessian(objective, sample, sample.rows.astype("f"), theta, slice(0, 300))
    hessian.inverse = SecondMoments(sample, objective).inverse_at(0.1)
    gradient = centre_classes(np.random.default_rng(0).normal(size=theta.shape))
    matrix = dense.hessian(theta)
    exact = np.linalg.lstsq(matrix, gradient.ravel(), rcond=1e-12)[0]
    exact = centre_classes(exact.reshape(theta.shape))
    np.testing.assert_allclose(hessian.solve(gradient), exact, atol=1e-3 * np.abs(exact).max())


def test_rare_columns_have_a_curvature():
    objective, theta, sample, _ = case(Softmax(3))
    sample.rare = np.arange(5) == 2
    rows = sample.rows.astype("f")
    with_, sample.rare = SampleHessian(objective, sample, rows, theta, slice(0, 300)), None
    without = SampleHessian(objective, sample, rows, theta, slice(0, 300))
    vector = np.ones(theta.shape)
    difference = with_.times(vector) - without.times(vector)
    assert np.all(difference[2] == pytest.approx(with_.curvature, rel=1e-5))
    assert not difference[[0, 1, 3, 4, 5]].any()


def test_each_step_has_other_rows_of_the_sample(monkeypatch):
    objective, theta, sample, _ = case(Softmax(3))
    method = SampledNewtonCG(objective, sample, 100, True)
    point, parts = objective.snapshot(centre_classes(theta)), []
    init = SampleHessian.__init__

    def counted(hessian, *arguments):
        parts.append(arguments[-1])
        init(hessian, *arguments)

    monkeypatch.setattr(SampleHessian, "__init__", counted)
    for _ in range(4):
        method.step(point, Target(0.0, 0.0, np.inf))
    assert parts == [slice(0, 100), slice(100, 200), slice(200, 300), slice(0, 100)]


def test_start_is_about_the_optimum_of_the_sample():
    objective, theta, sample, dense = case(Softmax(3), n=4000, l2=1e-2)
    method = SampledNewtonCG(objective, sample, 2000, True)
    ((level, enough),) = method.levels()
    before = objective.passes
    first = method.start(minimise(level, theta, enough))
    some = dense.part(slice(0, 2000))
    _, least = some.minimum(centre_classes(theta))
    assert (
        0 <= some.value(first) - least < constants.ERROR_OF_A_START * np.log(3) * theta.size / 2000
    )
    np.testing.assert_allclose(first.mean(axis=1), 0, atol=1e-12)
    assert level.objective.passes > 0
    assert objective.passes == before


def test_a_start_that_is_given_is_kept():
    rng = np.random.default_rng(0)
    problem = problem_of(Softmax(3), n=4000, p=5, l2=1e-2)
    best = solve(problem, Settings(tol=1e-10))
    given = best.coef + 0.01 * rng.normal(size=(5, 3)), best.intercept + 1
    solution = solve(problem, Settings(max_iter=0, method="sampled-newton-cg"), given)
    np.testing.assert_allclose(solution.coef, centre_classes(given[0]), atol=1e-12)


@pytest.mark.parametrize(
    ("l2", "classes", "has_rows"),
    [(1e-1, 3, True), (1e-6, 3, False), (1e-2, 10, True), (1e-3, 60, False)],
)
def test_it_gives_up_where_the_effective_dimension_and_the_classes_ask_for_more_rows(
    monkeypatch, l2, classes, has_rows
):
    monkeypatch.setattr(constants, "DUAL_CURVATURE_OF_DENSE", 0)
    rng = np.random.default_rng(0)
    X = rng.normal(size=(4000, 60)) * np.logspace(0, -2, 60)
    scores = X[:, :classes] + rng.gumbel(size=(4000, classes))
    problem = Problem(X, scores.argmax(axis=1), Softmax(classes), l2)
    solution = solve(problem, Settings(method="sampled-newton-cg"))
    assert (solution.method == "sampled-newton-cg") is has_rows
    assert ("sampled-newton-cg would need" in solution.why) is not has_rows
    assert solution.reason.is_success


@pytest.mark.parametrize("dtype", ["float64", "float32", "uint8"])
@pytest.mark.parametrize("weights", [False, True])
@pytest.mark.parametrize("loss", [Softmax(5), Logistic()], ids=["softmax", "logistic"])
def test_arrives(monkeypatch, loss, weights, dtype):
    monkeypatch.setattr(constants, "MOST_WEIGHTS", 0)
    monkeypatch.setattr(constants, "LEAST_ROWS", 300)
    monkeypatch.setattr(constants, "ROWS_OF_A_DIMENSION", 0)
    rng = np.random.default_rng(3)
    X = rng.normal(size=(3000, 30)) @ rng.normal(size=(30, 30))
    X = (X - X.min()) * 255 / np.ptp(X) if dtype == "uint8" else X
    X = X.astype(dtype)
    Z = (X - X.mean(axis=0)) / X.std(axis=0)
    scores = Z @ rng.normal(size=(30, 5)) / 3 + rng.gumbel(size=(3000, 5))
    target = scores.argmax(axis=1) if loss.outputs > 1 else (scores[:, 0] > scores[:, 1]) * 1.0
    weight = rng.random(3000) if weights else None
    problem = Problem(X, target, loss, 1e-2, weight)
    solution = solve(problem, Settings(tol=1e-6, method="sampled-newton-cg"))
    assert solution.method == "sampled-newton-cg"
    # With MOST_WEIGHTS of 0 there is no proof by a Hessian.
    assert solution.reason.is_success or solution.reason is StopReason.UNPROVEN
    best = solve(problem, Settings(tol=1e-11, method="sampled-newton"))
    gained = solution.history[0].objective - best.objective
    distance = solution.objective - best.objective
    assert distance <= 1e-6 * np.log(5) + 1e-6 * gained
    assert distance <= solution.gap + 1e-12


@pytest.mark.parametrize("dtype", ["float64", "uint8"])
def test_the_copy_in_float32_is_the_same_objective(dtype):
    rng = np.random.default_rng(0)
    X = (
        (1e3 + 10.0 ** rng.uniform(-6, 6, 8) * rng.normal(size=(500, 8)))
        if dtype != "uint8"
        else (rng.integers(0, 255, (500, 8)).astype("uint8"))
    )
    problem = Problem(X, rng.integers(0, 3, 500), Softmax(3), 1e-2)
    objective, null, _ = prepared(problem)
    copy = in_float32(objective)
    theta = null.theta + rng.normal(size=null.theta.shape)
    one, other = objective.snapshot(theta), copy.snapshot(theta)
    assert copy.rows.dtype == np.float32
    assert other.objective == pytest.approx(one.objective, rel=1e-6)
    np.testing.assert_allclose(other.gradient, one.gradient, atol=1e-5)


def test_passes_grow():
    rng = np.random.default_rng(0)
    X = (rng.normal(size=(2000, 300)) * np.logspace(0, -3, 300)).astype(np.float32)
    scores = X @ rng.normal(size=(300, 9)) * 3 + rng.gumbel(size=(2000, 9))
    problem = Problem(X, scores.argmax(axis=1), Softmax(9), 1 / 2000)
    solution = solve(problem, Settings(tol=1e-6))
    passes = [record.passes for record in solution.history]
    assert np.all(np.diff(passes) >= 1)
    assert solution.reason.is_success


def test_where_float32_leads_no_lower_the_rows_themselves_go_on():
    rng = np.random.default_rng(0)
    # Numbers that float32 rounds, and that a copy in it would have rounded for good.
    X = rng.normal(size=(400, 6)) + 1e4
    problem = Problem(X, rng.integers(0, 3, 400), Softmax(3), 1e-3)
    objective, null, sample = prepared(problem)
    method = SampledNewtonCG(objective, sample, 400)
    assert method.is_single
    *_, (rough, _) = walk(method, null.theta)
    assert rough.is_single
    method.in_float64()
    *_, (last, _) = walk(method, rough.theta)
    assert last.scores.dtype == np.float64
    assert last.objective < rough.objective + 1e-7
    dense = Dense.of(problem, objective.scaling.center, objective.scaling.inverse)
    assert last.objective == pytest.approx(dense.value(last.theta), rel=1e-13)
    _, least = dense.minimum(centre_classes(null.theta))
    assert last.objective == pytest.approx(least, rel=1e-13)


def test_max_time_ends_the_way_to_a_start():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(9000, 40))
    y = (3 * X[:, :8] + rng.gumbel(size=(9000, 8))).argmax(axis=1)
    problem = Problem(X, y, Softmax(8), 1e-3 / 9000)
    settings = Settings(method="sampled-newton-cg")
    passes = [
        solve(problem, replace(settings, max_time=seconds)).history[0].passes
        for seconds in (1e-9, 1e9)
    ]
    assert passes[0] < 0.6 * passes[1]
