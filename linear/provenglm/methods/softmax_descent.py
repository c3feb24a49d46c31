r"""Proximal Newton steps of softmax on dense rows, with a Gram matrix per class.

The Hessian over m features and K classes has :math:`(m K)^2` entries, and it is never stored. Its
blocks on the diagonal are the K Gram matrices :math:`X^T W_k X`, with the weights :math:`p_k (1 -
p_k)` of class k. The whole Hessian is only multiplied with steps, by two products of X.

Each round of a step first lowers the model for each class alone, by coordinate descent with its
Gram matrix. This finds which coefficients are 0, and the signs of the others. Conjugate gradients
then solve the linear system of the nonzero coefficients; a coefficient that would change its sign
becomes 0. The Gram matrices precondition the system: the blocks differ from the Hessian only by the
products of the probabilities of two classes, so 10 to 20 iterations are enough for any correlation
of the features.

Two directions need care, because the loss does not depend on the sum of a row's scores. All
coefficients of a feature can be shifted together: without an L2 penalty their median is 0 at the
optimum (`common_shift`). If a feature has a nonzero coefficient in all classes except those of few
rows, shifting these coefficients costs almost nothing: the preconditioner therefore has a matrix
for such shifts.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from scipy.linalg.blas import dsyrk
from scipy.linalg.lapack import dpotrs

from provenglm import constants
from provenglm.methods.descent_columns import least_along
from provenglm.model import cholesky
from provenglm.model.conjugate_gradients import conjugate_gradients
from provenglm.model.losses import SecondDerivativeOfClasses
from provenglm.model.objective import Objective, Snapshot
from provenglm.rows.copies import dense_part
from provenglm.types import NumPyArray

_GRAM_REFRESH = 0.5
"""The Gram matrix of a class is computed again if its weights have changed by this part of their
sum. On 10,000 x 400, 0.05 took 1.4 times as long, and 0.3 took 1.25 times."""

_FEW_OTHERS = 1.25
"""Columns and Gram matrices are kept while the set of features shrinks, up to this ratio. On 10,000
rows of Fashion-MNIST a fit with C = 1 took 0.8 of the time (one run each)."""

_FORCING = 0.1
"""A step ends with a round that lowers the model by less than this part of the total decrease of
all rounds times the ratio of two steps' decreases, and at most by this part."""

_LEAST_FORCING = 1e-3

_SYSTEM_RESIDUAL = 0.1
"""Conjugate gradients stop at this relative residual, in the preconditioner's metric."""

_SYSTEMS = 3
"""The largest number of linear systems in a round; another one follows if a sign has changed."""

_ROUNDS = 50

_SWEEPS = 30
"""The largest number of sweeps of coordinate descent for each class alone."""

_LARGER_METRIC = 1.25
"""The Gram matrices are multiplied by this factor if a step lowers the model too little. With a
factor of 2 they are an upper bound of the Hessian."""

_RIDGE = 1e-7
"""Relative ridge on a diagonal that makes the preconditioner of equal columns regular."""

_TIE = 1e-13
"""A gradient that exceeds the penalty by less than this part is rounding."""

_NO_CURVATURE = 1e-14
"""A curvature below this part of the features' own curvature is rounding."""


class OutOfTimeError(Exception):
    """The deadline has passed in the middle of a product."""


class SoftmaxSteps:
    """The steps of a run, which keep columns and Gram matrices from one step to the next.

    Parameters
    ----------
    objective : Objective
        An objective of softmax with an L1 penalty, on dense rows.
    """

    def __init__(self, objective: Objective) -> None:
        self._objective = objective
        self._columns: _Columns | None = None
        self._weight: NumPyArray = np.zeros((0, 0))
        self._grams: NumPyArray = np.zeros((0, 0, 0))

    @staticmethod
    def has_room(features: int, classes: int) -> bool:
        """Whether the Gram matrices of this many features and classes fit into memory."""
        return features <= SoftmaxSteps.most_features(classes)

    @staticmethod
    def most_features(classes: int) -> int:
        """Return the number of features whose Gram matrices fit into memory."""
        return int(math.sqrt(constants.KEPT_NUMBERS / classes)) - 1

    def step(
        self, snapshot: Snapshot, chosen: NumPyArray, curvature_shift: float, last: float
    ) -> tuple[NumPyArray, float, float]:
        """Return the model's approximate minimum over some features, its decrease and its slope.

        After the deadline it returns the best point so far, which may be the snapshot's point.

        Parameters
        ----------
        chosen : numpy.ndarray
            Indices of the features that may have nonzero coefficients. A few others that were
            among them in the last step may have some, too; all others get 0.
        curvature_shift : float
            The curvature shift; see `Loss.second_derivative`.
        last : float
            The decrease of the model in the last step, or inf.
        """
        objective = self._objective
        work = objective.n * (len(chosen) + 1) * objective.loss.outputs
        try:
            with objective.workers.one_blas_thread(work):
                model = self._model(snapshot, chosen, curvature_shift)
                t = model.minimise(last)
        except OutOfTimeError:
            return snapshot.theta, 0.0, 0.0
        to = np.zeros_like(snapshot.theta)
        to[model.kept] = t
        return to, *model.promise(t)

    def _model(self, snapshot: Snapshot, chosen: NumPyArray, curvature_shift: float) -> _Model:
        objective = self._objective
        curvature = objective.loss.second_derivative(
            snapshot.scores, objective.target, curvature_shift
        )
        assert isinstance(curvature, SecondDerivativeOfClasses)
        probability = np.ascontiguousarray(curvature.probability)
        weight = objective.share[:, None] * probability * (1 - probability)
        if self._columns is None or not self._columns.can_replace(chosen):
            self._columns = _Columns(objective, chosen)
            size, classes = len(chosen) + 1, weight.shape[1]
            self._grams = np.empty((classes, size, size))
            self._weight = np.full_like(weight, np.inf)
        change = np.abs(weight - self._weight).sum(axis=0)
        stale = np.flatnonzero(change > _GRAM_REFRESH * weight.sum(axis=0))
        for k in stale:
            self._grams[k] = self._columns.gram(weight[:, k])
            self._weight[:, k] = weight[:, k]
        if len(stale):
            objective.reads.rows += objective.n
        return _Model(objective, self._columns, self._grams, probability, snapshot)


class _Columns:
    """A copy of some features of all rows in theta's coordinates, and a column of ones."""

    def __init__(self, objective: Objective, chosen: NumPyArray) -> None:
        self.chosen = chosen
        self._objective = objective
        n, size = objective.n, len(chosen) + 1
        some = None if size == len(objective.penalty) else chosen
        self._values = dense_part(objective.rows, slice(0, n), objective.scaling, 1, some)
        self._values[:, -1] = objective.intercept
        # A part stays in the cache for the second product.
        count = max(constants.LEAST_BLOCK_ROWS, constants.BLOCK_BYTES // (8 * size))
        self._parts = [slice(first, min(first + count, n)) for first in range(0, n, count)]

    def can_replace(self, chosen: NumPyArray) -> bool:
        """Whether these columns can be used for `chosen`: they include it, and few others."""
        has_few = len(self.chosen) <= _FEW_OTHERS * len(chosen)
        return has_few and bool(np.isin(chosen, self.chosen, assume_unique=True).all())

    def _block(self, part: slice) -> NumPyArray:
        if self._objective.is_late:
            raise OutOfTimeError
        return self._values[part]

    def gram(self, weight: NumPyArray) -> NumPyArray:
        """Return the products of the columns with each other, with weights of the rows."""
        root = np.sqrt(weight)

        def part_products(part: slice) -> NumPyArray:
            columns = self._block(part) * root[part, None]
            return np.asarray(dsyrk(1.0, columns.T))

        total = self._sum(part_products, _merged(self._parts), together=1)
        total += np.triu(total, 1).T
        return total

    def product(self, step: NumPyArray, probability: NumPyArray) -> NumPyArray:
        """Return the Hessian of the losses times a step, (m + 1, K)."""
        share = self._objective.share

        def part_products(part: slice) -> NumPyArray:
            values, mean = self._block(part), probability[part]
            moved: NumPyArray = values @ step
            moved -= np.einsum("ik,ik->i", mean, moved)[:, None]
            moved *= mean
            moved *= share[part, None]
            return np.asarray(moved.T @ values)

        return self._sum(part_products, self._parts).T

    def _sum(
        self,
        part_products: Callable[[slice], NumPyArray],
        parts: list[slice],
        together: int | None = None,
    ) -> NumPyArray:
        total: NumPyArray | None = None
        for each in self._objective.workers.map(part_products, parts, together):
            total = each if total is None else np.add(total, each, out=total)
        assert total is not None
        return total


class _Model:
    """The quadratic model of the losses with the penalty; the last row is the intercepts'.

    Attributes
    ----------
    kept : numpy.ndarray, (m + 1,)
        The rows of the model among those of theta.
    """

    def __init__(
        self,
        objective: Objective,
        columns: _Columns,
        grams: NumPyArray,
        probability: NumPyArray,
        snapshot: Snapshot,
    ) -> None:
        self.kept = np.append(columns.chosen, len(objective.penalty) - 1)
        assert objective.l1 is not None
        self._l1, self._l2 = objective.l1[self.kept], objective.penalty[self.kept]
        self._before, self._slope = snapshot.theta[self.kept], snapshot.gradient[self.kept]
        self._has_intercept = objective.intercept
        self._columns, self._probability, self._grams = columns, probability, grams
        # The gradient of the smooth part at t; `minimise` updates both.
        self._t: NumPyArray = self._before.copy()
        self._gradient: NumPyArray = self._slope.copy()
        self._factor = 1.0
        self._classes = _Classes(grams, self._l1[:-1], self._l2[:-1])
        self._preconditioner: _Preconditioner | None = None

    def promise(self, t: NumPyArray) -> tuple[float, float]:
        """Return the decrease of the model from its start to `t`, and the initial slope."""
        change = t - self._before
        slope = _dot(self._slope, change) + self._size(t) - self._size(self._before)
        square = _dot(change, self._gradient - self._slope)
        return max(0.0, -slope - 0.5 * square), -slope

    def minimise(self, last: float) -> NumPyArray:
        """Return the approximate minimum, or after the deadline the lowest point so far."""
        total = 0.0
        try:
            for count in range(_ROUNDS):
                fell = self._by_class() + self._shift()
                ratio = min(1.0, (total + fell) / last) if last > 0 else 1.0
                forcing = max(_LEAST_FORCING, _FORCING * ratio)
                if count > 0 and fell <= forcing * total:
                    break
                for _ in range(_SYSTEMS):
                    by_system, has_turned = self._to_the_system()
                    fell += by_system + self._shift()
                    if not has_turned:
                        break
                total += fell
                if fell <= forcing * total:
                    break
        except OutOfTimeError:
            pass
        return self._t

    def _size(self, t: NumPyArray) -> float:
        return float(self._l1 @ np.abs(t).sum(axis=1))

    def _product(self, step: NumPyArray) -> NumPyArray:
        image = self._columns.product(step, self._probability)
        return np.asarray(image + self._l2[:, None] * step)

    def _move(self, step: NumPyArray, image: NumPyArray) -> float:
        """Take a step if it lowers the model; return the decrease."""
        fall = self._size(self._t) - self._size(self._t + step)
        fall -= _dot(self._gradient, step) + 0.5 * _dot(step, image)
        if not fall > 0:
            return 0.0
        self._t = self._t + step
        self._gradient = self._gradient + image
        return fall

    # Each class by itself.

    def _by_class(self) -> float:
        """Lower the model along each class, all at once; return the decrease."""
        while True:
            step = self._classes.step(self._t, self._gradient, self._factor)
            image = self._product(step)
            slope = _dot(self._gradient, step)
            slope += self._size(self._t + step) - self._size(self._t)
            is_enough = slope + 0.5 * _dot(step, image) <= 0.25 * slope
            if is_enough or self._factor >= 2:
                return self._move(step, image)
            self._factor = min(2.0, _LARGER_METRIC * self._factor)

    def _shift(self) -> float:
        """Shift the classes of each feature to the least penalty; return the decrease."""
        shift = common_shift(self._t, self._l1, self._l2)
        if not shift.any():
            return 0.0
        step = np.broadcast_to(-shift[:, None], self._t.shape)
        return self._move(step, self._l2[:, None] * step)

    # All that is not 0.

    def _to_the_system(self) -> tuple[float, bool]:
        """Step towards the solution for the present signs.

        Returns
        -------
        fall : float
        has_turned : bool
            Whether a coefficient becomes 0 on the way, so that the solution changes.
        """
        t, l1 = self._t, self._l1[:, None]
        is_free = t != 0
        is_free[-1] = self._has_intercept
        is_free &= self._grams.diagonal(axis1=1, axis2=2).T + self._l2[:, None] > 0
        if self._preconditioner is None or not self._preconditioner.is_for(is_free):
            self._preconditioner = _Preconditioner(self._grams, self._l2, is_free)
        slopes = np.where(is_free, self._gradient + l1 * np.sign(t), 0.0)
        wanted, image = self._solution(-slopes, is_free, self._preconditioner)
        turns = (t * (t + wanted) <= 0) & (t != 0) & (l1 > 0)
        if not turns.any():
            return self._move(wanted, image), False
        # A coefficient that would change its sign becomes 0, which usually lowers the model.
        step = np.where(turns, -t, wanted)
        fall = self._move(step, self._product(step))
        if fall == 0:
            # The intercepts have no penalty, so their sign is free.
            corners = np.where(l1 > 0, t, np.copysign(np.inf, wanted))[is_free]
            sizes = np.broadcast_to(l1, t.shape)[is_free]
            slope, square = _dot(slopes, wanted), _dot(wanted, image)
            step = np.zeros_like(t)
            step[is_free] = least_along(corners, wanted[is_free], sizes, slope, square)
            fall = self._move(step, self._product(step))
        return fall, fall > 0

    def _solution(
        self,
        right: NumPyArray,
        is_free: NumPyArray,
        preconditioned: Callable[[NumPyArray], NumPyArray],
    ) -> tuple[NumPyArray, NumPyArray]:
        """Return the approximate solution over the free coefficients, and the Hessian times it."""
        image, along = np.zeros_like(right), np.zeros_like(right)

        def product(direction: NumPyArray) -> NumPyArray:
            nonlocal along
            along = self._product(direction)
            return np.where(is_free, along, 0.0)

        def taken(length: float, before: float, rest: NumPyArray) -> bool:  # noqa: ARG001
            nonlocal image
            image += length * along
            return False

        found = conjugate_gradients(product, right, preconditioned, _SYSTEM_RESIDUAL, taken)
        return found.step, image


class _Classes:
    """Coordinate descent for each class alone, in all classes at the same time.

    Parameters
    ----------
    grams : numpy.ndarray, (K, m + 1, m + 1)
    l1, l2 : numpy.ndarray, (m,)
    """

    def __init__(self, grams: NumPyArray, l1: NumPyArray, l2: NumPyArray) -> None:
        total, beside = grams[:, -1, -1], grams[:, -1, :-1]
        self._inverse = np.divide(1, total, out=np.zeros_like(total), where=total > 0)
        # The intercept's response to a step; without it the Hessian has the intercept at its best.
        self._follows = beside * self._inverse[:, None]
        self._hessian = np.empty((len(l1), *beside.shape))
        for k, gram in enumerate(grams):
            self._hessian[:, k] = gram[:-1, :-1]
            self._hessian[:, k] -= np.multiply.outer(self._follows[k], beside[k])
        every = np.arange(len(l1))
        self._hessian[every, :, every] += l2[:, None]
        self._square = self._hessian[every, :, every]
        self._is_there = self._square > 0
        self._divisor = np.where(self._is_there, self._square, np.inf)
        self._l1 = (1 + _TIE) * l1[:, None]

    def step(self, t: NumPyArray, gradient: NumPyArray, factor: float) -> NumPyArray:
        """Return a step from t, in the metric of `factor` times the Gram matrices."""
        l1, square = self._l1 / factor, self._square
        gradient = gradient.T / factor
        here = gradient[:, :-1] - self._follows * gradient[:, -1:]
        before = t[:-1]
        new, signs, most, unchanged = before.copy(), np.sign(before), 0.0, 0
        for _ in range(_SWEEPS):
            start = new.copy()
            best = _shrunk(new * square - here.T, l1) / self._divisor
            for j in np.flatnonzero(((best != new) & self._is_there).any(axis=1)):
                step = _shrunk(new[j] * square[j] - here[:, j], l1[j]) / self._divisor[j]
                step -= new[j]
                step *= self._is_there[j]
                new[j] += step
                here += step[:, None] * self._hessian[j]
            fell = float((square * np.square(new - start)).sum())
            last, signs, most = signs, np.sign(new), max(most, fell)
            unchanged = unchanged + 1 if np.array_equal(signs, last) else 0
            if fell <= constants.LAST_SWEEP * most or unchanged == constants.ROUND:
                break
        change = new - before
        intercept_step = -self._inverse * gradient[:, -1]
        intercept_step -= np.einsum("kj,jk->k", self._follows, change)
        return np.vstack([change, intercept_step])


def _shrunk(numbers: NumPyArray, by: NumPyArray) -> NumPyArray:
    """Return numbers moved towards 0 by `by`, or 0 (soft thresholding)."""
    return np.asarray(numbers - np.maximum(np.minimum(numbers, by), -by))


class _Preconditioner:
    r"""Divide a gradient over the free coefficients by class, and along shifts.

    The loss does not change if all classes take the same step. Therefore a shift of a feature's
    free coefficients is the opposite shift of those that are not free. The Gram matrices of these
    alone are its Hessian, or an upper bound of it.

    Parameters
    ----------
    grams : numpy.ndarray, (K, m + 1, m + 1)
    l2 : numpy.ndarray, (m + 1,)
    is_free : numpy.ndarray, (m + 1, K)
    """

    def __init__(self, grams: NumPyArray, l2: NumPyArray, is_free: NumPyArray) -> None:
        self._is_free = is_free
        self._classes = []
        shift_hessian = np.diag(l2 * is_free.sum(axis=1))
        for gram, free in zip(grams, is_free.T, strict=True):
            rows, others = np.flatnonzero(free), np.flatnonzero(~free)
            self._classes.append((rows, _lower(gram[np.ix_(rows, rows)] + np.diag(l2[rows]))))
            shift_hessian[np.ix_(others, others)] += gram[np.ix_(others, others)]
        curvature = grams.diagonal(axis1=1, axis2=2).sum(axis=0)
        has_curvature = shift_hessian.diagonal() > _NO_CURVATURE * curvature
        shifts = np.flatnonzero(is_free.any(axis=1) & has_curvature)
        self._shifts = shifts, _lower(shift_hessian[np.ix_(shifts, shifts)])

    def is_for(self, is_free: NumPyArray) -> bool:
        return np.array_equal(self._is_free, is_free)

    def __call__(self, gradient: NumPyArray) -> NumPyArray:
        divided = np.zeros_like(gradient)
        for k, (rows, lower) in enumerate(self._classes):
            divided[rows, k] = _solved(lower, gradient[rows, k])
        rows, lower = self._shifts
        shift = _solved(lower, gradient[rows].sum(axis=1))
        divided[rows] += self._is_free[rows] * shift[:, None]
        return divided


def common_shift(t: NumPyArray, l1: NumPyArray, l2: NumPyArray) -> NumPyArray:
    r"""Return the shift to subtract from each row to minimise its penalty.

    The slope of the penalty is 0 at one of the numbers, or between the i-th and the next at
    :math:`(\sum_k t_k - (2 i - K) \mu / \lambda) / K`. These values decrease with i while the
    numbers increase, so the best shift is the median of all 2 K + 1. Without an L2 penalty these
    values are infinite, except for the middle one: any shift between the two middle numbers is
    equally good, and 0 shifts nothing.

    Parameters
    ----------
    t : numpy.ndarray, (m, K)
    l1, l2 : numpy.ndarray, (m,)
        Rows for which both are 0 are not shifted.
    """
    classes = t.shape[1]
    excess = 2 * np.arange(classes + 1) - classes
    has_l2 = l2 > 0
    ratio = np.divide(l1, l2, out=np.zeros_like(l1), where=has_l2)
    between = (t.sum(axis=1)[:, None] - np.multiply.outer(ratio, excess)) / classes
    infinite = np.where(excess == 0, 0.0, np.copysign(np.inf, -excess))
    between = np.where(has_l2[:, None], between, infinite)
    best: NumPyArray = np.median(np.concatenate([t, between], axis=1), axis=1)
    return np.where((l1 > 0) | has_l2, best, 0.0)


def _lower(matrix: NumPyArray) -> NumPyArray:
    """Return the Cholesky factor."""
    return cholesky.factor(matrix, _RIDGE)[0] if len(matrix) else matrix


def _solved(lower: NumPyArray, right: NumPyArray) -> NumPyArray:
    return np.asarray(dpotrs(lower, right, lower=1)[0]) if len(right) else right


def _dot(a: NumPyArray, b: NumPyArray) -> float:
    return float(np.vdot(a, b))


def _merged(parts: list[slice]) -> list[slice]:
    """Merge parts into larger ones, because BLAS is slow on few rows."""
    merged = parts[:1]
    for part in parts[1:]:
        if part.stop - merged[-1].start <= constants.BLOCK_ROWS:
            merged[-1] = slice(merged[-1].start, part.stop)
        else:
            merged.append(part)
    return merged
