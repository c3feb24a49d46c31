"""Other people's code with this package's classes: MXNet's own, the book's, GluonCV's.

    make upstream MXNET=../mxnet BOOK=../d2l-en GLUONCV=../gluon-cv
    python tests/upstream/run.py --book ../d2l-en --only lenet

Checkouts are given, and left as they are: MXNet's sources at the tag 1.9.1, *Dive into Deep
Learning* at a version whose default code is MXNet's (v0.17.5), GluonCV. What is not given is not
run. Every script runs twice, in processes of their own: with MXNet's classes, and with
SVRGTrainer as gluon.Trainer. After each step all parameters of both are compared, to the bit. Of
MXNet's unit tests the outcomes are compared.

The results are kept in ``runs/upstream``, and what is there is not run again without ``--again``.
``--out`` writes the tables into a page.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import importlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, TextIO

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(ROOT / "benchmarks"), str(HERE)]

import catalogue  # noqa: E402
import report  # noqa: E402
from catalogue import Script  # noqa: E402

os.environ.setdefault("OMP_NUM_THREADS", "1")  # the same sums in each run
CLASSES = ("stock", "ours")
AGAIN = "again"  # the stock classes once more, if the two differ
ENDED = "as many steps as asked for"


class Task(NamedTuple):
    """A script or a file of unit tests in the two ways that it is run."""

    suite: str
    name: str
    command: list[str]
    reason: str = ""

    def file(self, folder: Path, classes: str) -> Path:
        return folder / self.suite / f"{self.name.replace('/', '__')}.{classes}.json"


def tasks(given: argparse.Namespace) -> Iterator[Task]:
    """Yield all that the given checkouts have."""
    if given.mxnet:
        folder = given.mxnet / "tests/python/unittest"
        for name in catalogue.UNIT_TESTS:
            yield Task("unit tests", name, [str(HERE / "unit_tests.py"), str(folder / name)])
        yield from of_scripts("examples", given.mxnet / "example", catalogue.EXAMPLES)
        tutorials = given.mxnet / "docs/python_docs/python/tutorials"
        yield from of_scripts("tutorials", tutorials, catalogue.TUTORIALS)
    if given.book:
        yield from of_scripts("book", given.book, catalogue.chapters(given.book))
    if given.gluoncv:
        yield from of_scripts("gluoncv", given.gluoncv, catalogue.GLUONCV)


def of_scripts(suite: str, root: Path, scripts: Any) -> Iterator[Task]:
    seen: dict[str, int] = {}
    for script in scripts:
        seen[script.path] = seen.get(script.path, 0) + 1
        again = f" ({seen[script.path]})" if seen[script.path] > 1 else ""
        yield Task(suite, script.path + again, command_of(root, script), script.reason)


def command_of(root: Path, script: Script) -> list[str]:
    command = [str(HERE / "one_script.py"), str(root / script.path)]
    command += ["--steps", str(script.steps), "--batch", str(script.batch)]
    command += ["--prelude", script.prelude]
    for folder in script.modules:
        command += ["--path", str(root / folder)]
    return [*command, "--", *script.arguments]


def run(task: Task, folder: Path, seconds: float, runs: Sequence[str] = CLASSES) -> None:
    """Run a task with both kinds of classes; each leaves a JSON file, and a log beside it."""
    for name in runs:
        file, classes = task.file(folder, name), "stock" if name == AGAIN else name
        file.parent.mkdir(parents=True, exist_ok=True)
        is_test = task.suite == "unit tests"
        script, first, *rest = task.command
        arguments = [
            first,
            "--classes",
            classes,
            "--outcomes" if is_test else "--record",
            str(file),
        ]
        with file.with_suffix(".log").open("w") as log:
            pid = started([sys.executable, script, *arguments, *rest], log, is_forked=not is_test)
            is_late = has_to_be_ended(pid, seconds)
        if not file.exists():
            reason = (
                f"was not done after {seconds:.0f} seconds"
                if is_late
                else f"ended without a result (see {file.with_suffix('.log').name})"
            )
            steps: dict[str, Any] = {"ended": reason, "steps": []}
            file.write_text(json.dumps({} if is_test else steps))


def started(command: list[str], log: TextIO, is_forked: bool) -> int:
    """Start a process and return its number; a fork has imported MXNet already."""
    if not is_forked:
        return subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT).pid
    sys.stdout.flush()
    pid = os.fork()
    if not pid:
        try:
            os.dup2(log.fileno(), 1)
            os.dup2(log.fileno(), 2)
            one_script().main(command[2:])
        finally:
            os._exit(1)
    return pid


@functools.cache
def one_script() -> ModuleType:
    """Import what nearly every script imports, which takes longer than its steps."""
    import one_script  # MXNet, after OMP_NUM_THREADS is set

    for name in ("matplotlib.pyplot", "pandas", "IPython", "matplotlib_inline.backend_inline"):
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    return one_script


def has_to_be_ended(pid: int, seconds: float) -> bool:
    """Wait for a process; return whether it took longer and was ended."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if os.waitpid(pid, os.WNOHANG)[0]:
            return False
        time.sleep(0.05)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return True


def outcome(
    stock: dict[str, Any], ours: dict[str, Any], again: dict[str, Any] | None = None
) -> tuple[str, str]:
    """Return what became of a script in both ways, and a note."""
    if again and outcome(stock, again)[0] == "**differs**":
        return "not repeatable", f"with MXNet's classes twice: {outcome(stock, again)[1]}"
    for name, result in zip(CLASSES, (stock, ours), strict=True):
        if result["ended"].startswith(("was not done", "ended without")):
            return "no result", f"{name}: {result['ended']}"
    number = min(len(stock["steps"]), len(ours["steps"]))
    for step in range(number):
        one, other = stock["steps"][step], ours["steps"][step]
        names = [name for name in {**one, **other} if one.get(name) != other.get(name)]
        if names:
            values = [run[step].get(names[0], "absent") for run in (stock["steps"], ours["steps"])]
            norms = " and ".join(value.split()[-1] for value in values)
            return "**differs**", (
                f"after step {step + 1}: {len(names)} of {len(one)} arrays, first "
                f"{names[0].split()[-1]} with norms {norms}"
            )
    if len(stock["steps"]) != len(ours["steps"]) or stock["ended"] != ours["ended"]:
        return "**differs**", (
            f"{len(stock['steps'])} steps, {stock['ended']}; ours {len(ours['steps'])} steps, "
            f"{ours['ended']}"
        )
    ended = "" if stock["ended"] in (ENDED, "ran to its end") else stock["ended"]
    if not number:
        return "no step", f"both: {ended}" if ended else "takes no step of a Trainer"
    return "equal", f"then both: {ended}" if ended else ""


def script_rows(found: list[tuple[Task, list[dict[str, Any]]]]) -> list[tuple[str, ...]]:
    rows = []
    for task, results in found:
        if task.reason:
            rows.append((f"`{task.name}`", "", "", "not run", task.reason))
            continue
        what, note = outcome(*results)
        steps = results[0]["steps"]
        arrays = str(max(map(len, steps))) if steps else ""
        rows.append((f"`{task.name}`", str(len(steps)), arrays, what, escaped(note)))
    return rows


def test_rows(found: list[tuple[Task, list[dict[str, Any]]]]) -> list[tuple[str, ...]]:
    """A row for each file: how many tests passed, failed, were skipped, and what differs."""
    rows = []
    for task, results in found:
        if task.reason:
            rows.append((f"`{task.name}`", "", "", "not run", task.reason))
            continue
        stock, ours = results
        counts = [
            ", ".join(
                f"{sum(text.startswith(kind) for text in run.values())} {kind}"
                for kind in ("passed", "failed", "skipped")
                if any(text.startswith(kind) for text in run.values())
            )
            for run in (stock, ours)
        ]
        notes = [f"{n}: {t.partition(', ')[2]}" for n, t in ours.items() if ", takes" in t]
        plain = {name: text.partition(", takes")[0] for name, text in ours.items()}
        differing = [n for n in {**stock, **ours} if stock.get(n) != plain.get(n)]
        notes += [
            f"{name}: {stock.get(name, 'absent')}; ours: {plain.get(name, 'absent')}"
            for name in differing
        ]
        if not differing:
            notes += [f"{n}: {t} in both" for n, t in stock.items() if t.startswith("failed")]
        same = "same" if stock and not differing else "**differs**"
        rows.append((f"`{task.name}`", *counts, same, escaped("; ".join(notes))))
    return rows


def escaped(text: str) -> str:
    """Text for a cell of a table, without what differs from run to run."""
    text = re.sub(r"/tmp/upstream-\w+", "...", text)
    return text.replace("|", "\\|").replace("<", "&lt;").replace("\n", " ")


ABOUT = """\
Each script runs twice, as it is, on small generated data and with small batches: with MXNet's
Trainer, and with `SVRGTrainer` in its place. After each step all parameters of the two runs are
compared, to the bit: *arrays* is how many there are, running statistics included. A script is
ended after a few steps. Of MXNet's unit tests the outcomes are compared, with this package's
`Trainer`, `Estimator`, batch processor, handlers, `LARS`, `NAG` and `Signum` in their place; the
states of `NAG` for float16 are put into MXNet's order, which a test compares."""

TITLES = {
    "unit tests": "MXNet's unit tests",
    "examples": "MXNet's examples",
    "tutorials": "MXNet's tutorials",
    "book": "*Dive into Deep Learning*",
    "gluoncv": "GluonCV",
}


def page(found: dict[str, list[tuple[Task, list[dict[str, Any]]]]]) -> str:
    """Return the tables of all that was run."""
    parts = []
    for suite, title in TITLES.items():
        if not found.get(suite):
            continue
        if suite == "unit tests":
            columns = ("file", "MXNet's classes", "this package's", "outcome", "")
            rows = test_rows(found[suite])
            good = sum(row[3] == "same" for row in rows)
            summary = f"{good} of {len(rows)} files: the same outcome for every test."
        else:
            columns = ("script", "steps", "arrays", "outcome", "")
            rows = script_rows(found[suite])
            kinds = ("equal", "**differs**", "not repeatable", "no step", "no result", "not run")
            counts = {kind: sum(row[3] == kind for row in rows) for kind in kinds}
            summary = (
                f"{counts['equal']} equal after each step, {counts['**differs**']} differ, "
                f"{counts['not repeatable']} differ from themselves, {counts['no step']} took no "
                f"step, {counts['no result']} without a result, {counts['not run']} not run."
            )
        parts.append(f"## {title}\n\n{summary}\n\n{report.markdown_table(columns, rows)}")
    return "\n".join(parts)


def main() -> int:
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    for name, what in (("mxnet", "MXNet's sources at 1.9.1"), ("book", "d2l-en at v0.17.5"),
                       ("gluoncv", "gluon-cv")):  # fmt: skip
        options.add_argument(f"--{name}", type=Path, help=f"a checkout of {what}")
    options.add_argument("--versions", default="", help="of the checkouts, for the page")
    options.add_argument("--only", default="", help="names that this regular expression finds")
    options.add_argument("--again", action="store_true", help="run what has a result, too")
    options.add_argument("--no-run", action="store_true", help="only show the results there are")
    options.add_argument("--seconds", type=float, default=900, help="most for one run")
    options.add_argument("--results", type=Path, default=ROOT / "runs" / "upstream")
    options.add_argument("--out", type=Path, help="a page that gets the tables")
    given = options.parse_args()
    if not (given.mxnet or given.book or given.gluoncv):
        options.error("give a checkout: --mxnet, --book or --gluoncv (MXNET=, BOOK=, GLUONCV=)")
    for name in ("mxnet", "book", "gluoncv"):
        path = getattr(given, name)
        if path and not path.is_dir():
            options.error(f"--{name} {path} is no folder: give the root of a checkout")
    found: dict[str, list[Any]] = {}
    is_good = True
    for task in tasks(given):
        if not re.search(given.only, f"{task.suite} {task.name}"):
            continue
        files = [task.file(given.results, classes) for classes in CLASSES]
        if given.no_run and not task.reason and not all(file.exists() for file in files):
            task = task._replace(reason="has not been run to its end")
        if task.reason:
            found.setdefault(task.suite, []).append((task, []))
            continue
        if given.again or not all(file.exists() for file in files):
            for file in files:
                file.unlink(missing_ok=True)
            if task.suite != "unit tests":
                one_script()
            run(task, given.results, given.seconds)
        results = [json.loads(file.read_text()) for file in files]
        again = task.file(given.results, AGAIN)
        if task.suite != "unit tests" and outcome(*results)[0] == "**differs**":
            if given.again or not (again.exists() or given.no_run):
                one_script()
                run(task, given.results, given.seconds, [AGAIN])
            if again.exists():
                results.append(json.loads(again.read_text()))
        found.setdefault(task.suite, []).append((task, results))
        rows = (test_rows if task.suite == "unit tests" else script_rows)([(task, results)])
        print(f"{task.suite}: " + " ".join(cell for cell in rows[0] if cell), flush=True)
        is_good &= "**differs**" not in rows[0]
    if given.out:
        about = f"{given.versions} {report.provenance('upstream')}".strip()
        report.write_section(given.out, "upstream", f"{ABOUT} {about}\n\n{page(found)}")
    return int(not is_good)


if __name__ == "__main__":
    sys.exit(main())
