"""Objectives and their least values, with products in rational numbers.

So they are right for columns that are the same to 12 digits. Losses are taken in long double.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np
from long_double import LONG, parts_of_loss
from provenglm.model.losses import Loss

_BITS = 240
"""Of coefficients, which would else get longer in each step."""


def exact(numbers: np.ndarray) -> np.ndarray:
    """Return numbers as fractions."""
    flat = [Fraction(*number.as_integer_ratio()) for number in np.asarray(numbers).ravel()]
    return np.array(flat, object).reshape(np.shape(numbers))


class Rational:
    """A mean loss of one output, and half of the squares of coefficients times `l2`, (w,)."""

    def __init__(
        self,
        X: np.ndarray,
        y: np.ndarray,
        share: np.ndarray,
        loss: Loss,
        l2: np.ndarray | None = None,
    ) -> None:
        used = share > 0
        self.rows, self.y, self.share, self.loss = exact(X[used]), y[used], share[used], loss
        self.l2 = exact(np.zeros(X.shape[1]) if l2 is None else l2)

    def _parts(self, theta: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        scores = [_long(score) for score in self.rows @ theta]
        with np.errstate(over="ignore", invalid="ignore"):
            scores = np.array(scores, LONG)[:, None]
            value, residual, curvature = parts_of_loss(self.loss, scores, self.y)
        return value.ravel(), residual.ravel(), curvature.ravel()

    def value(self, theta: np.ndarray) -> np.longdouble:
        """Return the objective at coefficients, (w,)."""
        theta = theta if theta.dtype == object else exact(theta)
        return self._total(theta, self._parts(theta)[0])

    def _total(self, theta: np.ndarray, losses: np.ndarray) -> np.longdouble:
        with np.errstate(invalid="ignore"):
            found = self.share.astype(LONG) @ losses
        found += _long(self.l2 @ theta**2 / 2)
        return found if found == found else LONG(np.inf)

    def least(self) -> tuple[np.longdouble, np.ndarray]:
        """Return the least value and its coefficients, by Newton's method."""
        theta = exact(np.zeros(self.rows.shape[1]))
        best = self.value(theta)
        for _ in range(100):
            step = self._step(theta)
            for halvings in range(60):
                change = step * Fraction(1, 2**halvings)
                new = np.array([_rounded(number) for number in theta - change], object)
                value = self.value(new)
                if value < best:
                    break
            else:
                break
            theta, best = new, value
        # Where the objective is flat, its gradient has more digits.
        for _ in range(3):
            theta = theta - self._step(theta)
        return best, theta

    def _step(self, theta: np.ndarray) -> np.ndarray:
        _, residual, curvature = self._parts(theta)
        share = self.share.astype(LONG)
        weighted = self.rows * exact(share * curvature)[:, None]
        gradient = self.rows.T @ exact(share * residual) + self.l2 * theta
        return _solved(weighted.T @ self.rows + np.diag(self.l2), gradient)


def _long(number: Fraction) -> np.longdouble:
    high = float(number)
    return LONG(high) + LONG(float(number - Fraction(high)))


def _rounded(number: Fraction) -> Fraction:
    shift = _BITS - (abs(number.numerator).bit_length() - number.denominator.bit_length())
    return Fraction(round(number * Fraction(2) ** shift), 1) / Fraction(2) ** shift


def _solved(matrix: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Return the solution of a positive definite system by elimination."""
    table = np.column_stack([matrix, right])
    for k in range(len(table)):
        table[k] = table[k] / table[k, k]
        for other in range(len(table)):
            if other != k:
                table[other] = table[other] - table[other, k] * table[k]
    return table[:, -1]
