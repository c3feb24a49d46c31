"""Time softmax regression with an L1 penalty on dense rows beside scikit-learn's SAGA.

Run it by ``make bench-softmax``, which puts the table into docs/benchmarks/softmax.md.
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings

import numpy as np
import report
from linear_problems import fashion
from provenglm import GLMClassifier
from scipy.special import logsumexp
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from threadpoolctl import threadpool_limits

SHAPES = ((6_000, 50), (6_000, 100), (6_000, 150), (10_000, 400))
CLASSES = 10
STRENGTHS = (0.01, 1.0, 100.0)
TARGET = 1e-6
LIMIT = 12.0
FASHION_LIMIT = 120.0


def problem(n: int, p: int) -> tuple[np.ndarray, np.ndarray]:
    """Return independent normal features, and labels of a linear teacher."""
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(n, p))
    scores = rows @ rng.normal(size=(p, CLASSES)) / np.sqrt(p)
    return rows, (scores + rng.gumbel(size=scores.shape)).argmax(axis=1)


class Objective:
    """The mean loss with the penalty, and the gap (F - F*) / (F0 - F*)."""

    def __init__(self, rows: np.ndarray, labels: np.ndarray, strength: float) -> None:
        self._rows, self._labels = rows, labels
        self._penalty = 1 / (strength * len(rows))
        share = np.bincount(labels) / len(labels)
        self.start = self._at(np.zeros((rows.shape[1], len(share))), np.log(share))
        self.least = np.inf

    def _at(self, coef: np.ndarray, bias: np.ndarray) -> float:
        scores = self._rows @ coef + bias
        losses = logsumexp(scores, axis=1) - scores[np.arange(len(scores)), self._labels]
        return float(losses.mean() + self._penalty * np.abs(coef).sum())

    def of(self, model: GLMClassifier | LogisticRegression) -> float:
        """Return the objective of a fitted model."""
        return self._at(model.coef_.T, model.intercept_)

    def gap(self, value: float) -> float:
        return (value - self.least) / (self.start - self.least)


def timed(model: GLMClassifier | LogisticRegression, rows: np.ndarray, labels: np.ndarray) -> float:
    """Return the seconds of a fit."""
    begin = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(rows, labels)
    return time.perf_counter() - begin


def measure(
    name: str, rows: np.ndarray, labels: np.ndarray, strength: float, limit: float, own_limit: float
) -> tuple[str, ...]:
    """Return the row of the table for one penalty."""
    objective = Objective(rows, labels, strength)
    ours, seconds = GLMClassifier(strength, l1_ratio=1.0, max_time=own_limit), {}
    for threads in (1, 2):
        with threadpool_limits(threads):
            seconds[threads] = timed(ours, rows, labels)
    objective.least = objective.of(ours) - ours.gap_  # a lower bound of the optimum
    peer_value, peer_seconds, steps = np.inf, 0.0, 0
    with threadpool_limits(1):
        for steps in (5 * 2**k for k in range(20)):
            peer = LogisticRegression(
                C=strength, l1_ratio=1.0, solver="saga", tol=0.0, max_iter=steps, random_state=0
            )
            peer_seconds = timed(peer, rows, labels)
            peer_value = objective.of(peer)
            if objective.gap(peer_value) <= 2 * TARGET or peer_seconds > limit:
                break
    reached = objective.gap(peer_value) <= 2 * TARGET
    print(name, strength, seconds, peer_seconds, steps, file=sys.stderr, flush=True)
    return (
        name,
        f"{strength:g}",
        f"{np.count_nonzero(ours.coef_):,}",
        f"{seconds[1]:.2f}",
        f"{seconds[2]:.2f}",
        f"{ours.gap_ / (objective.start - objective.least):.0e}",
        f"{peer_seconds:.2f}" if reached else f"not in {peer_seconds:.0f}",
        f"{steps} epochs, {max(objective.gap(peer_value), 0):.0e}",
    )


def section(options: argparse.Namespace) -> str:
    table = [
        measure(f"{n:,} x {p}", *problem(n, p), strength, LIMIT, 60.0)
        for n, p in SHAPES
        for strength in STRENGTHS
    ]
    if options.fashion:
        data = fashion()
        rows, labels = np.asarray(data.x, np.float64), data.y
        name = f"Fashion-MNIST, {rows.shape[0]:,} x {rows.shape[1]}"
        table += [
            measure(name, rows, labels, strength, FASHION_LIMIT / 2, FASHION_LIMIT)
            for strength in STRENGTHS[:2]
        ]
    header = [
        "rows",
        "C",
        "not 0",
        "ours, 1 thread",
        "2 threads",
        "proven there",
        "SAGA",
        "SAGA's gap",
    ]
    return f"""\
Softmax regression, ten classes, an L1 penalty alone; whole fits in one process, one after the
other, seconds. SAGA gets the fewest epochs of 5, 10, 20, ... with which it is {2 * TARGET:g} above
our lower bound of the optimum, (F - F*) / (F0 - F*), or less; it stops after {LIMIT:g} s
({FASHION_LIMIT / 2:g} s for Fashion-MNIST, where a fit has {FASHION_LIMIT:g} s).
{report.provenance("bench-softmax", ["numpy", "scipy", "scikit-learn"])}

{report.markdown_table(header, table)}"""


def main() -> None:
    command = report.parser(__doc__, rounds=1)
    command.add_argument("--no-fashion", dest="fashion", action="store_false")
    options = command.parse_args()
    report.publish("bench-softmax", section(options), options.out)


if __name__ == "__main__":
    main()
