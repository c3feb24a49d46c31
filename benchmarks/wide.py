"""Time logistic regression on dense rows of thousands of columns beside scikit-learn's L-BFGS.

Run it by ``make bench-wide``, which puts the table into docs/benchmarks/wide.md.
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings

import numpy as np
import report
from provenglm import SVRGClassifier as GLMClassifier  # the name that 0.8 has, too
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression

SHAPES = ((8_000, 5_000), (3_000, 20_000), (60_000, 3_000))
FACTORS = 50
TARGET = 1e-6
TOLS = [10.0**-power for power in range(1, 9)]


def problem(n: int, p: int) -> tuple[np.ndarray, np.ndarray]:
    """Return correlated features, standardised, and labels of a linear teacher."""
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(n, FACTORS)) @ rng.normal(size=(FACTORS, p)) / np.sqrt(FACTORS)
    rows += rng.normal(size=(n, p))
    rows -= rows.mean(axis=0)
    rows /= rows.std(axis=0)
    scores = rows @ rng.normal(size=p)
    return rows, rng.random(n) < 1 / (1 + np.exp(-3 * scores / scores.std()))


def objective(rows: np.ndarray, labels: np.ndarray, coef: np.ndarray, bias: float) -> float:
    """Return the mean loss with the penalty of C = 1."""
    scores = rows @ coef + bias
    losses = np.logaddexp(0, scores) - labels * scores
    return float(losses.mean() + coef @ coef / (2 * len(rows)))


def fit(
    model: GLMClassifier | LogisticRegression, rows: np.ndarray, labels: np.ndarray
) -> tuple[float, float]:
    """Return the seconds of a fit and the objective at its end."""
    begin = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(rows, labels)
    seconds = time.perf_counter() - begin
    return seconds, objective(rows, labels, model.coef_[0], float(model.intercept_[0]))


def measure(n: int, p: int, rounds: int) -> list[tuple[str, ...]]:
    """Return the rows of the table for one shape."""
    rows, labels = problem(n, p)
    best = GLMClassifier(tol=1e-10, random_state=0).fit(rows, labels)
    optimum = objective(rows, labels, best.coef_[0], float(best.intercept_[0]))
    share = labels.mean()
    start = objective(rows, labels, np.zeros(p), float(np.log(share / (1 - share))))

    def gap_of(value: float) -> float:
        return (value - optimum) / (start - optimum)

    for tol in TOLS:
        peer = LogisticRegression(C=1.0, tol=tol, max_iter=100_000)
        _, value = fit(peer, rows, labels)
        print(f"{n} x {p}, L-BFGS, tol {tol:g}: {gap_of(value):.1e}", file=sys.stderr, flush=True)
        if gap_of(value) <= TARGET:
            break
    ours = GLMClassifier(C=1.0, random_state=0)
    models = {"ours": ours, "peer": peer}
    seconds: dict[str, list[float]] = {name: [] for name in models}
    gaps = {}
    for number in range(rounds):
        for name in sorted(models, reverse=number % 2 == 1):
            taken, value = fit(models[name], rows, labels)
            seconds[name].append(taken)
            gaps[name] = gap_of(value)
    times = {name: report.median(taken) for name, taken in seconds.items()}
    ratio = f"{times['peer'] / times['ours']:.1f}"
    iterations = int(peer.n_iter_[0])
    proven = ours.gap_ / (start - optimum)
    return [
        (
            f"{n:,} x {p:,}",
            "**ours**",
            f"{times['ours']:.2f} s",
            f"{gaps['ours']:.0e}, proven {proven:.0e}",
            ours.solver_,
            "1.0",
        ),
        (
            "",
            f"scikit-learn lbfgs, tol {peer.tol:g}",
            f"{times['peer']:.2f} s",
            f"{gaps['peer']:.0e}",
            f"{iterations} iterations",
            ratio,
        ),
    ]


def section(options: argparse.Namespace) -> str:
    header = ["rows x columns", "solver", "seconds", "gap", "method", "times ours"]
    shapes = [(n // 10, p // 10) for n, p in SHAPES] if options.quick else SHAPES
    rows = [row for n, p in shapes for row in measure(n, p, options.rounds)]
    made = report.provenance("bench-wide", ["numpy", "scipy", "scikit-learn"])
    return f"""\
Logistic regression, C = 1, float64 rows: {FACTORS} common factors and noise, standardised, so
that both minimise the same objective on the scales that L-BFGS likes best; labels of a linear
teacher. Whole fits in one process, two threads, medians of {options.rounds} interleaved rounds.
L-BFGS has the largest `tol` of 1e-1, 1e-2, ... with which it is {TARGET:g} above the optimum,
(F - F*) / (F0 - F*), or less; ours has its defaults.
{made}

{report.markdown_table(header, rows)}"""


def main() -> None:
    command = report.parser(__doc__, rounds=3)
    command.add_argument("--quick", action="store_true", help="a hundredth of the numbers")
    options = command.parse_args()
    report.publish("bench-wide", section(options), options.out)


if __name__ == "__main__":
    main()
