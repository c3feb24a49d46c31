"""Read and set an optimizer's hyper-parameters by name, and remember what schedules have set."""

from __future__ import annotations

import numbers
from collections.abc import Iterator, Set
from dataclasses import dataclass
from weakref import WeakKeyDictionary

from gluon_svrg._mxnet.trainer import optimizer_of
from mxnet.gluon import Trainer

# Numbers of every optimizer that are no hyper-parameters: counts, what the trainer sets at each
# step, and the learning rate, which has a method of its own.
_NOT_TO_BE_SET = {"aggregate_num", "begin_num_update", "lr", "num_update", "rescale_grad"}


@dataclass
class _Leftover:
    """A value that was there before the first schedule, and the last one that a schedule set."""

    before: float
    last: float


_leftovers: WeakKeyDictionary[Trainer, dict[str, _Leftover]] = WeakKeyDictionary()
"""What schedules of earlier runs have left, by trainer and hyper-parameter."""


def check_no_lr_scheduler(trainer: Trainer, handler: str) -> None:
    """Raise ValueError if the optimizer has an lr_scheduler, which sets the learning rate, too.

    Parameters
    ----------
    trainer : Trainer
        The trainer of the optimizer.
    handler : str
        The name of the handler that sets the learning rate.
    """
    if optimizer_of(trainer).lr_scheduler is not None:
        raise ValueError(
            f"the learning rate has two owners, the optimizer's lr_scheduler and {handler}: remove "
            "one of them"
        )


def hyperparameter_value(name: str, trainer: Trainer) -> float:
    """Return the value; raise ValueError, with the names that there are, if there is none."""
    if name == "learning_rate":
        return float(trainer.learning_rate)
    values = {
        name: float(value)
        for name, value in vars(trainer.optimizer).items()
        if isinstance(value, numbers.Real)
        and not isinstance(value, bool)
        and not name.startswith("_")
        and name not in _NOT_TO_BE_SET
    }
    if name not in values:
        names = ["learning_rate", *sorted(values)]
        raise ValueError(
            f"hyperparameter {name!r} is no number of this optimizer that can be set, a "
            f"{type(trainer.optimizer).__name__}, which has {', '.join(map(repr, names))}"
        )
    return values[name]


def set_hyperparameter(name: str, trainer: Trainer, value: float) -> None:
    """Set the value."""
    if name == "learning_rate":
        trainer.set_learning_rate(value)
    else:
        vars(trainer.optimizer)[name] = value


def begin_schedule(name: str, trainer: Trainer) -> None:
    """Remember the value that is there before a schedule, unless an earlier one has set it."""
    value = hyperparameter_value(name, trainer)
    left = _leftovers.setdefault(trainer, {}).setdefault(name, _Leftover(value, value))
    if left.last != value:  # the user has set it since
        left.before = left.last = value


def set_scheduled_value(name: str, trainer: Trainer, value: float) -> None:
    """Set the value, and remember that a schedule has; :func:`begin_schedule` comes before."""
    set_hyperparameter(name, trainer, value)
    _leftovers[trainer][name].last = value


def pop_leftover_values(trainer: Trainer, but: Set[str]) -> Iterator[tuple[str, float, float]]:
    """Forget, and yield, the values that schedules have left and nothing has set since.

    Parameters
    ----------
    trainer : Trainer
        The trainer of the optimizer.
    but : set of str
        Hyper-parameters that are still scheduled.

    Yields
    ------
    tuple of str, float and float
        The name, the value before the schedule, and the one that it has left.
    """
    leftovers = _leftovers.get(trainer, {})
    for name in sorted(leftovers.keys() - but):
        left = leftovers.pop(name)
        if name == "learning_rate" and trainer.optimizer.lr_scheduler is not None:
            continue
        if left.before != left.last and hyperparameter_value(name, trainer) == left.last:
            yield name, left.before, left.last
