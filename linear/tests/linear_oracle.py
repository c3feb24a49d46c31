"""The linear models once more, in float64 on whole arrays: nothing shared with what is tested.

Scores are ``X W + b`` with the features as they are given; softmax has a column for each class, all
others one column. Losses are written down as in a textbook, by SciPy's special functions.
"""

from dataclasses import dataclass, replace
from itertools import groupby

import numpy as np
from provenglm.model.losses import Huber, Logistic, Poisson, Softmax, Squared
from provenglm.model.problem import Problem
from provenglm.model.sampling import prepare
from provenglm.model.tweedie import Gamma, Tweedie
from provenglm.workers import Workers
from scipy.special import expit, logsumexp, softmax

LOSSES = [Logistic(), Softmax(3), Squared(), Huber(0.7), Poisson(), Tweedie(1.6), Gamma()]
NAMES = [loss.name for loss in LOSSES]


def values(loss, scores, target):
    """The loss of each sample, (n,)."""
    if isinstance(loss, Softmax):
        return logsumexp(scores, axis=1) - scores[np.arange(len(scores)), target]
    z = scores[:, 0]
    if isinstance(loss, Logistic):
        return np.logaddexp(0, z) - target * z
    if isinstance(loss, Squared):
        return 0.5 * (z - target) ** 2
    if isinstance(loss, Huber):
        r = np.abs(z - target)
        far = loss.epsilon * (r - 0.5 * loss.epsilon)
        return np.where(r <= loss.epsilon, 0.5 * r**2, far)
    if isinstance(loss, Tweedie):
        return half_deviance(loss.power, z, target)
    assert isinstance(loss, Poisson)
    return np.exp(z) - target * z


def half_deviance(power, z, target):
    """As scikit-learn and Jorgensen have it; it cancels, so with more digits."""
    mean, y = np.exp(np.asarray(z, np.longdouble)), np.asarray(target, np.longdouble)
    if power == 2:
        return (y / mean - 1 - np.log(y / mean)).astype(float)
    one, two = np.longdouble(1 - power), np.longdouble(2 - power)
    return (y**two / (one * two) - y * mean**one / one + mean**two / two).astype(float)


def residuals(loss, scores, target):
    """Their derivative, (n, K)."""
    if isinstance(loss, Softmax):
        return softmax(scores, axis=1) - np.eye(scores.shape[1])[target]
    z = scores[:, 0]
    if isinstance(loss, Logistic):
        r = expit(z) - target
    elif isinstance(loss, Squared):
        r = z - target
    elif isinstance(loss, Huber):
        r = np.clip(z - target, -loss.epsilon, loss.epsilon)
    elif isinstance(loss, Tweedie):
        mean = np.exp(np.asarray(z, np.longdouble))
        r = (mean ** (2 - loss.power) - target * mean ** (1 - loss.power)).astype(float)
    else:
        r = np.exp(z) - target
    return r[:, None]


def curvatures(loss, scores, target):
    """Their second derivative, (n, K, K)."""
    if isinstance(loss, Softmax):
        p = softmax(scores, axis=1)
        return np.einsum("ik,kl->ikl", p, np.eye(p.shape[1])) - np.einsum("ik,il->ikl", p, p)
    z = scores[:, 0]
    if isinstance(loss, Logistic):
        h = expit(z) * expit(-z)
    elif isinstance(loss, Squared):
        h = np.ones_like(z)
    elif isinstance(loss, Huber):
        h = (np.abs(z - target) <= loss.epsilon) * 1.0
    elif isinstance(loss, Tweedie):
        a, b, mean = loss.power - 1, 2 - loss.power, np.exp(z)
        h = a * target * mean**-a + b * mean**b
    else:
        h = np.exp(z)
    return h[:, None, None]


@dataclass
class Dense:
    """A problem in the coordinates that `scale` and `center` give: x^ = (x - center) * scale.

    theta is (p + 1, K), the intercept in the last row; without one that row stays 0.
    """

    X: np.ndarray
    target: np.ndarray
    share: np.ndarray
    loss: object
    penalty: np.ndarray
    intercept: bool

    @classmethod
    def of(cls, problem, center=0.0, scale=1.0):
        X = np.asarray(problem.features, np.float64)
        X = (X - center) * scale
        ones = np.full((len(X), 1), float(problem.fit_intercept))
        weight = problem.sample_weight
        weight = np.ones(len(X)) if weight is None else np.asarray(weight, np.float64)
        penalty = np.append(problem.l2 * np.broadcast_to(np.square(scale), X.shape[1]), 0.0)
        return cls(
            np.hstack([X, ones]),
            problem.target,
            weight / weight.sum(),
            problem.loss,
            penalty,
            problem.fit_intercept,
        )

    def scores(self, theta):
        return self.X @ theta

    def value(self, theta):
        data = float(self.share @ values(self.loss, self.scores(theta), self.target))
        return data + 0.5 * float((self.penalty[:, None] * theta**2).sum())

    def gradient(self, theta, rows=slice(None), probability=None):
        """The gradient; of some rows: n / b times their sum by shares, and the penalty's.

        Rows that were drawn with some probability count by 1 / n of its inverse.
        """
        r = residuals(self.loss, self.scores(theta)[rows], self.target[rows])
        share = self.share[rows]
        if probability is not None:
            share = share / (len(self.X) * probability[rows])
        part = self.X[rows].T @ (r * share[:, None])
        return part * len(self.X) / len(self.X[rows]) + self.penalty[:, None] * theta

    def hessian(self, theta):
        """Over theta raveled."""
        h = curvatures(self.loss, self.scores(theta), self.target) * self.share[:, None, None]
        width = theta.size
        full = np.einsum("ia,ikl,ib->akbl", self.X, h, self.X, optimize=True)
        full = full.reshape(width, width)
        return full + np.diag(np.repeat(self.penalty, theta.shape[1]))

    def part(self, rows, share=None):
        """Some of the rows, with shares of their own, or theirs; both sum to 1."""
        share = self.share[rows] if share is None else share
        return replace(self, X=self.X[rows], target=self.target[rows], share=share / share.sum())

    def newton(self, theta, ridge=1e-12):
        """Newton with a line search: yields (theta, value, decrement), from the start on."""
        while True:
            gradient, value = self.gradient(theta).ravel(), self.value(theta)
            # The loss of classes does not see a shift of all intercepts: of least norm.
            step = np.linalg.lstsq(ridged(self.hessian(theta), ridge), gradient, rcond=1e-14)[0]
            decrement = 0.5 * gradient @ step
            yield theta, value, decrement
            step = step.reshape(theta.shape)
            theta = theta - length_along(*self.along(theta, -step)) * step

    def along(self, theta, step):
        """The value and the slope along a step, as functions of its length."""
        return (
            lambda length: self.value(theta + length * step),
            lambda length: float(np.vdot(self.gradient(theta + length * step), step)),
        )

    def minimum(self, theta, steps=200):
        """Newton's method to rounding, with halved steps; singular directions stay as they are."""
        value = self.value(theta)
        for _ in range(steps):
            gradient = self.gradient(theta).ravel()
            hessian = self.hessian(theta)
            hessian = hessian + 1e-13 * np.trace(hessian) / len(hessian) * np.eye(len(hessian))
            if isinstance(self.loss, Huber):
                # Far out there is no curvature: a little of the least parabola above the loss.
                hessian = hessian + 1e-3 * self._parabola(theta)
            step = np.linalg.lstsq(hessian, gradient, rcond=1e-13)[0].reshape(theta.shape)
            length = 1.0
            while length > 1e-12:
                new = self.value(theta - length * step)
                if new < value:
                    break
                length /= 2
            else:
                break
            theta, value = theta - length * step, new
        return theta, value

    def _parabola(self, theta):
        far = np.abs(self.scores(theta)[:, 0] - self.target)
        weight = np.minimum(1, self.loss.epsilon / np.maximum(far, self.loss.epsilon))
        return (self.X.T * (weight * self.share)) @ self.X


def length_along(value, slope, is_end_known=False):
    """The first length tried whose slope is at most 0.3 of that at 0, and no higher than the start.

    Where the end of the whole step is known beforehand, that is enough if it is lower, and most of
    the slope is gone; else it is the first place that is tried.
    """
    at_0, start = slope(0.0), value(0.0)
    if is_end_known and value(1.0) < start and slope(1.0) >= 0.7 * at_0:
        return 1.0
    low, high, length, signs = (0.0, at_0), None, 1.0, []
    is_tried = not is_end_known
    while True:
        here = slope(length)
        is_no_higher = here <= 0 or value(length) <= start
        if is_tried and abs(here) <= 0.3 * abs(at_0) and is_no_higher:
            return length
        low, high = ((length, here), high) if here < 0 else (low, (length, here))
        signs += [here < 0] * is_tried
        if not is_tried:
            is_tried = True
            length = 2.0 if high is None else _between(low, high)
        elif high is None:
            length *= 2
        else:
            # Illinois: an end counts half for each time but the first that it has stayed.
            halves = 0.5 ** (len(list(next(groupby(reversed(signs)))[1])) - 1)
            of_low, of_high = (1.0, halves) if here < 0 else (halves, 1.0)
            length = _between((low[0], of_low * low[1]), (high[0], of_high * high[1]))


def _between(low, high):
    part = np.clip(low[1] / (low[1] - high[1]), 0.05, 0.95)
    return low[0] + (high[0] - low[0]) * part


def ridged(hessian, ridge):
    """With a little more of the diagonal, as a factor of Cholesky needs."""
    return hessian + ridge * np.diag(hessian.diagonal())


def bfgs(inverse, pairs):
    """The inverse updated by each pair (Nocedal & Wright 2006, equation 6.17)."""
    for step, change in pairs:
        step, change = step.ravel(), change.ravel()
        rho = 1 / (step @ change)
        left = np.eye(len(step)) - rho * np.outer(step, change)
        inverse = left @ inverse @ left.T + rho * np.outer(step, step)
    return inverse


class Draws:
    """A generator that keeps what it gave."""

    def __init__(self, seed=0):
        self.rng = np.random.default_rng(seed)
        self.permutations, self.choices, self.offsets = [], [], []

    def integers(self, n):
        self.offsets.append(int(self.rng.integers(n)))
        return self.offsets[-1]

    def permutation(self, n):
        self.permutations.append(self.rng.permutation(n))
        return self.permutations[-1]

    def choice(self, *args, **kwargs):
        self.choices.append(self.rng.choice(*args, **kwargs))
        return self.choices[-1]

    def random(self, size):
        return self.rng.random(size)

    def shuffle(self, rows):
        self.rng.shuffle(rows)
        self.choices.append(rows)


def target_of(loss, scores, rng):
    """Targets drawn from the model with these scores (n, K): the optimum is finite."""
    n = len(scores)
    if isinstance(loss, Logistic):
        target = (rng.random(n) < expit(scores[:, 0])).astype(float)
        target[:2] = 0, 1
        return target
    if isinstance(loss, Softmax):
        target = (scores + rng.gumbel(size=scores.shape)).argmax(axis=1)
        target[: loss.outputs] = np.arange(loss.outputs)
        return target
    if isinstance(loss, Poisson):
        target = rng.poisson(np.exp(np.clip(scores[:, 0], -3, 3))).astype(float)
        target[0] = 1
        return target
    if isinstance(loss, Tweedie):
        target = rng.gamma(2, np.exp(np.clip(scores[:, 0], -3, 3)) / 2)
        return target if isinstance(loss, Gamma) else target * (rng.random(n) < 0.8)
    return scores[:, 0] + rng.standard_t(3, size=n)


def problem_of(
    loss, seed=0, n=40, p=3, l2=1e-3, weights=False, intercept=True, scales=(0, 0), dtype=None
):
    """A random problem; `scales` are powers of ten of the features' deviations."""
    rng = np.random.default_rng(seed)
    Z = rng.normal(size=(n, p))
    target = target_of(loss, Z @ rng.normal(size=(p, loss.outputs)) + 0.3, rng)
    X = Z * 10 ** rng.uniform(*scales, size=p) + 0.5
    weight = rng.integers(0, 4, n) + rng.random(n) if weights else None
    if weights:
        weight[3] = 0.0
    return Problem(
        features=X if dtype is None else X.astype(dtype),
        target=target,
        loss=loss,
        l2=l2,
        sample_weight=weight,
        fit_intercept=intercept,
    )


def prepared(problem, workers=None, size=None, seed=0):
    """The objective in coordinates from `size` rows, the snapshot of the null model, the sample."""
    size = len(problem.target) if size is None else size
    objective, sample = prepare(problem, workers or Workers(0), size, np.random.default_rng(seed))
    return objective, objective.snapshot(objective.null()[0]), sample
