"""The settings of a run: the arguments of its optimizer, schedule, loss and handlers."""

from __future__ import annotations

import inspect
import re
import zlib
from collections.abc import Mapping, Set, Sized
from enum import Enum
from functools import cache, partial, singledispatch
from pathlib import PurePath
from types import CodeType, FunctionType, MethodType
from typing import Any, TypeAlias

import mxnet as mx
import numpy as np
from gluon_svrg._mxnet.trainer import optimizer_of
from gluon_svrg.class_names import class_path
from gluon_svrg.events import EventHandler, Run
from gluon_svrg.metrics.monitor import Monitor
from gluon_svrg.schedules import NamedSchedule
from mxnet import gluon
from mxnet.lr_scheduler import LRScheduler

Settings: TypeAlias = dict[str, dict[str, Any]]
"""By owner ('training', 'optimizer', 'lr_scheduler', 'loss', 'SVRGHandler', ...) and name."""

TRAINING, OPTIMIZER, SCHEDULE = "training", "optimizer", "lr_scheduler"

PLACES = {"directory", "path", "log_dir", "trace", "file"}
"""Arguments of handlers that say where they write, and change no figure."""

# Attributes that change with each step or name, and are no arguments.
_COUNTS = {"rescale_grad", "num_update", "begin_num_update", "aggregate_num"}
_NAMES = set(vars(gluon.HybridBlock()))

_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


def describe(run: Run) -> Settings:
    """Return the classes of a run and its settings as plain data; call it when the run begins.

    Checkpoints save it, several workers compare it, and the report shows it.

    What is no plain data itself (a schedule, a monitor, a path) is there as text, which is the same
    in each process. Arguments of handlers that inherit from none of this package's or MXNet's are
    not part of it.
    """
    optimizer = optimizer_of(run.trainer)
    public = {name: value for name, value in vars(optimizer).items() if name[0] != "_"}
    settings: Settings = {
        TRAINING: {
            "network": class_path(run.net),
            "trainer": class_path(run.trainer),
            "optimizer": class_path(optimizer),
        },
        OPTIMIZER: _plain_in(public, _COUNTS),
    }
    if optimizer.lr_scheduler is not None:
        kind = class_path(optimizer.lr_scheduler)
        settings[OPTIMIZER]["lr"] = kind
        settings[SCHEDULE] = {"class": kind, **_readable_in(vars(optimizer.lr_scheduler))}
    for name, block in (("loss", run.loss), ("loss of the evaluation", run.val_loss)):
        settings[name] = {"class": class_path(block)}
        settings[name] |= {k.lstrip("_"): v for k, v in _plain_in(vars(block), _NAMES).items()}
    for handler in run.handlers:
        kind, arguments = _settings_of_handler(handler)
        name, number = kind, 2
        while name in settings:
            name, number = f"{kind} {number}", number + 1
        settings[name] = arguments
    for owner, name in scheduled_in(settings).items():  # the optimizer's own value is not used
        settings[OPTIMIZER][_attribute_of(name)] = settings[owner]["schedule"]
    return settings


def scheduled_in(settings: Mapping[str, Any]) -> dict[str, str]:
    """Return the hyper-parameter that a handler sets, by the owner of the handler's settings.

    A checkpoint of 0.8 may have an AutoLearningRateHandler, which measured the learning rate.
    """
    return {
        owner: values.get("hyperparameter", "learning_rate")
        for owner, values in settings.items()
        if owner.split()[0] in ("ScheduleHandler", "AutoLearningRateHandler")
    }


def scheduled_attributes(settings: Mapping[str, Any]) -> set[str]:
    """Return the optimizer's attributes that something else sets, and `settings` have as text."""
    by_handlers = {_attribute_of(name) for name in scheduled_in(settings).values()}
    return by_handlers | ({"lr"} if SCHEDULE in settings else set())


def differences(saved: Mapping[str, Any], own: Settings) -> dict[str, dict[str, tuple[Any, Any]]]:
    """Return the settings in both whose values differ: (saved, own) by owner and name.

    A number of the optimizer that a schedule had set is told by the schedule's own settings.
    """
    found: dict[str, dict[str, tuple[Any, Any]]] = {}
    for owner in (owner for owner in own if owner in saved):
        both = own[owner].keys() & saved[owner].keys()
        if owner == OPTIMIZER:
            both -= {
                n for n in scheduled_attributes(saved) if _has_text(n, saved[owner], own[owner])
            }
        for name in (name for name in own[owner] if name in both):
            old, new = saved[owner][name], own[owner][name]
            if old != new and not (old != old and new != new):
                found.setdefault(owner, {})[name] = (old, new)
    return found


def _has_text(name: str, *settings: Mapping[str, Any]) -> bool:
    return any(isinstance(values.get(name), str) for values in settings)


def _attribute_of(hyperparameter: str) -> str:
    return "lr" if hyperparameter == "learning_rate" else hyperparameter


def _settings_of_handler(handler: EventHandler) -> tuple[str, dict[str, Any]]:
    """Return the name and the arguments of a handler: those of the class from here or MXNet.

    An argument is read from the attribute of its name, public or not, or from the Monitor's.
    """
    for kind in type(handler).__mro__:
        if kind.__module__.partition(".")[0] in ("gluon_svrg", "mxnet") and "__init__" in vars(
            kind
        ):
            break
    else:
        return type(handler).__name__, {}
    monitor = getattr(handler, "monitor", None)
    attributes = vars(monitor) if isinstance(monitor, Monitor) else {}
    attributes = {**attributes, **vars(handler)}
    own_class = {} if kind is type(handler) else {"class": class_path(handler)}
    found = {
        name: attributes.get(name, attributes.get(f"_{name}"))
        for name in _parameters_of(kind)
        if name in attributes or f"_{name}" in attributes
    }
    return kind.__name__, own_class | _readable_in(found)


@cache
def _parameters_of(kind: type) -> tuple[str, ...]:
    return tuple(inspect.signature(kind).parameters)


def _plain_in(values: Mapping[str, Any], but: set[str]) -> dict[str, Any]:
    return {
        name: _plain(value)
        for name, value in values.items()
        if name not in but and _is_plain(value)
    }


def _is_plain(value: object) -> bool:
    if isinstance(value, (list, tuple)):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, (bool, int, float, str, Enum, np.generic))


def _plain(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, Enum):
        return value.name
    return value.item() if isinstance(value, np.generic) else value


def _readable_in(values: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: _plain(value) if _is_plain(value) else _readable(value)
        for name, value in values.items()
    }


@singledispatch
def _readable(value: Any) -> Any:
    """Return plain data for what is none, the same in each process: no address in memory."""
    text = repr(value)
    if not _ADDRESS.search(text):
        return text
    if isinstance(value, Sized):
        return _with_length(value)
    # Of its attributes only the plain ones: it may refer to a network, or to itself.
    return _call(class_path(value), _plain_in(getattr(value, "__dict__", {}), set()))


def _with_length(value: Sized) -> str:
    return f"{type(value).__name__} of {len(value)}"


def _call(name: str, arguments: Mapping[str, Any]) -> str:
    return f"{name}({', '.join(f'{k}={v}' for k, v in _readable_in(arguments).items())})"


@_readable.register
def _(value: NamedSchedule) -> str:
    return _call(value.name, value.arguments)


@_readable.register(partial)
def _(value: Any) -> str:
    positional = {str(place): argument for place, argument in enumerate(value.args)}
    return _call(f"partial {_readable(value.func)}", positional | value.keywords)


@_readable.register
def _(value: FunctionType) -> str:
    """Name a function of the user's with the numbers that it uses, and a checksum of its code."""
    outside = inspect.getclosurevars(value)
    numbers = _plain_in({**outside.globals, **outside.nonlocals}, set())
    name = _call(f"{value.__module__}.{value.__qualname__}", numbers)
    return f"{name}, code {_checksum(value.__code__):08x}"


def _checksum(code: CodeType) -> int:
    constants = [_constant(value) for value in code.co_consts]
    return zlib.crc32(repr((code.co_code, code.co_names, constants)).encode())


def _constant(value: object) -> object:
    if isinstance(value, CodeType):
        return _checksum(value)
    # The order of a set of texts differs from process to process.
    return sorted(map(repr, value)) if isinstance(value, frozenset) else value


@_readable.register
def _(value: MethodType) -> str:
    return f"{_readable(value.__self__)}.{value.__name__}"


@_readable.register(Monitor)  # a union in the annotation needs Python 3.11
@_readable.register(mx.metric.EvalMetric)
def _(value: Any) -> str:
    return str(value.name)


@_readable.register
def _(value: PurePath) -> str:
    return str(value)


@_readable.register
def _(value: EventHandler) -> str:
    return type(value).__name__


@_readable.register(mx.nd.NDArray)
@_readable.register(np.ndarray)
def _(value: Any) -> str:
    return f"{type(value).__name__} of shape {value.shape}"


@_readable.register
def _(value: LRScheduler) -> str:
    return _call(type(value).__name__, vars(value))


@_readable.register(Set)
def _(value: Any) -> list[Any]:
    return sorted(value)


@_readable.register(Mapping)
def _(value: Any) -> str:
    return _call("dict", value)


@_readable.register(list)
@_readable.register(tuple)
def _(value: Any) -> Any:
    if any(isinstance(item, (list, tuple)) for item in value):  # batches
        return _with_length(value)
    return list(_readable_in(dict(zip(map(str, range(len(value))), value, strict=True))).values())
