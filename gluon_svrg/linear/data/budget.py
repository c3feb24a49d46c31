"""How much memory a fit on data that are read in blocks may take, and what for."""

from __future__ import annotations

from gluon_svrg.linear.data.chunks import DEFAULT_MEMORY, LEAST_MEMORY, Chunks
from gluon_svrg.linear.data.disk import on_disk
from gluon_svrg.linear.losses import Huber
from gluon_svrg.linear.problem import Problem

_SCORES = 3
"""Arrays of scores: those of the best snapshot, of this one and of the next."""

_OF_HUBER = 100
"""Bytes for each row, of the search for the scale."""

_OF_WEIGHTS = 16

_OF_A_SAMPLE = 3
"""The part of the room for a sample's rows: as much again is for what is made of them."""

_OF_A_BUFFER = 6
"""The part for a buffer of rows: another is being read, and this one is shuffled."""


def room(problem: Problem) -> int | None:
    """Return the bytes that samples and buffers of rows may take, or None where it is no matter.

    What has a number for each row is taken off first.

    Raises
    ------
    ValueError
        If nothing is left.
    """
    features = problem.features
    if not on_disk(features):
        return None
    n = features.shape[0]
    # Of float64, where float32 has too few digits.
    of_row = problem.target.itemsize + 8 * _SCORES * problem.loss.outputs
    of_row += 0 if problem.sample_weight is None else _OF_WEIGHTS
    of_row += _OF_HUBER if isinstance(problem.loss, Huber) else 0
    limit = features.memory_limit if isinstance(features, Chunks) else None
    if limit is None:
        return max(DEFAULT_MEMORY, 2 * n * of_row) - n * of_row
    left = limit - n * of_row
    if left < LEAST_MEMORY // 2:
        needed = n * of_row + LEAST_MEMORY
        raise ValueError(
            f"memory_limit is {limit / 1e6:,.0f} MB, and the labels and scores of {n:,} rows need "
            f"{n * of_row / 1e6:,.0f}: give at least '{-(-needed // 10**6)} MB'"
        )
    return left


def rows_of_a_sample(room: int | None, p: int) -> float:
    """Return how many rows of float64 a sample may have."""
    return float("inf") if room is None else room // (_OF_A_SAMPLE * 8 * (p + 1))


def rows_of_a_buffer(room: int, p: int, itemsize: int) -> int:
    """Return how many rows as they are stored a buffer may have."""
    return max(1, room // (_OF_A_BUFFER * max(1, p) * itemsize))
