"""The certificate: no bound is below the true distance, and some are as near as they can be."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import random_problems
from provenglm import GLMClassifier
from provenglm.model.losses import Huber, Logistic, Loss, Poisson, Softmax, Squared
from provenglm.model.objective import Objective, Scaling
from provenglm.model.sample import Sample
from provenglm.model.tweedie import Gamma, Tweedie
from provenglm.proof.certificate import Certificate, Model, Point
from provenglm.rows.kinds import rows_of
from provenglm.rows.table import Table
from provenglm.workers import Workers
from scipy.sparse import csr_array

LOSSES = [Logistic(), Softmax(3), Squared(), Huber(), Poisson(), Tweedie(1.7), Gamma()]


def certificate(X, y, loss: Loss, share=None, intercept: bool = True) -> Certificate:
    share = np.full(len(y), 1 / len(y)) if share is None else share
    dense = X.toarray() if hasattr(X, "toarray") else X
    scale = np.where(dense.std(axis=0) > 0, dense.std(axis=0), 1.0)
    return Certificate(table_of(X, y, share), loss, intercept, dense.mean(axis=0), scale)


def table_of(X, y, share) -> Table:
    return Table(rows_of(X), y, share, Workers(10))


def targets(loss: Loss, scores: np.ndarray, random: np.random.Generator) -> np.ndarray:
    n = len(scores)
    if isinstance(loss, Logistic):
        y = (random.random(n) < 1 / (1 + np.exp(-scores))).astype(float)
        y[:2] = 0, 1
        return y
    if isinstance(loss, Softmax):
        return random.integers(0, loss.outputs, n)
    if isinstance(loss, Poisson):
        return random.poisson(np.exp(np.clip(0.3 * scores, -5, 3))).astype(float) + (scores > 1)
    if isinstance(loss, Tweedie):
        y = random.gamma(2, np.exp(np.clip(0.3 * scores, -5, 3)))
        return y if isinstance(loss, Gamma) else y * (random.random(n) < 0.8)
    return scores + random.standard_normal(n)


def newton(X, y, share, loss: Loss, l2: float, intercept: bool) -> tuple[float, np.ndarray]:
    """Return the optimum in float64, and where it is, K columns."""
    rows = np.column_stack([X, np.ones(len(y))]) if intercept else X
    penalty = np.where(np.arange(rows.shape[1]) < X.shape[1], l2, 0.0)
    return random_problems.newton(random_problems.Smooth(rows, y, share, loss, penalty))


def drawn(X, y, loss: Loss, intercept: bool, rows) -> tuple[Sample, Scaling]:
    """Return some rows, as a fit has them in memory, and their coordinates."""
    deviation = X.std(axis=0)
    center = X.mean(axis=0) if intercept else np.zeros(X.shape[1])
    scaling = Scaling(center, 1 / np.where(deviation > 0, deviation, 1.0))
    scaled = np.column_stack([(X[rows] - center) * scaling.inverse, np.full(len(rows), intercept)])
    share, penalty = np.full(len(rows), 1 / len(rows)), np.zeros(scaled.shape[1])
    return Sample(scaled, y[rows], share, loss, penalty, Workers(10), indices=rows), scaling


def bounds(proof: Certificate, coef, bias, l2: float, rows=None) -> tuple[float, float]:
    point = proof.at(Model(coef, bias, l2))
    assert isinstance(point, Point)
    some = proof.all() if rows is None else proof.subset(rows)
    return proof.penalty_bound(point), proof.newton_bound(point, some)


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.name)
def test_no_bound_is_below_the_truth(loss: Loss, seed: int) -> None:
    random = np.random.default_rng(seed)
    n, p = int(random.integers(10, 150)), int(random.integers(1, 7))
    X = random.standard_normal((n, p)) * 10 ** random.uniform(-2, 2, p)
    y = targets(loss, X @ random.standard_normal(p) / X.std(), random)
    if random.random() < 0.4:
        X[:, -1] = X[:, 0] + 1e-6 * random.standard_normal(n)
    X = X + random.choice([0, 10.0], p)
    share = random.random(n) * (random.random(n) < 0.8) if seed % 2 else np.ones(n)
    share[:2] = 1.0
    share /= share.sum()
    intercept, l2 = seed % 3 > 0, 10 ** random.uniform(-6, 0)
    best, theta = newton(X, y, share, loss, l2, intercept)
    proof = certificate(csr_array(X) if seed % 4 == 3 else X, y, loss, share, intercept)
    for distance in (0, 1e-7, 1e-4, 1e-2):
        moved = theta * (1 + distance * random.standard_normal(theta.shape))
        coef, bias = moved[:p], moved[-1] if intercept else np.zeros(loss.outputs)
        scores = X @ coef + bias
        losses = loss.value(scores, y)
        true = float(share @ losses) + l2 / 2 * float(np.square(coef).sum()) - best
        for rows in (None, random.permutation(n)[: n // 2]):
            for bound in bounds(proof, coef, bias, l2, rows):
                assert bound >= true - 1e-13 * (1 + abs(best))
        point = proof.at(Model(coef, bias, l2))
        of_sample = proof.subset_of_sample(
            *drawn(X, y, loss, intercept, random.integers(0, n, 2 * n))
        )
        # Features that are far off are centred by the proof itself.
        is_far = intercept and seed % 4 != 3 and np.abs(X.mean(axis=0) / X.std(axis=0)).max() > 100
        assert (of_sample is None) == is_far
        if of_sample is not None:
            assert proof.newton_bound(point, of_sample) >= true - 1e-13 * (1 + abs(best))


@pytest.mark.parametrize("offset", [0.0, 30.0])
@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.name)
def test_the_sums_of_a_snapshot_stand_for_a_pass(loss: Loss, offset: float) -> None:
    random = np.random.default_rng(1)
    n, p, l2 = 200, 4, 1e-3
    X = random.standard_normal((n, p)) * [1, 5, 0.1, 1] + offset * np.array([1, 0, 0.1, 0])
    y = targets(loss, (X - X.mean(axis=0)) @ random.standard_normal(p), random)
    share = random.random(n) * (random.random(n) < 0.8)
    share /= share.sum()
    best, theta = newton(X, y, share, loss, l2, True)
    theta *= 1 + 1e-4 * random.standard_normal(theta.shape)
    inverse = 1 / X.std(axis=0)
    scaling = Scaling(X.mean(axis=0), inverse)
    start = scaling.from_user(theta[:p], theta[p])
    penalty = np.append(l2 * inverse**2, 0.0)
    rows = rows_of(X, np.dtype(np.float64))
    objective = Objective(Table(rows, y, share, Workers(10)), loss, scaling, penalty, True)
    snapshot = objective.snapshot(start)
    coef, bias = scaling.to_user(start)
    model = Model(coef, bias, l2)

    proof, other = certificate(X, y, loss, share), certificate(X, y, loss, share)
    point, expected = proof.at(model, snapshot), other.at(model)
    assert isinstance(point, Point)
    assert isinstance(expected, Point)
    assert point.objective == pytest.approx(expected.objective, 1e-14)
    assert np.all(np.abs(point.gradient - expected.gradient) <= point.error + expected.error)
    if loss.has_classes:
        # Instead of the residuals' squares it has the losses, which are larger.
        assert np.all(point.error >= expected.error * (1 - 1e-9))
        assert np.all(point.error <= 2 * expected.error)
    else:
        assert np.allclose(point.error, expected.error, rtol=1e-9, atol=0)
    true = snapshot.objective - best
    assert proof.newton_bound(point, proof.all()) <= 1.2 * true
    for rows_of_it in (proof.all(), proof.subset(np.arange(0, n, 2))):
        assert proof.newton_bound(point, rows_of_it) >= true * (1 - 1e-6)

    # Features that are far off are centred, and the sums are not of those.
    center = X.mean(axis=0) + 1000 * X.std(axis=0)
    far = Certificate(table_of(X, y, share), loss, True, center, X.std(axis=0))
    assert np.array_equal(far.at(model, snapshot).gradient, far.at(model).gradient)


@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.name)
def test_the_rows_of_a_sample_prove_what_they_would_in_the_users_coordinates(
    loss: Loss, intercept: bool
) -> None:
    random = np.random.default_rng(2)
    n, p, k, l2 = 300, 4, loss.outputs, 1e-3
    X = random.standard_normal((n, p)) * [1, 50, 0.1, 1] + [3, 0, 0.5, 0]
    y = targets(loss, ((X - X.mean(axis=0)) / X.std(axis=0)) @ random.standard_normal(p), random)
    share = random.random(n)
    share /= share.sum()
    proof = certificate(X, y, loss, share, intercept)
    _, theta = newton(X, y, share, loss, l2, intercept)
    theta *= 1 + 1e-4 * random.standard_normal(theta.shape)
    point = proof.at(Model(theta[:p], theta[-1] if intercept else np.zeros(k), l2))
    rows = random.permutation(n)[:150]
    expected = proof.newton_bound(point, proof.subset(rows))
    assert np.isfinite(expected)
    for indices in (rows, np.repeat(rows, 3), np.concatenate([rows, rows[:50]])):
        of_sample = proof.subset_of_sample(*drawn(X, y, loss, intercept, indices))
        assert proof.newton_bound(point, of_sample) == pytest.approx(expected, rel=1e-6)


def test_a_sample_is_no_proof_where_its_coordinates_leave_something_out() -> None:
    random = np.random.default_rng(0)
    X, y = random.standard_normal((50, 2)), random.standard_normal(50)
    sample, scaling = drawn(X, y, Squared(), True, np.arange(20))
    proof = certificate(X, y, Squared())
    assert proof.subset_of_sample(sample, scaling) is not None
    assert proof.subset_of_sample(sample, Scaling(scaling.center, np.array([1.0, 0.0]))) is None
    assert proof.subset_of_sample(replace(sample, indices=None), scaling) is None
    far = certificate(X + 1000, y, Squared())
    assert far.subset_of_sample(*drawn(X + 1000, y, Squared(), True, np.arange(20))) is None


def test_all_rows_of_a_parabola_give_the_distance_itself() -> None:
    random = np.random.default_rng(0)
    X, y = random.standard_normal((60, 3)), random.standard_normal(60)
    share = np.full(60, 1 / 60)
    best, theta = newton(X, y, share, Squared(), 0.1, True)
    coef, bias = theta[:3] + 0.01, theta[-1]
    true = float(share @ (0.5 * (X @ coef + bias - y[:, None]) ** 2)[:, 0])
    true += 0.05 * float(np.square(coef).sum()) - best
    assert bounds(certificate(X, y, Squared()), coef, bias, 0.1)[1] == pytest.approx(true, 1e-9)


def test_separable_classes_without_a_penalty_are_never_proven() -> None:
    X = np.array([[-2.0], [-1.0], [1.0], [2.0]])
    proof = certificate(X, np.array([0.0, 0, 1, 1]), Logistic())
    for weight in (1.0, 10.0, 30.0, 100.0):
        for rows in (None, np.array([0, 3])):
            assert bounds(proof, np.full((1, 1), weight), np.zeros(1), 0.0, rows)[1] == np.inf


def test_a_poisson_loss_without_events_is_never_proven() -> None:
    """Its infimum, 0, is not attained: the bound of one row is exp(z) or nothing."""
    proof = certificate(np.zeros((1, 1)), np.zeros(1), Poisson())
    for score in (-3.0, 0.0, 2.0):
        bound = bounds(proof, np.zeros((1, 1)), np.full(1, score), 1.0)[1]
        assert bound >= np.exp(score) * (1 - 1e-12)


def test_nearly_collinear_columns_without_a_penalty_are_never_proven() -> None:
    random = np.random.default_rng(0)
    X = random.standard_normal((200, 3))
    X[:, 2] = X[:, 0] + X[:, 1] + 1e-8 * random.standard_normal(200)
    y = (random.random(200) < 0.5).astype(float)
    proof = certificate(X, y, Logistic())
    assert bounds(proof, np.zeros((3, 1)), np.zeros(1), 0.0)[1] == np.inf


def test_a_set_without_a_rare_column_says_nothing_unless_it_is_penalised() -> None:
    random = np.random.default_rng(0)
    X = random.standard_normal((100, 2))
    X[1:, 1] = 0
    y = (random.random(100) < 0.5).astype(float)
    proof, rows = certificate(csr_array(X), y, Logistic()), np.arange(1, 100)
    coef, bias = np.full((2, 1), 0.01), np.zeros(1)
    assert bounds(proof, coef, bias, 0.0, rows)[1] == np.inf
    assert np.isfinite(bounds(proof, coef, bias, 1.0, rows)[1])


def test_rows_without_weight_and_shifts_of_all_classes_change_nothing() -> None:
    random = np.random.default_rng(0)
    X, y = random.standard_normal((80, 3)), random.integers(0, 3, 80)
    coef, bias = random.standard_normal((3, 3)) * 0.1, random.standard_normal(3) * 0.1
    coef -= coef.mean(axis=1, keepdims=True)
    one = bounds(certificate(X, y, Softmax(3)), coef, bias, 0.1)
    shifted = bounds(certificate(X, y, Softmax(3)), coef, bias + 5, 0.1)
    np.testing.assert_allclose(shifted, one, 1e-9)
    more, share = np.vstack([X, np.full(3, 1e9)]), np.append(np.full(80, 1 / 80), 0)
    table = table_of(more, np.append(y, 0), share)
    proof = Certificate(table, Softmax(3), True, X.mean(0), X.std(0))
    np.testing.assert_allclose(bounds(proof, coef, bias, 0.1), one, 1e-6)


@pytest.mark.parametrize("strength", [1.0, 1e4, np.inf])
def test_a_fit_on_raw_scales_has_a_gap_as_small_as_tol(strength: float) -> None:
    """The duality gap alone is nearly all of the objective there."""
    random = np.random.default_rng(0)
    X = random.standard_normal((20_000, 20)) * 10 ** random.uniform(-2, 2, 20)
    X += 3 * X.std(axis=0)
    scores = ((X - X.mean(axis=0)) / X.std(axis=0)) @ random.standard_normal(20)
    y = random.random(20_000) < 1 / (1 + np.exp(-scores))
    model = GLMClassifier(C=strength).fit(X, y)
    exact = GLMClassifier(C=strength, tol=1e-13).fit(X, y)
    assert model.objective_ - exact.objective_ <= model.gap_ + 1e-14
    assert model.gap_ <= 1e-6 * (np.log(2) - model.objective_)


def dependent(kind: str, random: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Return columns that span as many dimensions as some of them, which come second."""
    X = random.standard_normal((n, 3))
    if kind == "one-hot":
        groups = np.eye(4)[random.integers(0, 4, n)]
        return np.column_stack([X, groups]), np.column_stack([X, groups[:, 1:]])
    if kind == "duplicate":
        return np.column_stack([X, X[:, 0], -X[:, 1], -2 * X[:, 2]]), X
    if kind == "constant":
        return np.column_stack([X, np.full(n, 3.0), np.full(n, 0.1)]), X
    if kind == "far off":
        X += [0.0, 1e3, 1.7e9]
        groups = np.eye(4)[random.integers(0, 4, n)]
        years = random.integers(1950, 2024, n)
        base = np.column_stack([X, groups[:, 1:], years])
        return np.column_stack([base, 2024 - years, groups[:, 0], X[:, 1]]), base
    whole = random.integers(-9, 9, (n, 2)).astype(float)
    return np.column_stack([X, whole, whole @ [2, -1]]), np.column_stack([X, whole])


@pytest.mark.parametrize("way", ["all", "of sample", "sparse"])
@pytest.mark.parametrize("kind", ["one-hot", "duplicate", "constant", "whole", "far off"])
@pytest.mark.parametrize(
    "loss", [Logistic(), Softmax(3), Squared(), Poisson()], ids=lambda x: x.name
)
def test_exact_sums_of_columns_are_proven_without_a_penalty(loss, kind, way) -> None:
    random = np.random.default_rng(3)
    n = 300
    X, base = dependent(kind, random, n)
    alike = (base - base.mean(axis=0)) / base.std(axis=0)
    y = targets(loss, alike @ random.standard_normal(base.shape[1]), random)
    share = np.full(n, 1 / n)
    best, theta = newton(alike, y, share, loss, 0.0, True)
    theta = theta + 1e-3 * random.standard_normal(theta.shape)
    scores = alike @ theta[:-1] + theta[-1]
    true = float(share @ loss.value(scores, y)) - best
    # The same model, with other coefficients for the columns that are too many.
    size = np.maximum(X.std(axis=0), 1e-3)
    alike = np.column_stack([(X - X.mean(axis=0)) / size, np.ones(n)])
    coef = np.linalg.lstsq(alike, scores, rcond=None)[0]
    weights = coef[:-1] / size[:, None]
    if way == "sparse" and kind == "far off":
        pytest.skip("sparse rows are not centred")
    proof = certificate(csr_array(X) if way == "sparse" else X, y, loss)
    point = proof.at(Model(weights, coef[-1] - X.mean(axis=0) @ weights, 0.0))
    assert isinstance(point, Point)
    rows = proof.all()
    if way == "of sample" and kind not in ("constant", "far off"):  # which it leaves out
        rows = proof.subset_of_sample(*drawn(X, y, loss, True, np.arange(n)))
    bound = proof.newton_bound(point, rows)
    assert true * (1 - 1e-6) <= bound <= 1.2 * true


def test_sums_that_are_not_exact_in_every_row_are_not_proven() -> None:
    random = np.random.default_rng(4)
    X, _ = dependent("whole", random, 200)
    y = (random.random(200) < 0.5).astype(float)
    almost, rounded, elsewhere = X.copy(), X.copy(), X.copy()
    almost[7, -1] += 1e-7
    rounded[:, -1] = X[:, 0] + X[:, 1]
    elsewhere[150, -1] += 5  # in none of the rows of the Hessian
    wavers, far_off = X.copy(), X.copy()
    wavers[:, -1] = 0.1
    wavers[50, -1] += 1e-12
    far_off[:, 0] += 1e6
    far_off[7, -1] += 1e-7
    cases = (almost, None), (rounded, None), (elsewhere, np.arange(100))
    for other, rows in (*cases, (wavers, None), (far_off, None)):
        for form in (np.asarray, csr_array):
            proof = certificate(form(other), y, Logistic())
            assert bounds(proof, np.zeros((6, 1)), np.zeros(1), 0.0, rows)[1] == np.inf
