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
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple, TypeVar

import numpy as np

from provenglm.model import null_model, per_row
from provenglm.model.losses import Loss
from provenglm.rows.base import Features, Rows
from provenglm.rows.blocks import parts_of
from provenglm.rows.products import column_products, dense_products
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
    """

    value: float
    products: NumPyArray
    residuals: NumPyArray
    squares: NumPyArray | None


@dataclass(frozen=True)
class Snapshot:
    """What one pass over all rows gives.

    Attributes
    ----------
    theta : numpy.ndarray, (p + 1,) or (p + 1, K)
    objective : float
    gradient : numpy.ndarray, theta's shape
        The penalty's included.
    scores : numpy.ndarray, (n,) or (n, K)
        The score table, offsets included: what losses and residuals are computed from. Of long data
        in float32, if they have classes, whatever objective and gradient were computed in.
    sums : Sums, optional
        What objective and gradient were made of, in float64 and for the user's features.
    residuals : numpy.ndarray, scores' shape, optional
        If the pass has kept them: see `residuals`.
    is_single : bool
        Whether objective and gradient were computed in float32.
    is_derived : bool
        Whether the scores are those of another point and a step's, not of `theta` anew.
    """

    theta: NumPyArray
    objective: float
    gradient: NumPyArray
    scores: NumPyArray
    sums: Sums | None = None
    residuals: NumPyArray | None = None
    is_single: bool = False
    is_derived: bool = False


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
    offset : numpy.ndarray, (n,) or (n, K), optional
        What is added to the scores, in float64. All scores that losses get have it.
    is_long : bool
        Whether arrays with a number for each row are gone through in parts: see `per_row`.
    room : int, optional
        Bytes that rows on disk may take in memory: see `budget`.
    deadline : float
        Of `time.perf_counter`, after which a method ends what it is at.
    """

    rows: Rows
    target: NumPyArray
    share: NumPyArray
    loss: Loss
    scaling: Scaling
    penalty: NumPyArray
    intercept: bool
    workers: Workers
    centered: bool = False
    moments: tuple[NumPyArray, NumPyArray] | None = None
    squares: NumPyArray | None = None
    takes_moments: bool = True
    rare: NumPyArray | None = None
    left_out: NumPyArray | None = None
    l1: NumPyArray | None = None
    reads: Reads = field(default_factory=Reads)
    offset: NumPyArray | None = None
    is_long: bool = False
    room: int | None = None
    deadline: float = math.inf

    def extended(self, kind: type[_Kind], **more: Any) -> _Kind:
        """Return this objective as one of a subclass, with what that has beside."""
        given = {one.name: getattr(self, one.name) for one in fields(Objective)}
        return kind(**given, **more)

    @property
    def is_late(self) -> bool:
        """Whether the deadline is over."""
        return self.deadline < time.perf_counter()

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

    def snapshot(self, theta: NumPyArray) -> Snapshot:
        """Return objective, gradient and scores at `theta`: one pass."""
        dtype = self.rows.dtype
        weights, bias = self.scaling.to_user(theta)
        if self.centered:
            bias = theta[-1]
        weights = weights.astype(dtype)
        outputs = theta.shape[1:]
        of_scores = np.dtype(np.float32) if self.is_long and self.loss.has_classes else dtype
        is_null = not weights.any()
        scores = np.empty((self.n, *outputs), of_scores)
        takes_moments = self.takes_moments and self.moments is None
        # With an L1 penalty a proof by a Newton step is rare, and reads the rows itself.
        takes_squares = self.squares is None and self.l1 is None and dtype == np.float64
        takes_squares &= not (self.centered or self.rows.is_sparse)
        squares: NumPyArray | float = 0.0

        def of_block(rows: slice) -> tuple[float, NumPyArray, NumPyArray, NumPyArray | float]:
            block = self.block(rows)
            beside = self.beside(bias, rows, dtype)
            if is_null:
                score = np.full((rows.stop - rows.start, *outputs), beside)
            else:
                score = block @ weights
                score += beside
            scores[rows] = score
            value, residual = self.loss.value_and_residual(score, self.targets(rows, dtype))
            share = np.ascontiguousarray(self.share[rows])
            residual *= share if residual.ndim == 1 else share[:, None]
            total = residual.sum(axis=0, dtype=np.float64)
            if takes_moments:
                residual = np.column_stack([residual, share, self.target_columns(rows)])
            return (
                float(np.asarray(value, np.float64) @ share),
                column_products(block, residual.astype(dtype, copy=False)),
                total,
                share @ np.square(block) if takes_squares else 0.0,
            )

        value, gradient = 0.0, np.zeros_like(theta)
        sums: NumPyArray | float = 0.0
        slices = self.rows.slices()
        for of_value, of_weights, of_intercept, of_squares in self.workers.map(of_block, slices):
            value += of_value
            sums = sums + of_weights
            gradient[-1] += of_intercept
            squares = squares + of_squares
        self.reads.rows += sum(rows.stop - rows.start for rows in slices)
        if takes_moments:
            sums = self._without_moments(np.asarray(sums))
        gradient[:-1] = np.reshape(sums, gradient[:-1].shape)
        if takes_squares:
            self.squares = np.asarray(squares)
        return self.snapshot_of(theta, value, gradient, scores)

    def at_scores(self, theta: NumPyArray, scores: NumPyArray) -> Snapshot:
        """Return the snapshot where the scores are known, of dense rows.

        The work of half a pass, counted as a whole one. Numba is loaded for rows in float64.
        """
        target = self.targets(slice(None), scores.dtype)
        values, residual = self.loss.value_and_residual(scores, target)
        residual *= self.share
        gradient = np.zeros_like(theta)
        gradient[-1] = residual.sum()
        takes_moments = self.takes_moments and self.moments is None
        numbers = residual[None]
        if takes_moments:
            numbers = np.stack([residual, self.share, self.target_columns(slice(None))])
        numbers = numbers.astype(self.rows.dtype, copy=False)

        def of_block(rows: slice) -> NumPyArray:
            return dense_products(self.block(rows), numbers[:, rows])

        sums = np.zeros((len(numbers), len(theta) - 1))
        for of_weights in self.workers.map(of_block, self.rows.slices()):
            sums += of_weights
        self.reads.rows += self.n
        gradient[:-1] = self._without_moments(sums.T)[:, 0] if takes_moments else sums[0]
        value = float(values @ self.share)
        return self.snapshot_of(theta, value, gradient, scores)

    def snapshot_of(
        self,
        theta: NumPyArray,
        value: float,
        gradient: NumPyArray,
        scores: NumPyArray,
    ) -> Snapshot:
        """Return the snapshot of sums over all rows; `gradient` is changed in place.

        Parameters
        ----------
        value : float
            The sum of the losses.
        gradient : numpy.ndarray, theta's shape
            That of the residuals times the features as `block` has them, and of the residuals.
        """
        known = None
        if self.rows.dtype == np.float64 and not self.centered:
            known = Sums(value, gradient[:-1].copy(), np.array(gradient[-1]), self.squares)
        self.to_theta(gradient)
        penalty = self.used(theta)
        value += 0.5 * float((penalty * theta * theta).sum())
        if self.l1 is not None:
            value += float(of_rows(self.l1, theta).ravel() @ np.abs(theta).ravel())
        gradient += penalty * theta
        is_single = self.rows.dtype == np.float32
        return Snapshot(theta, value, gradient, scores, known, is_single=is_single)

    def target_columns(self, rows: slice) -> NumPyArray:
        """Return share x target of some rows; of classes a column each."""
        share, target = self.share[rows], self.loss.observed(self.target[rows])
        if self.loss.outputs == 1:
            return np.asarray(share * target)
        columns = np.zeros((len(share), self.loss.outputs))
        columns[np.arange(len(share)), target] = share
        return columns

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
        share = 1.0 if per_row.are_equal(self.share) else self.share.sum()
        total = self.mean_target() if self.loss.outputs == 1 else self.class_shares()
        if not self.centered:
            mean = mean - share * self.scaling.center
            of_target = of_target - np.multiply.outer(self.scaling.center, np.atleast_1d(total))
        of_target = (of_target.T * self.scaling.inverse).T
        if self.loss.outputs == 1:
            of_target = of_target[:, 0]
        self.moments = mean * self.scaling.inverse, of_target

    def null(self) -> tuple[NumPyArray, float]:
        """Return theta and objective of the model without features."""
        loss, given = self.loss, (self.loss, self.target, self.share, self.offset)
        bias = np.zeros(loss.outputs if loss.outputs > 1 else ())
        if self.intercept:
            bias = null_model.best_intercept(*given, self.is_long)
        theta = np.zeros((len(self.penalty), *bias.shape))
        theta[-1] = bias
        return theta, null_model.mean_loss(*given, bias, self.is_long)

    def parts(self) -> list[slice]:
        """Return the parts in which to go through what has a number for each row."""
        return parts_of(self.n) if self.is_long else [slice(0, self.n)]

    def mean(self, function: Callable[[slice], NumPyArray]) -> float:
        """Return the mean over all samples of what `function` gives for some of them."""
        if self.is_long:
            return per_row.mean(self.share, function)
        return float(np.asarray(function(slice(0, self.n)), np.float64) @ self.share)

    def mean_target(self) -> float:
        """Return the mean of the targets."""
        observed = self.loss.observed(self.target)
        if self.is_long:
            return per_row.mean_of(self.share, observed)
        return float(self.share @ observed)

    def class_shares(self) -> NumPyArray:
        """Return the share of each class."""
        outputs = self.loss.outputs
        if self.is_long:
            return per_row.shares_of_groups(self.share, lambda part: self.target[part], outputs)
        return np.bincount(self.target, weights=self.share, minlength=outputs)

    def to_theta(self, gradient: NumPyArray) -> None:
        """Put a gradient with respect to (W, b) into these coordinates, in place."""
        if not self.centered:
            gradient[:-1] -= np.multiply.outer(self.scaling.center, gradient[-1])
        gradient[:-1] = (gradient[:-1].T * self.scaling.inverse).T
        if not self.intercept:
            gradient[-1] = 0


def residuals(objective: Objective, snapshot: Snapshot, part: slice = slice(None)) -> NumPyArray:
    """Return the residuals of some rows, in float64."""
    if snapshot.residuals is not None:
        return snapshot.residuals[part]
    scores = snapshot.scores[part].astype(np.float64, copy=False)
    return objective.loss.residual(scores, objective.target[part])


def of_rows(values: NumPyArray, theta: NumPyArray) -> NumPyArray:
    """Return a number for each row of `theta` as an array that multiplies it."""
    return values if theta.ndim == 1 else np.broadcast_to(values[:, None], theta.shape)
