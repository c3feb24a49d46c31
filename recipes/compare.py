r"""Runs side by side: one picture and one table.

    python recipes/compare.py runs/sgd runs/lars
    python recipes/compare.py SGD="--optimizer sgd" SVRG="--optimizer sgd --svrg" \
        --common "--data digits --epochs 5" --out runs/compare
    python recipes/compare.py --common "--preset fashion-mnist-nag" NAG= SVRG="--svrg" \
        alpha-SVRG="--svrg --alpha-decay 0.75"

A run is the folder of a run that is done, or ``NAME="OPTIONS"``: ``cifar_resnet.py`` is then run
with these options, into the folder NAME below ``--out``. As runs differ in what a step costs, the
curves are drawn against gradient evaluations and against seconds.

Writes ``report.html``, ``compare.png``, ``table.md`` and ``table.csv`` into ``runs/compare``, or
where ``--out`` says.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import interruption
import cifar_options
import cifar_resnet
import run_report
from interruption import EXIT_CODE
from matplotlib.figure import Figure
from option_types import show_defaults

# What the picture and the table need of a history.csv, as cifar_resnet.py writes it.
_COLUMNS = ("seconds", "gradient_evaluations", "training loss", "validation accuracy")
_PANELS = {"training loss": "training loss", "validation accuracy": "test accuracy"}
_HORIZONTAL = {"gradient_evaluations": "gradient evaluations", "seconds": "seconds"}


class Run(NamedTuple):
    """The curves of a run: one value an epoch; seconds since its begin."""

    name: str
    columns: dict[str, list[float]]

    def row(self) -> dict[str, Any]:
        """Return the run's row of the table: where it ended."""
        accuracy = self.columns["validation accuracy"]
        return {
            "run": self.name,
            "epochs": len(accuracy),
            "test accuracy": accuracy[-1],
            "best test accuracy": max(accuracy),
            "training loss": self.columns["training loss"][-1],
            "seconds": self.columns["seconds"][-1],
            "gradient evaluations": int(self.columns["gradient_evaluations"][-1]),
        }


def read(name: str, folder: Path) -> Run:
    """Return the run in a folder; end with a sentence where it is none."""
    path = folder / "history.csv"
    if not path.is_file():
        raise SystemExit(
            f"{str(folder)!r} has no history.csv: give the --out of a run of cifar_resnet.py, or "
            'NAME="OPTIONS" to start one'
        )
    with path.open(newline="") as file:
        # An epoch that was broken off has no evaluation.
        rows = [row for row in csv.DictReader(file) if row.get("complete") != "0"]
    if rows[1:] and not rows[-1].get("validation accuracy"):
        rows.pop()  # its evaluation was broken off
    for column in _COLUMNS:
        if not rows or not rows[-1].get(column):
            raise SystemExit(
                f"{str(path)!r} has no {column!r} of its last epoch: it is not of a run of "
                "cifar_resnet.py, of an older one, or of one that was broken off in its first "
                "epoch; run it again"
            )
    columns = {column: [float(row[column] or "nan") for row in rows] for column in _COLUMNS}
    columns["seconds"] = list(itertools.accumulate(columns["seconds"]))
    return Run(name, columns)


def launch(runs: dict[str, list[str]], out: Path) -> bool:
    """Run the recipe with the options of each run; return False if Ctrl-C has ended one."""
    # All command lines before any training: AMP, which changes MXNet for good, allows one dtype.
    dtypes = {cifar_options.parse(options).dtype for options in runs.values()}
    if len(dtypes) > 1:
        raise SystemExit(
            f"runs of {' and '.join(sorted(dtypes))} cannot share a process, which MXNet's AMP "
            "changes for good: run cifar_resnet.py for each, and compare their folders"
        )
    for name, options in runs.items():
        print(f"\n{name}: {shlex.join(options)}")
        try:
            cifar_resnet.main([*options, "--out", str(out / name)])
        except SystemExit as end:
            if end.code != EXIT_CODE:
                raise
            return False
    return True


def draw(runs: list[Run]) -> Figure:
    """Return the picture: loss and accuracy, against gradient evaluations and seconds."""
    figure = Figure(figsize=(11, 7.5), layout="constrained")
    figure.suptitle("Runs side by side")
    axes = figure.subplots(len(_PANELS), len(_HORIZONTAL), sharey="row", squeeze=False)
    for line, (column, label) in zip(axes, _PANELS.items(), strict=True):
        line[0].set_ylabel(label)
        for axis, (horizontal, horizontal_label) in zip(line, _HORIZONTAL.items(), strict=True):
            for run in runs:
                marker = "o" if len(run.columns[column]) < 40 else None
                x, y = run.columns[horizontal], run.columns[column]
                axis.plot(x, y, label=run.name, marker=marker, markersize=3.5, linewidth=1.4)
            axis.set_xlabel(horizontal_label)
            axis.set_xlim(left=0)
            axis.grid(alpha=0.3)
    axes[0][0].legend()
    return figure


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", nargs="+", metavar="RUN", help='a folder, or NAME="OPTIONS"')
    parser.add_argument(
        "--common",
        default="",
        metavar="OPTIONS",
        help='of all that are started; one option alone with an equals sign: --common="--svrg"',
    )
    parser.add_argument(
        "--out", type=Path, default=Path("runs/compare"), help="folder of the comparison"
    )
    return show_defaults(parser).parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> list[Run]:
    """Run the recipe; return the runs."""
    options = parse(arguments)
    folders: dict[str, Path] = {}
    started: dict[str, list[str]] = {}
    for given in options.runs:
        name, equals, own = given.partition("=")
        if equals and not Path(given).is_dir():
            if not re.fullmatch(r"[\w.+-]*\w[\w.+-]*", name):
                raise SystemExit(
                    f"a run's name must have letters, digits and . + - only, got {name!r}: it is "
                    "its folder's"
                )
            started[name] = [*shlex.split(options.common), *shlex.split(own)]
            folder = options.out / name
        else:
            folder = Path(given)
            name = folder.resolve().name
        if name in folders:
            raise SystemExit(f"two runs are called {name!r}: give each another name")
        folders[name] = folder
    for name in folders.keys() - started.keys():
        read(name, folders[name])  # what is not there is said before any training
    is_whole = launch(started, options.out)
    if not is_whole:  # what the runs before have reached is reported
        folders = {n: f for n, f in folders.items() if (f / "result.json").is_file()}
    runs = []
    for name, folder in folders.items():
        try:
            runs.append(read(name, folder))
        except SystemExit:
            if is_whole:
                raise
            # Ctrl-C came in its first epoch: there is nothing to compare.
    if not runs:
        raise SystemExit(EXIT_CODE)

    options.out.mkdir(parents=True, exist_ok=True)
    rows = [run.row() for run in runs]
    table = run_report.markdown(rows)
    run_report.write_text(options.out / "table.md", table)
    run_report.write_csv(options.out / "table.csv", rows)
    picture = options.out / "compare.png"
    run_report.write_figure(picture, draw(runs))
    run_report.write_html(
        options.out / "report.html",
        "Runs side by side",
        run_report.launch_line(__file__, arguments),
        {"Where they ended": rows},
        [picture],
    )
    print(f"\n{table}\nSee {options.out}: report.html, compare.png, table.md, table.csv")
    if not is_whole:
        raise SystemExit(EXIT_CODE)
    return runs


if __name__ == "__main__":
    interruption.run(main)
