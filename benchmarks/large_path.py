"""Fit a path of 20 C with 5 folds with one library, in a process of its own, and time it.

    python benchmarks/large_path.py NAME FOLDER

``large.py`` calls it so. All 100 fits and the last one on all rows are on the clock. The 20 optima
of the first fold are judged: each one's Newton decrement in float64, which near an optimum is what
F is above it; the worst of them counts.
"""

from __future__ import annotations

import argparse
import os
import resource
import signal
import time
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import large_judge
import numpy as np
from convex_peers import emit
from large_peers import OURS, version_of
from linear_judge import losses, means
from linear_problems import Array, LinearProblem

FOLDS = 5
GRID = np.logspace(-4, 4, 20)


def ours(x: Array, y: Array) -> Any:
    from gluon_svrg.linear import GLMClassifierCV

    return GLMClassifierCV(Cs=GRID, cv=FOLDS, random_state=0).fit(x, y)


def scikit_learn(x: Array, y: Array, **settings: Any) -> Any:
    from sklearn.linear_model import LogisticRegressionCV

    return LogisticRegressionCV(Cs=GRID, cv=FOLDS, scoring="accuracy", **settings).fit(x, y)


class Peer(NamedTuple):
    title: str
    package: str
    make: Any
    settings: dict[str, Any]


PEERS = {
    OURS: Peer("**ours**", "gluon-svrg", ours, {}),
    "newton-cholesky": Peer(
        "scikit-learn newton-cholesky",
        "scikit-learn",
        scikit_learn,
        {"solver": "newton-cholesky", "tol": 1e-2, "max_iter": 100},
    ),
    "lbfgs": Peer(
        "scikit-learn lbfgs",
        "scikit-learn",
        scikit_learn,
        {"solver": "lbfgs", "tol": 1e-4, "max_iter": 100_000},
    ),
}


def paths_of(model: Any) -> Array:
    """Return coefficients and intercept, (folds, C, features + 1)."""
    found = model.coefs_paths_
    if isinstance(found, dict):  # scikit-learn's older form, by class
        found = next(iter(found.values()))
    found = np.asarray(found)
    return found.reshape(found.shape[0], len(GRID), found.shape[-1])


def first_fold(problem: LinearProblem) -> LinearProblem:
    """Return the training rows of the first fold, in standardised columns with a last of ones."""
    from sklearn.model_selection import StratifiedKFold

    rows, _ = next(StratifiedKFold(FOLDS).split(problem.x, problem.y))
    return problem._replace(x=np.asarray(problem.x[rows], "float64"), y=problem.y[rows])


class PathJudge:
    """How far the points of a path are above their optima."""

    def __init__(self, problem: LinearProblem) -> None:
        self.mean, self.scale = problem.x.mean(axis=0), problem.x.std(axis=0)
        self.scale[self.scale == 0] = 1
        self.z = np.ones((len(problem.y), problem.x.shape[1] + 1))
        np.subtract(problem.x, self.mean, out=self.z[:, :-1])
        self.z[:, :-1] /= self.scale
        self.y = problem.y

    def gap(self, point: Array, strength: float) -> float:
        """Return the decrement at (features + 1) coefficients, relative to F(0) less F there."""
        rows = len(self.y)
        penalty = np.append(1 / (strength * rows * self.scale**2), 0.0)
        v = np.append(point[:-1] * self.scale, point[-1] + point[:-1] @ self.mean)
        scores = (self.z @ v)[:, None]
        mu = means("logistic", scores)[:, 0]
        gradient = (mu - self.y) @ self.z / rows + penalty * v
        hessian = (self.z * (mu * (1 - mu) / rows)[:, None]).T @ self.z + np.diag(penalty)
        decrement = float(gradient @ np.linalg.solve(hessian, gradient)) / 2
        value = losses("logistic", scores, self.y).mean() + (penalty * v**2).sum() / 2
        return decrement / float(np.log(2) - value + decrement)


def parse() -> argparse.Namespace:
    command = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    command.add_argument("name", choices=PEERS)
    command.add_argument("folder", type=Path)
    command.add_argument("--target", type=float, default=1e-6)
    command.add_argument("--cap", type=int, default=300, help="seconds that all may take")
    command.add_argument("--budget", type=int, help="taken, and not used")
    return command.parse_args()


def main() -> None:
    options = parse()
    peer = PEERS[options.name]
    problem = large_judge.read(options.folder)
    x, y = np.asarray(problem.x), problem.y
    settings = ", ".join(f"{name} {value}" for name, value in peer.settings.items())
    emit({"version": version_of(peer.package), "settings": settings})
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            peer.make(x[::500], y[::500], **peer.settings)  # imports, and what is compiled
        except ImportError as error:
            emit({"missing": str(error.name or error)})
            return
        caught.clear()
        signal.alarm(options.cap)
        begin, processor = time.perf_counter(), time.process_time()
        model = peer.make(x, y, **peer.settings)
        seconds, processor = time.perf_counter() - begin, time.process_time() - processor
        signal.alarm(0)
    judge = PathJudge(first_fold(problem))
    gaps = [judge.gap(*pair) for pair in zip(paths_of(model)[0], GRID, strict=True)]
    kinds = sorted({warning.category.__name__ for warning in caught})
    emit({"budget": 1, "seconds": seconds, "gap": max(gaps)})
    emit({"fit": seconds, "processor": processor, "fit_gap": max(gaps), "gaps": gaps})
    emit({"best": float(np.ravel(model.C_)[0]), "warnings": kinds})
    emit({"peak_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)})


if __name__ == "__main__":
    for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ.setdefault(variable, str(os.cpu_count()))
    main()
