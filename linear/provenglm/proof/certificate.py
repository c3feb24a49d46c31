r"""How far coefficients are from the optimum, proven from a few of the rows.

Let :math:`F(\theta) = \sum_i s_i l_i(x_i^T\theta) + \frac12 \theta^T\Lambda\theta
+ \sum_j \mu_j |\theta_j|`, g the gradient of its smooth part, S any set of rows, and
:math:`H = \sum_S w_i x_i x_i^T + \Lambda` with :math:`w_i = s_i l_i''`. For any v, with
:math:`a_i = x_i^T v`, :math:`Q = \sum_S w_i a_i^2 + v^T\Lambda v` and the rest
:math:`\rho = g + q + \sum_S w_i a_i x_i + \Lambda v`, whose norm in :math:`H^{-1}` is at most
:math:`\tau`,

.. math::
    F(\theta) - F^* \le (\sqrt Q + \tau)^2 \, \omega(t) / t^2
        + \sum_j (\mu_j |\theta_j| - q_j \theta_j), \qquad |q_j| \le \mu_j,

if the *largest fall* t is at most 1, with :math:`\omega(t) = t + (1 - t) \log(1 - t)`. It is
Fenchel's duality gap at residuals that the step v has moved on S; the proof is in
``docs/linear/certificate.md``. Nothing about the rows outside of S is needed but their part of g,
so one pass over all rows and a Hessian of some of them are enough.

All is computed in float64, at the coefficients as the user gets them, and :math:`\tau` has a bound
of every rounding error in it (there, "Rounding").
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any, NamedTuple

import numpy as np
import scipy.linalg
from scipy.sparse import issparse

from provenglm import constants
from provenglm.model.losses import OFFSET_OF_FLOAT32, Loss, Noise
from provenglm.model.objective import Scaling, Snapshot, Sums
from provenglm.model.returned import shifted
from provenglm.model.sample import Sample
from provenglm.model.triangle import parts_of_triangle
from provenglm.proof.orthogonal import LARGEST_RATIO, RowsOfAProof, rotated
from provenglm.rows.base import Rows
from provenglm.rows.blocks import parts_of
from provenglm.rows.csr import made_of
from provenglm.rows.gram import ClassWeights, Weights, gram_of_block, roundings
from provenglm.rows.products import column_products, column_squares, row_squares
from provenglm.types import NumPyArray
from provenglm.workers import Workers

UNIT = 2.0**-53
"""The unit of rounding."""


_FARTHEST = 300
"""Powers of two of a feature's scale up to which its square is a number of full precision."""

_DEPENDENT, _WHOLE, _MOST_TIMES = 1e-10, 1e-4, 6
"""For a column that may be a sum of others: the largest squared part of it that they leave
unexplained, the largest distance of its factors from whole numbers, and by how much the factors may
be multiplied to get there."""

_RELIABLE = 0.01
"""Of the inverse of the Cholesky factor: a larger relative error, and there is no statement."""


def omega(t: float) -> float:
    r"""Return :math:`(t + (1 - t) \log(1 - t)) / t^2`, from 1/2 at 0 to 1 at 1, rounded up."""
    if t < 1e-3:
        return 0.5 + t / 6 + t * t / 12 + t**3 / 10
    if t >= 1:
        return 1.0
    return (1 + 1e-9) * (t + (1 - t) * float(np.log1p(-t))) / (t * t)


class Model(NamedTuple):
    """Coefficients and penalties, as the user has them.

    Attributes
    ----------
    coef : numpy.ndarray, (p, K)
    intercept : numpy.ndarray, (K,)
    l2, l1 : float
        The strengths of the penalties.
    """

    coef: NumPyArray
    intercept: NumPyArray
    l2: float
    l1: float = 0.0


@dataclass(frozen=True)
class Point:
    """What a pass over all rows in float64 gives, in the certificate's coordinates.

    Attributes
    ----------
    objective : float
    theta : numpy.ndarray, (w, K)
        w is p, and one more with an intercept, the last row.
    bias : numpy.ndarray, (K,)
        The intercept for centred features, with or without one.
    gradient : numpy.ndarray, (w, K)
        Of the smooth part, and of `q` for L1.
    error : numpy.ndarray, (w, K)
        What rounding may have done to each of its numbers.
    penalty : numpy.ndarray, (w,)
    extra : float
        The last term of the bound.
    is_centred : bool
        Whether steps do not shift all classes by the same.
    size : numpy.ndarray, (w,)
        Root mean squares of the features, at most.
    constant : float
        The sizes of intercept and offset in the scores, at most.
    is_free : bool
        Whether there is no penalty at all.
    has_corners : bool
        Whether there is an L1 penalty.
    noise : float
        Root mean square of what rounding of the scores may have done to residuals, at most.
    """

    objective: float
    theta: NumPyArray
    bias: NumPyArray
    gradient: NumPyArray
    error: NumPyArray
    penalty: NumPyArray
    extra: float
    is_centred: bool
    size: NumPyArray
    constant: float
    is_free: bool
    has_corners: bool
    noise: float


class Some(NamedTuple):
    """A set of rows.

    Attributes
    ----------
    parts : sequence of slice
    get : callable
        Returns features, targets, shares and offsets of one part: the last are (rows, K), or 0.
    scaling : Scaling, optional
        The coordinates of its features, if they are not those of the certificate.
    """

    parts: Sequence[slice]
    get: Callable[[slice], tuple[Any, NumPyArray, NumPyArray, NumPyArray | float]]
    scaling: Scaling | None = None


class Certificate:
    """The proof for models of one data set.

    Parameters
    ----------
    rows : Rows
    target, share : numpy.ndarray, (n,)
        The shares sum to 1.
    loss : Loss
    has_intercept : bool
    center : numpy.ndarray, (p,)
        About the features' means; not looked at for sparse rows.
    scale : numpy.ndarray, (p,)
        About their deviations, above 0.
    workers : Workers
    offset : numpy.ndarray, (n,) or (n, K), optional
        What is added to the scores.
    """

    def __init__(
        self,
        rows: Rows,
        target: NumPyArray,
        share: NumPyArray,
        loss: Loss,
        has_intercept: bool,
        center: NumPyArray,
        scale: NumPyArray,
        workers: Workers,
        offset: NumPyArray | None = None,
    ) -> None:
        self._rows = rows.precise()
        self._target, self._share = target, share
        self.loss = loss
        self._has_intercept = has_intercept
        is_dense = not self._rows.is_sparse
        farthest = float(np.abs(center / scale).max(initial=0.0))
        is_centred = has_intercept and is_dense and farthest > OFFSET_OF_FLOAT32
        self._center = center if is_centred else np.zeros(len(center))
        power = np.round(np.log2(scale))
        self._scale = np.exp2(np.where(np.abs(power) > _FARTHEST, power, 0.0))
        self._is_moved = bool(self._center.any() or (self._scale != 1).any())
        self._workers = workers
        self._offset = None if offset is None else offset.reshape(len(offset), -1)
        self._squares: NumPyArray | None = None
        self.n, self.p = rows.shape
        self.width = self.p + has_intercept

    # --- Rows ------------------------------------------------------------------------------

    def all(self) -> Some:
        """Return the set of all rows."""

        def get(part: slice) -> tuple[Any, NumPyArray, NumPyArray, NumPyArray | float]:
            block, share = self._moved(self._rows.block(part)), self._share[part]
            return block, self._target[part], np.ascontiguousarray(share), self._offsets(part)

        return Some(self._rows.slices(), get)

    def some(self, indices: NumPyArray) -> Some:
        """Return the set of some rows, each of them once, which are kept in memory."""
        indices = np.unique(indices)
        rows = self._rows.pick(indices)
        target, share = self._target[indices], np.asarray(self._share[indices])
        parts = _parts(slice(0, len(indices)), constants.BLOCK_ROWS)
        return Some(
            parts,
            lambda part: (
                self._moved(rows[part]),
                target[part],
                share[part],
                self._offsets(indices[part]),
            ),
        )

    def of_sample(self, sample: Sample, scaling: Scaling) -> Some | None:
        """Return the set of a sample's rows, or None if its coordinates are not those of a proof.

        Nothing is read or copied. A row that is there m times has an m-th of its share each time.
        """
        is_dense = isinstance(sample.rows, np.ndarray)
        if self._is_moved or not is_dense or sample.indices is None:
            return None
        if not (scaling.inverse > 0).all():
            return None
        _, place, copies = np.unique(sample.indices, return_inverse=True, return_counts=True)
        rows, target = sample.rows[:, : self.p], sample.target
        share = self._share[sample.indices] / copies[place]
        parts, indices = _parts(slice(0, len(rows)), constants.BLOCK_ROWS), sample.indices
        return Some(
            parts,
            lambda part: (rows[part], target[part], share[part], self._offsets(indices[part])),
            scaling,
        )

    def _offsets(self, rows: slice | NumPyArray) -> NumPyArray | float:
        return 0.0 if self._offset is None else self._offset[rows]

    def _size_of_offsets(self) -> tuple[float, float]:
        """Return the root mean square and the largest size; of several outputs the largest."""
        if self._offset is None:
            return 0.0, 0.0
        square = largest = 0.0
        for part in parts_of(self.n, self._offset.shape[1]):
            sizes = np.abs(self._offset[part]).max(axis=1)
            # What weighs nothing has no say.
            sizes[self._share[part] == 0] = 0
            square += float(self._share[part] @ np.square(sizes))
            largest = max(largest, float(sizes.max()))
        return np.sqrt(square), largest

    def _moved(self, block: Any) -> Any:
        if issparse(block):
            if (self._scale != 1).any():
                numbers = block.data / self._scale[block.indices]
                return made_of(numbers, block.indices, block.indptr, block.shape)
            return block
        if self._center.any():
            block = block - self._center
        return block if (self._scale == 1).all() else block / self._scale

    # --- The pass over all rows -----------------------------------------------------------

    def at(self, model: Model, known: Snapshot | None = None) -> Point | None:
        """Return what a pass over all rows gives; None if a number in it is not one.

        Parameters
        ----------
        model : Model
        known : Snapshot, optional
            Of this model, with its sums: then there is a pass over its scores alone.
        """
        loss, scale = self.loss, self._scale
        coef = model.coef * scale[:, None]
        bias = shifted(model.intercept, self._center, model.coef)
        penalty = np.square(np.sqrt(model.l2) / scale)
        slopes = model.l1 / scale
        everything = self.all()
        if known is not None and known.sums is not None and not self._is_moved:
            total = self._of_scores(known.scores, known.sums)
        else:
            total = self._of_rows(coef, bias)
        squares = self._mean_squares()
        value, products, sums_, _, residual, noise = total
        k = loss.outputs
        gradient = products + penalty[:, None] * coef
        objective = value + 0.5 * float(penalty @ np.square(coef).sum(axis=1))
        objective += float(slopes @ np.abs(coef).sum(axis=1))
        q = np.where(
            coef != 0,
            slopes[:, None] * np.sign(coef),
            -np.clip(gradient, -slopes[:, None], slopes[:, None]),
        )
        size = np.sqrt(squares)
        # Of a score: a sum of p + 2 products of centred features and an offset, each rounded once.
        largest = np.abs(coef).max(axis=1)
        of_offset, largest_offset = self._size_of_offsets()
        scores = largest @ size + np.abs(bias).max() + of_offset
        moved = (self.p + 6) * UNIT * float(scores)
        longest = max((part.stop - part.start for part in everything.parts), default=0)
        count = longest + len(everything.parts) + 6
        of_scores = 1.72 * noise.slope * moved + 6 * UNIT * float(np.sqrt(noise.square))
        each = of_scores + count * UNIT * float(np.sqrt(residual))
        error = np.full((self.p, k), 4 * np.finfo(float).tiny) + (1.01 * size * each)[:, None]
        error += 4 * UNIT * (penalty[:, None] * np.abs(coef) + np.abs(gradient))
        gradient = gradient + q
        extra = float((slopes[:, None] * np.abs(coef) - q * coef).clip(min=0).sum())
        is_centred = k > 1 and model.l1 == 0
        if is_centred:
            # F is that of coefficients with the mean 0 over the classes, and what the penalty adds.
            shift = coef.mean(axis=1)
            extra += (1 + 1e-12) * k / 2 * float(penalty @ np.square(shift))
            gradient -= gradient.mean(axis=1, keepdims=True)
        theta = coef
        if self._has_intercept:
            gradient = np.vstack([gradient, sums_])
            error = np.vstack([error, np.full(k, 1.01 * each)])
            gradient[-1] -= gradient[-1].mean() if k > 1 else 0.0
            theta = np.vstack([coef, bias])
            penalty, size = np.append(penalty, 0.0), np.append(size, 1.0)
        point = Point(
            objective=objective,
            theta=theta,
            bias=bias,
            gradient=gradient,
            error=error,
            penalty=penalty,
            extra=extra,
            is_centred=is_centred,
            size=size,
            constant=float(np.abs(bias).max()) + largest_offset,
            is_free=not (model.l2 > 0 or model.l1 > 0),
            has_corners=model.l1 > 0,
            noise=of_scores,
        )
        numbers = (objective, gradient, error)
        is_number = all(np.isfinite(number).all() for number in numbers)
        return point if is_number and noise.is_exact else None

    def _of_rows(self, coef: NumPyArray, bias: NumPyArray) -> _Sums:
        everything = self.all()
        knows_squares = self._squares is not None

        def of_part(part: slice) -> _Sums:
            block, target, share, offset = everything.get(part)
            scores = self._flat(block @ coef + (bias + offset))
            value, residual = self.loss.value_and_residual(scores, target)
            square, noise = self._of_residuals(scores, residual, target, share)
            weighted = share[:, None] * residual.reshape(len(share), -1)
            squares = np.zeros(0) if knows_squares else column_squares(block, share)
            products, sums = column_products(block, weighted), weighted.sum(axis=0)
            return _Sums(float(share @ value), products, sums, squares, square, noise)

        total = reduce(operator.add, self._workers.map(of_part, everything.parts))
        if not knows_squares:
            self._squares = total.squares
        return total

    def _of_scores(self, scores: NumPyArray, sums: Sums) -> _Sums:
        """Return what a pass would, from the sums that a snapshot's pass has left."""
        loss, scores = self.loss, scores.reshape(self.n, -1)

        def of_part(part: slice) -> tuple[float, Noise]:
            target, share = self._target[part], np.ascontiguousarray(self._share[part])
            some = self._flat(scores[part])
            return self._of_residuals(some, loss.residual(some, target), target, share)

        if loss.has_classes:
            # No residual is greater than 1 - exp(-loss), whose square is less than the loss.
            residual, none = min(1.0, 1.01 * sums.value), slice(0, 0)
            noise = loss.noise(self._flat(scores[none]), self._target[none], np.ones(1))
        else:
            squares, noises = zip(*self._workers.map(of_part, self._rows.slices()), strict=True)
            residual, noise = sum(squares), reduce(operator.add, noises)
        if self._squares is None:
            self._squares = sums.squares
        return _Sums(
            value=sums.value,
            products=sums.products.reshape(self.p, -1),
            sums=sums.residuals.ravel(),
            squares=self._mean_squares(),
            residual=residual,
            noise=noise,
        )

    def _flat(self, scores: NumPyArray) -> NumPyArray:
        """Return scores, (rows, K), as losses take them."""
        return scores[:, 0] if self.loss.outputs == 1 else scores

    def _of_residuals(
        self, scores: NumPyArray, residual: NumPyArray, target: NumPyArray, share: NumPyArray
    ) -> tuple[float, Noise]:
        """Return the mean square of residuals, and the noise of the scores, as losses take them."""
        largest = np.square(residual) if residual.ndim == 1 else np.square(residual).max(axis=1)
        square, has_weight = float(share @ largest), share > 0
        if has_weight.all():
            return square, self.loss.noise(scores, target, share)
        some = scores[has_weight], target[has_weight], share[has_weight]
        return square, self.loss.noise(*some)

    def _mean_squares(self) -> NumPyArray:
        """Return the mean square of each feature, (p,): a pass over all rows, once."""
        if self._squares is None:
            everything = self.all()

            def of_part(part: slice) -> NumPyArray:
                block, _, share, _ = everything.get(part)
                return column_squares(block, share)

            self._squares = np.zeros(self.p)
            for squares in self._workers.map(of_part, everything.parts):
                self._squares += squares
        return self._squares

    # --- Bounds -----------------------------------------------------------------------------

    def without_a_step(self, point: Point, enough: float = np.inf) -> float:
        """Return the bound for v = 0, by another pass over all rows: inf without L2.

        In coordinates that are centred by the curvature, H is at least the penalty, and the sum of
        the weights for the intercept. There is no pass, and no statement, where the penalty alone
        makes more of the gradient than `enough`.
        """
        loss = self.loss
        penalty = point.penalty[: self.p]
        gradient, error = np.abs(point.gradient[: self.p]), point.error[: self.p].copy()
        rest = np.square(gradient + error).sum(axis=1)
        if (rest[penalty == 0] > 0).any():
            return np.inf
        used = penalty > 0
        if not 0.5 * float((rest[used] / penalty[used]).sum()) <= enough:
            return np.inf
        mean, weight, farthest = self._least_curvature(point)
        weight *= 1 - 1e-9 - 8 * UNIT * point.constant
        square = 0.0
        if self._has_intercept:
            if not weight > 0:
                return np.inf
            last = np.abs(point.gradient[-1]) + point.error[-1]
            shift = mean[:, None] * point.gradient[-1]
            gradient = np.abs(point.gradient[: self.p] - shift)
            error += np.abs(mean)[:, None] * point.error[-1] + 4 * UNIT * np.abs(shift)
            square = float(np.square(last).sum()) / weight
            rest = np.square(gradient + error).sum(axis=1)
            if (rest[penalty == 0] > 0).any():
                return np.inf
        square += float((rest[used] / penalty[used]).sum())
        tau = np.sqrt(square)
        center = float((np.square(mean[used]) / penalty[used]).sum())
        norm = np.sqrt(2 * (farthest + center))
        if self._has_intercept:
            norm = np.sqrt(norm * norm + 1 / weight)
        if loss.outputs > 1:
            norm *= np.sqrt(2)
        return self._bound(0.0, tau, loss.first_fall + loss.slope * tau * norm, point)

    def _least_curvature(self, point: Point) -> tuple[NumPyArray, float, float]:
        """Return what `Loss.least_curvature` gives in a pass over all rows.

        Returns
        -------
        mean : numpy.ndarray, (p,)
            Of the features, weighted by it.
        weight : float
            The sum of the shares times it.
        farthest : float
            Of the rows: the largest square of a norm in the inverse of the penalty.
        """
        loss, coef, penalty = self.loss, point.theta[: self.p], point.penalty[: self.p]
        reach = np.divide(1, penalty, out=np.zeros(self.p), where=penalty > 0)
        everything = self.all()

        def of_part(part: slice) -> tuple[NumPyArray, float, float]:
            block, target, share, offset = everything.get(part)
            scores = block @ coef + (point.bias + offset)
            flat = scores[:, 0] if loss.outputs == 1 else scores
            curvature = share * loss.least_curvature(flat, target)
            reached = row_squares(block, reach)
            if loss.outputs == 1:
                with np.errstate(divide="ignore"):
                    reached = np.minimum(reached, 1 / curvature)
            largest = float(reached[curvature > 0].max(initial=0.0))
            return column_products(block, curvature), float(curvature.sum()), largest

        total, weight, farthest = np.zeros(self.p), 0.0, 0.0
        for products, of_part_, largest in self._workers.map(of_part, everything.parts):
            total += products
            weight += of_part_
            farthest = max(farthest, largest)
        return (total / weight if weight > 0 else total), weight, farthest

    def by_a_factor(self, point: Point, rows: Some) -> float:
        """Return the bound for a Newton step on some rows; inf for no statement."""
        if rows.scaling is not None:
            point = self._scaled(point, rows.scaling)
        hessian = self._hessian(point, rows)
        diagonal = hessian.diagonal().copy()
        width, k = point.gradient.shape
        kept = diagonal > 0
        # A column of zeros in all rows has no gradient, and no say.
        if (np.repeat(point.size, k)[~kept] > 0).any():
            return np.inf
        if not np.isfinite(hessian).all():
            return np.inf
        if point.is_free:
            products = hessian if k == 1 else self._moments(rows)
            kept &= ~np.repeat(self._dependent(products, rows.scaling), k)
        hessian = hessian[np.ix_(kept, kept)]
        roots = np.sqrt(diagonal[kept])
        scaled = hessian / np.multiply.outer(roots, roots)
        size = len(scaled)
        # The products are off by the first, and their factor by the second.
        count = roundings([part.stop - part.start for part in rows.parts]) + size + 16
        eta = 1.01 * size * count * UNIT
        scaled.flat[:: size + 1] -= 2 * eta
        try:
            lower = scipy.linalg.cholesky(scaled, lower=True, check_finite=False)
        except (np.linalg.LinAlgError, ValueError):
            return np.inf
        inverse = scipy.linalg.solve_triangular(lower, np.eye(size), lower=True, check_finite=False)
        frobenius = float(np.linalg.norm(inverse))
        error = 2 * size**1.5 * UNIT * frobenius
        if not error <= _RELIABLE:
            return np.inf
        flat = np.zeros(width * k)
        gradient = point.gradient.ravel()[kept] / roots
        flat[kept] = -(inverse.T @ (inverse @ gradient)) / roots
        step = flat.reshape(width, k)

        def norm_of(rest: NumPyArray) -> float:
            columns = np.linalg.norm(inverse, axis=0) + 2 * error * frobenius
            return float((rest.ravel()[kept] / roots) @ columns)

        weights = np.zeros(width * k)
        weights[kept] = 1 / roots
        # Of a row in H^-1, at most; of classes any two of its coordinates.
        largest = (1 + 2 * error) * frobenius * np.square(weights.reshape(width, k)).max(axis=1)

        def norms_of(block: Any) -> NumPyArray:
            squares = row_squares(block, largest[: self.p])
            if self._has_intercept:
                squares = squares + largest[-1]
            return np.asarray(np.sqrt(squares * (1 + 2 * error) * frobenius))

        # By Cauchy and Schwarz, of the scores' terms for a row of norm 1.
        sizes = np.abs(point.theta[: self.p])
        sizes = sizes[:, 0] if k == 1 else sizes.max(axis=1)
        seen = largest[: self.p] > 0
        squares = float((np.square(sizes[seen]) / largest[: self.p][seen]).sum())
        scored = float(np.sqrt(squares / frobenius))
        return self._with_step(point, rows, step, norm_of, norms_of, scored)

    def by_rotation(self, point: Point) -> float:
        """Return the bound in coordinates in which all rows are orthonormal: see `orthogonal`.

        Without L1, and without a step v: norms stand for falls, and of classes the least
        probability for their curvature. If columns are sums of others but for rounding, it is one
        for coefficients that are at most `LARGEST_RATIO` times as large.
        """
        loss, k, p, width = self.loss, self.loss.outputs, self.p, self.width
        if point.has_corners:
            return np.inf
        everything, parts = self.all(), parts_of_triangle(self.n, width)
        center, theta = np.zeros(p), point.theta
        if self._has_intercept:
            for part in parts:
                block, _, share, _ = everything.get(part)
                center += share @ block
        if point.is_centred:
            theta = theta - theta.mean(axis=1, keepdims=True)
        weights: list[NumPyArray] = []
        farthest = [0.0]

        def blocks() -> Iterator[RowsOfAProof]:
            weights.clear()
            for part in parts:
                block, target, share, offset = everything.get(part)
                block = _dense(block)
                scores = self._flat(block @ point.theta[:p] + (point.bias + offset))
                weights.append(share * loss.least_curvature(scores, target))
                farthest.append(float((np.abs(block) @ np.abs(point.theta[:p])).max()))
                features = np.hstack([block - center, np.ones((len(block), width - p))])
                residual = loss.residual(scores, target).reshape(len(block), k)
                yield RowsOfAProof(features, share, weights[-1], residual)
            roots, one = np.sqrt(point.penalty), np.ones(width)
            yield RowsOfAProof(np.diag(roots), one, one, roots[:, None] * theta)

        found = rotated(blocks, width)
        if found is None:
            return np.inf
        weight = np.concatenate(weights)
        of_penalty = float(point.penalty @ np.square(theta).sum(axis=1))
        noise = np.sqrt(k) * np.hypot(point.noise, 8 * UNIT * np.sqrt(of_penalty))
        tau = found.norm + found.of_noise * noise
        used = weight > 0
        norms = np.minimum(found.norms[: self.n][used], 1.01 / np.sqrt(weight[used]))
        spread = np.sqrt(2) if k > 1 else 1.0
        of_curvature = 16 * UNIT
        if loss.has_falls:
            of_curvature += 2 * (p + 12) * UNIT * (max(farthest) + point.constant)
        t = loss.first_fall + loss.slope * spread * tau * float(norms.max(initial=0.0))
        size = float(np.linalg.norm(found.sizes[:, None] * theta))
        bound = self._bound(0.0, tau, (1 + of_curvature) * t, point) * (1 + 2 * of_curvature)
        return bound + LARGEST_RATIO * size * found.left

    def _moments(self, rows: Some) -> NumPyArray:
        """Return the products of the columns in some rows, (w, w)."""

        def of_part(part: slice) -> NumPyArray:
            block, _, share, _ = rows.get(part)
            return gram_of_block(block, share, ones=self._has_intercept)

        products = self._workers.map(of_part, rows.parts, together=1)
        return sum(products, np.zeros((self.width, self.width)))

    def _dependent(self, products: NumPyArray, scaling: Scaling | None) -> NumPyArray:
        """Return which columns are a sum of others in every row, exactly, (w,).

        Without a penalty their coefficients may stay as they are: those of the others do as well.
        The candidates come from the products of the columns in some rows. A sum is proven by a pass
        over all rows, if its factors are whole numbers and so are the features, or if it is plus or
        minus one other column, times a power of two: then no product or sum is rounded.
        """
        dependent = np.zeros(self.width, bool)
        used = np.flatnonzero(products.diagonal() > 0)
        if not len(used):
            return dependent
        # The intercept comes first, so that it is in the sums and not a sum itself.
        roots = np.sqrt(products.diagonal()[used])
        scaled = products[np.ix_(used, used)] / np.multiply.outer(roots, roots)
        if self._has_intercept:
            scaled[-1] *= 2
            scaled[:, -1] *= 2
            roots[-1] /= 2
        _, order, rank, _ = scipy.linalg.lapack.dpstrf(scaled, tol=_DEPENDENT, lower=1)
        if rank == len(used):
            return dependent
        base, rest = order[:rank] - 1, order[rank:] - 1
        factors = np.zeros((self.width, len(rest)))
        of_base = scipy.linalg.solve(scaled[np.ix_(base, base)], scaled[np.ix_(base, rest)])
        factors[used[base]] = of_base * roots[rest] / roots[base][:, None]
        columns = used[rest]
        if scaling is not None:
            factors[: self.p] *= scaling.inverse[:, None]
            factors /= scaling.inverse[columns]
            if self._has_intercept:
                factors[-1] += scaling.center[columns] - scaling.center @ factors[: self.p]
        factors[columns, np.arange(len(columns))] = -1
        # For the rows as they are stored.
        factors[: self.p] /= self._scale[:, None]
        factors *= self._scale[columns]
        # Halves and thirds, too.
        sums, are_whole = np.zeros_like(factors), np.zeros(len(columns), bool)
        for times in range(1, _MOST_TIMES + 1):
            wanted = times * factors
            whole = np.rint(wanted)
            if self._has_intercept:
                wanted[-1] -= self._center @ whole[: self.p]
                whole[-1] = np.rint(wanted[-1])
            is_constant = (whole[: self.p] != 0).sum(axis=0) == 1
            near = np.abs(wanted - whole) < _WHOLE
            near[-1] |= is_constant & self._has_intercept
            new = near.all(axis=0) & ~are_whole
            sums[:, new] = whole[:, new]
            are_whole |= new
        return self._proven(dependent, columns[are_whole], sums[:, are_whole])

    def _proven(
        self, dependent: NumPyArray, columns: NumPyArray, factors: NumPyArray
    ) -> NumPyArray:
        """Mark the columns whose sums with these factors, (w, c), are 0 in every row.

        A column with no factor but its own and the intercept's is asked whether it is constant.
        """
        rows, size = self._rows, np.abs(factors).sum(axis=0)
        is_pair = (factors != 0).sum(axis=0) == 2
        is_pair &= ((factors == 0) | (np.frexp(np.abs(factors))[0] == 0.5)).all(axis=0)
        used = factors[: self.p] != 0
        constant = factors[-1] if self._has_intercept else 0.0
        alone = np.flatnonzero((used.sum(axis=0) == 1) & self._has_intercept)
        value = _dense(rows.block(slice(0, 1))[:, columns[alone]])

        def of_part(part: slice) -> NumPyArray:
            block = rows.block(part)
            is_sum = (block @ factors[: self.p] + constant == 0).all(axis=0)
            is_sum &= is_pair | ~(used & ~_are_exact(block)[:, None]).any(axis=0)
            is_sum[alone] = (_dense(block[:, columns[alone]]) == value).all(axis=0)
            return np.asarray(is_sum)

        are = size < 2**30
        are[alone] = True
        if len(columns):
            for of_these in self._workers.map(of_part, rows.slices()):
                are &= of_these
        dependent[columns[are]] = True
        return dependent

    def _scaled(self, point: Point, scaling: Scaling) -> Point:
        """Return a point for features (x - center) * inverse: the same model and objective.

        What is rounded by that is in the error of the gradient, and in the counts of roundings that
        stand for the features' own.
        """
        center, inverse, p = scaling.center, scaling.inverse, self.p
        coef, bias = point.theta[:p], point.bias + center @ point.theta[:p]
        theta, penalty, size = point.theta.copy(), point.penalty.copy(), point.size.copy()
        gradient, error = point.gradient.copy(), point.error.copy()
        error[:p] += 4 * UNIT * np.abs(gradient[:p])
        if self._has_intercept:
            of_center = np.multiply.outer(center, gradient[-1])
            error[:p] += 4 * UNIT * np.abs(of_center) + np.multiply.outer(abs(center), error[-1])
            gradient[:p] -= of_center
            theta[-1] = bias
        gradient[:p] *= inverse[:, None]
        error[:p] *= inverse[:, None]
        theta[:p] /= inverse[:, None]
        penalty[:p] *= np.square(inverse)
        size[:p] = (size[:p] + np.abs(center)) * inverse
        constant = point.constant + float((np.abs(center) @ np.abs(coef)).max())
        return replace(
            point,
            theta=theta,
            bias=bias,
            gradient=gradient,
            error=error,
            penalty=penalty,
            size=size,
            constant=constant,
        )

    def _with_step(
        self,
        point: Point,
        rows: Some,
        step: NumPyArray,
        norm_of: Callable[[NumPyArray], float],
        norms_of: Callable[[Any], NumPyArray],
        scored: float,
    ) -> float:
        """Return the bound for a step v, (w, K).

        Parameters
        ----------
        norm_of : callable
            From the sizes of a vector's numbers, (w, K), to a bound of its norm in H^-1.
        norms_of : callable
            From features to bounds of the norms of their rows in H^-1, (rows,).
        scored : float
            Times such a bound it is at least the sum of the sizes of a row's features times
            coefficients.
        """
        loss, k, p = self.loss, self.loss.outputs, self.p
        coef = point.theta[:p]
        shift = step[-1] if self._has_intercept else np.zeros(k)

        def of_part(part: slice) -> tuple[Any, ...]:
            block, target, share, offset = rows.get(part)
            scores, along = block @ coef + (point.bias + offset), block @ step[:p] + shift
            flat, moved = (scores, along) if k > 1 else (scores[:, 0], along[:, 0])
            change, square, fall = loss.change(flat, target, moved)
            weighted = (share * change.T).T.reshape(len(share), k)
            curvature = share * loss.sure_curvature(flat, target).reshape(len(share), k).max(axis=1)
            used = curvature > 0
            norms = norms_of(block)
            farthest = float(norms[used].max(initial=0))
            if k == 1:
                with np.errstate(divide="ignore"):
                    norms = np.minimum(norms, 1 / np.sqrt(curvature))
            return (
                float(share @ square),
                column_products(block, weighted),
                weighted.sum(axis=0),
                np.stack([fall[used], norms[used]], axis=1),
                farthest,
            )

        square, products, sums, farthest = 0.0, np.zeros((p, k)), np.zeros(k), 0.0
        falls = []
        # Several products of each row: of parts that a cache holds.
        cached = max(constants.LEAST_BLOCK_ROWS, constants.PART_ROWS // self.width)
        parts = [part for whole in rows.parts for part in _parts(whole, cached)]
        for of_square, of_rows, of_sum, of_falls, of_norms in self._workers.map(of_part, parts):
            square += of_square
            products += of_rows
            sums += of_sum
            falls.append(of_falls)
            farthest = max(farthest, of_norms)
        total = np.vstack([products, sums]) if self._has_intercept else products
        penalty = point.penalty[:, None]
        rest = np.abs(point.gradient + total + penalty * step)
        square += float((penalty * step * step).sum())
        longest = max(part.stop - part.start for part in parts)
        count = longest + len(parts) + 16
        error = point.error + count * UNIT * np.sqrt(square) * point.size[:, None]
        error += 8 * UNIT * (np.abs(point.gradient) + penalty * np.abs(step))
        tau = norm_of(rest + 1.01 * error)
        of_curvature = 16 * UNIT
        if loss.has_falls:
            of_curvature += 2 * (p + 12) * UNIT * (farthest * scored + point.constant)
        both = np.concatenate(falls)
        spread = np.sqrt(2) if k > 1 else 1.0
        largest = both[:, 0] + loss.slope * spread * tau * both[:, 1]
        t = (1 + of_curvature) * float(largest.max(initial=0.0))
        return self._bound(np.sqrt(square), tau, t, point) * (1 + 2 * of_curvature)

    def _bound(self, norm: float, tau: float, t: float, point: Point) -> float:
        if not t <= 1:
            return np.inf
        factor = omega(t) if self.loss.has_falls else 0.5
        bound = (1 + 1e-12) * (norm + tau) ** 2 * factor + point.extra
        return float(bound) if np.isfinite(bound) else np.inf

    # --- Hessians ---------------------------------------------------------------------------

    def _hessian(self, point: Point, rows: Some) -> NumPyArray:
        """Return the Hessian of some rows with the penalty, theta raveled."""
        loss, k, p, width = self.loss, self.loss.outputs, self.p, self.width
        coef = point.theta[:p]

        def of_part(part: slice) -> NumPyArray:
            block, target, share, offset = rows.get(part)
            scores = block @ coef + (point.bias + offset)
            weights: Weights
            if k == 1:
                weights = share * loss.sure_curvature(scores[:, 0], target)
            else:
                weights = ClassWeights(loss.probability(scores), share)
            return gram_of_block(block, weights, ones=self._has_intercept)

        products = self._workers.map(of_part, rows.parts, together=1)
        total = sum(products, np.zeros((width * k, width * k))).reshape(width, k, width, k)
        for k_ in range(k):
            total[np.arange(width), k_, np.arange(width), k_] += point.penalty
        if k > 1:
            # The loss does not see a shift of all classes, along which there is no step (see `at`):
            # any curvature along it is allowed, and makes the matrix positive definite.
            for j in range(width) if point.is_centred else np.flatnonzero(point.penalty == 0):
                total[j, :, j, :] += np.trace(total[j, :, j, :]) / k**2
        return total.reshape(width * k, width * k)


class _Sums(NamedTuple):
    """Of a part of the rows."""

    value: float
    products: NumPyArray
    sums: NumPyArray
    squares: NumPyArray
    residual: float
    noise: Noise

    def __add__(self, other: _Sums) -> _Sums:  # type: ignore[override]
        return _Sums(
            self.value + other.value,
            self.products + other.products,
            self.sums + other.sums,
            self.squares + other.squares,
            self.residual + other.residual,
            self.noise + other.noise,
        )


def _parts(rows: slice, size: int) -> list[slice]:
    stop = rows.stop
    return [slice(start, min(start + size, stop)) for start in range(rows.start, stop, size)]


def _dense(block: Any) -> NumPyArray:
    return np.asarray(block.toarray() if issparse(block) else block)


def _are_exact(block: Any) -> NumPyArray:
    """Return which columns are whole numbers whose sums are not rounded, (p,)."""
    if issparse(block):
        data = block.data
        is_rounded = (np.rint(data) != data) | (np.abs(data) >= 2**20)
        return np.asarray(np.bincount(block.indices[is_rounded], minlength=block.shape[1]) == 0)
    return np.asarray((np.rint(block) == block).all(axis=0) & (np.abs(block).max(axis=0) < 2**20))
