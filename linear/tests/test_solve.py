"""The run as a whole: why it ends, what it answers, and that equal problems have equal answers."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from linear_oracle import LOSSES, NAMES, Dense, prepared, problem_of
from provenglm import constants, solve as solve_module, stopping
from provenglm.model import objective as objective_module
from provenglm.model.losses import Huber, Logistic, Poisson, Softmax, Squared
from provenglm.model.problem import Problem
from provenglm.proof.prover import Prover
from provenglm.solve import Settings, StopReason, solve

MANY = pytest.mark.parametrize("loss", LOSSES, ids=NAMES)
METHODS = pytest.mark.parametrize("method", [None, "sampled-newton"])
EXACT = Settings(tol=1e-12)


def least(problem):
    """The optimum, by the oracle."""
    objective, null, _ = prepared(problem)
    dense = Dense.of(problem, objective.scaling.center, objective.scaling.inverse)
    return dense.minimum(null.theta)[1]


def predictions(problem, solution):
    return problem.features.astype(np.float64) @ solution.coef + solution.intercept


def value_at(problem, solution):
    """The objective of what was returned, on the rows as they are."""
    theta = np.vstack([solution.coef, solution.intercept])
    return Dense.of(problem).value(theta)


@METHODS
@MANY
def test_arrives(loss, method):
    # Scales are equal here, so that each method can.
    problem = problem_of(loss, n=700, p=4, l2=1e-2, weights=True)
    solution = solve(problem, Settings(tol=1e-6, method=method, max_iter=300))
    assert solution.reason is StopReason.CONVERGED, solution
    _, null, _ = prepared(problem)
    best = least(problem)
    gained = null.objective - best
    # The estimate, where it ended the run, is an estimate.
    assert solution.objective - best <= 1e-5 * gained
    assert value_at(problem, solution) == pytest.approx(solution.objective, rel=1e-6)
    assert solution.coef.shape == (4, loss.outputs)
    assert solution.intercept.shape == (loss.outputs,)
    assert solution.coef.dtype == solution.intercept.dtype == np.float64
    assert solution.scores.shape == (700, loss.outputs)
    np.testing.assert_allclose(solution.scores, predictions(problem, solution), atol=1e-5)


@METHODS
@MANY
def test_history(loss, method):
    problem = problem_of(loss, n=700, p=4, l2=1e-2)
    seen = []
    solution = solve(problem, Settings(method=method, max_iter=20, watch=seen.append))
    assert seen == solution.history
    assert [record.iteration for record in seen] == list(range(len(seen)))
    for name in ("passes", "seconds"):
        numbers = [getattr(record, name) for record in seen]
        assert all(new >= old for old, new in itertools.pairwise(numbers))
    values = [record.objective for record in seen]
    assert all(new <= old + 1e-12 * abs(old) for old, new in itertools.pairwise(values))
    best = min(seen, key=lambda record: record.objective)
    # The proof computes it in float64; the records' may be of float32.
    assert solution.objective == pytest.approx(best.objective, rel=1e-6)


@METHODS
@pytest.mark.parametrize("count", [1, 2, 3])
def test_max_iter(count, method):
    problem = problem_of(Logistic(), n=700, p=4, l2=1e-6)
    solution = solve(problem, Settings(tol=0, method=method, max_iter=count))
    assert solution.reason is StopReason.MAX_ITER
    # The start, and this number after it.
    assert len(solution.history) == count + 1


def test_max_time(monkeypatch):
    class Clock:
        now = 0.0

        @classmethod
        def perf_counter(cls):
            cls.now += 1.0
            return cls.now

    for module in (solve_module, stopping, objective_module):
        monkeypatch.setattr(module, "time", Clock)
    problem = problem_of(Logistic(), n=700, p=4, l2=1e-6)
    short = solve(problem, Settings(tol=0, max_time=6.0))
    assert short.reason is StopReason.MAX_TIME
    # Some calls of the clock after the end: for records, and by what ends the run.
    assert 6.0 <= Clock.now <= 12.0
    assert short.history[-1].seconds <= 8.0
    assert not short.reason.is_success


def test_no_time_at_all_gives_the_start():
    problem = problem_of(Logistic(), n=700, p=4)
    solution = solve(problem, Settings(tol=0, max_time=0.0))
    assert solution.reason is StopReason.MAX_TIME
    assert len(solution.history) == 1
    assert np.isfinite(solution.objective)


@METHODS
@pytest.mark.parametrize("after", [0, 2])
def test_interrupted(after, method):
    def watch(record):
        if record.iteration == after:
            raise KeyboardInterrupt

    problem = problem_of(Logistic(), n=700, p=4, l2=1e-6)
    solution = solve(problem, Settings(tol=0, method=method, watch=watch))
    assert solution.reason is StopReason.INTERRUPTED
    assert len(solution.history) == after + 1
    assert solution.objective == min(record.objective for record in solution.history)
    assert value_at(problem, solution) == pytest.approx(solution.objective, rel=1e-6)


def test_interrupted_before_there_is_a_point(monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(solve_module, "duality_gap", interrupted)
    with pytest.raises(KeyboardInterrupt):
        solve(problem_of(Logistic()), Settings())


@pytest.mark.parametrize("method", [None, "sampled-newton"])
@pytest.mark.parametrize("loss", [Logistic(), Softmax(3)], ids=["logistic", "softmax"])
def test_separable_without_a_penalty(loss, method):
    rng = np.random.default_rng(0)
    target = rng.integers(0, loss.outputs if loss.outputs > 1 else 2, 300)
    X = np.column_stack([np.cos(2.0 * target), np.sin(2.0 * target)])
    X += 0.05 * rng.normal(size=X.shape)
    target = target if loss.outputs > 1 else target * 1.0
    solution = solve(Problem(X, target, loss, 0.0), Settings(method=method))
    assert solution.reason is StopReason.UNBOUNDED
    assert not solution.reason.is_success
    assert np.all(np.isfinite(solution.coef))
    assert solution.history[-1].iteration < 20
    # A penalty, however small, makes it finite.
    with_penalty = solve(Problem(X, target, loss, 1e-3), Settings())
    assert with_penalty.reason is StopReason.CONVERGED


def test_zero_tol_ends_by_rounding():
    for loss in (Logistic(), Squared(), Poisson()):
        solution = solve(problem_of(loss, n=100, l2=1e-2), Settings(tol=0))
        assert solution.reason in (StopReason.CONVERGED, StopReason.ROUNDING)
        assert len(solution.history) < 30


def test_reasons_are_sentences():
    for reason in StopReason:
        assert len(reason.value) > 15
        assert reason.value[0].islower()
        assert not reason.value.endswith(".")


@METHODS
@MANY
def test_a_seed_gives_the_same_bits(loss, method):
    problem = problem_of(loss, n=700, p=4, l2=1e-2)
    settings = Settings(method=method, max_iter=6, seed=3)
    one, two = solve(problem, settings), solve(problem, settings)
    assert np.array_equal(one.coef, two.coef)
    assert np.array_equal(one.intercept, two.intercept)
    keys = ("iteration", "passes", "objective", "gap", "decrement")
    for a, b in zip(one.history, two.history, strict=True):
        assert [getattr(a, key) for key in keys] == [getattr(b, key) for key in keys]


def test_another_seed_gives_other_bits():
    problem = problem_of(Logistic(), n=5000, p=4, l2=1e-2)
    settings = Settings(tol=0, method="sampled-newton", max_iter=2)
    one, two = (solve(problem, replace(settings, seed=seed)) for seed in (0, 1))
    assert not np.array_equal(one.coef, two.coef)
    assert one.objective == pytest.approx(two.objective, rel=1e-2)


@METHODS
@MANY
def test_a_start_at_the_optimum_is_the_end(loss, method):
    problem = problem_of(loss, n=300, p=4, l2=1e-2)
    best = solve(problem, EXACT)
    again = solve(problem, Settings(method=method, max_iter=8), (best.coef, best.intercept))
    # No worse than where it began. The first record may be that of a sample's optimum.
    assert again.objective <= best.objective + 1e-7 * (1 + abs(best.objective))
    if method is None:
        assert len(again.history) <= 2


def test_a_bad_start_is_not_taken():
    problem = problem_of(Logistic(), n=300, p=4, l2=1e-2)
    solution = solve(problem, EXACT, (np.full((4, 1), 1e3), np.zeros(1)))
    assert solution.history[0].objective <= np.log(2)
    assert solution.objective == pytest.approx(least(problem), rel=1e-10)


@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("weights", [False, True])
@MANY
def test_fewer_rows_than_features_by_two_methods(loss, weights, intercept):
    problem = problem_of(loss, n=30, p=50, l2=0.05, weights=weights, intercept=intercept)
    direct = solve(problem, replace(EXACT, method="newton-cholesky"))
    name = "newton-cg" if loss.outputs > 1 else "subspace-newton"
    other = solve(problem, replace(EXACT, method=name))
    assert other.method == name
    assert direct.method == "newton-cholesky"
    assert other.reason is direct.reason is StopReason.CONVERGED
    # By lambda, which makes both optima the same point, no farther than the proofs say.
    apart = [np.sqrt(2 * (each.gap + 1e-15) / problem.l2) for each in (direct, other)]
    assert np.linalg.norm(other.coef - direct.coef) <= sum(apart)
    assert other.objective == pytest.approx(direct.objective, rel=1e-10)
    assert value_at(problem, other) == pytest.approx(other.objective, rel=1e-10)


def test_softmax_without_intercepts():
    problem = problem_of(Softmax(3), n=60, intercept=False)
    solution = solve(problem, EXACT)
    assert solution.reason.is_success
    assert not solution.intercept.any()
    assert solution.objective == pytest.approx(least(problem), rel=1e-10)


@MANY
def test_weights_are_repeated_rows(loss):
    problem = problem_of(loss, n=60, p=3, l2=1e-2)
    count = np.random.default_rng(0).integers(0, 4, 60)
    weighted = solve(replace(problem, sample_weight=count * 1.0), EXACT)
    rows = np.repeat(np.arange(60), count)
    repeated = solve(
        replace(problem, features=problem.features[rows], target=problem.target[rows]), EXACT
    )
    assert weighted.objective == pytest.approx(repeated.objective, rel=1e-11)
    np.testing.assert_allclose(weighted.coef, repeated.coef, atol=1e-6)


@METHODS
@MANY
def test_weights_count_by_their_ratio(loss, method):
    problem = problem_of(loss, n=60, p=3, l2=1e-2, weights=True)
    settings = Settings(method=method, max_iter=5)
    one = solve(problem, settings)
    other = solve(replace(problem, sample_weight=8 * problem.sample_weight), settings)
    np.testing.assert_allclose(other.coef, one.coef, rtol=1e-6, atol=1e-9)


@MANY
def test_weight_0_is_a_row_that_is_not_there(loss):
    problem = problem_of(loss, n=60, p=3, l2=1e-2, weights=True)
    gone = problem.sample_weight == 0
    wild = problem.features.copy()
    wild[gone] = 1e6
    one = solve(replace(problem, features=wild), EXACT)
    kept = ~gone
    two = solve(
        replace(
            problem,
            features=problem.features[kept],
            target=problem.target[kept],
            sample_weight=problem.sample_weight[kept],
        ),
        EXACT,
    )
    assert one.objective == pytest.approx(two.objective, rel=1e-11)
    np.testing.assert_allclose(one.coef, two.coef, atol=1e-6)


@MANY
def test_units_do_not_matter(loss):
    # Without a penalty the model is the same whatever the features are measured in. Softmax has the
    # same objective if a number is added to a feature's weights of all classes: their differences
    # from the mean are what the model is.
    problem = problem_of(loss, n=200, p=3, l2=0.0)
    units, offset = np.array([1e-6, 1.0, 1e8]), np.array([0.0, 1e4, -1e9])
    one = solve(problem, Settings())
    two = solve(replace(problem, features=problem.features * units + offset), Settings())
    assert two.objective == pytest.approx(one.objective, rel=1e-7)
    coef, other = one.coef, two.coef * units[:, None]
    if isinstance(loss, Softmax):
        coef, other = (c - c.mean(axis=1, keepdims=True) for c in (coef, other))
    np.testing.assert_allclose(other, coef, atol=1e-3)


@pytest.mark.parametrize("power", [-300, -160, -44, 44, 160, 300])
@METHODS
def test_units_of_all_features(method, power):
    # Powers of two: the very same numbers but for their exponents.
    unit = 2.0 ** round(power / np.log10(2))
    problem = problem_of(Logistic(), n=60, p=3, l2=0.0)
    settings = Settings(method=method)
    one = solve(problem, settings)
    two = solve(replace(problem, features=problem.features * unit), settings)
    assert two.objective == pytest.approx(one.objective, rel=1e-6)
    np.testing.assert_allclose(two.coef * unit, one.coef, rtol=1e-3)


@pytest.mark.parametrize("power", [-300, -160, -20, 20, 160, 300])
@MANY
def test_extreme_scales(loss, power):
    problem = problem_of(loss, n=60, p=3, l2=1e-2)
    X = problem.features.copy()
    X[:, 1] *= 10.0**power
    solution = solve(replace(problem, features=X), Settings())
    assert solution.reason.is_success
    assert np.isfinite(solution.objective)
    assert np.all(np.isfinite(solution.coef))
    if power < 0:
        # The penalty leaves nothing of its weight: as if it were not there.
        without = solve(replace(problem, features=np.delete(X, 1, axis=1)), Settings())
        assert solution.objective == pytest.approx(without.objective, rel=1e-5)
    else:
        # It costs no penalty at all, and is used: never worse than in its own unit.
        assert solution.objective <= solve(problem, Settings()).objective * (1 + 1e-6)


@pytest.mark.parametrize("loss", [Squared(), Huber(), Poisson()], ids=lambda loss: loss.name)
def test_one_row(loss):
    solution = solve(Problem(np.array([[3.0, 4.0]]), np.array([2.0]), loss, 0.1), Settings())
    assert solution.reason.is_success
    assert not solution.coef.any()
    mean = np.log(2) if loss.name == "poisson" else 2.0
    assert solution.intercept[0] == pytest.approx(mean)


def test_one_row_without_intercept():
    problem = Problem(np.array([[3.0, 4.0]]), np.array([2.0]), Squared(), 0.1, None, False)
    solution = solve(problem, EXACT)
    x = problem.features[0]
    np.testing.assert_allclose(solution.coef[:, 0], 2 * x / (x @ x + 0.1), rtol=1e-9)


@MANY
def test_one_feature(loss):
    problem = problem_of(loss, n=60, p=1, l2=1e-2)
    assert solve(problem, EXACT).objective == pytest.approx(least(problem), rel=1e-10)


@METHODS
@MANY
def test_all_features_constant(loss, method):
    problem = problem_of(loss, n=60, p=2, l2=1e-2)
    problem = replace(problem, features=np.tile([3.25, 0.0], (60, 1)))
    solution = solve(problem, Settings(method=method))
    assert solution.reason.is_success, solution.reason
    assert not solution.coef.any()
    _, null, _ = prepared(problem)
    # Epochs keep float32 rows.
    assert solution.objective == pytest.approx(null.objective, rel=1e-6)


@METHODS
@pytest.mark.parametrize("loss", [Squared(), Huber(), Poisson()], ids=lambda loss: loss.name)
def test_constant_target(loss, method):
    problem = replace(problem_of(loss, n=60), target=np.full(60, 2.5))
    solution = solve(problem, Settings(method=method))
    assert solution.reason.is_success, solution.reason
    np.testing.assert_allclose(solution.coef, 0, atol=1e-7)
    mean = np.log(2.5) if loss.name == "poisson" else 2.5
    assert solution.intercept[0] == pytest.approx(mean, abs=1e-6)


@pytest.mark.parametrize("dtype", ["float32", "uint8", "bool", "float16", "int64"])
@METHODS
def test_dtypes_agree_with_float64(dtype, method):
    rng = np.random.default_rng(0)
    X = rng.integers(0, 2 if dtype == "bool" else 200, (700, 4)).astype(dtype)
    target = (rng.random(700) < 0.3 + 0.4 * (X[:, 0] > X[:, 0].mean())) * 1.0
    problem = Problem(X, target, Logistic(), 1e-3)
    settings = Settings(method=method, tol=1e-8)
    one = solve(problem, settings)
    two = solve(replace(problem, features=X.astype(np.float64)), EXACT)
    assert one.objective == pytest.approx(two.objective, rel=1e-5)


# --- Starts and counts -------------------------------------------------------------------------


@METHODS
def test_a_given_start_is_where_it_begins(method):
    # Enough rows that without a start a part of them would be solved first.
    problem = problem_of(Logistic(), n=40_000, p=5, l2=1e-3)
    settings = Settings(method=method, tol=1e-6)
    far = solve(problem, settings)
    again = solve(problem, settings, start=(far.coef, far.intercept))
    assert again.history[0].objective <= far.objective * (1 + 1e-6)
    assert len(again.history) < len(far.history)


def test_a_proof_that_needs_more_rows_than_there_is_room_for_is_not_tried(monkeypatch):
    # A proof of rows on disk reads all of them.
    problem = problem_of(Logistic(), n=4000, p=4, l2=1e-9)
    monkeypatch.setattr(constants, "SAMPLE_NUMBERS", 40 * 5)
    monkeypatch.setattr("provenglm.proof.certificate.Certificate.subset_of_sample", lambda *_: None)
    tried = []
    of = Prover.of

    def spied(proof, coef, intercept, known, estimate, enough):
        bound = of(proof, coef, intercept, known, estimate, enough)
        tried.append((estimate, enough, bound[1]))
        return bound

    monkeypatch.setattr(Prover, "of", spied)
    solution = solve(problem, Settings(tol=1e-6, method="sampled-newton"))
    assert solution.reason is StopReason.CONVERGED
    assert all(4000 / 40 * estimate <= enough for estimate, enough, _ in tried)
    assert len(tried) == 1
    assert tried[0][2] <= tried[0][1]
