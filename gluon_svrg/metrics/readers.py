"""Bring a metric up to date when it is read."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import mxnet as mx
from mxnet.metric import EvalMetric

_READERS = ("get", "get_global", "get_name_value", "get_global_name_value")


class _Reader(NamedTuple):
    """Reads a metric after bringing it up to date."""

    bring_up_to_date: Callable[[], None]
    read: Callable[[], Any]
    is_of_the_object: bool

    def __call__(self) -> Any:
        self.bring_up_to_date()
        return self.read()


def watch_reads(metrics: Iterable[EvalMetric], bring_up_to_date: Callable[[], None]) -> None:
    """Call a function before each read of these metrics, or of metrics that they contain."""
    for metric in _with_parts(metrics):
        for name in _READERS:
            # Patch the object itself, because the user may read it at any time.
            read, is_of_the_object = getattr(metric, name), name in vars(metric)
            vars(metric)[name] = _Reader(bring_up_to_date, read, is_of_the_object)


def stop_watching(metrics: Iterable[EvalMetric]) -> None:
    """Stop calling functions before reads of these metrics."""
    for metric in _with_parts(metrics):
        for name in _READERS:
            reader = vars(metric).get(name)
            if isinstance(reader, _Reader):
                del vars(metric)[name]
                if reader.is_of_the_object:
                    vars(metric)[name] = reader.read


def watchers(metrics: Iterable[EvalMetric]) -> list[Callable[[], None]]:
    """Return the functions that are called before reads of these metrics."""
    readers = [vars(metric).get(_READERS[0]) for metric in _with_parts(metrics)]
    return [reader.bring_up_to_date for reader in readers if isinstance(reader, _Reader)]


def _with_parts(metrics: Iterable[EvalMetric]) -> list[EvalMetric]:
    """Return the metrics and those that they are composed of."""
    found: list[EvalMetric] = []
    for metric in metrics:
        found.append(metric)
        if isinstance(metric, mx.metric.CompositeEvalMetric):
            found += _with_parts(metric.metrics)
    return found
