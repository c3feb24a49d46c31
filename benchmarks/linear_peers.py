"""Fit one of the linear problems with one library, in a process of its own, and print the times.

    python benchmarks/linear_peers.py NAME FOLDER

``linear.py`` calls it so; FOLDER is what ``linear_judge.write`` made. It prints a line of JSON that
says what runs, then one a fit, as ``convex_peers.py`` does: a budget (`max_iter`) is searched, and
the time is that of the fit with the least budget that reaches the target. With ``--default`` there
is one fit with no argument but the strength of the penalty: what a user gets with the defaults.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import logging
import os
import resource
import signal
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import linear_judge
import numpy as np
from convex_peers import (
    WARM_UP,
    Point,
    Settings,
    Weights,
    confirmed_budgets,
    describe,
    emit,
    next_budgets,
    run,
)
from linear_judge import Judge

OURS = "gluon-svrg"
OURS_32 = "gluon-svrg-32"
Fit = Callable[[int | None], Weights]
"""Fits with a budget; with None as the library does by default."""


def limits(budget: int | None, **of_budget: Any) -> Settings:
    """Return the settings that leave the end to the budget; none by default."""
    return {} if budget is None else {"max_iter": budget, **of_budget}


def ours(judge: Judge, seed: int | None) -> Any:
    """Return our estimator for the problem, with nothing said but C or alpha."""
    from gluon_svrg.linear import GLMClassifier, GLMRegressor

    problem = judge.problem
    if problem.is_classification:
        return GLMClassifier(
            C=problem.strength, class_weight=problem.class_weight, random_state=seed
        )
    return GLMRegressor(problem.loss, alpha=problem.strength, random_state=seed)


def fit_ours(judge: Judge, dtype: str, random_state: int | None = None) -> Fit:
    problem = judge.problem
    x = np.ascontiguousarray(problem.x, dtype)

    def fit(budget: int | None) -> Weights:
        model = ours(judge, random_state).set_params(**limits(budget))
        model.fit(x, problem.y, sample_weight=problem.sample_weight)
        fit.model = model  # type: ignore[attr-defined]
        return model.coef_, model.intercept_

    return fit


def logistic_regression(judge: Judge, dtype: str, module: str, **settings: Any) -> Fit:
    estimator = importlib.import_module(module).LogisticRegression
    problem = judge.problem
    x = np.ascontiguousarray(problem.x, dtype)
    settings["random_state"] = 0
    settings["class_weight"] = problem.class_weight

    def fit(budget: int | None) -> Weights:
        model = estimator(C=problem.strength, **settings, **limits(budget, tol=1e-14))
        model.fit(x, problem.y, sample_weight=problem.sample_weight)
        return model.coef_, model.intercept_

    return fit


def poisson_regressor(judge: Judge, dtype: str, **settings: Any) -> Fit:
    from sklearn.linear_model import PoissonRegressor

    problem = judge.problem
    x = np.ascontiguousarray(problem.x, dtype)

    def fit(budget: int | None) -> Weights:
        model = PoissonRegressor(alpha=problem.strength, **settings, **limits(budget, tol=1e-14))
        model.fit(x, problem.y, sample_weight=problem.sample_weight)
        return model.coef_, model.intercept_

    return fit


def glum(judge: Judge, dtype: str, columns: str, **settings: Any) -> Fit:
    import tabmat
    from glum import GeneralizedLinearRegressor
    from scipy import sparse

    problem = judge.problem
    x: Any = np.ascontiguousarray(problem.x, dtype)
    if columns == "split":  # one-hots become sparse: glum at its best, before the clock starts
        x = tabmat.from_csc(sparse.csc_matrix(x), threshold=0.5)
    y = problem.y.astype(dtype)
    weights = None if problem.sample_weight is None else problem.sample_weight
    if problem.class_weight:
        weights = problem.weights()
    family = {"logistic": "binomial", "poisson": "poisson"}[problem.loss]

    def fit(budget: int | None) -> Weights:
        # By default its penalty is an L1 and L2 of 1: the strength and the kind have to be said.
        model = GeneralizedLinearRegressor(
            family=family,
            alpha=problem.l2,
            l1_ratio=0,
            **settings,
            **limits(budget, gradient_tol=1e-14),
        )
        model.fit(x, y, sample_weight=weights)
        return model.coef_, model.intercept_

    return fit


class Peer(NamedTuple):
    title: str
    package: str
    make: Callable[..., Fit]
    settings: Settings


def _of_logistic(title: str, solver: str, dtype: str = "float64") -> Peer:
    settings = {"module": "sklearn.linear_model", "solver": solver, "dtype": dtype}
    return Peer(f"scikit-learn {title}", "scikit-learn", logistic_regression, settings)


def _of_poisson(title: str, solver: str) -> Peer:
    settings = {"solver": solver, "dtype": "float64"}
    return Peer(f"scikit-learn {title}", "scikit-learn", poisson_regressor, settings)


def _of_intel(title: str, solver: str, dtype: str = "float64") -> Peer:
    settings = {"module": "sklearnex.linear_model", "solver": solver, "dtype": dtype}
    return Peer(
        f"scikit-learn-intelex {title}", "scikit-learn-intelex", logistic_regression, settings
    )


def _of_glum(title: str, columns: str) -> Peer:
    settings = {"columns": columns, "dtype": "float64"}
    return Peer(title, "glum", glum, settings)


PEERS = {
    OURS: Peer("**ours**", "gluon-svrg", fit_ours, {"dtype": "float64"}),
    OURS_32: Peer("**ours**", "gluon-svrg", fit_ours, {"dtype": "float32"}),
    "lbfgs": _of_logistic("lbfgs", "lbfgs"),
    "lbfgs-32": _of_logistic("lbfgs", "lbfgs", "float32"),
    "newton-cholesky": _of_logistic("newton-cholesky", "newton-cholesky"),
    "newton-cholesky-32": _of_logistic("newton-cholesky", "newton-cholesky", "float32"),
    "newton-cg": _of_logistic("newton-cg", "newton-cg"),
    "newton-cg-32": _of_logistic("newton-cg", "newton-cg", "float32"),
    "saga": _of_logistic("saga", "saga"),
    "intel-lbfgs": _of_intel("lbfgs", "lbfgs"),
    "intel-lbfgs-32": _of_intel("lbfgs", "lbfgs", "float32"),
    "intel-newton-cg": _of_intel("newton-cg", "newton-cg"),
    "poisson-lbfgs": _of_poisson("lbfgs", "lbfgs"),
    "poisson-newton-cholesky": _of_poisson("newton-cholesky", "newton-cholesky"),
    "glum": _of_glum("glum irls-ls", "dense"),
    "glum-split": _of_glum("glum irls-ls, one-hots sparse", "split"),
}


def version_of(package: str) -> str:
    if package == OURS:  # it may be a checkout beside the environment
        import gluon_svrg

        return gluon_svrg.__version__
    return importlib.metadata.version(package)


def records_of(model: Any) -> list[dict[str, Any]]:
    return [record if isinstance(record, dict) else vars(record) for record in model.history_]


def run_ours(fit: Any, judge: Judge, cap: int) -> None:
    """Time the whole fit with every default; print it, and the points of its history."""
    signal.alarm(WARM_UP + cap)
    fit(1)
    point, told = timed_default(fit, judge, cap)
    model = fit.model
    records = records_of(model)
    for record in records:
        gap = judge.gap_of(record["objective"])
        emit(Point(record["passes"], record["seconds"], gap)._asdict())
    emit(
        {
            "fit": point.seconds,
            "fit_gap": point.gap,
            "passes": records[-1]["passes"],
            "proven": model.gap_ / (judge.optimum.start - judge.optimum.value),
            "solver": str(model.solver_),
            "why": model.why_,
            "stop": str(getattr(model.stop_reason_, "value", model.stop_reason_)),
            **told,
        }
    )


def timed_default(fit: Fit, judge: Judge, cap: int) -> tuple[Point, dict[str, Any]]:
    """Fit once by default; return the point, and what the library warned of."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        signal.alarm(cap)
        begin = time.perf_counter()
        weight, bias = fit(None)
        seconds = time.perf_counter() - begin
        signal.alarm(0)
    told = [f"{warning.category.__name__}: {str(warning.message)[:200]}" for warning in caught]
    return Point(0, seconds, judge.gap(weight, bias)), {"warnings": told}


def run_default(fit: Fit, judge: Judge, cap: int) -> None:
    signal.alarm(WARM_UP + cap)
    fit(1)
    point, told = timed_default(fit, judge, cap)
    emit(point._asdict())
    emit(told)


def watch_intel() -> list[str]:
    """Return a list that scikit-learn-intelex will tell into whether it ran its own code."""
    said: list[str] = []

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if "running accelerated" in record.getMessage() or "fallback" in record.getMessage():
                said.append(record.getMessage())

    logger = logging.getLogger("sklearnex")
    logger.setLevel(logging.INFO)
    logger.addHandler(Handler())
    return said


def parse() -> argparse.Namespace:
    command = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    command.add_argument("name", choices=PEERS)
    command.add_argument("folder", type=Path)
    command.add_argument("--target", type=float, default=1e-6)
    command.add_argument("--cap", type=int, default=60, help="seconds that a fit may take")
    command.add_argument("--budget", type=int, help="one that reached the target before")
    command.add_argument("--seed", type=int, help="our random_state")
    command.add_argument("--default", action="store_true", help="one fit, as it is by default")
    return command.parse_args()


def main() -> None:
    options = parse()
    peer = PEERS[options.name]
    judge = linear_judge.read(options.folder)
    said = watch_intel()
    try:
        seed = {} if options.seed is None else {"random_state": options.seed}
        fit = peer.make(judge, **peer.settings, **seed)
        emit({"version": version_of(peer.package), "settings": describe(peer.settings)})
    except ImportError as error:
        emit({"missing": str(error.name)})
        return
    warnings.simplefilter("ignore")  # of fits that did not converge: they are not meant to
    if peer.package == OURS and not options.default:
        run_ours(fit, judge, options.cap)
    elif options.default:
        run_default(fit, judge, options.cap)
    else:
        if options.budget is None:
            budgets = next_budgets(options.target)
        else:
            budgets = confirmed_budgets(options.budget, options.target)
        run(fit, budgets, judge, options.cap, rehearse=False)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    emit({"peak_mb": round(peak), **({"intel": said[-1]} if said else {})})


if __name__ == "__main__":
    for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ.setdefault(variable, str(os.cpu_count()))
    main()
