r"""Step, batch size and momentum from measured smoothness.

With :math:`L` the smoothness of the objective and :math:`L_{max}` the largest of one sample, both
in the metric, a batch of b of n samples without replacement has the expected smoothness

.. math:: L(b) = \frac{n (b - 1)}{b (n - 1)} L + \frac{n - b}{b (n - 1)} L_{max}

(Gazagnadou, Gower & Salmon 2019, theorem 2; Sebbouh et al. 2019), and the step is :math:`1 / L(b)`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

LEAST_BATCH = 512
"""Below it a step costs more in calls than in arithmetic."""

_MOST_BATCH = 8192

_NOISE = 8.0
"""The batch is so many times L_max / L, where a batch's noise would double its smoothness. At 1 the
noise costs more epochs than the smaller batch saves."""

_MARGIN = 1.05
"""On L, which a few steps of the Lanczos method take from below."""


@dataclass(frozen=True)
class Constants:
    """What an epoch is run with.

    Attributes
    ----------
    smoothness, of_a_row : float
        L and L_max, in the metric.
    batch : int
        Rows of a batch.
    steps : int
        Batches of an epoch.
    step_size : float
        1 / L(b).
    momentum : float
        The largest of an epoch.
    """

    smoothness: float
    of_a_row: float
    batch: int
    steps: int
    step_size: float
    momentum: float


def expected_smoothness(n: int, batch: int, smoothness: float, of_a_row: float) -> float:
    """Return L(b)."""
    if n == 1:
        return smoothness
    of_all = n * (batch - 1) / (batch * (n - 1))
    of_one = (n - batch) / (batch * (n - 1))
    return of_all * smoothness + of_one * of_a_row


def constants(
    n: int, smoothness: float, of_a_row: float, slower: float = 1.0, least_batch: int = LEAST_BATCH
) -> Constants:
    r"""Return the constants of an epoch over `n` rows.

    Momentum is Nesterov's, restarted at each snapshot, at most
    :math:`(1 - \sqrt q) / (1 + \sqrt q)` with :math:`\sqrt q = 1 / 2m`, m the steps of an epoch:
    strong convexity is not known, and what is forgotten within an epoch cannot hurt the next.

    Parameters
    ----------
    slower : float
        By which the step is divided, after the objective rose.
    least_batch : int
        Where a step costs more than the gradient of a few rows.
    """
    smoothness *= _MARGIN
    of_a_row = max(of_a_row, smoothness)
    wanted = 2 ** round(math.log2(_NOISE * of_a_row / smoothness))
    batch = min(n, max(least_batch, min(wanted, _MOST_BATCH, max(least_batch, n // 8))))
    steps = max(1, n // batch)
    root = 1 / (2 * steps)
    return Constants(
        smoothness=smoothness,
        of_a_row=of_a_row,
        batch=batch,
        steps=steps,
        step_size=1 / (slower * expected_smoothness(n, batch, smoothness, of_a_row)),
        momentum=(1 - root) / (1 + root),
    )
