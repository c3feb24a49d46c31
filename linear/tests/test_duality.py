"""The duality gap bounds the distance to the optimum, which an independent solver finds."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from linear_oracle import LOSSES, NAMES, Dense, prepared, problem_of
from long_double import LONG, LongDouble, parts_of_loss
from provenglm.model.losses import Huber, Poisson, Softmax, Squared
from provenglm.model.problem import Problem
from provenglm.model.tweedie import Gamma, Tweedie
from provenglm.proof.duality import (
    _dual,
    _duality_gap,
    _terms,
    duality_gap,
    gap_of_residuals,
    known_bound,
)
from provenglm.solve import Settings, solve
from scipy.sparse import csr_array

MANY = pytest.mark.parametrize("loss", LOSSES, ids=NAMES)


def cases(loss, count=24):
    """Random small problems; those with an even number have weights, two of three an intercept."""
    for seed in range(count):
        rng = np.random.default_rng(seed)
        yield problem_of(
            loss,
            seed,
            n=int(rng.integers(6, 60)),
            p=int(rng.integers(1, 8)),
            l2=10 ** rng.uniform(-8, 1),
            weights=seed % 2 == 0,
            intercept=seed % 3 > 0,
            scales=(-2, 2),
        )


def exact(problem, objective):
    """The optimum in the solver's coordinates, and its value."""
    dense = Dense.of(problem, objective.scaling.center, objective.scaling.inverse)
    return dense, *dense.minimum(np.zeros((dense.X.shape[1], problem.loss.outputs)))


def bounds(objective, theta):
    """The gap at theta, (p + 1, K), with the value there."""
    snapshot = objective.snapshot(theta)
    return duality_gap(objective, snapshot), snapshot.objective


@pytest.mark.slow
@pytest.mark.parametrize("part", [1.0, 0.5])
@MANY
def test_gap_bounds_the_distance(loss, part):
    # Of coordinates from half of the rows the features' means are not 0.
    tight = 0
    for problem in cases(loss):
        objective, null, _ = prepared(problem, size=int(part * len(problem.target)))
        _, best, least = exact(problem, objective)
        rng = np.random.default_rng(1)
        for far in (0.0, 1e-6, 1e-4, 1e-2, 1.0, 30.0):
            away = rng.normal(size=best.shape)
            away[-1] *= objective.intercept
            theta = best + far * away
            gap, value = bounds(objective, theta)
            # Both objectives are sums with roundings of their size.
            rounding = 1e-13 * (1 + abs(value) + abs(least))
            assert gap >= value - least - rounding, (loss, far)
            assert gap >= -rounding
            assert np.isfinite(gap)
            tight += gap <= 100 * (value - least) + rounding
        # At points between the null model and the optimum too: those of a run.
        for way in (0.0, 0.3, 0.9, 0.999):
            theta = (1 - way) * null.theta + way * best
            gap, value = bounds(objective, theta)
            assert gap >= value - least - 1e-13 * (1 + abs(value) + abs(least))
    # And it is not just any large number: often of the distance's own size.
    assert tight > 24


@MANY
def test_the_gap_of_any_residuals_is_a_bound(loss):
    for problem in cases(loss):
        objective, null, _ = prepared(problem, size=len(problem.target))
        _, best, least = exact(problem, objective)
        rng = np.random.default_rng(1)
        for far, of_others in itertools.product((1e-4, 1e-2, 1.0), (0.0, 1e-3, 1.0)):
            away = far * rng.normal(size=best.shape)
            away[-1] *= objective.intercept
            snapshot = objective.snapshot(best + away)
            own = duality_gap(objective, snapshot)
            scores = snapshot.scores + of_others * rng.normal(size=snapshot.scores.shape)
            residual = loss.residual(scores, problem.target)
            gap = gap_of_residuals(objective, snapshot, residual)
            rounding = 1e-13 * (1 + abs(snapshot.objective) + abs(least))
            assert gap >= snapshot.objective - least - rounding
            if of_others == 0:
                # The same residuals, whose terms are not bounded but summed.
                assert min(gap, known_bound(objective, snapshot)) <= own * (1 + 1e-9) + rounding
        # The residuals at the optimum, from elsewhere: the distance itself, and nothing more.
        snapshot = objective.snapshot(null.theta)
        residual = loss.residual(objective.snapshot(best).scores, problem.target)
        gap = gap_of_residuals(objective, snapshot, residual)
        assert gap >= snapshot.objective - least - rounding


@MANY
def test_gap_vanishes_at_the_optimum(loss):
    for problem in cases(loss, 12):
        problem = replace(problem, l2=max(problem.l2, 1e-3))
        objective, _, _ = prepared(problem, size=len(problem.target) // 2)
        _, best, least = exact(problem, objective)
        gap, _ = bounds(objective, best)
        # The square of a rounding, over a penalty of a thousandth of the unit of the data at least.
        # Huber's is linear in what rounding leaves of the intercept's gradient.
        assert gap < (1e-8 if isinstance(loss, Huber) else 1e-10) * (1 + abs(least))


@MANY
def test_gap_shrinks_like_the_distance(loss):
    # Quadratic in the way to the optimum, as the distance itself: the ratio stays. Huber's is
    # linear in the residuals' mean, where samples outside epsilon have to give way.
    problem = problem_of(loss, n=60, p=3, l2=0.05)
    objective, _, _ = prepared(problem)
    _, best, _ = exact(problem, objective)
    away = np.random.default_rng(2).normal(size=best.shape)
    gaps = [bounds(objective, best + far * away)[0] for far in (1e-2, 1e-3, 1e-4)]
    for larger, smaller in itertools.pairwise(gaps):
        assert smaller < (0.2 if isinstance(loss, Huber) else 0.05) * larger


@MANY
def test_every_point_of_a_run(loss):
    for problem in cases(loss, 9):
        seen = []
        solution = solve(problem, Settings(tol=1e-12, watch=seen.append))
        objective, _, _ = prepared(problem)
        _, _, least = exact(problem, objective)
        for record in seen:
            assert record.gap >= record.objective - least - 1e-12 * (1 + abs(least))
        assert solution.gap >= solution.objective - least - 1e-12 * (1 + abs(least))


@MANY
def test_float32_is_a_bound_too(loss):
    problem = problem_of(loss, n=60, p=3, l2=1e-2, dtype=np.float32)
    objective, _, _ = prepared(problem)
    assert objective.rows.dtype == np.float32
    _, best, least = exact(problem, objective)
    rng = np.random.default_rng(0)
    for far in (0.0, 1e-3, 1e-1, 1.0):
        gap, value = bounds(objective, best + far * rng.normal(size=best.shape))
        assert gap >= value - least - 1e-6 * (1 + abs(value))


@MANY
def test_without_a_penalty_the_least_value_of_the_loss_bounds(loss):
    problem = problem_of(loss, l2=0.0)
    objective, null, _ = prepared(problem)
    gap = duality_gap(objective, null)
    least = float(objective.share @ loss.least(problem.target))
    assert gap == pytest.approx(null.objective - least)
    _, _, lowest = exact(problem, objective)
    assert gap >= null.objective - lowest


def test_the_interceptless_gap_is_the_gradient_over_the_penalty():
    # At the residuals themselves Fenchel's terms cancel.
    problem = problem_of(Squared(), l2=2.0, intercept=False)
    objective, null, _ = prepared(problem)
    theta = null.theta.copy()
    theta[:-1] = 0.1
    snapshot = objective.snapshot(theta)
    square = (snapshot.gradient[:-1] ** 2 / (2 * objective.penalty[:-1, None])).sum()
    assert duality_gap(objective, snapshot) == pytest.approx(square)


def in_long_double(problem, objective):
    """The problem in the objective's coordinates, with the exponents and digits of long double."""
    weight = problem.sample_weight
    weight = np.ones(len(problem.target)) if weight is None else weight
    counts, share = weight > 0, weight.astype(LONG) / weight.astype(LONG).sum()
    scaling = objective.scaling
    center, inverse = (np.asarray(x, LONG) for x in (scaling.center, scaling.inverse))
    ones = np.full((len(weight), 1), LONG(problem.fit_intercept))
    rows = np.hstack([(problem.features.astype(LONG) - center) * inverse, ones])
    return LongDouble(
        rows=rows[counts],
        target=problem.target[counts],
        share=share[counts],
        loss=problem.loss,
        l2=np.append(problem.l2 * inverse**2, 0),
        l1=np.append(problem.l1 * inverse, 0),
        center=center,
        scale=1 / inverse,
    )


def value_of(dense, theta):
    """F in long double; of Huber's loss for a scale of 1."""
    with np.errstate(over="ignore"):
        values = parts_of_loss(dense.loss, dense.rows @ theta, dense.target)[0]
    penalties = dense.l2 @ (theta**2).sum(axis=1) / 2 + dense.l1 @ np.abs(theta).sum(axis=1)
    return dense.share @ values + penalties


FAR = (1.0, 3.0, 10.0, 30.0, 40.0, 100.0, 300.0, 1e3, 1e4)


def points_far_away(best, has_intercept):
    """Points from which the intercept, the coefficients or both are far away, on both sides."""
    rng = np.random.default_rng(0)
    for size, sign, (coef, intercept) in itertools.product(FAR, (-1, 1), ((0, 1), (1, 0), (1, 1))):
        away = coef * rng.uniform(-1, 1, size=best.shape)
        away[-1] = 0
        away[-1, 0] = intercept * has_intercept
        yield (best + sign * size * away).astype(float)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("weights", [False, True])
def test_far_from_the_optimum(weights, dtype):
    # Scores of 1e4 have an exponential in long double, and none in float64: there the gap is
    # infinite, for a value that is cut off is not the loss's.
    ways = itertools.product(LOSSES, (True, False), (0.0, 1e-3), (0.1, 1e-4, 0.0))
    for loss, intercept, l1, l2 in ways:
        problem = problem_of(loss, n=30, l2=l2, weights=weights, intercept=intercept, dtype=dtype)
        problem = replace(problem, l1=l1)
        objective, _, _ = prepared(problem)
        dense = in_long_double(problem, objective)
        least, best = dense.newton(np.zeros((4, loss.outputs), LONG))
        counts = objective.share > 0
        for theta in points_far_away(best, intercept):
            value = value_of(dense, theta.astype(LONG))
            snapshot = objective.snapshot(theta)
            scores = snapshot.scores.astype(np.float64)
            gaps = [duality_gap(objective, snapshot), known_bound(objective, snapshot)]
            if l2 and not l1:
                residual = loss.residual(scores, problem.target)
                gaps.append(gap_of_residuals(objective, snapshot, residual))
            if not loss.is_exact(snapshot.scores[counts], problem.target[counts]):
                assert gaps == [np.inf] * len(gaps)
                continue
            assert np.isfinite(gaps[:2]).all()
            # Of the scores, and of a sum of products with them.
            unit = np.finfo(dtype).eps * (8 + 2 * np.abs(scores).max())
            assert min(gaps) >= value - least - unit * (1 + abs(value)), (loss, theta)


@pytest.mark.parametrize("way", [-100.0, -30.0, -8.0, 8.0, 30.0, 100.0])
@MANY
def test_far_intercepts_have_a_tight_bound(loss, way):
    problem = problem_of(loss, l2=0.1)
    objective, _, _ = prepared(problem)
    dense = in_long_double(problem, objective)
    least, best = dense.newton(np.zeros((4, loss.outputs), LONG))
    theta = best.astype(float)
    theta[-1, 0] += way
    distance = float(value_of(dense, theta.astype(LONG)) - least)
    gap, _ = bounds(objective, theta)
    assert (1 - 1e-12) * distance <= gap <= 4 * distance


@pytest.mark.parametrize("loss", [Poisson(), Tweedie(1.6), Gamma()], ids=lambda loss: loss.name)
def test_scores_of_rows_without_a_weight_are_not_asked(loss):
    problem = problem_of(loss, l2=0.1, weights=True)
    features = problem.features.copy()
    features[3] = -1e6 if isinstance(loss, Gamma) else 1e6  # its weight is 0
    objective, null, _ = prepared(replace(problem, features=features))
    snapshot = objective.snapshot(null.theta + np.array([[0.1], [0.1], [0.1], [0.0]]))
    assert not loss.is_exact(snapshot.scores, problem.target)
    assert np.isfinite(duality_gap(objective, snapshot))


def test_a_target_of_0_cuts_off_nothing_below():
    # The loss is e^(bz) / b there, which vanishes.
    loss, scores = Tweedie(1.5), np.array([[-1e6], [0.0]])
    assert loss.is_exact(scores, np.array([0.0, 1.0]))
    assert not loss.is_exact(scores, np.array([1.0, 0.0]))
    assert not loss.is_exact(-scores, np.array([0.0, 1.0]))


def test_a_class_without_samples():
    problem = problem_of(Softmax(3), l2=0.1)
    problem = replace(problem, loss=Softmax(4))
    objective, null, _ = prepared(problem)
    gap = duality_gap(objective, null)
    dense = Dense.of(problem, objective.scaling.center, objective.scaling.inverse)
    _, least = dense.minimum(null.theta, steps=40)
    assert np.isfinite(gap)
    assert gap >= null.objective - least - 1e-13


def test_all_residuals_of_huber_outside():
    problem = problem_of(Huber(1e-3), l2=0.5)
    objective, null, _ = prepared(problem)
    theta = null.theta + 100.0
    snapshot = objective.snapshot(theta)
    _, _, least = exact(problem, objective)
    gap = duality_gap(objective, snapshot)
    assert np.isfinite(gap)
    assert gap >= snapshot.objective - least


@pytest.mark.parametrize("far", [0.01, 0.3, 3.0])
@MANY
def test_the_dual_point_is_feasible(loss, far):
    # The residuals that the bound stands for, written out.
    for seed in range(6):
        problem = problem_of(loss, seed, l2=0.1, weights=True)
        objective, null, _ = prepared(problem, size=20)
        theta = null.theta + far * np.random.default_rng(seed).normal(size=null.theta.shape)
        snapshot = objective.snapshot(theta)
        dual = _dual(objective, snapshot.gradient[-1])
        target = problem.target[:, None]
        if isinstance(loss, Softmax):
            target = np.eye(3)[problem.target]
        residual = loss.residual(snapshot.scores, problem.target)
        u = dual.kept * residual + dual.constant + dual.target_factor * target
        share, dense = (
            objective.share,
            Dense.of(problem, objective.scaling.center, objective.scaling.inverse),
        )
        # The intercept is free.
        np.testing.assert_allclose(share @ u, 0, atol=1e-12 * max(1, float((share @ abs(u)).max())))
        conjugate = loss.conjugate(u, problem.target)
        assert np.all(np.isfinite(conjugate))
        products = (u * snapshot.scores).sum(axis=1)
        slack = float(share @ (loss.value(snapshot.scores, problem.target) + conjugate - products))
        # Exact, or for the logarithms a bound that is no more than a few times as large.
        terms = _terms(objective, snapshot, dual)
        assert -1e-12 <= slack <= terms * (1 + 1e-12) + 1e-12
        assert terms <= 10 * slack + 1e-9
        slope = (dense.X[:, :-1].T * share) @ u
        rest = objective.penalty[:-1, None] * theta[:-1] + slope
        expected = terms + (rest**2 / (2 * objective.penalty[:-1, None])).sum()
        least = float(share @ loss.least(problem.target))
        expected = min(expected, snapshot.objective - least)
        assert duality_gap(objective, snapshot) == pytest.approx(expected, rel=1e-9, abs=1e-13)


@pytest.mark.parametrize("l1", [0.0, 1e-3])
@MANY
def test_an_objective_of_nan_makes_no_gap_smaller(loss, l1):
    for problem in cases(loss):
        objective, null, _ = prepared(replace(problem, l1=l1))
        theta = null.theta + np.random.default_rng(1).normal(size=null.theta.shape)
        theta[-1] *= objective.intercept
        snapshot = objective.snapshot(theta)
        gap = duality_gap(objective, snapshot)
        assert not duality_gap(objective, replace(snapshot, objective=np.nan)) < gap


@pytest.mark.parametrize(
    ("form", "intercept"), [(np.asarray, False), (csr_array, False), (csr_array, True)]
)
def test_rounding_of_scores_is_in_the_gap(form, intercept):
    # Two columns 1e12 deviations from 0 tell the target by a difference, in which products cancel.
    rng = np.random.default_rng(0)
    X, best = 1e12 + rng.normal(size=(40, 2)), np.array([[1], [-1]]) / 3
    y = (X[:, 0] - X[:, 1]) / 3
    problem = Problem(form(X), y, Squared(), 1e-30, fit_intercept=intercept)
    objective, _, _ = prepared(problem)
    dense = LongDouble.of(X, y, None, problem.loss, (problem.l2, 0.0), intercept)
    least, wrong = float(dense.value(dense.theta_of(best, np.zeros(1)))), 0
    for near in 1e-2 * rng.normal(size=20):
        theta = objective.scaling.from_user((1 + near) * best, np.zeros(1))
        snapshot = objective.snapshot(theta)
        at = dense.theta_of(*objective.scaling.to_user(theta))
        distance = float(dense.value(at)) - least
        wrong += distance > _duality_gap(objective, snapshot, np.inf)
        assert distance <= duality_gap(objective, snapshot) < 1e-2
        assert distance <= known_bound(objective, snapshot) < 1e-2
    assert wrong > 0


def test_ordinary_scores_have_next_to_no_rounding_in_the_gap():
    for loss in LOSSES:
        problem = problem_of(loss, n=200, p=100, l2=1e-3)
        solution = solve(problem, Settings(tol=1e-12))
        assert solution.score_error < 1e-11
        objective, _, _ = prepared(problem)
        theta = objective.scaling.from_user(solution.coef, solution.intercept)
        snapshot = objective.snapshot(theta)
        bare = _duality_gap(objective, snapshot, np.inf)
        assert duality_gap(objective, snapshot) - bare < 1e-3 * bare + 1e-20


def test_scores_of_an_intercept_alone_are_exact():
    objective, _, _ = prepared(problem_of(Squared()))
    theta = np.zeros((4, 1))
    theta[-1] = 1e12
    assert objective.score_error(theta) == 0
    theta[0] = 1e-100
    assert 0 < objective.score_error(theta) < 1e-99
