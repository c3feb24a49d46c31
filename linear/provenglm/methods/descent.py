r"""Proximal Newton with coordinate descent: penalties with corners.

From a snapshot with gradient g a step goes to where a quadratic model with the penalty,

.. math:: g^T (t - \theta) + \frac12 (t - \theta)^T H (t - \theta) + \sum_j \mu_j |t_j|,

is least (Lee, Sun & Saunders 2014), or as far towards it as the objective falls. At the optimum
most features have the coefficient 0, and their gradients are within the penalty. So a step is taken
on a set of features: those with coefficients and, as many again, those whose gradients are furthest
beyond the penalty (Johnson & Guestrin 2015; Massias, Gramfort & Salmon 2018). The certificate is
that of all features.

Coordinate descent finds the signs of the coefficients, and which are 0; what is left is a linear
system over the others. Where H is a matrix, that system is factored. It is the Hessian of all rows,
or, of many rows, of a sample; as long as steps gain enough it stays, and what they tell goes into
it (BFGS: Nocedal & Wright 2006, equation 6.19). Of sparse rows, and of more features than a matrix
can have, H is never made: coordinate descent follows what each step does to the scores (as in
LIBLINEAR's newGLMNET: Yuan, Ho & Lin 2012), and conjugate gradients solve the system.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import NamedTuple

import numpy as np
from scipy.linalg.blas import dsyrk

from provenglm import constants
from provenglm.methods.descent_columns import (
    Arrays,
    ColumnPass,
    Columns,
    OfClasses,
    OfOneOutput,
    kernels,
    of_dense,
    of_one_output,
    of_sparse,
)
from provenglm.methods.factor import Factor
from provenglm.methods.state import State
from provenglm.model.budget import columns_of_a_copy
from provenglm.model.kept_products import KeptProducts
from provenglm.model.losses import SecondDerivative, SecondDerivativeOfClasses
from provenglm.model.objective import Objective, Reads, Scaling, Snapshot, of_rows
from provenglm.model.sample import Sample
from provenglm.proof.duality import duality_gap, known_bound
from provenglm.rows.dense import DenseRows
from provenglm.types import NumPyArray
from provenglm.workers import Workers

_ROUNDING = 1e-12
"""Of the objective: where a step promises less, no difference of it is looked at."""


_LEFT_OF_AN_EXACT_STEP = 1e-28
"""`LAST_SWEEP` where the signs have to be those of the optimum."""

_CLOSE = 0.95
"""Of the penalty: gradients above it are close. With it, or with 0.9, a lasso of 1,000 x 5,000 took
0.9 of the time, and 500 x 20,000 0.83."""

_ROUNDING_OF_A_SQUARE = 1e-13
"""Of the sum of the terms on the diagonal: a product of a step with the Hessian has no more digits.
A shift of all classes is such a step."""

_SINGULAR = 1e-12
"""Of the intercepts' Hessian: the loss of classes does not see a shift of all of them."""


class Step(NamedTuple):
    """To the least value of a quadratic model.

    Attributes
    ----------
    to : numpy.ndarray, theta's shape
    fall : float
        What the model falls by.
    slope : float
        What the objective falls by at first, on the way, for a step of length 1.
    """

    to: NumPyArray
    fall: float
    slope: float


class Descent:
    """A run on one objective.

    Parameters
    ----------
    objective : Objective
    sample : Sample, optional
        Whose Hessian is taken; without, that of all rows.
    arrays : tuple of numpy.ndarray, optional
        All columns of sparse rows with one output.
    """

    def __init__(
        self, objective: Objective, sample: Sample | None, arrays: Arrays | None = None
    ) -> None:
        if sample is None:
            objective = replace(objective, rows=objective.rows.precise())
        assert objective.l1 is not None
        self._objective = objective
        self._sample = sample
        self._l1: NumPyArray = objective.l1
        self._caution = 0.0
        self._chosen = np.zeros(0, np.intp)
        self._grew = False
        self._arrays = arrays
        self._pass: ColumnPass | Objective = objective
        if arrays is not None:
            self._pass = ColumnPass(objective, arrays)
        self._hessian: NumPyArray | None = None
        self._curvature: NumPyArray = np.zeros(0)

    @classmethod
    def of_a_sample(
        cls, objective: Objective, sample: Sample, start: NumPyArray, _: np.random.Generator
    ) -> Iterator[State]:
        """Yield a state for each snapshot of a run, in the metric of a sample's Hessian."""
        return cls(objective, sample).states(start)

    @classmethod
    def of_all_rows(
        cls, objective: Objective, _: Sample, start: NumPyArray, __: np.random.Generator
    ) -> Iterator[State]:
        """Yield a state for each snapshot of a run, with Hessians of all rows."""
        if not objective.rows.is_sparse or objective.loss.outputs > 1:
            return cls(objective, None).states(start)
        small, arrays, kept = of_one_output(objective)

        def back(theta: NumPyArray) -> NumPyArray:
            whole = np.zeros(start.shape)
            whole[kept] = theta
            return whole

        states = cls(small, None, arrays).states(start[kept])
        return (replace(state, back=back) for state in states)

    def states(self, start: NumPyArray) -> Iterator[State]:
        """Yield a state for each snapshot, and end where no step leads lower."""
        snapshot, last = self._first(start), np.inf
        gap = self._gap_of_start(snapshot)
        while True:
            if self._sample is None:
                # The proof is near the truth here, and there is no better estimate.
                passes = self._objective.passes
                yield State(self._objective, snapshot, gap, passes, gap=gap, is_cheap=True)
            step = self._step(snapshot, last)
            last = step.fall
            if self._sample is not None:
                yield State(self._objective, snapshot, last, self._objective.passes, gap=gap)
            new = self._after(snapshot, step)
            if new is None and self._hessian is not None:
                # Once more without what the steps so far have told.
                self._hessian = None
                step = self._step(snapshot, last)
                new = self._after(snapshot, step)
            of_new = np.inf if new is None else duality_gap(self._objective, new)
            if new is None or not (new.objective < snapshot.objective or of_new < gap):
                if self._objective.rows.dtype == np.float64:
                    passes, is_cheap = self._objective.passes, self._sample is None
                    yield State(self._objective, snapshot, last, passes, gap=gap, is_cheap=is_cheap)
                    return
                # float32 has no more digits to give.
                self._objective = replace(self._objective, rows=self._objective.rows.precise())
                self._pass = self._objective
                new = self._pass.snapshot(snapshot.theta)
                of_new = duality_gap(self._objective, new)
            elif self._hessian is not None:
                self._learn(new.theta - snapshot.theta, new.gradient - snapshot.gradient)
            snapshot, gap = new, of_new

    def _first(self, start: NumPyArray) -> Snapshot:
        """Return the first snapshot: near the sample's optimum, or at a given start."""
        objective, sample = self._objective, self._sample
        snapshot = self._snapshot(start)
        if sample is None or start[:-1].any() or len(sample.rows) == objective.n:
            return snapshot
        of_sample = replace(
            objective,
            rows=DenseRows(sample.rows[:, :-1]),
            target=sample.target,
            share=sample.share,
            offset=sample.offset,
            scaling=Scaling(np.zeros(len(start) - 1), 1.0 * (objective.scaling.inverse > 0)),
            reads=Reads(),
            products=KeptProducts(),
            centered=False,
            is_long=False,
            moments=None,
            squares=None,
        )
        theta = start
        for state in islice(Descent(of_sample, sample).states(start), constants.MOST_STEPS + 1):
            theta = state.theta
            # A step over all rows goes further than the sample's own error, p / 2n of the loss.
            error = snapshot.objective * theta.size / len(sample.rows)
            if state.decrement <= constants.ERROR_OF_A_START * error:
                break
        new = objective.snapshot(theta)
        return new if new.objective < snapshot.objective else snapshot

    def _gap_of_start(self, snapshot: Snapshot) -> float:
        gradient = snapshot.gradient[:-1]
        is_far = np.abs(gradient) > 2 * of_rows(self._l1[:-1], gradient)
        if self._sample is None and is_far.any() and not snapshot.theta[:-1].any():
            # A bound that is proven without a look at the rows is as good as any here.
            return known_bound(self._objective, snapshot)
        return duality_gap(self._objective, snapshot)

    # The step.

    def _step(self, snapshot: Snapshot, last: float) -> Step:
        chosen = self._choose(snapshot)
        if self._keeps_products(chosen):
            return self._by_products(snapshot, chosen)
        if not np.array_equal(chosen, self._chosen):
            self._chosen, self._hessian = chosen, None
        if self._keeps_columns():
            return self._by_columns(snapshot)
        if self._hessian is None:
            self._measure(snapshot)
            return self._by_matrix(snapshot)
        step = self._by_matrix(snapshot)
        if step.fall > constants.CHANGED * last and self._has_changed(snapshot):
            self._measure(snapshot)
            step = self._by_matrix(snapshot)
        return step

    def _keeps_columns(self) -> bool:
        if self._sample is not None:
            return False
        outputs = self._objective.loss.outputs
        is_sparse = self._objective.rows.is_sparse
        return is_sparse or (len(self._chosen) + 1) * outputs > constants.MOST_WEIGHTS

    def _second_derivative(self, snapshot: Snapshot) -> SecondDerivative:
        """Return that of the rows whose Hessian is taken."""
        sample, objective = self._sample, self._objective
        if sample is None:
            scores, target = snapshot.scores, objective.target
        else:
            scores, target = sample.scores(snapshot.theta), sample.target
        return objective.loss.second_derivative(scores, target, self._caution)

    def _measure(self, snapshot: Snapshot) -> None:
        sample, objective = self._sample, self._objective
        curvature = self._second_derivative(snapshot)
        self._curvature = curvature.diagonal
        if sample is not None:
            objective.reads.rows += len(sample.rows)
            self._hessian = sample.hessian_of(curvature)
        else:
            self._hessian = _hessian(objective, self._chosen, curvature)

    def _keeps_products(self, chosen: NumPyArray) -> bool:
        """Whether columns and products are made once: where the set of features changes."""
        objective, used = self._objective, self._objective.scaling.inverse > 0
        if self._sample is not None or not self._has_columns():
            return False
        changes = len(used) > constants.ALL_FEATURES or len(chosen) < used.sum()
        count = objective.products.columns.count_with(chosen)
        fits = objective.n * count <= constants.KEPT_NUMBERS
        return changes and fits and len(chosen) < constants.MOST_WEIGHTS

    def _has_columns(self) -> bool:
        """Whether the Hessian is the same everywhere, and columns may be copied."""
        objective = self._objective
        is_in_memory = not objective.rows.is_sparse and objective.room is None
        return objective.loss.is_quadratic and is_in_memory

    def _by_products(self, snapshot: Snapshot, chosen: NumPyArray) -> Step:
        """Return the step of a squared loss, the intercept at its best all along.

        As long as many features join, sweeps over the columns are enough; products of columns are
        made for the last steps alone.
        """
        objective, products = self._objective, self._objective.products
        if self._grew:
            places = products.columns.join(objective, chosen)
        else:
            places = products.join(objective, chosen)
            chosen = products.features
        mean, excess = products.columns.mean[places], float(snapshot.gradient[-1])
        before, l1, l2 = snapshot.theta[chosen], self._l1[chosen], objective.penalty[chosen]
        gradient = snapshot.gradient[chosen] - mean * excess
        if self._grew:
            theta = before.copy()
            square = kernels().descend_columns(
                products.columns.values,
                places,
                theta,
                gradient - l2 * before,
                l1,
                l2,
                products.columns.square[places] + l2,
                objective.share,
                constants.MOST_STEPS,
                constants.ROUND,
                constants.LAST_SWEEP_OF_MANY,
            )
            change = theta - before
            square += float(l2 @ np.square(change))
        else:
            hessian = products.hessian(l2)
            theta = minimise(hessian, gradient, before, l1, factor=products.factor)
            change = theta - before
            square = float(change @ (hessian[: len(change), : len(change)] @ change))
        to = np.zeros_like(snapshot.theta)
        to[chosen], to[-1] = theta, snapshot.theta[-1] - excess - mean @ change
        slope = float(gradient @ change + l1 @ (np.abs(theta) - np.abs(before))) - excess**2
        return Step(to, max(0.0, -slope - 0.5 * (square + excess**2)), -slope)

    def _has_changed(self, snapshot: Snapshot) -> bool:
        """Whether the curvature is another than that of the matrix."""
        share = self._objective.share if self._sample is None else self._sample.share
        curvature = self._second_derivative(snapshot).diagonal
        change = float((share @ np.abs(curvature - self._curvature)).sum())
        return change > constants.CHANGED * float((share @ self._curvature).sum())

    def _by_matrix(self, snapshot: Snapshot) -> Step:
        assert self._hessian is not None
        kept = np.append(self._chosen, len(self._l1) - 1)
        theta, gradient = snapshot.theta[kept], snapshot.gradient[kept].ravel()
        l1 = of_rows(self._l1[kept], theta).ravel()
        change = least(
            self._hessian, theta.ravel(), gradient, l1, snapshot.theta[-1].size, not self._grew
        )
        slope = float(gradient @ change)
        new = theta.ravel() + change
        slope += float(l1 @ (np.abs(new) - np.abs(theta.ravel())))
        square = float(change @ (self._hessian @ change))
        to = np.zeros_like(snapshot.theta)
        to[kept] = new.reshape(theta.shape)
        return Step(to, max(0.0, -slope - 0.5 * square), -slope)

    def _learn(self, change: NumPyArray, of_gradient: NumPyArray) -> None:
        """Make the matrix give, along a step, what the gradient has changed by."""
        assert self._hessian is not None
        if self._sample is None and self._objective.loss.is_quadratic:
            return
        kept = np.append(self._chosen, len(self._l1) - 1)
        change, of_gradient = change[kept].ravel(), of_gradient[kept].ravel()
        product = float(change @ of_gradient)
        image = self._hessian @ change
        expected = float(change @ image)
        rounding = _ROUNDING_OF_A_SQUARE * float(self._hessian.diagonal() @ np.square(change))
        if expected > rounding and product > 1e-3 * expected:
            self._hessian -= np.multiply.outer(image, image / expected)
            self._hessian += np.multiply.outer(of_gradient, of_gradient / product)

    def _by_columns(self, snapshot: Snapshot) -> Step:
        objective, chosen = self._objective, self._chosen
        if objective.rows.is_sparse:
            if self._arrays is None:
                self._arrays = of_sparse(objective)
            center = objective.scaling.center[chosen] * objective.scaling.inverse[chosen]
            columns = Columns(self._arrays, chosen.astype(np.uint64), center)
        else:
            columns = of_dense(objective, chosen)
        before, gradient = snapshot.theta[chosen], snapshot.gradient[chosen]
        penalties = self._l1[chosen], objective.penalty[chosen]
        model: OfOneOutput | OfClasses
        if objective.loss.outputs == 1:
            model = OfOneOutput(objective, columns, snapshot, before, *penalties, self._caution)
        else:
            model = OfClasses(
                objective, columns, snapshot, before, gradient, *penalties, self._caution
            )
        t, shift, fall, slope = model.solve()
        to = np.zeros_like(snapshot.theta)
        to[chosen], to[-1] = t, snapshot.theta[-1]
        if objective.intercept:
            # Of features that are centred.
            to[-1] += shift + columns.center @ (t - before)
        return Step(to, max(0.0, fall), -slope)

    # How far to go.

    def _after(self, snapshot: Snapshot, step: Step) -> Snapshot | None:
        """Return the snapshot after a step, or after as much of it as leads lower; else None."""
        with np.errstate(over="ignore", invalid="ignore"):
            new = self._snapshot(step.to)
        if np.isnan(new.objective):
            return None  # so long that scores overflow: only rounding had a curvature along it
        change = step.to - snapshot.theta
        if step.slope <= _ROUNDING * abs(snapshot.objective):
            # Too little for the objective to show, but not for the proof.
            return new
        is_lower = new.objective < snapshot.objective
        length = 1.0
        if not (
            is_lower
            and self._slope(new.gradient, new.theta, change) <= constants.SLOPE * step.slope
        ):
            length = self._length(snapshot, new, step)
            if length < 1:
                shorter = self._snapshot(snapshot.theta + length * change)
                if not shorter.objective < snapshot.objective:
                    return None
                new = shorter
        if length < constants.SHORT:
            self._caution = min(max(2 * self._caution, constants.FIRST_CAUTION), 0.5)
        elif length > 1 - constants.SHORT:
            self._caution = self._caution / 4 if self._caution >= constants.FIRST_CAUTION else 0.0
        return new

    def _snapshot(self, theta: NumPyArray) -> Snapshot:
        objective = self._objective
        scores = objective.products.columns.scores(theta)
        if scores is None and self._has_columns() and not theta[:-1].any():
            scores = np.full(objective.n, theta[-1])
        if scores is None:
            return self._pass.snapshot(theta)
        if objective.offset is not None:
            scores += objective.offset
        return objective.at_scores(theta, scores)

    def _slope(self, gradient: NumPyArray, theta: NumPyArray, change: NumPyArray) -> float:
        """Return the slope of the objective at theta, just before it."""
        # Most features do not move.
        moves = np.nonzero(change)
        l1, theta, change = self._l1[moves[0]], theta[moves], change[moves]
        sign = np.where(theta == 0, -np.sign(change), np.sign(theta))
        return float(gradient[moves] @ change + (l1 * sign) @ change)

    def _length(self, snapshot: Snapshot, whole: Snapshot, step: Step) -> float:
        """Return about which part of a step leads to the least along it, by the scores alone."""
        objective, change = self._objective, whole.theta - snapshot.theta
        l1, penalty = of_rows(self._l1, change), objective.used(change)
        low, high = (0.0, -step.slope), (1.0, np.inf)
        if whole.objective < np.inf:
            high = 1.0, self._slope(whole.gradient, whole.theta, change)
        length, is_lower = 0.0, whole.objective < snapshot.objective
        for _ in range(constants.MOST_STEPS):
            (start, falls), (end, rises) = low, high
            if rises == np.inf:
                length = start + 0.1 * (end - start)
            elif rises <= falls:
                return 1.0
            else:
                part = float(np.clip(falls / (falls - rises), 0.05, 0.95))
                length = start + (end - start) * (part if is_lower else min(part, 0.1))
            theta = snapshot.theta + length * change
            value = objective.mean(partial(self._along, snapshot, whole, length, False))
            value += float((l1 * np.abs(theta) + 0.5 * penalty * theta * theta).sum())
            slope = objective.mean(partial(self._along, snapshot, whole, length, True))
            slope += float(((penalty * theta + l1 * np.sign(theta)) * change).sum())
            is_lower = value < snapshot.objective
            if abs(slope) <= constants.SLOPE * step.slope and is_lower:
                return length
            if slope < 0:
                low = length, slope
            else:
                high = length, slope
        return length

    def _along(
        self, snapshot: Snapshot, whole: Snapshot, length: float, slopes: bool, part: slice
    ) -> NumPyArray:
        """Return the losses of some rows on the way between two snapshots, or their slopes."""
        along = whole.scores[part] - snapshot.scores[part]
        scores = snapshot.scores[part] + along.dtype.type(length) * along
        target = self._objective.target[part]
        if not slopes:
            return self._objective.loss.value(scores, target)
        product = self._objective.loss.residual(scores, target) * along
        return product if product.ndim == 1 else np.asarray(product.sum(axis=1))

    # The set.

    def _choose(self, snapshot: Snapshot) -> NumPyArray:
        """Return the features with coefficients, and the worst of the others: sorted indices.

        Raises
        ------
        ValueError
            If of rows on disk there is no room for a copy of them.
        """
        objective = self._objective
        used = objective.scaling.inverse > 0
        outputs = objective.loss.outputs
        if self._sample is not None:
            # Its Hessian has all of them; the penalty keeps those that are not used at 0.
            return np.arange(len(used))
        width = int(used.sum())
        are_few = width <= constants.ALL_FEATURES
        are_few = are_few and outputs * (1 + width) <= constants.MOST_WEIGHTS
        if are_few and not self._tries_some(width):
            return np.flatnonzero(used)
        theta, gradient = snapshot.theta[:-1], snapshot.gradient[:-1]
        excess = np.maximum(np.abs(gradient) - of_rows(self._l1[:-1], theta), 0)
        there = theta != 0
        if theta.ndim > 1:
            excess, there = excess.max(axis=1), there.any(axis=1)
        count = int(there.sum())
        others = np.flatnonzero((excess > 0) & ~there)
        has_tried = len(objective.products.features) > 0
        if are_few and has_tried and len(others) > width / 2:
            return np.flatnonzero(used)
        left = columns_of_a_copy(objective.room, objective.n, outputs) - 1
        left = max(left, constants.MOST_WEIGHTS // outputs - 1) - count
        if left < min(1, len(others)):
            raise ValueError(_no_room(objective, count))
        least = constants.FEW_JOINING if are_few else constants.LEAST_JOINING
        many = int(min(max(least, count), left, len(others)))
        self._grew = not are_few and (many < len(others) or many > 0.1 * count)
        if self._has_columns() and 0 < len(others) < least and not are_few:
            # What is close to the penalty is often beyond it after the step: to take it at once
            # saves a pass.
            size = np.abs(gradient)
            others = np.flatnonzero((size > _CLOSE * self._l1[:-1]) & ~there)
            excess, many = size - self._l1[:-1], int(min(least, left, len(others)))
        if many < len(others):
            others = others[np.argpartition(-excess[others], many)[:many]]
        return np.union1d(np.flatnonzero(there), others)

    def _tries_some(self, width: int) -> bool:
        """Whether the Hessian of all features costs so much that a few are tried first."""
        objective = self._objective
        work = float(objective.n) * width * width
        is_dear = width > constants.LEAST_JOINING and work > constants.SMALL_HESSIAN
        return is_dear and self._has_columns() and objective.products.hessian_of is None


def _no_room(objective: Objective, count: int) -> str:
    """Return what to say where rows on disk have more features that matter than fit."""
    assert objective.room is not None
    n, p = objective.rows.shape
    return (
        f"{count:,} of {p:,} features have coefficients so far, and for a copy of them and others "
        f"in float64, of {8 * n / 1e6:,.1f} MB each, the limit on memory leaves "
        f"{objective.room / 1e6:,.1f} MB: give Chunks a higher memory_limit, or more penalty"
    )


def groups_of_blocks(objective: Objective) -> list[list[slice]]:
    """Return the blocks of a pass, several at a time: BLAS is slow on few rows."""
    groups: list[list[slice]] = [[]]
    for part in objective.rows.slices():
        if groups[-1] and part.stop - groups[-1][0].start > constants.BLOCK_ROWS:
            groups.append([])
        groups[-1].append(part)
    return groups


def centred_rows(
    objective: Objective, blocks: list[slice], chosen: NumPyArray, out: NumPyArray
) -> None:
    """Write some features of some blocks to `out`, in theta's coordinates."""
    center, inverse = objective.scaling.center[chosen], objective.scaling.inverse[chosen]
    takes_all = len(chosen) == len(objective.scaling.center)
    for part in blocks:
        features = out[part.start - blocks[0].start : part.stop - blocks[0].start]
        block = objective.rows.block(part)
        np.subtract(block if takes_all else block[:, chosen], center, out=features)
        features *= inverse


def _hessian(objective: Objective, chosen: NumPyArray, curvature: SecondDerivative) -> NumPyArray:
    """Return the Hessian over some features of all rows, and the intercept, of theta raveled."""
    known = objective.products.hessian_of
    if known is None or not np.array_equal(known[0], chosen):
        known = chosen, _of_losses(objective, chosen, curvature)
        if objective.loss.is_quadratic:
            objective.products.hessian_of = known
    hessian = known[1].copy()
    penalty = objective.penalty[np.append(chosen, len(objective.penalty) - 1)]
    hessian.ravel()[:: len(hessian) + 1] += np.repeat(penalty, objective.loss.outputs)
    return hessian


def _of_losses(objective: Objective, chosen: NumPyArray, curvature: SecondDerivative) -> NumPyArray:
    """Return the same without the penalty: one pass."""
    of_group = partial(_upper_of_rows, objective, chosen, curvature)
    has_classes = isinstance(curvature, SecondDerivativeOfClasses)
    if has_classes:
        of_group = partial(_of_classes, objective, chosen, curvature)
    total: NumPyArray | None = None
    for each in objective.workers.map(of_group, groups_of_blocks(objective), together=1):
        total = each if total is None else np.add(total, each, out=total)
    assert total is not None
    objective.reads.rows += objective.n
    if has_classes:
        return total
    total += np.triu(total, 1).T
    if not objective.intercept:
        total[-1] = total[:, -1] = 0
    return total


def _upper_of_rows(
    objective: Objective, chosen: NumPyArray, curvature: SecondDerivative, group: list[slice]
) -> NumPyArray:
    """Return the upper triangle of what some blocks add to a Hessian.

    Block by block: a core's cache holds what is centred until it is multiplied.
    """
    count = len(chosen)
    products = np.zeros((count, count), order="F")
    total = np.zeros((count + 1, count + 1))
    changes = np.empty((max(part.stop - part.start for part in group), count))
    for part in group:
        weight = objective.share[part] * curvature.diagonal[part]
        change = changes[: len(weight)]
        centred_rows(objective, [part], chosen, change)
        total[:-1, -1] += weight @ change
        total[-1, -1] += weight.sum()
        of_all = weight[0]
        if (weight != of_all).any():
            change *= np.sqrt(weight)[:, None]
            of_all = 1.0
        if count:
            products = dsyrk(of_all, change.T, beta=1.0, c=products, overwrite_c=True)
    total[:-1, :-1] = products
    return total


def _of_classes(
    objective: Objective, chosen: NumPyArray, curvature: SecondDerivative, group: list[slice]
) -> NumPyArray:
    whole = slice(group[0].start, group[-1].stop)
    taken = np.empty((whole.stop - whole.start, len(chosen) + 1))
    centred_rows(objective, group, chosen, taken[:, :-1])
    taken[:, -1] = objective.intercept
    share, penalty = np.ascontiguousarray(objective.share[whole]), np.zeros(taken.shape[1])
    target = objective.target[whole]
    sample = Sample(taken, target, share, objective.loss, penalty, Workers(0))
    return sample.hessian_of(curvature.part(whole))


def least(
    hessian: NumPyArray,
    start: NumPyArray,
    gradient: NumPyArray,
    l1: NumPyArray,
    outputs: int,
    is_exact: bool = True,
) -> NumPyArray:
    """Return the step to where a quadratic model is least; the last `outputs` are intercepts.

    For any others the best intercepts are known: these are eliminated.
    """
    m = len(start) - outputs
    beside = hessian[:m, m:]
    inverse = np.linalg.pinv(hessian[m:, m:], rcond=_SINGULAR, hermitian=True)
    of_intercepts = -inverse @ gradient[m:]
    reduced = hessian[:m, :m] - beside @ inverse @ beside.T
    of_others = gradient[:m] + beside @ of_intercepts
    change = minimise(reduced, of_others, start[:m], l1[:m], is_exact) - start[:m]
    return np.concatenate([change, of_intercepts - inverse @ (beside.T @ change)])


def minimise(
    hessian: NumPyArray,
    gradient: NumPyArray,
    start: NumPyArray,
    l1: NumPyArray,
    is_exact: bool = True,
    factor: Factor | None = None,
) -> NumPyArray:
    """Return where a quadratic model is least: sweeps find the signs, a system the numbers.

    Parameters
    ----------
    hessian : numpy.ndarray
        Of at least as many rows as `start`, which come first.
    gradient : numpy.ndarray
        At the start.
    is_exact : bool
        Else sweeps are enough.
    factor : Factor, optional
        Of the Hessian, from an earlier call.
    """
    t, gradient, most, is_solved = start.copy(), gradient.copy(), 0.0, False
    left = _LEFT_OF_AN_EXACT_STEP if is_exact else constants.LAST_SWEEP
    # Systems whose factor is kept are cheap: they are solved one after the other while signs turn.
    in_turn = 1 if factor is None else constants.ROUND
    factor = factor or Factor()
    for _ in range(constants.MOST_STEPS):
        most, is_least = kernels().descend_matrix(
            hessian,
            gradient,
            t,
            l1,
            constants.MOST_STEPS,
            constants.ROUND,
            left,
            most,
            is_solved,
        )
        if is_least or not is_exact:
            break
        for _ in range(in_turn):
            step, image, has_turned, is_regular = _to_the_system(
                hessian[: len(t), : len(t)], gradient, t, l1, factor
            )
            gradient += image
            t += step
            if not has_turned:
                break
        is_solved = is_regular and not has_turned
    return t


def _to_the_system(
    hessian: NumPyArray, gradient: NumPyArray, t: NumPyArray, l1: NumPyArray, factor: Factor
) -> tuple[NumPyArray, NumPyArray, bool, bool]:
    """Return a step towards the solution for the present signs.

    Returns
    -------
    step : numpy.ndarray, (m,)
    image : numpy.ndarray, (m,)
        The Hessian times the step.
    has_turned : bool
        Whether a coefficient becomes 0 on the way, and the solution is another then.
    is_regular : bool
        Whether the system has one solution.
    """
    # Rounding may leave a matrix that has learned from steps less than 0 on its diagonal.
    free = np.flatnonzero((t != 0) & (hessian.diagonal() > 0))
    sign = np.sign(t)
    slopes = np.zeros_like(t)
    slopes[free] = (gradient + l1 * sign)[free]
    wanted, is_regular = factor.solve(hessian, free, -slopes)
    turns = (t != 0) & ((t + wanted) * sign <= 0)
    # What would turn its sign becomes 0, and that is lower as a rule.
    step = np.where(turns, -t, wanted)
    image = hessian @ step
    fall = float(gradient @ step + 0.5 * step @ image)
    fall += float(l1 @ (np.abs(t + step) - np.abs(t)))
    if not turns.any() or fall < 0:
        return step, image, bool(turns.any()), is_regular
    # Else to the best of the places where a sign turns: the first of them leads lower.
    places = -t[turns] / wanted[turns]
    image = hessian @ wanted
    values = places * float(gradient @ wanted + (l1 * sign * wanted)[~turns].sum())
    values += 0.5 * np.square(places) * float(wanted @ image)
    sizes = np.abs(t[turns] + np.multiply.outer(places, wanted[turns]))
    values += (sizes - np.abs(t[turns])) @ l1[turns]
    best = int(np.argmin(values))
    step = places[best] * wanted
    step[np.flatnonzero(turns)[best]] = -t[turns][best]
    return step, hessian @ step, True, is_regular
