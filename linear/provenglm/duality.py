r"""How far a point is from the optimum, proven: the duality gap.

For any dual residuals :math:`u_i` in the domain of :math:`l^*` with :math:`\sum_i s_i u_i = 0`
(the intercept is free) Fenchel's duality (Rockafellar 1970, section 31) gives

.. math::
    F(\theta) - F^* \le \sum_i s_i \, [l(z_i) + l^*(u_i) - u_i z_i]
        + \sum_j \frac{(\lambda_j \theta_j + \sum_i s_i u_i \hat x_{ij})^2}{2 \lambda_j}

with shares :math:`s_i` that sum to 1. At the residuals themselves the first sum is 0 and the second
is :math:`\|\nabla F\|^2 / 2\lambda`. They do not sum to 0 but at the best intercept, so they are
mixed with a constant as little as is needed. What that does to the second sum is known without
another pass, from the features' mean and their products with the targets.

With a penalty :math:`\mu_j |\theta_j|` beside it, the second sum is that of
:math:`h_j(\theta_j) + h_j^*(-v_j) + v_j \theta_j` with :math:`v_j = \sum_i s_i u_i \hat x_{ij}` and
:math:`h_j^*(v) = \max(|v| - \mu_j, 0)^2 / 2 \lambda_j`. Where :math:`\lambda_j` is 0 it is infinite
beyond :math:`\mu_j`: the residuals are shrunk, all by the same factor, until none is beyond it (El
Ghaoui, Viallon & Rabbani 2012), which keeps their sum 0. Where it is small, a factor between that
and 1 is the best.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from provenglm.losses import Huber, Logistic, Loss, Poisson, Softmax, Squared
from provenglm.objective import Objective, Snapshot, of_rows
from provenglm.types import NumPyArray

_PART = 1 << 16

_MOST_LOG = 700.0
"""exp() of a larger number is no float64; there the other bound is the smaller one."""

_MOST_LOG_OF_FLOAT32 = np.float32(80)
_LOG_2 = np.float32(np.log(2))
_WIDER = 1.0001


_FACTORS = 24
"""Of the residuals, that are looked at where both penalties are there."""


class _Dual(NamedTuple):
    """Feasible residuals: what they make of X^T r, and the sum of Fenchel's terms."""

    kept: float
    constant: NumPyArray | float
    """u = kept (r + y) + constant - y, with y = 0 for squared and Huber loss."""
    divergence: Callable[[], float]
    """It takes a pass over the scores."""


def duality_gap(objective: Objective, snapshot: Snapshot) -> float:
    """Return a bound of F(theta) - F*, 0 or greater."""
    assert objective.moments is not None
    penalty = objective.used(snapshot.theta)[:-1]
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        dual = _dual(objective, snapshot)
        mean, of_target = objective.moments
        if objective.l1 is not None:
            of_data: NumPyArray = snapshot.gradient[:-1] - penalty * snapshot.theta[:-1]
            dual_gradient: NumPyArray = dual.kept * of_data
            dual_gradient += np.multiply.outer(mean, dual.constant)
            if not isinstance(objective.loss, Squared | Huber):
                dual_gradient -= (1 - dual.kept) * of_target
            return _gap_with_l1(objective, snapshot, dual, dual_gradient)
        # kept (gradient - penalty theta) + penalty theta + what the constant adds: in place, for
        # these are arrays of many numbers.
        rest = dual.kept * snapshot.gradient[:-1]
        if dual.kept != 1:
            mixed = penalty * snapshot.theta[:-1]
            if not isinstance(objective.loss, Squared | Huber):
                mixed -= of_target
            mixed *= 1 - dual.kept
            rest += mixed
        if np.any(dual.constant):
            rest += np.multiply.outer(mean, dual.constant)
        bound = _bound(objective, snapshot)
        gap = weighted_square(rest, objective.penalty[:-1])
        if gap < bound:
            gap += dual.divergence()
    return max(0.0, min(gap, bound) if np.isfinite(gap) else bound)


def _bound(objective: Objective, snapshot: Snapshot) -> float:
    """Return what is known anyway: no objective is below the least values of the losses."""
    least = 0.0
    if isinstance(objective.loss, Poisson):
        least = objective.mean(lambda part: objective.loss.least(objective.target[part]))
    return snapshot.objective - least


def weighted_square(rest: NumPyArray, penalty: NumPyArray) -> float:
    """Return the sum of rest^2 / 2 penalty, where 0 / 0 is 0."""
    used = penalty > 0
    if not used.all():
        if rest[~used].any():
            return np.inf
        if not used.any():
            return 0.0
        rest, penalty = rest[used], penalty[used]
    flat = rest.reshape(len(rest), -1)
    return float(np.einsum("jk,jk->j", flat, flat) @ (0.5 / penalty))


def _gap_with_l1(
    objective: Objective, snapshot: Snapshot, dual: _Dual, dual_gradient: NumPyArray
) -> float:
    """Return the bound for the best of some factors of the residuals."""
    assert objective.l1 is not None
    theta = snapshot.theta[:-1]
    l1, penalty = of_rows(objective.l1[:-1], theta), of_rows(objective.penalty[:-1], theta)
    size = np.abs(dual_gradient)
    value = float((l1 * np.abs(theta) + 0.5 * penalty * theta * theta).sum())
    slope = float((dual_gradient * theta).sum())
    beyond = size > l1
    size, l1, penalty = size[beyond], l1[beyond], penalty[beyond]

    def of_weights(factor: float) -> float:
        excess = np.maximum(factor * size - l1, 0)
        square = np.where(excess == 0, 0.0, np.square(excess) / (2 * penalty))
        return value + factor * slope + float(square.sum())

    of_dual = dual.divergence()
    gap = of_dual + of_weights(1.0)
    # An ulp less, so that rounding leaves none beyond.
    feasible = (1 - 1e-15) * float((l1 / size).min(initial=1.0))
    if feasible < 1 and np.isfinite(of_dual):
        divergence = _divergence(objective, snapshot, dual, feasible)
        gap = min(gap, divergence + of_weights(feasible))
        # Of the factors between, the best if the divergence were a parabola.
        factors = feasible + (1 - feasible) * np.linspace(0, 1, _FACTORS + 2)[1:-1]
        parabola = divergence * np.square((1 - factors) / (1 - feasible))
        guesses = [of_weights(factor) for factor in factors]
        best = int(np.argmin(parabola + guesses))
        if parabola[best] + guesses[best] < gap:
            gap = min(gap, _divergence(objective, snapshot, dual, factors[best]) + guesses[best])
    bound = _bound(objective, snapshot)
    return max(0.0, min(gap, bound) if np.isfinite(gap) else bound)


def _divergence(objective: Objective, snapshot: Snapshot, dual: _Dual, factor: float) -> float:
    """Return the mean of Fenchel's terms at the residuals times a factor below 1."""
    loss = objective.loss

    def of_part(part: slice) -> NumPyArray:
        scores, target = snapshot.scores[part].astype(np.float64), objective.target[part]
        value, residual = loss.value_and_residual(scores, target)
        if isinstance(loss, Squared | Huber):
            residual = factor * (dual.kept * residual + dual.constant)
        else:
            observed: NumPyArray = target
            if scores.ndim > 1:
                observed = np.zeros_like(scores)
                observed[np.arange(len(target)), target] = 1
            mean = factor * (dual.kept * (residual + observed) + dual.constant)
            mean += (1 - factor) * observed
            # Inside but for rounding.
            mean = np.clip(mean, 0, np.inf if isinstance(loss, Poisson) else 1)
            residual = mean - observed
        product = residual * scores
        terms = value + loss.conjugate(residual, target)
        return np.asarray(terms - (product if scores.ndim == 1 else product.sum(axis=1)))

    return max(0.0, _mean(objective, of_part))


def _dual(objective: Objective, snapshot: Snapshot) -> _Dual:
    if not objective.intercept:
        return _Dual(1.0, np.zeros(snapshot.theta.shape[1:]), lambda: 0.0)
    return _BALANCED[type(objective.loss)](objective, snapshot)


def _mean(objective: Objective, function: Callable[[slice], NumPyArray]) -> float:
    """Return the mean over all samples of what `function` gives for some of them."""
    n = objective.n
    slices = [slice(start, start + _PART) for start in range(0, n, _PART)]

    def of_part(part: slice) -> float:
        return float(np.ascontiguousarray(objective.share[part]) @ function(part))

    return sum(objective.workers.map(of_part, slices))


def _logistic(objective: Objective, snapshot: Snapshot) -> _Dual:
    # (1 - m) p + m q with q = 0 or 1 has the targets' mean.
    wanted = objective.mean_target()
    mean = wanted + float(snapshot.gradient[-1])
    down = mean > wanted
    mixed = 1 - wanted / mean if down else (wanted - mean) / (1 - mean)
    sign = 1.0 if down else -1.0

    def divergence(part: slice) -> NumPyArray:
        # KL(u || p) <= log(1 + chi^2(u, p)), and chi^2 = m^2 e^(+-z). Where p is next to nothing,
        # convexity bounds it better: KL(u || p) <= m KL(q || p) <= m (log 2 + max(+-z, 0)).
        if objective.is_long and snapshot.scores.dtype == np.float32:
            # log(1 + x) <= x, and the margin is that of rounding.
            scores = np.float32(sign) * snapshot.scores[part]
            square = np.exp(np.minimum(scores, _MOST_LOG_OF_FLOAT32)) * np.float32(_WIDER * mixed)
            square = np.minimum(square, np.float32(_WIDER) * (np.maximum(scores, 0) + _LOG_2))
            return np.asarray(square, np.float64) * mixed
        scores = sign * snapshot.scores[part].astype(np.float64)
        square = np.log1p(np.exp(np.minimum(scores + 2 * np.log(mixed), _MOST_LOG)))
        return np.asarray(np.minimum(square, mixed * (np.log(2) + np.maximum(scores, 0))))

    constant = 0.0 if down else mixed
    return _Dual(1 - mixed, constant, lambda: _mean(objective, divergence) if mixed else 0.0)


def _softmax(objective: Objective, snapshot: Snapshot) -> _Dual:
    loss = objective.loss
    assert isinstance(loss, Softmax)
    wanted = objective.class_shares()
    mean = wanted + snapshot.gradient[-1]
    ratio = np.divide(wanted, mean, out=np.ones_like(mean), where=mean > 0)
    kept = min(1.0, float(ratio.min()))
    constant = np.maximum(wanted - kept * mean, 0)
    logarithm = np.where(constant > 0, 2 * np.log(np.where(constant > 0, constant, 1)), -np.inf)

    def divergence(part: slice) -> NumPyArray:
        # u = kept p + c with sum c = 1 - kept: chi^2 = sum c^2 / p - (1 - kept)^2. In the scores'
        # own dtype: log1p() of small numbers has all its digits, and where exp() overflows the
        # other bound is the smaller one.
        scores = np.array(snapshot.scores[part].T, order="C")
        top = scores.max(axis=0)
        scores -= top
        normaliser = np.log(np.exp(scores).sum(axis=0))
        terms = logarithm.astype(scores.dtype)[:, None] - scores
        terms += normaliser
        square = np.log1p(np.exp(terms, out=terms).sum(axis=0))
        # By convexity, KL(u || p) <= -sum c log p.
        mixed = constant.sum() * normaliser - constant @ scores
        return np.asarray(np.minimum(square, mixed), np.float64)

    return _Dual(kept, constant, lambda: _mean(objective, divergence) if kept < 1 else 0.0)


def _poisson(objective: Objective, snapshot: Snapshot) -> _Dual:
    wanted = objective.mean_target()
    mean = wanted + float(snapshot.gradient[-1])
    if mean <= 0:
        return _Dual(1.0, 0.0, lambda: np.inf)
    kept = wanted / mean
    return _Dual(kept, 0.0, lambda: mean * (kept * np.log(kept) - kept + 1))


def _squared(_: Objective, snapshot: Snapshot) -> _Dual:
    mean = float(snapshot.gradient[-1])
    return _Dual(1.0, -mean, lambda: 0.5 * mean * mean)


def _huber(objective: Objective, snapshot: Snapshot) -> _Dual:
    loss = objective.loss
    assert isinstance(loss, Huber)
    mean = float(snapshot.gradient[-1])
    mixed = abs(mean) / (abs(mean) + loss.epsilon)
    constant = float(-mixed * np.sign(mean) * loss.epsilon)

    def divergence(part: slice) -> NumPyArray:
        scores, target = snapshot.scores[part].astype(np.float64), objective.target[part]
        dual = (1 - mixed) * loss.residual(scores, target) + constant
        exact = loss.value(scores, target) + 0.5 * np.square(dual) - dual * (scores - target)
        return np.asarray(np.maximum(exact, 0))

    return _Dual(1 - mixed, constant, lambda: _mean(objective, divergence) if mixed else 0.0)


_Balance = Callable[[Objective, Snapshot], _Dual]
_BALANCED: dict[type[Loss], _Balance] = {
    Logistic: _logistic,
    Softmax: _softmax,
    Poisson: _poisson,
    Squared: _squared,
    Huber: _huber,
}
