r"""Prove an upper bound of a point's distance to the optimum: the duality gap.

For any dual residuals :math:`u_i` in the domain of :math:`l^*` with :math:`\sum_i s_i u_i = 0`
(because the intercept has no penalty), Fenchel's duality (Rockafellar 1970, section 31) gives

.. math::
    F(\theta) - F^* \le \sum_i s_i \, [l(z_i) + l^*(u_i) - u_i z_i]
        + \sum_j \frac{(\lambda_j \theta_j + \sum_i s_i u_i \hat x_{ij})^2}{2 \lambda_j}

with shares :math:`s_i` that sum to 1. At the residuals of the point the first sum is 0 and the
second is :math:`\|\nabla F\|^2 / 2\lambda`. These residuals sum to 0 only at the best intercept, so
they are mixed with as little of a constant as is needed. The effect on the second sum follows from
the features' means and their products with the targets, without another pass.

With an additional penalty :math:`\mu_j |\theta_j|`, the second sum is that of :math:`h_j(\theta_j)
+ h_j^*(-v_j) + v_j \theta_j` with :math:`v_j = \sum_i s_i u_i \hat x_{ij}` and :math:`h_j^*(v) =
\max(|v| - \mu_j, 0)^2 / 2 \lambda_j`. If :math:`\lambda_j` is 0, this is infinite for :math:`|v|`
above :math:`\mu_j`: the residuals are then scaled down, all by the same factor, until no feature
exceeds it (El Ghaoui, Viallon & Rabbani 2012), which keeps their sum 0. If :math:`\lambda_j` is
small, the best factor lies between that factor and 1. For losses of classes, the effect of a factor
on the first sum has a bound without another pass: see `_shrunk`.
"""

from __future__ import annotations

import math

import numpy as np

from provenglm import constants
from provenglm.model.losses import Dual, Loss
from provenglm.model.null_model import least_loss
from provenglm.model.objective import Objective, Snapshot, clipped, residuals
from provenglm.rows.products import column_products
from provenglm.rows.table import Block
from provenglm.types import NumPyArray

_ULP = 2.0**-53

_NEGLIGIBLE = 1e-12
"""For losses with a log link, the largest curvature is only computed if the scores have a larger
error: it takes the exponentials of all scores."""

_FACTORS = 8
"""The number of factors of the residuals at which the term of the weights is computed first."""

# Write max(bound, 0.0) in this order, so that NaN stays NaN. max(0.0, NaN) is 0.0, a false proof.


def duality_gap(objective: Objective, snapshot: Snapshot, required_gap: float = np.inf) -> float:
    """Return a bound of F(theta) - F*, at least 0; inf if a score is too large for the loss.

    If the bound exceeds `required_gap` anyway, it may be a rough bound, which costs less.
    """
    gap = _duality_gap(objective, snapshot, required_gap)
    return with_score_error(objective, snapshot, gap)


def with_score_error(objective: Objective, snapshot: Snapshot, gap: float) -> float:
    r"""Return a duality gap plus the effect of rounding the scores in float64.

    A gap is a sum of Fenchel's terms and of terms that the scores have no part in. If the second
    derivative of a loss is at most L, the derivative of its term is at most the root of 2 L times
    this term. So errors of the scores with the root mean square e change a gap G to at most
    :math:`(\sqrt G + e \sqrt{L / 2})^2`, whatever the residuals.
    """
    if snapshot.is_single or not 0 <= gap < np.inf:
        return gap
    error = objective.score_error(snapshot.theta)
    if objective.loss.has_logarithm and error <= _NEGLIGIBLE:
        return gap
    if not error < np.inf:
        return np.inf
    change = error * math.sqrt(_largest_curvature(objective, snapshot) / 2)
    return gap + 2 * math.sqrt(gap) * change + change * change


def _largest_curvature(objective: Objective, snapshot: Snapshot) -> float:
    """Return the largest second derivative between the scores and the loss's minima."""
    loss = objective.loss
    if not loss.has_logarithm:
        scores = np.zeros((0, loss.outputs))
        return loss.rounding_terms(scores, np.zeros(0, np.intp), np.zeros(0)).curvature
    return float(max(objective.sum(_block_curvature, loss, at=snapshot)))


def _block_curvature(block: Block, loss: Loss) -> list[float]:
    has_weight = block.share > 0
    target, scores = block.exact_target[has_weight], block.precise_scores[has_weight]
    least = np.log(np.where(target > 0, target, 1))[:, None]
    return [float(loss.curvature(at, target).max(initial=0)) for at in (scores, least)]


def _duality_gap(objective: Objective, snapshot: Snapshot, required_gap: float) -> float:
    if not _is_exact(objective, snapshot):
        return np.inf
    if objective.moments is None:
        return max(_above_least(objective, snapshot), 0.0)
    penalty = objective.penalty[:-1, None]
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        dual = _dual(objective, snapshot.gradient[-1])
        mean, target_moments = objective.moments
        if objective.l1 is not None:
            data_gradient: NumPyArray = snapshot.gradient[:-1] - penalty * snapshot.theta[:-1]
            dual_gradient: NumPyArray = dual.kept * data_gradient
            dual_gradient += np.multiply.outer(mean, dual.constant)
            if dual.target_factor:
                dual_gradient += dual.target_factor * target_moments
            return _gap_with_l1(objective, snapshot, dual, dual_gradient, required_gap)
        # Compute kept (gradient - penalty theta) + penalty theta + the constant's part, in place,
        # because these arrays are large.
        rest = dual.kept * snapshot.gradient[:-1]
        if dual.kept != 1:
            mixed = penalty * snapshot.theta[:-1]
            mixed *= 1 - dual.kept
            rest += mixed
        if dual.target_factor:
            rest += dual.target_factor * target_moments
        if np.any(dual.constant):
            rest += np.multiply.outer(mean, dual.constant)
        bound = _above_least(objective, snapshot)
        gap = weighted_square(rest, objective.penalty[:-1])
        if gap > required_gap:
            gap = bound
        elif not gap >= bound:  # nor if the bound is NaN
            gap += _terms(objective, snapshot, dual)
    return max(min(gap, bound) if np.isfinite(gap) else bound, 0.0)


@np.errstate(over="ignore", invalid="ignore")
def gap_of_residuals(objective: Objective, snapshot: Snapshot, residual: NumPyArray) -> float:
    """Return the bound of `duality_gap` for given residuals, in half a pass.

    Parameters
    ----------
    residual : numpy.ndarray, (n, K)
        Residuals in the domain of the conjugate; with an intercept their sum is almost 0.
    """
    if not _is_exact(objective, snapshot):
        return np.inf
    loss, theta = objective.loss, snapshot.theta
    dual = _dual(objective, np.asarray(objective.share @ residual))

    def fenchel(block: Block) -> tuple[float, NumPyArray, NumPyArray]:
        target, share = block.exact_target, block.share
        mixed = loss.inside(_mixed(loss, dual, residual[block.part], target), target)
        value = float(share @ loss.fenchel(block.scores, mixed, target))
        weighted = mixed * share[:, None]
        return value, column_products(block.features, weighted), weighted.sum(axis=0)

    model = objective.model(theta)
    value, products, total = objective.table.sum(fenchel, at=model, kept=snapshot.kept)
    objective.reads.rows += objective.n / 2
    gradient = np.vstack([products, total])
    objective.to_theta(gradient)
    rest = gradient[:-1] + objective.penalty[:-1, None] * theta[:-1]
    gap = max(float(value) + weighted_square(rest, objective.penalty[:-1]), 0.0)
    return with_score_error(objective, snapshot, gap)


def known_bound(objective: Objective, snapshot: Snapshot) -> float:
    """Return the trivial bound: the objective is at least the mean of the losses' infima."""
    if not _is_exact(objective, snapshot):
        return np.inf
    return with_score_error(objective, snapshot, max(_above_least(objective, snapshot), 0.0))


def _above_least(objective: Objective, snapshot: Snapshot) -> float:
    """Return the objective minus the mean of the losses' infima."""
    return snapshot.objective - least_loss(objective.table, objective.loss)


def weighted_square(rest: NumPyArray, penalty: NumPyArray) -> float:
    """Return the sum of rest^2 / 2 penalty, where 0 / 0 is 0."""
    used = penalty > 0
    if not used.all():
        if rest[~used].any():
            return np.inf
        if not used.any():
            return 0.0
        rest, penalty = rest[used], penalty[used]
    return float(np.einsum("jk,jk->j", rest, rest) @ (0.5 / penalty))


def _gap_with_l1(
    objective: Objective,
    snapshot: Snapshot,
    dual: Dual,
    dual_gradient: NumPyArray,
    required_gap: float,
) -> float:
    """Return the smallest bound among those for a few factors of the residuals."""
    assert objective.l1 is not None
    theta, l1, penalty = snapshot.theta[:-1], objective.l1[:-1], objective.penalty[:-1]
    size = np.abs(dual_gradient)
    value = float((l1 @ np.abs(theta) + 0.5 * penalty @ np.square(theta)).sum())
    slope = float((dual_gradient * theta).sum())
    beyond = np.nonzero(size > l1[:, None])
    size, l1, penalty = size[beyond], l1[beyond[0]], penalty[beyond[0]]

    def penalty_terms(factor: float) -> float:
        excess = np.maximum(factor * size - l1, 0)
        square = np.where(excess == 0, 0.0, np.square(excess) / (2 * penalty))
        return value + factor * slope + float(square.sum())

    feasible, bound = _feasible(size, l1), _above_least(objective, snapshot)
    if objective.table.is_out_of_core:
        # The other terms cost a pass. They are at least 0.
        rests = [penalty_terms(factor) for factor in np.linspace(feasible, 1, _FACTORS)]
        if not min(rests) <= required_gap:
            return max(bound, 0.0)
    fenchel_terms, spread = _terms_with_l1(objective, snapshot, dual, feasible)
    gap = fenchel_terms + penalty_terms(1.0)
    if feasible < 1 and np.isfinite(fenchel_terms):
        curvature, has_spread = spread, objective.loss.has_classes and spread < np.inf
        if not objective.loss.has_classes:
            gap = min(gap, spread + penalty_terms(feasible))
            curvature = 2 * spread / (1 - feasible) ** 2
        factor = best_factor(curvature, slope, size, l1, penalty)
        rest = penalty_terms(factor)
        if rest < gap:
            divergence = np.inf
            if has_spread:
                divergence = _shrunk(factor, spread, fenchel_terms, 1 - dual.kept)
            # If this bound is most of the gap, it may be far above the divergence.
            if not divergence <= rest:
                divergence = _divergence(objective, snapshot, dual, factor)
            gap = min(gap, divergence + rest)
    return max(min(gap, bound) if np.isfinite(gap) else bound, 0.0)


def _terms_with_l1(
    objective: Objective, snapshot: Snapshot, dual: Dual, feasible: float
) -> tuple[float, float]:
    """Return `_terms`, and the spread r^2 / l'' for classes or `_divergence` for other losses."""
    loss = objective.loss
    given = loss, snapshot.gradient[-1], objective.mean_target(), dual._replace(terms=0.0), feasible
    terms, spread = objective.sum(_l1_terms, *given, not isinstance(dual.terms, float), at=snapshot)
    if isinstance(dual.terms, float):
        terms = dual.terms
    if not loss.has_classes:
        return terms, max(float(spread), 0.0)
    return terms, spread if np.isfinite(spread) else np.inf


def _l1_terms(
    block: Block,
    loss: Loss,
    excess: NumPyArray,
    mean: NumPyArray,
    dual: Dual,
    feasible: float,
    has_terms: bool,
) -> tuple[float, float]:
    terms = _balanced_terms(block, loss, excess, mean) if has_terms else 0.0
    if feasible >= 1:
        return terms, 0.0
    if loss.has_classes:
        return terms, _block_spread(block, loss)
    return terms, _scaled_terms(block, loss, dual, feasible)


def _feasible(size: NumPyArray, l1: NumPyArray) -> float:
    """Return the factor that brings each size down to its penalty."""
    # One ulp less, so that rounding leaves no size above its penalty.
    return (1 - 1e-15) * float((l1 / size).min(initial=1.0))


def best_factor(
    curvature: float, slope: float, size: NumPyArray, l1: NumPyArray, penalty: NumPyArray
) -> float:
    """Return the best factor of the residuals, if their divergence is a parabola around 1.

    It is found by Newton's method from above, because the slope is convex.

    Parameters
    ----------
    curvature : float
        The curvature of the divergence.
    slope : float
        The slope of all other terms, except those of the features that exceed their penalty.
    size, l1, penalty : numpy.ndarray
        The gradients and penalties of these features.
    """
    factor, feasible = 1.0, _feasible(size, l1)
    for _ in range(constants.MOST_STEPS):
        over = factor * size > l1
        ratio = size[over] / penalty[over]
        rise = float(curvature + ratio @ size[over])
        lower = feasible
        if 0 < rise < np.inf:
            lower = max(feasible, float(curvature - slope + ratio @ l1[over]) / rise)
        if lower >= factor:
            break
        factor = lower
    return factor


def _divergence(objective: Objective, snapshot: Snapshot, dual: Dual, factor: float) -> float:
    """Return the mean of Fenchel's terms at the residuals times a factor below 1."""
    numbers = dual._replace(terms=0.0)
    found = objective.sum(_scaled_terms, objective.loss, numbers, factor, at=snapshot)
    return max(float(found), 0.0)


def _scaled_terms(block: Block, loss: Loss, dual: Dual, factor: float) -> float:
    target = block.exact_target
    residual = factor * _mixed(loss, dual, residuals(block, loss), target)
    return _mean(block, loss.fenchel(block.precise_scores, loss.inside(residual, target), target))


def _mixed(loss: Loss, dual: Dual, residual: NumPyArray, target: NumPyArray) -> NumPyArray:
    """Return residuals of some rows, mixed with a constant so that all residuals sum to 0."""
    mixed: NumPyArray = dual.kept * residual + dual.constant
    if dual.target_factor:
        mixed += dual.target_factor * loss.observed(target)
    return mixed


def _block_spread(block: Block, loss: Loss) -> float:
    """Return the sum of r^2 / l'' for the residuals r at the scores; for classes sum r^2 / p."""
    scores, square = block.precise_scores, np.square(residuals(block, loss))
    if loss.outputs == 1:
        return _mean(block, np.asarray(square / loss.curvature(scores, block.exact_target))[:, 0])
    return _mean(block, np.asarray((square / loss.probability(scores)).sum(axis=1)))


def _shrunk(factor: float, spread: float, fenchel_terms: float, mixed: float) -> float:
    r"""Return a bound of the divergence at balanced residuals times a factor f, for classes.

    The means that belong to the residuals f r are at least f times those at the scores, and the
    curvature is concave in the means. So the curvature there, and on the way there, is at least f
    l'', and the divergence is at most :math:`c = (1 - f)^2 r^2 / 2 f l''`. Balancing the residuals
    mixes some constants into the means. With k times as much of the constants, `fenchel_terms` is
    at most :math:`k^2` times as large. The required divergence is a mean of both, where the second
    has the weight f / k, so that :math:`c k / (k - 1) + f k \cdot fenchel\_terms` is a bound for
    every k above 1.
    """
    own = (1 - factor) ** 2 * spread / (2 * factor)
    if fenchel_terms == 0:
        return own
    most = min(1 + math.sqrt(own / (factor * fenchel_terms)), 1 / max(mixed, _ULP))
    return own * most / (most - 1) + factor * most * fenchel_terms if most > 1 else np.inf


def _is_exact(objective: Objective, snapshot: Snapshot) -> bool:
    """Whether no score of a row with a weight was clipped: see `Loss.is_exact`."""
    if snapshot.clipped is not None:
        return snapshot.clipped == 0
    # Only losses with a log link clip scores.
    if not objective.loss.has_logarithm:
        return True
    return bool(objective.sum(clipped, objective.loss, at=snapshot) == 0)


def _dual(objective: Objective, excess: NumPyArray) -> Dual:
    """Return how residuals with the mean `excess` are balanced."""
    if not objective.intercept:
        return Dual(1.0, np.zeros(excess.shape), 0.0, 0.0)
    return objective.loss.balanced(excess, objective.mean_target())


def _terms(objective: Objective, snapshot: Snapshot, dual: Dual) -> float:
    """Return the mean of Fenchel's terms at the balanced residuals."""
    if isinstance(dual.terms, float):
        return dual.terms
    given = objective.loss, snapshot.gradient[-1], objective.mean_target()
    return float(objective.sum(_balanced_terms, *given, at=snapshot))


def _balanced_terms(block: Block, loss: Loss, excess: NumPyArray, mean: NumPyArray) -> float:
    terms = loss.balanced(excess, mean).terms
    assert not isinstance(terms, float)
    return _mean(block, terms(block.scores, block.exact_target))


def _mean(block: Block, values: NumPyArray) -> float:
    # A row without weight may have an infinite value.
    return float(block.share @ np.where(block.share > 0, values, 0))
