"""Sparse features with more columns than a Hessian can have: epochs, and the best of their span."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise, starmap
from typing import Any

import numpy as np

from provenglm.constants import Constants, expected_smoothness
from provenglm.data.csr import CsrRows, transposed
from provenglm.epochs import Choice
from provenglm.objective import Objective, Scaling, Snapshot
from provenglm.problem import Problem
from provenglm.sample import Sample
from provenglm.sampling import fits_float32, has_offsets
from provenglm.solution import Settings
from provenglm.sparse.coordinates import reordered
from provenglm.sparse.ending import Remainder
from provenglm.sparse.sparse_epochs import Batch, Frame, Measure, Start, run_epoch
from provenglm.sparse.subspace import Direction, Point, Setting, combined, minimise
from provenglm.state import State
from provenglm.types import NumPyArray
from provenglm.way import Plan

_MEASURED_ROWS = 4096
_MEASURED_ROWS_OF_MANY = 2048
"""Rows that the constants are taken of; fewer where each has many scores."""

_MARGIN = 1.05
"""On L, which the power method takes from below."""

_NOISE = 8.0
"""The batch is so many times L_max / L: see `constants`."""

_LEAST_BATCH, _MOST_BATCH = 1024, 8192
_LEAST_STEPS = 12
"""Of an epoch, which costs a pass however many there are."""

_DIRECTIONS = 3
"""An epoch's displacement, and the last steps."""

_TOO_FAR = 0.3
"""Of an epoch's displacement: if no more of it is taken twice, its steps were too long."""

_MOST_SLOWER = 256.0

_SUMMED_ROWS = 1 << 16
"""Of a product in float32; such products are added in float64."""

_NUMBERS_OF_TWO = 16
"""A column, from which on there are two parts at least, for two threads."""

_WAVERS = 1e-9
"""Of the objective in float32: a smaller gain is one of rounding, and the scores are taken anew."""

_CHECKED_ROWS = 1024
_DRIFT = {np.dtype(np.float32): 1e-3, np.dtype(np.float64): 1e-7}
"""Of scores, in units of their size: more than rounding makes, and all are taken anew."""


def plan(problem: Problem, settings: Settings) -> Plan:
    """Return the way to go for a sparse problem of many columns."""
    n, p = problem.features.shape
    if settings.metric == "hessian":
        raise ValueError(
            f"metric='hessian' was asked for, and X is sparse and has {p:,} columns: a Hessian of "
            "them does not fit; leave metric='auto', or take 'identity' or 'diagonal'"
        )
    why = f"{n:,} sparse rows with {p:,} columns: no Hessian of them fits"

    def method(
        objective: Objective, _: Sample, start: NumPyArray, rng: np.random.Generator
    ) -> Iterator[State]:
        steps = SparseSteps(objective, settings, rng)
        yield from steps.states(start)

    return Plan("svrg, sparse", why, 0, method)


class SparseSteps:
    """SVRG epochs over sparse rows; each snapshot is the optimum of a span.

    From a snapshot an epoch of corrected batches leads to a displacement. Where to go along it, and
    along the last steps, is a problem of three numbers, solved from the scores: one product with
    the features, which the snapshot needs anyway. No step is refused therefore, and what one epoch
    leaves in a few directions is not left twice.
    """

    def __init__(self, objective: Objective, settings: Settings, rng: np.random.Generator) -> None:
        self._whole = objective
        self._settings = settings
        self._rng = rng
        self._order = rng.permutation(objective.n)
        self._null = objective.null()[1]
        self._slower = 1.0
        self._refused = 0

    def states(self, start: NumPyArray) -> Iterator[State]:
        """Yield a state for each snapshot of a run."""
        dtype = np.dtype(np.float64 if self._needs_float64() else np.float32)
        while True:
            data = _Data(self._whole, self._order, dtype)
            if start[:-1].any() or self._whole.moments is not None:
                point = data.at(start)
            else:
                point = data.constant(start)
            self._whole = replace(self._whole, moments=data.objective.moments)
            for state in self._states(data, point):
                start = state.snapshot.theta
                yield state
            if dtype == np.float64:
                return
            # float32 has no more digits to give.
            dtype = np.dtype(np.float64)

    def _states(self, data: _Data, point: Point) -> Iterator[State]:
        """Yield a state for each snapshot in one arithmetic, until nothing leads lower."""
        remainder = Remainder(self._settings.tol, self._null)
        choice = Choice(self._settings.metric, data.scaling())
        kind = choice.kind
        snapshot = data.snapshot(point)
        last: list[Direction] = []
        due = True
        for count in range(10**9):
            left = remainder.at(data.objective, snapshot)
            yield State(data.objective, snapshot, left, data.objective.passes)
            if due or choice.kind != kind or count & (count - 1) == 0:
                frame, numbers = self._measured(data, snapshot, choice.kind)
                kind, due = choice.kind, False
            moved = data.epoch(point, snapshot, frame, numbers, self._rng)
            directions = [moved, *last]
            slopes = data.slopes(snapshot, directions)
            new, lengths = minimise(data.setting, point, slopes, directions)
            if not new.objective < point.objective:
                if self._slower >= _MOST_SLOWER or not last:
                    return
                self._slower *= 4
                last, due = [], True
                continue
            gain = point.objective - new.objective
            self._pace(float(lengths[0]))
            due = due or self._refused == 2
            if not self._refused:
                remainder.add(gain)
            choice.add(gain)
            last = [combined(lengths, directions, data.setting.intercept), *last][: _DIRECTIONS - 1]
            point = data.checked(new)
            snapshot = data.snapshot(point)
            if data.dtype == np.float32 and gain <= _WAVERS * abs(point.objective):
                left = remainder.at(data.objective, snapshot)
                yield State(data.objective, snapshot, left, data.objective.passes)
                return

    def _pace(self, taken: float) -> None:
        """Take how much of an epoch's displacement was good."""
        self._refused = self._refused % 2 + 1 if taken < _TOO_FAR else 0
        if self._refused == 2:
            self._slower = min(2 * self._slower, _MOST_SLOWER)

    def _needs_float64(self) -> bool:
        """Whether float32 has too few digits for what is asked, or for the features."""
        rows, scaling = self._whole.rows, self._whole.scaling
        return (
            self._settings.is_precise
            or not fits_float32(rows, scaling)
            or has_offsets(rows, scaling)
        )

    def _measured(self, data: _Data, snapshot: Snapshot, kind: str) -> tuple[Frame, Constants]:
        """Return the frame and the constants of the next epochs."""
        objective = data.objective
        many = objective.loss.outputs > 1
        count = min(objective.n, _MEASURED_ROWS_OF_MANY if many else _MEASURED_ROWS)
        objective.reads.rows += count
        measure = data.measure(snapshot, count)
        penalty = objective.penalty[:-1]
        frame = measure.frame(objective.intercept, penalty, kind == "diagonal")
        smoothness = measure.smoothness(frame, penalty, snapshot.gradient)
        of_a_row = measure.largest_of_a_row(frame)
        return frame, constants(objective.n, smoothness, of_a_row, self._slower, data.least_batch)


def constants(
    n: int, smoothness: float, of_a_row: float, slower: float = 1.0, least: int = _LEAST_BATCH
) -> Constants:
    """Return the constants of an epoch over `n` sparse rows: see `linear.constants`.

    Batches are larger than those of dense rows: a step costs p numbers, and not b p. They are
    powers of two, so that they are cut once.
    """
    smoothness = max(_MARGIN * smoothness, 1e-300)
    of_a_row = max(of_a_row, smoothness)
    wanted = _NOISE * of_a_row / smoothness
    wanted = 2 ** round(math.log2(max(least, min(wanted, _MOST_BATCH))))
    batch = min(n, max(_LEAST_BATCH, min(wanted, n // _LEAST_STEPS)))
    steps = max(1, round(n / batch))
    root = 1 / (2 * steps)
    return Constants(
        smoothness=smoothness,
        of_a_row=of_a_row,
        batch=batch,
        steps=steps,
        step_size=1 / (slower * expected_smoothness(n, batch, smoothness, of_a_row)),
        momentum=(1 - root) / (1 + root),
    )


class _Data:
    """Shuffled rows of one dtype, with their batches, and the passes over them."""

    def __init__(self, objective: Objective, order: NumPyArray, dtype: np.dtype[Any]) -> None:
        rows = objective.rows
        assert isinstance(rows, CsrRows)
        self.dtype = dtype
        moved = reordered(rows, order, dtype, objective.scaling)
        self.objective = replace(
            objective,
            rows=moved,
            target=objective.target[order],
            share=objective.share[order],
            order=order,
            probability=None,
        )
        self._batches: dict[int, list[list[Batch]]] = {}
        stored = max(1, moved.numbers)
        least = 2 if stored >= _NUMBERS_OF_TWO * rows.shape[1] else 1
        count = max(least, -(-objective.n // _SUMMED_ROWS))
        ends = np.linspace(0, objective.n, count + 1).astype(int).tolist()
        self._parts = list(starmap(slice, pairwise(ends)))
        # With as many numbers as columns: a step costs some products of p numbers besides.
        self.least_batch = int(
            min(_MOST_BATCH, max(_LEAST_BATCH, rows.shape[1] * rows.shape[0] / stored))
        )
        share = self.objective.share
        self.setting = Setting(
            objective.loss,
            self.objective.target,
            share,
            objective.penalty,
            objective.intercept,
        )

    def at(self, theta: NumPyArray) -> Point:
        """Return the point of theta."""
        return self.setting.at(theta, self._scores(theta))

    def checked(self, point: Point) -> Point:
        """Return a point, with scores taken anew if some of them are not those of its weights."""
        rows = slice(0, min(self.objective.n, _CHECKED_ROWS))
        weights = np.ascontiguousarray(point.theta[:-1], self.dtype)
        scores = self.objective.rows.block(rows) @ weights
        scores += np.asarray(point.theta[-1], self.dtype)
        drift = np.abs(scores - point.scores[rows]).max(initial=0)
        size = max(1.0, float(np.abs(scores).max(initial=0)))
        return point if drift <= _DRIFT[self.dtype] * size else self.at(point.theta)

    def constant(self, theta: NumPyArray) -> Point:
        """Return the point of theta without weights."""
        scores = np.empty((self.objective.n, *theta.shape[1:]), self.dtype)
        scores[...] = theta[-1]
        return self.setting.at(theta, scores)

    def slopes(self, snapshot: Snapshot, directions: list[Direction]) -> NumPyArray:
        """Return the derivatives along the directions, and those of the intercepts."""
        along = [float(np.vdot(snapshot.gradient, each.theta)) for each in directions]
        return (
            np.append(along, snapshot.gradient[-1]) if self.setting.intercept else np.array(along)
        )

    def _scores(self, theta: NumPyArray) -> NumPyArray:
        objective = self.objective
        weights = np.ascontiguousarray(theta[:-1], self.dtype)
        scores = np.empty((objective.n, *theta.shape[1:]), self.dtype)
        bias = np.asarray(theta[-1], self.dtype)

        def fill(part: slice) -> None:
            np.add(objective.rows.block(part) @ weights, bias, out=scores[part])

        for _ in objective.workers.map(fill, self._parts):
            pass
        return scores

    def _products(self, columns: NumPyArray) -> NumPyArray:
        """Return the products of the features with numbers of each row, in float64."""
        objective = self.objective

        def product(part: slice) -> NumPyArray:
            return np.asarray(transposed(objective.rows.block(part)) @ columns[part])

        total = np.zeros((objective.rows.shape[1], *columns.shape[1:]))
        for of_part in objective.workers.map(product, self._parts):
            total += of_part
        return total

    def snapshot(self, point: Point) -> Snapshot:
        """Return the snapshot at a point: half a pass, the other half were its scores."""
        objective = self.objective
        if objective.moments is None:
            self._take_moments(point.theta.shape)
        share = objective.share.astype(self.dtype)
        weighted = point.residual * (share if point.residual.ndim == 1 else share[:, None])
        gradient = objective.used(point.theta) * point.theta
        gradient[:-1] += self._products(weighted)
        if objective.intercept:
            gradient[-1] += weighted.sum(axis=0, dtype=np.float64)
        objective.reads.rows += objective.n
        return Snapshot(point.theta, point.objective, gradient, point.scores)

    def _take_moments(self, shape: tuple[int, ...]) -> None:
        objective = self.objective
        share, target = objective.share, objective.target
        columns = np.zeros((objective.n, 1 + objective.loss.outputs), self.dtype)
        columns[:, 0] = share
        if objective.loss.outputs == 1:
            columns[:, 1] = share * target
        else:
            columns[np.arange(objective.n), 1 + target] = share
        products = self._products(columns)
        objective.moments = products[:, 0], products[:, 1:].reshape(shape[0] - 1, *shape[1:])

    def epoch(
        self,
        point: Point,
        snapshot: Snapshot,
        frame: Frame,
        numbers: Constants,
        rng: np.random.Generator,
    ) -> Direction:
        """Return the displacement of an epoch from a snapshot, with its scores."""
        objective = self.objective
        batches = self._cut(numbers.steps)
        theta = run_epoch(
            objective.loss,
            [batches[k] for k in rng.permutation(len(batches))],
            Start(point.scores, point.residual, snapshot.gradient),
            frame,
            objective.penalty[:-1],
            numbers,
            objective.workers,
        )
        objective.reads.rows += objective.n
        return Direction(theta, self._scores(theta))

    def _cut(self, steps: int) -> list[list[Batch]]:
        """Return the rows cut into as many batches, each in one part or two."""
        if steps not in self._batches:
            self._batches.clear()
            ends = np.linspace(0, self.objective.n, steps + 1).astype(int).tolist()
            batches = []
            for first, end in pairwise(ends):
                batch = [self._batch(first, end, end - first)]
                if batch[0].pays_two:
                    middle = (first + end) // 2
                    cuts = [(first, middle), (middle, end)]
                    batch = [self._batch(*rows, end - first) for rows in cuts]
                batches.append(batch)
            self._batches[steps] = batches
        return self._batches[steps]

    def _batch(self, first: int, end: int, size: int) -> Batch:
        """Return rows of a batch of `size`."""
        objective, rows = self.objective, slice(first, end)
        matrix = objective.rows.block(rows)
        weight = (objective.share[rows] * (objective.n / size)).astype(self.dtype)
        target = objective.targets(rows, self.dtype)
        return Batch(rows, matrix, transposed(matrix), target, weight)

    def scaling(self) -> Scaling:
        """Return the scales of the features, of the first rows: 0 where they have none."""
        rows = self.objective.rows
        block: Any = rows.block(slice(0, min(rows.shape[0], _MEASURED_ROWS)))
        p = rows.shape[1]
        square = np.bincount(block.indices, np.square(block.data, dtype=np.float64), p)
        inverse = np.zeros(p)
        inverse[square > 0] = 1 / np.sqrt(square[square > 0])
        return Scaling(np.zeros(p), inverse)

    def measure(self, snapshot: Snapshot, count: int) -> Measure:
        """Return the measure of the first rows at a snapshot."""
        objective, part = self.objective, slice(0, count)
        weight = (objective.share[part] * objective.n).astype(self.dtype)
        matrix = objective.rows.block(part)
        target = objective.targets(part, self.dtype)
        return Measure(objective.loss, matrix, target, weight, snapshot.scores[part])
