"""Objectives of linear models and their least values in long double, after the textbook formulas.

Nothing is shared with the package. F(W, b) = sum_i s_i l(x_i W + b + o_i, y_i) + l2 / 2 ||W||^2
+ l1 ||W||_1; Huber's loss has its best scale. Features are centred and scaled in long double, so
that a column whose mean is 1e13 times its deviation keeps its digits.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property

import numpy as np
from provenglm.model.losses import Huber, Logistic, Loss, Poisson, Softmax, Squared
from provenglm.model.tweedie import Tweedie

LONG = np.longdouble
UNIT = 2.0**-53
MAX_STEPS = 200


def parts_of_loss(
    loss: Loss, scores: np.ndarray, target: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return values (n,), residuals (n, K) and second derivatives (n, K, K)."""
    if isinstance(loss, Softmax):
        k, rows = scores.shape[1], np.arange(len(scores))
        top = scores.max(axis=1, keepdims=True)
        power = np.exp(scores - top)
        total = power.sum(axis=1, keepdims=True)
        mean = power / total
        value = (top + np.log(total))[:, 0] - scores[rows, target]
        residual = mean.copy()
        residual[rows, target] -= 1
        hessian = mean[:, :, None] * (np.eye(k, dtype=LONG) - mean[:, None, :])
        return value, residual, hessian
    z, y = scores[:, 0], target.astype(LONG)
    if isinstance(loss, Logistic):
        power = np.exp(-np.abs(z))
        value = np.maximum(z, 0) + np.log1p(power) - y * z
        mean = np.where(z > 0, 1, power) / (1 + power)
        residual, curvature = mean - y, power / (1 + power) ** 2
    elif isinstance(loss, Squared):
        residual, curvature = z - y, np.ones_like(z)
        value = residual**2 / 2
    elif isinstance(loss, Huber):
        r = z - y
        residual = np.clip(r, -loss.epsilon, loss.epsilon)
        value = residual * (r - residual / 2)
        curvature = (np.abs(r) <= loss.epsilon) + LONG(1e-6) * (np.abs(r) > loss.epsilon)
    elif isinstance(loss, Poisson):
        mean = np.exp(z)
        value, residual, curvature = mean - y * z, mean - y, mean
    else:
        assert isinstance(loss, Tweedie)
        positive = y > 0
        w = z - np.log(np.where(positive, y, 1))
        one, two = LONG(loss.power) - 1, 2 - LONG(loss.power)
        size = np.where(positive, y, 1) ** two
        fall = np.where(positive, np.exp(-one * w), 0)
        rise = np.exp(two * w)
        of_rise = w if two == 0 else np.where(positive, np.expm1(two * w), rise) / two
        of_fall = np.where(positive, np.expm1(-one * w), 0) / one
        value = size * (of_fall + of_rise)
        residual, curvature = size * (rise - fall), size * (one * fall + two * rise)
    return value, residual[:, None], curvature[:, None, None]


@dataclass(frozen=True)
class LongDouble:
    """F in the coordinates (x - center) / scale, theta (p + 1, K) with the intercept last."""

    rows: np.ndarray
    target: np.ndarray
    share: np.ndarray
    loss: Loss
    l2: np.ndarray
    l1: np.ndarray
    center: np.ndarray
    scale: np.ndarray
    offset: np.ndarray | float = 0.0

    @classmethod
    def of(
        cls,
        dense: np.ndarray,
        target: np.ndarray,
        weight: np.ndarray | None,
        loss: Loss,
        penalty: tuple[float, float],
        has_intercept: bool,
        offset: np.ndarray | None = None,
    ) -> LongDouble:
        weight = np.ones(len(target)) if weight is None else weight
        offset = np.zeros((len(target), 1)) if offset is None else offset.reshape(len(target), -1)
        kept = weight > 0
        rows, share = dense[kept].astype(LONG), weight[kept].astype(LONG)
        share /= share.sum()
        center = share @ rows if has_intercept else np.zeros(rows.shape[1], LONG)
        center = np.where((rows == rows[:1]).all(axis=0) & has_intercept, rows[0], center)
        center = center.astype(float)
        scale = np.sqrt(share @ (rows - center) ** 2)
        scale[scale == 0] = 1
        ones = np.full((len(rows), 1), LONG(has_intercept))
        l2, l1 = (np.append(LONG(x) / scale**k, 0) for x, k in zip(penalty, (2, 1), strict=True))
        rows = np.hstack([(rows - center) / scale, ones])
        offset = offset[kept].astype(LONG)
        return cls(rows, target[kept], share, loss, l2, l1, center, scale, offset)

    def theta_of(self, coef: np.ndarray, intercept: np.ndarray) -> np.ndarray:
        """Return theta of the user's coefficients, (p, K) and (K,)."""
        bias = [
            _exact_sum(float(b), self.center.tolist(), column)
            for b, column in zip(intercept, coef.T.tolist(), strict=True)
        ]
        return np.vstack([coef.astype(LONG) * self.scale[:, None], bias])

    @cached_property
    def single(self) -> np.ndarray:
        return self.rows.astype(float)

    def scores(self, theta: np.ndarray) -> np.ndarray:
        return self.rows @ theta + self.offset

    def value(self, theta: np.ndarray) -> float:
        scores = self.scores(theta)
        if isinstance(self.loss, Huber):
            loss = with_best_scale(scores[:, 0] - self.target, self.share, self.loss.epsilon)[0]
        else:
            loss = self.share @ parts_of_loss(self.loss, scores, self.target)[0]
        squares = self.l2 @ (theta**2).sum(axis=1) / 2
        found = loss + squares + self.l1 @ np.abs(theta).sum(axis=1)
        return found if found == found else LONG(np.inf)

    def rounding(self, theta: np.ndarray, is_centred: bool = True) -> float:
        """Return the error that F may have in float64, in these coordinates.

        Dense columns are centred before products, if their mean is far beyond a deviation.
        """
        scores = self.scores(theta)
        one = self
        if isinstance(self.loss, Huber):
            scale = with_best_scale(scores[:, 0] - self.target, self.share, self.loss.epsilon)[1]
            one, scores = self.with_scale(scale), scores / max(scale, LONG(1e-300))
        residual = parts_of_loss(one.loss, scores, one.target)[1]
        raw = self.rows[:, :-1] * self.scale + self.center
        is_near = (np.abs(self.center) <= 1e5 * raw.std(axis=0)) | (not is_centred)
        beside = np.where(is_near, np.abs(self.center / self.scale), 0) @ np.abs(theta[:-1])
        sizes = np.abs(self.rows) @ np.abs(theta) + beside + np.abs(self.offset)
        moved = self.share @ (np.abs(residual) * sizes).sum(axis=1)
        if self.loss.has_classes:  # a logarithm of a sum has the digits of the largest score
            moved += self.share @ np.abs(scores).max(axis=1)
        n, p = self.rows.shape
        return UNIT * ((p + 4) * float(moved) + (n + 20) * (1 + abs(float(self.value(theta)))))

    def with_scale(self, scale: float) -> LongDouble:
        """Return the problem of Huber's loss for one scale, whose F is sigma (1/2 + its own)."""
        scale = LONG(max(scale, 1e-300))
        target, offset = self.target / scale, self.offset / scale
        return replace(self, target=target, l2=self.l2 * scale, offset=offset)

    def derivatives(self, theta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the gradient of the smooth part, (w, K), and the Hessian, (w K, w K)."""
        scores = self.scores(theta)
        _, residual, second = parts_of_loss(self.loss, scores, self.target)
        gradient = self.rows.T @ (self.share[:, None] * residual) + self.l2[:, None] * theta
        w, k = theta.shape
        weights = self.share[:, None, None] * second
        unit = weights.max() if len(weights) else LONG(1)
        unit = unit if unit > 0 else LONG(1)
        weights = (weights / unit).astype(float)
        hessian = np.zeros((w, k, w, k))
        for one in range(k):
            for other in range(k):
                hessian[:, one, :, other] = (self.single.T * weights[:, one, other]) @ self.single
        hessian = hessian.reshape(w * k, w * k) * unit
        return gradient, hessian + np.diag(np.repeat(self.l2, k))

    def newton(self, theta: np.ndarray) -> tuple[float, np.ndarray]:
        """Return the least value that damped Newton steps find from theta, and where.

        With an L1 penalty a step is over what is not 0 and what the gradient asks for; what would
        turn its sign becomes 0. If that leads no lower, only one joins.
        """
        size = np.broadcast_to(self.l1[:, None], theta.shape)
        value = self._plain

        def after(step: np.ndarray) -> np.ndarray:
            new = theta + step
            return np.where((size > 0) & (new * sign < 0), LONG(0), new)

        best = value(theta)
        for _ in range(MAX_STEPS):
            gradient, hessian = self.derivatives(theta)
            if not np.isfinite(hessian).all():
                break
            sign = np.where(theta == 0, -np.sign(gradient), np.sign(theta))
            here, excess = (theta != 0) | (size == 0), np.abs(gradient) - size
            joins = ~here & (excess > 0)
            worst = joins & (excess == np.where(joins, excess, 0).max())
            before = best
            for free in (here | joins, here | worst) if joins.any() else (here,):
                chosen = free.ravel()
                step = np.zeros(theta.size, LONG)
                right = (gradient + size * sign).ravel()[chosen]
                matrix = hessian[np.ix_(chosen, chosen)]
                step[chosen] = -_solved(matrix, right)
                step, length = step.reshape(theta.shape), LONG(1)
                while length > 1e-10 and not value(after(length * step)) < best:
                    length /= 4
                if length > 1e-10:
                    theta = after(length * step)
                    break
            else:
                break
            best = value(theta)
            if before - best <= 1e-18 * abs(best):
                break
        return best, theta

    def _plain(self, theta: np.ndarray) -> float:
        """Return F; of Huber's loss for a scale of 1."""
        with np.errstate(over="ignore"):
            found = self.share @ parts_of_loss(self.loss, self.scores(theta), self.target)[0]
        found += self.l2 @ (theta**2).sum(axis=1) / 2 + self.l1 @ np.abs(theta).sum(axis=1)
        return found if found == found else LONG(np.inf)

    def constant(self) -> tuple[float, np.ndarray]:
        """Return F of the best constant prediction (0 without an intercept), and its theta."""
        theta = np.zeros((self.rows.shape[1], self.loss.outputs), LONG)
        if not self.rows[:, -1].any():
            return self.value(theta), theta
        y = self.target
        if isinstance(self.loss, Huber):
            order = np.argsort(y)
            middle = np.searchsorted(np.cumsum(self.share[order]), LONG(0.5))
            mean = self.share @ y
            starts = [y[order[min(middle, len(y) - 1)]], mean]
        elif isinstance(self.loss, Softmax | Logistic):
            shares = np.bincount(y.astype(int), self.share.astype(float), max(2, theta.shape[1]))
            logs = np.log(np.maximum(shares, 1e-320)).astype(LONG)
            starts = [logs if theta.shape[1] > 1 else logs[1:] - logs[:1]]
        elif self.loss.has_logarithm:
            starts = [np.log(self.share @ y)]
        else:
            starts = [self.share @ y]
        one = replace(self, rows=self.rows[:, -1:], l2=self.l2[-1:], l1=self.l1[-1:])
        found = []
        for start in starts:
            offset = self.share @ (self.offset + np.zeros((len(self.share), 1), LONG))
            here = np.reshape(start, (1, -1)).astype(LONG) - offset
            found.append(one._least(here))
        value, last = min(found, key=lambda pair: pair[0])
        theta[-1] = last[-1]
        return value, theta

    def _least(self, theta: np.ndarray) -> tuple[float, np.ndarray]:
        """Return the least value from one start."""
        if not isinstance(self.loss, Huber):
            return self.newton(theta)
        best, where = self.value(theta), theta
        for _ in range(100):
            residual = self.scores(where)[:, 0] - self.target
            scale = with_best_scale(residual, self.share, self.loss.epsilon)[1]
            if not scale > 0:
                break
            improved = False
            for factor in (1.0, 0.1, 3.0):
                at = LONG(scale * factor)
                _, theta = self.with_scale(at).newton(where / at)
                value = self.value(at * theta)
                if value < best - 1e-17 * abs(best):
                    best, where, improved = value, at * theta, True
                    break
            if not improved:
                break
        return best, where

    def least(self, *starts: np.ndarray) -> float:
        """Return the least value that is found from some starts and from the best constant."""
        found = [self.constant(), *((self.value(theta), theta) for theta in starts)]
        return min(self._least(theta)[0] for value, theta in found if value < np.inf)


def _exact_sum(first: float, numbers: list[float], factors: list[float]) -> float:
    """Return first + numbers @ factors, of terms that may be 1e16 times the sum."""
    total = Fraction(first)
    for number, factor in zip(numbers, factors, strict=True):
        total += Fraction(number) * Fraction(factor)
    high = float(total)
    return LONG(high) + LONG(float(total - Fraction(high)))


def _solved(matrix: np.ndarray, right: np.ndarray) -> np.ndarray:
    roots = np.sqrt(np.maximum(matrix.diagonal(), 0))
    roots[roots == 0] = 1
    scaled = (matrix / np.multiply.outer(roots, roots)).astype(float)
    unit = np.abs(right / roots).max(initial=LONG(0))
    if not unit > 0:
        return np.zeros_like(right)
    found = np.linalg.lstsq(scaled, (right / roots / unit).astype(float), rcond=1e-15)[0]
    return found.astype(LONG) * unit / roots


def with_best_scale(error: np.ndarray, share: np.ndarray, epsilon: float) -> tuple[float, float]:
    """Return min over s > 0 of s / 2 + s mean(h(error / s)), h Huber's, and s; by bisection."""
    size = np.abs(error)
    high = size.max(initial=LONG(0)) + LONG(1e-300)
    low = LONG(1e-70) * high
    for _ in range(250):
        middle = np.sqrt(low * high)
        if not low < middle < high:
            break
        if share @ np.minimum(size / middle, epsilon) ** 2 > 1:
            low = middle
        else:
            high = middle
    inside = np.minimum(size, epsilon * high)
    return high / 2 + share @ (inside * (size - inside / 2)) / high, high
