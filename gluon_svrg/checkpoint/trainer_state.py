"""The state of a run's trainer: the optimizer's states and counts, and the settings of the run."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from gluon_svrg._mxnet.block import has_shape
from gluon_svrg._mxnet.trainer import optimizer_of, parameters_of
from gluon_svrg.events import Run, State
from gluon_svrg.optimizer.states import (
    TrainerStates,
    load_states,
    structural_names,
    trainer_states,
)
from gluon_svrg.settings import (
    OPTIMIZER,
    PLACES,
    SCHEDULE,
    differences,
    scheduled_attributes,
    scheduled_in,
)

_Changes = dict[str, dict[str, tuple[Any, Any]]]
"""The settings that differ: (saved, own), by owner and name."""


def save_trainer(run: Run) -> State:
    """Return the states, the structural name of each parameter, and the settings of the run."""
    return {
        "states": as_data(trainer_states(run.trainer)),
        "places": _places(run),
        "settings": run.settings,
    }


def as_data(states: TrainerStates) -> State:
    """Return the states as plain data: the arguments with which they can be made again."""
    return {"meta": states.meta, "arrays": states.arrays}


def check_trainer(run: Run, state: State) -> None:
    """Compare optimizer, schedule and parameters with the trainer's."""
    optimizer, params = optimizer_of(run.trainer), parameters_of(run.trainer)
    states = _in_own_order(run, state)
    states.check(optimizer, params)
    changed = _changes(run, state).get(OPTIMIZER)
    if changed and not states.have_the_form_of(optimizer, params):
        raise ValueError(
            f"its optimizer has {_text(changed, 0)} and this trainer's {_text(changed, 1)}, "
            "which needs states of another form: give the same, or begin a new run from its "
            "net.params"
        )


def load_trainer(run: Run, state: State) -> None:
    """Restore the trainer, but keep the settings that were given to this run only."""
    changes = _changes(run, state)
    load_states(
        run.trainer,
        _in_own_order(run, state),
        keep=frozenset(changes.get(OPTIMIZER, ())) - scheduled_attributes(run.settings),
        keeps_schedule=SCHEDULE in changes,
    )
    if run.workers.is_first:
        _log_missing_schedules(run, state)
        _log_changes(run, changes)


def remember_trainer(run: Run) -> Callable[[], None]:
    """Return a function that loads the current states."""
    trainer = run.trainer
    params = [*run.net.collect_params().values(), *parameters_of(trainer)]
    if not all(has_shape(param) for param in params):
        return lambda: None  # it has no states yet
    states = trainer_states(trainer)
    return lambda: load_states(trainer, states)


def _changes(run: Run, state: State) -> _Changes:
    """Return the settings that differ between the checkpoint's run and this run."""
    return differences(state["settings"], run.settings)


def _log_missing_schedules(run: Run, state: State) -> None:
    """Warn of each hyper-parameter that a handler set before the checkpoint, and none sets now."""
    scheduled = scheduled_in(run.settings).values()
    for owner, name in scheduled_in(state["settings"]).items():
        if name not in scheduled:
            run.logger.warning(
                "resume: the checkpoint's run had a%s %s for %s and this one has none: it "
                "stays at %.4g, as that has left it",
                "n" if owner[0] == "A" else "",
                owner,
                name,
                _value_of(run, name),
            )


def _log_changes(run: Run, changes: _Changes) -> None:
    if not changes:
        return
    names = {name for values in changes.values() for name in values}
    run.logger.log(
        logging.INFO if names <= PLACES else logging.WARNING,
        "resume: this run was given other settings than the checkpoint's, and keeps its own: %s",
        "; ".join(f"{owner}: {_text(values, 1, 0)}" for owner, values in changes.items()),
    )


def _text(changed: dict[str, tuple[Any, Any]], which: int, instead_of: int | None = None) -> str:
    """Return settings as text: one of their two values, and perhaps the other."""
    return ", ".join(
        f"{name} {values[which]}" + ("" if instead_of is None else f" (not {values[instead_of]})")
        for name, values in changed.items()
    )


def _value_of(run: Run, hyperparameter: str) -> float:
    if hyperparameter == "learning_rate":
        return float(run.trainer.learning_rate)
    return float(getattr(optimizer_of(run.trainer), hyperparameter))


def _in_own_order(run: Run, state: State) -> TrainerStates:
    """Return the states in the trainer's order, which depends on the parameters' names."""
    states = TrainerStates(**state["states"])
    saved, current = state["places"], _places(run)
    if sorted(current) != sorted(saved):
        return states
    return states.reordered([saved.index(name) for name in current])


def _places(run: Run) -> list[str]:
    return structural_names(run.net, parameters_of(run.trainer))
