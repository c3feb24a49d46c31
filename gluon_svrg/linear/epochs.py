"""SVRG epochs: steps of corrected batch gradients between two snapshots."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import scipy.linalg
from gluon_svrg._compat import NumPyArray
from gluon_svrg.linear.constants import Constants, constants
from gluon_svrg.linear.losses import Softmax
from gluon_svrg.linear.metric import DiagonalMetric, Metric
from gluon_svrg.linear.objective import Objective, Scaling, Snapshot, of_outputs, padded, products
from gluon_svrg.linear.rows import DenseRows
from gluon_svrg.linear.sample import Sample
from gluon_svrg.linear.sampling import draw
from gluon_svrg.linear.state import State
from gluon_svrg.svrg.rule import correct

_PART = 512
"""Rows of a batch that a thread takes at a time."""

MEASURED_ROWS = 2048
_LANCZOS = 10


class EpochSteps:
    """SVRG in a metric that costs nothing, for many classes or features."""

    def __init__(self, objective: Objective, first: Snapshot, metric: str, seed: int) -> None:
        self._rng = np.random.default_rng(seed)
        self._objective = objective
        self._first = first
        self._wanted = metric
        self._rows_of_batches = 0.0

    def states(self) -> Iterator[State]:
        """Yield a state for each snapshot."""
        objective, snapshot = shuffled(self._objective, self._first, self._rng, np.float32)
        series = Series()
        slower, age, due = 1.0, 0, 1
        metric, numbers = self._measure(objective, snapshot, slower)
        while True:
            yield State(objective, snapshot, series.rest, self._passes(objective))
            if age == due:
                metric, numbers = self._measure(objective, snapshot, slower)
                due *= 3
            theta = run_epoch(objective, snapshot, metric, numbers, self._rng)
            self._rows_of_batches += numbers.batch * numbers.steps
            age += 1
            new = objective.snapshot(theta)
            if not new.objective < snapshot.objective:
                slower *= 2
                if slower > 64:
                    return
                metric, numbers = self._measure(objective, snapshot, slower)
                continue
            series.add(snapshot.objective - new.objective)
            snapshot = new

    def _passes(self, objective: Objective) -> float:
        return objective.passes + self._rows_of_batches / objective.n

    def _measure(
        self, objective: Objective, snapshot: Snapshot, slower: float
    ) -> tuple[Metric, Constants]:
        """Return the metric that gains most on a sample's quadratic, and its constants."""
        sample = draw(objective, min(objective.n, MEASURED_ROWS), self._rng)
        self._rows_of_batches += len(sample.rows)
        curvature = Curvature(sample, snapshot.theta)
        best: tuple[float, DiagonalMetric, float] | None = None
        for metric in curvature.metrics(objective.scaling, self._wanted):
            gained, smoothness = curvature.trial(metric, snapshot.gradient)
            if best is None or gained > best[0]:
                best = gained, metric, smoothness
        assert best is not None
        _, metric, smoothness = best
        # Its constants are measured anew at later snapshots, but it stays the metric of this run.
        self._wanted = metric.name
        of_a_row = curvature.largest_of_a_row(metric)
        return metric, constants(objective.n, smoothness, of_a_row, slower)


class Series:
    """What gains that shrink like a geometric series leave to be gained.

    The rate is the larger of the last two ratios, and not believed below a tenth.
    """

    def __init__(self) -> None:
        self._gains: list[float] = []

    def add(self, gain: float) -> None:
        """Take the gain of one epoch."""
        self._gains = [*self._gains[-2:], gain]

    @property
    def rest(self) -> float:
        """The estimate; inf before there are two gains."""
        gains = self._gains
        if len(gains) < 2:
            return np.inf
        rates = [new / old for old, new in itertools.pairwise(gains)]
        rate = min(0.95, max(0.1, *rates))
        return gains[-1] * rate / (1 - rate)


def run_epoch(
    objective: Objective,
    snapshot: Snapshot,
    metric: Metric,
    numbers: Constants,
    rng: np.random.Generator,
) -> NumPyArray:
    """Return theta after the steps of one epoch from a snapshot of shuffled rows.

    The rows that are left over, fewer than a batch, wait for a later order.
    """
    theta = ahead = snapshot.theta
    batch = numbers.batch
    for j, k in enumerate(rng.permutation(numbers.steps)):
        rows = slice(k * batch, (k + 1) * batch)
        gradient = corrected_gradient(objective, snapshot, ahead, rows)
        new = ahead - numbers.step_size * metric.solve(gradient)
        momentum = min((j + 1) / (j + 4), numbers.momentum)
        ahead = new + momentum * (new - theta)
        theta = new
    return theta


def corrected_gradient(
    objective: Objective, snapshot: Snapshot, theta: NumPyArray, rows: slice
) -> NumPyArray:
    """Return the corrected gradient of a batch at `theta`.

    The rule is linear in the residuals, and the score table has those of the snapshot: their
    difference goes through the features once, instead of each gradient by itself.
    """
    weights, bias = objective.scaling.to_user(theta)
    weights = padded(weights.astype(objective.rows.dtype))
    bias = np.asarray(bias, objective.rows.dtype)
    parts = [
        slice(start, min(start + _PART, rows.stop)) for start in range(rows.start, rows.stop, _PART)
    ]

    def of_part(part: slice) -> NumPyArray:
        block = objective.block(part)
        target = objective.target[part]
        residual = correct(
            objective.loss.residual(of_outputs(block @ weights, theta.shape[1:]) + bias, target),
            objective.loss.residual(snapshot.scores[part], target),
            np.zeros((), block.dtype),
        )
        return objective.batch_gradient(part, block, residual)

    total: NumPyArray | float = 0.0
    for gradient in objective.workers.map(of_part, parts):
        total = total + gradient
    total *= objective.n / (rows.stop - rows.start)
    change = objective.used(theta) * (theta - snapshot.theta)
    return np.asarray(total + change + snapshot.gradient)


class Curvature:
    """The Hessian of a sample at a point, as products with vectors."""

    def __init__(self, sample: Sample, theta: NumPyArray) -> None:
        self._sample = sample
        self._rows = sample.rows.astype(np.float32)
        scores = sample.rows @ theta
        loss = sample.loss
        if isinstance(loss, Softmax):
            self._probability = loss.probability(scores)
            self._curvature = self._probability * (1 - self._probability)
        else:
            self._curvature = loss.curvature(scores, sample.target)

    def times(self, vector: NumPyArray) -> NumPyArray:
        """Return the Hessian, with the penalty, times a vector of theta's shape."""
        change = of_outputs(self._rows @ padded(vector.astype(np.float32)), vector.shape[1:])
        if isinstance(self._sample.loss, Softmax):
            probability = self._probability
            change -= (probability * change).sum(axis=1, keepdims=True)
            change *= probability
        else:
            change *= self._curvature
        change = (change.T * self._sample.share).T.astype(np.float32)
        penalty = self._sample.penalty
        return np.asarray(products(self._rows, change) + (vector.T * penalty).T)

    def metrics(self, scaling: Scaling, wanted: str) -> list[Metric]:
        """Return the metrics to be tried."""
        found: list[Metric] = []
        if wanted in ("auto", "identity"):
            # Of the weights as the user has them: theta is theirs times the scale.
            used = scaling.inverse > 0
            square = np.where(used, 1 / np.where(used, scaling.inverse, 1) ** 2, 0)
            inverse = np.append(square / square.sum(), 1.0)
            if self._curvature.ndim > 1:
                inverse = inverse[:, None]
            found.append(DiagonalMetric(inverse, "identity"))
        if wanted in ("auto", "diagonal"):
            weight = (self._curvature.T * self._sample.share).T
            diagonal = (weight.T @ np.square(self._rows)).T
            diagonal = (diagonal.T + self._sample.penalty).T
            diagonal += 1e-3 * diagonal.mean(axis=0)
            found.append(DiagonalMetric(1 / diagonal, "diagonal"))
        return found

    def trial(self, metric: Metric, gradient: NumPyArray) -> tuple[float, float]:
        """Return what a few steps of conjugate gradients gain, and the largest eigenvalue.

        The gain is that of the sample's quadratic model. The steps are those of the Lanczos method
        (Golub & Van Loan 2013, section 11.3.5), whose largest Ritz value is the smoothness.
        """
        residual = gradient.copy()
        preconditioned = metric.solve(residual)
        direction = preconditioned.copy()
        product = float((residual * preconditioned).sum())
        gained = 0.0
        diagonal: list[float] = []
        beside: list[float] = []
        last_length, last_ratio = np.inf, 0.0
        for _ in range(_LANCZOS):
            image = self.times(direction)
            curvature = float((direction * image).sum())
            if not curvature > 0 or product == 0:
                break
            length = product / curvature
            diagonal.append(1 / length + last_ratio / last_length)
            gained += 0.5 * length * product
            residual = residual - length * image
            preconditioned = metric.solve(residual)
            new_product = float((residual * preconditioned).sum())
            last_ratio, last_length = new_product / product, length
            beside.append(np.sqrt(max(last_ratio, 0)) / length)
            direction = preconditioned + last_ratio * direction
            product = new_product
        if not diagonal:
            return 0.0, 1.0
        ritz = scipy.linalg.eigvalsh_tridiagonal(
            np.array(diagonal), np.array(beside[: len(diagonal) - 1])
        )
        return gained, float(ritz[-1])

    def largest_of_a_row(self, metric: Metric) -> float:
        """Return the largest smoothness of one of 512 rows, as one of rows of equal weight."""
        rows = self._sample.rows[:512]
        share = self._sample.share[:512] * len(self._rows)
        curvature = self._curvature[:512]
        if isinstance(metric, DiagonalMetric):
            square = np.square(rows) @ metric.inverse
        else:
            square = (rows * metric.solve(rows.T).T).sum(axis=1)
        if curvature.ndim > 1:
            # The row's matrix diag(p) - p p^T is at most 2 max p (1 - p), by Gershgorin's circles.
            square, curvature = square.max(axis=1), 2 * curvature.max(axis=1)
        return float((share * curvature * square).max())


def shuffled(
    objective: Objective,
    snapshot: Snapshot,
    rng: np.random.Generator,
    dtype: type[np.floating],
) -> tuple[Objective, Snapshot]:
    """Return the objective on a shuffled, centred copy of the rows: a batch is then a slice.

    In float32 the sums are good to 1e-7 of the gradient.
    """
    order = rng.permutation(objective.n)
    n, p = objective.rows.shape
    copy = np.empty((n, p), dtype)
    size = max(64, 2**18 // p)

    def fill(part: slice) -> None:
        np.subtract(
            objective.rows.gather(order[part]),
            objective.scaling.center,
            out=copy[part],
            casting="same_kind",
        )

    parts = [slice(start, start + size) for start in range(0, n, size)]
    for _ in objective.workers.map(fill, parts):
        pass
    moved = replace(
        objective,
        rows=DenseRows(copy, np.dtype(dtype)),
        target=objective.target[order],
        share=objective.share[order],
        scaling=Scaling(np.zeros(p), objective.scaling.inverse),
        centered=False,
        order=order,
    )
    return moved, replace(snapshot, scores=snapshot.scores[order].astype(dtype))
