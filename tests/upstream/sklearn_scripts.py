"""Scripts with scikit-learn's linear models: as they are, and with this package's classes.

    make upstream-scripts SCRIPTS=../scripts
    python tests/upstream/sklearn_scripts.py ../scripts

Every Python file and notebook of the folder runs three times, in its own folder and in its own
process: with scikit-learn's classes, with ``provenglm.patch_sklearn()``, and with scikit-learn's
classes at a small `tol`. For each fit of one of the twelve classes the coefficients, the choice of
a search and the predictions are compared. Fits in other processes (``n_jobs``) are not seen.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import itertools
import os
import pickle
import random
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import provenglm
from sklearn import linear_model
from source import code_of

RTOL = 1e-3  # numbers that differ by less agree: a script prints two or three digits
RUNS = ("stock", "ours", "small tol")
SMALL = {"tol": 1e-10, "max_iter": 100_000}
NAMES = ("coef_", "intercept_", "alpha_", "C_", "l1_ratio_")
CLASSES = [
    getattr(module, name)
    for module in (linear_model, provenglm)
    for name in provenglm.__all__
    if hasattr(linear_model, name)
]

Run = tuple[list[dict[str, Any]], str, list[str]]


class Recorder:
    """Keeps the outcome of each fit that no other fit has called."""

    def __init__(self, changes: dict[str, float]) -> None:
        self.fits: list[dict[str, Any]] = []
        self._changes, self._is_busy = changes, False

    def recorded(self, fit: Any) -> Any:
        @functools.wraps(fit)
        def wrapper(model: Any, X: Any, *args: Any, **kwargs: Any) -> Any:
            if self._is_busy:
                return fit(model, X, *args, **kwargs)
            given = {name: vars(model)[name] for name in self._changes if name in vars(model)}
            vars(model).update((name, self._changes[name]) for name in given)
            self._is_busy = True
            try:
                fit(model, X, *args, **kwargs)
                kept = {name: getattr(model, name) for name in NAMES if hasattr(model, name)}
                kept["predictions"] = getattr(model, "predict_proba", model.predict)(X)
                self.fits.append({"class": type(model).__name__, **kept})
            finally:
                vars(model).update(given)
                self._is_busy = False
            return model

        return wrapper


def run_here(script: Path, kind: str, out: Path) -> None:
    """Run a script in this process, and write its fits and its end into a file."""
    recorder, ended = Recorder(SMALL if kind == "small tol" else {}), ""
    for cls, fit in [(cls, cls.fit) for cls in CLASSES]:
        cls.fit = recorder.recorded(fit)
    if kind == "ours":
        provenglm.patch_sklearn()
    warnings.simplefilter("ignore")
    random.seed(7)
    np.random.seed(7)
    sys.argv, sys.path[0] = [str(script)], str(script.parent)
    try:
        exec(compile(code_of(script), str(script), "exec"), {"__name__": "__main__"})
    except (Exception, SystemExit) as error:
        ended = f"{type(error).__name__}: {error}"[:100]
    out.write_bytes(pickle.dumps((recorder.fits, ended)))


def run(script: Path, kind: str, seconds: float) -> Run:
    """Run a script in a process of its own; return its fits, its end, and its lines."""
    with tempfile.TemporaryDirectory() as folder:
        out, environment = Path(folder, "fits"), os.environ | {"MPLBACKEND": "Agg"}
        command = [sys.executable, __file__, str(script), "--run", kind, "--out", str(out)]
        with contextlib.suppress(subprocess.TimeoutExpired):
            done = subprocess.run(command, cwd=script.parent, env=environment, timeout=seconds,
                                  capture_output=True, text=True)  # fmt: skip
        if not out.exists():
            return [], f"ended without a result, or not within {seconds:.0f} seconds", []
        return *pickle.loads(out.read_bytes()), done.stdout.splitlines()


def compared(one: Run, two: Run) -> tuple[float, str]:
    """Return the largest relative difference of the fits, and where the first one is."""
    if one[1] != two[1] or len(one[0]) != len(two[0]):
        ends = [f"{len(fits)} fits, {end or 'no error'}" for fits, end, _ in (one, two)]
        return np.inf, f"{ends[0]}; ours: {ends[1]}"
    worst, note = 0.0, ""
    for number, (stock, ours) in enumerate(zip(one[0], two[0], strict=True), 1):
        for name, value in stock.items():
            if name == "class" or name not in ours:
                far = 0.0 if value == ours.get(name) else np.inf
            else:
                far = distance(value, ours[name])
            worst = max(worst, far)
            if far > RTOL and not note:
                note = f"{name} of fit {number}, {stock['class']}, by {far:.0e}"
    return worst, note


def distance(one: Any, two: Any) -> float:
    one, two = (np.nan_to_num(np.asarray(value, float)) for value in (one, two))  # None is 0, too
    if one.shape != two.shape:
        return np.inf
    return float(np.abs(one - two).max(initial=0) / (np.abs(one).max(initial=0) or 1.0))


def row(script: str, stock: Run, ours: Run, small: Run) -> tuple[str, ...]:
    (far, note), (rest, left) = compared(stock, ours), compared(small, ours)
    outcome = "**differs**" if left else "agrees at a small `tol`" if note else "agrees"
    lines = sum(a != b for a, b in itertools.zip_longest(stock[2], ours[2]))
    classes = ", ".join(sorted({fit["class"] for fit in stock[0]}))
    note = note or (f"both: {stock[1]}" if stock[1] else "")
    numbers = (str(len(ours[0])), f"{far:.0e}", f"{rest:.0e}", f"{lines} of {len(stock[2])}")
    return f"`{script}`", classes, *numbers, outcome, note.replace("|", "\\|").replace("\n", " ")


def main() -> int:
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("scripts", type=Path, help="a folder of Python files and notebooks")
    options.add_argument("--seconds", type=float, default=300, help="most for one run")
    options.add_argument("--run", choices=RUNS, help=argparse.SUPPRESS)
    options.add_argument("--out", type=Path, help=argparse.SUPPRESS)
    given = options.parse_args()
    if given.run:
        run_here(given.scripts, given.run, given.out)
        return 0
    folder, rows = given.scripts.resolve(), []
    for script in sorted(path for path in folder.rglob("*") if path.suffix in (".py", ".ipynb")):
        runs = [run(script, kind, given.seconds) for kind in RUNS]
        rows.append(row(script.relative_to(folder).as_posix(), *runs))
        print("| " + " | ".join(rows[-1]) + " |", flush=True)
    return int(not rows or any("**differs**" in cells for cells in rows))


if __name__ == "__main__":
    sys.exit(main())
