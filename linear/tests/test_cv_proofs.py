"""Every point of a path is proven like a single fit: against optima in long double."""

import numpy as np
import pytest
from long_double import LongDouble
from provenglm import Chunks
from provenglm.model.losses import Huber, Logistic, Poisson, Softmax, Squared
from provenglm.model.problem import Problem
from provenglm.model.solution import Settings, StopReason
from provenglm.path.folds import Folds
from provenglm.path.solve_path import solve_path

FOLDS = 3
TOL = 1e-6
STRENGTHS = (1e-3, 1e-1, 1e1, 1e3, 1e5)
SHAPES = {
    "tall": {},
    "four rows for each feature": {"n": 160, "p": 40},
    "imbalanced": {"shift": -4.0},
    "raw scales": {"powers": 3},
    "five classes": {"loss": Softmax(5)},
    "five classes on raw scales": {"loss": Softmax(5), "powers": 2},
    "weights": {"weighted": True},
    "float32": {"dtype": np.float32},
    "far from 0": {"offset": 1e7},
    "in a file": {"on_disk": True},
    "no intercept": {"has_intercept": False},
    "repeated columns": {"repeats": True},
    "poisson": {"loss": Poisson()},
    "squared": {"loss": Squared()},
    "huber": {"loss": Huber()},
}


def folds_of(
    n=3000,
    p=12,
    loss=None,
    shift=0.0,
    powers=0,
    offset=0.0,
    dtype=np.float64,
    weighted=False,
    on_disk=False,
    has_intercept=True,
    repeats=False,
):
    """Return folds, and their rows in memory."""
    rng = np.random.default_rng(n + p)
    loss = Logistic() if loss is None else loss
    X = rng.normal(size=(n, p)) + 0.3 * rng.normal(size=(n, 1))
    scores = X @ rng.normal(size=(p, loss.outputs)) / np.sqrt(p) + shift
    if isinstance(loss, Softmax):
        y = (scores + rng.gumbel(size=scores.shape)).argmax(axis=1)
    elif isinstance(loss, Logistic):
        y = (scores[:, 0] + rng.logistic(size=n) > 0).astype(np.int64)
    elif isinstance(loss, Poisson):
        y = rng.poisson(np.exp(scores[:, 0])).astype(float)
    else:
        y = scores[:, 0] + rng.standard_t(3, size=n)
    if repeats:
        X[:, -1] = X[:, 0]
    X = ((X + offset) * 10.0 ** rng.uniform(-powers, powers, p)).astype(dtype)
    weight = rng.gamma(1.0, size=n) if weighted else None
    features = Chunks([X[: n // 3], X[n // 3 :]]) if on_disk else X
    problem = Problem(features, y, loss, 0.0, weight, has_intercept)
    own = rng.integers(0, FOLDS, n)
    counts = [(own != fold).astype(np.uint8) for fold in range(FOLDS)]
    return Folds(problem, counts, "C", lambda strength, total: 1 / (strength * total)), X


def solved(folds):
    lines = []
    paths = solve_path(folds, STRENGTHS, Settings(tol=TOL), lines.append)
    return paths, any("passes for" in line for line in lines)


@pytest.mark.parametrize("shape", SHAPES)
def test_every_point_is_proven(solve_together, shape):
    folds, X = folds_of(**SHAPES[shape])
    problem, loss = folds.problem, folds.problem.loss
    solve_together(True)
    paths, were_together = solved(folds)
    assert were_together is (shape != "huber")
    solve_together(False)
    alone, _ = solved(folds)
    for fold, (path, other) in enumerate(zip(paths, alone, strict=True)):
        for k, (point, single) in enumerate(zip(path, other, strict=True)):
            assert point.reason is StopReason.CONVERGED
            l2 = folds.penalties(fold, STRENGTHS[k])[0]
            exact = LongDouble.of(
                X, problem.target, folds.weight(fold), loss, (l2, 0.0), problem.fit_intercept
            )
            null = float(exact.constant()[0])
            rounding = 1e-14 * abs(point.objective)
            assert point.gap <= max(TOL * (null - point.objective) * (1 + 1e-6), rounding)
            # The penalty makes the objective strongly convex in the coefficients.
            far = sum(np.sqrt(2 * max(one.gap, rounding) / l2) for one in (point, single))
            assert np.linalg.norm(point.coef - single.coef) <= far
            if (fold + k) % FOLDS == 0:
                theta = exact.theta_of(point.coef, point.intercept)
                found = exact.value(theta)
                slack = 3 * float(exact.rounding(theta))
                assert point.objective == pytest.approx(float(found), rel=1e-12, abs=slack)
                assert -slack <= found - exact.least(theta) <= point.gap + slack


def test_a_point_that_no_proof_reaches_is_told(monkeypatch, solve_together):
    folds, _ = folds_of()
    solve_together(True)
    monkeypatch.setattr("provenglm.proof.prover.Prover.of", lambda *_: (np.inf, np.inf))
    for module in ("path.joint", "solve"):
        monkeypatch.setattr(f"provenglm.{module}.duality_gap", lambda *_: np.inf)
    paths, _ = solved(folds)
    assert all(not point.reason.is_success for path in paths for point in path)
    assert all(point.gap > TOL for path in paths for point in path)


def test_a_repeated_row_counts_twice(solve_together):
    folds, X = folds_of()
    counts = [one.copy() for one in folds.counts]
    twice = np.arange(100)
    for one in counts:
        one[twice] *= 2
    solve_together(True)
    (path, *_), _ = solved(Folds(folds.problem, counts, "C", folds.on_mean))
    rows = np.repeat(np.arange(len(X)), counts[0])
    repeated = Problem(X[rows], folds.problem.target[rows], folds.problem.loss, 0.0)
    whole = Folds(repeated, [np.ones(len(rows), np.uint8)], "C", folds.on_mean)
    (wanted,), _ = solved(whole)
    for one, other in zip(path, wanted, strict=True):
        assert one.objective == pytest.approx(other.objective, abs=one.gap + other.gap)
