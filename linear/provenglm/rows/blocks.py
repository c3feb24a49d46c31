"""Split rows into blocks, by their number and width alone."""

from __future__ import annotations

import numpy as np

from provenglm import constants
from provenglm.rows.base import Rows
from provenglm.types import NumPyArray


def slices_of(n: int, p: int, itemsize: int) -> list[slice]:
    """Return the blocks of one pass over n rows of p features, in order."""
    size = max(constants.LEAST_BLOCK_ROWS, constants.BLOCK_BYTES // max(1, p * itemsize))
    return [slice(start, min(start + size, n)) for start in range(0, n, size)]


def parts_of(n: int, outputs: int = 1) -> list[slice]:
    """Return the parts in which an array of n rows with `outputs` numbers each is processed."""
    size = max(1, constants.PART_ROWS // outputs)
    return [slice(start, min(start + size, n)) for start in range(0, n, size)]


def moments_of(
    rows: Rows, share: NumPyArray, center: NumPyArray, wanted: NumPyArray
) -> tuple[NumPyArray, NumPyArray]:
    """Return the result of `Rows.moments` for rows whose blocks are arrays."""
    mean, square = np.zeros(len(wanted)), np.zeros(len(wanted))
    for part in rows.slices():
        change = np.asarray(rows.block(part))[:, wanted].astype(np.float64) - center[wanted]
        mean += share[part] @ change
        square += share[part] @ np.square(change)
    return mean, square
