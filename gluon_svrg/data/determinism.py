"""Call a function several times to find out whether its result repeats."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
from gluon_svrg.data.restore import isolate_rng
from mxnet.ndarray import NDArray


def repeats_exactly(take: Callable[[], object], probes: int) -> bool:
    """Return whether ``take()`` returns the same bits each time, and draws no random number.

    NumPy's and Python's global generators are compared and restored. MXNet's cannot be read, so a
    draw from it is found only if it changes the result.

    Parameters
    ----------
    take : callable
        Returns arrays, numbers or strings, or lists, tuples or dicts of them. Of other objects,
        only the types are compared.
    probes : int
        The maximum number of calls.
    """
    with isolate_rng():
        before = _rng_states()
        first = _comparable(take())
        is_same = all(_comparable(take()) == first for _ in range(probes - 1))
        return is_same and _rng_states() == before


def _rng_states() -> tuple[object, ...]:
    state: dict[str, Any] = np.random.get_state(legacy=False)
    inner = [np.asarray(part).tolist() for part in state["state"].values()]
    return inner, state["has_gauss"], random.getstate()


def _comparable(value: object) -> object:
    if isinstance(value, NDArray):
        value = value.asnumpy()
    if isinstance(value, (np.ndarray, np.generic)):
        return value.shape, value.dtype, value.tobytes()
    if isinstance(value, dict):
        return [(key, _comparable(part)) for key, part in value.items()]
    if isinstance(value, (list, tuple)):
        return [_comparable(part) for part in value]
    if isinstance(value, (bool, int, float, complex, str, bytes)):
        return repr(value)  # also of NaN, which does not equal itself
    return type(value)
