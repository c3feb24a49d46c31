"""The schedules that an lr_scheduler is made of, such as GluonCV's LRSequential."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from mxnet.lr_scheduler import LRScheduler


def nested_schedules(schedule: Any, known: frozenset[int] = frozenset()) -> dict[str, LRScheduler]:
    """Return the LRSchedulers in the attributes of `schedule`, and in theirs, by their places.

    A place is ``'inner'``, ``'schedulers[0]'`` or ``'schedulers[0].inner'``. `known` are the ids of
    those that hold `schedule`.
    """
    known |= {id(schedule)}
    found: dict[str, LRScheduler] = {}
    for name, value in getattr(schedule, "__dict__", {}).items():
        for place, member in _members(name, value):
            if isinstance(member, LRScheduler) and id(member) not in known:
                found[place] = member
                inner = nested_schedules(member, known)
                found |= {f"{place}.{where}": each for where, each in inner.items()}
    return found


def has_only_functions(value: object) -> bool:
    """Return whether an attribute is a function or a schedule, or a collection of nothing else."""
    return all(callable(member) for _, member in _members("", value))


def _members(name: str, value: object) -> Iterator[tuple[str, object]]:
    if isinstance(value, dict):
        yield from ((f"{name}[{key!r}]", item) for key, item in value.items())
    elif isinstance(value, (list, tuple)):
        yield from ((f"{name}[{index}]", item) for index, item in enumerate(value))
    else:
        yield name, value
