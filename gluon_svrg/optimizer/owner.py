"""Which parameters an optimizer and its schedule belong to."""

from __future__ import annotations

from collections.abc import Sequence
from weakref import WeakKeyDictionary, ref

from gluon_svrg import _mxnet
from mxnet.gluon import Parameter
from mxnet.lr_scheduler import FactorScheduler, LRScheduler, MultiFactorScheduler
from mxnet.optimizer import Optimizer

_params: WeakKeyDictionary[LRScheduler, list[ref[Parameter]]] = WeakKeyDictionary()
"""The parameters whose optimizer has a schedule. MXNet's own change their ``base_lr`` at an update,
so that the learning rate of one optimizer would be that of the last one to step."""


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
        is_used = any(_mxnet.update_counts(optimizer).values())
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


def _check_schedule_is_free(optimizer: Optimizer, params: Sequence[Parameter]) -> None:
    schedule = optimizer.lr_scheduler
    if not isinstance(schedule, LRScheduler):
        return
    name = type(schedule).__name__
    owners = _params.setdefault(schedule, list(map(ref, params)))
    if [owner() for owner in owners] != list(params):
        raise ValueError(
            f"this {name} belongs to an optimizer of other parameters already, which changes its "
            f"learning rate: make a new {name} for each optimizer"
        )
    counts = isinstance(schedule, (FactorScheduler, MultiFactorScheduler))
    count: int = vars(schedule)["count"] if counts else 0
    if count > optimizer.num_update:
        raise ValueError(
            f"this {name} has counted the updates of another optimizer, to {count}, and "
            f"its learning rate is {schedule.base_lr:g} now: make a new {name} for each optimizer"
        )


def _some(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names[:3])) + (", ..." if len(names) > 3 else "")
