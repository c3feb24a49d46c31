"""Which way is taken where the penalty has corners."""

from __future__ import annotations

from scipy.sparse import issparse

from provenglm.l1 import working_set
from provenglm.l1.proximal import MetricSteps
from provenglm.problem import Problem
from provenglm.way import Plan

_MEASURED_ROWS = 2048
"""Of which the coordinates are taken."""

MOST_COLUMNS = 2500
"""Of sparse features that are standardised."""


def plan(problem: Problem, size: int, is_sampled: bool) -> Plan:
    """Return the way to go.

    Parameters
    ----------
    problem : Problem
    size : int
        Rows of a Hessian's sample.
    is_sampled : bool
        Whether that costs less than Hessians of all rows, or there is no room for these.
    """
    n, p = problem.features.shape
    width = (p + 1) * problem.loss.outputs
    if is_sampled:
        why = f"the Hessian over {width:,} weights is taken of {size:,} of {n:,} rows"
        return Plan("svrg, hessian, proximal", why, size, MetricSteps.states)
    why = f"few of {p:,} features matter, and the gradient of all {n:,} rows tells which"
    as_they_are = issparse(problem.features) and p > MOST_COLUMNS
    size = 0 if as_they_are else min(size, _MEASURED_ROWS)
    return Plan("newton, proximal, working set", why, size, working_set.states, is_cheap=True)
