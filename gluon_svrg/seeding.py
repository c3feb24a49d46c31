"""One seed for every random generator that a run draws from."""

from __future__ import annotations

import os
import random

import mxnet as mx
import numpy as np

# The last seed, and the number of processes that were forked since then.
_seed: int | None = None
_forks = 0


def seed_everything(seed: int) -> None:
    """Seed MXNet on every device, NumPy's global generator, Python's, and those of loader workers.

    `gluon.data.DataLoader` shuffles with NumPy's, also if it has worker processes. In a worker
    process that is forked from now on (a DataLoader forks its own when it is made), all generators
    are seeded by a function of `seed` and the worker's number: otherwise each worker would have a
    copy of this process's generators, and all would draw the same augmentation. Which batch goes to
    which of several workers depends on their speed, so what a data set draws in them repeats from
    run to run only with a single worker.

    Parameters
    ----------
    seed : int
        From 0 to 2^31 - 1.

    Raises
    ------
    ValueError
        If `seed` is not an integer of this range.
    """
    global _seed, _forks
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**31:
        raise ValueError(f"seed must be an integer from 0 to 2**31 - 1, got {seed!r}")
    _seed, _forks = seed, 0
    _seed_generators(seed)


def _seed_generators(seed: int) -> None:
    mx.random.seed(seed)
    np.random.seed(seed)
    random.seed(seed)


def _count_fork() -> None:
    global _forks
    _forks += 1


def _seed_worker() -> None:
    if _seed is not None:
        sequence = np.random.SeedSequence(_seed, spawn_key=(_forks,))
        _seed_generators(int(sequence.generate_state(1)[0]) & 0x7FFFFFFF)


if hasattr(os, "register_at_fork"):  # not on Windows, which has no fork
    os.register_at_fork(before=_count_fork, after_in_child=_seed_worker)
