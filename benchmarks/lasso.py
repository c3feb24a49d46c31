"""Time the lasso on dense rows beside celer, skglm and scikit-learn.

Run it by ``make bench-lasso``, which puts the table into docs/benchmarks/lasso.md.
"""

from __future__ import annotations

import time
import warnings
from typing import Any

import celer
import numpy as np
import report
import skglm
from provenglm import GLMRegressor
from sklearn.linear_model import Lasso

CASES = ((1_000, 5_000, 0.1), (1_000, 5_000, 0.01), (30_000, 300, 0.01))
TARGET = 1e-6
TOLS = [10.0**-power for power in range(1, 11)]


def problem(n: int, p: int) -> tuple[np.ndarray, np.ndarray]:
    """Return features with a common factor, and targets of a hundredth of them and noise."""
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(n, p)) + 0.5 * rng.normal(size=(n, 1))
    target = rows[:, : p // 100] @ rng.normal(size=p // 100)
    return rows, target + target.std() / 2 * rng.normal(size=n)


def objective(rows: np.ndarray, target: np.ndarray, alpha: float, model: Any) -> float:
    """Return half the mean square of what is left, with the penalty."""
    rest = target - rows @ model.coef_ - model.intercept_
    return float(rest @ rest / (2 * len(rest)) + alpha * np.abs(model.coef_).sum())


def seconds_of(model: Any, rows: np.ndarray, target: np.ndarray) -> float:
    begin = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(rows, target)
    return time.perf_counter() - begin


def measure(n: int, p: int, ratio: float, rounds: int) -> list[tuple[str, ...]]:
    """Return the rows of the table for one shape and penalty."""
    rows, target = problem(n, p)
    by_columns = np.asfortranarray(rows)
    centred = target - target.mean()
    alpha = ratio * float(np.abs(rows.T @ centred).max()) / n
    best = GLMRegressor(alpha=alpha, l1_ratio=1.0, tol=1e-12).fit(rows, target)
    optimum = objective(rows, target, alpha, best)
    start = float(centred @ centred / (2 * n))

    def gap_of(model: Any) -> float:
        return (objective(rows, target, alpha, model) - optimum) / (start - optimum)

    ours = GLMRegressor(alpha=alpha, l1_ratio=1.0)
    models: dict[str, Any] = {"**ours**": ours}
    for name, kind in (("celer", celer.Lasso), ("skglm", skglm.Lasso), ("scikit-learn", Lasso)):
        for tol in TOLS:
            more = {"max_iter": 100_000} if kind is Lasso else {}
            peer = kind(alpha=alpha, tol=tol, **more)
            seconds_of(peer, by_columns, target)
            if gap_of(peer) <= TARGET:
                break
        models[f"{name}, tol {tol:g}"] = peer
    seconds: dict[str, list[float]] = {name: [] for name in models}
    for number in range(rounds):
        for name in list(models)[:: 1 if number % 2 else -1]:
            given = rows if name == "**ours**" else by_columns
            seconds[name].append(seconds_of(models[name], given, target))
    least = report.median(seconds["**ours**"])
    found = []
    for name, model in models.items():
        gap = f"{max(0.0, gap_of(model)):.0e}"
        if model is ours:
            gap += f", proven {model.gap_ / (start - optimum):.0e}"
        taken = report.median(seconds[name])
        case = f"{n:,} x {p:,}, {ratio:g} of the largest alpha" if model is ours else ""
        found.append((case, name, f"{1e3 * taken:.0f} ms", gap, f"{taken / least:.2f}"))
    return found


def main() -> None:
    options = report.parser(__doc__, rounds=11).parse_args()
    rows = [row for case in CASES for row in measure(*case, options.rounds)]
    header = ["problem", "solver", "time", "gap", "times ours"]
    made = report.provenance("bench-lasso", ["numpy", "scipy", "scikit-learn", "celer", "skglm"])
    text = f"""\
Float64 features with a common factor; a hundredth of them make the target, with noise. Whole fits
in one process, two threads, medians of {options.rounds} interleaved rounds, after fits that
compile. Each peer has the largest `tol` of 1e-1, 1e-2, ... with which it is {TARGET:g} above the
optimum, (F - F*) / (F0 - F*), or less, and columns that need no copy; ours has its defaults, and
rows.
{made}

{report.markdown_table(header, rows)}"""
    report.publish("bench-lasso", text, options.out)


if __name__ == "__main__":
    main()
