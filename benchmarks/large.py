"""Time the linear solver on sparse data, on a file of 20 million rows, with L1, and on a path of C.

The problems are those of ``large_problems.py``; each is timed to 1e-6 above its optimum, as in
``linear.py``: nothing but C (and the share of L1) given to ours, the best budgets that were found
to the peers, every fit in a process of its own, interleaved rounds. ``make bench-large`` runs all
and puts the tables into docs/benchmarks/large.md.

What was measured is kept line by line in ``results/large.jsonl``, so that a part may be run again;
so are the optima, which count for the same data only, and the peers' budgets: they are searched
where none is known (``--search``: always), which takes an hour. The data are written once, into
``runs/bench/large``: 6 GB.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import contest
import large_judge
import large_path
import large_peers
import large_report
import report
from contest import Entrant, Outcome, Rules
from large_judge import Reference
from large_peers import OURS
from large_problems import PROBLEMS, SPARSE, path_of_covtype, stored_bytes

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ROOT / "runs" / "bench" / "large"
RESULTS = ROOT / "benchmarks" / "results" / "large.jsonl"
TARGET = 1e-6
PATH_CAP = 300
# The peers of each problem.
RUNS: dict[str, list[str]] = {
    "text": [OURS, "saga", "lbfgs", "newton-cg"],
    "text-binary": [
        *[OURS, "lbfgs", "saga", "newton-cg"],
        *["liblinear", "liblinear-dual", "snapml", "snapml-1"],
    ],
    "rcv1": [OURS, "lbfgs", "saga", "liblinear", "liblinear-dual", "snapml", "snapml-1"],
    "elastic-0.1": [OURS, "saga", "skglm"],
    "elastic-1": [OURS, "saga", "skglm"],
    "elastic-10": [OURS, "saga", "skglm"],
    "words-1": [OURS, "lbfgs", "newton-cg", "liblinear", "liblinear-dual"],
    "words-10": [OURS, "lbfgs", "newton-cg", "liblinear", "liblinear-dual"],
    "words-100": [OURS, "lbfgs", "newton-cg", "liblinear", "liblinear-dual"],
    "words-11": [OURS, "lbfgs", "newton-cg", "saga"],
    "bytes": [OURS, "sgd"],
    "path": [OURS, "newton-cholesky", "lbfgs"],
}
ROUNDS = {"text-binary": 3, "text": 2, "elastic-0.1": 2, "elastic-1": 2}


def prepare(name: str) -> Path:
    """Write the problem where that has not been done; return its folder."""
    folder = FOLDERS / name
    if not (folder / "card.json").exists():
        print(f"writing {name}", file=sys.stderr, flush=True)
        folder.mkdir(parents=True, exist_ok=True)
        if name == "bytes":
            problem = stored_bytes(folder / "x.npy")
        else:
            problem = path_of_covtype() if name == "path" else SPARSE[name]()
        large_judge.write(folder, problem)
    return folder


def optimum_of(name: str) -> Reference:
    """Return the optimum that is known of these data, or find it."""
    folder = prepare(name)
    digest = large_judge.card_of(folder)["digest"]
    job = {"kind": "optimum", "problem": name}
    for line in read():
        if line["job"] == job and line["result"]["digest"] == digest:
            return Reference(**line["result"]["optimum"])
    print(f"looking for the optimum of {name}", file=sys.stderr, flush=True)
    found = large_judge.reference(large_judge.read(folder))
    keep(job, {"digest": digest, "optimum": found._asdict()})
    return found


def known_budget(name: str, peer: str) -> int | None:
    """Return the budget that reached the target on these data, if one is known."""
    digest = large_judge.card_of(prepare(name))["digest"]
    for line in read():
        job, result = line["job"], line["result"]
        if job == {"kind": "speed", "problem": name, "peer": peer}:
            return result["budget"] if result.get("digest") == digest else None
    return None


def entrant(name: str, peer: str, rules: Rules, options: argparse.Namespace) -> Entrant:
    """Return what runs one contestant."""
    folder, is_ours = prepare(name), peer == OURS
    python = sys.executable if is_ours else options.peers_python
    if name == "path":
        command = [python, str(Path(large_path.__file__)), peer, str(folder)]
        return lambda _: contest.run_process(command, rules, None)
    optimum = json.dumps(optimum_of(name)._asdict())
    command = [python, str(Path(large_peers.__file__)), peer, str(folder), "--optimum", optimum]
    known = None if options.search or is_ours else known_budget(name, peer)

    def enter(budget: int | None) -> Outcome:
        asked = None if is_ours else budget or known
        outcome = contest.run_process(command, rules, None, asked)
        if asked and outcome.failure.startswith("stands"):  # known of another number of threads
            outcome = contest.run_process(command, rules, None)
        return outcome

    return enter


def measure(name: str, peers: list[str], options: argparse.Namespace) -> None:
    """Run the contest of one problem, and keep what comes of it."""
    cap = max(options.cap, PATH_CAP) if name == "path" and not options.quick else options.cap
    rules = Rules(TARGET, cap, "bench-large")
    entrants = {peer: entrant(name, peer, rules, options) for peer in peers}
    rounds = options.rounds or ROUNDS.get(name, 1)
    digest = large_judge.card_of(prepare(name))["digest"]
    for peer, result in contest.measure(entrants, rounds).items():
        first = result.first
        best = first.best()
        told = {
            **first.head,
            "digest": digest,
            "seconds": result.seconds,
            "processors": [head["processor"] for head in result.heads if "processor" in head],
            "fits": [head["fit"] for head in result.heads if "fit" in head],
            "budget": best.budget if best else None,
            "points": [list(point) for point in first.points],
            "failure": first.failure,
        }
        print(f"{name}, {peer}: {first.failure or told['seconds']}", file=sys.stderr, flush=True)
        keep({"kind": "speed", "problem": name, "peer": peer}, told)


def measure_bytes(peers: list[str], options: argparse.Namespace) -> None:
    """Read the file once, cold and warm, beside a fit of its rows; one pass of SGD for its gap."""
    folder = prepare("bytes")
    if OURS in peers:
        cold, warm = (seconds_of_reading(folder / "x.npy", cold) for cold in (True, False))
        size = (folder / "x.npy").stat().st_size
        keep({"kind": "reading", "problem": "bytes"}, {"cold": cold, "warm": warm, "size": size})
    rules = Rules(TARGET, max(options.cap, PATH_CAP), "bench-large")
    for peer in peers:
        of_peer = rules if peer == OURS else rules._replace(target=float("inf"))
        outcome = entrant("bytes", peer, of_peer, options)(None)
        told = {**outcome.head, "points": [list(point) for point in outcome.points]}
        best = outcome.best()
        told |= {"failure": outcome.failure, "seconds": [best.seconds] if best else []}
        print(f"bytes, {peer}: {told}", file=sys.stderr, flush=True)
        keep({"kind": "speed", "problem": "bytes", "peer": peer}, told)


def seconds_of_reading(path: Path, cold: bool) -> float:
    """Return the seconds that a process of its own takes to read the file through."""
    script = (
        "import os, sys, time\n"
        "file = os.open(sys.argv[1], os.O_RDONLY)\n"
        "if sys.argv[2] == 'cold':\n"
        "    os.fsync(file)\n"
        "    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)\n"
        "buffer, begin = bytearray(1 << 23), time.perf_counter()\n"
        "while os.readv(file, [buffer]):\n"
        "    pass\n"
        "print(time.perf_counter() - begin)\n"
    )
    command = [sys.executable, "-c", script, str(path), "cold" if cold else "warm"]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return float(done.stdout)


def keep(job: dict[str, Any], result: dict[str, Any]) -> None:
    """Put the line of a job into the results, in place of the one that it had."""
    lines = [line for line in read() if line["job"] != job]
    made = {"made": report.machine(), "version": report.measured_version()}
    lines.append({"job": job, "result": result, **made})
    lines.sort(key=lambda line: (line["job"]["kind"], PROBLEMS.index(line["job"]["problem"])))
    text = "".join(json.dumps(line) + "\n" for line in lines)
    RESULTS.write_text(text, encoding="utf-8")


def read() -> list[dict[str, Any]]:
    if not RESULTS.exists():
        return []
    return [json.loads(line) for line in RESULTS.read_text(encoding="utf-8").splitlines()]


def parse() -> argparse.Namespace:
    command = report.parser(__doc__, rounds=0)
    command.add_argument("--cap", type=int, default=60, help="seconds that a fit may take")
    command.add_argument("--only", nargs="*", choices=PROBLEMS, help="none: the page", default=None)
    names = list(dict.fromkeys(peer for peers in RUNS.values() for peer in peers))
    command.add_argument("--peers", nargs="+", choices=names, default=names)
    command.add_argument("--search", action="store_true", help="search the peers' budgets again")
    command.add_argument("--quick", action="store_true", help="one round, a cap of 20 s")
    options = command.parse_args()
    if options.quick:
        options.rounds, options.cap = 1, min(options.cap, 20)
    return options


def main() -> None:
    options = parse()
    os.environ.setdefault("PYTHONWARNINGS", "ignore")
    for name in PROBLEMS if options.only is None else options.only:
        peers = [peer for peer in RUNS[name] if peer in options.peers]
        if name == "bytes":
            measure_bytes(peers, options)
        else:
            measure(name, peers, options)
    measured = [line for line in read() if line.get("version") == report.measured_version()]
    report.publish("bench-large", large_report.section(measured, options.cap), options.out)


if __name__ == "__main__":
    main()
