"""scikit-learn's own tests of linear models, with this package's classes in their place.

    make upstream-sklearn
    python tests/upstream/sklearn_tests.py --only test_huber

It runs the test files of the installed scikit-learn. ``sklearn_expected.toml`` lists the tests that
fail, each with its reason. A test that fails and is not listed is an error, and so is a
listed one that passes.
"""

from __future__ import annotations

import argparse
import collections
import fnmatch
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
import sklearn

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10
    import tomli as tomllib

HERE = Path(__file__).resolve().parent
FILES = (
    *("tests/test_logistic.py", "tests/test_coordinate_descent.py", "tests/test_ridge.py"),
    *("tests/test_huber.py", "_glm/tests/test_glm.py"),
)
REASONS = {
    "words": "the words of an error or a warning, or a warning that is not needed here",
    "iterations": "a count of iterations or another intermediate result of a named solver",
    "argument": "an argument or an attribute that docs/howto/sklearn_names.md excludes",
    "minimum norm": "an assertion that a named solver does not find the minimum norm",
    "internal": "a private function or attribute of scikit-learn",
    "digits": "more digits of the coefficients than the objective has in float64",
}


class Outcomes:
    """Collects the outcome of each test, and the message of each failure."""

    def __init__(self) -> None:
        self.messages: dict[str, str] = {}
        self.outcomes: dict[str, str] = {}
        self.of_ours: set[str] = set()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        name = name_of(report.nodeid)
        if dict(report.user_properties).get("fits"):
            self.of_ours.add(name)
        if report.failed:
            self.outcomes[name] = "failed"
            crash = getattr(report.longrepr, "reprcrash", None)
            self.messages[name] = str(crash.message if crash else report.longrepr)
        elif hasattr(report, "wasxfail") or report.skipped:
            self.outcomes.setdefault(name, "skipped")
        elif report.when == "call":
            self.outcomes[name] = "passed"


def name_of(nodeid: str) -> str:
    """Return a test's file and name without its folder."""
    path, _, test = nodeid.partition("::")
    return f"{Path(path).name}::{test}"


def expectations(path: Path) -> dict[str, tuple[str, str]]:
    """Return the reason and the explanation for each pattern of a test's name."""
    found: dict[str, tuple[str, str]] = {}
    for entry in tomllib.loads(path.read_text())["failure"]:
        if entry["reason"] not in REASONS:
            raise ValueError(f"{path}: {entry['reason']!r} is none of {sorted(REASONS)}")
        for pattern in entry["tests"]:
            found[pattern] = entry["reason"], entry["why"]
    return found


def matching(name: str, patterns: Any) -> str | None:
    """Return the pattern that a name matches; brackets are literal, only * is special."""
    for pattern in patterns:
        if fnmatch.fnmatchcase(name, pattern.replace("[", "[[]")):
            return str(pattern)
    return None


def differences(outcomes: dict[str, str], expected: dict[str, tuple[str, str]]) -> list[str]:
    """Return a line per test that is not as listed."""
    lines = []
    met = collections.Counter()
    for name, outcome in outcomes.items():
        pattern = matching(name, expected)
        met[pattern] += 1
        if outcome == "failed" and pattern is None:
            lines.append(f"fails and is not listed: {name}")
        if outcome == "passed" and pattern is not None:
            lines.append(f"passes and is listed: {name}")
    return lines + [f"matches no test: {pattern}" for pattern in expected if not met[pattern]]


def summary(found: Outcomes, expected: dict[str, tuple[str, str]]) -> str:
    """Return the numbers: how many passed, and how many failed for which reason."""
    failed = [name for name, outcome in found.outcomes.items() if outcome == "failed"]
    passed = [name for name, outcome in found.outcomes.items() if outcome == "passed"]
    lines = [f"scikit-learn {sklearn.__version__}, {sum(map(len, (failed, passed)))} tests ran"]
    for what, among in (
        ("passed", found.outcomes),
        ("passed of those that fit a class of this package", found.of_ours),
    ):
        good, bad = (sum(name in among for name in names) for names in (passed, failed))
        lines.append(f"{good} of {good + bad} {what} ({100 * good / max(good + bad, 1):.1f} %)")
    reasons = collections.Counter(
        expected[pattern][0] if (pattern := matching(name, expected)) else "not listed"
        for name in failed
    )
    lines += [f"{count:4} {reason}: {REASONS.get(reason, '')}" for reason, count in reasons.items()]
    return "\n".join(lines)


def run(only: str, processes: int, stock: bool) -> Outcomes:
    """Run the tests and return their outcomes."""
    folder = Path(sklearn.__file__).parent
    outcomes = Outcomes()
    # Workers of pytest-xdist import the plugin by its name.
    os.environ["PYTHONPATH"] = os.pathsep.join([str(HERE), *filter(None, sys.path)])
    sys.path.insert(0, str(HERE))
    os.chdir(tempfile.mkdtemp(prefix="sklearn-tests-"))
    arguments = ["-p", "no:cacheprovider", "-c", os.devnull, "--rootdir", str(folder)]
    arguments += ["-q", "--no-header", "--tb=no", "-W", "default", "--disable-warnings"]
    arguments += ["-rN", "-k", only] if only else ["-rN"]
    arguments += ["-n", str(processes)] if processes else []
    arguments += [] if stock else ["-p", "sklearn_classes"]
    pytest.main([*arguments, *(str(folder / "linear_model" / f) for f in FILES)], [outcomes])
    return outcomes


def main() -> int:
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("--only", default="", help="an expression for pytest's -k")
    options.add_argument("--processes", type=int, default=0, help="of pytest-xdist")
    options.add_argument("--stock", action="store_true", help="with scikit-learn's own classes")
    options.add_argument("--out", type=Path, help="a JSON file for outcomes and messages")
    given = options.parse_args()
    out = given.out and given.out.resolve()
    expected = {} if given.stock else expectations(HERE / "sklearn_expected.toml")
    found = run(given.only, given.processes, given.stock)
    if out:
        out.write_text(json.dumps([found.outcomes, found.messages], indent=1))
    print(summary(found, expected))
    wrong = differences(found.outcomes, expected)
    if given.only:
        wrong = [line for line in wrong if not line.startswith("matches no test")]
    print("\n".join(wrong))
    return int(bool(wrong) or not found.outcomes)


if __name__ == "__main__":
    sys.exit(main())
