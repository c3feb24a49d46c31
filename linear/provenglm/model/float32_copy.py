"""Copy dense rows in memory to float32."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from provenglm import constants
from provenglm.model.objective import Objective, Scaling
from provenglm.rows.centred import write_centred
from provenglm.rows.dense import DenseRows

_FAR_OUT = 1e30


def in_float32(objective: Objective) -> Objective:
    """Return the objective on a centred float32 copy of its dense rows, if it fits into memory.

    A pass over the copy takes half the time of one over float64, and two thirds of one over bytes.
    Its sums are accurate to 1e-7 of the gradient.
    """
    rows, (n, p) = objective.rows, objective.rows.shape
    if rows.is_sparse or rows.is_on_disk or 4 * n * p > constants.COPY_BYTES:
        return objective
    copy = np.empty((n, p), np.float32)
    center, inverse = objective.scaling.center, objective.scaling.inverse
    # A power of two scales without rounding: float32 cannot represent all units.
    unit = np.exp2(np.floor(np.log2(np.where(inverse > 0, inverse, 1))))
    size = max(constants.LEAST_BLOCK_ROWS, constants.BLOCK_BYTES // (8 * p))

    def fill(part: slice) -> None:
        with np.errstate(over="ignore"):
            write_centred(objective.rows.block(part), Scaling(center, unit), copy[part])
        # These exceed the range of float32: they are so extreme that any such number will do.
        np.clip(copy[part], -_FAR_OUT, _FAR_OUT, out=copy[part])

    parts = [slice(start, min(start + size, n)) for start in range(0, n, size)]
    for _ in objective.workers.map(fill, parts):
        pass
    scaling = Scaling(np.zeros(p), inverse / unit)
    return replace(objective.on(rows=DenseRows(copy)), scaling=scaling, centered=False)
