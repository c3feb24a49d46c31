r"""The problem that a fit solves: data, loss and penalties.

The objective is

.. math::
    F(W, b) = \frac{\sum_i s_i\, l(x_i W + b + o_i, y_i)}{\sum_i s_i} + \frac{\lambda}{2} \|W\|^2
        + \mu \|W\|_1
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from provenglm.model.losses import Loss
from provenglm.rows.disk import on_disk
from provenglm.rows.far_parts import Data, FarFeatures
from provenglm.rows.kinds import rows_of
from provenglm.rows.remote import AnyTable
from provenglm.rows.table import Table
from provenglm.types import NumPyArray
from provenglm.workers import Workers


@dataclass(frozen=True)
class Problem:
    """Data, loss and strength of the penalties; the intercept is not penalised.

    Parameters
    ----------
    features : numpy.ndarray, scipy.sparse.csr_array, Chunks or FarFeatures, (n, p)
        The features, of any real dtype and order. Sparse features are a result of
        `csr_checks.canonical`. Far ones
        have targets, weights and offsets of their own: those of the problem are empty.
    target : numpy.ndarray, (n,)
        The targets: 0 and 1 for the logistic loss, indices of classes for softmax, otherwise
        numbers.
    loss : Loss
    l2 : float
        The strength of the penalty on squares, 0 or greater.
    sample_weight : numpy.ndarray, (n,), optional
        The weights, which are not negative and not all 0.
    fit_intercept : bool
    l1 : float
        The strength of the penalty on sizes, 0 or greater.
    offset : numpy.ndarray, (n, K), optional
        The offsets of the scores, in float64, with one column per score.
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
        """Return the share of each sample in the sum of all weights, (n,), in float64."""
        n = len(self.target)
        if self.sample_weight is None:
            # For rows on disk the broadcast array takes the memory of one number.
            share = np.broadcast_to(np.float64(1 / n), n)
            return share if on_disk(self.features) else share.copy()
        weight = np.asarray(self.sample_weight, np.float64)
        return np.asarray(weight / weight.sum())

    def table(self, workers: Workers, *, precise: bool = False) -> AnyTable:
        """Return the table of rows, targets, shares and offsets."""
        if isinstance(self.features, FarFeatures):
            return self.features.table(workers, precise)
        dtype = np.dtype(np.float64) if precise else None
        rows = rows_of(self.features, dtype)
        return Table(rows, self.target, self.shares(), workers, self.offset)
