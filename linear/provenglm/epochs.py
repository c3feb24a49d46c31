"""SVRG epochs: steps of corrected batch gradients between two snapshots."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace

import numpy as np
import scipy.linalg
from numpy.typing import DTypeLike

from provenglm.buffers import buffers, parts_of_an_epoch
from provenglm.constants import Constants, constants
from provenglm.data.csr import CsrRows
from provenglm.data.disk import DiskRows
from provenglm.data.rows import DenseRows, rows_of
from provenglm.losses import Softmax
from provenglm.metric import DiagonalMetric, Metric
from provenglm.objective import Objective, Scaling, Snapshot, products
from provenglm.rule import correct
from provenglm.sample import Sample
from provenglm.sampling import fitting, importance, resample
from provenglm.series import Series
from provenglm.state import State
from provenglm.types import NumPyArray

_PART = 512
"""Rows of a batch that a thread takes at a time."""

MEASURED_ROWS = 2048
"""Of a sample that metric and constants are measured on."""

_ROWS_FOR_THE_LARGEST = 512
_ROWS_OF_MANY = 64
"""Of these, L_max is taken; fewer where each of them costs a solution with a Hessian."""

_LANCZOS = 10
"""Steps: the largest eigenvalue needs few, the margin on it is 5 %."""

_MEASURED_ANEW = 4
"""Epochs after which metric and constants are measured again."""

_MOST_SLOWER = 64
"""A step so many times smaller that leads nowhere is the end."""

_PART_OF_A_START = 8
_LEAST_PART = 4096
_EPOCHS_OF_A_START = 3
"""Over an eighth of the rows: they cost less than an epoch and lead as far."""

_POOR = 0.5
"""What an epoch leaves of a gain, from which on the other metric is tried."""

_TRIED = 2
_KEPT = 8
"""Epochs in the other metric, and those until it may be tried again."""

_LEAST_DIAGONAL = 1e-3
"""Of the mean: what a sample says of a rare feature's curvature is not believed below it."""

_ALIKE = 2.0
"""A weight of so many mean ones leaves rows alike: a batch is then a slice."""

_FAR_OUT = 1e30

OF_THE_DIAGONAL = 1 / 3
"""Of the sum of single coordinates' gains; measured, 0.6 to 4 times that sum were left."""

_FEW = 0.02
"""Of the features: if no more than these have most of the variance, scales are far apart."""


class EpochSteps:
    """SVRG in a metric that costs nothing, for many classes or features."""

    def __init__(
        self,
        objective: Objective,
        metric: str,
        rng: np.random.Generator,
        dtype: DTypeLike = np.float32,
    ) -> None:
        self._rng = rng
        self._dtype = dtype
        self._objective = objective
        self._wanted = metric
        self.left_at: NumPyArray | None = None
        self._diagonal: Metric | None = None

    def states(self, sample: Sample, start: NumPyArray) -> Iterator[State]:
        """Yield a state for each snapshot.

        With the metric 'auto' it ends where epochs gain too little, and `left_at` is where.
        """
        objective = self._in_order()
        choice = Choice(self._wanted, self._objective.scaling)
        snapshot = objective.snapshot(self._warm_start(choice.kind, objective, sample, start))
        series = Series()
        slower, kind, due, is_new = 1.0, "", 0, True
        while True:
            if is_new:
                yield State(objective, snapshot, self._left(series, snapshot), objective.passes)
                if self._wanted == "auto" and series.is_slow:
                    self.left_at = snapshot.theta
                    return
            if choice.kind != kind or due == 0:
                if kind:
                    sample = resample(self._objective, MEASURED_ROWS, self._rng)
                kind, due = choice.kind, _MEASURED_ANEW
                metric, numbers = self._measure(kind, objective, sample, snapshot, slower)
            theta = run_epoch(objective, snapshot, metric, numbers, self._rng)
            due -= 1
            new = objective.snapshot(theta)
            is_new = new.objective < snapshot.objective
            if not is_new:
                # Back to the snapshot, with half the step.
                slower, due = 2 * slower, 0
                if slower > _MOST_SLOWER:
                    if objective.rows.dtype == np.float64:
                        if isinstance(objective.rows, DiskRows) and self._wanted == "auto":
                            # A part of the rows may be too unlike the whole.
                            self.left_at = snapshot.theta
                        return
                    objective, slower, is_new = self._precise(), 1.0, True
                    snapshot = objective.snapshot(snapshot.theta)
                continue
            gain = snapshot.objective - new.objective
            series.add(gain)
            choice.add(gain)
            snapshot = new

    def _left(self, series: Series, snapshot: Snapshot) -> float:
        """Return the estimate of what is left: an epoch that goes astray gains nothing.

        So the gradient is asked as well, by Newton's decrement for the diagonal of the Hessian.
        """
        if self._diagonal is None:
            return series.rest
        gradient = snapshot.gradient
        decrement = 0.5 * float((gradient * self._diagonal.solve(gradient)).sum())
        return max(series.rest, OF_THE_DIAGONAL * decrement)

    def _precise(self) -> Objective:
        """Return the shuffled rows in float64: float32 has no more digits to give."""
        whole = self._objective
        self._objective = replace(whole, rows=whole.rows.precise())
        self._dtype = np.float64
        return self._in_order()

    def _in_order(self) -> Objective:
        """Return the objective in the order of batches: on disk, rows stay where they are."""
        if isinstance(self._objective.rows, DiskRows):
            return self._objective
        return shuffled(self._objective, self._rng, self._dtype)

    def _warm_start(
        self, kind: str, objective: Objective, sample: Sample, start: NumPyArray
    ) -> NumPyArray:
        """Return where a few epochs on a part of the rows lead from the null model.

        A start that was given is kept: it knows more than a part of the rows.
        """
        if start[:-1].any() or objective.n < _PART_OF_A_START * _LEAST_PART:
            return start
        part = self._part(objective)
        snapshot = part.snapshot(start)
        for _ in range(_EPOCHS_OF_A_START):
            metric, numbers = self._measure(kind, part, sample, snapshot, 1.0)
            theta = run_epoch(part, snapshot, metric, numbers, self._rng)
            new = part.snapshot(theta)
            if not new.objective < snapshot.objective:
                break
            snapshot = new
        return snapshot.theta

    def _part(self, objective: Objective) -> Objective:
        """Return an eighth of the rows, or what there is room for."""
        wanted = objective.n // _PART_OF_A_START
        if isinstance(objective.rows, DiskRows):
            with closing(buffers(objective, self._rng, shuffled)) as parts:
                objective = next(parts)
        return head(objective, min(wanted, objective.n))

    def _measure(
        self,
        kind: str,
        objective: Objective,
        sample: Sample,
        snapshot: Snapshot,
        slower: float,
    ) -> tuple[Metric, Constants]:
        """Return the metric at a snapshot, and its constants."""
        curvature = Curvature(sample, snapshot.theta)
        metric = curvature.metric(kind, self._objective.scaling)
        self._diagonal = curvature.metric("diagonal", self._objective.scaling)
        smoothness = curvature.smoothness(metric, snapshot.gradient)
        of_a_row = curvature.largest_of_a_row(metric)
        return metric, constants(objective.n, smoothness, of_a_row, slower)


class Choice:
    """Which of the metrics that cost nothing, identity or diagonal: by what they gain.

    Identity, of the weights as they are, amplifies nothing, but is lost where the features' scales
    are far apart. What cannot be seen beforehand is tried: an epoch depends on where the gradient
    is large, on the spectrum and on the noise at once.
    """

    def __init__(self, wanted: str, scaling: Scaling) -> None:
        self._free = wanted == "auto"
        self.kind = wanted
        if self._free:
            square = np.square(relative_scale(scaling))
            count = square.sum() ** 2 / np.square(square).sum() if square.any() else 0
            self.kind = "identity" if count > _FEW * len(square) else "diagonal"
        self._rates = {"identity": np.inf, "diagonal": np.inf}
        self._last = np.nan
        self._left = 0

    def add(self, gain: float) -> None:
        """Take the gain of an epoch in the present metric."""
        rate, self._last = gain / self._last, gain
        if np.isnan(rate):
            return
        self._rates[self.kind] = rate
        self._left -= 1
        if not self._free or self._left > 0 or rate <= _POOR:
            return
        other = "diagonal" if self.kind == "identity" else "identity"
        if np.isinf(self._rates[other]):
            self._left = _TRIED
        elif self._rates[other] < rate:
            self._left = _KEPT
        else:
            # The other one is worse: it may be tried again when this one has gone on for a while.
            self._rates[other], self._left = np.inf, _KEPT
            return
        self.kind = other


def run_epoch(
    objective: Objective,
    snapshot: Snapshot,
    metric: Metric,
    numbers: Constants,
    rng: np.random.Generator,
) -> NumPyArray:
    """Return theta after the steps of one epoch from a snapshot of shuffled rows.

    Fewer rows than a batch are left out, others in each epoch.
    """
    objective.reads.rows += numbers.batch * numbers.steps
    theta = ahead = snapshot.theta
    with closing(parts_of_an_epoch(objective, snapshot, rng, shuffled)) as parts:
        steps = ((at, rows) for at in parts for rows in _batches(at[0], numbers.batch, rng))
        for j, ((part, of_part), rows) in enumerate(steps):
            gradient = corrected_gradient(part, of_part, ahead, rows)
            new = ahead - numbers.step_size * metric.solve(gradient)
            momentum = min((j + 1) / (j + 4), numbers.momentum)
            ahead = new + momentum * (new - theta)
            theta = new
    return theta


def _batches(
    objective: Objective, batch: int, rng: np.random.Generator
) -> Iterator[slice | NumPyArray]:
    """Yield the rows of each batch of an epoch."""
    batch = min(batch, objective.n)
    steps = objective.n // batch
    if objective.probability is not None:
        # Rows of unequal weight, drawn by it: as if all had the same.
        drawn = rng.choice(objective.n, batch * steps, p=objective.probability)
        yield from drawn.reshape(steps, batch)
        return
    first = int(rng.integers(objective.n - batch * steps + 1))
    for k in rng.permutation(steps):
        yield slice(first + k * batch, first + (k + 1) * batch)


def corrected_gradient(
    objective: Objective, snapshot: Snapshot, theta: NumPyArray, rows: slice | NumPyArray
) -> NumPyArray:
    """Return the corrected gradient of a batch at `theta`.

    The rule is linear in the residuals, and the score table has those of the snapshot: their
    difference goes through the features once, instead of each gradient by itself.
    """
    weights, bias = objective.scaling.to_user(theta)
    weights = weights.astype(objective.rows.dtype)
    bias = np.asarray(bias, objective.rows.dtype)
    parts: list[slice | NumPyArray]
    if isinstance(rows, slice):
        starts = range(rows.start, rows.stop, _PART)
        parts = [slice(start, min(start + _PART, rows.stop)) for start in starts]
        count = rows.stop - rows.start
    else:
        parts = [rows[start : start + _PART] for start in range(0, len(rows), _PART)]
        count = len(rows)

    def of_part(part: slice | NumPyArray) -> NumPyArray:
        block = objective.block(part)
        target = objective.targets(part, block.dtype)
        residual = correct(
            objective.loss.residual(block @ weights + bias, target),
            objective.loss.residual(snapshot.scores[part], target),
            np.zeros((), block.dtype),
        )
        return objective.batch_gradient(part, block, residual)

    total: NumPyArray | float = 0.0
    for gradient in objective.workers.map(of_part, parts):
        total = total + gradient
    total *= objective.n / count
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
        # Of rare features as in `Sample.hessian`.
        mean = float((sample.share @ self._curvature).mean())
        self._diagonal = sample.penalty + mean * sample.unseen()

    def times(self, vector: NumPyArray) -> NumPyArray:
        """Return the Hessian, with the penalty, times a vector of theta's shape."""
        change = self._rows @ vector.astype(np.float32)
        if isinstance(self._sample.loss, Softmax):
            probability = self._probability
            change -= (probability * change).sum(axis=1, keepdims=True)
            change *= probability
        else:
            change *= self._curvature
        change = (change.T * self._sample.share).T.astype(np.float32)
        return np.asarray(products(self._rows, change) + (vector.T * self._diagonal).T)

    def metric(self, kind: str, scaling: Scaling) -> Metric:
        """Return the metric 'identity' or 'diagonal'."""
        if kind == "identity":
            # Of the weights as the user has them: theta is theirs times the scale.
            square = np.square(relative_scale(scaling))
            inverse = np.append(square / max(1.0, square.sum()), 1.0)
            return DiagonalMetric(inverse if self._curvature.ndim == 1 else inverse[:, None])
        weight = (self._curvature.T * self._sample.share).T
        diagonal = (weight.T @ np.square(self._rows)).T
        diagonal += _LEAST_DIAGONAL * diagonal.mean(axis=0)
        return DiagonalMetric(1 / (diagonal.T + self._diagonal).T)

    def smoothness(self, metric: Metric, gradient: NumPyArray) -> float:
        """Return the largest eigenvalue in the metric, from a few steps that begin at `gradient`.

        Of conjugate gradients, whose coefficients are those of the Lanczos method (Golub & Van Loan
        2013, section 11.3.5): the largest Ritz value.
        """
        residual = gradient
        preconditioned = direction = metric.solve(residual)
        product = float((residual * preconditioned).sum())
        diagonal: list[float] = []
        beside: list[float] = []
        last_length, last_ratio = np.inf, 0.0
        for _ in range(_LANCZOS):
            image = self.times(direction)
            curvature = float((direction * image).sum())
            if not curvature > 0 or not product > 0:
                break
            length = product / curvature
            diagonal.append(1 / length + last_ratio / last_length)
            residual = residual - length * image
            preconditioned = metric.solve(residual)
            new_product = float((residual * preconditioned).sum())
            last_ratio, last_length = new_product / product, length
            beside.append(np.sqrt(max(last_ratio, 0)) / length)
            direction = preconditioned + last_ratio * direction
            product = new_product
        if not diagonal:
            return 1.0
        ritz = scipy.linalg.eigvalsh_tridiagonal(
            np.array(diagonal), np.array(beside[: len(diagonal) - 1])
        )
        return float(ritz[-1])

    def largest_of_a_row(self, metric: Metric) -> float:
        """Return the largest smoothness of one row, among rows of equal weight."""
        rows = self._sample.rows[:_ROWS_FOR_THE_LARGEST]
        share = self._sample.share[: len(rows)] * len(self._rows)
        curvature = self._curvature[: len(rows)]
        if isinstance(metric, DiagonalMetric):
            square = np.square(rows) @ metric.inverse
            if curvature.ndim > 1:
                # A row's matrix diag(p) - p p^T is at most 2 max p (1 - p): Gershgorin's circles.
                square, curvature = square.max(axis=1), 2 * curvature.max(axis=1)
            return float((share * curvature * square).max())
        largest = 0.0
        for k, row in enumerate(rows if curvature.ndim == 1 else rows[:_ROWS_OF_MANY]):
            value, vector = curvature[k], np.ones(())
            if curvature.ndim > 1:
                p = self._probability[k]
                values, vectors = np.linalg.eigh(np.diag(p) - np.outer(p, p))
                value, vector = values[-1], vectors[:, -1]
            direction = np.multiply.outer(row, vector)
            square = float((direction * metric.solve(direction)).sum())
            largest = max(largest, share[k] * float(value) * square)
        return largest


def _probability(objective: Objective, order: NumPyArray) -> NumPyArray | None:
    """Return with which probability a row is drawn, or None where all are alike."""
    probability = importance(objective.loss, objective.target, objective.share)
    if probability is None or probability.max() * objective.n <= _ALIKE:
        return None
    return probability[order]


def _of_part(probability: NumPyArray | None, count: int) -> NumPyArray | None:
    return None if probability is None else probability[:count] / probability[:count].sum()


def relative_scale(scaling: Scaling) -> NumPyArray:
    """Return the features' scales, the largest as 1: no square of them overflows."""
    used = scaling.inverse > 0
    least = scaling.inverse[used].min() if used.any() else 1.0
    return np.where(used, least / np.where(used, scaling.inverse, 1), 0)


def head(objective: Objective, count: int) -> Objective:
    """Return the objective of the first of shuffled rows."""
    share = objective.share[:count]
    return replace(
        objective,
        rows=rows_of(objective.rows.block(slice(0, count)), objective.rows.dtype),
        target=objective.target[:count],
        share=share / share.sum(),
        probability=_of_part(objective.probability, count),
        moments=None,
        order=None,
    )


def shuffled(objective: Objective, rng: np.random.Generator, dtype: DTypeLike) -> Objective:
    """Return the objective on a shuffled copy of the rows: a batch is then a slice.

    The copy is centred and of `dtype`, or of the rows' own where that is smaller: it is no larger
    than the data. In float32 the sums are good to 1e-7 of the gradient. Sparse rows are not
    centred, they would not be sparse any more.
    """
    order = rng.permutation(objective.n)
    n, p = objective.rows.shape
    dtype = np.dtype(dtype)
    if isinstance(objective.rows, CsrRows):
        return replace(
            objective,
            rows=objective.rows.reordered(order, fitting(dtype, objective.scaling)),
            target=objective.target[order],
            share=objective.share[order],
            probability=_probability(objective, order),
            order=order,
        )
    stored = objective.rows.stored
    centred = stored.itemsize >= dtype.itemsize
    copy = np.empty((n, p), dtype if centred else stored)
    # A power of two takes the units away without a rounding: float32 has no room for all of them.
    inverse = objective.scaling.inverse
    unit = np.exp2(np.floor(np.log2(np.where(inverse > 0, inverse, 1))))
    size = max(64, 2**18 // p)

    def fill(part: slice) -> None:
        if centred:
            change = objective.rows.gather(order[part]) - objective.scaling.center
            with np.errstate(over="ignore"):
                np.multiply(change, unit, out=copy[part], casting="same_kind")
            # Beyond float32: so far out that any such number will do.
            np.clip(copy[part], -_FAR_OUT, _FAR_OUT, out=copy[part])
        else:
            copy[part] = objective.rows.take(order[part])

    parts = [slice(start, start + size) for start in range(0, n, size)]
    for _ in objective.workers.map(fill, parts):
        pass
    return replace(
        objective,
        rows=DenseRows(copy, dtype if centred else objective.rows.dtype),
        target=objective.target[order],
        share=objective.share[order],
        probability=_probability(objective, order),
        scaling=Scaling(np.zeros(p), inverse / unit) if centred else objective.scaling,
        centered=objective.centered and not centred,
        order=order,
    )
