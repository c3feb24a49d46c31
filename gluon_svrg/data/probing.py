"""Finding out by trial whether something gives the same each time."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
from mxnet.ndarray import NDArray


def repeats_exactly(take: Callable[[], Any], probes: int) -> bool:
    """Return whether ``take()`` gives the same bits each time, and draws no random number.

    NumPy's global generator and Python's are watched and left as they were; MXNet's cannot be
    read, so a draw from it shows only where it changes what is given.

    Parameters
    ----------
    take : callable
        What is tried out; it returns arrays, numbers or strings, or lists, tuples or dicts of them.
        Of anything else only the type is compared.
    probes : int
        How often, at most.
    """
    numpy_state, python_state = np.random.get_state(legacy=False), random.getstate()
    before = _states_of_generators()
    try:
        first = _bits_of(take())
        is_same = all(_bits_of(take()) == first for _ in range(probes - 1))
        return is_same and _states_of_generators() == before
    finally:
        np.random.set_state(numpy_state)
        random.setstate(python_state)


def _states_of_generators() -> tuple:
    state: dict[str, Any] = np.random.get_state(legacy=False)
    inner = [np.asarray(part).tolist() for part in state["state"].values()]
    return inner, state["has_gauss"], random.getstate()


def _bits_of(value: Any) -> Any:
    if isinstance(value, NDArray):
        value = value.asnumpy()
    if isinstance(value, (np.ndarray, np.generic)):
        return value.shape, value.dtype, value.tobytes()
    if isinstance(value, dict):
        return [(key, _bits_of(part)) for key, part in value.items()]
    if isinstance(value, (list, tuple)):
        return [_bits_of(part) for part in value]
    if isinstance(value, (bool, int, float, complex, str, bytes)):
        return repr(value)  # also of NaN, which is no equal of itself
    return type(value)
