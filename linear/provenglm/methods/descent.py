r"""Proximal Newton with coordinate descent, for L1 penalties.

At a snapshot with gradient g, a step leads to the minimum of a quadratic model with the penalty,

.. math:: g^T (t - \theta) + \frac12 (t - \theta)^T H (t - \theta) + \sum_j \mu_j |t_j|

(Lee, Sun & Saunders 2014). A line search shortens the step if necessary. At the optimum most
features have the coefficient 0, and their gradients do not exceed the penalty. Each step therefore
uses a working set of features: those with nonzero coefficients, and as many again whose
gradients exceed the penalty most (Johnson & Guestrin 2015; Massias, Gramfort & Salmon 2018). The
certificate covers all features.

Coordinate descent finds the signs of the coefficients, and which of them are 0. A linear system
then gives the values of the others. If H is computed as a matrix, the system is solved by a factor.
H is kept while steps gain enough, and corrected by the change of the gradient along each step
(BFGS: Nocedal & Wright 2006, equation 6.19). For sparse rows, and for more features than a matrix
can have, H is never computed: coordinate descent tracks the change of the scores by each step (as
in LIBLINEAR's newGLMNET: Yuan, Ho & Lin 2012), and conjugate gradients solve the system. For
classes of dense rows in memory only the blocks of H of each class are computed: see
`softmax_descent`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from provenglm import constants
from provenglm.methods.base import Method, Step, Target
from provenglm.methods.curvature_shift import next_curvature_shift
from provenglm.methods.descent_columns import (
    Arrays,
    ByColumns,
    Columns,
    ScalarQuadratic,
    SoftmaxQuadratic,
    dense_columns,
    kernels,
    screened_columns,
    sparse_columns,
)
from provenglm.methods.factor import Factor
from provenglm.methods.kept_products import ByKeptColumns, KeptProducts
from provenglm.methods.matrix_descent import sweep_matrix
from provenglm.methods.softmax_descent import SoftmaxSteps
from provenglm.model.losses import Loss, SecondDerivative
from provenglm.model.objective import Objective, Scaling, Snapshot
from provenglm.model.sample import Sample
from provenglm.model.sampling import objective_of
from provenglm.rows.gram import gram, gram_of_block
from provenglm.rows.table import Block
from provenglm.types import NumPyArray

_EXACT_STEP_RESIDUAL = 1e-28
"""The limit that replaces `LAST_SWEEP` if the minimum of the model has to be exact."""

_CLOSE = 0.95
"""A feature may join the working set early if its gradient exceeds this fraction of the penalty.
With 0.95 or 0.9, a lasso of 1,000 x 5,000 took 0.9 of the time, and 500 x 20,000 took 0.83."""

_ROUNDING_OF_A_SQUARE = 1e-13
"""The squared norm of a step in the metric of the Hessian is only rounding if it is below this
fraction of the sum over the diagonal alone. A shift of all classes is such a step."""

_SINGULAR = 1e-12
"""Relative cutoff of the pseudo-inverse of the intercepts' Hessian. It is singular for several
classes: their loss does not change if all intercepts shift together."""


class Least(NamedTuple):
    """The minimum of a quadratic model with the penalty.

    Attributes
    ----------
    to : numpy.ndarray, theta's shape
    gain : float
        The decrease of the model on the way there.
    fall : float
        Minus the initial slope of the objective on the way there.
    """

    to: NumPyArray
    gain: float
    fall: float


class CoordinateDescent(Method):
    """Proximal Newton steps on a working set of features.

    Parameters
    ----------
    objective : Objective
        The objective, which has an L1 penalty.
    last : Method, optional
        The method of the previous point on a path. Its products of columns are reused.
    sample : Sample, optional
        The rows on which a start is computed.
    """

    name = "coordinate-descent"
    has_cheap_steps = True

    def __init__(
        self, objective: Objective, last: Method | None = None, sample: Sample | None = None
    ) -> None:
        super().__init__(objective.precise())
        self._sample = sample
        self._products = KeptProducts()
        if isinstance(last, CoordinateDescent):
            self._products = last._products
        self._kept: NumPyArray | None = None
        self._full = len(objective.penalty), objective.loss.outputs
        arrays: Arrays | None = None
        if objective.rows.is_sparse and objective.loss.outputs == 1:
            small, arrays, self._kept = screened_columns(self.objective)
            self.objective = small.extended(ByColumns, arrays=arrays)
        elif self._has_columns():
            self.objective = self.objective.extended(ByKeptColumns, columns=self._products.columns)
        assert self.objective.l1 is not None
        self._l1: NumPyArray = self.objective.l1
        self._curvature_shift = 0.0
        self._chosen = np.zeros(0, np.intp)
        self._grew = False
        self._arrays = arrays
        self._hessian: NumPyArray | None = None
        self._curvature: NumPyArray = np.zeros(0)
        self._has_learned = False
        self._last = np.inf
        # If rows are not in memory, and a Hessian of classes is too large to compute from all rows,
        # it is computed from the sample.
        self._softmax_rows = self.objective
        if self.objective.table.is_out_of_core and sample is not None:
            self._softmax_rows = objective_of(sample, self.objective)
        self._softmax = SoftmaxSteps(self._softmax_rows)

    def levels(self) -> Iterator[tuple[Method, float]]:
        if self._sample is None or not len(self._sample.target):
            return
        objective, count = self.objective, len(self._sample.target)
        theta, null = objective.null()
        # The optimum of the sample has an error of about p / 2n of the loss: solve it only to this.
        required_decrement = constants.ERROR_OF_A_START * abs(null) * theta.size / count
        yield CoordinateDescent(objective_of(self._sample, objective)), required_decrement
        objective.reads.rows += count

    def start(self, theta: NumPyArray) -> NumPyArray:
        return theta if self._kept is None else theta[self._kept]

    def back(self, theta: NumPyArray) -> NumPyArray:
        if self._kept is None:
            return theta
        whole = np.zeros(self._full)
        whole[self._kept] = theta
        return whole

    def step(self, point: Snapshot, target: Target) -> Step:
        found = self._least(point)
        self._last = found.gain
        # The bound is close to the true distance here, and there is no better estimate.
        return Step(found.to - point.theta, target.gap, found.fall)

    def learn(self, old: Snapshot, new: Snapshot, length: float) -> None:
        self._curvature_shift = next_curvature_shift(self._curvature_shift, length)
        if self._hessian is not None:
            self._correct(new.theta - old.theta, new.gradient - old.gradient)

    def forget(self) -> bool:
        knew, self._hessian = self._hessian is not None and self._has_learned, None
        return knew

    # The step.

    def _least(self, snapshot: Snapshot) -> Least:
        """Return the minimum of the quadratic model over the working set."""
        chosen = self._choose(snapshot)
        if self._keeps_products(chosen):
            return self._by_products(snapshot, chosen)
        if not np.array_equal(chosen, self._chosen):
            self._chosen, self._hessian = chosen, None
        if self._has_matrix_of_classes(len(chosen)):
            if self.objective.table.is_out_of_core:
                there = self._softmax_rows.snapshot(snapshot.theta)
                snapshot = replace(there, gradient=snapshot.gradient)
            return Least(*self._softmax.step(snapshot, chosen, self._curvature_shift, self._last))
        if self._keeps_columns():
            return self._by_columns(snapshot)
        if self._hessian is None:
            self._measure(snapshot)
            return self._by_matrix(snapshot)
        found = self._by_matrix(snapshot)
        if found.gain > constants.CHANGED * self._last and self._has_changed(snapshot):
            self._measure(snapshot)
            found = self._by_matrix(snapshot)
        return found

    def _keeps_columns(self) -> bool:
        if self.objective.table.is_out_of_core:
            return False
        is_of_classes = self.objective.loss.outputs > 1
        is_sparse = self.objective.rows.is_sparse
        return is_sparse or is_of_classes or len(self._chosen) + 1 > constants.MOST_WEIGHTS

    def _has_matrix_of_classes(self, features: int) -> bool:
        """Whether a step uses a matrix for each class."""
        outputs = self.objective.loss.outputs
        if self.objective.rows.is_sparse or outputs == 1:
            return False
        if (
            self.objective.table.is_out_of_core
            and outputs * (features + 1) <= constants.MOST_WEIGHTS
        ):
            return False
        return SoftmaxSteps.has_room(features, outputs)

    def _second_derivative(self, snapshot: Snapshot) -> SecondDerivative:
        objective = self.objective
        return objective.loss.second_derivative(
            snapshot.scores, objective.target, self._curvature_shift
        )

    def _measure(self, snapshot: Snapshot) -> None:
        self._has_learned = False
        if not self.objective.table.is_out_of_core:
            self._curvature = self._second_derivative(snapshot).diagonal
        self._hessian = self._hessian_over(snapshot)

    def _keeps_products(self, chosen: NumPyArray) -> bool:
        """Whether copied columns and their products are used, each computed only once."""
        objective, used = self.objective, self.objective.scaling.inverse > 0
        if not self._has_columns():
            return False
        changes = len(used) > constants.ALL_FEATURES or len(chosen) < used.sum()
        count = self._products.columns.count_with(chosen)
        fits = objective.n * count <= constants.KEPT_NUMBERS
        return changes and fits and len(chosen) < constants.MOST_WEIGHTS

    def _has_columns(self) -> bool:
        """Whether the Hessian is constant and columns may be copied."""
        objective = self.objective
        is_in_memory = not (objective.rows.is_sparse or objective.table.is_out_of_core)
        return objective.loss.is_quadratic and is_in_memory

    def _by_products(self, snapshot: Snapshot, chosen: NumPyArray) -> Least:
        """Return the minimum for a squared loss, with the intercept at its best value throughout.

        While many features join the working set, coordinate descent on the columns is enough. The
        products of columns are only computed for the last steps.
        """
        objective, products = self.objective, self._products
        if self._grew:
            places = products.columns.join(objective, chosen)
        else:
            places = products.join(objective, chosen)
            chosen = products.features
        mean, excess = products.columns.mean[places], float(snapshot.gradient[-1, 0])
        before, l1, l2 = snapshot.theta[chosen, 0], self._l1[chosen], objective.penalty[chosen]
        gradient = snapshot.gradient[chosen, 0] - mean * excess
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
        to[chosen, 0], to[-1] = theta, snapshot.theta[-1] - excess - mean @ change
        slope = float(gradient @ change + l1 @ (np.abs(theta) - np.abs(before))) - excess**2
        return Least(to, max(0.0, -slope - 0.5 * (square + excess**2)), -slope)

    def _has_changed(self, snapshot: Snapshot) -> bool:
        """Whether the curvature differs from that of the matrix.

        If rows are not in memory, this is unknown, and True is returned.
        """
        if self.objective.table.is_out_of_core:
            return True
        share, curvature = self.objective.share, self._second_derivative(snapshot).diagonal
        change = float((share @ np.abs(curvature - self._curvature)).sum())
        return change > constants.CHANGED * float((share @ self._curvature).sum())

    def _by_matrix(self, snapshot: Snapshot) -> Least:
        assert self._hessian is not None
        kept = np.append(self._chosen, len(self._l1) - 1)
        theta, gradient = snapshot.theta[kept].ravel(), snapshot.gradient[kept].ravel()
        outputs = self.objective.loss.outputs
        l1 = np.repeat(self._l1[kept], outputs)
        change = least(self._hessian, theta, gradient, l1, outputs, is_exact=not self._grew)
        slope = float(gradient @ change)
        new = theta + change
        slope += float(l1 @ (np.abs(new) - np.abs(theta)))
        square = float(change @ (self._hessian @ change))
        to = np.zeros_like(snapshot.theta)
        to[kept] = new.reshape(to[kept].shape)
        return Least(to, max(0.0, -slope - 0.5 * square), -slope)

    def _correct(self, change: NumPyArray, gradient_change: NumPyArray) -> None:
        """Correct the matrix so that it gives the gradient's change along a step."""
        assert self._hessian is not None
        if self.objective.loss.is_quadratic:
            return
        kept = np.append(self._chosen, len(self._l1) - 1)
        change, gradient_change = change[kept].ravel(), gradient_change[kept].ravel()
        product = float(change @ gradient_change)
        image = self._hessian @ change
        expected = float(change @ image)
        rounding = _ROUNDING_OF_A_SQUARE * float(self._hessian.diagonal() @ np.square(change))
        if expected > rounding and product > 1e-3 * expected:
            self._hessian -= np.multiply.outer(image, image / expected)
            self._hessian += np.multiply.outer(gradient_change, gradient_change / product)
            self._has_learned = True

    def _by_columns(self, snapshot: Snapshot) -> Least:
        objective, chosen = self.objective, self._chosen
        if objective.rows.is_sparse:
            if self._arrays is None:
                self._arrays = sparse_columns(objective)
            center = objective.scaling.center[chosen] * objective.scaling.inverse[chosen]
            columns = Columns(self._arrays, chosen.astype(np.uint64), center)
        else:
            columns = dense_columns(objective, chosen)
        before, penalties = snapshot.theta[chosen], (self._l1[chosen], objective.penalty[chosen])
        given = objective, columns, snapshot, chosen, *penalties, self._curvature_shift
        kind = ScalarQuadratic if objective.loss.outputs == 1 else SoftmaxQuadratic
        model: ScalarQuadratic | SoftmaxQuadratic = kind(*given)
        t, shift, fall, slope = model.solve()
        to = np.zeros_like(snapshot.theta)
        to[chosen], to[-1] = t, snapshot.theta[-1]
        if objective.intercept:
            # The model was solved for centred features.
            to[-1] += shift + columns.center @ (t - before)
        return Least(to, max(0.0, fall), -slope)

    def _hessian_over(self, snapshot: Snapshot) -> NumPyArray:
        """Return the Hessian over the working set and the intercept, for a flattened theta."""
        objective, chosen, known = self.objective, self._chosen, self._products.hessian_of
        if known is None or not np.array_equal(known[0], chosen):
            if objective.table.is_out_of_core:
                known = chosen, self._out_of_core_hessian(snapshot)
            else:
                known = chosen, _loss_hessian(objective, chosen, self._second_derivative(snapshot))
            if objective.loss.is_quadratic:
                self._products.hessian_of = known
        hessian = known[1].copy()
        penalty = objective.penalty[np.append(chosen, len(objective.penalty) - 1)]
        hessian.ravel()[:: len(hessian) + 1] += np.repeat(penalty, objective.loss.outputs)
        return hessian

    def _out_of_core_hessian(self, snapshot: Snapshot) -> NumPyArray:
        """Return the Hessian of the losses over the working set; rows are not in memory."""
        objective, chosen = self.objective, self._chosen
        scaling = Scaling(objective.scaling.center[chosen], objective.scaling.inverse[chosen])
        given = objective.loss, scaling, chosen, objective.intercept, self._curvature_shift
        objective.reads.rows += objective.n
        model = objective.model(snapshot.theta)
        return np.asarray(objective.table.sum(hessian_of_set, *given, at=model))

    # The working set.

    def _choose(self, snapshot: Snapshot) -> NumPyArray:
        """Return the working set, sorted.

        It has the features with nonzero coefficients, and those whose gradients exceed the penalty
        most. Few features are all used.

        Raises
        ------
        ValueError
            If rows are not in memory, and a matrix over these features would be too large.
        """
        objective = self.objective
        used = objective.scaling.inverse > 0
        outputs = objective.loss.outputs
        width = int(used.sum())
        are_few = width <= constants.ALL_FEATURES
        if not self._has_matrix_of_classes(width):
            are_few = are_few and outputs * (1 + width) <= constants.MOST_WEIGHTS
        if are_few and not self._tries_some(width):
            return np.flatnonzero(used)
        theta, gradient = snapshot.theta[:-1], snapshot.gradient[:-1]
        size, there = np.abs(gradient).max(axis=1), theta.any(axis=1)
        excess = np.maximum(size - self._l1[:-1], 0)
        count = int(there.sum())
        others = np.flatnonzero((excess > 0) & ~there)
        has_tried = len(self._products.features) > 0
        if are_few and has_tried and len(others) > width / 2:
            return np.flatnonzero(used)
        left = self._most_features() - count
        if left < min(1, len(others)):
            raise ValueError(_too_many(objective, count))
        least = constants.FEW_JOINING if are_few else constants.LEAST_JOINING
        many = int(min(max(least, count), left, len(others)))
        self._grew = not are_few and (many < len(others) or many > 0.1 * count)
        if self._has_columns() and 0 < len(others) < least and not are_few:
            # A gradient close to the penalty often exceeds it after the step: adding the feature
            # now saves a pass.
            others = np.flatnonzero((size > _CLOSE * self._l1[:-1]) & ~there)
            excess, many = size - self._l1[:-1], int(min(least, left, len(others)))
        if many < len(others):
            others = others[np.argpartition(-excess[others], many)[:many]]
        return np.union1d(np.flatnonzero(there), others)

    def _most_features(self) -> float:
        """Return the largest size of the working set. It is limited if rows are not in memory."""
        if not self.objective.table.is_out_of_core:
            return np.inf
        return SoftmaxSteps.most_features(self.objective.loss.outputs)

    def _tries_some(self, width: int) -> bool:
        """Whether a few features are tried before the Hessian of all of them is computed."""
        are_many = width > constants.LEAST_JOINING
        return are_many and self._has_columns() and self._products.hessian_of is None


def _too_many(objective: Objective, count: int) -> str:
    """Return the error message for too many nonzero coefficients with rows on disk."""
    n, p = objective.rows.shape
    return (
        f"{count:,} of {p:,} features have coefficients so far, and an L1 fit on {n:,} rows on "
        "disk has a matrix of their products: give a stronger penalty, or an array in memory"
    )


def hessian_of_set(
    block: Block,
    loss: Loss,
    scaling: Scaling,
    chosen: NumPyArray,
    intercept: bool,
    curvature_shift: float,
) -> NumPyArray:
    """Return the Hessian of the losses over some features and the intercept, for a flat theta."""
    raw: Any = block.raw
    features = (raw[:, chosen] - scaling.center) * scaling.inverse
    curvature = loss.second_derivative(block.scores, block.target, curvature_shift)
    found = gram_of_block(features, curvature.weights(block.share), ones=True)
    if not intercept:
        found[-loss.outputs :] = found[:, -loss.outputs :] = 0
    return found


def _loss_hessian(
    objective: Objective, chosen: NumPyArray, curvature: SecondDerivative
) -> NumPyArray:
    """Return the Hessian of the losses over the working set and the intercept, in one pass."""
    found = gram(
        objective.rows,
        curvature.weights(objective.share),
        objective.workers,
        coordinates=objective.scaling,
        columns=chosen if len(chosen) < objective.rows.shape[1] else None,
        ones=True,
    )
    objective.reads.rows += objective.n
    if not objective.intercept:
        found[-objective.loss.outputs :] = found[:, -objective.loss.outputs :] = 0
    return found


def least(
    hessian: NumPyArray,
    start: NumPyArray,
    gradient: NumPyArray,
    l1: NumPyArray,
    outputs: int = 1,
    is_exact: bool = True,
) -> NumPyArray:
    """Return the step to the minimum of a quadratic model; the last `outputs` are intercepts.

    The best intercepts are known for any other coefficients, so they are eliminated.
    """
    m = len(start) - outputs
    beside = hessian[:m, m:]
    inverse = np.linalg.pinv(hessian[m:, m:], rcond=_SINGULAR, hermitian=True)
    intercept_step = -inverse @ gradient[m:]
    reduced = hessian[:m, :m] - beside @ inverse @ beside.T
    reduced_gradient = gradient[:m] + beside @ intercept_step
    change = minimise(reduced, reduced_gradient, start[:m], l1[:m], is_exact) - start[:m]
    return np.concatenate([change, intercept_step - inverse @ (beside.T @ change)])


def minimise(
    hessian: NumPyArray,
    gradient: NumPyArray,
    start: NumPyArray,
    l1: NumPyArray,
    is_exact: bool = True,
    factor: Factor | None = None,
) -> NumPyArray:
    """Return the minimum of a quadratic model with an L1 penalty.

    Sweeps of coordinate descent find the signs, and linear systems give the values.

    Parameters
    ----------
    hessian : numpy.ndarray
        The Hessian. It may have more rows than `start`; the first ones are used.
    gradient : numpy.ndarray
        The gradient at the start.
    is_exact : bool
        Whether the result has to be exact; otherwise sweeps are enough.
    factor : Factor, optional
        A factor of the Hessian from an earlier call.
    """
    t, gradient, most, unchanged = start.copy(), gradient.copy(), 0.0, 0
    has_turned, is_regular = True, False
    left = _EXACT_STEP_RESIDUAL if is_exact else constants.LAST_SWEEP
    factor = factor or Factor()
    # For two nearly equal columns, a sweep moves one coefficient too far up and the other too far
    # down, and a system moves them back. So solve systems until no sign changes before each sweep.
    for _ in range(constants.MOST_STEPS):
        fell, has_changed = sweep_matrix(hessian, gradient, t, l1)
        most = max(most, fell)
        unchanged = 0 if has_changed or has_turned else unchanged + 1
        # The solution of a singular system leads only a part of the way.
        is_steady = unchanged == constants.ROUND or (is_regular and unchanged > 0)
        if fell <= left * most or is_steady:
            break
        for _ in range(constants.MOST_STEPS if is_exact else 1):
            step, image, has_turned, is_regular = _to_the_system(
                hessian[: len(t), : len(t)], gradient, t, l1, factor
            )
            gradient += image
            t += step
            if not has_turned:
                break
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
        Whether a coefficient becomes 0 on the way, so that the solution changes.
    is_regular : bool
        Whether the system has exactly one solution.
    """
    # Rounding may leave a negative diagonal in a matrix that was corrected by steps.
    free = np.flatnonzero((t != 0) & (hessian.diagonal() > 0))
    sign = np.sign(t)
    slopes = np.zeros_like(t)
    slopes[free] = (gradient + l1 * sign)[free]
    wanted, is_regular = factor.solve(hessian, free, -slopes)
    turns = (t != 0) & ((t + wanted) * sign <= 0)
    # A coefficient that would change its sign becomes 0, which usually lowers the model.
    step = np.where(turns, -t, wanted)
    image = hessian @ step
    fall = float(gradient @ step + 0.5 * step @ image)
    fall += float(l1 @ (np.abs(t + step) - np.abs(t)))
    if not turns.any() or fall < 0:
        return step, image, bool(turns.any()), is_regular
    # Otherwise end the step where a coefficient becomes 0, at the place with the lowest value. The
    # first such place is always lower than the start.
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
