"""Which rows the Hessian is estimated from, and with which weight."""

from __future__ import annotations

import numpy as np
from gluon_svrg._compat import NumPyArray
from gluon_svrg.linear.losses import Logistic, Poisson, Softmax
from gluon_svrg.linear.objective import Objective
from gluon_svrg.linear.sample import Sample

_RARE = 0.1
"""A group of targets with a smaller share is drawn more often than it occurs."""


def draw(objective: Objective, size: int, rng: np.random.Generator) -> Sample:
    """Return a sample of about `size` rows in random order, which estimates the whole.

    A curvature :math:`p (1 - p)` is found where a rare class is, or looks likely: half of the
    draws go to the groups of the targets alike, half to all rows. The shares make up for it
    (importance sampling).
    """
    n, share = objective.n, objective.share
    groups = _groups(objective)
    weighted = bool(share.min() < share.max())
    if size >= n:
        rows = rng.permutation(n)
        of_sample = share[rows]
    elif groups is None and not weighted:
        rows = rng.choice(n, size, replace=False)
        of_sample = np.full(size, 1 / size)
    else:
        probability = share
        if groups is not None:
            of_group = np.bincount(groups, weights=share)
            present = of_group > 0
            factor = np.divide(1, of_group, out=np.zeros_like(of_group), where=present)
            probability = share * (0.5 + 0.5 * factor[groups] / present.sum())
        rows = rng.choice(n, size, p=probability / probability.sum())
        of_sample = share[rows] / probability[rows]
    return Sample(
        objective.sample(rows),
        objective.target[rows],
        of_sample / of_sample.sum(),
        objective.loss,
        objective.penalty,
        objective.workers,
    )


def _groups(objective: Objective) -> NumPyArray | None:
    """Return the group of each target, if one of the groups is rare."""
    loss, target = objective.loss, objective.target
    if isinstance(loss, Poisson):
        groups = (target > 0).astype(np.intp)
    elif isinstance(loss, Logistic | Softmax):
        groups = target.astype(np.intp, copy=False)
    else:
        return None
    of_group = np.bincount(groups, weights=objective.share)
    return groups if of_group[of_group > 0].min() < _RARE else None
