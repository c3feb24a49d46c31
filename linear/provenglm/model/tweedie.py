r"""The losses of non-negative targets with a log link: gamma, and Tweedie with a mass at 0.

They are half the unit deviance of a variance :math:`\mu^p`, where p is the power. In terms of
:math:`a = p - 1`, :math:`b = 2 - p` and :math:`w = z - \log y` the loss is

.. math::
    l(z, y) = y^b \left[ \frac{e^{-aw} - 1}{a} + \frac{e^{bw} - 1}{b} \right], \qquad
    l(z, 0) = \frac{e^{bz}}{b},

where :math:`(e^{bw} - 1) / b` is w for the gamma loss, p = 2. It is convex, because :math:`l'' =
y^b [a e^{-aw} + b e^{bw}]`, and :math:`l''' / l''` is between -a and b. Along a step :math:`\delta`
of the score the residual can move by :math:`l'' \delta` as long as the relative move
:math:`\max(a\delta, -b\delta)` is at most 1. Fenchel's terms are then at most :math:`l'' \delta^2
\omega(t) / t^2` for a relative move t: the integral of :math:`1 / l''` over residuals, with the
least :math:`l''` that this bound allows. The Poisson loss is the same with p = 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from provenglm.arguments import check_finite
from provenglm.model.losses import (
    MOST_LOG,
    Dual,
    Poisson,
    RoundingTerms,
    ScalarLoss,
    balanced_means,
    check_not_negative,
    x_log_x,
)
from provenglm.types import NumPyArray

_FARTHEST_OF_FLOAT32 = 40.0
"""Sums of targets may not fit into float32 if a logarithm of the targets is farther from 0 than
this."""

_NEAR = 30.0
"""If w is larger in size, the parts of a value are computed separately, which loses less than a
digit. If w is smaller, no part overflows in float32."""

_STEPS = 60
"""The largest number of Newton steps for a conjugate. It takes 4 to 9 steps, and up to 20 for
powers near 1 or 2."""


class _Parts(NamedTuple):
    """The terms of value, residual and curvature; for a target 0, log y is 0 and y^b is 1."""

    positive: NumPyArray
    logarithm: NumPyArray
    change: NumPyArray
    """w."""
    rise: NumPyArray
    """e^(bz), the residual at a target 0."""
    drop: NumPyArray
    """y e^(-az), which the target subtracts from it."""


@dataclass(frozen=True)
class Tweedie(ScalarLoss):
    """Tweedie's loss with a power above 1 and at most 2."""

    power: float = 1.5

    name = "tweedie"
    has_logarithm = True
    has_dispersion = True
    falls_at_zero = True  # all targets of `Gamma` are above 0

    @classmethod
    def of(cls, arguments: Any) -> ScalarLoss:
        meaning = "the variance is proportional to mean^power"
        power = check_finite("power", arguments.power, meaning, 0)
        if not 1 <= power <= 2:
            raise ValueError(
                f"power must be a number from 1 to 2, got {power:g}: for 0 take loss='squared', "
                "which predicts no logarithm; for 2 to 3 there is "
                "sklearn.linear_model.TweedieRegressor"
            )
        return {1.0: Poisson(), 2.0: Gamma()}.get(power, Tweedie(power))

    @property
    def _a(self) -> float:
        return self.power - 1

    @property
    def _b(self) -> float:
        return 2 - self.power

    @property
    def self_concordance(self) -> float:
        return max(self._a, self._b)

    def _parts(self, scores: NumPyArray, target: NumPyArray) -> _Parts:
        positive = target > 0
        logarithm = np.log(np.where(positive, target, 1)).astype(scores.dtype, copy=False)
        most = MOST_LOG[scores.dtype.itemsize]
        rise = np.exp(np.minimum(self._b * scores, most))
        drop = positive * np.exp(np.minimum(logarithm - self._a * scores, most))
        return _Parts(positive, logarithm, scores - logarithm, rise, drop)

    def _value(self, parts: _Parts) -> NumPyArray:
        positive, logarithm, change, rise, drop = parts
        a, b, size = self._a, self._b, np.exp(self._b * logarithm)
        # Near the target the two terms would cancel.
        near = np.clip(change, -_NEAR, _NEAR)
        value: NumPyArray = np.expm1(-a * near) / a
        value += np.expm1(b * near) / b if b else near
        value *= size
        far = near != change
        if far.any():
            rise_term = (rise[far] - size[far]) / b if b else change[far]
            value[far] = (drop[far] - size[far]) / a + rise_term
        return np.where(positive, value, rise / b) if b else value

    def _residual(self, parts: _Parts) -> NumPyArray:
        return np.asarray(parts.rise - parts.drop)

    def _curvature(self, parts: _Parts) -> NumPyArray:
        return np.asarray(self._a * parts.drop + self._b * parts.rise)

    def value_at(self, scores: NumPyArray, target: NumPyArray) -> NumPyArray:
        return self._value(self._parts(scores, target))

    def residual_at(self, scores: NumPyArray, target: NumPyArray) -> NumPyArray:
        return self._residual(self._parts(scores, target))

    def value_and_residual_at(
        self, scores: NumPyArray, target: NumPyArray
    ) -> tuple[NumPyArray, NumPyArray]:
        parts = self._parts(scores, target)
        return self._value(parts), self._residual(parts)

    def curvature_at(self, scores: NumPyArray, target: NumPyArray) -> NumPyArray:
        return self._curvature(self._parts(scores, target))

    def curvature_in_hessian_at(
        self, scores: NumPyArray, target: NumPyArray, curvature_shift: float
    ) -> NumPyArray:
        parts = self._parts(scores, target)
        target_curvature = parts.positive * np.exp(self._b * parts.logarithm)
        return np.asarray(
            (1 - curvature_shift) * self._curvature(parts) + curvature_shift * target_curvature
        )

    def relative_move_at(
        self, scores: NumPyArray, target: NumPyArray, step: NumPyArray
    ) -> NumPyArray:
        return np.maximum(self._a * step, -self._b * step)

    def rounding_terms_at(
        self, scores: NumPyArray, target: NumPyArray, share: NumPyArray
    ) -> RoundingTerms:
        parts = self._parts(scores, target)
        # The rounding error of w is that of one of its exponentials.
        means = (parts.rise + parts.drop) * (1 + np.abs(scores) + np.abs(parts.logarithm))
        largest = 1.01 * float(self._curvature(parts).max(initial=0))
        square = float(share @ np.square(means))
        return RoundingTerms(largest, square, self.is_exact_at(scores, target))

    def is_exact_at(self, scores: NumPyArray, target: NumPyArray) -> bool:
        with np.errstate(divide="ignore"):
            logarithm = np.log(target).astype(scores.dtype, copy=False)  # -inf: nothing drops
        farthest = np.maximum(self._b * scores, logarithm - self._a * scores)
        return float(farthest.max(initial=0)) < MOST_LOG[scores.dtype.itemsize]

    def null_score(self, target: NumPyArray, weight: NumPyArray) -> float:
        return float(np.log(weight @ target / weight.sum()))

    # --- Duality ----------------------------------------------------------------------------

    def conjugate_at(self, dual: NumPyArray, target: NumPyArray) -> NumPyArray:
        logarithm = np.log(np.where(target > 0, target, 1))
        return np.asarray(self._conjugate(dual, target) + dual * logarithm)

    def fenchel_at(self, scores: NumPyArray, dual: NumPyArray, target: NumPyArray) -> NumPyArray:
        parts = self._parts(scores, target)
        terms: NumPyArray = self._value(parts) + self._conjugate(dual, target) - dual * parts.change
        return terms

    def _conjugate(self, dual: NumPyArray, target: NumPyArray) -> NumPyArray:
        """Return the conjugate minus dual x log y: y^b times that of y = 1 at dual / y^b."""
        a, b = self._a, self._b
        if not b:
            return np.where(dual <= 1, x_log_x(1 - dual) + dual, np.inf)
        size = np.power(np.where(target > 0, target, 1), b)
        wanted = dual / size
        change = self._change_at(wanted)
        down, up = np.expm1(-a * change), np.expm1(b * change)
        # The remaining error of Newton's method increases it by at most this.
        curvature, left = a * (1 + down) + b * (1 + up), wanted - (up - down)
        unit_conjugate = wanted * change - (down / a + up / b) + left * (left / curvature)
        zero_conjugate = np.where(dual >= 0, (x_log_x(dual) - dual) / b, np.inf)
        return np.where(target > 0, size * unit_conjugate, zero_conjugate)

    def _change_at(self, residual: NumPyArray) -> NumPyArray:
        """Return the w that solves e^(bw) - e^(-aw) = residual, by Newton's method on logarithms.

        For residuals above 0 the equation is b w = log(residual + e^(-aw)). The difference is
        concave and increasing, and w = 0 is left of the root, which Newton's steps never pass. For
        residuals below 0 the same holds with a and b exchanged, for -w.
        """
        size = np.abs(residual)
        slow = np.where(residual >= 0, self._b, self._a)
        change = np.zeros_like(size)
        for _ in range(_STEPS):
            down = np.expm1(-(1 - slow) * change)
            total = size + down
            slope = slow + (1 - slow) * (1 + down) / (1 + total)
            step = (np.log1p(total) - slow * change) / slope
            change += step
            if not (np.abs(step) > 1e-14 * change).any():
                break
        return np.where(residual >= 0, change, -change)

    def inside_at(self, dual: NumPyArray, target: NumPyArray) -> NumPyArray:
        if not self._b:
            return np.minimum(dual, 1)
        return np.where(target > 0, dual, np.maximum(dual, 0))

    def balanced_at(self, excess: float, mean: float) -> Dual:
        if not self._b:
            # 1 - r is y / prediction, and has mean 1 at the best intercept.
            kept, added, cost = balanced_means(
                1 - excess, 1.0, lambda z, y: np.log(y) - z.astype(np.float64)
            )
            return Dual(kept, 1 - kept - added, 0.0, cost)
        taken = excess / mean

        def terms(scores: NumPyArray, target: NumPyArray) -> NumPyArray:
            # r - taken y is in the domain for every y. Use the bound for a relative move t, where
            # omega(t) / t^2 is at most (1 + t) / 2.
            scores = scores.astype(np.float64)
            parts = self._parts(scores, target)
            curvature, moved = self._curvature(parts), -taken * target
            with np.errstate(divide="ignore", invalid="ignore"):
                step = np.where(moved == 0, 0.0, moved / curvature)
            relative_move = self.relative_move_at(scores, target, step)
            each: NumPyArray = moved * step * (1 + relative_move) / 2
            far = ~(relative_move <= 1)
            if far.any():
                dual = self._residual(parts)[far] + moved[far]
                each[far] = np.maximum(self.fenchel_at(scores[far], dual, target[far]), 0)
            return each

        return Dual(1.0, 0.0, -taken, terms if taken else 0.0)

    # --- Targets ----------------------------------------------------------------------------

    def fisher(self, scores: NumPyArray) -> NumPyArray:
        return np.asarray(np.exp(np.minimum(self._b * scores, MOST_LOG[scores.dtype.itemsize])))

    def check_target(self, target: NumPyArray, weight: NumPyArray | None) -> None:
        check_not_negative(self.name, target, weight)

    def groups(self, target: NumPyArray) -> NumPyArray | None:
        return (target > 0).astype(np.intp) if self._b else None

    def is_far_off(self, bias: float, value: float, least: float) -> bool:
        if abs(bias) > _FARTHEST_OF_FLOAT32:
            return True
        curvature = np.exp(self._b * bias)
        return super().is_far_off(bias, value / curvature, least / curvature)


@dataclass(frozen=True)
class Gamma(Tweedie):
    """The gamma loss, half its deviance: y e^-z + z - log y - 1."""

    power: float = 2.0

    name = "gamma"

    @classmethod
    def of(cls, arguments: Any) -> ScalarLoss:  # noqa: ARG003
        return cls()

    def check_target(self, target: NumPyArray, weight: NumPyArray | None) -> None:
        if (target <= 0).any():
            row = int(np.argmax(target <= 0))
            raise ValueError(
                f"y is {target[row]:g} in row {row}, and loss='gamma' needs numbers above 0: take "
                "Tweedie's loss if there are zeros, the squared loss for values of both signs"
            )
