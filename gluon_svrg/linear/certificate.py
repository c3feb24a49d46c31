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
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from gluon_svrg._compat import NumPyArray
from gluon_svrg.linear.losses import Huber, Logistic, Loss, Poisson, Softmax, Squared
from gluon_svrg.linear.objective import Objective, Snapshot

_PART = 1 << 16

_MOST_LOG = 700.0
"""exp() of a larger number is no float64; there the other bound is the smaller one."""


class _Dual(NamedTuple):
    """Feasible residuals: what they make of X^T r, and the sum of Fenchel's terms."""

    kept: float
    constant: NumPyArray | float
    """u = kept (r + y) + constant - y, with y = 0 for squared and Huber loss."""
    divergence: float


def duality_gap(objective: Objective, snapshot: Snapshot) -> float:
    """Return a bound of F(theta) - F*, 0 or greater."""
    assert objective.moments is not None
    penalty = objective.used(snapshot.theta)[:-1]
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        dual = _dual(objective, snapshot)
        mean, of_target = objective.moments
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
        gap = dual.divergence + _weighted_square(rest, objective.penalty[:-1])
    # Nor is any objective below the least values of the losses.
    least = float(objective.share @ objective.loss.least(objective.target))
    bound = snapshot.objective - least
    return max(0.0, min(gap, bound) if np.isfinite(gap) else bound)


def _weighted_square(rest: NumPyArray, penalty: NumPyArray) -> float:
    """Return the sum of rest^2 / 2 penalty, where 0 / 0 is 0."""
    if penalty.size and penalty.min() > 0:
        flat = rest.reshape(len(rest), -1)
        return float(np.einsum("jk,jk->j", flat, flat) @ (0.5 / penalty))
    penalty = penalty if rest.ndim == 1 else penalty[:, None]
    return float(np.where(rest == 0, 0.0, np.square(rest) / (2 * penalty)).sum())


def _dual(objective: Objective, snapshot: Snapshot) -> _Dual:
    if not objective.intercept:
        return _Dual(1.0, np.zeros(snapshot.theta.shape[1:]), 0.0)
    return _BALANCED[type(objective.loss)](objective, snapshot)


def _mean(objective: Objective, function: Callable[[slice], NumPyArray]) -> float:
    """Return the mean over all samples of what `function` gives for some of them."""
    n = objective.n
    slices = [slice(start, start + _PART) for start in range(0, n, _PART)]

    def of_part(part: slice) -> float:
        return float(objective.share[part] @ function(part))

    return sum(objective.workers.map(of_part, slices))


def _logistic(objective: Objective, snapshot: Snapshot) -> _Dual:
    # (1 - m) p + m q with q = 0 or 1 has the targets' mean.
    wanted = float(objective.share @ objective.target)
    mean = wanted + float(snapshot.gradient[-1])
    down = mean > wanted
    mixed = 1 - wanted / mean if down else (wanted - mean) / (1 - mean)
    sign = 1.0 if down else -1.0

    def divergence(part: slice) -> NumPyArray:
        # KL(u || p) <= log(1 + chi^2(u, p)), and chi^2 = m^2 e^(+-z). Where p is next to nothing,
        # convexity bounds it better: KL(u || p) <= m KL(q || p) <= m (log 2 + max(+-z, 0)).
        scores = sign * snapshot.scores[part].astype(np.float64)
        square = np.log1p(np.exp(np.minimum(scores + 2 * np.log(mixed), _MOST_LOG)))
        return np.asarray(np.minimum(square, mixed * (np.log(2) + np.maximum(scores, 0))))

    constant = 0.0 if down else mixed
    return _Dual(1 - mixed, constant, _mean(objective, divergence) if mixed else 0.0)


def _softmax(objective: Objective, snapshot: Snapshot) -> _Dual:
    loss = objective.loss
    assert isinstance(loss, Softmax)
    wanted = np.bincount(objective.target, weights=objective.share, minlength=loss.outputs)
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

    return _Dual(kept, constant, _mean(objective, divergence) if kept < 1 else 0.0)


def _poisson(objective: Objective, snapshot: Snapshot) -> _Dual:
    wanted = float(objective.share @ objective.target)
    mean = wanted + float(snapshot.gradient[-1])
    if mean <= 0:
        return _Dual(1.0, 0.0, np.inf)
    kept = wanted / mean
    return _Dual(kept, 0.0, mean * (kept * np.log(kept) - kept + 1))


def _squared(_: Objective, snapshot: Snapshot) -> _Dual:
    mean = float(snapshot.gradient[-1])
    return _Dual(1.0, -mean, 0.5 * mean * mean)


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

    return _Dual(1 - mixed, constant, _mean(objective, divergence) if mixed else 0.0)


_Balance = Callable[[Objective, Snapshot], _Dual]
_BALANCED: dict[type[Loss], _Balance] = {
    Logistic: _logistic,
    Softmax: _softmax,
    Poisson: _poisson,
    Squared: _squared,
    Huber: _huber,
}
