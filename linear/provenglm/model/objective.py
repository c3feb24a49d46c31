r"""The objective in the solver's own coordinates, and its full pass.

The solver sees :math:`\hat x_j = (x_j - c_j) / d_j`, with the weighted mean and standard deviation
of each feature, and the penalty :math:`\lambda / d_j^2` for each: the same function of the same
model, better scaled. Rows are never scaled themselves: the pass takes the scores of a block with
:math:`W = \theta / d` and puts the gradient into these coordinates afterwards.

`theta` has p + 1 rows, the last of them the intercept, and a column for each output of softmax:
``(p + 1,)`` or ``(p + 1, K)``, float64.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field, fields, replace
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np

from provenglm.model import null_model
from provenglm.model.losses import Loss, Noise
from provenglm.rows.base import Features, Rows
from provenglm.rows.far import AnyTable
from provenglm.rows.products import column_products, dense_products
from provenglm.rows.table import Block, Kept, Linear, Table
from provenglm.types import NumPyArray
from provenglm.workers import Workers


class Sums(NamedTuple):
    """Sums over all rows, times their shares.

    Attributes
    ----------
    value : float
        Of the losses.
    products : numpy.ndarray, (p,) or (p, K)
        Of the residuals times the features.
    residuals : numpy.ndarray, () or (K,)
    squares : numpy.ndarray, (p,), optional
        Of the features' squares.
    noise : tuple, optional
        The mean square of the residuals, and what bounds their rounding errors.
    """

    value: float
    products: NumPyArray
    residuals: NumPyArray
    squares: NumPyArray | None
    noise: tuple[float, Noise] | None = None


@dataclass(frozen=True)
class Snapshot:
    """What one pass over all rows gives.

    Attributes
    ----------
    theta : numpy.ndarray, (p + 1,) or (p + 1, K)
    objective : float
    gradient : numpy.ndarray, theta's shape
        The penalty's included.
    kept : Kept, optional
        The score table, offsets included, from which losses and residuals are computed; None for
        far rows.
    sums : Sums, optional
        The sums in float64 of which objective and gradient consist, for the user's features.
    is_single : bool
        Whether objective and gradient were computed in float32.
    is_derived : bool
        Whether the scores are those of another point and a step's, not of `theta` anew.
    clipped : int, optional
        The number of blocks in which a score was clipped, if it is known.
    misplaced : int, optional
        The number of rows with a weight that are not on the side of their class, if it is known.
    """

    theta: NumPyArray
    objective: float
    gradient: NumPyArray
    kept: Kept | None
    sums: Sums | None = None
    is_single: bool = False
    is_derived: bool = False
    clipped: int | None = None
    misplaced: int | None = None

    @property
    def scores(self) -> NumPyArray:
        """The score table of rows in memory, (n,) or (n, K)."""
        assert self.kept is not None
        return self.kept.scores


@dataclass(frozen=True)
class Scaling:
    """Centre and inverse scale of each feature; an inverse scale of 0 leaves a feature out."""

    center: NumPyArray
    inverse: NumPyArray

    def to_user(self, theta: NumPyArray) -> tuple[NumPyArray, NumPyArray]:
        """Return weights and intercept for the rows as they are."""
        weights = (theta[:-1].T * self.inverse).T
        return weights, theta[-1] - self.center @ weights

    def from_user(self, weights: NumPyArray, intercept: NumPyArray) -> NumPyArray:
        """Return theta for the user's weights and intercept."""
        used = self.inverse > 0
        scale = np.divide(1, self.inverse, out=np.zeros_like(self.inverse), where=used)
        return np.concatenate(
            [(weights.T * scale).T, [intercept + self.center @ (weights.T * used).T]]
        )


_Kind = TypeVar("_Kind", bound="Objective")


@dataclass
class Reads:
    """How many rows have been read, by all that work on one problem."""

    rows: float = 0.0


@dataclass
class Objective:
    """Rows with targets and shares, and the full pass over them.

    Attributes
    ----------
    table : Table or FarTable
        The rows, and what belongs to each of them.
    penalty : numpy.ndarray, (p + 1,)
        Of each row of theta: lambda / d_j^2, and 0 of the intercept.
    l1 : numpy.ndarray, (p + 1,), optional
        The same of its size: mu / d_j, and 0 of the intercept. The gradient of a snapshot is
        without it.
    moments : tuple of numpy.ndarray, optional
        The mean of the features, (p,), and their products with the targets, theta[:-1]'s shape:
        the duality gap needs them. The first snapshot takes them along.
    squares : numpy.ndarray, (p,), optional
        The mean squares of the features, which a proof needs; of dense rows in float64 the first
        snapshot takes them along, too.
    takes_moments : bool
        Whether the first snapshot takes them along; else the duality gap is that of no residuals.
    rare : numpy.ndarray, (p,), bool
        Features of whose curvature a sample knows next to nothing.
    left_out : numpy.ndarray, optional
        The indices of features that vary too little for float64. With a penalty they do not matter.
    reads : Reads
        Shared with the copies of it.
    room : int, optional
        Bytes that rows on disk may take in memory: see `budget`.
    deadline : float
        Of `time.perf_counter`, after which a method ends what it is at.
    """

    table: AnyTable
    loss: Loss
    scaling: Scaling
    penalty: NumPyArray
    intercept: bool
    centered: bool = False
    moments: tuple[NumPyArray, NumPyArray] | None = None
    squares: NumPyArray | None = None
    takes_moments: bool = True
    rare: NumPyArray | None = None
    left_out: NumPyArray | None = None
    l1: NumPyArray | None = None
    reads: Reads = field(default_factory=Reads)
    room: int | None = None
    deadline: float = math.inf

    @property
    def rows(self) -> Rows:
        """The rows; of those in other processes their shape and dtype."""
        rows: Any = self.table.rows
        return cast("Rows", rows)

    @property
    def workers(self) -> Workers:
        """The threads."""
        return self.table.workers

    @property
    def target(self) -> NumPyArray:
        """The targets of rows in memory, (n,)."""
        return self.own.target

    @property
    def share(self) -> NumPyArray:
        """The shares of rows in memory, (n,)."""
        return self.own.share

    @property
    def offset(self) -> NumPyArray | None:
        """The offsets of rows in memory, (n,) or (n, K)."""
        return self.own.offset

    @property
    def own(self) -> Table:
        """The table of rows that are in this process."""
        assert isinstance(self.table, Table)
        return self.table

    def on(self: _Kind, **changes: Any) -> _Kind:
        """Return the objective on a table with other rows, targets, shares or offsets."""
        return replace(self, table=replace(self.own, **changes))

    def precise(self: _Kind) -> _Kind:
        """Return the objective with features in float64."""
        return replace(self, table=self.table.precise())

    def extended(self, kind: type[_Kind], **more: Any) -> _Kind:
        """Return this objective as one of a subclass, with what that has beside."""
        given = {one.name: getattr(self, one.name) for one in fields(Objective)}
        return kind(**given, **more)

    @property
    def is_late(self) -> bool:
        """Whether the deadline is over."""
        return self.deadline < time.perf_counter()

    @property
    def is_penalised(self) -> bool:
        """Whether there is a penalty on a feature that is not left out."""
        if self.l1 is not None:
            return True
        used = self.scaling.inverse > 0
        return bool(self.penalty[:-1][used].max(initial=0) > 0)

    @property
    def n(self) -> int:
        """Number of rows."""
        return self.rows.shape[0]

    @property
    def passes(self) -> float:
        """How often the rows have been read, those of shuffled copies and samples included."""
        return self.reads.rows / self.n

    def used(self, theta: NumPyArray) -> NumPyArray:
        """Return the penalty in the shape that multiplies `theta`."""
        return of_rows(self.penalty, theta)

    def targets(self, rows: slice | NumPyArray, dtype: np.dtype[Any]) -> NumPyArray:
        """Return the targets of some rows: classes as they are, numbers in `dtype`."""
        target = self.target[rows]
        return target if target.dtype.kind in "iu" else target.astype(dtype, copy=False)

    def beside(self, bias: NumPyArray, rows: slice, dtype: np.dtype[Any]) -> NumPyArray:
        """Return what is added to the products of some rows: intercept and offsets, in `dtype`.

        The sum of the two is taken in float64, because both may be large and cancel.
        """
        if self.offset is None:
            return np.asarray(bias, dtype)
        return np.asarray(bias + self.offset[rows], dtype)

    def block(self, rows: slice | NumPyArray) -> Features:
        """Return a block as the scores are taken from it."""
        block = self.rows.block(rows) if isinstance(rows, slice) else self.rows.pick(rows)
        return block - self.scaling.center if self.centered else block

    def model(self, theta: NumPyArray) -> Linear:
        """Return the linear model that has the scores of `theta`, for the features as they are."""
        weights, bias = self.scaling.to_user(theta)
        weights = weights.astype(self.rows.dtype)
        if self.centered:
            return Linear(weights, np.asarray(theta[-1]), self.scaling.center)
        return Linear(weights, np.asarray(bias))

    def sum(self, function: Any, *small: Any, at: Snapshot | None = None) -> Any:
        """Return the sum over all blocks of a function that needs no features, only scores.

        For far rows it is a pass over the features.

        Parameters
        ----------
        function : callable
            See `Table.sum`.
        at : Snapshot, optional
            The point whose scores the function asks for.
        """
        if at is None:
            return self.table.sum(function, *small, reads=False)
        if at.kept is not None:
            return self.table.sum(function, *small, kept=at.kept, reads=False)
        self.reads.rows += self.n
        return self.table.sum(function, *small, at=self.model(at.theta), reads=False)

    def snapshot(self, theta: NumPyArray) -> Snapshot:
        """Return objective, gradient and scores at `theta`: one pass."""
        takes_moments = self.takes_moments and self.moments is None
        # With an L1 penalty a proof by a Newton step is rare, and reads the rows itself.
        takes_sums = self.rows.dtype == np.float64 and not self.centered
        takes_squares = takes_sums and self.squares is None and self.l1 is None
        takes_squares &= not self.rows.is_sparse
        kept = None
        if not self.table.is_far:
            kept = Kept(np.empty((self.n, *theta.shape[1:]), self.rows.dtype))
        # Of far rows a proof would need another pass for it.
        is_far = self.table.is_far
        takes_noise = is_far and takes_sums and not self.loss.has_classes
        takes_sides = is_far and self.loss.is_separable and not self.is_penalised
        wanted = self.loss, takes_moments, takes_squares, takes_noise, takes_sides

        def evaluated(block: Block) -> Evaluated:
            assert kept is not None
            kept.scores[block.part] = block.scores
            return evaluate(block, *wanted)

        model = self.model(theta)
        if kept is None:
            found = self.table.sum(evaluate, *wanted, at=model)
        else:
            found = self.table.sum(evaluated, at=model)
        self.reads.rows += self.n
        sums = found.products
        if takes_moments:
            sums = self._without_moments(sums)
        gradient = np.empty_like(theta)
        gradient[:-1] = np.reshape(sums, gradient[:-1].shape)
        gradient[-1] = found.residuals
        if takes_squares:
            self.squares = found.squares
        return self.snapshot_of(theta, found.value, gradient, kept, found)

    def at_scores(self, theta: NumPyArray, scores: NumPyArray) -> Snapshot:
        """Return the snapshot where the scores are known, of dense rows.

        The work of half a pass, counted as a whole one.
        """
        target = self.targets(slice(None), scores.dtype)
        values, residual = self.loss.value_and_residual(scores, target)
        residual *= self.share
        gradient = np.zeros_like(theta)
        gradient[-1] = residual.sum()
        takes_moments = self.takes_moments and self.moments is None
        numbers = residual[None]
        if takes_moments:
            columns = target_columns(self.loss, self.target, self.share)
            numbers = np.stack([residual, self.share, columns])
        numbers = numbers.astype(self.rows.dtype, copy=False)

        def of_block(rows: slice) -> NumPyArray:
            return dense_products(self.block(rows), numbers[:, rows])

        sums = np.zeros((len(numbers), len(theta) - 1))
        for of_weights in self.workers.map(of_block, self.rows.slices()):
            sums += of_weights
        self.reads.rows += self.n
        gradient[:-1] = self._without_moments(sums.T)[:, 0] if takes_moments else sums[0]
        value = float(values @ self.share)
        return self.snapshot_of(theta, value, gradient, Kept(scores))

    def snapshot_of(
        self,
        theta: NumPyArray,
        value: float,
        gradient: NumPyArray,
        kept: Kept | None,
        found: Evaluated | None = None,
    ) -> Snapshot:
        """Return the snapshot of sums over all rows; `gradient` is changed in place.

        Parameters
        ----------
        value : float
            The sum of the losses.
        gradient : numpy.ndarray, theta's shape
            That of the residuals times the features as `block` has them, and of the residuals.
        kept : Kept, optional
        found : Evaluated, optional
            What else a pass has found.
        """
        known = None
        if self.rows.dtype == np.float64 and not self.centered:
            noise = None if found is None else found.noise
            known = Sums(value, gradient[:-1].copy(), np.array(gradient[-1]), self.squares, noise)
        self.to_theta(gradient)
        penalty = self.used(theta)
        value += 0.5 * float((penalty * theta * theta).sum())
        if self.l1 is not None:
            value += float(of_rows(self.l1, theta).ravel() @ np.abs(theta).ravel())
        gradient += penalty * theta
        is_single = self.rows.dtype == np.float32
        point = theta, value, gradient, kept, known, is_single
        if found is None:
            return Snapshot(*point)
        return Snapshot(*point, clipped=found.clipped, misplaced=found.misplaced)

    def _without_moments(self, sums: NumPyArray) -> NumPyArray:
        """Keep the moments out of the sums of a pass; return what the residuals gave, (p, K)."""
        k = self.loss.outputs
        self.take_moments(sums[:, k], sums[:, k + 1 :])
        return sums[:, :k]

    def take_moments(self, mean: NumPyArray, of_target: NumPyArray) -> None:
        """Keep the moments.

        Parameters
        ----------
        mean : numpy.ndarray, (p,)
            The sum of the features as `block` has them, times their shares.
        of_target : numpy.ndarray, (p, K)
            The same of features times `target_columns`.
        """
        total, share = self.mean_target(), self.table.known(_share)
        if not self.centered:
            mean = mean - share * self.scaling.center
            of_target = of_target - np.multiply.outer(self.scaling.center, np.atleast_1d(total))
        of_target = (of_target.T * self.scaling.inverse).T
        if self.loss.outputs == 1:
            of_target = of_target[:, 0]
        self.moments = mean * self.scaling.inverse, of_target

    def null(self) -> tuple[NumPyArray, float]:
        """Return theta and objective of the model without features."""
        bias = np.zeros(self.loss.outputs if self.loss.outputs > 1 else ())
        if self.intercept:
            bias = null_model.best_intercept(self.loss, self.table)
        theta = np.zeros((len(self.penalty), *bias.shape))
        theta[-1] = bias
        return theta, null_model.mean_loss(self.loss, self.table, bias)

    def mean_target(self) -> NumPyArray:
        """Return the mean of the targets, (); for several outputs the share of each class, (K,)."""
        if self.loss.outputs == 1:
            return np.asarray(self.table.known(null_model.target_sum, self.loss))
        return np.asarray(self.table.known(null_model.group_shares, self.loss.outputs))

    def to_theta(self, gradient: NumPyArray) -> None:
        """Put a gradient with respect to (W, b) into these coordinates, in place."""
        if not self.centered:
            gradient[:-1] -= np.multiply.outer(self.scaling.center, gradient[-1])
        gradient[:-1] = (gradient[:-1].T * self.scaling.inverse).T
        if not self.intercept:
            gradient[-1] = 0


class Evaluated(NamedTuple):
    """Sums over rows times their shares: losses, products, residuals, and the features' squares.

    `clipped` is the number of blocks with clipped scores, `misplaced` the number of rows that are
    not on the side of their class; `noise` is as in `Sums`.
    """

    value: float
    products: NumPyArray
    residuals: NumPyArray
    squares: NumPyArray | None
    clipped: int
    noise: tuple[float, Noise] | None
    misplaced: int | None


def evaluate(
    block: Block,
    loss: Loss,
    takes_moments: bool,
    takes_squares: bool,
    takes_noise: bool,
    takes_sides: bool,
) -> Evaluated:
    """Return what the objective and its gradient at the block's scores consist of.

    With `takes_moments` the products with shares and `target_columns` follow as further columns.
    """
    scores, share = block.scores, block.share
    value, residual = loss.value_and_residual(scores, block.target)
    residual *= share if residual.ndim == 1 else share[:, None]
    total = residual.sum(axis=0, dtype=np.float64)
    if takes_moments:
        columns = target_columns(loss, block.exact_target, share)
        residual = np.column_stack([residual, share, columns])
    dtype = block.features.dtype
    return Evaluated(
        float(np.asarray(value, np.float64) @ share),
        column_products(block.features, residual.astype(dtype, copy=False)),
        np.asarray(total),
        share @ np.square(block.features) if takes_squares else None,
        clipped(block, loss),
        noise_of(block, loss) if takes_noise else None,
        misplaced(block, loss) if takes_sides else None,
    )


def misplaced(block: Block, loss: Loss) -> int:
    """Return the number of rows with a weight that are not on the side of their class."""
    # Rows are separated by coefficients, not by offsets.
    moved, rounding = block.scores, np.zeros(1)
    if block.offset is not None:
        sizes = np.abs(moved) + np.abs(block.offset)
        rounding = 8 * np.finfo(moved.dtype).eps * sizes.reshape(len(moved), -1).max(axis=1)
        moved = moved - block.offset
    target = loss.observed(block.exact_target)
    if moved.ndim == 1:
        is_placed = np.where(target > 0, moved, -moved) > rounding
    else:
        rows, others = np.arange(len(moved)), moved.copy()
        others[rows, target] = -np.inf
        is_placed = moved[rows, target] - others.max(axis=1) > rounding
    return int(np.count_nonzero(~is_placed[block.share > 0]))


def noise_of(block: Block, loss: Loss) -> tuple[float, Noise]:
    """Return the mean square of the residuals, and what bounds their rounding errors."""
    scores, target = block.precise_scores, block.exact_target
    return noise_of_residuals(loss, scores, loss.residual(scores, target), target, block.share)


def noise_of_residuals(
    loss: Loss, scores: NumPyArray, residual: NumPyArray, target: NumPyArray, share: NumPyArray
) -> tuple[float, Noise]:
    """Return the same for given residuals; of several outputs the largest residual counts."""
    largest = np.square(residual) if residual.ndim == 1 else np.square(residual).max(axis=1)
    square, has_weight = float(share @ largest), share > 0
    if has_weight.all():
        return square, loss.noise(scores, target, share)
    return square, loss.noise(scores[has_weight], target[has_weight], share[has_weight])


def clipped(block: Block, loss: Loss) -> int:
    """Return 1 if a score of a row with a weight was clipped, else 0: see `Loss.is_exact`."""
    if not loss.has_logarithm:
        return 0
    scores, target = block.scores, block.exact_target
    if loss.is_exact(scores, target):
        return 0
    counts = block.share > 0
    return int(not loss.is_exact(scores[counts], target[counts]))


def residuals(block: Block, loss: Loss) -> NumPyArray:
    """Return the residuals at the block's scores, in float64."""
    if block.residuals is not None:
        return block.residuals
    return loss.residual(block.precise_scores, block.exact_target)


def target_columns(loss: Loss, target: NumPyArray, share: NumPyArray) -> NumPyArray:
    """Return share x target of some rows; for classes one column each."""
    if loss.outputs == 1:
        return np.asarray(share * loss.observed(target))
    columns = np.zeros((len(share), loss.outputs))
    columns[np.arange(len(share)), target] = share
    return columns


def _share(block: Block) -> float:
    return float(block.share.sum())


def of_rows(values: NumPyArray, theta: NumPyArray) -> NumPyArray:
    """Return a number for each row of `theta` as an array that multiplies it."""
    return values if theta.ndim == 1 else np.broadcast_to(values[:, None], theta.shape)
