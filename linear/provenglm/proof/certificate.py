r"""Prove how far coefficients are from the optimum, by a Newton step on some of the rows.

Let :math:`F(\theta) = \sum_i s_i l_i(x_i^T\theta) + \frac12 \theta^T\Lambda\theta
+ \sum_j \mu_j |\theta_j|`, g the gradient of its smooth part, S any set of rows, and
:math:`H = \sum_S w_i x_i x_i^T + \Lambda` with :math:`w_i = s_i l_i''`. For any v, with
:math:`a_i = x_i^T v`, :math:`Q = \sum_S w_i a_i^2 + v^T\Lambda v` and the
residual :math:`\rho = g + q + \sum_S w_i a_i x_i + \Lambda v`, whose norm in :math:`H^{-1}` is at
most :math:`\tau`,

.. math::
    F(\theta) - F^* \le (\sqrt Q + \tau)^2 \, \omega(t) / t^2
        + \sum_j (\mu_j |\theta_j| - q_j \theta_j), \qquad |q_j| \le \mu_j,

if the *largest relative move* t is at most 1, with :math:`\omega(t) = t + (1 - t) \log(1 - t)`.
This is Fenchel's duality gap, with the residuals of the rows in S moved by the step v. The proof is
in ``docs/linear/certificate.md``. The rows outside of S contribute only to g, so one pass over all
rows and a Hessian of some rows are enough.

Everything is computed in float64, at the coefficients that the user gets. :math:`\tau` includes a
bound of every rounding error: see "Rounding" on that page.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import scipy.linalg

from provenglm.model.losses import OFFSET_OF_FLOAT32, Loss
from provenglm.model.objective import PassSums, Scaling, Snapshot, block_rounding
from provenglm.model.returned import shifted
from provenglm.model.sample import Sample
from provenglm.model.triangle import parts_of_triangle
from provenglm.proof.certificate_sums import (
    Norms,
    Place,
    ProofSums,
    block_hessian,
    block_step,
    block_sums,
    dense,
    exceptions,
    least_curvatures,
    mean_squares,
    moments,
    offset_sizes,
    scores_in,
)
from provenglm.proof.orthogonal import LARGEST_RATIO, ProofRows, qr_bounds
from provenglm.rows.base import Rows
from provenglm.rows.csr import CsrRows
from provenglm.rows.dense import DenseRows
from provenglm.rows.gram import roundings
from provenglm.rows.remote import AnyTable
from provenglm.rows.table import Block, Table
from provenglm.types import NumPyArray

UNIT = 2.0**-53
"""The unit roundoff of float64."""


_FARTHEST = 300
"""A feature is rescaled if its scale is above 2^300 or below 2^-300: its squares could overflow or
underflow."""

_DEPENDENT, _WHOLE, _MOST_TIMES = 1e-10, 1e-4, 6
"""A column may be a sum of other columns if they leave at most the fraction `_DEPENDENT` of its
square unexplained, and its factors, all multiplied by one of the numbers 1 to `_MOST_TIMES`, differ
from whole numbers by less than `_WHOLE`."""

_RELIABLE = 0.01
"""Nothing is proven if the inverse of the Cholesky factor has a larger relative error."""


def omega(t: float) -> float:
    r"""Return :math:`(t + (1 - t) \log(1 - t)) / t^2`, from 1/2 at 0 to 1 at 1, rounded up."""
    if t < 1e-3:
        return 0.5 + t / 6 + t * t / 12 + t**3 / 10
    if t >= 1:
        return 1.0
    return (1 + 1e-9) * (t + (1 - t) * float(np.log1p(-t))) / (t * t)


class Model(NamedTuple):
    """Coefficients and penalties in the user's units.

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
    """A model, evaluated by a pass over all rows in float64, in the certificate's coordinates.

    Attributes
    ----------
    objective : float
    theta : numpy.ndarray, (w, K)
        The coefficients. w is p, or p + 1 with an intercept, which is the last row.
    bias : numpy.ndarray, (K,)
        The intercept for centred features; it exists also if the model has none.
    gradient : numpy.ndarray, (w, K)
        The gradient of the smooth part plus `q`, the subgradient of the L1 penalty.
    error : numpy.ndarray, (w, K)
        Bounds of the rounding errors of the gradient.
    penalty : numpy.ndarray, (w,)
        The L2 penalty of each row of theta.
    extra : float
        The terms of the bound that do not depend on the step.
    is_centred : bool
        Whether steps have mean 0 over the classes.
    size : numpy.ndarray, (w,)
        Upper bounds of the root mean squares of the features.
    constant : float
        An upper bound of the sizes of intercept and offset in the scores.
    is_free : bool
        Whether there is no penalty at all.
    has_corners : bool
        Whether there is an L1 penalty.
    noise : float
        An upper bound of the root mean square of the residuals' errors by rounding of the scores.
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


class RowSubset(NamedTuple):
    """A set of rows that a proof uses.

    Attributes
    ----------
    table : Table
    scaling : Scaling, optional
        The coordinates of the table's features, if they are not those of the certificate.
    """

    table: AnyTable
    scaling: Scaling | None = None

    @property
    def own(self) -> Table:
        """The table of rows that are in this process."""
        assert isinstance(self.table, Table)
        return self.table

    def head(self, count: int) -> RowSubset:
        """Return the set of the first `count` rows, for dense rows in memory."""
        return self._replace(table=self.own.head(count))


class Certificate:
    """Proofs for models of one data set.

    Parameters
    ----------
    table : Table
        The table of all rows.
    loss : Loss
    has_intercept : bool
    center : numpy.ndarray, (p,)
        Approximate means of the features; not used for sparse rows.
    scale : numpy.ndarray, (p,)
        Approximate standard deviations of the features, above 0.
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

    def all(self) -> RowSubset:
        """Return the set of all rows."""
        return RowSubset(self._table)

    def subset(self, indices: NumPyArray) -> RowSubset:
        """Return the set of the given rows, without repetitions. They are copied to memory."""
        indices = np.unique(indices)
        features = self._table.picked(indices)
        rows: Rows = DenseRows(features) if isinstance(features, np.ndarray) else CsrRows(features)
        return RowSubset(self._subset_table(rows, indices))

    def subset_of_sample(self, sample: Sample, scaling: Scaling) -> RowSubset | None:
        """Return the set of a sample's rows, or None if a proof cannot use its coordinates.

        Nothing is read or copied. If a row occurs m times, each occurrence gets an m-th of its
        share.
        """
        is_dense = isinstance(sample.rows, np.ndarray)
        if self._place.is_moved or not is_dense or sample.indices is None:
            return None
        if not (scaling.inverse > 0).all():
            return None
        _, place, copies = np.unique(sample.indices, return_inverse=True, return_counts=True)
        table = self._subset_table(DenseRows(sample.rows[:, : self.p]), sample.indices)
        return RowSubset(replace(table, share=table.share / copies[place]), scaling)

    def _subset_table(self, rows: Rows, indices: NumPyArray) -> Table:
        target, share, offset = self._table.row_data(indices)
        return Table(rows, target, share, self._table.workers, offset)

    def _size_of_offsets(self) -> tuple[float, float]:
        """Return the root mean square and the maximum of the offsets' sizes, over all outputs."""
        if not self._table.has_offset:
            return 0.0, 0.0
        square, largest = self._table.known(offset_sizes)
        return math.sqrt(square), max(largest)

    # --- The pass over all rows -----------------------------------------------------------

    def at(self, model: Model, known: Snapshot | None = None) -> Point | None:
        """Evaluate a model by a pass over all rows; return None if a number is not finite.

        Parameters
        ----------
        model : Model
        known : Snapshot, optional
            A snapshot of this model. If it has its sums, the features are not read again.
        """
        loss, (center, scale) = self.loss, self._place
        coef = model.coef * scale[:, None]
        bias = shifted(model.intercept, center, model.coef)
        penalty = np.square(np.sqrt(model.l2) / scale)
        slopes = model.l1 / scale
        if known is not None and known.sums is not None and not self._place.is_moved:
            total = self._sums_from_snapshot(known, known.sums)
        else:
            total = self._pass_sums(coef, bias)
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
        # A score is a sum of p + 2 products of centred features, and an offset, each rounded once.
        largest = np.abs(coef).max(axis=1)
        offset_size, largest_offset = self._size_of_offsets()
        scores = largest @ size + np.abs(bias).max() + offset_size
        moved = (self.p + 6) * UNIT * float(scores)
        sizes = self._table.sizes
        count = max(sizes, default=0) + len(sizes) + 6
        score_error = 1.72 * noise.curvature * moved + 6 * UNIT * float(np.sqrt(noise.square))
        each = score_error + count * UNIT * float(np.sqrt(residual))
        error = np.full((self.p, k), 4 * np.finfo(float).tiny) + (1.01 * size * each)[:, None]
        error += 4 * UNIT * (penalty[:, None] * np.abs(coef) + np.abs(gradient))
        gradient = gradient + q
        extra = float((slopes[:, None] * np.abs(coef) - q * coef).clip(min=0).sum())
        is_centred = k > 1 and model.l1 == 0
        if is_centred:
            # F is its value at coefficients with mean 0 over the classes, plus the increase of the
            # penalty.
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
            noise=score_error,
        )
        numbers = (objective, gradient, error)
        is_number = all(np.isfinite(number).all() for number in numbers)
        return point if is_number and noise.is_exact else None

    def _pass_sums(self, coef: NumPyArray, bias: NumPyArray) -> ProofSums:
        knows_squares = self._squares is not None
        given = self._place, self.loss, coef, bias, not knows_squares
        total: ProofSums = self._table.sum(block_sums, *given)
        if not knows_squares:
            self._squares = total.squares
        return total

    def _sums_from_snapshot(self, known: Snapshot, sums: PassSums) -> ProofSums:
        """Return the sums of a pass, from the scores and sums that a snapshot has kept."""
        loss = self.loss
        if loss.has_classes:
            # No residual is greater than 1 - exp(-loss), whose square is less than the loss.
            scores = np.zeros((0, loss.outputs))
            noise = loss.rounding_terms(scores, np.zeros(0, np.intp), np.ones(1))
            residual = min(1.0, 1.01 * sums.value)
        elif sums.noise is not None:
            residual, noise = sums.noise
        else:
            residual, noise = self._table.sum(block_rounding, loss, kept=known.kept, reads=False)
        if self._squares is None:
            self._squares = sums.squares
        return ProofSums(
            value=sums.value,
            products=sums.products,
            sums=sums.residuals,
            squares=self._mean_squares(),
            residual=residual,
            noise=noise,
        )

    def _mean_squares(self) -> NumPyArray:
        """Return the mean square of each feature, (p,); the first call reads all rows."""
        if self._squares is None:
            self._squares = self._table.sum(mean_squares, self._place)
        return self._squares

    # --- Bounds -----------------------------------------------------------------------------

    def penalty_bound(self, point: Point, required_gap: float = np.inf) -> float:
        """Return the bound for the step v = 0, by another pass over all rows; inf without L2.

        The features are centred with means weighted by the curvature. H is then at least the
        diagonal matrix of the penalties, with the sum of the curvatures for the intercept. Without
        a pass, inf is returned if the terms of the penalties alone exceed `required_gap`.
        """
        loss = self.loss
        penalty = point.penalty[: self.p]
        gradient, error = np.abs(point.gradient[: self.p]), point.error[: self.p].copy()
        rest = np.square(gradient + error).sum(axis=1)
        if (rest[penalty == 0] > 0).any():
            return np.inf
        used = penalty > 0
        if not 0.5 * float((rest[used] / penalty[used]).sum()) <= required_gap:
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
        return self._bound(0.0, tau, loss.initial_move + loss.self_concordance * tau * norm, point)

    def _least_curvature(self, point: Point) -> tuple[NumPyArray, float, float]:
        """Sum `Loss.least_curvature` over all rows, in one pass.

        Returns
        -------
        mean : numpy.ndarray, (p,)
            The mean of the features, weighted by the curvature.
        weight : float
            The sum of the shares times the curvature.
        farthest : float
            The largest squared norm of a row in the inverse of the penalty.
        """
        penalty = point.penalty[: self.p]
        inverse_penalty = np.divide(1, penalty, out=np.zeros(self.p), where=penalty > 0)
        given = self._place, self.loss, point.theta[: self.p], point.bias, inverse_penalty
        total, weight, farthest = self._table.sum(least_curvatures, *given)
        return (total / weight if weight > 0 else total), weight, float(np.max(farthest))

    def newton_bound(self, point: Point, rows: RowSubset) -> float:
        """Return the bound for a Newton step on some rows; inf if nothing can be proven."""
        if rows.scaling is not None:
            point = self._scaled(point, rows.scaling)
        hessian = self._hessian(point, rows)
        diagonal = hessian.diagonal().copy()
        width, k = point.gradient.shape
        kept = diagonal > 0
        # A column that is 0 in all rows has no gradient and may be left out.
        if (np.repeat(point.size, k)[~kept] > 0).any():
            return np.inf
        if not np.isfinite(hessian).all():
            return np.inf
        if point.is_free:
            products = hessian
            if k > 1:
                products = rows.table.sum(moments, self._place, self._has_intercept)
            kept &= ~np.repeat(self._dependent(products, rows.scaling), k)
        hessian = hessian[np.ix_(kept, kept)]
        roots = np.sqrt(diagonal[kept])
        scaled = hessian / np.multiply.outer(roots, roots)
        size = len(scaled)
        # The first term bounds the error of the products, the second that of their factor.
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
        # Bound the norms of rows in H^-1; for classes the norms of any two coordinates of a row.
        largest = (1 + 2 * error) * frobenius * np.square(weights.reshape(width, k)).max(axis=1)

        intercept_weight = largest[-1] if self._has_intercept else 0.0
        norms = Norms(largest[: self.p], intercept_weight, (1 + 2 * error) * frobenius)
        # Bound the sizes of a score's terms for a row of norm 1 (Cauchy-Schwarz inequality).
        sizes = np.abs(point.theta[: self.p]).max(axis=1)
        seen = largest[: self.p] > 0
        squares = float((np.square(sizes[seen]) / largest[: self.p][seen]).sum())
        scored = float(np.sqrt(squares / frobenius))
        return self._bound_at_step(point, rows, step, norm_of, norms, scored)

    def qr_bound(self, point: Point) -> float:
        """Return the bound in coordinates in which the columns are orthonormal; see `orthogonal`.

        It is inf with an L1 penalty, and for rows that are not in memory. The step v is 0. Relative
        moves are bounded by the norms of the rows, and the curvature of several classes by the
        smallest probability.
        If columns are sums of others up to rounding, the bound holds for coefficients that are at
        most `LARGEST_RATIO` times as large as these.
        """
        loss, k, p, width = self.loss, self.loss.outputs, self.p, self.width
        if point.has_corners or self._table.is_out_of_core:
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

        def blocks() -> Iterator[ProofRows]:
            weights.clear()
            for part in parts:
                block = Block(table, 0, part)
                numbers, share, target = dense(place.features(block)), block.share, block.target
                scores = scores_in(block, numbers, point.theta[:p], point.bias)
                weights.append(share * loss.least_curvature(scores, target))
                farthest.append(float((np.abs(numbers) @ np.abs(point.theta[:p])).max()))
                features = np.hstack([numbers - center, np.ones((len(block), width - p))])
                residual = loss.residual(scores, target)
                yield ProofRows(features, share, weights[-1], residual)
            roots, one = np.sqrt(point.penalty), np.ones(width)
            yield ProofRows(np.diag(roots), one, one, roots[:, None] * theta)

        found = qr_bounds(blocks, width)
        if found is None:
            return np.inf
        weight = np.concatenate(weights)
        penalty_square = float(point.penalty @ np.square(theta).sum(axis=1))
        noise = np.sqrt(k) * np.hypot(point.noise, 8 * UNIT * np.sqrt(penalty_square))
        tau = found.norm + found.noise_factor * noise
        used = weight > 0
        norms = np.minimum(found.norms[: self.n][used], 1.01 / np.sqrt(weight[used]))
        spread = np.sqrt(2) if k > 1 else 1.0
        curvature_error = 16 * UNIT
        if loss.has_third_derivative:
            curvature_error += 2 * (p + 12) * UNIT * (max(farthest) + point.constant)
        t = loss.initial_move + loss.self_concordance * spread * tau * float(norms.max(initial=0.0))
        size = float(np.linalg.norm(found.sizes[:, None] * theta))
        bound = self._bound(0.0, tau, (1 + curvature_error) * t, point) * (1 + 2 * curvature_error)
        return bound + LARGEST_RATIO * size * found.left

    def _dependent(self, products: NumPyArray, scaling: Scaling | None) -> NumPyArray:
        """Return which columns are exactly a sum of others in every row, (w,).

        Without a penalty their coefficients may stay unchanged, because the other coefficients can
        give the same scores. The candidates come from the products of the columns in some rows. A
        pass over all rows proves a sum in three cases: its factors and the features are whole
        numbers, the column is constant, or the column is plus or minus another one times a power of
        two. In these cases no product or sum is rounded.
        """
        dependent = np.zeros(self.width, bool)
        used = np.flatnonzero(products.diagonal() > 0)
        if not len(used):
            return dependent
        # Put the intercept first, so that it is a term of the sums and not a sum itself.
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
        base_factors = scipy.linalg.solve(scaled[np.ix_(base, base)], scaled[np.ix_(base, rest)])
        factors[used[base]] = base_factors * roots[rest] / roots[base][:, None]
        columns = used[rest]
        if scaling is not None:
            factors[: self.p] *= scaling.inverse[:, None]
            factors /= scaling.inverse[columns]
            if self._has_intercept:
                factors[-1] += scaling.center[columns] - scaling.center @ factors[: self.p]
        factors[columns, np.arange(len(columns))] = -1
        # Convert the factors to the units of the stored rows.
        factors[: self.p] /= self._place.scale[:, None]
        factors *= self._place.scale[columns]
        # Factors may also be halves, thirds and so on.
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

        If only the column itself and the intercept have factors, check whether the column is
        constant.
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
            are &= self._table.sum(exceptions, *given) == 0
        dependent[columns[are]] = True
        return dependent

    def _scaled(self, point: Point, scaling: Scaling) -> Point:
        """Return the same model for features (x - center) * inverse.

        The rounding errors of this transformation are added to the error of the gradient.
        """
        center, inverse, p = scaling.center, scaling.inverse, self.p
        coef, bias = point.theta[:p], point.bias + center @ point.theta[:p]
        theta, penalty, size = point.theta.copy(), point.penalty.copy(), point.size.copy()
        gradient, error = point.gradient.copy(), point.error.copy()
        error[:p] += 4 * UNIT * np.abs(gradient[:p])
        if self._has_intercept:
            center_shift = np.multiply.outer(center, gradient[-1])
            error[:p] += 4 * UNIT * np.abs(center_shift) + np.multiply.outer(abs(center), error[-1])
            gradient[:p] -= center_shift
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

    def _bound_at_step(
        self,
        point: Point,
        rows: RowSubset,
        step: NumPyArray,
        norm_of: Callable[[NumPyArray], float],
        norms: Norms,
        scored: float,
    ) -> float:
        """Return the bound for a step v, (w, K).

        Parameters
        ----------
        norm_of : callable
            Return a bound of a vector's norm in H^-1, from the sizes of its numbers, (w, K).
        norms : Norms
            The bounds of the norms of rows in H^-1.
        scored : float
            The sum of |x_j coef_j| over the features of a row is at most this times the bound of
            the row's norm.
        """
        loss, k, p = self.loss, self.loss.outputs, self.p
        shift = step[-1] if self._has_intercept else np.zeros(k)
        given = self._place, loss, point.theta[:p], point.bias, step[:p], shift, norms
        square, products, sums, moves, largest_norms = rows.table.sum(block_step, *given)
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
        curvature_error = 16 * UNIT
        if loss.has_third_derivative:
            curvature_error += 2 * (p + 12) * UNIT * (farthest * scored + point.constant)
        move, norm = np.concatenate(moves, axis=1)
        spread = np.sqrt(2) if k > 1 else 1.0
        largest = move + loss.self_concordance * spread * tau * norm
        t = (1 + curvature_error) * float(largest.max(initial=0.0))
        return self._bound(np.sqrt(square), tau, t, point) * (1 + 2 * curvature_error)

    def _bound(self, norm: float, tau: float, t: float, point: Point) -> float:
        if not t <= 1:
            return np.inf
        factor = omega(t) if self.loss.has_third_derivative else 0.5
        bound = (1 + 1e-12) * (norm + tau) ** 2 * factor + point.extra
        return float(bound) if np.isfinite(bound) else np.inf

    # --- Hessians ---------------------------------------------------------------------------

    def _hessian(self, point: Point, rows: RowSubset) -> NumPyArray:
        """Return the Hessian of some rows with the penalty, for a flattened theta."""
        k, width = self.loss.outputs, self.width
        given = self._place, self.loss, point.theta[: self.p], point.bias, self._has_intercept
        total = rows.table.sum(block_hessian, *given).reshape(width, k, width, k)
        for k_ in range(k):
            total[np.arange(width), k_, np.arange(width), k_] += point.penalty
        if k > 1:
            # A shift of all classes does not change the loss, and steps have no such shift (see
            # `at`). Add some curvature along it, which makes the matrix positive definite.
            for j in range(width) if point.is_centred else np.flatnonzero(point.penalty == 0):
                total[j, :, j, :] += np.trace(total[j, :, j, :]) / k**2
        return np.asarray(total.reshape(width * k, width * k))
