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

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import scipy.linalg
from scipy.sparse import issparse

from provenglm.model.losses import OFFSET_OF_FLOAT32, Loss, Noise
from provenglm.model.objective import Scaling, Snapshot, Sums, noise_of, noise_of_residuals
from provenglm.model.returned import shifted
from provenglm.model.sample import Sample
from provenglm.model.triangle import parts_of_triangle
from provenglm.proof.orthogonal import LARGEST_RATIO, RowsOfAProof, rotated
from provenglm.rows.base import Rows
from provenglm.rows.csr import CsrRows, made_of
from provenglm.rows.dense import DenseRows
from provenglm.rows.far import AnyTable
from provenglm.rows.gram import ClassWeights, Weights, gram_of_block, roundings
from provenglm.rows.products import column_products, column_squares, row_squares
from provenglm.rows.table import Block, Table
from provenglm.types import NumPyArray

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
    table : Table
    scaling : Scaling, optional
        The coordinates of its features, if they are not those of the certificate.
    """

    table: AnyTable
    scaling: Scaling | None = None

    @property
    def own(self) -> Table:
        """The table of rows that are in this process."""
        assert isinstance(self.table, Table)
        return self.table

    def head(self, count: int) -> Some:
        """Return the set of the first rows of dense rows in memory."""
        table, rows = self.own, self.own.rows.block(slice(0, count))
        offset = None if table.offset is None else table.offset[:count]
        head = replace(
            table,
            rows=DenseRows(np.asarray(rows)),
            target=table.target[:count],
            share=table.share[:count],
            offset=offset,
        )
        return self._replace(table=head)


class Place(NamedTuple):
    """The certificate's coordinates: features are centred and divided by powers of two."""

    center: NumPyArray
    scale: NumPyArray

    @property
    def is_moved(self) -> bool:
        """Whether they are not the user's."""
        return bool(self.center.any() or (self.scale != 1).any())

    def features(self, block: Block) -> Any:
        """Return a block's features in these coordinates."""
        raw: Any = block.raw
        if issparse(raw):
            if (self.scale != 1).any():
                numbers = raw.data / self.scale[raw.indices]
                return made_of(numbers, raw.indices, raw.indptr, raw.shape)
            return raw
        if self.center.any():
            raw = raw - self.center
        return raw if (self.scale == 1).all() else raw / self.scale


class Certificate:
    """The proof for models of one data set.

    Parameters
    ----------
    table : Table
        All rows.
    loss : Loss
    has_intercept : bool
    center : numpy.ndarray, (p,)
        About the features' means; not looked at for sparse rows.
    scale : numpy.ndarray, (p,)
        About their deviations, above 0.
    """

    def __init__(
        self,
        table: AnyTable,
        loss: Loss,
        has_intercept: bool,
        center: NumPyArray,
        scale: NumPyArray,
    ) -> None:
        self._table = table.precise()
        self.loss = loss
        self._has_intercept = has_intercept
        is_dense = not table.rows.is_sparse
        farthest = float(np.abs(center / scale).max(initial=0.0))
        is_centred = has_intercept and is_dense and farthest > OFFSET_OF_FLOAT32
        power = np.round(np.log2(scale))
        self._place = Place(
            center if is_centred else np.zeros(len(center)),
            np.exp2(np.where(np.abs(power) > _FARTHEST, power, 0.0)),
        )
        self._squares: NumPyArray | None = None
        self.n, self.p = table.rows.shape
        self.width = self.p + has_intercept

    # --- Rows ------------------------------------------------------------------------------

    def all(self) -> Some:
        """Return the set of all rows."""
        return Some(self._table)

    def some(self, indices: NumPyArray) -> Some:
        """Return the set of some rows, each of them once, which are kept in memory."""
        indices = np.unique(indices)
        features = self._table.picked(indices)
        rows: Rows = DenseRows(features) if isinstance(features, np.ndarray) else CsrRows(features)
        return Some(self._of_these(rows, indices))

    def of_sample(self, sample: Sample, scaling: Scaling) -> Some | None:
        """Return the set of a sample's rows, or None if its coordinates are not those of a proof.

        Nothing is read or copied. A row that is there m times has an m-th of its share each time.
        """
        is_dense = isinstance(sample.rows, np.ndarray)
        if self._place.is_moved or not is_dense or sample.indices is None:
            return None
        if not (scaling.inverse > 0).all():
            return None
        _, place, copies = np.unique(sample.indices, return_inverse=True, return_counts=True)
        table = self._of_these(DenseRows(sample.rows[:, : self.p]), sample.indices)
        return Some(replace(table, share=table.share / copies[place]), scaling)

    def _of_these(self, rows: Rows, indices: NumPyArray) -> Table:
        target, share, offset = self._table.beside(indices)
        return Table(rows, target, share, self._table.workers, offset)

    def _size_of_offsets(self) -> tuple[float, float]:
        """Return the root mean square and the largest size; of several outputs the largest."""
        if not self._table.has_offset:
            return 0.0, 0.0
        square, largest = self._table.known(_sizes_of_offsets)
        return math.sqrt(square), max(largest)

    # --- The pass over all rows -----------------------------------------------------------

    def at(self, model: Model, known: Snapshot | None = None) -> Point | None:
        """Return what a pass over all rows gives; None if a number in it is not one.

        Parameters
        ----------
        model : Model
        known : Snapshot, optional
            Of this model, with its sums: then there is a pass over its scores alone.
        """
        loss, (center, scale) = self.loss, self._place
        coef = model.coef * scale[:, None]
        bias = shifted(model.intercept, center, model.coef)
        penalty = np.square(np.sqrt(model.l2) / scale)
        slopes = model.l1 / scale
        if known is not None and known.sums is not None and not self._place.is_moved:
            total = self._of_scores(known, known.sums)
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
        sizes = self._table.sizes
        count = max(sizes, default=0) + len(sizes) + 6
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
        knows_squares = self._squares is not None
        given = self._place, self.loss, coef, bias, not knows_squares
        total: _Sums = self._table.sum(_sums_of_block, *given)
        if not knows_squares:
            self._squares = total.squares
        return total

    def _of_scores(self, known: Snapshot, sums: Sums) -> _Sums:
        """Return what a pass would, from the sums that a snapshot's pass has left."""
        loss = self.loss
        if loss.has_classes:
            # No residual is greater than 1 - exp(-loss), whose square is less than the loss.
            scores = np.zeros((0, loss.outputs) if loss.outputs > 1 else 0)
            noise = loss.noise(scores, np.zeros(0, np.intp), np.ones(1))
            residual = min(1.0, 1.01 * sums.value)
        elif sums.noise is not None:
            residual, noise = sums.noise
        else:
            residual, noise = self._table.sum(noise_of, loss, kept=known.kept, reads=False)
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

    def _mean_squares(self) -> NumPyArray:
        """Return the mean square of each feature, (p,): a pass over all rows, once."""
        if self._squares is None:
            self._squares = self._table.sum(_mean_squares, self._place)
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
        penalty = point.penalty[: self.p]
        reach = np.divide(1, penalty, out=np.zeros(self.p), where=penalty > 0)
        given = self._place, self.loss, point.theta[: self.p], point.bias, reach
        total, weight, farthest = self._table.sum(_least_curvatures, *given)
        return (total / weight if weight > 0 else total), weight, float(np.max(farthest))

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
            products = hessian
            if k > 1:
                products = rows.table.sum(_moments, self._place, self._has_intercept)
            kept &= ~np.repeat(self._dependent(products, rows.scaling), k)
        hessian = hessian[np.ix_(kept, kept)]
        roots = np.sqrt(diagonal[kept])
        scaled = hessian / np.multiply.outer(roots, roots)
        size = len(scaled)
        # The products are off by the first, and their factor by the second.
        count = roundings(rows.table.sizes) + size + 16
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

        of_one = largest[-1] if self._has_intercept else 0.0
        norms = Norms(largest[: self.p], of_one, (1 + 2 * error) * frobenius)
        # By Cauchy and Schwarz, of the scores' terms for a row of norm 1.
        sizes = np.abs(point.theta[: self.p])
        sizes = sizes[:, 0] if k == 1 else sizes.max(axis=1)
        seen = largest[: self.p] > 0
        squares = float((np.square(sizes[seen]) / largest[: self.p][seen]).sum())
        scored = float(np.sqrt(squares / frobenius))
        return self._with_step(point, rows, step, norm_of, norms, scored)

    def by_rotation(self, point: Point) -> float:
        """Return the bound in coordinates in which all rows are orthonormal: see `orthogonal`.

        Without L1, and without a step v: norms stand for falls, and of classes the least
        probability for their curvature. If columns are sums of others but for rounding, it is one
        for coefficients that are at most `LARGEST_RATIO` times as large.
        """
        loss, k, p, width = self.loss, self.loss.outputs, self.p, self.width
        if point.has_corners or self._table.is_far:
            return np.inf
        place, parts, table = self._place, parts_of_triangle(self.n, width), self.all().own
        center, theta = np.zeros(p), point.theta
        if self._has_intercept:
            for part in parts:
                block = Block(table, 0, part)
                center += block.share @ place.features(block)
        if point.is_centred:
            theta = theta - theta.mean(axis=1, keepdims=True)
        weights: list[NumPyArray] = []
        farthest = [0.0]

        def blocks() -> Iterator[RowsOfAProof]:
            weights.clear()
            for part in parts:
                block = Block(table, 0, part)
                numbers, share, target = _dense(place.features(block)), block.share, block.target
                scores = _flat(_scores(block, numbers, point.theta[:p], point.bias))
                weights.append(share * loss.least_curvature(scores, target))
                farthest.append(float((np.abs(numbers) @ np.abs(point.theta[:p])).max()))
                features = np.hstack([numbers - center, np.ones((len(block), width - p))])
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
        factors[: self.p] /= self._place.scale[:, None]
        factors *= self._place.scale[columns]
        # Halves and thirds, too.
        sums, are_whole = np.zeros_like(factors), np.zeros(len(columns), bool)
        for times in range(1, _MOST_TIMES + 1):
            wanted = times * factors
            whole = np.rint(wanted)
            if self._has_intercept:
                wanted[-1] -= self._place.center @ whole[: self.p]
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
        size = np.abs(factors).sum(axis=0)
        is_pair = (factors != 0).sum(axis=0) == 2
        is_pair &= ((factors == 0) | (np.frexp(np.abs(factors))[0] == 0.5)).all(axis=0)
        used = factors[: self.p] != 0
        alone = np.flatnonzero((used.sum(axis=0) == 1) & self._has_intercept)
        value = self._table.gathered(np.zeros(1, np.intp))[:, columns[alone]]
        are = size < 2**30
        are[alone] = True
        if len(columns):
            alone_ = columns[alone], alone, value
            given = factors, self._has_intercept, is_pair, alone_
            are &= self._table.sum(_exceptions, *given) == 0
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
        norms: Norms,
        scored: float,
    ) -> float:
        """Return the bound for a step v, (w, K).

        Parameters
        ----------
        norm_of : callable
            From the sizes of a vector's numbers, (w, K), to a bound of its norm in H^-1.
        norms : Norms
            Bounds of the norms of rows in H^-1.
        scored : float
            Times such a bound it is at least the sum of the sizes of a row's features times
            coefficients.
        """
        loss, k, p = self.loss, self.loss.outputs, self.p
        shift = step[-1] if self._has_intercept else np.zeros(k)
        given = self._place, loss, point.theta[:p], point.bias, step[:p], shift, norms
        square, products, sums, falls, largest_norms = rows.table.sum(_step_of_block, *given)
        farthest = float(np.max(largest_norms))
        total = np.vstack([products, sums]) if self._has_intercept else products
        penalty = point.penalty[:, None]
        rest = np.abs(point.gradient + total + penalty * step)
        square += float((penalty * step * step).sum())
        sizes = rows.table.sizes
        count = max(sizes) + len(sizes) + 16
        error = point.error + count * UNIT * np.sqrt(square) * point.size[:, None]
        error += 8 * UNIT * (np.abs(point.gradient) + penalty * np.abs(step))
        tau = norm_of(rest + 1.01 * error)
        of_curvature = 16 * UNIT
        if loss.has_falls:
            of_curvature += 2 * (p + 12) * UNIT * (farthest * scored + point.constant)
        fall, norm = np.concatenate(falls, axis=1)
        spread = np.sqrt(2) if k > 1 else 1.0
        largest = fall + loss.slope * spread * tau * norm
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
        k, width = self.loss.outputs, self.width
        given = self._place, self.loss, point.theta[: self.p], point.bias, self._has_intercept
        total = rows.table.sum(_hessian_of_block, *given).reshape(width, k, width, k)
        for k_ in range(k):
            total[np.arange(width), k_, np.arange(width), k_] += point.penalty
        if k > 1:
            # The loss does not see a shift of all classes, along which there is no step (see `at`):
            # any curvature along it is allowed, and makes the matrix positive definite.
            for j in range(width) if point.is_centred else np.flatnonzero(point.penalty == 0):
                total[j, :, j, :] += np.trace(total[j, :, j, :]) / k**2
        return np.asarray(total.reshape(width * k, width * k))


class _Sums(NamedTuple):
    """Of a part of the rows."""

    value: float
    products: NumPyArray
    sums: NumPyArray
    squares: NumPyArray
    residual: float
    noise: Noise


class Norms(NamedTuple):
    """Bounds of the norms of rows: the root of `factor` times the weighted sum of their squares.

    Attributes
    ----------
    weights : numpy.ndarray, (p,)
    of_one : float
        The weight of the intercept's column.
    factor : float
    """

    weights: NumPyArray
    of_one: float
    factor: float

    def of(self, features: Any) -> NumPyArray:
        """Return the bounds for some rows, (rows,)."""
        return np.asarray(
            np.sqrt((row_squares(features, self.weights) + self.of_one) * self.factor)
        )


# --- Functions of a block -------------------------------------------------------------------


def _scores(block: Block, features: Any, coef: NumPyArray, bias: NumPyArray) -> NumPyArray:
    """Return the scores of features in the certificate's coordinates, (b, K)."""
    offset = 0.0 if block.offset is None else block.offset.reshape(len(block), -1)
    return np.asarray(features @ coef + (bias + offset))


def _flat(scores: NumPyArray) -> NumPyArray:
    """Return scores, (b, K), as losses take them."""
    return scores[:, 0] if scores.shape[1] == 1 else scores


def _sizes_of_offsets(block: Block) -> tuple[float, list[float]]:
    assert block.offset is not None
    sizes = np.abs(block.offset.reshape(len(block), -1)).max(axis=1)
    # What weighs nothing has no say.
    sizes[block.share == 0] = 0
    return float(block.share @ np.square(sizes)), [float(sizes.max())]


def _mean_squares(block: Block, place: Place) -> NumPyArray:
    return column_squares(place.features(block), block.share)


def _moments(block: Block, place: Place, has_intercept: bool) -> NumPyArray:
    """Return the products of the columns, (w, w)."""
    return gram_of_block(place.features(block), block.share, ones=has_intercept)


def _sums_of_block(
    block: Block,
    place: Place,
    loss: Loss,
    coef: NumPyArray,
    bias: NumPyArray,
    takes_squares: bool,
) -> _Sums:
    features, share, target = place.features(block), block.share, block.target
    scores = _flat(_scores(block, features, coef, bias))
    value, residual = loss.value_and_residual(scores, target)
    square, noise = noise_of_residuals(loss, scores, residual, target, share)
    weighted = share[:, None] * residual.reshape(len(share), -1)
    squares = column_squares(features, share) if takes_squares else np.zeros(0)
    products, sums = column_products(features, weighted), weighted.sum(axis=0)
    return _Sums(float(share @ value), products, sums, squares, square, noise)


def _least_curvatures(
    block: Block, place: Place, loss: Loss, coef: NumPyArray, bias: NumPyArray, reach: NumPyArray
) -> tuple[NumPyArray, float, list[float]]:
    features = place.features(block)
    scores = _flat(_scores(block, features, coef, bias))
    curvature = block.share * loss.least_curvature(scores, block.target)
    reached = row_squares(features, reach)
    if loss.outputs == 1:
        with np.errstate(divide="ignore"):
            reached = np.minimum(reached, 1 / curvature)
    largest = float(reached[curvature > 0].max(initial=0.0))
    return column_products(features, curvature), float(curvature.sum()), [largest]


def _hessian_of_block(
    block: Block,
    place: Place,
    loss: Loss,
    coef: NumPyArray,
    bias: NumPyArray,
    has_intercept: bool,
) -> NumPyArray:
    features, share = place.features(block), block.share
    scores = _scores(block, features, coef, bias)
    weights: Weights
    if loss.outputs == 1:
        weights = share * loss.sure_curvature(scores[:, 0], block.target)
    else:
        weights = ClassWeights(loss.probability(scores), share)
    return gram_of_block(features, weights, ones=has_intercept)


def _step_of_block(
    block: Block,
    place: Place,
    loss: Loss,
    coef: NumPyArray,
    bias: NumPyArray,
    step: NumPyArray,
    shift: NumPyArray,
    norms: Norms,
) -> tuple[float, NumPyArray, NumPyArray, list[NumPyArray], list[float]]:
    """Return the sums of a step, the largest falls with their norms, and the largest norm."""
    features, share, target = place.features(block), block.share, block.target
    scores, moved = _flat(_scores(block, features, coef, bias)), _flat(features @ step + shift)
    change, square, fall = loss.change(scores, target, moved)
    weighted = (share * change.T).T.reshape(len(share), -1)
    sure = loss.sure_curvature(scores, target).reshape(len(share), -1)
    curvature = share * sure.max(axis=1)
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
        _frontier(fall[used], each[used]),
        [farthest],
    )


def _frontier(fall: NumPyArray, norm: NumPyArray) -> list[NumPyArray]:
    """Return the pairs of falls and norms, (2, m), of which no other has more of both.

    One of them has the largest sum of a fall and a positive factor times the norm.
    """
    if np.isnan(fall).any() or np.isnan(norm).any():
        return [np.full((2, 1), np.nan)]
    order = np.lexsort([-norm, -fall])
    fall, norm = fall[order], norm[order]
    before = np.concatenate([[-np.inf], np.maximum.accumulate(norm)[:-1]])
    kept = norm > before
    return [np.stack([fall[kept], norm[kept]])]


def _exceptions(
    block: Block,
    factors: NumPyArray,
    has_intercept: bool,
    is_pair: NumPyArray,
    alone: tuple[NumPyArray, NumPyArray, NumPyArray],
) -> NumPyArray:
    """Return, for each sum of columns, 1 if it is not exactly 0 in the block's rows, else 0."""
    raw, p = block.raw, block.raw.shape[1]
    used, constant = factors[:p] != 0, factors[-1] if has_intercept else 0.0
    is_sum = (raw @ factors[:p] + constant == 0).all(axis=0)
    is_sum &= is_pair | ~(used & ~_are_exact(raw)[:, None]).any(axis=0)
    columns, places, value = alone
    is_sum[places] = (_dense(raw[:, columns]) == value).all(axis=0)
    return np.asarray(~is_sum, np.intp)


def _dense(block: Any) -> NumPyArray:
    return np.asarray(block.toarray() if issparse(block) else block)


def _are_exact(block: Any) -> NumPyArray:
    """Return which columns are whole numbers whose sums are not rounded, (p,)."""
    if issparse(block):
        data = block.data
        is_rounded = (np.rint(data) != data) | (np.abs(data) >= 2**20)
        return np.asarray(np.bincount(block.indices[is_rounded], minlength=block.shape[1]) == 0)
    return np.asarray((np.rint(block) == block).all(axis=0) & (np.abs(block).max(axis=0) < 2**20))
