"""Read data without side effects: afterwards position and generators are as before."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import mxnet as mx
import numpy as np
from gluon_svrg._mxnet import load_in_this_process
from mxnet import gluon

# What is looked into, besides the data themselves.
_PARTS = (gluon.data.DataLoader, gluon.data.Dataset, gluon.data.Sampler, mx.io.DataIter)


@contextmanager
def unchanged(data: object) -> Iterator[None]:
    """Restore the attributes of `data`, of its data set and of its samplers after the block.

    This includes NumPy's and Python's generators and lists in these attributes, but not the state
    of other objects. Inside the block, a DataLoader with workers loads in this process, because
    the generators of worker processes cannot be restored.
    """
    undo: list[Callable[[], None]] = []
    _remember(data, undo, set())
    try:
        yield
    finally:
        for put_back in undo:
            put_back()


def _remember(thing: object, undo: list[Callable[[], None]], seen: set[int]) -> None:
    """Add what puts back the attributes of `thing`, and those of its parts."""
    attributes = getattr(thing, "__dict__", None)
    if id(thing) in seen or not isinstance(attributes, dict):
        return
    seen.add(id(thing))
    before = dict(attributes)

    def put_back() -> None:
        attributes.clear()
        attributes.update(before)

    undo.append(put_back)
    for value in before.values():
        if isinstance(value, list):
            undo.append(_list(value))
        elif isinstance(value, np.random.Generator):
            undo.append(_state(value.bit_generator))
        elif isinstance(value, (np.random.RandomState, random.Random)):
            undo.append(_state_of_call(value))
        elif isinstance(value, _PARTS):
            _remember(value, undo, seen)
    if isinstance(thing, gluon.data.DataLoader):
        load_in_this_process(thing)


def _list(value: list[Any]) -> Callable[[], None]:
    items = list(value)

    def put_back() -> None:
        value[:] = items

    return put_back


def _state(bits: Any) -> Callable[[], None]:
    state = copy.deepcopy(bits.state)

    def put_back() -> None:
        bits.state = state

    return put_back


def _state_of_call(generator: np.random.RandomState | random.Random) -> Callable[[], None]:
    if isinstance(generator, random.Random):
        of_python = generator.getstate()
        return lambda: generator.setstate(of_python)
    of_numpy = generator.get_state()
    return lambda: generator.set_state(of_numpy)
