"""Time the linear solver and its peers to 1e-6 above the optimum, and try everybody's defaults.

Twelve problems (``linear_problems.py``), nothing but C or alpha given to ours, the best settings
that were found to the peers. Every fit runs in a process of its own; the rounds of a problem are
interleaved. What was measured is kept line by line in ``results/linear.jsonl``, so that a part may
be run again; ``make bench-linear`` runs all and puts the tables into docs/benchmarks/linear.md.

A problem's arrays and its optimum are written once, into ``runs/bench/linear``: remove that folder
after a change of ``linear_problems.py``.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import contest
import convex
import convex_peers
import linear_judge
import linear_report
import report
from contest import Entrant, Outcome, Result, Rules
from convex_peers import Point
from linear_peers import OURS, OURS_32, PEERS
from linear_problems import PROBLEMS

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ROOT / "runs" / "bench" / "linear"
RESULTS = ROOT / "benchmarks" / "results" / "linear.jsonl"
SEARCHED = linear_report.SEARCHED
TARGET = 1e-6
SEEDS = (0, 1, 2)
SMALL = ("breast-cancer", "wide")  # milliseconds: more rounds, and one thread for the peers, too
# The peers of each problem. A name that ends in -32 gets float32 rows.
RUNS = {
    "fashion-1e-4": [OURS_32, SEARCHED, "newton-cg", "newton-cg-32", "saga", "lbfgs", "lbfgs-32"],
    "fashion-1e-5": [OURS_32, SEARCHED, "newton-cg", "lbfgs", "lbfgs-32"],
    "covtype": ["newton-cholesky", "newton-cholesky-32", "glum", "glum-split", "lbfgs", "saga"],
    "covtype-7": ["newton-cholesky", "lbfgs"],
    "higgs": [
        OURS_32,
        "newton-cholesky",
        "newton-cholesky-32",
        "intel-lbfgs",
        "intel-lbfgs-32",
        "glum",
    ],
    "patches": ["newton-cholesky", "newton-cholesky-32", "lbfgs", "intel-lbfgs"],
    "tiny-l2": ["newton-cholesky", "glum", "lbfgs", "saga"],
    "imbalanced": ["newton-cholesky", "lbfgs", "saga"],
    "imbalanced-plain": ["newton-cholesky", "lbfgs", "saga"],
    "poisson": ["poisson-newton-cholesky", "glum", "glum-split", "poisson-lbfgs"],
    "breast-cancer": ["newton-cholesky", "lbfgs", "glum"],
    "wide": ["newton-cholesky", "lbfgs", "newton-cg"],
    "classes-100": ["lbfgs", "newton-cg"],
}
# The peers whose defaults are tried: each solver of scikit-learn.
DEFAULTS = ["lbfgs", "newton-cholesky", "newton-cg", "saga", "intel-lbfgs", "glum"]
DEFAULTS_OF_POISSON = ["poisson-lbfgs", "poisson-newton-cholesky", "glum"]


def prepare(name: str, seed: int = 0, solve: bool = True) -> Path:
    """Write the problem, with its optimum, where that has not been done; return its folder."""
    folder = FOLDERS / f"{name}-{seed}"
    if not (folder / "card.json").exists():
        problem = PROBLEMS[name](seed=seed)
        known = linear_judge.UNKNOWN
        if solve:
            known, _, _ = linear_judge.optimum(problem)
        linear_judge.write(folder, problem, known)
    return folder


def entrant(name: str, peer: str, rules: Rules, python: str, *more: str) -> Entrant:
    """Return what runs one contestant."""
    folder = prepare(name)
    if peer == SEARCHED:
        return lambda _: run_searched(folder, rules)
    is_ours = peer in (OURS, OURS_32)
    interpreter = sys.executable if is_ours else python
    script = str(ROOT / "benchmarks" / "linear_peers.py")
    command = [interpreter, script, peer, str(folder), *more]
    threads = 1 if name in SMALL and not is_ours else None
    # Ours has the points of its history: there is no budget to search.
    return lambda budget: contest.run_process(command, rules, threads, None if is_ours else budget)


def run_searched(folder: Path, rules: Rules) -> Outcome:
    """Run the Gluon run of ``convex.py``, whose steps were searched, to the same target."""
    _, best = linear_judge.read(folder)
    problem = linear_judge.read(folder).problem
    l2 = min(convex.OUR_SETTINGS, key=lambda l2: abs(l2 - problem.l2))
    if not convex.PIXELS.exists():
        from gluon_svrg.data import load_fashion_mnist

        convex_peers.save(convex.PIXELS, *load_fashion_mnist()[0])
    unit = best.start - best.value
    command = [sys.executable, str(ROOT / "benchmarks" / "convex.py"), "--ours", repr(l2)]
    command += ["--problem", str(convex.PIXELS), "--optimum", repr(best.value)]
    in_units = rules._replace(target=rules.target * unit)
    outcome = contest.run_process(command, in_units, convex.OUR_SETTINGS[l2]["threads"])
    points = [point._replace(gap=point.gap / unit) for point in outcome.points]
    return outcome._replace(points=points, target=rules.target)


def measure(name: str, peers: list[str], options: argparse.Namespace) -> None:
    """Run the contest of one problem, and keep what comes of it."""
    rules = Rules(TARGET, options.cap, "bench-linear")
    entrants = {peer: entrant(name, peer, rules, options.peers_python) for peer in peers}
    rounds = 3 * options.rounds if name in SMALL else options.rounds
    for peer, result in contest.measure(entrants, rounds).items():
        keep({"kind": "speed", "problem": name, "peer": peer}, told(result))


def told(result: Result) -> dict[str, Any]:
    """Return a result as plain data."""
    first = result.first
    best = first.best()
    return {
        **first.head,
        "seconds": result.seconds,
        "fits": [head["fit"] for head in result.heads if "fit" in head],
        "budget": best.budget if best else None,
        "points": [list(point) for point in first.points],
        "failure": first.failure,
    }


def try_defaults(name: str, peers: list[str], options: argparse.Namespace) -> None:
    """Fit each once with its defaults."""
    rules = Rules(float("inf"), options.cap, "bench-linear")
    for peer in peers:
        outcome = entrant(name, peer, rules, options.peers_python, "--default")(None)
        point = outcome.points[0] if outcome.points else Point(0, float("nan"), float("nan"))
        result = {**outcome.head, "failure": outcome.failure, **point._asdict()}
        print(f"default, {name}, {peer}: {result}", file=sys.stderr, flush=True)
        keep({"kind": "default", "problem": name, "peer": peer}, result)


def try_seeds(name: str, options: argparse.Namespace) -> None:
    """Fit the problem's siblings of other seeds, for their passes; they have no optimum."""
    rules = Rules(TARGET, options.cap, "bench-linear")
    for seed in SEEDS:
        folder = prepare(name, seed, solve=False)
        script = str(ROOT / "benchmarks" / "linear_peers.py")
        command = [sys.executable, script, OURS, str(folder), "--seed", str(seed)]
        outcome = contest.run_process(command, rules._replace(target=float("inf")), None)
        if "fit" not in outcome.head:
            raise RuntimeError(f"{name}, seed {seed}: no fit, {outcome.failure or 'no message'}")
        kept = {field: outcome.head[field] for field in ("passes", "fit", "solver", "warnings")}
        print(f"seed {seed}, {name}: {kept}", file=sys.stderr, flush=True)
        keep({"kind": "seed", "problem": name, "seed": seed}, kept)
        if seed:  # gigabytes
            shutil.rmtree(folder)


def keep(job: dict[str, Any], result: dict[str, Any]) -> None:
    """Put the line of a job into the results, in place of the one that it had."""
    lines = [line for line in read() if line["job"] != job]
    made = {"made": report.machine(), "version": report.measured_version()}
    lines.append({"job": job, "result": result, **made})
    lines.sort(key=lambda line: (line["job"]["kind"], list(PROBLEMS).index(line["job"]["problem"])))
    text = "".join(json.dumps(line) + "\n" for line in lines)
    RESULTS.write_text(text, encoding="utf-8")


def read() -> list[dict[str, Any]]:
    if not RESULTS.exists():
        return []
    return [json.loads(line) for line in RESULTS.read_text(encoding="utf-8").splitlines()]


def parse() -> argparse.Namespace:
    command = report.parser(__doc__, rounds=3)
    kinds = ["speed", "default", "seed"]
    command.add_argument("--cap", type=int, default=30, help="seconds that a fit may take")
    command.add_argument("--problems", nargs="+", choices=list(PROBLEMS), default=list(PROBLEMS))
    names = [SEARCHED, *PEERS]
    command.add_argument("--peers", nargs="+", choices=names, default=names)
    command.add_argument("--kinds", nargs="*", choices=kinds, default=kinds, help="none: the page")
    command.add_argument("--quick", action="store_true", help="one round, a cap of 10 s")
    options = command.parse_args()
    if options.quick:
        options.rounds, options.cap = 1, min(options.cap, 10)
    return options


def main() -> None:
    options = parse()
    for name in options.problems:
        defaults = DEFAULTS_OF_POISSON if name == "poisson" else DEFAULTS
        if name.startswith(("fashion", "covtype-7", "classes")):  # glum has no softmax
            defaults = [peer for peer in defaults if peer != "glum"]
        if "speed" in options.kinds:
            peers = [peer for peer in [OURS, *RUNS[name]] if peer in options.peers]
            measure(name, peers, options)
        if "default" in options.kinds:
            peers = [peer for peer in [OURS, *defaults] if peer in options.peers]
            try_defaults(name, peers, options)
        if "seed" in options.kinds and OURS in options.peers:
            try_seeds(name, options)
    picture = None
    if options.out is not None:
        picture = options.out.parents[1] / "images" / "bench_linear.png"
    measured = [line for line in read() if line.get("version") == report.measured_version()]
    text = linear_report.section(measured, options.cap, picture)
    report.publish("bench-linear", text, options.out)


if __name__ == "__main__":
    main()
