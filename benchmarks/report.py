"""What every benchmark here shares: interleaved timing, the machine's line, sections of a page."""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import platform
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from random import Random

_ROOT = Path(__file__).resolve().parents[1]
# PyTorch 2 lives in an environment of its own: gluoncv does not import beside it.
_PEERS = _ROOT / ".venv" / "peers" / "bin" / "python"
# No benchmark calls the classes with scikit-learn's names, which only translate arguments.
_MEASURED = ("gluon_svrg", "linear/provenglm", ":!linear/provenglm/sklearn_names")
# Machines that lend their cores by the second slow down under a load without a break.
PAUSE = 0.2


def interleaved(
    contestants: dict[str, Callable[[], float]], rounds: int, warm_up: int = 1
) -> dict[str, list[float]]:
    """Call each contestant once a round; return what each call returned, its seconds, by name.

    Each round has an order of its own: which call went before changes the time of the next one.
    """
    random = Random(0)
    for contestant in contestants.values():
        for _ in range(warm_up):
            contestant()
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(rounds):
        for name, contestant in random.sample(list(contestants.items()), len(contestants)):
            time.sleep(PAUSE)
            seconds[name].append(contestant())
    return seconds


def median(values: Iterable[float]) -> float:
    return statistics.median(values)


def spread(values: Sequence[float], scale: float = 1.0, digits: int = 1) -> str:
    """Return the quartiles of `values` times `scale` as text."""
    low, _, high = statistics.quantiles(values, n=4) if len(values) > 1 else [values[0]] * 3
    return f"{low * scale:.{digits}f} to {high * scale:.{digits}f}"


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)


def machine() -> str:
    models = re.findall(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text(encoding="utf-8"))
    return f"{models[0] if models else platform.machine()}, {len(models)} cores"


def provenance(target: str, packages: Sequence[str] = ("mxnet", "numpy")) -> str:
    """Return the line that says where, with what, when and by which target a table was made."""
    versions = [f"{name} {importlib.metadata.version(name)}" for name in packages]
    return (
        f"Version {measured_version()}; {machine()}; Python {platform.python_version()}, "
        f"{', '.join(versions)}; {datetime.date.today()}; `make {target}`."
    )


def measured_version() -> str:
    """Return this checkout's version and the last commit that changed what is measured."""
    found = re.search(r'^version = "(.+)"$', (_ROOT / "pyproject.toml").read_text("utf-8"), re.M)
    log = ("log", "-1", "--format=%h", "--abbrev=8")
    changes = "" if not _git("status", "--porcelain") else " with changes"
    return f"{found[1] if found else 'unknown'} ({_git(*log)}{changes})"


def _git(*arguments: str) -> str:
    """Return what git prints of what is measured."""
    command = ["git", *arguments, "--", *_MEASURED]
    return subprocess.run(
        command, cwd=_ROOT, capture_output=True, text=True, check=True
    ).stdout.strip()


def write_section(path: Path, name: str, text: str) -> None:
    """Put `text` between the markers of section `name` in `path`, or at the file's end."""
    begin, end = f"<!-- {name} -->", f"<!-- /{name} -->"
    section = f"{begin}\n{text.strip()}\n{end}"
    old = path.read_text(encoding="utf-8") if path.exists() else "# Benchmarks\n"
    if begin in old:
        before, rest = old.split(begin, 1)
        new = before + section + rest.split(end, 1)[1]
    else:
        new = f"{old.rstrip()}\n\n{section}\n"
    path.write_text(new, encoding="utf-8")


def publish(name: str, text: str, out: Path | None) -> None:
    """Print the section, and put it into `out` where that is given."""
    print(text)
    if out is not None:
        write_section(out, name, text)


def parser(description: str | None, rounds: int) -> argparse.ArgumentParser:
    """Return the command line that every benchmark has."""
    result = argparse.ArgumentParser(
        description=(description or "").splitlines()[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    result.add_argument("--rounds", type=int, default=rounds, help="interleaved rounds")
    result.add_argument(
        "--peers-python",
        default=str(_PEERS) if _PEERS.exists() else sys.executable,
        help="the interpreter that has the libraries to compare with",
    )
    result.add_argument("--out", type=Path, help="the Markdown file to put the section into")
    return result
