"""Tables of the benchmark of sparse and large data, from the lines that ``large.py`` keeps."""

from __future__ import annotations

import math
from typing import Any

import large_path
import large_peers
import report
from large_peers import OURS
from large_problems import PROBLEMS
from linear_report import seconds

TITLES = {
    "text": "packages to 20 sections; 52,186 x 67,129, 13.6 a row, C = 1",
    "text-binary": "packages to one half of them; the same rows, C = 10",
    "rcv1": "rcv1's shape; 700,000 x 47,236, 0.16 %, C = 1",
    "elastic-0.1": "elastic net, half L1; rows of packages to one half, C = 0.1",
    "elastic-1": "the same, C = 1",
    "elastic-10": "the same, C = 10",
    "words-1": "raw counts of words in Python's library, one folder or not; 15,249 x 48,686, C = 1",
    "words-10": "the same, C = 10",
    "words-100": "the same, C = 100",
    "words-11": "the same rows to eleven folders, C = 1",
    "bytes": "bytes in a file, sorted by class; 20,000,000 x 100, C = 1",
    "path": "20 C x 5 folds; forest types' shape, raw, 581,012 x 54",
}
Row = dict[str, Any]
NOT_RUN = "not run"


def peer_of(problem: str, peer: str) -> Any:
    return (large_path.PEERS if problem == "path" else large_peers.PEERS)[peer]


def of_problem(lines: list[Row], problem: str) -> dict[str, Row]:
    """Return the results of a problem by peer."""
    jobs = [(line["job"], line["result"]) for line in lines]
    return {
        job["peer"]: result
        for job, result in jobs
        if job["kind"] == "speed" and job["problem"] == problem and told(result)
    }


def told(result: Row) -> bool:
    """Return whether it ran: of some there is a budget alone."""
    return result.get("failure") != NOT_RUN


def middle(values: list[float]) -> float | None:
    return report.median(values) if values else None


def rows_of(problem: str, results: dict[str, Row]) -> list[tuple[str, ...]]:
    """Return a row a contestant, ours first, then by their seconds."""
    own = results.get(OURS, {"fits": [], "seconds": []})
    fit, reach = middle(own["fits"]), middle(own["seconds"])

    def rank(pair: tuple[str, Row]) -> tuple[bool, float]:
        return pair[0] != OURS, middle(pair[1]["seconds"]) or math.inf

    rows: list[tuple[str, ...]] = []
    for peer, result in sorted(results.items(), key=rank):
        head = "" if rows else TITLES[problem], title_of(problem, peer)
        is_ours = peer == OURS
        cells = our_cells(result) if is_ours else their_cells(result)
        counted = middle(result["fits"] if is_ours else result["seconds"])
        times = f"{counted / fit:.1f}" if counted and fit else ""
        reached = middle(result["seconds"])
        times_reached = f"{reached / reach:.1f}" if reached and reach else ""
        rows.append((*head, *cells, times, times_reached))
    return rows


def title_of(problem: str, peer: str) -> str:
    return peer_of(problem, peer).title + dtype_of(peer_of(problem, peer))


def dtype_of(peer: Any) -> str:
    return ", float32 rows" if peer.settings.get("dtype") == "float32" else ""


def our_cells(own: Row) -> tuple[str, str]:
    if not own["fits"]:
        return own["failure"], ""
    cell = f"{seconds(own['fits'])}, gap {gap_of(own['fit_gap'])}"
    if own["seconds"] and min(own["seconds"]) < 0.98 * min(own["fits"]):
        cell += f"; to 1e-6 {seconds(own['seconds'])}"
    elif own["failure"]:
        cell += f" ({own['failure']})"
    passes = f"{own['passes']:.1f} passes ({own['solver']})" if "passes" in own else ""
    return cell, passes


def gap_of(gap: float) -> str:
    return f"{gap:.0e}" if gap > 1e-12 else "< 1e-12"


def their_cells(result: Row) -> tuple[str, str]:
    if result["seconds"]:
        budget = "" if result["budget"] is None else str(result["budget"])
        return seconds(result["seconds"]), budget
    gaps = [point[2] for point in result["points"]]
    late = result["failure"].startswith(">")
    reached = f" (at {min(gaps):.0e})" if gaps else ""
    return (f"n.c.{reached}" if late else result["failure"]), ""


def speed_table(lines: list[Row], problems: list[str]) -> str:
    header = ["problem", "solver", "seconds to 1e-6", "iterations", "times ours", "to 1e-6"]
    rows = [row for name in problems for row in rows_of(name, of_problem(lines, name))]
    return report.markdown_table(header, rows)


def bytes_table(lines: list[Row]) -> str:
    """Return reading the file, our fit and SGD's pass, in seconds and in memory."""
    found = of_problem(lines, "bytes")
    reading = [line["result"] for line in lines if line["job"]["kind"] == "reading"]
    header = ["", "seconds", "reads of the file", "gap", "peak memory"]
    rows = []
    for result in reading:
        size = result["size"] / 1e9
        rows.append(
            [f"reading it once, {size:.1f} GB: from disk", seconds([result["cold"]]), "1", "", ""]
        )
        rows.append(["the same from the system's cache", seconds([result["warm"]]), "1", "", ""])
    for peer, row in found.items():
        title = title_of("bytes", peer)
        if "fit_gap" not in row:
            rows.append([title, row["failure"], "", "", ""])
            continue
        memory = f"{row['peak_mb']:,} MB, of it {row['start_mb']:,} before the fit"
        reads = f"{row['passes']:.1f}"
        rows.append([title, seconds([row["fit"]]), reads, gap_of(row["fit_gap"]), memory])
    return report.markdown_table(header, rows)


def versions_of(lines: list[Row]) -> str:
    found = {
        f"{peer_of(problem, peer).package} {row['version']}"
        for problem in PROBLEMS
        for peer, row in of_problem(lines, problem).items()
        if row.get("version")
    }
    return ", ".join(sorted(found))


def section(lines: list[Row], cap: int) -> str:
    packages = ("numpy", "scipy", "scikit-learn")
    sparse = [name for name in PROBLEMS if name not in ("bytes", "path")]
    return f"""\
Wall time until the objective is 1e-6 above its optimum: (F - F*) / (F(0) - F*), judged in
float64 on the original data by one function. F* by Newton's steps with conjugate gradients in
float64 (with L1: among the weights that are not zero), down to a duality gap of 1e-11 of the whole.
Ours is given C, and the share of L1 where there is one; its seconds are those of the whole `fit`,
which ends by itself, "to 1e-6" counts from its own history. Of the others it is the fit alone whose
`max_iter` is the least that reaches the target, in CSR rows that need no copy (skglm: CSC). Each in
a process of its own, two threads, medians of interleaved rounds, after a short fit to warm
up and to compile. "n.c.": not there after {cap} seconds, and how far the last fit that ended
had come. The text is what the lists of Debian's packages on this machine say: name and description,
words and pairs that come twice, tf-idf. liblinear and snapml penalise the intercept as a weight;
they are judged by the F that they minimise, against its own optimum. snapml computes in float32.
celer has no logistic loss with both penalties, and liblinear none with many classes: not here.
{versions_of(lines)}. {report.provenance("bench-large", packages)}

{speed_table(lines, sparse)}

## A file larger than memory might be

{TITLES["bytes"]}; `X` is `numpy.load(path, mmap_mode="r")`. Peak memory is that of the process
(`ru_maxrss`). scikit-learn's other solvers want 16 GB of float64 for these rows;
`SGDClassifier.partial_fit` is given blocks of 100,000 rows in random order, divided by 255.

{bytes_table(lines)}

## A path of C with cross-validation

`GLMClassifierCV` and `LogisticRegressionCV`: 20 C from 1e-4 to 1e4, 5 folds, accuracy, and the fit
on all rows with the best C. The gap is the worst of the first fold's 20 optima. newton-cholesky has
the largest `tol` of 1e-1, 1e-2, ... that brings all of them below 1e-6. The cap is {large_cap()} s.

{speed_table(lines, ["path"])}"""


def large_cap() -> int:
    from large import PATH_CAP

    return PATH_CAP
