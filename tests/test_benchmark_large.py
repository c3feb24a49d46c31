"""What the benchmark of sparse and large data rests on: its problems, its judge, its tables."""

import json

import large
import large_judge
import large_path
import large_peers
import large_problems
import large_report
import numpy as np
import pytest
import scipy.sparse as sp
from contest import Outcome
from convex_peers import Point
from linear_judge import objective
from linear_problems import LinearProblem, covtype
from scipy.optimize import minimize

pytestmark = pytest.mark.full

LISTING = """Package: zlib
Version: 1
Description: compression library
Section: libs

Package: zlib
Description: compression library, again
Section: libs

Package: gzip
Description-en: compresses files
Section: universe/utils
Priority: optional

Package: nothing
Section: libs
"""


def test_packages_are_read_once_each():
    found = large_problems.packages(LISTING)
    assert found.lines == ["zlib compression library", "gzip compresses files"]
    assert found.sections == ["libs", "utils"]


def test_only_the_largest_sections_count(monkeypatch):
    monkeypatch.setattr(large_problems, "SECTIONS", 1)
    more = LISTING.replace("Package: nothing", "Package: libc\nDescription: the library")
    assert set(large_problems.packages(more).sections) == {"libs"}


@pytest.mark.parametrize("make", ["made_text", "rcv1"])
def test_made_rows_are_a_function_of_their_seed(make):
    def matrix(seed):
        found = getattr(large_problems, make)(seed=seed, rows=2000, columns=3000)
        return (found.x, found.y) if isinstance(found, LinearProblem) else found

    (x, y), (again, of_again), (other, _) = (matrix(seed) for seed in (3, 3, 4))
    assert (x != again).nnz == 0
    np.testing.assert_array_equal(y, of_again)
    assert (x != other).nnz > 0
    assert x.indices.dtype == x.indptr.dtype == "int32"
    assert sp.csr_matrix((x.data, x.indices, x.indptr), x.shape).has_canonical_format
    np.testing.assert_allclose(np.asarray(x.multiply(x).sum(axis=1)), 1, rtol=1e-12)
    # Zipf: the tenth of the words that come most often have more than a quarter of the places.
    often = np.sort(np.bincount(x.indices, minlength=3000))[::-1]
    assert often[:300].sum() > 0.25 * x.nnz


def tiny(loss="logistic", l1=0.0, rows=60, columns=8, seed=0):
    random = np.random.default_rng(seed)
    x = sp.random(rows, columns, 0.5, format="csr", random_state=seed)
    y = random.integers(0, 4 if loss == "softmax" else 2, rows)
    return LinearProblem("tiny", x, y, loss, 0.01, l1=l1)


def test_the_objective_has_both_penalties():
    problem = tiny(l1=0.03)
    weight, bias = np.linspace(-1, 1, 8)[None], np.array([0.3])
    scores = problem.x.toarray() @ weight[0] + 0.3
    loss = np.log(1 + np.exp(np.where(problem.y == 1, -scores, scores))).mean()
    expected = loss + 0.005 * (weight**2).sum() + 0.03 * np.abs(weight).sum()
    assert objective(problem, weight, bias) == pytest.approx(expected, rel=1e-13)


@pytest.mark.parametrize(
    ("loss", "l1"), [("logistic", 0.0), ("softmax", 0.0), ("logistic", 0.01), ("logistic", 0.03)]
)
@pytest.mark.parametrize("of_intercept", [0.0, 0.01])
def test_the_optimum_is_the_optimum(loss, l1, of_intercept):
    if l1 and of_intercept:
        pytest.skip("liblinear's and snapml's own F is judged without L1")
    problem = tiny(loss, l1)
    value, bound, v = large_judge.minimum(problem, of_intercept)
    assert 0 <= bound + 1e-16 < 1e-11

    def at(flat):
        found = flat.reshape(v.shape)
        penalty = of_intercept / 2 * (found[:, -1] ** 2).sum()
        return objective(problem, found[:, :-1], found[:, -1]) + penalty

    assert value == pytest.approx(at(v.ravel()), abs=1e-15)
    # No other start leads lower, and no step from there leads lower.
    other = minimize(at, v.ravel() + 0.05, method="Powell", options={"xtol": 1e-8}).fun
    assert value <= other + 1e-13
    random = np.random.default_rng(1)
    for _ in range(50):
        assert at(v.ravel() + 1e-4 * random.normal(size=v.size)) >= value
    if l1 == 0.03:
        assert (v == 0).any()


@pytest.mark.parametrize("l1", [0.0, 0.02])
def test_the_duality_gap_bounds_what_is_left(l1):
    problem = tiny(l1=l1)
    least, _, best = large_judge.minimum(problem)
    function = large_judge._Function(problem)
    random = np.random.default_rng(2)
    for size in (1e-3, 1e-2, 0.1):
        v = best + size * random.normal(size=best.shape)
        # The bound is one where the residuals add up to zero.
        for _ in range(50):
            gradient = function.gradient(v, function.scores(v))
            v[0, -1] -= 4 * gradient[0, -1]
        value = objective(problem, v[:, :-1], v[:, -1])
        assert large_judge.duality_gap(problem, v, gradient, 0.0) >= value - least


def test_rows_in_a_file_have_the_same_optimum(tmp_path, monkeypatch):
    monkeypatch.setattr(large_judge, "ROWS", 700)
    problem = large_problems.stored_bytes(tmp_path / "x.npy", rows=3000, columns=6)
    assert problem.x.dtype == "uint8"
    assert (np.diff(problem.y.astype(int)) >= 0).all()
    assert 0.1 < problem.y.mean() < 0.9
    value, bound, v = large_judge.of_file(problem)
    assert bound < 1e-11
    assert objective(problem, v[:, :-1], v[:, -1]) == pytest.approx(value, rel=1e-12)
    scaled = problem._replace(x=sp.csr_matrix(problem.x / 64), l2=problem.l2 / 64**2)
    assert value == pytest.approx(large_judge.minimum(scaled)[0], abs=1e-11)


def test_a_folder_gives_the_problem_back(tmp_path):
    problem = tiny(l1=0.02)
    large_judge.write(tmp_path, problem)
    again = large_judge.read(tmp_path)
    assert (again.x != problem.x).nnz == 0
    np.testing.assert_array_equal(again.y, problem.y)
    assert (again.loss, again.l2, again.l1) == (problem.loss, problem.l2, problem.l1)
    assert large_judge.card_of(tmp_path)["digest"] == large_judge.digest(problem)
    assert large_judge.digest(problem) != large_judge.digest(tiny(l1=0.02, seed=1))


def test_the_gap_is_relative_and_that_of_the_own_objective():
    problem = tiny()
    known = large_judge.reference(problem)
    _, _, best = large_judge.minimum(problem)
    _, _, own = large_judge.minimum(problem, problem.l2)
    judge = large_judge.Judge(problem, known)
    of_own = large_judge.Judge(problem, known, is_own=True)
    assert judge.gap(best[:, :-1], best[:, -1]) == pytest.approx(0, abs=1e-12)
    assert judge.gap(np.zeros((1, 8)), np.zeros(1)) == pytest.approx(1)
    assert of_own.gap(own[:, :-1], own[:, -1]) == pytest.approx(0, abs=1e-12)
    assert known.of_own > known.value


@pytest.mark.parametrize("name", ["saga", "lbfgs", "newton-cg", "liblinear", "liblinear-dual"])
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_a_peer_minimises_what_is_judged(name):
    problem = tiny(l1=0.02 if name == "saga" else 0.0)
    if problem.l1:
        problem = problem._replace(l2=problem.l1)  # the share of L1 is a half
    peer = large_peers.PEERS[name]
    judge = large_judge.Judge(problem, large_judge.reference(problem), peer.is_own)
    weight, bias = peer.make(judge, **peer.settings)(2000)
    assert judge.gap(weight, bias) < 1e-6


def test_the_path_is_judged_by_its_distance():
    problem = covtype(rows=2000)
    judge = large_path.PathJudge(problem)
    strength = 1.0
    flat = LinearProblem("flat", problem.x, problem.y, "logistic", 1 / 2000)
    from linear_judge import optimum

    found, weight, bias = optimum(flat)
    point = np.append(weight[0], bias)
    assert judge.gap(point, strength) < 1e-10
    away = point + 1e-4 / np.append(problem.x.std(axis=0) + 1, 1)
    left = objective(flat, away[None, :-1], away[-1:]) - found.value
    assert judge.gap(away, strength) == pytest.approx(left / (found.start - found.value), rel=0.01)


def test_budgets_and_optima_count_for_their_data_only(tmp_path, monkeypatch):
    monkeypatch.setattr(large, "RESULTS", tmp_path / "large.jsonl")
    monkeypatch.setattr(large, "FOLDERS", tmp_path)
    problem = tiny()
    large_judge.write(tmp_path / "text-binary", problem)
    found = large.optimum_of("text-binary")
    monkeypatch.setattr(large_judge, "reference", None)  # it is known
    assert large.optimum_of("text-binary") == found
    job = {"kind": "speed", "problem": "text-binary", "peer": "saga"}
    large.keep(job, {"digest": large_judge.digest(problem), "budget": 7})
    assert large.known_budget("text-binary", "saga") == 7
    large.keep(job, {"digest": "another", "budget": 7})
    assert large.known_budget("text-binary", "saga") is None
    assert large.known_budget("text-binary", "lbfgs") is None


def test_a_known_budget_that_no_longer_does_is_searched(tmp_path, monkeypatch):
    monkeypatch.setattr(large, "RESULTS", tmp_path / "large.jsonl")
    monkeypatch.setattr(large, "FOLDERS", tmp_path)
    problem = tiny()
    large_judge.write(tmp_path / "text-binary", problem)
    job = {"kind": "speed", "problem": "text-binary", "peer": "saga"}
    large.keep(job, {"digest": large_judge.digest(problem), "budget": 7})
    asked = []

    def run_process(command, rules, threads, budget=None):
        asked.append(budget)
        return Outcome({}, [Point(9, 1.0, 1e-3)], 1e-6, "stands at 1e-03")

    monkeypatch.setattr(large.contest, "run_process", run_process)
    options = large.argparse.Namespace(search=False, peers_python="python")
    large.entrant("text-binary", "saga", large.Rules(1e-6, 60, "bench-large"), options)(None)
    assert asked == [7, None]


def test_results_become_tables(tmp_path, monkeypatch):
    monkeypatch.setattr(large, "RESULTS", tmp_path / "large.jsonl")
    own = {"version": "1", "fits": [2.0, 4.0], "seconds": [1.0], "fit_gap": 1e-9, "failure": ""}
    own |= {"passes": 4.2, "solver": "svrg", "points": [], "budget": 3}
    peer = {"version": "1", "fits": [], "seconds": [6.0], "budget": 9, "points": [], "failure": ""}
    late = peer | {"seconds": [], "points": [[9, 6.0, 2e-3]], "failure": "> 60"}
    refused = own | {"fits": [], "seconds": [], "failure": "failed: TypeError: X is sparse"}
    for name, result in {"gluon-svrg": own, "saga": peer, "lbfgs": late}.items():
        large.keep({"kind": "speed", "problem": "text", "peer": name}, result)
    large.keep({"kind": "speed", "problem": "rcv1", "peer": "gluon-svrg"}, refused)
    of_file = {"cold": 2.0, "warm": 0.5, "size": 2_000_000_000}
    large.keep({"kind": "reading", "problem": "bytes"}, of_file)
    fitted = {"fit": 9.0, "fit_gap": 1e-8, "passes": 9.5, "peak_mb": 700, "start_mb": 200}
    large.keep({"kind": "speed", "problem": "bytes", "peer": "gluon-svrg"}, fitted)
    lines = large.read()
    first, saga, lbfgs = large_report.rows_of("text", large_report.of_problem(lines, "text"))
    assert first[2:] == ("3.00 s, gap 1e-09; to 1e-6 1.00 s", "4.2 passes (svrg)", "1.0", "1.0")
    assert saga[1:] == ("scikit-learn saga", "6.00 s", "9", "2.0", "6.0")
    assert lbfgs[2] == "n.c. (at 2e-03)"
    text = large_report.section(lines, 60)
    assert "failed: TypeError: X is sparse" in text
    assert "700 MB, of it 200 before the fit" in text
    assert json.dumps(own) in (tmp_path / "large.jsonl").read_text()


def test_each_problem_has_its_contest_and_its_title():
    assert list(large.RUNS) == large_problems.PROBLEMS == list(large_report.TITLES)
    for problem, peers in large.RUNS.items():
        assert all(large_report.peer_of(problem, peer).title for peer in peers)
