"""Epochs over rows that are on disk: buffers of them, each from all over the data."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import closing
from dataclasses import replace

import numpy as np
from numpy.typing import DTypeLike

from provenglm.data.budget import rows_of_a_buffer
from provenglm.data.disk import DiskRows
from provenglm.data.rows import DenseRows
from provenglm.objective import Objective, Snapshot

Shuffle = Callable[[Objective, np.random.Generator, DTypeLike], Objective]
"""Makes a shuffled copy of rows in memory, of a dtype; its `order` says which they are."""


def parts_of_an_epoch(
    objective: Objective, snapshot: Snapshot, rng: np.random.Generator, shuffle: Shuffle
) -> Generator[tuple[Objective, Snapshot], None, None]:
    """Yield the rows of an epoch in memory, with the scores that the snapshot has of them."""
    if not isinstance(objective.rows, DiskRows):
        yield objective, snapshot
        return
    with closing(buffers(objective, rng, shuffle)) as parts:
        for part in parts:
            yield part, replace(snapshot, scores=snapshot.scores[part.order])


def buffers(
    objective: Objective, rng: np.random.Generator, shuffle: Shuffle
) -> Generator[Objective, None, None]:
    """Yield all rows that are on disk, shuffled, as many at a time as there is room for.

    Each of them stands for all rows, and so do their shares. Its `order` has their places among
    all rows.
    """
    rows = objective.rows
    assert isinstance(rows, DiskRows)
    assert objective.room is not None
    n, p = rows.shape
    count = rows_of_a_buffer(objective.room, p, rows.stored.itemsize)
    with closing(rows.buffers(rng, count)) as loaded:
        for places, block in loaded:
            part = replace(
                objective,
                rows=DenseRows(block, rows.dtype),
                target=objective.target[places],
                share=objective.share[places] * (n / len(places)),
                is_long=False,
            )
            part = shuffle(part, rng, rows.dtype)
            yield replace(part, order=places[part.order])
