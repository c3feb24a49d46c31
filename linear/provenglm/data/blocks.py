"""How rows are cut into blocks: by their number and width alone."""

from __future__ import annotations

BLOCK_BYTES = 3 << 19
"""Of a block, converted: read for the scores, it is still in a core's cache for the gradient."""

PART_ROWS = 1 << 16
"""Of what has a number for each row, where such arrays are long."""


def slices_of(n: int, p: int, itemsize: int) -> list[slice]:
    """Return the blocks of one pass over n rows of p features, in order."""
    size = max(64, BLOCK_BYTES // max(1, p * itemsize))
    return [slice(start, min(start + size, n)) for start in range(0, n, size)]


def parts_of(n: int) -> list[slice]:
    """Return the parts in which an array of n numbers is gone through."""
    return [slice(start, min(start + PART_ROWS, n)) for start in range(0, n, PART_ROWS)]
