"""Seeds and states of the random generators of MXNet, NumPy and Python."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import mxnet as mx
import numpy as np
from gluon_svrg._typing import NumPyArray, State
from gluon_svrg.workers import Workers

# Of seed_everything: the last seed, and the number of processes that were forked since then.
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


def worker_seed(rank: int, seed: int | None) -> int | list[int] | None:
    """Return the seed of a worker, from the common seed; the first worker uses the seed itself."""
    return seed if rank == 0 or seed is None else [seed, rank]


def seed_mxnet(seed: int | list[int] | None, *key: int) -> None:
    """Seed MXNet on every device by a hash of `seed` and `key`."""
    mx.random.seed(_hashed(seed, *key))


def _hashed(seed: int | list[int] | None, *key: int) -> int:
    """Return a seed of 31 bits. Not a sum: MXNet's generators for seeds s and s + 1 overlap."""
    sequence = np.random.SeedSequence(seed, spawn_key=key)
    return int(sequence.generate_state(1)[0]) & 0x7FFFFFFF


def draw_random_numbers(contexts: list[mx.Context]) -> NumPyArray:
    """Draw from both of MXNet's generators: the parallel one (Dropout) and the plain one (RNN)."""
    parallel = [mx.nd.random.uniform(shape=(4,), ctx=context) for context in contexts]
    plain = [mx.nd.random.shuffle(mx.nd.arange(64, ctx=context)) for context in contexts]
    return np.concatenate([array.asnumpy() for array in parallel + plain])


def has_drawn_since(seed: Callable[[], None], contexts: list[mx.Context]) -> bool:
    """Return whether MXNet has drawn random numbers since `seed` was called.

    MXNet's generators cannot be read, but what they give next can: the same numbers now and after
    the same seed mean that none was drawn. That holds on CPU; on other devices cuDNN draws from
    generators of its own. Afterwards MXNet is as `seed` leaves it.
    """
    now = draw_random_numbers(contexts)
    seed()
    has_drawn = not np.array_equal(now, draw_random_numbers(contexts))
    seed()
    return has_drawn


def collect_rng_states() -> dict[str, Any]:
    """Return the states of NumPy's and Python's global generators, with arrays of numbers."""
    version, numbers, gauss = random.getstate()
    return {
        "numpy": np.random.get_state(),
        "python": (version, np.array(numbers, "uint32"), gauss),
    }


def set_rng_states(states: State) -> None:
    """Put back what :func:`collect_rng_states` returned."""
    np.random.set_state(states["numpy"])
    version, numbers, gauss = states["python"]
    random.setstate((version, tuple(numbers.tolist()), gauss))


@contextmanager
def restoring_rng_on(exception: type[BaseException]) -> Iterator[None]:
    """If the block raises `exception`, put NumPy's and Python's generators back, and raise it.

    A pass that was interrupted and is made again then draws the same random numbers.
    """
    states = collect_rng_states()
    try:
        yield
    except exception:
        set_rng_states(states)
        raise


def broadcast_rng_states(workers: Workers, label: str) -> None:
    """Set NumPy's and Python's generators of all workers to the states of the first worker's."""
    own = collect_rng_states()
    kind, keys, *rest = own["numpy"]
    version, numbers, gauss = own["python"]
    given = [[str(kind), keys.tolist(), *rest], [version, numbers.tolist(), gauss]]
    (kind, keys, *rest), (version, numbers, gauss) = workers.broadcast_object(given, label)
    numpy_state = (kind, np.array(keys, "uint32"), *rest)
    python_state = (version, np.array(numbers, "uint32"), gauss)
    set_rng_states({"numpy": numpy_state, "python": python_state})


def _count_fork() -> None:
    global _forks
    _forks += 1


def _seed_worker() -> None:
    if _seed is not None:
        _seed_generators(_hashed(_seed, _forks))


if hasattr(os, "register_at_fork"):  # not on Windows, which has no fork
    os.register_at_fork(before=_count_fork, after_in_child=_seed_worker)
