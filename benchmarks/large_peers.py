"""Fit a problem of sparse or large data with one library, in a process of its own, and time it.

    python benchmarks/large_peers.py NAME FOLDER --optimum JSON

``large.py`` calls it so; FOLDER is what ``large_judge.write`` made. It prints what
``linear_peers.py`` prints.

liblinear and snapml penalise the intercept as a weight: that is another problem, if a near one.
They are judged by their own F, whose least value is known as exactly.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import json
import os
import resource
import signal
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import large_judge
import numpy as np
from convex_peers import (
    WARM_UP,
    Fit,
    Settings,
    Weights,
    confirmed_budgets,
    describe,
    emit,
    next_budgets,
    run,
)
from large_judge import Judge, Reference
from large_problems import L1_RATIO
from linear_peers import records_of

BLOCK = 100_000
OURS = "gluon-svrg"


def rows_of(judge: Judge, dtype: str) -> Any:
    x = judge.problem.x
    return x if isinstance(x, np.memmap) else x.astype(dtype, copy=False)


def strength_of(judge: Judge) -> float:
    """Return C, of L1 and L2 together."""
    return 1 / ((judge.problem.l2 + judge.problem.l1) * len(judge.problem.y))


def ours(judge: Judge, dtype: str, random_state: int | None = None) -> Fit:
    """Return our fit: nothing said but C, and the share of L1 where there is one."""
    from gluon_svrg.linear import GLMClassifier

    x = rows_of(judge, dtype)
    share = {"l1_ratio": L1_RATIO} if judge.problem.l1 else {}

    def fit(budget: int | None) -> Weights:
        limits = {} if budget is None else {"max_iter": budget}
        model = GLMClassifier(C=strength_of(judge), random_state=random_state, **share, **limits)
        model.fit(x, judge.problem.y)
        fit.model = model  # type: ignore[attr-defined]
        return model.coef_, model.intercept_

    return fit


def scikit_learn(judge: Judge, dtype: str, **settings: Any) -> Fit:
    from sklearn.linear_model import LogisticRegression

    x = rows_of(judge, dtype)
    if judge.problem.l1:
        settings["l1_ratio"] = L1_RATIO
        if _older("scikit-learn", (1, 8)):
            settings["penalty"] = "elasticnet"

    def fit(budget: int) -> Weights:
        model = LogisticRegression(
            C=strength_of(judge), tol=1e-14, max_iter=budget, random_state=0, **settings
        ).fit(x, judge.problem.y)
        return model.coef_, model.intercept_

    return fit


def _older(package: str, than: tuple[int, int]) -> bool:
    return tuple(map(int, importlib.metadata.version(package).split(".")[:2])) < than


def snapml(judge: Judge, dtype: str, **settings: Any) -> Fit:
    from snapml import LogisticRegression

    x = rows_of(judge, dtype)
    y = judge.problem.y.astype("float64")

    def fit(budget: int) -> Weights:
        model = LogisticRegression(
            regularizer=judge.problem.l2 * len(y),
            max_iter=budget,
            tol=1e-14,
            fit_intercept=True,
            random_state=0,
            **settings,
        ).fit(x, y)
        return model.coef_, np.ravel(model.intercept_)

    return fit


def skglm(judge: Judge, dtype: str, **settings: Any) -> Fit:
    from skglm import SparseLogisticRegression

    problem = judge.problem
    x = rows_of(judge, dtype).tocsc()  # what it wants: before the clock starts

    def fit(budget: int) -> Weights:
        model = SparseLogisticRegression(
            alpha=problem.l1 + problem.l2,
            l1_ratio=L1_RATIO,
            tol=1e-12,
            max_iter=budget,
            fit_intercept=True,
            **settings,
        ).fit(x, problem.y)
        return model.coef_, np.ravel(model.intercept_)

    return fit


def sgd(judge: Judge, dtype: str, **settings: Any) -> Fit:
    """Passes of SGDClassifier over blocks of the file, in random order."""
    from sklearn.linear_model import SGDClassifier

    x, y = judge.problem.x, judge.problem.y
    starts = np.arange(0, len(y), BLOCK)

    def fit(budget: int) -> Weights:
        model = SGDClassifier(loss="log_loss", alpha=judge.problem.l2, random_state=0, **settings)
        random = np.random.default_rng(0)
        for _ in range(budget):
            for start in random.permutation(starts):
                rows = slice(start, start + BLOCK)
                model.partial_fit(x[rows].astype(dtype) / 255, y[rows], classes=[0, 1])
        return model.coef_ / 255, model.intercept_

    return fit


class Peer(NamedTuple):
    title: str
    package: str
    make: Callable[..., Fit]
    settings: Settings
    is_own: bool = False
    """Whether it penalises the intercept as a weight: judged by its own F."""


def _of_scikit_learn(solver: str, dtype: str = "float64", **settings: Any) -> Peer:
    name = f"scikit-learn {solver}" + (", dual" if settings.get("dual") else "")
    settings |= {"solver": solver, "dtype": dtype}
    return Peer(name, "scikit-learn", scikit_learn, settings, solver == "liblinear")


def _of_snapml(threads: int) -> Peer:
    settings = {"dtype": "float32", "dual": True, "n_jobs": threads}
    title = "snapml" if threads > 1 else "snapml, one thread"
    return Peer(title, "snapml", snapml, settings, is_own=True)


PEERS = {
    OURS: Peer("**ours**", "gluon-svrg", ours, {"dtype": "float64"}),
    "saga": _of_scikit_learn("saga"),
    "saga-32": _of_scikit_learn("saga", "float32"),
    "lbfgs": _of_scikit_learn("lbfgs"),
    "lbfgs-32": _of_scikit_learn("lbfgs", "float32"),
    "newton-cg": _of_scikit_learn("newton-cg"),
    "liblinear": _of_scikit_learn("liblinear"),
    "liblinear-dual": _of_scikit_learn("liblinear", dual=True),
    "snapml": _of_snapml(2),
    "snapml-1": _of_snapml(1),
    "sgd": Peer("scikit-learn SGDClassifier", "scikit-learn", sgd, {"dtype": "float64"}),
    "skglm": Peer("skglm prox-Newton", "skglm", skglm, {"dtype": "float64"}),
}


class Timed:
    """A fit that notes how many seconds of all processors its last call took."""

    def __init__(self, fit: Fit) -> None:
        self.fit, self.processor = fit, 0.0

    def __call__(self, budget: int) -> Weights:
        begin = time.process_time()
        found = self.fit(budget)
        self.processor = time.process_time() - begin
        return found


def run_ours(fit: Any, judge: Judge, cap: int) -> None:
    """Time the whole fit with every default; print it, and the points of its history."""
    if not isinstance(judge.problem.x, np.memmap):
        signal.alarm(WARM_UP + cap)
        fit(2)
    before = peak()
    signal.alarm(cap)
    begin, processor = time.perf_counter(), time.process_time()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        weight, bias = fit(None)
    seconds, processor = time.perf_counter() - begin, time.process_time() - processor
    signal.alarm(0)
    emit({"start_mb": before, "peak_mb": peak()})
    model = fit.model
    records = records_of(model)
    gap = judge.gap(weight, bias)
    for record in records:
        of_record = judge.gap_of(record["objective"])
        emit({"budget": record["passes"], "seconds": record["seconds"], "gap": of_record})
    # The history may be of another point than the last: the fit as a whole counts as one, too.
    emit({"budget": records[-1]["passes"], "seconds": seconds, "gap": gap})
    told = [f"{one.category.__name__}: {str(one.message)[:200]}" for one in caught]
    emit(
        {
            "fit": seconds,
            "processor": processor,
            "fit_gap": gap,
            "passes": records[-1]["passes"],
            "proven": model.gap_ / (judge.optimum.start - judge.optimum.value),
            "solver": str(model.solver_),
            "warnings": told,
        }
    )


def run_sgd(fit: Fit, judge: Judge, cap: int) -> None:
    """One pass, for its gap."""
    before = peak()
    signal.alarm(cap)
    begin = time.perf_counter()
    weight, bias = fit(1)
    seconds = time.perf_counter() - begin
    signal.alarm(0)
    emit({"start_mb": before, "peak_mb": peak()})
    gap = judge.gap(weight, bias)
    emit({"budget": 1, "seconds": seconds, "gap": gap})
    emit({"fit": seconds, "fit_gap": gap, "passes": 1})


def peak() -> int:
    """Return the most memory that this process has had, in MB."""
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)


def version_of(package: str) -> str:
    if package == OURS:  # it may be a checkout beside the environment
        import gluon_svrg

        return gluon_svrg.__version__
    return importlib.metadata.version(package)


def parse() -> argparse.Namespace:
    command = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    command.add_argument("name", choices=PEERS)
    command.add_argument("folder", type=Path)
    command.add_argument("--optimum", type=json.loads, required=True, help="a Reference")
    command.add_argument("--target", type=float, default=1e-6)
    command.add_argument("--cap", type=int, default=60, help="seconds that a fit may take")
    command.add_argument("--budget", type=int, help="one that reached the target before")
    return command.parse_args()


def main() -> None:
    options = parse()
    peer = PEERS[options.name]
    problem = large_judge.read(options.folder)
    judge = Judge(problem, Reference(**options.optimum), peer.is_own)
    try:
        fit = peer.make(judge, **peer.settings)
        emit({"version": version_of(peer.package), "settings": describe(peer.settings)})
    except ImportError as error:
        emit({"missing": str(error.name)})
        return
    warnings.simplefilter("ignore")  # of fits that did not converge: they are not meant to
    if peer.package == OURS:
        run_ours(fit, judge, options.cap)
    elif options.name == "sgd":
        run_sgd(fit, judge, options.cap)
    else:
        if options.budget is None:
            budgets = next_budgets(options.target)
        else:
            budgets = confirmed_budgets(options.budget, options.target)
        timed = Timed(fit)
        run(timed, budgets, judge, options.cap, rehearse=False)
        emit({"processor": timed.processor, "peak_mb": peak()})


if __name__ == "__main__":
    for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ.setdefault(variable, str(os.cpu_count()))
    main()
