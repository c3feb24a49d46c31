"""The states in a checkpoint of version 0.8, as this version has them."""

from __future__ import annotations

from typing import Any

from gluon_svrg._typing import NumPyArray, State
from gluon_svrg.checkpoint.trainer_state import as_data
from gluon_svrg.optimizer.states import TrainerStates
from gluon_svrg.run import Phase

FORMAT = 4

_STOPPING = "mxnet.StoppingHandler"
_AVERAGE = "average"


def translated(states: State) -> State:
    """Return the states of all parts as this version has them."""
    states = dict(states)
    # The random numbers were a part of their own.
    handlers = {**states["handlers"], **states.pop("random_state")}
    # Each run had one, after those that the user gave; the loop counts by itself now.
    handlers[_STOPPING] = handlers.get(_STOPPING, [])[:-1]
    # The averages of weights counted batches; a step had one batch without an accumulation.
    steps = {"steps": states["position"]["batch"]}
    if _AVERAGE in handlers:
        handlers[_AVERAGE] = [[name, state | steps] for name, state in handlers[_AVERAGE]]
    return {
        **states,
        "trainer": {**states["trainer"], "states": _optimizer_states(states["trainer"]["states"])},
        "history": {**states["history"], "evaluated_at": {}, "evaluated_at_batch": None},
        "position": _position_of(states["position"], handlers),
        "handlers": handlers,
    }


def _optimizer_states(saved: State | NumPyArray) -> State:
    """Return the optimizer's states; the file of a worker had the bytes of ``trainer.npz``."""
    if isinstance(saved, dict):
        return saved
    return as_data(TrainerStates.from_bytes(saved.tobytes()))


def _position_of(position: State, handlers: State) -> dict[str, Any]:
    """Return the position with its phase.

    A stop in an evaluation after a batch left `is_due` in the state of the ValidationHandler; one
    at the end of an epoch left the names of the handlers that had got *epoch end*.
    """
    is_due = any(state.get("is_due") for filed in handlers.values() for _, state in filed if state)
    had_epoch_end = bool(position.get("heard"))
    if is_due or had_epoch_end:
        phase = Phase.EVALUATING
    else:
        phase = Phase.TRAINING if position["is_in_epoch"] else Phase.BETWEEN
    counts = {name: position[name] for name in ("epoch", "batch", "batch_in_epoch")}
    return {
        **counts,
        "phase": phase.value,
        "is_trained": position["is_cut"] or had_epoch_end,
    }
