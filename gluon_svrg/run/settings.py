"""The settings of a run: the arguments of its optimizer, schedule, loss and handlers."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from enum import Enum
from typing import Any, TypeAlias

import numpy as np
from gluon_svrg import _mxnet
from gluon_svrg.events import EventHandler, MayStop, Run
from gluon_svrg.optimizer.nested_schedules import nested_schedules
from mxnet import gluon
from mxnet.gluon.contrib.estimator import StoppingHandler

Settings: TypeAlias = dict[str, dict[str, Any]]
"""By owner ('optimizer', 'lr_scheduler', 'loss', 'SVRGHandler', ...) and name: plain data."""

OPTIMIZER, SCHEDULE = "optimizer", "lr_scheduler"

# Attributes that change with each step or name, and are no arguments.
_COUNTS = {"rescale_grad", "num_update", "begin_num_update", "aggregate_num"}
_NAMES = set(vars(gluon.HybridBlock()))


def settings_of(run: Run) -> Settings:
    """Return the settings that are plain data; call it at the beginning of the run.

    Functions, schedules of ScheduleHandlers, and handlers of the user's are not part of it.
    """
    optimizer = _mxnet.optimizer_of(run.trainer)
    public = {name: value for name, value in vars(optimizer).items() if name[0] != "_"}
    settings: Settings = {OPTIMIZER: _plain_in(public, _COUNTS)}
    if optimizer.lr_scheduler is not None:
        settings[SCHEDULE] = _plain_in(vars(optimizer.lr_scheduler), set())
        for place, schedule in nested_schedules(optimizer.lr_scheduler).items():
            own = _plain_in(vars(schedule), set())
            settings[SCHEDULE] |= {f"{place}.{name}": value for name, value in own.items()}
    for name, block in (("loss", run.loss), ("loss of the evaluation", run.val_loss)):
        settings[name] = {"class": class_of(block)}
        settings[name] |= {k.lstrip("_"): v for k, v in _plain_in(vars(block), _NAMES).items()}
    for handler in run.handlers:
        if isinstance(handler, StoppingHandler):
            continue  # each fit creates one, from `epochs` or `batches`
        name, number = type(handler).__name__, 2
        while name in settings:
            name, number = f"{type(handler).__name__} {number}", number + 1
        settings[name] = _settings_of_handler(handler)
    for name in scheduled_in(settings).values():  # the optimizer's own value is not used
        settings[OPTIMIZER].pop("lr" if name == "learning_rate" else name, None)
    return settings


def scheduled_in(settings: Mapping[str, Any]) -> dict[str, str]:
    """Return the hyper-parameter of each ScheduleHandler, by the owner of its settings."""
    return {
        owner: values["hyperparameter"]
        for owner, values in settings.items()
        if owner.split()[0] == "ScheduleHandler"
    }


def class_of(thing: object) -> str:
    """Return module and name of the class of `thing`."""
    return f"{type(thing).__module__}.{type(thing).__qualname__}"


def differences(saved: Mapping[str, Any], own: Settings) -> dict[str, dict[str, tuple[Any, Any]]]:
    """Return the settings in both whose values differ: (saved, own) by owner and name."""
    found: dict[str, dict[str, tuple[Any, Any]]] = {}
    for owner in (owner for owner in own if owner in saved):
        both = own[owner].keys() & saved[owner].keys()
        for name in (name for name in own[owner] if name in both):
            old, new = saved[owner][name], own[owner][name]
            if old != new and not (old != old and new != new):
                found.setdefault(owner, {})[name] = (old, new)
    return found


def _settings_of_handler(handler: EventHandler) -> dict[str, Any]:
    """Return the arguments of one of this package's or MXNet's handlers, from its attributes.

    So an attribute has to have the name of its argument.
    """
    if type(handler).__module__.partition(".")[0] not in ("gluon_svrg", "mxnet"):
        return {}  # a user's handler may differ between workers
    if isinstance(handler, MayStop):
        return {}  # workers may have different time limits: the shortest counts
    arguments = inspect.signature(type(handler).__init__).parameters
    return _plain_in({n: v for n, v in vars(handler).items() if n in arguments}, set())


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
