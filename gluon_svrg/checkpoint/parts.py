"""The parts of a run in a checkpoint: how each is saved, checked and restored."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from gluon_svrg._mxnet.trainer import loss_scaler_state, set_loss_scaler_state
from gluon_svrg.checkpoint.handler_states import load_handlers, merge_handlers, save_handlers
from gluon_svrg.checkpoint.network_state import (
    check_network,
    load_network,
    merge_network,
    remember_network,
    save_network,
)
from gluon_svrg.checkpoint.trainer_state import (
    check_trainer,
    load_trainer,
    remember_trainer,
    save_trainer,
)
from gluon_svrg.events import Run, State
from gluon_svrg.run import Position


class Part(NamedTuple):
    """What a checkpoint does with a part of a run's state.

    The state is plain data, as :mod:`gluon_svrg.arrays.encoding` takes it.

    Attributes
    ----------
    save : callable
        Returns the state of the run's part; all workers call it together, at a *safe point*.
    load : callable
        Lets the run continue from a state, which was checked.
    check : callable
        Raises ValueError if a state does not fit the run; changes nothing. By default any state
        fits.
    merge : callable
        Returns the state for this worker from those of another number of workers. By default it
        is worker 0's.
    remember : callable
        Returns a function that puts the part back to its current state, if a restore fails. By
        default that does nothing, because each call of `fit` starts with a new state.
    """

    save: Callable[[Run], Any]
    load: Callable[[Run, Any], None]
    check: Callable[[Run, Any], None] = lambda _run, _state: None
    merge: Callable[[Run, Sequence[Any]], Any] = lambda _run, states: states[0]
    remember: Callable[[Run], Callable[[], None]] = lambda _run: lambda: None


def save_loss_scale(run: Run) -> State | None:
    """Return the state of the loss scaler of MXNet's AMP; None without one."""
    return loss_scaler_state(run.trainer)


def load_loss_scale(run: Run, state: State | None) -> None:
    """Restore the loss scaler."""
    set_loss_scaler_state(run.trainer, state)


def remember_loss_scale(run: Run) -> Callable[[], None]:
    """Return a function that restores the current state of the loss scaler."""
    state = save_loss_scale(run)
    return lambda: load_loss_scale(run, state)


def _save_position(run: Run) -> State:
    return run.position.state_dict()


def _load_position(run: Run, state: State) -> None:
    run.position = Position.from_state(state)


def _save_history(run: Run) -> State:
    return {
        "history": list(run.history),
        "figures": run.figures,
        "last_evaluation": run.last_evaluation,
        "evaluated_at": run.state.evaluated_at,
        "evaluated_at_batch": run.state.evaluated_at_batch,
    }


def _load_history(run: Run, state: State) -> None:
    # A new list: handlers know by it that the rows are others.
    run.history = type(run.history)(state["history"])
    run.figures = state["figures"]
    run.last_evaluation = state["last_evaluation"]
    run.state.evaluated_at = state["evaluated_at"]
    run.state.evaluated_at_batch = state["evaluated_at_batch"]


def _save_data(run: Run) -> State:
    return run.data.description()


def _check_data(run: Run, state: State) -> None:
    run.data.check_description(state)


def _load_data(_run: Run, _state: State) -> None:
    """Do nothing: the loop reads the remaining batches of the epoch from the data."""


PARTS = {
    "net": Part(save_network, load_network, check_network, merge_network, remember_network),
    "trainer": Part(save_trainer, load_trainer, check_trainer, remember=remember_trainer),
    "loss_scale": Part(save_loss_scale, load_loss_scale, remember=remember_loss_scale),
    "position": Part(_save_position, _load_position),
    "history": Part(_save_history, _load_history),
    "data": Part(_save_data, _load_data, _check_data),
    "handlers": Part(save_handlers, load_handlers, merge=merge_handlers),
}
"""All parts, by name, in the order in which they are saved and restored."""
