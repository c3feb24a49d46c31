"""Functions of a block of rows, whose sums over all rows prove a bound: see `certificate`.

They are functions of a module, so that they can be sent to rows in other processes.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from scipy.sparse import issparse

from provenglm.model.losses import Loss, RoundingTerms
from provenglm.model.objective import residual_rounding
from provenglm.rows.csr import csr_from_parts
from provenglm.rows.gram import gram_of_block
from provenglm.rows.products import column_products, column_squares, row_squares
from provenglm.rows.table import Block
from provenglm.types import NumPyArray


class Place(NamedTuple):
    """The certificate's coordinates: (x - center) / scale, where scales are powers of two."""

    center: NumPyArray
    scale: NumPyArray

    @property
    def is_moved(self) -> bool:
        """Whether these coordinates differ from the user's."""
        return bool(self.center.any() or (self.scale != 1).any())

    def features(self, block: Block) -> Any:
        """Return a block's features in these coordinates."""
        raw: Any = block.raw
        if issparse(raw):
            if (self.scale != 1).any():
                numbers = raw.data / self.scale[raw.indices]
                return csr_from_parts(numbers, raw.indices, raw.indptr, raw.shape)
            return raw
        if self.center.any():
            raw = raw - self.center
        return raw if (self.scale == 1).all() else raw / self.scale


class ProofSums(NamedTuple):
    """The sums over rows that a proof needs. The sums of two sets of rows can be added."""

    value: float
    products: NumPyArray
    sums: NumPyArray
    squares: NumPyArray
    residual: float
    noise: RoundingTerms


class Norms(NamedTuple):
    """Bounds of the norms of rows: the root of `factor` times the weighted sum of their squares.

    Attributes
    ----------
    weights : numpy.ndarray, (p,)
    intercept_weight : float
        The weight of the intercept's column.
    factor : float
    """

    weights: NumPyArray
    intercept_weight: float
    factor: float

    def of(self, features: Any) -> NumPyArray:
        """Return the bounds for some rows, (rows,)."""
        return np.asarray(
            np.sqrt((row_squares(features, self.weights) + self.intercept_weight) * self.factor)
        )


def scores_in(block: Block, features: Any, coef: NumPyArray, bias: NumPyArray) -> NumPyArray:
    """Return the scores of features in the certificate's coordinates, (b, K)."""
    beside = bias if block.offset is None else bias + block.offset
    return np.asarray(features @ coef + beside)


def offset_sizes(block: Block) -> tuple[float, list[float]]:
    """Return the sum of the squared sizes of the offsets, and the largest size."""
    assert block.offset is not None
    sizes = np.abs(block.offset).max(axis=1)
    # Rows without a weight do not count.
    sizes[block.share == 0] = 0
    return float(block.share @ np.square(sizes)), [float(sizes.max())]


def mean_squares(block: Block, place: Place) -> NumPyArray:
    """Return the sums of the features' squares, (p,)."""
    return column_squares(place.features(block), block.share)


def moments(block: Block, place: Place, has_intercept: bool) -> NumPyArray:
    """Return the products of the columns, (w, w)."""
    return gram_of_block(place.features(block), block.share, ones=has_intercept)


def block_sums(
    block: Block,
    place: Place,
    loss: Loss,
    coef: NumPyArray,
    bias: NumPyArray,
    takes_squares: bool,
) -> ProofSums:
    """Return the sums of a pass: losses, products, residuals, squares and rounding terms."""
    features, share, target = place.features(block), block.share, block.target
    scores = scores_in(block, features, coef, bias)
    value, residual = loss.value_and_residual(scores, target)
    square, noise = residual_rounding(loss, scores, residual, target, share)
    weighted = share[:, None] * residual
    squares = column_squares(features, share) if takes_squares else np.zeros(0)
    products, sums = column_products(features, weighted), weighted.sum(axis=0)
    return ProofSums(float(share @ value), products, sums, squares, square, noise)


def least_curvatures(
    block: Block,
    place: Place,
    loss: Loss,
    coef: NumPyArray,
    bias: NumPyArray,
    inverse_penalty: NumPyArray,
) -> tuple[NumPyArray, float, list[float]]:
    """Return the features and shares weighted with the least curvature, and the farthest row."""
    features = place.features(block)
    scores = scores_in(block, features, coef, bias)
    curvature = block.share * loss.least_curvature(scores, block.target)
    norms = row_squares(features, inverse_penalty)
    if loss.outputs == 1:
        with np.errstate(divide="ignore"):
            norms = np.minimum(norms, 1 / curvature)
    largest = float(norms[curvature > 0].max(initial=0.0))
    return column_products(features, curvature), float(curvature.sum()), [largest]


def block_hessian(
    block: Block,
    place: Place,
    loss: Loss,
    coef: NumPyArray,
    bias: NumPyArray,
    has_intercept: bool,
) -> NumPyArray:
    """Return the Hessian of the losses, theta raveled."""
    features = place.features(block)
    curvature = loss.sure_second_derivative(scores_in(block, features, coef, bias), block.target)
    return gram_of_block(features, curvature.weights(block.share), ones=has_intercept)


def block_step(
    block: Block,
    place: Place,
    loss: Loss,
    coef: NumPyArray,
    bias: NumPyArray,
    step: NumPyArray,
    shift: NumPyArray,
    norms: Norms,
) -> tuple[float, NumPyArray, NumPyArray, list[NumPyArray], list[float]]:
    """Return the sums of a step, the frontier of moves and norms, and the largest norm."""
    features, share, target = place.features(block), block.share, block.target
    scores = scores_in(block, features, coef, bias)
    change, square, move = loss.quadratic_step(scores, target, features @ step + shift)
    weighted = share[:, None] * change
    curvature = share * loss.sure_second_derivative(scores, target).diagonal.max(axis=1)
    used = curvature > 0
    each = norms.of(features)
    farthest = float(each[used].max(initial=0.0))
    if loss.outputs == 1:
        with np.errstate(divide="ignore"):
            each = np.minimum(each, 1 / np.sqrt(curvature))
    return (
        float(share @ square),
        column_products(features, weighted),
        weighted.sum(axis=0),
        _frontier(move[used], each[used]),
        [farthest],
    )


def _frontier(move: NumPyArray, norm: NumPyArray) -> list[NumPyArray]:
    """Return the Pareto frontier of pairs of move and norm, (2, m).

    One of these pairs has the largest move + factor * norm, whatever the positive factor is.
    """
    if np.isnan(move).any() or np.isnan(norm).any():
        return [np.full((2, 1), np.nan)]
    order = np.lexsort([-norm, -move])
    move, norm = move[order], norm[order]
    before = np.concatenate([[-np.inf], np.maximum.accumulate(norm)[:-1]])
    kept = norm > before
    return [np.stack([move[kept], norm[kept]])]


def exceptions(
    block: Block,
    factors: NumPyArray,
    has_intercept: bool,
    is_pair: NumPyArray,
    alone: tuple[NumPyArray, NumPyArray, NumPyArray],
) -> NumPyArray:
    """Return, for each sum of columns, 1 if it differs from 0 in a row of the block, else 0."""
    raw, p = block.raw, block.raw.shape[1]
    used, constant = factors[:p] != 0, factors[-1] if has_intercept else 0.0
    is_sum = (raw @ factors[:p] + constant == 0).all(axis=0)
    is_sum &= is_pair | ~(used & ~_are_exact(raw)[:, None]).any(axis=0)
    columns, places, value = alone
    is_sum[places] = (dense(raw[:, columns]) == value).all(axis=0)
    return np.asarray(~is_sum, np.intp)


def dense(block: Any) -> NumPyArray:
    """Return a block as an array."""
    return np.asarray(block.toarray() if issparse(block) else block)


def _are_exact(block: Any) -> NumPyArray:
    """Return which columns contain only whole numbers whose sums are exact, (p,)."""
    if issparse(block):
        data = block.data
        is_rounded = (np.rint(data) != data) | (np.abs(data) >= 2**20)
        return np.asarray(np.bincount(block.indices[is_rounded], minlength=block.shape[1]) == 0)
    return np.asarray((np.rint(block) == block).all(axis=0) & (np.abs(block).max(axis=0) < 2**20))
