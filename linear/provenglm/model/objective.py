r"""The objective in the solver's own coordinates, and its evaluation by a pass over all rows.

The solver uses :math:`\hat x_j = (x_j - c_j) / d_j` with the weighted mean and standard deviation
of each feature, and the penalty :math:`\lambda / d_j^2`. This is the same function of the same
model with a better scaling. The rows themselves are not scaled: a pass computes the scores of a
block with :math:`W = \theta / d`, and transforms the gradient afterwards.

`theta` is a float64 array of shape ``(p + 1, K)``, where K is the loss's number of scores per row:
that of the classes for softmax, and 1 for all other losses. Its last row has the intercepts.
"""

from __future__ import annotations

import math
import sys
import time
from dataclasses import dataclass, field, fields, replace
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np

from provenglm.model import null_model
from provenglm.model.losses import Loss, RoundingTerms
from provenglm.rows.base import Rows
from provenglm.rows.products import column_products, dense_products
from provenglm.rows.remote import AnyTable
from provenglm.rows.table import Block, Kept, Linear, Table
from provenglm.types import NumPyArray
from provenglm.workers import Workers

_UNIT = 2.0**-53
"""The unit roundoff of float64."""


class PassSums(NamedTuple):
    """Sums over all rows, weighted with their shares.

    Attributes
    ----------
    value : float
        The sum of the losses.
    products : numpy.ndarray, (p, K)
        The sums of the residuals times the features.
    residuals : numpy.ndarray, (K,)
        The sums of the residuals.
    squares : numpy.ndarray, (p,), optional
        The sums of the features' squares.
    noise : tuple, optional
        The mean square of the residuals, and the terms that bound their rounding errors.
    """

    value: float
    products: NumPyArray
    residuals: NumPyArray
    squares: NumPyArray | None
    noise: tuple[float, RoundingTerms] | None = None


@dataclass(frozen=True)
class Snapshot:
    """The objective and its gradient at a point, from one pass over all rows.

    Attributes
    ----------
    theta : numpy.ndarray, (p + 1, K)
    objective : float
    gradient : numpy.ndarray, theta's shape
        The gradient, including that of the L2 penalty.
    kept : Kept, optional
        The scores, including offsets; None if the rows are not in memory.
    sums : PassSums, optional
        The sums from which objective and gradient were computed, in float64 and for the user's
        features.
    is_single : bool
        Whether objective and gradient were computed in float32.
    is_derived : bool
        Whether the scores were computed from those of another point and a step, instead of from
        `theta`.
    clipped : int, optional
        The number of blocks with clipped scores, if it is known.
    misplaced : int, optional
        The number of rows with a weight that are on the wrong side of the separating plane, if it
        is known.
    """

    theta: NumPyArray
    objective: float
    gradient: NumPyArray
    kept: Kept | None
    sums: PassSums | None = None
    is_single: bool = False
    is_derived: bool = False
    clipped: int | None = None
    misplaced: int | None = None

    @property
    def scores(self) -> NumPyArray:
        """The scores of rows in memory, (n, K)."""
        assert self.kept is not None
        return self.kept.scores


@dataclass(frozen=True)
class Scaling:
    """Centre and inverse scale of each feature; an inverse scale of 0 leaves a feature out.

    Attributes
    ----------
    center, inverse : numpy.ndarray, (p,)
    known_size : numpy.ndarray, (p,), optional
        The root mean squares of the user's features, if `inverse` does not tell their deviations.
    """

    center: NumPyArray
    inverse: NumPyArray
    known_size: NumPyArray | None = None

    def size(self, centered: bool = False) -> NumPyArray:
        """Return the root mean squares of the features that are used, about; 0 for the others.

        Parameters
        ----------
        centered : bool
            Whether the features are those minus their centres.
        """
        if self.known_size is not None:
            return self.known_size
        used = self.inverse > 0
        deviation = np.divide(1, self.inverse, out=np.zeros_like(self.inverse), where=used)
        return deviation if centered else np.hypot(self.center * used, deviation)

    def to_user(self, theta: NumPyArray) -> tuple[NumPyArray, NumPyArray]:
        """Return weights and intercept for features in the user's units."""
        weights = theta[:-1] * self.inverse[:, None]
        return weights, theta[-1] - self.center @ weights

    def from_user(self, weights: NumPyArray, intercept: NumPyArray) -> NumPyArray:
        """Return theta for the user's weights and intercept."""
        used = self.inverse > 0
        scale = np.divide(1, self.inverse, out=np.zeros_like(self.inverse), where=used)
        last = intercept + self.center @ (weights * used[:, None])
        return np.vstack([weights * scale[:, None], last])


_Kind = TypeVar("_Kind", bound="Objective")


@dataclass
class PassCounter:
    """The number of rows that have been read; shared by all objectives of one problem."""

    rows: float = 0.0


@dataclass
class Objective:
    """The objective on rows with targets and shares. A pass over all rows evaluates it.

    Attributes
    ----------
    table : Table or RemoteTable
        The rows with targets, shares and offsets.
    penalty : numpy.ndarray, (p + 1,)
        The L2 penalty of each row of theta: lambda / d_j^2, and 0 for the intercept.
    l1 : numpy.ndarray, (p + 1,), optional
        The L1 penalty of each row: mu / d_j, and 0 for the intercept. The gradient of a snapshot
        does not include it.
    moments : tuple of numpy.ndarray, optional
        The means of the features, (p,), and of their products with the targets, theta[:-1]'s shape.
        The duality gap needs them. The first snapshot computes them.
    squares : numpy.ndarray, (p,), optional
        The mean squares of the features, which a proof needs. The first snapshot of dense rows in
        float64 computes them, unless there is an L1 penalty.
    takes_moments : bool
        Whether the first snapshot computes the moments. Without them the only bound is the
        objective minus the mean of the losses' infima.
    rare : numpy.ndarray, (p,), bool
        Features whose curvature a sample cannot measure, because too few rows have them.
    left_out : numpy.ndarray, optional
        The indices of features that are left out because they vary too little for float64. Without
        a penalty no small gap can then be proven.
    reads : PassCounter
        The number of rows read, shared with all copies of this objective.
    memory_budget : int, optional
        Bytes that rows on disk may take in memory; see `budget`.
    deadline : float
        A value of `time.perf_counter` after which methods stop.
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
    reads: PassCounter = field(default_factory=PassCounter)
    memory_budget: int | None = None
    deadline: float = math.inf

    @property
    def rows(self) -> Rows:
        """The rows; if they are in other processes, only their shape and dtype."""
        rows: Any = self.table.rows
        return cast("Rows", rows)

    @property
    def workers(self) -> Workers:
        """The threads of this process."""
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
        """The offsets of rows in memory, (n, K)."""
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
        """Return this objective as an instance of a subclass, with its additional attributes."""
        given = {one.name: getattr(self, one.name) for one in fields(Objective)}
        return kind(**given, **more)

    @property
    def is_late(self) -> bool:
        """Whether the deadline has passed."""
        return self.deadline < time.perf_counter()

    @property
    def is_penalised(self) -> bool:
        """Whether there is a penalty on a feature that is not left out."""
        return self.l1 is not None or self._largest_penalty() > 0

    @property
    def is_penalty_rounded_away(self) -> bool:
        """Whether adding the penalty to the loss of a standardised column changes no digit."""
        return self.l1 is None and self._largest_penalty() < sys.float_info.epsilon

    def _largest_penalty(self) -> float:
        return float(self.penalty[:-1][self.scaling.inverse > 0].max(initial=0))

    @property
    def n(self) -> int:
        """The number of rows."""
        return self.rows.shape[0]

    @property
    def passes(self) -> float:
        """The number of passes over the rows, including reads of copies and samples."""
        return self.reads.rows / self.n

    def model(self, theta: NumPyArray) -> Linear:
        """Return the linear model with the scores of `theta`, for the user's features."""
        weights, bias = self.scaling.to_user(theta)
        weights = weights.astype(self.rows.dtype)
        if self.centered:
            return Linear(weights, theta[-1], self.scaling.center)
        return Linear(weights, bias)

    def score_error(self, theta: NumPyArray) -> float:
        """Return a bound of the rounding errors of the scores in float64, without a pass.

        A sum of p products has p roundings, each at most 2^-53 times the sum of the products'
        sizes. Adding it to a number b, which is a float64, has an error of at most 2^-53 times the
        result, and never of more than what is added. The bound is the root mean square over the
        rows, for features with the root mean squares that the coordinates were computed from; with
        several outputs it is the norm over these.
        """
        weights, bias = self.scaling.to_user(theta)
        beside = np.abs(theta[-1] if self.centered else bias)
        with np.errstate(over="ignore", invalid="ignore"):
            products = self.scaling.size(self.centered) @ np.abs(weights)
            error: Any = 0.0
            if self.table.has_offset:
                beside = beside + math.sqrt(self.table.known(_square_of_offsets))
                error = _UNIT * beside
            count = len(self.penalty)
            error = error + count * _UNIT * products
            error = error + np.minimum(products, _UNIT * (products + beside))
            return float(np.linalg.norm(error))

    def sum(self, function: Any, *small: Any, at: Snapshot | None = None) -> Any:
        """Return the sum over all blocks of a function that needs scores, but no features.

        If the rows are not in memory, this takes a pass over the features.

        Parameters
        ----------
        function : callable
            See `Table.sum`.
        at : Snapshot, optional
            The point whose scores the function needs.
        """
        if at is None:
            return self.table.sum(function, *small, reads=False)
        if at.kept is not None:
            return self.table.sum(function, *small, kept=at.kept, reads=False)
        self.reads.rows += self.n
        return self.table.sum(function, *small, at=self.model(at.theta), reads=False)

    def snapshot(self, theta: NumPyArray) -> Snapshot:
        """Return objective, gradient and scores at `theta`, in one pass."""
        takes_moments = self.takes_moments and self.moments is None
        # With an L1 penalty a proof by a Newton step is rare. It then reads the rows itself.
        takes_sums = self.rows.dtype == np.float64 and not self.centered
        takes_squares = takes_sums and self.squares is None and self.l1 is None
        takes_squares &= not self.rows.is_sparse
        kept = None
        if not self.table.is_out_of_core:
            kept = Kept(np.empty((self.n, self.loss.outputs), self.rows.dtype))
        # If rows are not in memory, a proof would need another pass for these sums.
        is_out_of_core = self.table.is_out_of_core
        takes_noise = is_out_of_core and takes_sums and not self.loss.has_classes
        takes_sides = is_out_of_core and self.loss.is_separable and not self.is_penalised
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
        gradient[:-1] = sums
        gradient[-1] = found.residuals
        if takes_squares:
            self.squares = found.squares
        return self.snapshot_of(theta, found.value, gradient, kept, found)

    def at_scores(self, theta: NumPyArray, scores: NumPyArray) -> Snapshot:
        """Return the snapshot of dense rows whose scores are known.

        This takes half a pass, but counts as one.
        """
        target = self.target
        if target.dtype.kind == "f":
            target = target.astype(scores.dtype, copy=False)
        values, residual = self.loss.value_and_residual(scores, target)
        residual *= self.share[:, None]
        gradient = np.zeros_like(theta)
        gradient[-1] = residual.sum(axis=0)
        takes_moments = self.takes_moments and self.moments is None
        numbers = residual
        if takes_moments:
            numbers = with_moments(residual, self.loss, self.target, self.share)
        numbers = numbers.T.astype(self.rows.dtype, order="C", copy=False)

        def products(block: Block) -> NumPyArray:
            return dense_products(block.features, numbers[:, block.part])

        sums = self.table.sum(products, at=self.model(theta)).T
        self.reads.rows += self.n
        gradient[:-1] = self._without_moments(sums) if takes_moments else sums
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
        """Return the snapshot from sums over all rows; `gradient` is modified.

        Parameters
        ----------
        value : float
            The sum of the losses.
        gradient : numpy.ndarray, theta's shape
            The sums of the residuals times `Block.features`. The last row has the sums of the
            residuals.
        kept : Kept, optional
            The scores, if they are kept.
        found : Evaluated, optional
            The other results of the pass.
        """
        known = None
        if self.rows.dtype == np.float64 and not self.centered:
            noise = None if found is None else found.noise
            known = PassSums(
                value, gradient[:-1].copy(), np.array(gradient[-1]), self.squares, noise
            )
        self.to_theta(gradient)
        penalty = self.penalty[:, None]
        value += 0.5 * float((penalty * theta * theta).sum())
        if self.l1 is not None:
            value += float((self.l1 @ np.abs(theta)).sum())
        gradient += penalty * theta
        is_single = self.rows.dtype == np.float32
        point = theta, value, gradient, kept, known, is_single
        if found is None:
            return Snapshot(*point)
        return Snapshot(*point, clipped=found.clipped, misplaced=found.misplaced)

    def _without_moments(self, sums: NumPyArray) -> NumPyArray:
        """Remove the moments from the sums of a pass and keep them; return the rest, (p, K)."""
        k = self.loss.outputs
        self.take_moments(sums[:, k], sums[:, k + 1 :])
        return sums[:, :k]

    def take_moments(self, mean: NumPyArray, target_products: NumPyArray) -> None:
        """Set the moments from sums over all rows.

        Parameters
        ----------
        mean : numpy.ndarray, (p,)
            The sums of `Block.features`, weighted with the shares.
        target_products : numpy.ndarray, (p, K)
            The sums of the same features times the shares and `Loss.observed`.
        """
        total, share = self.mean_target(), self.table.known(_share)
        if not self.centered:
            mean = mean - share * self.scaling.center
            target_products = target_products - np.multiply.outer(self.scaling.center, total)
        inverse = self.scaling.inverse
        self.moments = mean * inverse, target_products * inverse[:, None]

    def null(self) -> tuple[NumPyArray, float]:
        """Return theta and objective of the model without features."""
        bias = np.zeros(self.loss.outputs)
        if self.intercept:
            bias = null_model.best_intercept(self.loss, self.table)
        theta = np.zeros((len(self.penalty), len(bias)))
        theta[-1] = bias
        return theta, null_model.mean_loss(self.loss, self.table, bias)

    def mean_target(self) -> NumPyArray:
        """Return the mean of `Loss.observed`, (K,): that of the targets, or each class's share."""
        if self.loss.has_classes:
            # Of two classes the second one, whose target is 1.
            shares = self.table.known(null_model.group_shares, self.loss.group_count)
            return np.asarray(shares[-self.loss.outputs :])
        return np.asarray(self.table.known(null_model.target_sum, self.loss))

    def to_theta(self, gradient: NumPyArray) -> None:
        """Transform a gradient with respect to (W, b) to these coordinates, in place."""
        if not self.centered:
            gradient[:-1] -= np.multiply.outer(self.scaling.center, gradient[-1])
        gradient[:-1] *= self.scaling.inverse[:, None]
        if not self.intercept:
            gradient[-1] = 0


class Evaluated(NamedTuple):
    """The results of a pass: weighted sums of losses, products, residuals and features' squares.

    `clipped` is the number of blocks with clipped scores, and `misplaced` the number of rows on the
    wrong side of the separating plane. `noise` is as in `PassSums`.
    """

    value: float
    products: NumPyArray
    residuals: NumPyArray
    squares: NumPyArray | None
    clipped: int
    noise: tuple[float, RoundingTerms] | None
    misplaced: int | None


def evaluate(
    block: Block,
    loss: Loss,
    takes_moments: bool,
    takes_squares: bool,
    takes_noise: bool,
    takes_sides: bool,
) -> Evaluated:
    """Return a block's terms of the objective and its gradient, at its scores.

    With `takes_moments` the products have the additional columns of `with_moments`.
    """
    scores, share = block.scores, block.share
    value, residual = loss.value_and_residual(scores, block.target)
    residual *= share[:, None]
    total = residual.sum(axis=0, dtype=np.float64)
    if takes_moments:
        residual = with_moments(residual, loss, block.exact_target, share)
    dtype = block.features.dtype
    return Evaluated(
        float(np.asarray(value, np.float64) @ share),
        column_products(block.features, residual.astype(dtype, copy=False)),
        total,
        share @ np.square(block.features) if takes_squares else None,
        clipped(block, loss),
        block_rounding(block, loss) if takes_noise else None,
        misplaced(block, loss) if takes_sides else None,
    )


def misplaced(block: Block, loss: Loss) -> int:
    """Return the number of rows with a weight on the wrong side of the separating plane."""
    # Rows are separated by coefficients, not by offsets.
    moved, rounding = block.scores, np.zeros(1)
    if block.offset is not None:
        sizes = np.abs(moved) + np.abs(block.offset)
        rounding = 8 * np.finfo(moved.dtype).eps * sizes.max(axis=1)
        moved = moved - block.offset
    is_placed = loss.margins(moved, block.exact_target) > rounding
    return int(np.count_nonzero(~is_placed[block.share > 0]))


def block_rounding(block: Block, loss: Loss) -> tuple[float, RoundingTerms]:
    """Return the mean square of the residuals, and the terms of their rounding errors."""
    scores, target = block.precise_scores, block.exact_target
    return residual_rounding(loss, scores, loss.residual(scores, target), target, block.share)


def residual_rounding(
    loss: Loss, scores: NumPyArray, residual: NumPyArray, target: NumPyArray, share: NumPyArray
) -> tuple[float, RoundingTerms]:
    """Return the result of `block_rounding` for given residuals.

    The square of a row is that of its largest residual.
    """
    largest = np.square(residual).max(axis=1)
    square, has_weight = float(share @ largest), share > 0
    if has_weight.all():
        return square, loss.rounding_terms(scores, target, share)
    return square, loss.rounding_terms(scores[has_weight], target[has_weight], share[has_weight])


def clipped(block: Block, loss: Loss) -> int:
    """Return 1 if a score of a row with a weight was clipped, else 0; see `Loss.is_exact`."""
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


def with_moments(
    residual: NumPyArray, loss: Loss, target: NumPyArray, share: NumPyArray
) -> NumPyArray:
    """Return columns for the products of a pass, (b, 2 K + 1): residuals, shares, targets.

    The residuals and the targets are multiplied by the shares.
    """
    weight = share[:, None]
    return np.concatenate([residual, weight, weight * loss.observed(target)], axis=1)


def _share(block: Block) -> float:
    return float(block.share.sum())


def _square_of_offsets(block: Block) -> float:
    """Return the mean square of the offsets; of several outputs, of the largest in each row."""
    assert block.offset is not None
    return float(block.share @ np.square(block.offset).max(axis=1))
