"""Divide the memory limit of a fit on disk among samples, copies and blocks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from provenglm.model.problem import Problem
from provenglm.rows.chunks import DEFAULT_MEMORY, LEAST_MEMORY, Chunks
from provenglm.rows.disk import on_disk
from provenglm.rows.far_parts import FarFeatures

_WEIGHT_BYTES = 16

_SAMPLE_DIVISOR = 3
"""A sample's rows get one part in this many; the arrays computed from them get as much again."""


def memory_budget(problem: Problem) -> int | None:
    """Return the bytes that samples and buffers of rows may take, or None if there is no limit.

    The arrays with numbers for each row are subtracted from the limit.

    Raises
    ------
    ValueError
        If too little is left.
    """
    features = problem.features
    if isinstance(features, FarFeatures):
        return DEFAULT_MEMORY
    if not on_disk(features):
        return None
    n, row_bytes = features.shape[0], _row_bytes(problem)
    limit = features.memory_limit if isinstance(features, Chunks) else None
    if limit is None:
        return max(DEFAULT_MEMORY, 2 * n * row_bytes) - n * row_bytes
    left = limit - n * row_bytes
    if left < LEAST_MEMORY // 2:
        needed = n * row_bytes + LEAST_MEMORY
        raise ValueError(
            f"memory_limit is {limit / 1e6:,.0f} MB, and the labels and weights of {n:,} rows need "
            f"{n * row_bytes / 1e6:,.0f}: give at least '{-(-needed // 10**6)} MB'"
        )
    return left


def _row_bytes(problem: Problem) -> int:
    """Return the bytes that a fit needs per row."""
    row_bytes = problem.target.itemsize
    row_bytes += 0 if problem.sample_weight is None else _WEIGHT_BYTES
    row_bytes += 0 if problem.offset is None else 8 * problem.loss.outputs
    return row_bytes + problem.loss.bytes_of_a_row


def within(problem: Problem, held: int) -> Problem | None:
    """Return the problem with a memory limit lower by `held` bytes, or None if no fit has room."""
    features = problem.features
    if not isinstance(features, Chunks) or features.memory_limit is None:
        return problem
    left = features.memory_limit - held
    if left - features.shape[0] * _row_bytes(problem) < LEAST_MEMORY // 2:
        return None
    return replace(problem, features=features.limited_to(left))


def beside_folds(problem: Problem, count: int, held: int) -> Problem:
    """Return the problem with the memory that is left beside `count` folds that are fitted alone.

    Raises
    ------
    ValueError
        If nothing is left.
    """
    features = problem.features
    n = features.shape[0]
    # The weights of a fold are in memory together with those of the rows.
    held += 0 if problem.sample_weight is None else _WEIGHT_BYTES * n
    weighted = replace(problem, sample_weight=np.broadcast_to(np.float64(1), n))
    left = within(problem, held)
    if left is None or within(weighted, held) is None:
        needed = held + n * _row_bytes(weighted) + LEAST_MEMORY
        assert isinstance(features, Chunks)
        limit = features.memory_limit or 0
        raise ValueError(
            f"memory_limit is {limit / 1e6:,.0f} MB, and {count} folds of {n:,} rows need "
            f"{needed / 1e6:,.0f}: give at least '{-(-needed // 10**6)} MB', or fewer folds"
        )
    return left


def joint_fold_bytes(problem: Problem, count: int) -> int:
    """Return the bytes of the shares of all folds."""
    return 8 * count * problem.features.shape[0]


def rows_of_a_sample(memory_budget: int | None, p: int) -> float:
    """Return the largest number of rows in float64 that a sample may have."""
    return (
        float("inf") if memory_budget is None else memory_budget // (_SAMPLE_DIVISOR * 8 * (p + 1))
    )
