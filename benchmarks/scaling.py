"""What several machines cost: sums over slow links, beside a model, and what that says of others.

    python benchmarks/scaling.py run      # needs root, for network namespaces
    python benchmarks/scaling.py page     # the tables and the picture of docs/scaling.md

Each machine is a network namespace with a link of its own; the launcher starts the job over them.
Processors are those of this machine: where a link is slow, they wait for it as real ones would.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import evidence_common as common
import report
import scaling_network
from matplotlib.figure import Figure
from scaling_model import Costs, Sum, joined, share_fitted

PART = "scaling"
HERE = Path(__file__).resolve().parent
ENGINES = ("dist_sync", "dist_sync, any order", "mpi")
HALF = ", float16"
"""At the end of an engine's name in a job: float32 is sent as float32 and as float16, in turns."""
OPTIONS = {
    "dist_sync": ["--engine", "dist_sync"],
    "dist_sync, any order": ["--engine", "dist_sync", "--no-exact"],
    # Namespaces of one machine could share its memory.
    "mpi": ["--engine", "mpi", "--env", "UCX_TLS=tcp,self"],
}
NUMBERS = (1_000, 272_474, 2_500_000)
RATES = (None, 1e9, 2e8)
WORKERS = (2, 4)
NETWORKS = {
    "ResNet-20": 272_474,
    "ResNet-50": 25_557_032,
    "linear, 10 x 1,000,000": 10_000_010,
}
FAR = (1e9, 1e10, 1e11)


def jobs() -> Iterator[common.Row]:
    for workers in WORKERS:
        for engine in ENGINES:
            if workers > 2 or engine != "dist_sync, any order":
                yield {"workers": workers, "engine": engine}
        for engine in ("dist_sync", "mpi"):
            yield {"workers": workers, "engine": engine + HALF}


def work(job: common.Row) -> common.Row:
    with (
        scaling_network.Machines(job["workers"]) as machines,
        tempfile.TemporaryDirectory() as folder,
    ):
        hosts = Path(folder, "hosts.txt")
        hosts.write_text("".join(f"{address}\n" for address in machines.addresses))
        command = [sys.executable, "-m", "gluon_svrg.launch", "--hosts", str(hosts), "-n", "1"]
        command += ["--ssh", machines.ssh, "--max-restarts", "0", "--threads", "1"]
        command += OPTIONS[job["engine"].removesuffix(HALF)]
        command += [str(HERE / "scaling_worker.py"), "--folder", folder]
        command += ["--numbers", *map(str, NUMBERS), "--rates", *map(str, RATES)]
        command += ["--half"] * job["engine"].endswith(HALF)
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as running:
            limits = threading.Thread(target=serve_limits, args=(machines, Path(folder), running))
            limits.start()
            out, _ = running.communicate()
            limits.join()
    if running.returncode:
        raise subprocess.CalledProcessError(running.returncode, command)
    lines = [line[line.index("{") :] for line in out.splitlines() if '{"rate"' in line]
    return {"sums": [json.loads(line) for line in lines]}


def serve_limits(
    machines: scaling_network.Machines, folder: Path, running: subprocess.Popen[str]
) -> None:
    """Limit the links as the first worker asks for it, while it runs."""
    number = 0
    while running.poll() is None:
        asked = folder / f"{number}.asked"
        if asked.exists():
            rate = asked.read_text()
            machines.limit(None if rate == "None" else float(rate))
            (folder / f"{number}.done").touch()
            number += 1
        time.sleep(0.02)


def medians(
    results: common.Results,
    rate: float | None,
    workers: int,
    engine: str,
    is_half: bool = False,
) -> dict[Sum, float]:
    """Return the seconds of each sum: the least of the rounds' medians.

    The machine has neighbours, who disturb some of the rounds, and whole ones.
    """
    found: dict[Sum, list[float]] = {}
    for line in results.rows:
        if line["job"] == {"workers": workers, "engine": engine}:
            for row in line["result"]["sums"]:
                if row["rate"] == str(rate) and row.get("half", False) == is_half:
                    one = Sum(engine, workers, row["numbers"])
                    found.setdefault(one, []).append(row["seconds"])
    return {one: min(seconds) for one, seconds in found.items()}


def shares(results: common.Results) -> dict[int, float]:
    """Return what share of the shorter of work and wire is not hidden, by the number of machines.

    Two processes have a core each here, and four share two: who waits for a core hides nothing.
    """
    found = {}
    for workers in WORKERS:
        parts, seconds = [], []
        for engine in ENGINES:
            without = medians(results, None, workers, engine)
            for rate in RATES[1:]:
                for one, taken in medians(results, rate, workers, engine).items():
                    parts.append((without[one], one.wire(rate, scaling_network.PACKET)))
                    seconds.append(taken)
        found[workers] = share_fitted(parts, seconds)
    return found


def costs_of(results: common.Results) -> dict[str, Costs]:
    """Return what each engine takes, by the sums of two machines."""
    share = shares(results)[2]
    costs = {}
    for engine in ("dist_sync", "mpi"):
        found = medians(results, None, 2, engine)
        costs[engine] = Costs.fitted(found, found.values(), share)
    return costs | {"dist_sync, any order": costs["dist_sync"]}


def check(results: common.Results) -> str:
    """Return the table of what was measured beside what the model says."""
    rows = []
    for workers, share in shares(results).items():
        for engine in ENGINES:
            without = medians(results, None, workers, engine)
            limited = {rate: medians(results, rate, workers, engine) for rate in RATES[1:]}
            for one, here in without.items():
                cells = [f"{here * 1e3:.1f}"]
                for rate, found in limited.items():
                    said = joined(here, one.wire(rate, scaling_network.PACKET), share)
                    off = said / found[one] - 1
                    cells.append(f"{found[one] * 1e3:.1f} / {said * 1e3:.1f} ({off:+.0%})")
                rows.append((engine, workers, f"{one.numbers:,}", *cells))
    speeds = [f"{rate / 1e9:g} Gb/s: measured / model" for rate in RATES[1:]]
    header = ["engine", "machines", "numbers", "no limit, ms", *speeds]
    return report.markdown_table(header, rows)


def half(results: common.Results) -> str:
    """Return the table of what float16 between workers saves, as measured."""
    rows = []
    for workers in WORKERS:
        for engine in ("dist_sync", "mpi"):
            for numbers in NUMBERS[1:]:
                cells = []
                for rate in RATES:
                    one = Sum(engine + HALF, workers, numbers)
                    single, halved = (
                        medians(results, rate, workers, one.engine, is_half)[one]
                        for is_half in (False, True)
                    )
                    cells.append(f"{single * 1e3:.1f} / {halved * 1e3:.1f} ({halved / single:.2f})")
                rows.append((engine, workers, f"{numbers:,}", *cells))
    speeds = ["no limit, ms", *(f"{rate / 1e9:g} Gb/s, ms" for rate in RATES[1:])]
    return report.markdown_table(["engine", "machines", "numbers", *speeds], rows)


def far(results: common.Results) -> str:
    """Return the table of what the model says of eight machines."""
    costs = costs_of(results)
    rows = []
    for name, numbers in NETWORKS.items():
        for engine in ENGINES:
            cells = []
            for rate in FAR:
                seconds = costs[engine].seconds(Sum(engine, 8, numbers), rate)
                cells.append(f"{seconds * 1e3:.3g} / {9 * seconds:.2g}")
            rows.append((name, f"{4 * numbers / 1e6:.3g}", engine, *cells))
    header = ["network", "MB", "engine", *(f"{rate / 1e9:g} Gb/s" for rate in FAR)]
    return report.markdown_table(header, rows)


def draw(results: common.Results, path: Path) -> None:
    """Draw what share of its time a machine computes, by how long a step computes."""
    costs = costs_of(results)
    figure = Figure(figsize=(11, 3.4), layout="constrained")
    x = [10 ** (i / 20) for i in range(-60, 41)]
    for number, (name, numbers) in enumerate(NETWORKS.items(), 1):
        axes = figure.add_subplot(1, 3, number)
        for color, rate in enumerate(FAR):
            for engine, style in (("dist_sync", "-"), ("dist_sync, any order", ":"), ("mpi", "--")):
                seconds = costs[engine].seconds(Sum(engine, 8, numbers), rate)
                y = [100 * one / (one + seconds) for one in x]
                label = f"{rate / 1e9:g} Gb/s, {engine}"
                axes.plot(x, y, style, color=f"C{color}", label=label)
        axes.axhline(90, color="black", linewidth=0.6)
        axes.set(title=name, xscale="log", xlabel="seconds a step computes", ylim=(0, 101))
        axes.grid(alpha=0.3)
    figure.axes[0].set_ylabel("% of the time that is computing")
    figure.axes[0].legend(fontsize="xx-small")
    figure.savefig(path, dpi=130)


def write_page(folder: Path) -> None:
    results = common.Results(PART)
    page, provenance = folder / "scaling.md", f"{results.provenance()}; `make scaling`."
    costs = costs_of(results)
    fitted = report.markdown_table(
        ["engine", "latency over two, ms", "a byte that a worker gives, ns"],
        [
            (engine, f"{1e3 * costs[engine].latency:.2f}", f"{1e9 * costs[engine].byte:.2f}")
            for engine in ("dist_sync", "mpi")
        ],
    )
    hidden = report.markdown_table(
        ["machines", "share of the shorter that is not hidden"],
        [(workers, f"{share:.2f}") for workers, share in shares(results).items()],
    )
    text = "\n\n".join([fitted, hidden, check(results), provenance])
    report.write_section(page, "scaling-check", text)
    report.write_section(page, "scaling-half", half(results))
    report.write_section(page, "scaling-far", far(results))
    draw(results, common.IMAGES / "scaling.png")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("command", choices=["run", "page"])
    parser.add_argument("--out", type=Path, default=common.ROOT / "docs", help="the page's folder")
    options = parser.parse_args()
    if options.command == "page":
        write_page(options.out)
    elif reason := scaling_network.missing():
        sys.exit(f"machines cannot be made here: {reason}")
    else:
        common.Results(PART).run(jobs(), work)


if __name__ == "__main__":
    main()
