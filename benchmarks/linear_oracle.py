"""Freeze what the linear solver does on every way that it has, and compare another version with it.

``freeze`` writes down, for each problem of ``linear_oracle_problems.py``, one fit by one thread:
which solver, passes, gap, objective, some of the coefficients, CPU seconds. ``compare`` fits the
same with the package on PYTHONPATH, prints a table, and exits with 1 if something is worse than it
was: a proof is lost or has a warning, 5 % more passes, a higher objective, or other coefficients
of a fit whose `tol` is strict.

    export OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1
    PYTHONPATH=linear python benchmarks/linear_oracle.py compare --fast
"""

from __future__ import annotations

import argparse
import copy
import datetime
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import linear_constants
import numpy as np
import provenglm
import report
import scipy.sparse as sp
from linear_constants import Case, Make
from linear_oracle_problems import PRECISE_TOL, problems

RESULTS = Path(__file__).resolve().parent / "results" / "linear_oracle.json"
SAME = 1e-8
"""Coefficients to `PRECISE_TOL` may differ by this part of their norm, or by ten times what a fit
with another seed and a stricter tol differs by; by the root of the gap if it is the same fit."""
MORE_PASSES = 1.05
KEPT = 100
"""Coefficients that are kept of a fit, at most, with twelve digits."""
FAST = 0.8
"""Seconds of a problem that ``--fast`` takes, at most, with the making of its data."""
TWICE = 2.0
"""Fits of fewer seconds are timed twice, and the least counts."""
ROUNDS = 3
OTHER_DATA = "other data than were frozen"

Record = dict[str, Any]


def null_of(make: Make, folder: Path) -> float:
    """Return the objective of the best constant."""
    one = linear_constants.case(make, folder)
    if not hasattr(one.model, "cv"):
        return one.null
    plain: Any = provenglm.SVRGClassifier()
    if hasattr(one.model, "alphas"):
        plain = provenglm.SVRGRegressor(one.model.loss)
    return linear_constants.case(lambda _: (plain, one.x, one.y, one.weight), folder).null


def prepared(make: Make, tol: float, folder: Path, null: float) -> Case:
    one = Case(*make(folder), null)
    one.model.set_params(tol=tol)
    return one


def record(one: Case, places: list[int] | None = None) -> Record:
    """Fit once, and return what is kept of it, with the coefficients at these places.

    Of a path: the worst gap of all points relative to what the chosen point gained, and the
    coefficients of all points. The objective is that of the chosen point.
    """
    one = one._replace(model=copy.deepcopy(one.model))
    fit = one.fit()
    model = one.model
    gained = one.null - model.objective_
    gap = float(np.max(getattr(model, "gaps_", model.gap_))) / gained
    return {
        "solver": fit.solver,
        "passes": fit.passes,
        "iterations": int(fit.iterations),
        "gap": gap,
        "is_proven": bool(gap <= model.tol),
        "warns": fit.warns,
        "objective": model.objective_,
        "coef": digest(np.ravel(getattr(model, "coefs_paths_", model.coef_)).astype(float), places),
        "seconds": fit.seconds,
    }


def digest(coef: np.ndarray, places: list[int] | None = None) -> Record:
    """Return the norm, the number of nonzero coefficients, and the values at some places.

    Without `places` these are evenly spaced nonzero coefficients.
    """
    support = np.flatnonzero(coef)
    if places is None:
        few = min(KEPT, len(support))
        places = support[np.linspace(0, len(support) - 1, few).astype(int)].tolist()
    return {
        "norm": float(np.linalg.norm(coef)),
        "support": len(support),
        "places": places,
        "values": [float(f"{value:.12g}") for value in coef[places]],
    }


def total(one: Case) -> float:
    """Return a sum that tells whether data are the same; that of the target for chunks."""
    of_rows = 0.0
    if not isinstance(one.x, provenglm.Chunks):
        of_rows = float(np.sum(one.x.data if sp.issparse(one.x) else one.x, dtype="float64"))
    return of_rows + float(np.sum(one.y))


def far(now: Record, then: Record) -> float:
    """Return the largest difference of the coefficients and of their norm, by that norm."""
    norm = then["coef"]["norm"]
    apart = np.subtract(now["coef"]["values"], then["coef"]["values"])
    of_norm = abs(now["coef"]["norm"] - norm)
    return float(np.abs(apart).max(initial=of_norm)) / (norm or 1.0)


def worse(now: Record, then: Record) -> list[str]:
    """Return what is worse than it was, in words."""
    if "failure" in now:
        return [now["failure"]]
    allowed = then["objective"] + then["tol"] * (then["null"] - then["objective"])
    allowed += 1e-14 * abs(then["objective"])  # a rounding
    found = {
        "not proven any more": then["is_proven"] and not now["is_proven"],
        "warns": now["warns"] and then["is_proven"] and not then["warns"],
        "more passes": now["passes"] > MORE_PASSES * then["passes"],
        "a higher objective": not now["objective"] <= allowed,
        "other coefficients": not far(now, then) <= then.get("same", np.inf),
    }
    return [name for name, is_so in found.items() if is_so]


class Here:
    """Fits problems in this process; the data of one are made once.

    Parameters
    ----------
    then : dict
        The frozen records by the names of the problems.
    """

    def __init__(self, then: dict[str, Record]) -> None:
        self._then = then
        self._makes = problems()
        self._name = ""
        self._folder = tempfile.TemporaryDirectory()
        self.package = provenglm.__path__[0]

    def ask(self, name: str) -> Record:
        """Return the record of one more fit, or what failed."""
        then = self._then[name]
        try:
            if name != self._name:
                self._case = None
                self._folder.cleanup()
                self._folder = tempfile.TemporaryDirectory()
                self._case = prepared(*self._makes[name], Path(self._folder.name), then["null"])
                self._name = name
                if not np.isclose(total(self._case), then["total"], rtol=1e-9, atol=0):
                    return {"failure": OTHER_DATA}
            return record(self._case, then["coef"]["places"])
        except Exception as error:  # the others are to be fitted all the same
            self._name = ""
            return {"failure": f"{type(error).__name__}: {str(error)[:200]}"}

    def close(self) -> None:
        self._folder.cleanup()


class Beside:
    """A process of its own that fits with a package.

    Parameters
    ----------
    linear : Path, optional
        The folder that has the package; else it is found as it is here.
    """

    def __init__(self, frozen: Path, linear: Path | None = None) -> None:
        first = [] if linear is None else [str(linear.resolve())]
        paths = os.pathsep.join([*first, os.environ.get("PYTHONPATH", "")])
        self._process = subprocess.Popen(
            [sys.executable, __file__, "serve", "--frozen", str(frozen)],
            env={**os.environ, "PYTHONPATH": paths},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.package = self._line()["package"]

    def ask(self, name: str) -> Record:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{name}\n")
        self._process.stdin.flush()
        return self._line()

    def close(self) -> None:
        self._process.communicate()

    def _line(self) -> Record:
        assert self._process.stdout is not None
        return json.loads(self._process.stdout.readline())


def serve(options: argparse.Namespace) -> int:
    """Answer the name of a problem by the record of a fit, line by line."""
    here = Here(read(options.frozen)["problems"])
    print(json.dumps({"package": here.package}), flush=True)
    for line in sys.stdin:
        print(json.dumps(here.ask(line.strip())), flush=True)
    here.close()
    return 0


def read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8"))


def freeze(options: argparse.Namespace) -> int:
    frozen = {}
    for name, (make, tol) in problems().items():
        with tempfile.TemporaryDirectory() as of_problem:
            folder = Path(of_problem)
            null = null_of(make, folder)
            began = time.perf_counter()
            one = prepared(make, tol, folder, null)
            found = record(one)
            taken = time.perf_counter() - began
            if found["seconds"] < TWICE:
                found["seconds"] = min(found["seconds"], record(one)["seconds"])
            found |= {"tol": tol, "null": null, "total": total(one), "taken": taken}
            if tol == PRECISE_TOL:
                one.model.set_params(tol=PRECISE_TOL / 1000, random_state=1)
                other = far(record(one, found["coef"]["places"]), found)
                found["same"] = max(SAME, 10 * other if other > 0 else found["gap"] ** 0.5)
        frozen[name] = found
        print(f"{name}: {found['solver']}, {found['seconds']:.2f} s", file=sys.stderr, flush=True)
    packages = {name: version(name) for name in ("numpy", "scipy", "numba", "scikit-learn")}
    made = {
        "machine": report.machine(),
        "date": str(datetime.date.today()),
        "versions": {
            "provenglm": provenglm.__version__,
            "python": platform.python_version(),
            **packages,
        },
    }
    # A line for each problem.
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(one)}" for name, one in frozen.items())
    whole = f'{{"made": {json.dumps(made)},\n"problems": {{\n{lines}\n}}}}\n'
    options.out.write_text(whole, encoding="utf-8")
    return 0


def row(name: str, now: Record, then: Record, seconds: str) -> str:
    """Return a line of the table."""
    if "failure" in now:
        return f"{name:56} | {now['failure']}"
    ratio = now["passes"] / then["passes"]
    proven = [("no", "yes")[one["is_proven"]] for one in (then, now)]
    solver = then["solver"]
    if now["solver"] != solver:
        solver += f" -> {now['solver']}"
    cells = [
        f"{name:56}",
        f"{solver:28}",
        f"{then['passes']:7.2f} -> {now['passes']:7.2f} ({ratio:.2f})",
        f"{proven[0]:>3} -> {proven[1]:3}",
        f"{far(now, then):.0e}",
        seconds,
        ", ".join(worse(now, then)),
    ]
    return " | ".join(cells).rstrip(" |")


def compare(options: argparse.Namespace) -> int:
    kept = read(options.frozen)
    chosen = {
        name: then
        for name, then in kept["problems"].items()
        if options.only in name and (not options.fast or then["taken"] < FAST)
    }
    here, other = Here(kept["problems"]), None
    if options.beside:
        here, other = Beside(options.frozen), Beside(options.frozen, options.beside)
    print(f"then: {json.dumps(kept['made'])}\nnow: {here.package}")
    if other:
        print(f"beside: {other.package}")
    print("problem | solver | passes | proven | coefficients | CPU seconds | what is worse")
    bad = []
    for name, then in chosen.items():
        now = here.ask(name)
        seconds = f"{then['seconds']:.2f} -> {now.get('seconds', np.nan):.2f} s"
        if other:
            other.ask(name)
            ratios = list(_ratios(here, other, name, options.rounds))
            seconds = f"{report.median(ratios):.2f} of the seconds"
        print(row(name, now, then, seconds), flush=True)
        if worse(now, then) not in ([], [OTHER_DATA]):
            bad.append(name)
    here.close()
    if other:
        other.close()
    print(f"{len(chosen)} problems, {len(bad)} worse" + "".join(f"\n  {name}" for name in bad))
    return 1 if bad else 0


def _ratios(here: Any, other: Any, name: str, rounds: int) -> Iterator[float]:
    """Yield the seconds here by those of the other, which takes turns in being the first."""
    for number in range(rounds):
        order = (here, other) if number % 2 else (other, here)
        seconds = {id(side): side.ask(name).get("seconds", np.nan) for side in order}
        yield seconds[id(here)] / seconds[id(other)]


def main() -> int:
    command = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    ways = command.add_subparsers(required=True)
    way = ways.add_parser("freeze", help="write what the package on PYTHONPATH does")
    way.add_argument("--out", type=Path, default=RESULTS)
    way.set_defaults(run=freeze)
    for run in (compare, serve):
        way = ways.add_parser(run.__name__)
        way.add_argument("--frozen", type=Path, default=RESULTS, help="what freeze wrote")
        way.set_defaults(run=run)
        if run is compare:
            way.add_argument("--only", default="", help="problems whose names have this in them")
            way.add_argument("--fast", action="store_true", help=f"those below {FAST:g} s each")
            way.add_argument("--beside", type=Path, help="a folder with another package, to time")
            way.add_argument("--rounds", type=int, default=ROUNDS, help="of --beside, odd")
    options = command.parse_args()
    if os.environ.get("OMP_NUM_THREADS") != "1":
        command.error("one thread was frozen: export OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1")
    return options.run(options)


if __name__ == "__main__":
    sys.exit(main())
