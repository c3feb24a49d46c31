r"""Newton's method by conjugate gradients: where the Hessian is too large to be factored.

From a snapshot, which is taken in float64, the step :math:`v = -H^{-1} g` is solved for as far as
it is worth (Dembo, Eisenstat & Steihaug 1982), with the Hessian's diagonal as preconditioner. For
classes of dense rows it is the mean of the classes' Hessians on a sample: one matrix for all, and a
number for each. The products :math:`H v` are those of a copy of the rows in float32. The intercepts
are eliminated: for each v their best step is known from n numbers, and what is left is the Hessian
of features that are centred with the curvatures as weights. The length of the step is looked for on
the scores alone.

Rows that are far on the wrong side have next to no curvature, and a whole step overshoots by far.
After a step that was cut short their curvature is taken of a mean nearer to their target, until
steps are long again (`Loss.second_derivative`); the Hessian itself is used near the optimum.

The gap of a snapshot is that of its gradient, which conjugate gradients make small in all
directions: the run ends by proof.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import scipy.linalg
from scipy.sparse import issparse

from provenglm import constants
from provenglm.methods.metric import inverse
from provenglm.methods.newton import of_no_shift
from provenglm.methods.state import State
from provenglm.model.coordinates import in_coordinates
from provenglm.model.losses import SecondDerivative
from provenglm.model.objective import Objective, Snapshot
from provenglm.model.sample import Sample
from provenglm.model.sampling import fits_float32, has_offsets
from provenglm.proof.duality import duality_gap, weighted_square
from provenglm.rows.blocks import parts_of
from provenglm.rows.centred import write_centred
from provenglm.rows.csr import made_of
from provenglm.rows.products import column_products, column_squares
from provenglm.types import NumPyArray

_ROUNDING = 1e-14
"""Of the objective."""

_CENTRED = 1e-3
"""Of a column's squares, that its centring leaves at least: less would be rounding."""

_TINY = float(np.finfo(np.float64).tiny)


def states(
    objective: Objective,
    start: NumPyArray,
    tol: float,
    is_precise: bool,
    has_room: bool,
    sample: Sample | None = None,
) -> Iterator[State]:
    """Yield a state for each step of Newton's method; ends where no step leads lower.

    Parameters
    ----------
    tol : float
        Relative to what is gained over the objective without features: a snapshot that is proven
        to be as near has no step looked for.
    is_precise : bool
        Whether float32 has too few digits for the products.
    has_room : bool
        Whether there is memory for a copy of the rows.
    sample : Sample, optional
        Of dense rows with classes: whose mean Hessian over the classes is the preconditioner.
    """
    objective = replace(objective, rows=objective.rows.precise())
    is_precise = is_precise or _needs_float64(objective)
    dtype = np.dtype(np.float64 if is_precise else np.float32)
    rows = _Rows(objective, dtype, has_room)
    null = objective.null()[1]
    snapshot = objective.snapshot(of_no_shift(start))
    last = caution = 0.0
    common = None if sample is None else _Common(sample)
    while True:
        gap = duality_gap(objective, snapshot)
        enough = tol * (null - snapshot.objective)
        if gap <= enough:
            yield State(objective, snapshot, gap, objective.passes, name="newton-cg", is_cheap=True)
        hessian = _Hessian(objective, rows, snapshot, caution, common)
        step, size, decrement = hessian.solved(
            last, constants.MOST_FORCING * tol, null - snapshot.objective
        )
        # With caution the model gains less than there is.
        decrement = gap if caution else min(gap, decrement)
        yield State(
            objective, snapshot, decrement, objective.passes, name="newton-cg", is_cheap=True
        )
        length = length_of(objective, snapshot, step)
        new = objective.snapshot(snapshot.theta + length * step.theta)
        gained = snapshot.objective - new.objective
        is_lower = gained > _ROUNDING * abs(snapshot.objective)
        if dtype == np.float32 and not is_lower:
            # It may have no more digits to give.
            dtype = np.dtype(np.float64)
            rows = _Rows(objective, dtype, has_room)
        elif not is_lower:
            return
        if is_lower:
            snapshot, last = new, size
        caution = next_caution(caution, length)


def _needs_float64(objective: Objective) -> bool:
    """Return whether float32 has too few digits for the rows: sparse ones are not centred."""
    rows, scaling = objective.rows, objective.scaling
    if not rows.is_sparse:
        return False
    return not fits_float32(rows, scaling) or has_offsets(rows, scaling)


def next_caution(caution: float, length: float) -> float:
    """Return the next step's caution, after one of this length."""
    if length < constants.SHORT:
        return min(max(2 * caution, constants.FIRST_CAUTION), 0.5)
    if length > 1 - constants.SHORT:
        return caution / 4 if caution >= constants.FIRST_CAUTION else 0.0
    return caution


class Step(NamedTuple):
    """A step, with the scores along it.

    Attributes
    ----------
    gain : float
        What the quadratic model gains with the whole step.
    """

    theta: NumPyArray
    scores: NumPyArray
    gain: float


class _Rows:
    """The rows in theta's coordinates, and the products with them.

    Parameters
    ----------
    dtype : numpy dtype
        Of the copy; sums of blocks are float64.
    has_room : bool
        If there is none, each product makes the blocks again.
    """

    def __init__(self, objective: Objective, dtype: np.dtype[Any], has_room: bool) -> None:
        self._objective = objective
        self.dtype = dtype
        self._parts = objective.rows.slices()
        self._blocks: list[Any] = [None] * len(self._parts)
        if has_room:
            self._blocks = list(objective.workers.map(self._made, range(len(self._parts))))

    def _made(self, k: int) -> Any:
        scaling = self._objective.scaling
        block: Any = self._objective.rows.block(self._parts[k])
        if not issparse(block):
            return write_centred(block, scaling, np.empty(block.shape, self.dtype))
        data = in_coordinates(block.data, block.indices, scaling).astype(self.dtype)
        return made_of(data, block.indices, block.indptr, block.shape)

    def _block(self, k: int) -> Any:
        block = self._blocks[k]
        return self._made(k) if block is None else block

    def times(self, weights: NumPyArray) -> NumPyArray:
        """Return the products of all rows with weights, (n,) or (n, K): half a pass."""
        objective = self._objective
        outputs = weights.shape[1:]
        scores = np.empty((objective.n, *outputs), self.dtype)
        weights = weights.astype(self.dtype)

        def fill(k: int) -> None:
            scores[self._parts[k]] = self._block(k) @ weights

        for _ in objective.workers.map(fill, range(len(self._parts))):
            pass
        objective.reads.rows += objective.n / 2
        return scores

    def image(self, weights: NumPyArray, each: NumPyArray) -> tuple[NumPyArray, NumPyArray]:
        """Return the scores for weights, (n,), and the features' products with `each` of them.

        A pass that reads each block once, for one output.
        """
        objective = self._objective
        scores = np.empty(objective.n, self.dtype)
        weights = weights.astype(self.dtype)

        def product(k: int) -> NumPyArray:
            block, part = self._block(k), self._parts[k]
            scores[part] = block @ weights
            return column_products(block, each[part] * scores[part])

        objective.reads.rows += objective.n
        return scores, self._summed(product, ())

    def products(self, columns: Callable[[slice], NumPyArray], outputs: int) -> NumPyArray:
        """Return the products of the features with numbers of each row: half a pass.

        The numbers of a block are made when it is read, for a cache has room for them.
        """
        self._objective.reads.rows += self._objective.n / 2
        return self._summed(
            lambda k: column_products(self._block(k), columns(self._parts[k])), (outputs,)
        )

    def moments(self, columns: NumPyArray) -> tuple[NumPyArray, NumPyArray]:
        """Return the products of the features, and of their squares, with numbers of each row."""

        def product(k: int) -> NumPyArray:
            block, part = self._block(k), columns[self._parts[k]]
            return np.stack([column_products(block, part), column_squares(block, part)], axis=-1)

        self._objective.reads.rows += self._objective.n
        both = self._summed(product, (*columns.shape[1:], 2))
        return both[..., 0], both[..., 1]

    def _summed(self, of_block: Callable[[int], NumPyArray], shape: tuple[int, ...]) -> NumPyArray:
        """Return a sum over all blocks, in float64: (p, *shape)."""
        objective = self._objective
        total = np.zeros((objective.rows.shape[1], *shape))
        for each in objective.workers.map(of_block, range(len(self._parts)), together=1):
            total += each
        return total


class _Common:
    """The inverse of the mean of the classes' Hessians, on a sample: it is as large as for one.

    It is computed again when a fifth of the curvature has changed. The step of a class is longer by
    the root of the mean curvature over its own: without a penalty the ratio itself would be right,
    with a large one 1. 50 unbalanced classes took 51 passes without it, and 27 with it.
    """

    def __init__(self, sample: Sample) -> None:
        self._sample = sample
        self._weight: NumPyArray = np.zeros(len(sample.share))
        self._inverse: NumPyArray = np.zeros((0, 0))

    def inverse(self, curvature: SecondDerivative) -> tuple[NumPyArray, NumPyArray]:
        """Return the inverse, (p, p), where the intercept makes its best step, and the roots, (K,).

        A class's steps are longer by its root.
        """
        sample = self._sample
        assert sample.indices is not None
        diagonal = curvature.part(sample.indices).diagonal
        weight, of_class = sample.share * diagonal.mean(axis=1), sample.share @ diagonal
        least = float(np.finfo(np.float32).eps) * of_class.mean()
        longer = np.sqrt(of_class.mean() / np.maximum(of_class, max(least, _TINY)))
        change = float(np.abs(weight - self._weight).sum())
        if change > 4 * constants.CHANGED * float(self._weight.sum()):
            hessian = sample.gram(weight)
            hessian.ravel()[:: len(hessian) + 1] += sample.penalty + weight.sum() * sample.unseen()
            self._weight, self._inverse = weight, inverse(hessian)[:-1, :-1]
        return self._inverse, longer


class _Hessian:
    """The Hessian at a snapshot, of the weights alone: the intercepts follow them.

    Parameters
    ----------
    caution : float
        See `Loss.second_derivative`.
    common : _Common, optional
        The preconditioner of each class, in place of the diagonal.

    Attributes
    ----------
    rows : _Rows
    penalty, diagonal : numpy.ndarray, (p,) or (p, 1) and theta[:-1]'s shape
        `diagonal` exists only if there is no `common`.
    """

    def __init__(
        self,
        objective: Objective,
        rows: _Rows,
        snapshot: Snapshot,
        caution: float,
        common: _Common | None,
    ) -> None:
        self._objective, self.rows, self._snapshot = objective, rows, snapshot
        share, dtype = objective.share, rows.dtype
        scores = snapshot.scores
        if scores.ndim > 1:
            scores = scores.astype(dtype)  # of many classes these are large arrays
        curvature = objective.loss.second_derivative(scores, objective.target, caution)
        self._inverse = np.zeros((objective.loss.outputs,) * 2)
        if objective.intercept:
            self._inverse = curvature.inverse_of_total(share)
        self._of_weights = objective.penalty[:-1]
        self.penalty = objective.used(snapshot.theta)[:-1]
        self._curvature, self._share = curvature.astype(dtype), share.astype(dtype)
        self._preconditioned: Callable[[NumPyArray], NumPyArray]
        if common is None:
            self.diagonal = self._diagonal((curvature.diagonal.T * share).T)
            self._preconditioned = lambda gradient: of_no_shift(gradient / self.diagonal)
        else:
            matrix, longer = common.inverse(curvature)
            self._preconditioned = lambda gradient: of_no_shift((matrix @ gradient) * longer)

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
        """Return what a change of some rows' scores makes of their residuals, times the shares."""
        share, change = self._share[part], self._curvature.part(part).times(along)
        change *= share if change.ndim == 1 else share[:, None]
        return change

    def _products(self, along: NumPyArray) -> NumPyArray:
        """Return the products of the features with what it makes of all residuals."""
        return self.rows.products(
            lambda part: self._weighted(along[part], part), self._objective.loss.outputs
        )

    def _total(self, along: NumPyArray) -> NumPyArray:
        """Return the sums of that over the rows."""

        def of(part: slice) -> NumPyArray:
            return np.asarray(self._share[part] @ self._curvature.part(part).times(along[part]))

        total: NumPyArray = np.zeros(along.shape[1:])
        for each in self._objective.workers.map(of, self._objective.rows.slices()):
            total += each
        return total

    def _best(self, of_weights: NumPyArray) -> NumPyArray:
        """Return the intercepts' step for what the others make of their gradient."""
        step = -self._inverse @ np.atleast_1d(of_weights)
        return np.asarray(step if self._objective.loss.outputs > 1 else step[0])

    def _image(self, step: NumPyArray) -> tuple[NumPyArray, NumPyArray, NumPyArray]:
        """Return the intercepts' best step beside one, and scores and gradient of both."""
        if step.ndim == 1:
            along, product = self.rows.image(step, self._each)
            best = self._best(np.sum(self._each * along, dtype=np.float64))
            along += best.astype(along.dtype)
            # What the intercept adds to the gradient is known without the rows.
            product += best * self._mean
        else:
            along = self.rows.times(step)
            best = self._best(self._total(along))
            along += best.astype(along.dtype)
            product = self._products(along)
        product += self.penalty * step
        return best, along, product

    def _reduced(self, gradient: NumPyArray) -> tuple[NumPyArray, NumPyArray]:
        """Return the gradient where the intercepts have made their best step, and that step."""
        first = self._best(gradient[-1])
        if not np.any(first):
            return gradient[:-1], first
        if gradient.ndim == 1:
            return gradient[:-1] + first * self._mean, first
        shape = self._snapshot.scores.shape
        moved = np.broadcast_to(first.astype(self.rows.dtype), shape)
        return gradient[:-1] + self._products(moved), first

    def solved(self, last: float, tol: float, gained: float) -> tuple[Step, float, float]:
        """Return the step of conjugate gradients that leaves a part of the gradient.

        They also end when the gap after the step is at most `tol` times what is gained by then:
        `gained` before the step, and the step itself.

        Parameters
        ----------
        last : float
            The gradient's size at the last step: the more that step gained, the less is left.

        Returns
        -------
        step : Step
        size : float
            Of the gradient, in the preconditioner's metric.
        decrement : float
            What the step gains, and about what it leaves.
        """
        gradient = self._snapshot.gradient
        reduced, intercept = self._reduced(gradient)
        rest = -of_no_shift(reduced)
        step = np.zeros_like(rest)
        scores = np.zeros(self._snapshot.scores.shape, self.rows.dtype)
        scores += intercept.astype(scores.dtype)
        scaled = self._preconditioned(rest)
        direction = scaled.copy()
        square = started = float(np.vdot(rest, scaled))
        # A quadratic function is the same everywhere: a second step would gain nothing.
        forcing = 0.0
        if not self._objective.loss.is_quadratic:
            left = constants.MOST_FORCING * float(np.sqrt(started)) / max(last, _TINY)
            forcing = float(np.clip(left, constants.LEAST_FORCING, constants.MOST_FORCING))
        lengths: list[float] = []
        ratios: list[float] = []
        while square > forcing**2 * started and len(lengths) < constants.MOST_STEPS:
            best, along, product = self._image(direction)
            curvature = float(np.vdot(direction, product))
            if not curvature > 0:
                break  # rounding
            length = square / curvature
            gained += 0.5 * length * square
            step += length * direction
            intercept = intercept + length * best
            along *= along.dtype.type(length)
            scores += along
            rest -= length * product
            scaled = self._preconditioned(rest)
            lengths.append(length)
            ratios.append(float(np.vdot(rest, scaled)) / square)
            square *= ratios[-1]
            direction *= ratios[-1]
            direction += scaled
            is_late = self._objective.is_late
            if is_late or weighted_square(rest, self._of_weights) <= tol * gained:
                break
        theta = np.concatenate([step, intercept[None]])
        gain = -0.5 * float(np.vdot(gradient, theta))
        left = 0.5 * square / _least_eigenvalue(lengths, ratios)
        return Step(theta, scores, gain), float(np.sqrt(started)), gain + left


def _least_eigenvalue(lengths: list[float], ratios: list[float]) -> float:
    """Return the least Ritz value of conjugate gradients (Golub & Van Loan 2013, section 11.3)."""
    if not lengths:
        return 1.0
    inverse, ratio = 1 / np.array(lengths), np.array(ratios[:-1])
    diagonal = inverse.copy()
    diagonal[1:] += ratio * inverse[:-1]
    beside = np.sqrt(ratio) * inverse[:-1]
    values = scipy.linalg.eigh_tridiagonal(
        diagonal, beside, eigvals_only=True, select="i", select_range=(0, 0)
    )
    return max(float(values[0]), _TINY)


def length_of(objective: Objective, snapshot: Snapshot, step: Step) -> float:
    """Return about which part of a step leads to the least along it, by the scores alone."""
    theta, penalty = snapshot.theta, objective.used(snapshot.theta)
    parts = parts_of(objective.n, objective.loss.outputs)
    at_start = 0.5 * float((penalty * theta * theta).sum())
    of_penalty = float((penalty * theta * step.theta).sum())
    square = float((penalty * step.theta * step.theta).sum())
    falls = 2 * step.gain

    def at(length: float) -> tuple[float, float]:
        """Return objective and slope."""

        def of_part(part: slice) -> NumPyArray:
            share, along = objective.share[part], step.scores[part]
            with np.errstate(over="ignore", invalid="ignore"):
                value, residual = objective.loss.value_and_residual(
                    snapshot.scores[part] + length * along, objective.target[part]
                )
                residual *= along
                rise = residual.reshape(len(share), -1).sum(axis=1)
                return np.array([share @ value, share @ rise])

        value = at_start + length * (of_penalty + 0.5 * length * square)
        slope = of_penalty + length * square
        for of_value, of_slope in objective.workers.map(of_part, parts):
            value, slope = value + of_value, slope + of_slope
        return value, slope

    low, high, length = (0.0, -falls), (np.inf, np.inf), 1.0
    rose = None
    for _ in range(constants.MOST_STEPS):
        value, here = at(length)
        if abs(here) <= constants.SLOPE * falls and (here <= 0 or value <= snapshot.objective):
            break
        # An end that stays twice counts half (Illinois): its slope may be much the steeper one, and
        # the ends would close up by a few per cent at a time.
        if here < 0:
            low = length, here
            if rose is False:
                high = high[0], 0.5 * high[1]
        else:
            high = length, here if here < np.inf else np.inf
            if rose:
                low = low[0], 0.5 * low[1]
        rose = not here < 0
        length = _between(low, high)
    return length


def _between(low: tuple[float, float], high: tuple[float, float]) -> float:
    """Return the next length between two, each with the slope there."""
    (start, falls), (end, rises) = low, high
    if end == np.inf:
        return 2 * start
    if rises == np.inf:
        return start + 0.1 * (end - start)
    return start + (end - start) * float(np.clip(falls / (falls - rises), 0.05, 0.95))
