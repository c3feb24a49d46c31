"""The random number generators of a run: MXNet's, which can only be seeded, NumPy's, Python's."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import mxnet as mx
import numpy as np
from gluon_svrg._typing import NumPyArray, State
from gluon_svrg.workers import Workers


def worker_seed(rank: int, seed: int | None) -> int | list[int] | None:
    """Return the seed of a worker, from the common seed; the first worker uses the seed itself."""
    return seed if rank == 0 or seed is None else [seed, rank]


def seed_mxnet(seed: int | list[int] | None, *key: int) -> None:
    """Seed MXNet on every device by a hash of `seed` and `key`."""
    # A hash, not a sum: MXNet's generators for seeds s and s + 1 overlap.
    sequence = np.random.SeedSequence(seed, spawn_key=key)
    mx.random.seed(int(sequence.generate_state(1)[0]) & 0x7FFFFFFF)


def draw_random_numbers(contexts: list[mx.Context]) -> NumPyArray:
    """Draw from both of MXNet's generators: the parallel one (Dropout) and the plain one (RNN)."""
    parallel = [mx.nd.random.uniform(shape=(4,), ctx=context) for context in contexts]
    plain = [mx.nd.random.shuffle(mx.nd.arange(64, ctx=context)) for context in contexts]
    return np.concatenate([array.asnumpy() for array in parallel + plain])


def has_drawn_since(seed: Callable[[], None], contexts: list[mx.Context]) -> bool:
    """Return whether MXNet has drawn random numbers since `seed` was called; call it again.

    MXNet's generators cannot be read, but what they give next can: the same numbers now and after
    the same seed mean that none was drawn. That holds on CPU; on other devices cuDNN draws from
    generators of its own.
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


def broadcast_rng_states(workers: Workers, label: str) -> None:
    """Set NumPy's and Python's generators of all workers to the states of the first worker's."""
    own = collect_rng_states()
    kind, keys, *rest = own["numpy"]
    version, numbers, gauss = own["python"]
    given = [[str(kind), keys.tolist(), *rest], [version, numbers.tolist(), gauss]]
    (kind, keys, *rest), python_state = workers.broadcast_object(given, label)
    numpy_state = (kind, np.array(keys, "uint32"), *rest)
    set_rng_states({"numpy": numpy_state, "python": python_state})
