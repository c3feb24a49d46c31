"""Split rows into blocks, by their number and width alone."""

from __future__ import annotations

from provenglm import constants


def slices_of(n: int, p: int, itemsize: int) -> list[slice]:
    """Return the blocks of one pass over n rows of p features, in order."""
    size = max(constants.LEAST_BLOCK_ROWS, constants.BLOCK_BYTES // max(1, p * itemsize))
    return [slice(start, min(start + size, n)) for start in range(0, n, size)]


def parts_of(n: int, outputs: int = 1) -> list[slice]:
    """Return the parts in which an array of n rows with `outputs` numbers each is processed."""
    size = max(1, constants.PART_ROWS // outputs)
    return [slice(start, min(start + size, n)) for start in range(0, n, size)]
