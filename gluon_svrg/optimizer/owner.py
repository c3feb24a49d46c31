"""Which parameters an optimizer and its schedule belong to."""

from __future__ import annotations

from collections.abc import Sequence
from weakref import WeakKeyDictionary, WeakSet, ref

from gluon_svrg._mxnet.trainer import update_counts
from mxnet.gluon import Parameter
from mxnet.lr_scheduler import (
    CosineScheduler,
    FactorScheduler,
    LRScheduler,
    MultiFactorScheduler,
    PolyScheduler,
)
from mxnet.optimizer import Optimizer

_COUNTING = (FactorScheduler, MultiFactorScheduler)

_params: WeakKeyDictionary[LRScheduler, list[ref[Parameter]]] = WeakKeyDictionary()
"""The parameters whose optimizer has a schedule of MXNet's, which changes its ``base_lr``."""

_shared: WeakSet[LRScheduler] = WeakSet()
"""Those that optimizers of several lists of parameters have."""


def belongs_to(optimizer: Optimizer, params: Sequence[Parameter]) -> bool:
    """Return whether the parameters of `optimizer` are `params`, in this order."""
    own = optimizer.param_dict
    return len(own) == len(params) and all(own.get(i) is p for i, p in enumerate(params))


def check_is_free(optimizer: Optimizer, params: Sequence[Parameter]) -> None:
    """Raise ValueError if `optimizer` or its lr_scheduler belongs to others than `params`.

    An optimizer knows its parameters by their index. With those of a second trainer it would
    have the multipliers and the counts of updates of some for the others.
    """
    if not belongs_to(optimizer, params):
        names = [param.name for param in optimizer.param_dict.values()]
        names = names or list(optimizer.idx2name.values())  # of a Module
        is_used = any(update_counts(optimizer).values())
        has_names = bool(names) and names != [param.name for param in params]
        if optimizer.param_dict or is_used or has_names:
            name = type(optimizer).__name__
            whose = f"the parameters {_some(names)}" if names else "those of another Updater"
            raise ValueError(
                f"this {name} belongs to {whose} already, whose updates it counts: make a new "
                f"{name} for each trainer"
            )
    _check_schedule_is_free(optimizer, params)


def check_still_belongs_to(optimizer: Optimizer, params: Sequence[Parameter]) -> None:
    """Raise RuntimeError if a trainer of others than `params` was given `optimizer` since."""
    if not belongs_to(optimizer, params):
        names = [param.name for param in optimizer.param_dict.values()]
        raise RuntimeError(
            f"the {type(optimizer).__name__} of this trainer was given to a trainer of other "
            f"parameters, {_some(names)}: make a new one for each trainer"
        )


def check_rate(optimizer: Optimizer) -> None:
    """Raise RuntimeError if the learning rate of the next update is another optimizer's.

    A schedule that counts no updates has lost this one's rate only after its last update.
    """
    schedule = optimizer.lr_scheduler
    if not _shared or schedule not in _shared:
        return
    known = vars(schedule)
    if optimizer.num_update >= known["max_update"] and known["base_lr"] != known["final_lr"]:
        name = type(schedule).__name__
        raise RuntimeError(
            f"this {name} is at its end after {optimizer.num_update} updates, and its learning "
            f"rate is {known['base_lr']:g}, that of another optimizer, not {known['final_lr']:g}: "
            f"make a new {name} for each optimizer"
        )


def _check_schedule_is_free(optimizer: Optimizer, params: Sequence[Parameter]) -> None:
    schedule = optimizer.lr_scheduler
    # Others may be functions of the number of updates, which are no one's.
    if not isinstance(schedule, (*_COUNTING, PolyScheduler, CosineScheduler)):
        return
    name = type(schedule).__name__
    owners = _params.setdefault(schedule, list(map(ref, params)))
    is_shared = [owner() for owner in owners] != list(params)
    if not isinstance(schedule, _COUNTING):
        if is_shared:
            _shared.add(schedule)
        return
    if is_shared:
        raise ValueError(
            f"this {name} belongs to an optimizer of other parameters already, which changes its "
            f"learning rate: make a new {name} for each optimizer"
        )
    count: int = vars(schedule)["count"]
    if count > optimizer.num_update:
        raise ValueError(
            f"this {name} has counted the updates of another optimizer, to {count}, and "
            f"its learning rate is {schedule.base_lr:g} now: make a new {name} for each optimizer"
        )


def _some(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names[:3])) + (", ..." if len(names) > 3 else "")
