r"""Newton's method by conjugate gradients, for Hessians that are too large to be factored.

A snapshot is taken in float64. The step :math:`v = -H^{-1} g` is solved only as precisely as it
pays (Dembo, Eisenstat & Steihaug 1982). The preconditioner is the Hessian's diagonal; for classes
of dense rows it is the mean of the classes' Hessians on a sample, one matrix for all classes with a
factor for each. The products :math:`H v` use a copy of the rows in float32. The intercepts are
eliminated: for each v their best step is a function of n numbers, and the rest is the Hessian of
features that are centred with the curvatures as weights. The length of the step is searched for on
the scores alone.

Rows that are far on the wrong side have almost no curvature, so that a whole step overshoots. After
a shortened step, their curvature is computed at a mean closer to their target, until steps are long
again (`Loss.second_derivative`); near the optimum the Hessian itself is used.

The gap of a snapshot is that of its gradient. Conjugate gradients make the gradient small in all
directions, so that the run ends by proof.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from provenglm import constants
from provenglm.methods.base import Method, Step, Target
from provenglm.methods.curvature_shift import next_curvature_shift
from provenglm.model.cholesky import inverse
from provenglm.model.conjugate_gradients import conjugate_gradients
from provenglm.model.losses import SecondDerivative
from provenglm.model.objective import Objective, Snapshot
from provenglm.model.sample import Sample
from provenglm.model.sampling import fits_float32, has_offsets
from provenglm.model.shifts import centre_classes
from provenglm.proof.duality import weighted_square
from provenglm.rows.products import column_products, column_squares, row_products
from provenglm.rows.table import Block, Kept
from provenglm.types import NumPyArray

_CENTRED = 1e-3
"""Float32 is precise enough if centring leaves at least this part of a column's sum of squares: a
smaller rest would be rounding."""

_CHANGED = 0.2
"""The common matrix of the classes is made again if this part of the curvature has changed."""

_LEAST_FORCING = 0.02
"""Conjugate gradients leave at least this part of the gradient, also if it falls fast."""

_TINY = float(np.finfo(np.float64).tiny)


class NewtonCG(Method):
    """Newton's method by conjugate gradients on the Hessian of all rows.

    Parameters
    ----------
    objective : Objective
        An objective of sparse rows, or of dense rows with classes.
    is_precise : bool
        Whether the requested tolerance is too small for products in float32.
    has_room : bool
        Whether a copy of the rows fits into memory.
    sample : Sample, optional
        The sample of dense rows with classes whose mean Hessian is the preconditioner.
    """

    name = "newton-cg"
    has_cheap_steps = True

    def __init__(
        self, objective: Objective, is_precise: bool, has_room: bool, sample: Sample | None = None
    ) -> None:
        super().__init__(objective.precise())
        self.is_single = not (is_precise or _needs_float64(objective))
        self._has_room = has_room
        self._rows: _Rows | None = None
        self._common = None if sample is None else _Common(sample)
        self._size = self._curvature_shift = 0.0

    def start(self, theta: NumPyArray) -> NumPyArray:
        return centre_classes(theta)

    def step(self, point: Snapshot, target: Target) -> Step:
        if self._rows is None:
            dtype = np.dtype(np.float32 if self.is_single else np.float64)
            self._rows = _Rows(self.objective, dtype, self._has_room)
        hessian = _Hessian(self.objective, self._rows, point, self._curvature_shift, self._common)
        step, self._size = hessian.solved(self._size, target)
        # With a curvature shift the model underestimates the gain.
        left = np.inf if self._curvature_shift else step.decrement
        return step._replace(decrement=min(target.gap, left))

    def learn(self, old: Snapshot, new: Snapshot, length: float) -> None:
        self._curvature_shift = next_curvature_shift(self._curvature_shift, length)

    def in_float64(self) -> None:
        self.is_single, self._rows = False, None


def _needs_float64(objective: Objective) -> bool:
    """Return whether float32 is too imprecise for the rows; sparse rows are not centred."""
    table, scaling = objective.table, objective.scaling
    if not table.rows.is_sparse:
        return False
    return not fits_float32(table, scaling) or has_offsets(table, scaling)


class _Rows:
    """The rows in theta's coordinates, and the products with them.

    Parameters
    ----------
    dtype : numpy dtype
        The dtype of the copy; sums over blocks are in float64.
    has_room : bool
        Whether a copy is kept; if not, each product computes the blocks again.
    """

    def __init__(self, objective: Objective, dtype: np.dtype[Any], has_room: bool) -> None:
        self._objective = objective
        self.dtype = dtype
        self._table = objective.own.scaled(objective.scaling, dtype, has_room)

    def times(self, weights: NumPyArray) -> NumPyArray:
        """Return the products of all rows with weights (p, K), (n, K), in half a pass."""
        objective = self._objective
        objective.reads.rows += objective.n / 2
        return row_products(self._table.rows, weights.astype(self.dtype), objective.workers)

    def image(self, weights: NumPyArray, each: NumPyArray) -> tuple[NumPyArray, NumPyArray]:
        """Return the scores (n, 1) of weights, and the features' products with `each` times these.

        This is one pass for one output, which reads each block once.
        """
        objective = self._objective
        scores = np.empty((objective.n, 1), self.dtype)
        weights = weights.astype(self.dtype)

        def product(block: Block) -> NumPyArray:
            part = block.part
            scores[part] = block.raw @ weights
            return column_products(block.raw, each[part] * scores[part])

        objective.reads.rows += objective.n
        return scores, self._table.sum(product)

    def products(self, columns: Callable[[slice], NumPyArray]) -> NumPyArray:
        """Return the products of the features with numbers of each row, in half a pass.

        The numbers are computed block by block, so that they stay in the cache.
        """
        self._objective.reads.rows += self._objective.n / 2
        found: NumPyArray = self._table.sum(
            lambda block: column_products(block.raw, columns(block.part))
        )
        return found

    def moments(self, columns: NumPyArray) -> tuple[NumPyArray, NumPyArray]:
        """Return the products of the features, and of their squares, with numbers of each row."""

        def products(block: Block) -> tuple[NumPyArray, NumPyArray]:
            part = columns[block.part]
            return column_products(block.raw, part), column_squares(block.raw, part)

        self._objective.reads.rows += self._objective.n
        sums, squares = self._table.sum(products)
        return sums, squares


class _Common:
    """The inverse of the mean of the classes' Hessians on a sample: one matrix for all classes.

    It is computed again when a fifth of the curvature has changed. The step of a class is longer by
    the root of the mean curvature divided by its own curvature: without a penalty the ratio itself
    would be right, with a large penalty 1. On 50 unbalanced classes this reduced 51 passes to 27.
    """

    def __init__(self, sample: Sample) -> None:
        self._sample = sample
        self._weight: NumPyArray = np.zeros(len(sample.share))
        self._inverse: NumPyArray = np.zeros((0, 0))

    def inverse(self, curvature: SecondDerivative) -> tuple[NumPyArray, NumPyArray]:
        """Return the inverse, (p, p), with the intercept at its best step, and the roots, (K,).

        The steps of a class are longer by its root.
        """
        sample = self._sample
        assert sample.indices is not None
        diagonal = curvature.subset(sample.indices).diagonal
        weight, class_curvature = sample.share * diagonal.mean(axis=1), sample.share @ diagonal
        least = float(np.finfo(np.float32).eps) * class_curvature.mean()
        longer = np.sqrt(class_curvature.mean() / np.maximum(class_curvature, max(least, _TINY)))
        change = float(np.abs(weight - self._weight).sum())
        if change > _CHANGED * float(self._weight.sum()):
            hessian = sample.gram(weight)
            hessian.ravel()[:: len(hessian) + 1] += sample.penalty + weight.sum() * sample.unseen()
            self._weight, self._inverse = weight, inverse(hessian)[:-1, :-1]
        return self._inverse, longer


class _Hessian:
    """The Hessian at a snapshot, of the weights alone; the intercepts make their best step.

    Parameters
    ----------
    curvature_shift : float
        The curvature shift; see `Loss.second_derivative`.
    common : _Common, optional
        The preconditioner of each class, which replaces the diagonal.

    Attributes
    ----------
    rows : _Rows
    penalty, diagonal : numpy.ndarray, (p, 1) and (p, K)
        `diagonal` exists only without `common`.
    """

    def __init__(
        self,
        objective: Objective,
        rows: _Rows,
        snapshot: Snapshot,
        curvature_shift: float,
        common: _Common | None,
    ) -> None:
        self._objective, self.rows, self._snapshot = objective, rows, snapshot
        share, dtype = objective.share, rows.dtype
        scores = snapshot.scores
        if objective.loss.outputs > 1:
            scores = scores.astype(dtype)  # of many classes these are large arrays
        curvature = objective.loss.second_derivative(scores, objective.target, curvature_shift)
        self._inverse = np.zeros((objective.loss.outputs,) * 2)
        if objective.intercept:
            self._inverse = curvature.inverse_of_total(share)
        self._weight_penalty = objective.penalty[:-1]
        self.penalty = objective.penalty[:-1, None]
        self._curvature, self._share = curvature.astype(dtype), share.astype(dtype)
        self._preconditioned: Callable[[NumPyArray], NumPyArray]
        if common is None:
            self.diagonal = self._diagonal(curvature.diagonal * share[:, None])
            self._preconditioned = lambda gradient: centre_classes(gradient / self.diagonal)
        else:
            matrix, longer = common.inverse(curvature)
            self._preconditioned = lambda gradient: centre_classes((matrix @ gradient) * longer)

    def _diagonal(self, each: NumPyArray) -> NumPyArray:
        """Return the Hessian's diagonal, from the curvatures times the shares."""
        self._each = each.astype(self.rows.dtype)
        self._mean, square = self.rows.moments(self._each)
        if self._objective.intercept:
            centred = square - np.square(self._mean) / np.maximum(each.sum(axis=0), _TINY)
            square = np.maximum(centred, _CENTRED * square)
        diagonal = square + self.penalty
        return np.where(diagonal > 0, diagonal, 1.0)

    def _weighted(self, along: NumPyArray, part: slice) -> NumPyArray:
        """Return the change of the residuals by a change of some rows' scores, times the shares."""
        share, change = self._share[part], self._curvature.subset(part).times(along)
        change *= share[:, None]
        return change

    def _products(self, along: NumPyArray) -> NumPyArray:
        """Return the products of the features with the change of all residuals."""
        return self.rows.products(lambda part: self._weighted(along[part], part))

    def _total(self, along: NumPyArray) -> NumPyArray:
        """Return the sums of the residuals' change over the rows."""

        def block_product(block: Block) -> NumPyArray:
            change = self._curvature.subset(block.part).times(block.scores)
            return np.asarray(self._share[block.part] @ change, np.float64)

        total: NumPyArray = self._objective.own.sum(block_product, kept=Kept(along), reads=False)
        return total

    def _best(self, weight_effect: NumPyArray) -> NumPyArray:
        """Return the intercepts' best step, given the other weights' effect on their gradient."""
        return np.asarray(-self._inverse @ weight_effect)

    def _image(self, step: NumPyArray) -> tuple[NumPyArray, NumPyArray, NumPyArray]:
        """Return the intercepts' best step for a step, and the scores and gradient of both."""
        if self._objective.loss.outputs == 1:
            along, product = self.rows.image(step, self._each)
            best = self._best(np.sum(self._each * along, axis=0, dtype=np.float64))
            along += best.astype(along.dtype)
            # The intercept's effect on the gradient is known without reading the rows.
            product += best * self._mean
        else:
            along = self.rows.times(step)
            best = self._best(self._total(along))
            along += best.astype(along.dtype)
            product = self._products(along)
        product += self.penalty * step
        return best, along, product

    def _reduced(self, gradient: NumPyArray) -> tuple[NumPyArray, NumPyArray]:
        """Return the gradient after the intercepts' best step, and that step."""
        first = self._best(gradient[-1])
        if not np.any(first):
            return gradient[:-1], first
        if self._objective.loss.outputs == 1:
            return gradient[:-1] + first * self._mean, first
        shape = self._snapshot.scores.shape
        moved = np.broadcast_to(first.astype(self.rows.dtype), shape)
        return gradient[:-1] + self._products(moved), first

    def solved(self, last: float, target: Target) -> tuple[Step, float]:
        """Return the step of conjugate gradients that leaves a given part of the gradient.

        The iteration also ends when the gap after the step is small enough relative to the total
        improvement, before the step and by the step itself.

        Parameters
        ----------
        last : float
            The gradient's size at the last step: if that step gained much, the next one leaves
            less.

        Returns
        -------
        step : Step
            The step. Its decrement is its predicted gain plus an estimate of what remains.
        size : float
            The size of the gradient in the preconditioner's metric.
        """
        gradient = self._snapshot.gradient
        reduced, intercept = self._reduced(gradient)
        right = -centre_classes(reduced)
        scores = np.zeros(self._snapshot.scores.shape, self.rows.dtype)
        scores += intercept.astype(scores.dtype)
        size = float(np.sqrt(np.vdot(right, self._preconditioned(right))))
        # A quadratic function has a constant Hessian: a second step would gain nothing.
        forcing = 0.0
        if not self._objective.loss.is_quadratic:
            left = constants.MOST_FORCING * size / max(last, _TINY)
            forcing = float(np.clip(left, _LEAST_FORCING, constants.MOST_FORCING))
        tol, gained = constants.MOST_FORCING * target.tol, target.gained
        best: NumPyArray
        along: NumPyArray

        def product(direction: NumPyArray) -> NumPyArray:
            nonlocal best, along
            best, along, image = self._image(direction)
            return image

        def taken(length: float, square: float, rest: NumPyArray) -> bool:
            nonlocal gained, intercept, scores
            gained += 0.5 * length * square
            intercept = intercept + length * best
            np.multiply(along, along.dtype.type(length), out=along)
            scores += along
            if self._objective.is_late:
                return True
            return weighted_square(rest, self._weight_penalty) <= tol * gained

        found = conjugate_gradients(product, right, self._preconditioned, forcing, taken)
        change = np.concatenate([found.step, intercept[None]])
        fall = -float(np.vdot(gradient, change))
        decrement = 0.5 * fall + 0.5 * found.square / found.least_eigenvalue
        return Step(change, decrement, fall, scores), size
