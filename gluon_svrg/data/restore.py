"""Read data without side effects: afterwards their position and all generators are restored."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import mxnet as mx
import numpy as np
from gluon_svrg._mxnet.dataloader import load_in_this_process
from mxnet import gluon

# The parts of the data whose attributes are restored, too.
_PARTS = (gluon.data.DataLoader, gluon.data.Dataset, gluon.data.Sampler, mx.io.DataIter)


@contextmanager
def isolate_rng() -> Iterator[None]:
    """Restore NumPy's and Python's global generators after the block, also after an exception.

    MXNet's generators cannot be read, so they are not restored.
    """
    numpy_state, python_state = np.random.get_state(legacy=False), random.getstate()
    try:
        yield
    finally:
        np.random.set_state(numpy_state)
        random.setstate(python_state)


@contextmanager
def restored(data: object) -> Iterator[None]:
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
        for restore in undo:
            restore()


def _remember(thing: object, undo: list[Callable[[], None]], seen: set[int]) -> None:
    """Add the functions that restore the attributes of `thing` and of its parts to `undo`."""
    attributes = getattr(thing, "__dict__", None)
    if id(thing) in seen or not isinstance(attributes, dict):
        return
    seen.add(id(thing))
    before = dict(attributes)

    def restore() -> None:
        attributes.clear()
        attributes.update(before)

    undo.append(restore)
    for value in before.values():
        if isinstance(value, list):
            undo.append(_list(value))
        elif isinstance(value, np.random.Generator):
            undo.append(_state(value.bit_generator))
        elif isinstance(value, (np.random.RandomState, random.Random)):
            undo.append(_called_state(value))
        elif isinstance(value, _PARTS):
            _remember(value, undo, seen)
    if isinstance(thing, gluon.data.DataLoader):
        load_in_this_process(thing)


def _list(value: list[Any]) -> Callable[[], None]:
    items = list(value)

    def restore() -> None:
        value[:] = items

    return restore


def _state(bits: Any) -> Callable[[], None]:
    state = copy.deepcopy(bits.state)

    def restore() -> None:
        bits.state = state

    return restore


def _called_state(generator: np.random.RandomState | random.Random) -> Callable[[], None]:
    if isinstance(generator, random.Random):
        python_state = generator.getstate()
        return lambda: generator.setstate(python_state)
    numpy_state = generator.get_state()
    return lambda: generator.set_state(numpy_state)
