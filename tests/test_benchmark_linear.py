"""What the linear solvers' benchmark rests on: its problems, its judge, its contest, its tables."""

import json
import sys
from functools import partial

import contest
import linear_judge
import linear_problems
import linear_report
import numpy as np
import pytest
from contest import Outcome, Result, Rules
from convex_peers import Point
from linear_problems import LinearProblem
from scipy.optimize import minimize

import linear

pytestmark = pytest.mark.full

SMALL = {
    "covtype": partial(linear_problems.covtype, rows=3000),
    "covtype-7": partial(linear_problems.covtype, classes=7, rows=3000),
    "higgs": partial(linear_problems.higgs, rows=3000),
    "imbalanced": partial(linear_problems.imbalanced, rows=3000),
    "poisson": partial(linear_problems.poisson, rows=3000),
    "tiny-l2": partial(linear_problems.tiny_l2, rows=3000),
    "wide": linear_problems.wide,
    "classes-100": partial(linear_problems.classes_100, rows=3000),
}


@pytest.mark.parametrize("name", SMALL)
def test_a_problem_is_a_function_of_its_seed(name):
    first, again, other = (SMALL[name](seed=seed) for seed in (3, 3, 4))
    np.testing.assert_array_equal(first.x, again.x)
    np.testing.assert_array_equal(first.y, again.y)
    assert not np.array_equal(first.x, other.x)
    assert first.x.dtype == "float64"
    assert np.isfinite(first.x).all()


def test_the_shapes_of_the_columns_are_those_that_are_told():
    covtype = SMALL["covtype"]().x
    np.testing.assert_array_equal(covtype[:, 10:14].sum(axis=1), 1)
    np.testing.assert_array_equal(covtype[:, 14:].sum(axis=1), 1)
    assert SMALL["poisson"]().x.shape == (3000, 75)
    poisson = linear_problems.poisson(rows=50_000)
    assert 0.93 < (poisson.y == 0).mean() < 0.97
    assert 0.004 < linear_problems.imbalanced(rows=50_000).y.mean() < 0.006
    eigenvalues = np.linalg.eigvalsh(np.cov(SMALL["tiny-l2"]().x.T))
    assert eigenvalues[-1] / eigenvalues[0] == pytest.approx(1e6, rel=0.6)


def tiny(loss, seed=0, rows=40, weighted=True):
    random = np.random.default_rng(seed)
    x = random.normal(size=(rows, 3)) * [1e-2, 1, 50] + [0, 7, 0]
    y = {
        "logistic": random.integers(0, 2, rows),
        "softmax": np.arange(rows) % 4,
        "poisson": random.poisson(1.5, rows) / 2,
    }[loss]
    s = random.uniform(0.2, 3, rows) if weighted else None
    return LinearProblem("tiny", x, y, loss, 0.01, s)


def naive(problem, weight, bias):
    """F by its definition, row by row."""
    total = 0.0
    s = problem.weights()
    for x, y, share in zip(problem.x, problem.y, s, strict=True):
        scores = [float(row @ x + b) for row, b in zip(weight, bias, strict=True)]
        if problem.loss == "softmax":
            loss = np.log(sum(np.exp(score) for score in scores)) - scores[y]
        elif problem.loss == "logistic":
            loss = np.log(1 + np.exp(-scores[0] if y else scores[0]))
        else:
            loss = np.exp(scores[0]) - y * scores[0]
        total += share * loss
    return total / sum(s) + problem.l2 / 2 * sum(w**2 for row in weight for w in row)


@pytest.mark.parametrize("loss", ["logistic", "softmax", "poisson"])
def test_the_judge_agrees_with_the_definition(loss, monkeypatch):
    monkeypatch.setattr(linear_judge, "ROWS", 7)
    problem = tiny(loss)
    outputs = 4 if loss == "softmax" else 1
    random = np.random.default_rng(1)
    weight, bias = random.normal(size=(outputs, 3)) * 0.01, random.normal(size=outputs)
    expected = naive(problem, weight, bias)
    assert linear_judge.objective(problem, weight, bias) == pytest.approx(expected, rel=1e-13)


@pytest.mark.parametrize("loss", ["logistic", "softmax", "poisson"])
def test_the_optimum_is_the_optimum(loss):
    problem = tiny(loss)
    found, weight, bias = linear_judge.optimum(problem)
    size = weight.size

    def value(flat):
        return linear_judge.objective(problem, flat[:size].reshape(weight.shape), flat[size:])

    at = np.append(weight.ravel(), bias)
    steps = 1e-4 / np.append(np.tile(np.abs(problem.x).max(axis=0), len(bias)), np.ones(len(bias)))
    for step in np.diag(steps):
        slope = (value(at + step) - value(at - step)) / 2e-4
        assert abs(slope) < 1e-8  # the differences' own error
        assert value(at) <= value(at + step)
    # No other start leads lower, without gradients.
    other = minimize(value, at + 3 * steps, method="Powell").fun
    assert found.value <= other + 1e-13
    assert found.value == value(at)
    assert found.start == pytest.approx(value(np.zeros(len(at))), rel=1e-12)
    assert found.decrement < 1e-12


def test_with_fewer_rows_than_columns_the_optimum_is_the_same():
    problem = tiny("logistic", rows=30, weighted=False)
    random = np.random.default_rng(2)
    wide = problem._replace(x=np.hstack([problem.x, random.normal(size=(30, 20))]))
    wider = wide._replace(x=np.hstack([wide.x, np.zeros((30, 20))]))
    ours, weight, bias = linear_judge.optimum(wider)
    assert ours.value == pytest.approx(linear_judge.optimum(wide)[0].value, rel=1e-12)
    # BLAS may add the terms of the two products in another order, as it chooses for the CPU.
    assert linear_judge.objective(wider, weight, bias) == pytest.approx(ours.value, rel=1e-14)


def test_balanced_weights_are_scikit_learns():
    from sklearn.utils.class_weight import compute_sample_weight

    problem = tiny("logistic")._replace(class_weight="balanced")
    expected = problem.sample_weight * compute_sample_weight("balanced", problem.y)
    np.testing.assert_allclose(problem.weights(), expected, rtol=1e-14)
    assert problem.strength == pytest.approx(1 / (0.01 * expected.sum()))


def test_a_folder_gives_the_problem_back_and_the_gap(tmp_path):
    problem = tiny("poisson")
    best, weight, bias = linear_judge.optimum(problem)
    linear_judge.write(tmp_path, problem, best)
    judge = linear_judge.read(tmp_path)
    np.testing.assert_array_equal(judge.problem.sample_weight, problem.sample_weight)
    assert judge.problem.l2 == problem.l2
    assert judge.gap(weight, bias) == 0
    assert judge.gap(np.zeros((1, 3)), np.zeros(1)) == pytest.approx(1)


RULES = Rules(target=1e-6, cap=60, make="bench-linear")


def run_script(text, budget=None):
    return contest.run_process([sys.executable, "-c", text], RULES, 1, budget)


def test_a_process_is_read_line_by_line():
    lines = [{"version": "1"}, Point(1, 0.5, 1e-3)._asdict(), Point(2, 0.9, 1e-7)._asdict()]
    lines.append({"peak_mb": 3})
    text = "".join(f"print({json.dumps(json.dumps(line))})\n" for line in lines)
    outcome = run_script(text)
    assert outcome.best() == Point(2, 0.9, 1e-7)
    assert outcome.head == {"version": "1", "peak_mb": 3}
    assert outcome.failure == ""


@pytest.mark.parametrize(
    ("text", "failure"),
    [
        ("raise ValueError('of it')", "failed: ValueError: of it"),
        ("import signal; signal.alarm(1); signal.pause()", "> 60"),
        ('print(\'{"budget": 1, "seconds": 1, "gap": 0.02}\')', "stands at 2e-02"),
        ('print(\'{"missing": "glum"}\')', "not installed (no glum): `make bench-linear`"),
    ],
    ids=["raises", "late", "stands", "missing"],
)
def test_why_the_target_was_not_reached(text, failure):
    assert run_script(text).failure == failure


def test_rounds_are_interleaved_and_who_failed_is_not_asked_again(monkeypatch):
    monkeypatch.setattr(contest.report, "PAUSE", 0)
    asked = []

    def entrant(name, gap):
        def enter(budget):
            asked.append((name, budget))
            return Outcome({}, [Point(5, 1.0, gap)], 1e-6, "" if gap < 1e-6 else "stands")

        return enter

    results = contest.measure({"a": entrant("a", 1e-7), "b": entrant("b", 1.0)}, rounds=3)
    assert asked == [("a", None), ("b", None), ("a", 5), ("a", 5)]
    assert results["a"].seconds == [1.0, 1.0, 1.0]
    assert results["b"].seconds == []


def test_a_result_becomes_a_row(monkeypatch, tmp_path):
    monkeypatch.setattr(linear, "RESULTS", tmp_path / "linear.jsonl")
    ours = Outcome({"fit": 2.0, "fit_gap": 1e-9, "passes": 4.2, "solver": "svrg"}, [], 1e-6, "")
    ours = ours._replace(points=[Point(2, 0.5, 1e-3), Point(3, 1.0, 1e-7)])
    peer = Outcome({"version": "1"}, [Point(9, 6.0, 1e-8)], 1e-6, "")
    late = Outcome({"version": "1"}, [Point(9, 6.0, 2e-3)], 1e-6, "> 60")
    for name, result in {
        "gluon-svrg": Result(ours, [1.0, 1.2, 0.9], [{"fit": 2.0}, {"fit": 3.0}, {"fit": 1.0}]),
        "newton-cholesky-32": Result(peer, [6.0], [{}]),
        "lbfgs": Result(late, [], [{}]),
    }.items():
        job = {"kind": "speed", "problem": "covtype", "peer": name}
        linear.keep(job, {"failure": "an earlier run"})
        linear.keep(job, linear.told(result))
    found = linear_report.of_kind(linear.read(), "speed")["covtype"]
    first, newton, lbfgs = linear_report.speed_rows("covtype", found)
    assert first[2:] == ("2.00 s, gap 1e-09; to 1e-6 1.00 s", "4.2 passes (svrg)", "1.0", "1.0")
    name = "scikit-learn newton-cholesky, float32 rows"
    assert newton[1:] == (name, "6.00 s", "9", "3.0", "6.0")
    assert lbfgs[2] == "n.c. (at 2e-03)"
    linear_report.plot(tmp_path / "picture.png", {"covtype": found})
    assert (tmp_path / "picture.png").stat().st_size > 10_000


def test_each_contest_has_its_problem_and_each_problem_its_title():
    assert list(linear.RUNS) == list(linear_problems.PROBLEMS) == list(linear_report.TITLES)
    names = {peer for peers in linear.RUNS.values() for peer in peers} - {linear.SEARCHED}
    assert names <= set(linear.PEERS)
