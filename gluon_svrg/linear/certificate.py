r"""How far a point is from the optimum, proven: the duality gap.

For any dual residuals :math:`u_i` in the domain of :math:`l^*` with :math:`\sum_i s_i u_i = 0`
(the intercept is free) Fenchel's duality (Rockafellar 1970, section 31) gives

.. math::
    F(\theta) - F^* \le \sum_i s_i \, [l(z_i) + l^*(u_i) - u_i z_i]
        + \sum_j \frac{(\lambda_j \theta_j + \sum_i s_i u_i \hat x_{ij})^2}{2 \lambda_j}

with shares :math:`s_i` that sum to 1. At the residuals themselves the first sum is 0 and the second is
:math:`\|\nabla F\|^2 / 2\lambda`. They do not sum to 0 but at the best intercept, so they are mixed with
a constant as little as is needed. What that does to the second sum is known without another
pass: the features are centred, and their products with the targets are those of the null model.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from gluon_svrg._compat import NumPyArray
from gluon_svrg.linear.losses import Huber, Logistic, Loss, Poisson, Softmax, Squared
from gluon_svrg.linear.objective import Objective, Snapshot


class _Dual(NamedTuple):
    """Feasible residuals: what they make of X^T r, and Fenchel's term of each sample."""

    kept: float
    """X^T u = kept X^T r - (1 - kept) X^T y, with y = 0 for squared and Huber loss."""
    divergence: NumPyArray


def duality_gap(objective: Objective, snapshot: Snapshot) -> float:
    """Return a bound of F(theta) - F*: 0 or greater, inf where the penalty cannot give one."""
    penalty = objective.used(snapshot.theta)
    of_data = snapshot.gradient - penalty * snapshot.theta
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        dual = _dual(objective, snapshot)
        dual_gradient = dual.kept * of_data[:-1] - (1 - dual.kept) * objective.target_moment
        rest = penalty[:-1] * snapshot.theta[:-1] + dual_gradient
        squares = np.where(rest == 0, 0.0, np.square(rest) / (2 * penalty[:-1]))
        gap = float(objective.share @ dual.divergence) + float(squares.sum())
    return gap if np.isfinite(gap) else float("inf")


def _dual(objective: Objective, snapshot: Snapshot) -> _Dual:
    loss, target, share = objective.loss, objective.target, objective.share
    scores = snapshot.scores.astype(np.float64)
    if not objective.intercept:
        return _Dual(1.0, np.zeros(len(target)))
    return _BALANCED[type(loss)](loss, scores, target, share)


def _logistic(_: Loss, scores: NumPyArray, target: NumPyArray, share: NumPyArray) -> _Dual:
    # (1 - m) p + m q with q = 0 or 1 has the targets' mean.
    probability = np.exp(-np.logaddexp(0, -scores))
    mean, wanted = share @ probability, share @ target
    mixed, constant = (1 - wanted / mean, 0.0) if mean > wanted else ((wanted - mean) / (1 - mean), 1.0)
    dual = (1 - mixed) * probability + mixed * constant
    other = np.exp(-np.logaddexp(0, scores))
    divergence = _relative_entropy(dual, probability) + _relative_entropy(
        (1 - mixed) * other + mixed * (1 - constant), other
    )
    return _Dual(1 - mixed, divergence)


def _softmax(loss: Loss, scores: NumPyArray, target: NumPyArray, share: NumPyArray) -> _Dual:
    assert isinstance(loss, Softmax)
    probability = loss.probability(scores)
    mean = share @ probability
    wanted = np.bincount(target, weights=share, minlength=loss.outputs)
    # A class with no weight is no class: its probability has to be mixed away whole.
    ratio = np.divide(wanted, mean, out=np.ones_like(mean), where=mean > 0)
    kept = min(1.0, float(ratio.min()))
    constant = np.maximum(wanted - kept * mean, 0)
    dual = kept * probability + constant
    return _Dual(kept, _relative_entropy(dual, probability).sum(axis=1))


def _poisson(_: Loss, scores: NumPyArray, target: NumPyArray, share: NumPyArray) -> _Dual:
    mean = np.exp(scores)
    kept = float(share @ target / (share @ mean))
    return _Dual(kept, mean * (kept * np.log(kept) - kept + 1))


def _squared(_: Loss, scores: NumPyArray, target: NumPyArray, share: NumPyArray) -> _Dual:
    shift = share @ (scores - target)
    return _Dual(1.0, np.full(len(target), 0.5 * shift * shift))


def _huber(loss: Loss, scores: NumPyArray, target: NumPyArray, share: NumPyArray) -> _Dual:
    assert isinstance(loss, Huber)
    residual = loss.residual(scores, target)
    mean = share @ residual
    mixed = abs(mean) / (abs(mean) + loss.epsilon)
    dual = (1 - mixed) * residual - mixed * np.sign(mean) * loss.epsilon
    error = scores - target
    divergence = loss.value(scores, target) + 0.5 * np.square(dual) - dual * error
    return _Dual(1 - mixed, np.maximum(divergence, 0))


_Balance = Callable[[Loss, NumPyArray, NumPyArray, NumPyArray], _Dual]
_BALANCED: dict[type[Loss], _Balance] = {
    Logistic: _logistic,
    Softmax: _softmax,
    Poisson: _poisson,
    Squared: _squared,
    Huber: _huber,
}


def _relative_entropy(p: NumPyArray, q: NumPyArray) -> NumPyArray:
    """p log(p / q) - p + q, not below 0; 0 log 0 is 0."""
    ratio = np.divide(p, q, out=np.full_like(p, np.inf), where=q > 0)
    ratio[p == 0] = 1
    return np.maximum(p * np.log(ratio) - p + q, 0)
