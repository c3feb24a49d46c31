r"""The least value of a quadratic with a penalty on sizes.

.. math:: q(t) = \frac12 t^T H t - c^T t + \sum_j \mu_j |t_j|

At the optimum each coordinate is positive, negative or 0. If it were known which, the rest would be
one linear system. So coordinates are exchanged between the three until the system's solution has
the signs that it was solved with, and no coordinate at 0 has a gradient beyond :math:`\mu_j`: block
principal pivoting (Kim & Park 2010), which mostly takes a few systems. Where the number of wrong
ones does not fall, steps that cannot fail go before the next attempt: a feature-sign search, or
proximal gradient steps with momentum (Beck & Teboulle 2009) where there is no matrix.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import scipy.linalg

from provenglm.types import NumPyArray

_ROUNDS_OF_PRODUCTS = 1
"""A new Hessian gains more than more of them."""

_LIVES = 3
"""Exchanges of all wrong coordinates that may leave as many wrong ones."""

_RIDGE = 1e-12
"""Of the diagonal: what makes the Hessian of duplicate columns positive definite."""

_BEYOND = 1e-13
"""Of the penalty: a gradient that is less beyond it is rounding."""

_ROUNDING = 1e-12
"""Of q: nearer the least value it cannot be seen which point is lower."""

_SWEPT = 300
"""Coordinates, from which on sweeps of coordinate descent go before the linear systems."""

_SWEEPS = 10

_ROUNDS_OF_STEPS = 3
"""Of proximal gradients, before the linear systems."""

_NEAR = 0.01
"""Of what q fell by, in the metric of the diagonal."""

_LEAST_STEPS = 100
"""Of a feature-sign search, beside one for each coordinate."""

_STEPS = 30
"""Of proximal gradients in a round."""

_POWER_STEPS = 10

_PRODUCTS = 60
"""Of conjugate gradients, for one system."""


class Quadratic(Protocol):
    """A positive semidefinite H."""

    rounds: int
    """Of exchanges, and of steps that cannot fail."""

    def times(self, vector: NumPyArray) -> NumPyArray:
        """Return H times a vector."""
        ...

    def solve(self, free: NumPyArray, right: NumPyArray, guess: NumPyArray) -> NumPyArray:
        """Return the t that is 0 outside of `free` with (H t)_free = right_free."""
        ...

    def descend(
        self, t: NumPyArray, gradient: NumPyArray, l1: NumPyArray
    ) -> tuple[NumPyArray, NumPyArray]:
        """Return a point that is lower, with H t - c there, unless `t` is the least."""
        ...

    def damped(self, diagonal: NumPyArray) -> Quadratic:
        """Return the same with more on the diagonal."""
        ...

    def near(
        self, t: NumPyArray, gradient: NumPyArray, l1: NumPyArray
    ) -> tuple[NumPyArray, NumPyArray, bool]:
        """Return a lower point, H t - c there, and whether what is left is a hundredth."""
        ...


class Matrix:
    """H as an array."""

    rounds = 20

    def __init__(self, hessian: NumPyArray) -> None:
        self._hessian = hessian
        self._diagonal = np.maximum(hessian.diagonal(), np.finfo(np.float64).tiny)

    def times(self, vector: NumPyArray) -> NumPyArray:
        """Return H times a vector."""
        return np.asarray(self._hessian @ vector)

    def near(
        self, t: NumPyArray, gradient: NumPyArray, l1: NumPyArray
    ) -> tuple[NumPyArray, NumPyArray, bool]:
        """Return the point after some sweeps of coordinate descent, as `Quadratic.near`.

        Of few coordinates the linear systems cost less.
        """
        if len(t) < _SWEPT:
            return t, gradient, False
        start, of_start = t, gradient
        t, gradient = t.copy(), gradient.copy()
        for _ in range(_SWEEPS):
            for j in np.flatnonzero((t != 0) | (np.abs(gradient) > l1)):
                curvature = self._diagonal[j]
                wanted = t[j] * curvature - gradient[j]
                new = np.sign(wanted) * max(abs(wanted) - l1[j], 0.0) / curvature
                if new != t[j]:
                    gradient += (new - t[j]) * self._hessian[j]
                    t[j] = new
            fell = 0.5 * float((start - t) @ (gradient + of_start))
            fell += float(l1 @ (np.abs(start) - np.abs(t)))
            beyond = np.maximum(np.abs(gradient) - l1, 0)
            off = np.where(t != 0, gradient + l1 * np.sign(t), beyond)
            if 0.5 * float(np.square(off) @ (1 / self._diagonal)) <= _NEAR * fell:
                return t, gradient, True
        return t, gradient, False

    def damped(self, diagonal: NumPyArray) -> Matrix:
        """Return the same with more on the diagonal."""
        hessian = self._hessian.copy()
        hessian.ravel()[:: len(hessian) + 1] += diagonal
        return Matrix(hessian)

    def solve(self, free: NumPyArray, right: NumPyArray, guess: NumPyArray) -> NumPyArray:
        """Return the t that is 0 outside of `free` with (H t)_free = right_free."""
        t = np.zeros_like(right)
        ridge = _RIDGE
        while True:
            part = self._hessian[np.ix_(free, free)]
            part.ravel()[:: len(part) + 1] += ridge * self._diagonal[free]
            try:
                factor = scipy.linalg.cho_factor(part, overwrite_a=True, check_finite=False)
            except np.linalg.LinAlgError:
                ridge *= 100
                continue
            t[free] = scipy.linalg.cho_solve(factor, right[free], check_finite=False)
            if ridge > _RIDGE:
                return t
            # Once more for what the ridge has changed.
            rest = right - self.times(t)
            t[free] += scipy.linalg.cho_solve(factor, rest[free], check_finite=False)
            return t

    def descend(
        self, t: NumPyArray, gradient: NumPyArray, l1: NumPyArray
    ) -> tuple[NumPyArray, NumPyArray]:
        """Return a point that is lower, with H t - c there: mostly the least.

        Feature-sign search (Lee, Battle, Raina & Ng 2006): to the best point on the way to the
        solution for the present signs, and when they are right, with the worst coordinates that are
        at 0. One of them alone leads lower for certain; many of them mostly do.
        """
        linear = self.times(t) - gradient
        many = True
        for _ in range(_LEAST_STEPS + len(t)):
            sign = np.where(t != 0, np.sign(t), 0.0)
            new = self._towards(sign, t, linear, l1)
            if np.array_equal(np.sign(new), np.sign(t)):
                excess = np.where(new == 0, np.abs(self.times(new) - linear) - l1, 0.0)
                excess[excess <= _BEYOND * l1] = 0
                if not excess.any():
                    t = new
                    break
                worst = excess.max()
                joining = excess >= (0.5 if many else 1.0) * worst
                sign = sign - np.sign(self.times(new) - linear) * joining
                t, last = self._towards(sign, new, linear, l1), new
                if np.array_equal(t, last):
                    if not many:
                        break
                    many = False
                continue
            t = new
        return t, self.times(t) - linear

    def _towards(
        self, sign: NumPyArray, t: NumPyArray, linear: NumPyArray, l1: NumPyArray
    ) -> NumPyArray:
        """Return the lowest point on the way to the solution for some signs: there or at a 0."""
        free = (sign != 0) | (l1 == 0)
        step = self.solve(free, linear - l1 * sign, t) - t
        crossing = (l1 > 0) & (t != 0) & (t * (t + step) <= 0)
        places = np.append(-t[crossing] / step[crossing], 1.0)
        gradient = self.times(t) - linear
        value = places * float(gradient @ step)
        value += 0.5 * places**2 * float(step @ self.times(step))
        fixed = ~crossing
        # Sizes of coordinates that change no sign are linear in the length.
        grown = float((l1 * (np.abs(t + step) - np.abs(t)))[fixed].sum())
        of_crossing = np.abs(t[crossing] + np.multiply.outer(places, step[crossing]))
        value += places * grown + (of_crossing - np.abs(t[crossing])) @ l1[crossing]
        best = int(np.argmin(value))
        if not value[best] < 0:
            return t
        new = t + places[best] * step
        if best < len(places) - 1:
            new[np.flatnonzero(crossing)[best]] = 0
        return np.asarray(new)


class Products:
    """H as products with vectors, and its diagonal.

    Parameters
    ----------
    times : callable
    diagonal : numpy.ndarray
    accuracy : float
        Of the linear systems: the part of the guess's residual, in the metric of the diagonal, that
        may be left.
    """

    def __init__(self, times: object, diagonal: NumPyArray, accuracy: float) -> None:
        assert callable(times)
        self.rounds = _ROUNDS_OF_PRODUCTS
        self._times = times
        self._diagonal = np.maximum(diagonal, np.finfo(np.float64).eps * diagonal.max())
        self._accuracy = accuracy
        self._largest = 0.0

    def times(self, vector: NumPyArray) -> NumPyArray:
        """Return H times a vector."""
        return np.asarray(self._times(vector))

    def near(
        self, t: NumPyArray, gradient: NumPyArray, l1: NumPyArray
    ) -> tuple[NumPyArray, NumPyArray, bool]:
        """Return the point after proximal gradient steps, as `Quadratic.near`."""
        start, of_start = t, gradient
        for _ in range(_ROUNDS_OF_STEPS):
            t, gradient = self.descend(t, gradient, l1)
            fell = 0.5 * float((start - t) @ (gradient + of_start))
            fell += float(l1 @ (np.abs(start) - np.abs(t)))
            beyond = np.maximum(np.abs(gradient) - l1, 0)
            off = np.where(t != 0, gradient + l1 * np.sign(t), beyond)
            if 0.5 * float(np.square(off) @ (1 / self._diagonal)) <= _NEAR * fell:
                return t, gradient, True
        return t, gradient, False

    def damped(self, diagonal: NumPyArray) -> Products:
        """Return the same with more on the diagonal."""

        def times(vector: NumPyArray) -> NumPyArray:
            return self.times(vector) + diagonal * vector

        return Products(times, self._diagonal + diagonal, self._accuracy)

    def solve(self, free: NumPyArray, right: NumPyArray, guess: NumPyArray) -> NumPyArray:
        """Return about the t that is 0 outside of `free` with (H t)_free = right_free.

        By conjugate gradients from the guess, preconditioned by the diagonal.
        """
        inverse = free / self._diagonal
        t = guess * free
        rest = (right - self.times(t)) * free
        direction = rest * inverse
        product = float(rest @ direction)
        enough = self._accuracy**2 * product
        for _ in range(_PRODUCTS):
            if product <= enough or product == 0:
                break
            image = self.times(direction)
            length = product / float(direction @ image)
            t = t + length * direction
            rest = rest - length * image * free
            preconditioned = rest * inverse
            last, product = product, float(rest @ preconditioned)
            direction = preconditioned + product / last * direction
        return t

    def descend(
        self, t: NumPyArray, gradient: NumPyArray, l1: NumPyArray
    ) -> tuple[NumPyArray, NumPyArray]:
        """Return the point after some proximal gradient steps, with H t - c there.

        In the metric of the diagonal, with momentum that begins anew where it points uphill
        (O'Donoghue & Candes 2015).
        """
        metric = self._diagonal * self._smoothness(t)
        last, ahead, of_last, of_ahead, inertia = t, t, gradient, gradient, 1.0
        for _ in range(_STEPS):
            wanted = ahead - of_ahead / metric
            new = np.sign(wanted) * np.maximum(np.abs(wanted) - l1 / metric, 0)
            of_new = gradient + self.times(new - t)
            if float(metric * (ahead - new) @ (new - last)) > 0:
                inertia = 1.0
            larger = 0.5 + np.sqrt(0.25 + inertia * inertia)
            momentum = (inertia - 1) / larger
            # Both are linear in t.
            ahead = new + momentum * (new - last)
            of_ahead = of_new + momentum * (of_new - of_last)
            last, of_last, inertia = new, of_new, larger
        return last, of_last

    def _smoothness(self, like: NumPyArray) -> float:
        """Return the largest eigenvalue in the metric of the diagonal, by powers, and a margin."""
        if self._largest == 0:
            # Not ones: softmax does not see what is the same for all classes.
            vector = np.random.default_rng(0).uniform(-1, 1, like.shape)
            for _ in range(_POWER_STEPS):
                image = self.times(vector) / self._diagonal
                self._largest = 1.1 * float(np.abs(image).max())
                vector = image / np.abs(image).max()
        return self._largest


def minimise(
    quadratic: Quadratic,
    linear: NumPyArray,
    l1: NumPyArray,
    start: NumPyArray,
    rounds: int | None = None,
    is_exact: bool = True,
) -> NumPyArray:
    """Return where q is least; after some rounds the lowest point so far.

    Not `is_exact` it may be a point from where there is a hundredth of the way left.

    Parameters
    ----------
    quadratic : Quadratic
        H.
    linear : numpy.ndarray, (m,)
        c.
    l1 : numpy.ndarray, (m,)
        mu; 0 where there is no penalty.
    start : numpy.ndarray, (m,)
        Its signs are the first that are tried.
    rounds : int, optional
        Those of the quadratic unless given.
    """
    best = start
    gradient = quadratic.times(best) - linear
    best, gradient, is_near = quadratic.near(best, gradient, l1)
    if is_near and not is_exact:
        return best
    for _ in range(quadratic.rounds if rounds is None else rounds):
        t, of_t, is_least = _exchange(quadratic, linear, l1, best, gradient)
        value = _value(best, gradient, linear, l1)
        above = _value(t, of_t, linear, l1) - value
        if is_least and above <= _ROUNDING * abs(value):
            return t
        if above < 0:
            best, gradient = t, of_t
        t, of_t = quadratic.descend(best, gradient, l1)
        if not _value(t, of_t, linear, l1) < _value(best, gradient, linear, l1):
            return best
        best, gradient = t, of_t
    return best


def _value(t: NumPyArray, gradient: NumPyArray, linear: NumPyArray, l1: NumPyArray) -> float:
    """Return q, from H t - c."""
    return float(0.5 * t @ (gradient - linear) + l1 @ np.abs(t))


def _exchange(
    quadratic: Quadratic,
    linear: NumPyArray,
    l1: NumPyArray,
    start: NumPyArray,
    gradient: NumPyArray,
) -> tuple[NumPyArray, NumPyArray, bool]:
    """Return a point, H t - c there, and whether it is the least."""
    always = l1 == 0
    beyond = (1 + _BEYOND) * l1
    sign = np.where(start != 0, np.sign(start), -np.sign(gradient) * (np.abs(gradient) > beyond))
    t, fewest, lives = start, len(start) + 1, _LIVES
    while True:
        free = (sign != 0) | always
        t = quadratic.solve(free, linear - l1 * sign, t)
        of_t = quadratic.times(t) - linear
        wrong = free & ~always & (t * sign <= 0)
        missing = ~free & (np.abs(of_t) > beyond)
        count = int(wrong.sum() + missing.sum())
        if count == 0:
            return t, of_t, True
        if count < fewest:
            fewest, lives = count, _LIVES
        elif lives > 0:
            lives -= 1
        else:
            t = np.where(wrong, 0.0, t)
            return t, quadratic.times(t) - linear, False
        sign = np.where(wrong, 0.0, np.where(missing, -np.sign(of_t), sign))
