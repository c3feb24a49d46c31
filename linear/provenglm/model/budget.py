"""How much memory a fit on data that are read in blocks may take, and what for."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from provenglm.model.problem import Problem
from provenglm.rows.chunks import DEFAULT_MEMORY, LEAST_MEMORY, Chunks
from provenglm.rows.disk import on_disk

_OF_WEIGHTS = 16

_OF_A_SAMPLE = 3
"""The part of the room for a sample's rows: as much again is for what is made of them."""


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
    n, of_row = features.shape[0], _of_row(problem)
    limit = features.memory_limit if isinstance(features, Chunks) else None
    if limit is None:
        return max(DEFAULT_MEMORY, 2 * n * of_row) - n * of_row
    left = limit - n * of_row
    if left < LEAST_MEMORY // 2:
        needed = n * of_row + LEAST_MEMORY
        raise ValueError(
            f"memory_limit is {limit / 1e6:,.0f} MB, and the labels and weights of {n:,} rows need "
            f"{n * of_row / 1e6:,.0f}: give at least '{-(-needed // 10**6)} MB'"
        )
    return left


def _of_row(problem: Problem) -> int:
    """Return the bytes of a fit for each row."""
    of_row = problem.target.itemsize
    of_row += 0 if problem.sample_weight is None else _OF_WEIGHTS
    of_row += 0 if problem.offset is None else 8 * problem.loss.outputs
    return of_row + problem.loss.bytes_of_a_row


def within(problem: Problem, held: int) -> Problem | None:
    """Return the problem with a memory limit lower by `held` bytes, or None if no fit has room."""
    features = problem.features
    if not isinstance(features, Chunks) or features.memory_limit is None:
        return problem
    left = features.memory_limit - held
    if left - features.shape[0] * _of_row(problem) < LEAST_MEMORY // 2:
        return None
    return replace(problem, features=features.limited_to(left))


def beside_folds(problem: Problem, count: int, held: int) -> Problem:
    """Return the problem with the room beside what `count` folds hold: each is fitted by itself.

    Raises
    ------
    ValueError
        If nothing is left.
    """
    features = problem.features
    n = features.shape[0]
    # A fold's weights are held beside those of the rows.
    held += 0 if problem.sample_weight is None else _OF_WEIGHTS * n
    weighted = replace(problem, sample_weight=np.broadcast_to(np.float64(1), n))
    left = within(problem, held)
    if left is None or within(weighted, held) is None:
        needed = held + n * _of_row(weighted) + LEAST_MEMORY
        assert isinstance(features, Chunks)
        limit = features.memory_limit or 0
        raise ValueError(
            f"memory_limit is {limit / 1e6:,.0f} MB, and {count} folds of {n:,} rows need "
            f"{needed / 1e6:,.0f}: give at least '{-(-needed // 10**6)} MB', or fewer folds"
        )
    return left


def of_folds_together(problem: Problem, count: int) -> int:
    """Return the bytes for the shares of all folds."""
    return 8 * count * problem.features.shape[0]


def rows_of_a_sample(room: int | None, p: int) -> float:
    """Return how many rows of float64 a sample may have."""
    return float("inf") if room is None else room // (_OF_A_SAMPLE * 8 * (p + 1))
