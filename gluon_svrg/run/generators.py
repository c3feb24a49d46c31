"""The random number generators of a run: MXNet's, which can only be seeded, and the host's."""

from __future__ import annotations

import random
from typing import Any

import mxnet as mx
import numpy as np
from gluon_svrg._compat import NumPyArray
from gluon_svrg.events import State


def seed_mxnet(seed: int | None, *key: int) -> None:
    """Seed MXNet, on every device, by a function of `seed` and `key`."""
    # A hash, not a sum: MXNet's generators for seeds s and s + 1 overlap.
    sequence = np.random.SeedSequence(seed, spawn_key=key)
    mx.random.seed(int(sequence.generate_state(1)[0]) & 0x7FFFFFFF)


def next_random_numbers(contexts: list[mx.Context]) -> NumPyArray:
    """Draw from both of MXNet's generators: the parallel one (Dropout) and the plain one (RNN)."""
    parallel = [mx.nd.random.uniform(shape=(4,), ctx=context) for context in contexts]
    plain = [mx.nd.random.shuffle(mx.nd.arange(64, ctx=context)) for context in contexts]
    return np.concatenate([array.asnumpy() for array in parallel + plain])


def host_states() -> dict[str, Any]:
    """Return the states of NumPy's and Python's global generators."""
    return {"numpy": np.random.get_state(), "python": random.getstate()}


def set_host_states(states: State) -> None:
    """Put back what :func:`host_states` returned."""
    np.random.set_state(states["numpy"])
    random.setstate(states["python"])
