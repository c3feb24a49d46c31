r"""What is minimised.

.. math::
    F(W, b) = \frac{\sum_i s_i\, l(x_i W + b + o_i, y_i)}{\sum_i s_i} + \frac{\lambda}{2} \|W\|^2
        + \mu \|W\|_1
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from provenglm.model.losses import Loss
from provenglm.rows.disk import on_disk
from provenglm.rows.kinds import Data, rows_of
from provenglm.rows.table import Table
from provenglm.types import NumPyArray
from provenglm.workers import Workers


@dataclass(frozen=True)
class Problem:
    """Data, loss and strength of the penalties; the intercept is not penalised.

    Parameters
    ----------
    features : numpy.ndarray, scipy.sparse.csr_array or Chunks, (n, p)
        Of any real dtype and order; sparse ones as `csr_checks.canonical` returns them.
    target : numpy.ndarray, (n,)
        0 and 1 for the logistic loss, the classes' indices for softmax, else numbers.
    loss : Loss
    l2 : float
        The strength of the penalty on squares, 0 or greater.
    sample_weight : numpy.ndarray, (n,), optional
        Not negative, not all 0.
    fit_intercept : bool
    l1 : float
        The strength of the penalty on sizes, 0 or greater.
    offset : numpy.ndarray, (n,) or (n, K), optional
        What is added to the scores, float64; of K outputs a column each.
    """

    features: Data
    target: NumPyArray
    loss: Loss
    l2: float
    sample_weight: NumPyArray | None = None
    fit_intercept: bool = True
    l1: float = 0.0
    offset: NumPyArray | None = None

    def shares(self) -> NumPyArray:
        """Return each sample's share of the weights, (n,) in float64; their sum is 1."""
        n = len(self.target)
        if self.sample_weight is None:
            # Of rows on disk it takes the memory of one number.
            share = np.broadcast_to(np.float64(1 / n), n)
            return share if on_disk(self.features) else share.copy()
        weight = np.asarray(self.sample_weight, np.float64)
        return np.asarray(weight / weight.sum())

    def table(self, workers: Workers, *, precise: bool = False) -> Table:
        """Return the rows with what belongs to each of them."""
        dtype = np.dtype(np.float64) if precise else None
        rows = rows_of(self.features, dtype)
        return Table(rows, self.target, self.shares(), workers, self.offset)
