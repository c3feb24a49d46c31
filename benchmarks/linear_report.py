"""Tables and picture of the linear solvers' benchmark, from the lines that ``linear.py`` keeps."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import report
from contest import frontier
from convex_peers import Point
from linear_peers import OURS, OURS_32, PEERS
from linear_problems import PROBLEMS

SEARCHED = "searched"
TITLES = {
    "fashion-1e-4": "Fashion-MNIST, softmax, L2 1e-4; 60,000 x 784, 10 classes",
    "fashion-1e-5": "Fashion-MNIST, softmax, L2 1e-5; 60,000 x 784, 10 classes",
    "covtype": "forest types' shape, raw; 581,012 x 54, C = 1",
    "covtype-7": "forest types' shape, raw, 7 classes; 581,012 x 54, C = 1",
    "higgs": "HIGGS's shape; 2,000,000 x 28, C = 1",
    "patches": "image patches, collinear; 533,828 x 147, C = 1e4",
    "tiny-l2": "condition number 1e6; 50,000 x 300, L2 1e-6 / n",
    "imbalanced": "0.5 % positive, balanced, scales 1e-3 to 1e3; 500,000 x 50, C = 1e3",
    "imbalanced-plain": "the same without class weights",
    "poisson": "Poisson, car insurance's shape; 600,000 x 75, L2 1e-4",
    "breast-cancer": "breast cancer, raw; 569 x 30, C = 1",
    "wide": "more columns than rows; 500 x 5,000, C = 1",
    "classes-100": "100 classes of bytes; 20,000 x 300, C = 1",
}
# Okabe and Ito's colours, which the colour-blind tell apart; a colour for a library.
COLOURS = {
    OURS: "#000000",
    SEARCHED: "#56B4E9",
    "scikit-learn": "#0072B2",
    "scikit-learn-intelex": "#D55E00",
    "glum": "#009E73",
}
LINES = {"lbfgs": "-", "newton-cholesky": "--", "newton-cg": "-.", "saga": ":"}
Row = dict[str, Any]


def title_of(peer: str) -> str:
    return "our own Gluon run, its steps searched" if peer == SEARCHED else PEERS[peer].title


def of_kind(lines: list[Row], kind: str) -> dict[str, dict[str, Row]]:
    """Return the results of a kind by problem and peer (or seed)."""
    found: dict[str, dict[str, Row]] = {}
    for name in PROBLEMS:
        jobs = [line for line in lines if line["job"]["kind"] == kind]
        of_problem = [line for line in jobs if line["job"]["problem"] == name]
        if of_problem:
            found[name] = {
                str(line["job"].get("peer", line["job"].get("seed"))): line["result"]
                for line in of_problem
            }
    return found


def seconds(values: list[float]) -> str:
    middle = report.median(values)
    return f"{1000 * middle:.1f} ms" if middle < 0.1 else f"{middle:.2f} s"


def ratio(value: float) -> str:
    return f"{value:.1f}" if value >= 0.1 else f"{value:.2f}"


def dtype_of(peer: str) -> str:
    dtype = PEERS[peer].settings.get("dtype", "") if peer in PEERS else "float32"
    return ", float32 rows" if dtype == "float32" else ""


def speed_rows(name: str, results: dict[str, Row]) -> list[tuple[str, ...]]:
    """Return a row a contestant, ours first, then by their seconds."""
    ours = results.get(OURS, {"seconds": [], "fits": []})
    fit = report.median(ours["fits"]) if ours["fits"] else None
    reach = report.median(ours["seconds"]) if ours["seconds"] else None
    of_us = [peer for peer in (OURS, OURS_32) if peer in results]
    rows = [_our_row(name, peer, results[peer], fit, reach) for peer in of_us]
    others = [(peer, result) for peer, result in results.items() if peer not in of_us]

    def rank(pair: tuple[str, Row]) -> float:
        return report.median(pair[1]["seconds"]) if pair[1]["seconds"] else math.inf

    for peer, result in sorted(others, key=rank):
        head = "" if rows else TITLES[name], title_of(peer) + dtype_of(peer)
        if not result["seconds"]:
            rows.append((*head, failure(result), "", "", ""))
            continue
        middle = report.median(result["seconds"])
        times = (ratio(middle / unit) if unit else "" for unit in (fit, reach))
        rows.append((*head, seconds(result["seconds"]), str(result["budget"]), *times))
    return rows


def failure(result: Row) -> str:
    """Return why a peer has no seconds: the gap that it reached, or its error."""
    gaps = [point[2] for point in result["points"]]
    late = result["failure"].startswith(">")
    return f"n.c. (at {min(gaps):.0e})" if late and gaps else result["failure"]


def _our_row(
    name: str, peer: str, own: Row, fit: float | None, reach: float | None
) -> tuple[str, ...]:
    title = TITLES[name] if peer == OURS else "", title_of(peer) + dtype_of(peer)
    if not own["fits"]:
        return *title, own["failure"], "", "", ""
    cell = f"{seconds(own['fits'])}, gap {own['fit_gap']:.0e}"
    cell += f"; to 1e-6 {seconds(own['seconds'])}" if own["seconds"] else f" ({own['failure']})"
    passes = f"{own['passes']:.1f} passes ({own['solver']})"
    times = f"{report.median(own['fits']) / fit:.1f}" if fit else ""
    reached = f"{report.median(own['seconds']) / reach:.1f}" if own["seconds"] and reach else ""
    return *title, cell, passes, times, reached


def speed_table(results: dict[str, dict[str, Row]]) -> str:
    header = ["problem", "solver", "seconds to 1e-6", "iterations", "times ours", "to 1e-6"]
    rows = [row for name, of_name in results.items() for row in speed_rows(name, of_name)]
    return report.markdown_table(header, rows)


def default_table(results: dict[str, dict[str, Row]]) -> str:
    """Return a row a problem, a column a solver: the gap that its default leaves."""
    same = {"poisson-lbfgs": "lbfgs", "poisson-newton-cholesky": "newton-cholesky"}
    peers = [OURS, "lbfgs", "newton-cholesky", "newton-cg", "saga", "intel-lbfgs", "glum"]
    rows = []
    for name, of_name in results.items():
        cells = {same.get(peer, peer): default_cell(row) for peer, row in of_name.items()}
        rows.append([TITLES[name].split(";")[0], *(cells.get(peer, "") for peer in peers)])
    return report.markdown_table(["problem", *map(title_of, peers)], rows)


def default_cell(row: Row) -> str:
    if row["failure"]:
        return row["failure"]
    # What is below the optimum is rounding.
    gap = f"{max(row['gap'], 0):.0e}" if row["gap"] > 1e-12 else "< 1e-12"
    return f"{gap}, {seconds([row['seconds']])}" + (", *warned*" if row["warnings"] else "")


def seed_table(results: dict[str, dict[str, Row]]) -> str:
    seeds = sorted({seed for of_name in results.values() for seed in of_name})
    rows = [
        [TITLES[name].split(";")[0]]
        + [f"{of_name[seed]['passes']:.1f}" if seed in of_name else "" for seed in seeds]
        for name, of_name in results.items()
    ]
    return report.markdown_table(["problem", *(f"seed {seed}" for seed in seeds)], rows)


def section(lines: list[Row], cap: int, picture: Path | None) -> str:
    speed, default, seed = (of_kind(lines, kind) for kind in ("speed", "default", "seed"))
    image = ""
    if picture is not None and speed:
        plot(picture, speed)
        image = f"\n\n![Gap against seconds](../images/{picture.name})"
    versions = sorted(
        {
            f"{PEERS[peer].package} {row['version']}"
            for of_name in speed.values()
            for peer, row in of_name.items()
            if peer in PEERS and row.get("version")
        }
    )
    packages = ("numpy", "scipy", "scikit-learn")
    return f"""\
Wall time until the objective is 1e-6 above its optimum, as a part of what it is above it at zero:
(F - F*) / (F(0) - F*), judged in float64 on the original data by one function; F* by Newton steps
in float64, to a decrement of 1e-13. Ours is given C (or alpha) and nothing else, and float64 rows:
the seconds are those of the whole `fit`, checks of the input included, which ends by itself; the
last column counts from its own history, whose objective was 1e-6 above F* earlier. Of the others
it is the fit alone whose `max_iter` is the least that reaches the target (searched to 4 %), as if
they had known it beforehand, in float64 or float32 rows as their row says. Each in a process of
its own, two threads (one on the two small problems), medians of interleaved rounds, after a fit of
one iteration to warm up. "n.c.": not there after {cap} seconds, and how far the last fit that ended
had come. {", ".join(versions)}. {report.provenance("bench-linear", packages)}

{speed_table(speed)}{image}

## Default against default

What each leaves above the optimum when nothing is said but the strength of the penalty (and the
solver's name), its seconds, and whether it warned; one fit each.

{default_table(default)}

## Other seeds

Passes of ours over the data on siblings of the problems, drawn (or ordered) by other seeds.

{seed_table(seed)}"""


def looks_of(peer: str) -> dict[str, Any]:
    package = PEERS[peer].package if peer in PEERS else peer
    kind = next((solver for solver in LINES if solver in peer), "")
    return {
        "color": COLOURS[package],
        "linestyle": LINES.get(kind, "-"),
        "marker": "o" if peer in (OURS, SEARCHED) else "s" if peer.endswith("-32") else ".",
        "linewidth": 2.6 if peer in (OURS, OURS_32) else 1.4,
        "markersize": 4 if peer in (OURS, SEARCHED) or peer.endswith("-32") else 6,
        "zorder": 3 if peer == OURS else 2,
    }


def plot(path: Path, results: dict[str, dict[str, Row]]) -> None:
    """Draw the gap against seconds of the first round, a panel a problem."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    from matplotlib import ticker

    columns = 3
    rows = -(-len(results) // columns)
    figure, axes = plt.subplots(rows, columns, figsize=(13, 3.3 * rows + 1), squeeze=False)
    for axis in axes.flat[len(results) :]:
        axis.remove()
    for axis, (name, of_name) in zip(axes.flat, results.items(), strict=False):
        for peer, result in of_name.items():
            points = [p for p in frontier([Point(*p) for p in result["points"]]) if p.gap > 0]
            # A gap below that is rounding of the judge.
            gaps = [max(point.gap, 1e-10) for point in points]
            label = title_of(peer).strip("*") + dtype_of(peer) * (peer in PEERS)
            times = [point.seconds for point in points]
            axis.loglog(times, gaps, label=label, **looks_of(peer))
        axis.axhline(1e-6, color="gray", linewidth=1)
        axis.set(ylim=(3e-11, 3))
        axis.set_title(TITLES[name].replace("; ", "\n"), fontsize=9)
        axis.grid(alpha=0.3)
        # The labels between powers of ten run into each other.
        axis.xaxis.set_major_locator(ticker.LogLocator(subs=(1, 3)))
        axis.xaxis.set_major_formatter(ticker.FormatStrFormatter("%g"))
        axis.xaxis.set_minor_formatter(ticker.NullFormatter())
    for axis in axes[:, 0]:
        axis.set_ylabel("above the optimum")
    for axis in axes.flat[max(len(results) - columns, 0) : len(results)]:
        axis.set_xlabel("seconds")
    shown = [axis for axis in axes.flat if axis.figure is not None]
    pairs = (zip(*axis.get_legend_handles_labels(), strict=True) for axis in shown)
    handles = {label: line for of_axis in pairs for line, label in of_axis}
    figure.legend(handles.values(), handles, loc="lower center", ncols=4, frameon=False, fontsize=8)
    figure.tight_layout(rect=(0, 0.03 + 0.012 * -(-len(handles) // 4), 1, 1))
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=100)
    plt.close(figure)
