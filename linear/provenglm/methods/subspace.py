r"""Newton's method over the span of all directions so far, for many dense features.

Each iteration adds one direction, the preconditioned gradient, and the scores along it. The next
point is Newton's over the span of the directions: the system has one unknown per direction, and its
Hessian is computed from the scores alone (sequential subspace optimisation: Narkiss & Zibulevsky
2005). For a quadratic function these points are those of conjugate gradients. For other functions
the directions stay useful when the Hessian changes, while conjugate gradients would restart.

An iteration reads the rows twice, in float32: for the gradient, and for the scores along it. The
loop evaluates a point in float64 when the gradient indicates that its gap is small enough.
"""

from __future__ import annotations

import numpy as np
import scipy.linalg

from provenglm import constants
from provenglm.methods.base import Method, Step, Target
from provenglm.methods.curvature_shift import next_curvature_shift
from provenglm.model.cholesky import factor
from provenglm.model.float32_copy import in_float32
from provenglm.model.objective import Objective, Snapshot
from provenglm.model.sampling import draw
from provenglm.rows.dense import DenseRows
from provenglm.rows.gram import gram
from provenglm.rows.products import row_products
from provenglm.types import NumPyArray

_DEPENDENT = 1e-6
"""An eigenvalue of the directions' products below this part of the largest one is rounding."""

_TINY = float(np.finfo(np.float64).tiny)


class SubspaceNewton(Method):
    """Newton's method over the directions so far.

    Parameters
    ----------
    objective : Objective
        An objective of dense rows with one score per row. Directions and scores are vectors here.
    is_precise : bool
        Whether the requested tolerance is too small for products in float32.
    rng : numpy.random.Generator
        The generator that draws the rows of a preconditioner.
    """

    name = "subspace-newton"
    has_cheap_steps = keeps_scores = True

    def __init__(self, objective: Objective, is_precise: bool, rng: np.random.Generator) -> None:
        self._precise = objective.precise()
        super().__init__(self._precise if is_precise else in_float32(objective))
        self.is_single = self.objective.rows.dtype == np.float32
        self._rng = rng
        self._begin()

    def _begin(self) -> None:
        self._preconditioner = _Preconditioner(self.objective, self._rng)
        self._span = _Span(self.objective)
        self._curvature_shift = 0.0

    def in_float64(self) -> None:
        self.is_single, self.objective = False, self._precise
        self._begin()

    def step(self, point: Snapshot, target: Target) -> Step:
        objective, gradient = self.objective, point.gradient[:, 0]
        curvature = objective.loss.second_derivative(
            point.scores, objective.target, self._curvature_shift
        ).diagonal[:, 0]
        passes, gap = objective.passes, target.gap
        if self._preconditioner.update(curvature, passes, gap, target.required_gap):
            self._span = _Span(objective)
        scaled = self._preconditioner.solve(gradient[:-1])
        square = float(gradient[:-1] @ scaled)
        if square > 0:
            self._preconditioner.squares.append(square)
            size = np.sqrt(square)
            self._span.add(scaled / size, gradient[:-1] / size)
        step = self._span.step(gradient, curvature)
        return step._replace(decrement=min(gap, 0.5 * square / self._span.least()))

    def learn(self, old: Snapshot, new: Snapshot, length: float) -> None:
        self._curvature_shift = next_curvature_shift(self._curvature_shift, length)


class _Span:
    """The last directions, each of size 1 in the metric, with the scores along them."""

    def __init__(self, objective: Objective) -> None:
        self._objective = objective
        n, p = objective.rows.shape
        self._first = int(objective.intercept)
        # With this number a system costs less than a pass, and the directions fit into memory.
        room = constants.MEMORY // (8 * (n + p))
        size = self._first + max(1, min(2 * int(np.sqrt(p)), room))
        self._steps = np.zeros((size, p + 1))
        self._scores = np.zeros((size, n))
        self._steps[: self._first, -1] = self._scores[: self._first] = 1.0
        self._count = self._next = self._last = self._first
        self._hessian, self._metric = np.zeros((size, size)), np.eye(size)
        self._step: Step | None = None

    def least(self) -> float:
        """Return the least eigenvalue of the Hessian over the directions: a Ritz value."""
        if self._count == self._first:
            return 1.0
        part = slice(self._first, self._count)
        # Near the optimum new directions are mostly rounding, and depend on each other.
        sizes, turned = np.linalg.eigh(self._metric[part, part])
        kept = sizes > _DEPENDENT * sizes[-1]
        basis = turned[:, kept] / np.sqrt(sizes[kept])
        values = np.linalg.eigvalsh(basis.T @ self._hessian[part, part] @ basis)
        return max(float(values[0]), _TINY)

    def add(self, weights: NumPyArray, image: NumPyArray) -> None:
        """Add a direction, which replaces the oldest if there is no more room.

        Parameters
        ----------
        weights, image : numpy.ndarray, (p,)
            The direction, and the metric times it.
        """
        step = np.append(weights, 0.0)
        self._last = self._next
        self._steps[self._last] = step
        self._scores[self._last] = _along(self._objective, step)
        self._count = max(self._count, self._last + 1)
        products = self._steps[: self._count, :-1] @ image
        self._metric[self._last, : self._count] = self._metric[: self._count, self._last] = products
        self._next += 1
        if self._next == len(self._steps):
            self._next = self._first

    def step(self, gradient: NumPyArray, curvature: NumPyArray) -> Step:
        """Return Newton's step over the span of the directions."""
        steps, scores = self._steps[: self._count], self._scores[: self._count]
        weight = curvature * self._objective.share
        has_none = self._last >= self._count  # the gradient of the weights was 0 so far
        if has_none or self._has_changed(weight):
            self._hessian[: self._count, : self._count] = self._products(weight)
        else:
            row = scores @ (weight * scores[self._last])
            row += steps @ (self._objective.penalty * steps[self._last])
            self._hessian[self._last, : self._count] = row
            self._hessian[: self._count, self._last] = row
        slope = steps @ gradient
        chol = factor(self._hessian[: self._count, : self._count].copy())
        length = -scipy.linalg.cho_solve(chol, slope, check_finite=False)
        fall = -float(slope @ length)
        change, along = (length @ steps)[:, None], (length @ scores)[:, None]
        self._step = Step(change, 0.5 * fall, fall, along)
        return self._step

    def _has_changed(self, weight: NumPyArray) -> bool:
        """Whether the curvature along the last step differs from that of the Hessian."""
        if self._step is None:
            return True
        change, along = self._step.change, self._step.along
        assert along is not None
        curvature = weight @ np.square(along[:, 0])
        curvature += self._objective.penalty @ np.square(change[:, 0])
        return bool(abs(curvature - self._step.fall) > constants.CHANGED * curvature)

    def _products(self, weight: NumPyArray) -> NumPyArray:
        """Return the Hessian over the directions, from the rows' weights."""
        objective = self._objective
        total = np.zeros((self._count, self._count))
        for numbers, each in (self._scores, weight), (self._steps, objective.penalty):
            total += gram(DenseRows(numbers[: self._count].T), each, objective.workers)
        return total


def _along(objective: Objective, step: NumPyArray) -> NumPyArray:
    """Return the scores along a step, (n,): half a pass, which the next gradient completes."""
    weights, bias, center = objective.model(step[:, None])
    scores = row_products(objective.rows, weights, objective.workers, center)
    return (scores.astype(np.float64, copy=False) + bias)[:, 0]


class _Preconditioner:
    """The mean curvature plus the penalty, or the Hessian of some rows once it pays.

    This Hessian costs as much as some number of passes. It is computed after this number of passes
    if the gradient falls so slowly that at least as many are still to come: a fit takes at most
    twice as long.

    Attributes
    ----------
    squares : list of float
        The squared sizes of the gradients so far, in this metric.
    """

    def __init__(self, objective: Objective, rng: np.random.Generator) -> None:
        n, p = objective.rows.shape
        self._objective, self._rng = objective, rng
        self._size = min(n, constants.FEW_ROWS_OF_A_FEATURE * p)
        # Products of the features with each other, and the factor of a matrix of them.
        self._cost = (self._size + p / 1.5) * p * (constants.PRODUCT / constants.NUMBER) / n
        self._has_factor = n >= p  # then the matrix is no larger than the rows
        self._due = objective.passes + self._cost
        self._factor: tuple[NumPyArray, bool] | None = None
        self._diagonal = np.ones(p)
        self._mean = 0.0
        self.squares: list[float] = []

    def update(self, curvature: NumPyArray, passes: float, gap: float, required_gap: float) -> bool:
        """Compute the Hessian at these curvatures if it pays; return whether it is a new matrix."""
        objective = self._objective
        mean = float(objective.share @ curvature)
        has_changed = not 0.5 <= mean / max(self._mean, _TINY) <= 2
        is_due = self._factor is None or has_changed
        if self._has_factor and is_due and passes >= self._due and self._is_slow(gap, required_gap):
            self._due = passes + self._cost
            found = self._sampled_factor(curvature)
            if found is not None:
                self._mean, self._factor = mean, found
                self.squares.clear()
                return True
        if self._factor is None and has_changed:
            self._mean = mean
            self._diagonal = np.maximum(mean + objective.penalty[:-1], _TINY)
        return False

    def _is_slow(self, gap: float, required_gap: float) -> bool:
        """Whether the gradient falls so slowly that the remaining passes cost more than it."""
        half = len(self.squares) // 2
        if not half:
            return False
        rate = np.log(self.squares[half - 1] / self.squares[-1]) / (len(self.squares) - half)
        least = 0.5 * self.squares[-1] / constants.MARGIN
        needed = np.log(max(min(gap, least), _TINY) / max(required_gap, _TINY))
        return bool(needed > rate * self._cost)

    def solve(self, gradient: NumPyArray) -> NumPyArray:
        """Return the gradient of the weights divided by the preconditioner."""
        if self._factor is None:
            return np.asarray(gradient / self._diagonal)
        rest = gradient.astype(self._factor[0].dtype)
        solved = scipy.linalg.cho_solve(self._factor, rest, check_finite=False)
        return np.asarray(solved, np.float64)

    def _sampled_factor(self, curvature: NumPyArray) -> tuple[NumPyArray, bool] | None:
        """Return the factor of the Hessian of drawn rows."""
        objective = self._objective
        drawn, share = draw(objective.loss, objective.table, self._size, self._rng)
        order = np.argsort(drawn)
        drawn, share = drawn[order], share[order]
        weight = curvature[drawn] * share
        matrix = self._gram(drawn, weight)
        diagonal = objective.penalty[:-1]
        if objective.rare is not None:
            # A feature that few rows have may be absent from all drawn rows.
            diagonal = diagonal + weight.sum() * objective.rare
        matrix.ravel()[:: len(matrix) + 1] += diagonal.astype(matrix.dtype)
        try:
            return factor(matrix, float(np.finfo(matrix.dtype).eps))
        except FloatingPointError:
            return None  # products beyond float32

    def _gram(self, drawn: NumPyArray, weight: NumPyArray) -> NumPyArray:
        """Return the weighted products of some rows' features, centred by the same weights."""
        objective = self._objective
        objective.reads.rows += len(drawn)
        total = gram(
            objective.rows,
            weight,
            objective.workers,
            coordinates=objective.scaling,
            chosen=drawn,
            ones=objective.intercept,
            dtype=objective.rows.dtype,
        )
        if not objective.intercept:
            return total
        mean = total[-1, :-1] / max(np.sqrt(total[-1, -1]), _TINY)
        return np.asarray(total[:-1, :-1] - np.multiply.outer(mean, mean))
