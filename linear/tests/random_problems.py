"""Random linear problems, each judged by an independent optimum in float64.

No bound is below the true distance to the optimum, no fit ends without a warning farther away than
`tol` and its bound allow, none takes longer than `max_time` and two seconds, and none raises. The
scales of the features go over eight powers of ten; some features are collinear, far off zero,
constant or rare, some rows weigh nothing, some classes are nearly separable. Run it by
``make fuzz-linear``; the first 150 are a test.

``make fuzz-linear KIND=l1`` (or ``huber``, or ``disk``) makes other problems of the same data: with
an L1 penalty, with Huber's loss and its scale, in files. ``KIND=hostile`` makes data with
mistakes of users: sentinels and a 1e25 among the targets, columns whose mean is 1e13 times their
deviation, weights from 1e-300 to 1e19. These are judged in long double (`long_double`).
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from long_double import LongDouble
from provenglm import Chunks, GLMClassifier, GLMRegressor, constants
from provenglm.model.losses import Huber, Logistic, Loss, Poisson, Softmax, Squared
from provenglm.model.tweedie import Gamma, Tweedie
from scipy import sparse
from scipy.linalg import lstsq
from scipy.optimize import minimize_scalar
from sklearn.exceptions import ConvergenceWarning

LOSSES: list[Loss] = [
    *(Logistic(), Softmax(3), Softmax(6), Squared(), Poisson()),
    *(Tweedie(1.5), Gamma(), Tweedie(1.05)),
]
KINDS = ["l2", "l1", "huber", "disk", "hostile", "offset"]
MAX_TIME = 20.0
UNIT = 2.0**-53


class Limits(NamedTuple):
    """Up to what a problem is small: with less of it other ways are taken on problems as small."""

    numbers: int
    weights: int
    rows: int
    compiled: float

    @contextmanager
    def set(self) -> Iterator[None]:
        """Let the solver have these limits while the block runs."""
        names = "SMALL_DATA", "MOST_WEIGHTS", "LEAST_ROWS", "COMPILED"
        before = [getattr(constants, name) for name in names]
        for name, value in zip(names, self, strict=True):
            setattr(constants, name, value)
        try:
            yield
        finally:
            for name, value in zip(names, before, strict=True):
                setattr(constants, name, value)


class Random(NamedTuple):
    """A problem: F(W, b) = sum_i s_i loss(x_i W + b + o_i, y_i) + l2 / 2 ||W||^2 + l1 ||W||_1.

    The shares s_i sum to 1. With Huber's loss, the scale is an unknown, too.
    """

    rows: Any
    dense: np.ndarray
    target: np.ndarray
    weight: np.ndarray | None
    offset: np.ndarray | None
    loss: Loss
    strength: float
    has_intercept: bool
    tol: float
    limits: Limits
    l1_ratio: float = 0.0
    is_on_disk: bool = False

    @property
    def share(self) -> np.ndarray:
        weight = np.ones(len(self.target)) if self.weight is None else self.weight
        return weight / weight.sum()

    @property
    def is_classification(self) -> bool:
        return isinstance(self.loss, Logistic | Softmax)

    @property
    def penalty(self) -> float:
        """L1 and L2 together."""
        if not self.is_classification:
            return self.strength
        total = len(self.target) if self.weight is None else self.weight.sum()
        return 1 / (self.strength * total)

    @property
    def l2(self) -> float:
        return (1 - self.l1_ratio) * self.penalty

    @property
    def l1(self) -> float:
        return self.l1_ratio * self.penalty

    def model(self, seed: int) -> Any:
        settings = {
            "fit_intercept": self.has_intercept,
            "l1_ratio": self.l1_ratio,
            "max_time": MAX_TIME,
            "tol": self.tol,
            "random_state": seed,
        }
        if self.is_classification:
            return GLMClassifier(C=self.strength, **settings)
        if isinstance(self.loss, Tweedie):
            settings["power"] = self.loss.power
        if isinstance(self.loss, Huber):
            settings["epsilon"] = self.loss.epsilon
        return GLMRegressor(self.loss.name, alpha=self.strength, **settings)

    def fitted(self, seed: int) -> Any:
        given = {} if self.offset is None else {"offset": self.offset}
        with tempfile.TemporaryDirectory() as folder:
            rows = self.stored(Path(folder), seed) if self.is_on_disk else self.rows
            return self.model(seed).fit(rows, self.target, sample_weight=self.weight, **given)

    def stored(self, folder: Path, seed: int) -> Any:
        """Write the rows; return a memory map, or chunks of one or of several files."""
        paths = [folder / f"{k}.npy" for k in range(1 + seed % 3)]
        rows = self.rows.toarray() if sparse.issparse(self.rows) else self.rows
        for path, part in zip(paths, np.array_split(rows, len(paths)), strict=True):
            np.save(path, part)
        if len(paths) == 1 and seed % 2:
            return np.load(paths[0], mmap_mode="r")
        return Chunks(paths)

    def moved(self, scores: np.ndarray) -> np.ndarray:
        """Scores with the offsets."""
        return scores if self.offset is None else scores + self.offset.reshape(scores.shape)


def problem(seed: int, kind: str = "l2") -> Random:
    """Return a problem of small size and many a difficulty."""
    if kind == "hostile":
        return _hostile(seed)
    one, random = _with_l2(seed), np.random.default_rng([seed, 1])
    if kind == "l1":
        return one._replace(l1_ratio=float(random.choice([1, 0.9, 0.5, 0.05])))
    if kind == "disk":
        return one._replace(is_on_disk=True)
    if kind == "offset":
        return _with_offset(one, random)
    if kind == "huber":
        n = len(one.dense)
        signal = one.dense @ (random.standard_normal(one.dense.shape[1]) / _scale(one.dense))
        noise = random.standard_normal(n) * random.choice(
            [0, 0.01, 1, 100], n, p=[0.1, 0.2, 0.6, 0.1]
        )
        return one._replace(
            target=10 ** random.uniform(-3, 3) * (signal + noise + random.choice([0, 100])),
            loss=Huber(float(random.choice([1.01, 1.35, 3]))),
            strength=10 ** random.uniform(-6, 0),
            offset=None if one.offset is None else random.standard_normal(n),
        )
    return one


def _with_offset(one: Random, random: np.random.Generator) -> Random:
    """Give a problem offsets; of three or more classes a column for each."""
    n, loss = len(one.dense), one.loss
    size, common = random.choice([0.3, 2, 20]), random.choice([0, 10, -1000])
    if loss.has_logarithm and not one.has_intercept:
        common = 0
    if one.offset is None:
        shape = (n, loss.outputs) if loss.outputs > 1 else n
        offset = size * random.standard_normal(shape) + common
        target = one.target
        if loss.has_classes:
            # Labels follow them: else nothing but they is seen.
            utility = offset - offset.mean(axis=0) + random.logistic(size=shape)
            follows = random.random(n) < 0.5
            own = utility.argmax(axis=1) if loss.outputs > 1 else utility > 0
            target = np.where(follows, own, target).astype(target.dtype)
            target[: 2 * loss.outputs] = one.target[: 2 * loss.outputs]
        elif loss.has_logarithm:
            offset = offset / 5
            target = target * np.exp(offset - offset.mean())
        else:
            target = target + offset
        one = one._replace(target=target, offset=offset)
    l1_ratio = float(random.choice([0, 0, 1, 0.5])) * (not isinstance(loss, Huber))
    return one._replace(l1_ratio=l1_ratio, is_on_disk=bool(random.random() < 0.2))


def _scale(rows: np.ndarray) -> np.ndarray:
    """Return the deviation of each column, 1 where it is 0."""
    scale = rows.std(axis=0)
    return np.where(scale > 0, scale, 1)


def _with_l2(seed: int) -> Random:
    random = np.random.default_rng(seed)
    n, p = int(8 * 500 ** random.random()), int(random.integers(1, 30))
    loss = LOSSES[seed % len(LOSSES)]
    dense = random.standard_normal((n, p)) * (random.random((n, p)) < random.choice([1, 1, 0.2]))
    signal = dense @ random.standard_normal((p, loss.outputs)) * random.choice([0.1, 1, 10])
    dense *= 10 ** random.uniform(-4, 4, p) if random.random() < 0.5 else 1.0
    if p > 2 and random.random() < 0.3:
        dense[:, 1] = dense[:, 0] * (1 + 1e-7 * random.standard_normal(n))
    if random.random() < 0.3:
        dense = dense + random.choice([0, 1, 100], p) * np.abs(dense).max(axis=0)
    if random.random() < 0.2:
        dense[:, 0] = random.choice([0, 3])
    if random.random() < 0.1:
        dense[:, -1] = np.arange(n) == 0
    dense = dense.astype(random.choice(["float32", "float64"]))
    if random.random() < 0.15:
        dense = np.clip(np.round(dense), -100, 100).astype("int8")
    forms = [np.asarray, np.asfortranarray, sparse.csr_matrix, sparse.csc_array]
    weight = random.random(n) * (random.random(n) < 0.8) if random.random() < 0.4 else None
    if weight is not None:
        weight[: 2 * loss.outputs] = 1.0
    strength = 10 ** random.uniform(-4, 5) if loss.has_classes else None
    offset = None
    if not loss.has_classes and random.random() < 0.4:
        offset = random.standard_normal(n) * random.choice([0.3, 2.0]) + random.choice([0, 10])
    return Random(
        forms[int(random.integers(len(forms)))](dense),
        dense.astype("float64"),
        _target(loss, signal, offset, random),
        weight,
        offset,
        loss,
        10 ** random.uniform(-6, 0) if strength is None else strength,
        bool(random.random() < 0.8),
        10 ** random.uniform(-8, -1),
        Limits(
            int(random.choice([constants.SMALL_DATA, constants.SMALL_DATA, 0])),
            int(random.choice([3000, 3000, 0])),
            int(random.choice([2000, 20])),
            float(random.choice([constants.COMPILED, 0])),
        ),
    )


def _target(
    loss: Loss, signal: np.ndarray, offset: np.ndarray | None, random: np.random.Generator
) -> np.ndarray:
    n = len(signal)
    if isinstance(loss, Logistic):
        y = (random.logistic(size=n) < signal[:, 0]).astype(float)
        y[:2] = 0, 1
    elif isinstance(loss, Softmax):
        y = (signal + random.gumbel(size=signal.shape)).argmax(axis=1)
        y[: loss.outputs] = np.arange(loss.outputs)
    elif isinstance(loss, Poisson):
        y = random.poisson(np.exp(np.clip(0.3 * signal[:, 0], -5, 3))).astype(float)
        y[0] = 1
    elif isinstance(loss, Tweedie):
        y = random.gamma(2, np.exp(np.clip(0.3 * signal[:, 0], -5, 5)) / 2)
        if not isinstance(loss, Gamma):
            y *= random.random(n) < 0.7
            y[0] = 1
    else:
        y = signal[:, 0] + random.standard_normal(n)
    return y * np.exp(offset) if offset is not None and loss.has_logarithm else y


HOSTILE_LOSSES: list[Loss] = [
    *(Logistic(), Softmax(3), Squared(), Huber(1.35), Poisson(), Gamma(), Tweedie(1.5)),
    *(Softmax(4), Huber(1.0000001), Tweedie(1.05)),
]


def _hostile(seed: int) -> Random:
    random = np.random.default_rng([seed, 2])
    n, p = int(800 ** random.random()), int(random.integers(1, 13))
    loss = HOSTILE_LOSSES[seed % len(HOSTILE_LOSSES)]
    n = max(n, loss.outputs if loss.outputs > 1 else 2 if loss.has_classes else 1)
    dense = random.standard_normal((n, p))
    signal = dense @ random.standard_normal((p, loss.outputs)) * random.choice([0.1, 1, 10])
    target = _target(loss, signal, None, random)
    dense *= 10.0 ** random.choice([-40, -6, 0, 0, 0, 6], p)
    for column in range(p):
        trouble = random.random()
        if trouble < 0.2:
            dense[:, column] += 10 ** random.uniform(9, 13) * dense[:, column].std()
        elif trouble < 0.25:
            dense[:, column] = random.choice([0.1, 3, 1e9])
        elif trouble < 0.3:
            dense[:, column] = 10.0 ** random.integers(-9, 9) * (np.arange(n) == n // 2)
        elif trouble < 0.35:
            dense[:, column] = dense[:, 0] * (1 + 1e-9 * random.standard_normal(n))
    if not loss.has_classes:
        target = target * 10 ** random.uniform(-3, 3)
        if random.random() < 0.3:  # sentinels
            target[random.random(n) < 0.05] = 1e9
        if random.random() < 0.15:
            target[random.integers(n)] = 1e25
    dense = dense.astype("float32" if random.random() < 0.1 else "float64")
    weight, kind = None, random.random()
    if kind < 0.1:
        weight = 10.0 ** random.uniform(-300, 19, n)
    elif kind < 0.25:
        weight = np.where(random.random(n) < 0.1, 10.0 ** random.uniform(0, 19, n), 1.0)
    elif kind < 0.4:
        weight = random.lognormal(0, 2, n) * (random.random(n) < 0.9)
    if weight is not None:
        weight[: 2 * loss.outputs] = np.maximum(weight[: 2 * loss.outputs], 1e-200)
    has_penalty = random.random() < 0.88
    if loss.has_classes:
        strength = 10 ** random.uniform(-4, 8) if has_penalty else np.inf
    else:
        strength = 10 ** random.uniform(-9, 2) if has_penalty else 0.0
    has_l1 = has_penalty and not isinstance(loss, Huber) and random.random() < 0.4
    rows = sparse.csr_array(dense) if random.random() < 0.15 else dense
    return Random(
        rows,
        dense.astype("float64"),
        target,
        weight,
        None,
        loss,
        float(strength),
        bool(random.random() < 0.85),
        10 ** random.uniform(-8, -2),
        Limits(
            int(random.choice([constants.SMALL_DATA, constants.SMALL_DATA, 0])),
            constants.MOST_WEIGHTS,
            int(random.choice([2000, 20])),
            float(random.choice([constants.COMPILED, 0])),
        ),
        l1_ratio=float(random.choice([1, 0.99, 0.5, 0.05])) if has_l1 else 0.0,
        is_on_disk=bool(random.random() < 0.05) and not sparse.issparse(rows),
    )


def value(problem: Random, theta: np.ndarray) -> tuple[float, float]:
    """Return F at theta, (p + 1, K), the last row the intercept, and its rounding error."""
    scores = problem.dense @ theta[:-1] + theta[-1]
    penalty = problem.l2 / 2 * float(np.square(theta[:-1]).sum())
    penalty += problem.l1 * float(np.abs(theta[:-1]).sum())
    if isinstance(problem.loss, Huber):
        error = problem.target - problem.moved(scores)[:, 0]
        loss, scale = with_best_scale(error, problem.share, problem.loss.epsilon)
        residual = np.clip(error / max(scale, 1e-300), -problem.loss.epsilon, problem.loss.epsilon)
    else:
        losses, residual = problem.loss.value_and_residual(problem.moved(scores), problem.target)
        loss = float(problem.share @ losses)
    found = loss + penalty
    rows = np.column_stack([problem.dense, np.ones(len(scores))])
    return found, rounding_of(rows, theta, problem.share, residual, found, problem.offset)


def rounding_of(
    rows: np.ndarray,
    theta: np.ndarray,
    share: np.ndarray,
    residual: np.ndarray,
    value: float,
    offset: np.ndarray | float | None = None,
) -> float:
    """Return the rounding error of F: a score is a sum of p products, whatever cancels."""
    n, p = rows.shape
    sizes = np.abs(rows) @ np.abs(theta)
    if offset is not None:
        sizes = sizes + np.abs(offset).reshape(len(np.atleast_1d(offset)), -1)
    moved = share @ (np.abs(residual).reshape(sizes.shape) * sizes).sum(axis=1)
    return UNIT * ((p + 1) * float(moved) + n * (1 + abs(value)))


def with_best_scale(error: np.ndarray, share: np.ndarray, epsilon: float) -> tuple[float, float]:
    """Return min over s > 0 of s / 2 + s mean(h(error / s)), h Huber's, and s; by bisection.

    Its derivative is (1 - mean(min((error / s)^2, epsilon^2))) / 2, which rises with s.
    """
    size = np.abs(error)
    high = float(size.max(initial=0.0)) + 1e-300
    low = 1e-20 * high  # below it the fit of all but outliers is perfect
    for _ in range(200):
        middle = (low + high) / 2
        if middle in (low, high):
            break
        if share @ np.square(np.minimum(size / middle, epsilon)) > 1:
            low = middle
        else:
            high = middle
    inside = np.minimum(size, epsilon * high)
    return float(high / 2 + share @ (inside * (size - inside / 2)) / high), high


class Smooth(NamedTuple):
    """F without the L1 penalty, at theta: (p, K)."""

    rows: np.ndarray
    target: np.ndarray
    share: np.ndarray
    loss: Loss
    penalty: np.ndarray
    offset: np.ndarray | float = 0.0

    def value(self, theta: np.ndarray) -> float:
        with np.errstate(over="ignore"):
            losses = self.loss.value(self.rows @ theta + self.offset, self.target)
        return float(self.share @ losses) + 0.5 * float(self.penalty @ np.square(theta).sum(axis=1))

    def rounding(self, theta: np.ndarray) -> float:
        residual = self.loss.residual(self.rows @ theta + self.offset, self.target)
        value = self.value(theta)
        return rounding_of(self.rows, theta, self.share, residual, value, self.offset)

    def derivatives(self, theta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the gradient, (p, K), and the Hessian, (p K, p K)."""
        rows, target, share, loss, penalty, offset = self
        p, k = rows.shape[1], loss.outputs
        scores = rows @ theta + offset
        residual = share[:, None] * loss.residual(scores, target)
        gradient = rows.T @ residual + penalty[:, None] * theta
        hessian = np.zeros((p, k, p, k))
        if k == 1:
            weight = share * loss.second_derivative(scores, target).diagonal[:, 0]
            hessian[:, 0, :, 0] = (rows.T * weight) @ rows
        else:
            mean = loss.probability(scores)
            for one in range(k):
                for other in range(k):
                    weight = share * mean[:, one] * ((one == other) - mean[:, other])
                    hessian[:, one, :, other] = (rows.T * weight) @ rows
        return gradient, hessian.reshape(p * k, p * k) + np.diag(np.repeat(penalty, k))


def newton(
    smooth: Smooth, l1: np.ndarray | float = 0.0, start: np.ndarray | None = None
) -> tuple[float, np.ndarray]:
    """Return the least F that damped Newton steps find, in float64, and where: (p, K).

    With an L1 penalty a step is over what is not 0 and what the gradient asks for, with the signs
    that these have; what would turn its sign becomes 0. Where that leads no lower, only one joins.
    """
    shape = smooth.rows.shape[1], smooth.loss.outputs
    size = np.broadcast_to(np.asarray(l1, float).reshape(-1, 1), shape)

    def value(theta: np.ndarray) -> float:
        return smooth.value(theta) + float((size * np.abs(theta)).sum())

    def after(step: np.ndarray) -> np.ndarray:
        new = theta + step
        return np.where((size > 0) & (new * sign < 0), 0.0, new)

    theta = np.zeros(shape) if start is None else start
    best = value(theta)
    for _ in range(300):
        gradient, hessian = smooth.derivatives(theta)
        sign = np.where(theta == 0, -np.sign(gradient), np.sign(theta))
        here, excess = (theta != 0) | (size == 0), np.abs(gradient) - size
        joins = ~here & (excess > 0)
        worst = joins & (excess == np.where(joins, excess, 0).max())
        for free in (here | joins, here | worst) if joins.any() else (here,):
            step, chosen = np.zeros(theta.size), free.ravel()
            right = (gradient + size * sign).ravel()[chosen]
            matrix = hessian[np.ix_(chosen, chosen)]
            # LAPACK's other drivers sometimes find no singular values.
            step[chosen] = -lstsq(matrix, right, cond=1e-15, lapack_driver="gelsy")[0]
            length = 1.0
            while length > 1e-12 and not value(after(length * step.reshape(shape))) < best:
                length /= 2
            if length > 1e-12:
                theta = after(length * step.reshape(shape))
                break
        else:
            break
        best = value(theta)
    return best, theta


def least(problem: Random, found: np.ndarray) -> tuple[float, float]:
    """Return the least F, more by its rounding error, and F of the best constant prediction.

    With an L1 penalty from the coefficients of the fit, too: from 0 the steps may end too early.
    """
    kept = problem.share > 0
    rows, target, share = problem.dense[kept], problem.target[kept], problem.share[kept]
    offset = 0.0 if problem.offset is None else problem.offset[kept].reshape(kept.sum(), -1)
    center = rows.mean(axis=0) if problem.has_intercept else np.zeros(rows.shape[1])
    scale = np.sqrt(np.square(rows - center).mean(axis=0))
    scale[scale == 0] = 1
    ones = np.full((len(rows), 1), float(problem.has_intercept))
    of_rows = np.hstack([(rows - center) / scale, ones]), np.append(problem.l2 / scale**2, 0.0)
    of_constant = ones, np.zeros(1)
    if isinstance(problem.loss, Huber):
        at_least, constant = (
            least_of_scales(features, target - np.ravel(offset), share, problem.loss, penalty)
            for features, penalty in (of_rows, of_constant)
        )
        return at_least, constant
    with_rows, with_ones = (
        Smooth(features, target, share, problem.loss, penalty, offset)
        for features, penalty in (of_rows, of_constant)
    )
    l1, constant = np.append(problem.l1 / scale, 0.0), newton(with_ones)[0]
    best, theta = newton(with_rows, l1)
    if problem.l1:
        coef = found[:-1] * scale[:, None]
        start = np.vstack([coef, found[-1:] + center @ found[:-1]])
        best, theta = min((best, theta), newton(with_rows, l1, start), key=lambda pair: pair[0])
    return best + with_rows.rounding(theta), constant


def least_of_scales(
    rows: np.ndarray, target: np.ndarray, share: np.ndarray, loss: Huber, penalty: np.ndarray
) -> float:
    """Return the least F of Huber's loss with its scale, which is convex in the scale."""
    best, start = np.inf, np.zeros((rows.shape[1], 1))
    bias = np.array([[float(np.median(target))]])
    if rows[:, -1].any():
        start[-1:] = bias

    def at(logarithm: float) -> float:
        nonlocal best, start
        scale = float(np.exp(logarithm))
        smooth = Smooth(rows, target / scale, share, loss, penalty * scale)
        value, theta = newton(smooth, start=start / scale)
        start = scale * theta
        error = target - (rows @ start)[:, 0]
        own = 0.5 * float(penalty @ np.square(start[:, 0]))
        best = min(best, with_best_scale(error, share, loss.epsilon)[0] + own)
        return scale * (0.5 + value)

    error = target - (rows @ start)[:, 0]
    first = float(np.log(max(float(np.sqrt(share @ np.square(error))), 1e-300)))
    minimize_scalar(at, bounds=(first - 25, first + 3), method="bounded", options={"xatol": 1e-9})
    return best


def long_double(problem: Random) -> LongDouble:
    return LongDouble.of(
        problem.dense,
        problem.target,
        problem.weight,
        problem.loss,
        (problem.l2, problem.l1),
        problem.has_intercept,
        problem.offset,
    )


def judged_precisely(
    problem: Random, theta: np.ndarray
) -> tuple[tuple[float, float], tuple[float, float]]:
    """Return what `value` and `least` do, in long double."""
    one = long_double(problem)
    with np.errstate(all="ignore"):
        at = one.theta_of(theta[:-1], theta[-1])
        found, constant = one.value(at), one.constant()[0]
        return (found, one.rounding(at)), (one.least(at), constant)


def rounding_of_sparse(problem: Random, theta: np.ndarray) -> float:
    """Return the error of an objective of sparse rows, which are not centred."""
    one = long_double(problem)
    with np.errstate(all="ignore"):
        return one.rounding(one.theta_of(theta[:-1], theta[-1]), is_centred=False)


def check(seed: int, kind: str = "l2") -> str:
    """Return what is wrong with the fit of a problem; nothing if all is well."""
    one = problem(seed, kind)
    begin = time.perf_counter()
    with warnings.catch_warnings(record=True) as caught, one.limits.set():
        warnings.simplefilter("always")
        try:
            model = one.fitted(seed)
        except (TypeError, ValueError) as error:
            is_sentence = type(error) in (TypeError, ValueError) and kind == "hostile"
            return "" if is_sentence else f"{type(error).__name__}: {error}"
        except Exception as error:
            return f"{type(error).__name__}: {error}"
    seconds = time.perf_counter() - begin
    if seconds > MAX_TIME + 2:
        return f"{seconds:.1f} s, max_time is {MAX_TIME:g}"
    coef, intercept = np.atleast_2d(model.coef_), np.atleast_1d(model.intercept_)
    theta = np.vstack([coef.T, intercept[None]]).astype("float64")
    if kind == "hostile":
        (found, rounding), (best, constant) = judged_precisely(one, theta)
    else:
        (found, rounding), (best, constant) = value(one, theta), least(one, theta)
    distance = found - best
    # What sparse scores are off by is in `gap_`, and as much in `objective_`.
    off = rounding_of_sparse(one, theta) if sparse.issparse(one.rows) else rounding
    if abs(found - model.objective_) > 1e-5 * (1 + abs(found)) + off:
        return f"objective_ is {model.objective_!r}, of its coefficients {found!r}"
    if distance > model.gap_ + rounding:
        return f"gap_ is {model.gap_:.3g}, the true distance at least {distance:.3g}"
    is_told = any(issubclass(warning.category, ConvergenceWarning) for warning in caught)
    allowed = max(one.tol * (constant - best), model.gap_) + rounding
    if not is_told and distance > allowed:
        return f"{distance:.3g} away without a warning, {allowed:.3g} is allowed"
    return ""


def main() -> None:
    command = argparse.ArgumentParser(description=__doc__)
    command.add_argument("--first", type=int, default=0)
    command.add_argument("--problems", type=int)
    command.add_argument("--kind", choices=KINDS, default="l2")
    options = command.parse_args()
    if options.problems is None:
        options.problems = 2000 if options.kind == "hostile" else 5000
    wrong = 0
    for seed in range(options.first, options.first + options.problems):
        if found := check(seed, options.kind):
            wrong += 1
            name = problem(seed, options.kind).loss.name
            print(f"problem {seed}, {name}: {found}", flush=True)
    print(f"{options.problems} problems, {wrong} wrong")
    sys.exit(wrong > 0)


if __name__ == "__main__":
    main()
