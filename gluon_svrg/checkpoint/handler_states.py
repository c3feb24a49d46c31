"""The states of a run's handlers, saved under their keys."""

from __future__ import annotations

import reprlib
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from gluon_svrg.arrays.encoding import is_data
from gluon_svrg.checkpoint.parts import Part
from gluon_svrg.checkpoint.state_keys import RANDOM_STATE, state_key
from gluon_svrg.checkpoint.worker_files import replace_reductions
from gluon_svrg.events import EventHandler, Run, State, Stateful
from gluon_svrg.stops import StopReason
from mxnet.gluon.contrib import estimator as mx_estimator


class HandlerStates(Part):
    """The states of handlers: for each key, the class name and the state of each of its handlers.

    Parameters
    ----------
    run : Run
        The argument of the handlers' methods.
    handlers : iterable of EventHandler
        Only Stateful handlers and some of MXNet's have a state. Handlers with the same key keep
        their order.
    """

    def __init__(self, run: Run, handlers: Iterable[EventHandler]) -> None:
        self._run = run
        self._handlers = [h for h in handlers if isinstance(h, Stateful) or _counters_of(h)]

    def state_dict(self) -> State:
        """Return the states; raises TypeError if one is no plain data."""
        filed: dict[str, list[list[Any]]] = {}
        for handler in self._handlers:
            name = type(handler).__name__
            state = self._state_of(handler)
            if not is_data(replace_reductions(state, lambda reduction: reduction.value)):
                raise TypeError(
                    f"the state of {name} cannot be saved: state_dict() must return None, numbers, "
                    "strings, arrays, and lists, tuples, sets and dicts (by strings or integers) "
                    f"of them, got {reprlib.repr(state)}"
                )
            filed.setdefault(state_key(handler), []).append([name, state])
        return filed

    def load_state_dict(self, state: State) -> None:
        """Restore each handler; log handlers without a saved state and states without a handler."""
        waiting = {key: list(saved) for key, saved in state.items()}
        for handler in self._handlers:
            saved = waiting.get(state_key(handler), [])
            index = self._index_of(handler, saved)
            if index is not None:
                self._load(handler, saved.pop(index)[1])
            else:
                self._run.logger.info(
                    "resume: the checkpoint has no state of %s, which starts fresh",
                    type(handler).__name__,
                )
        for saved in waiting.values():
            # A handler with an empty state is not missed.
            if any(content for _, content in saved):
                self._run.logger.warning(
                    "resume: the checkpoint has the state of a %s, which this run does not have: "
                    "it is ignored",
                    saved[0][0],
                )

    def merged(self, states: Sequence[State], is_first: bool) -> State:
        """Let the handlers of this run merge the states; take worker 0's if a handler cannot.

        Raises
        ------
        ValueError
            If a handler says so.
        """
        handlers: dict[str, Stateful] = {}
        for handler in self._handlers:
            if isinstance(handler, Stateful):
                handlers.setdefault(state_key(handler), handler)
        merged: dict[str, list[list[Any]]] = {}
        for key, filed in states[0].items():
            owner = handlers.get(key)
            merged[key] = [
                [name, state if owner is None else owner.merged(every_state, is_first)]
                for (name, state), every_state in zip(
                    filed, _states_by_handler(key, states), strict=True
                )
            ]
        return merged

    def _index_of(self, handler: EventHandler, saved: list[list[Any]]) -> int | None:
        """Return the index of the handler's state among the states under its key.

        Several classes may share a key. The first state of the handler's own class is taken, else
        one whose class is not in this run, because the class may have been renamed.
        """
        class_name, present = type(handler).__name__, {type(h).__name__ for h in self._handlers}
        names = [name for name, _ in saved]
        fitting = [i for i, name in enumerate(names) if name == class_name]
        fitting += [i for i, name in enumerate(names) if name not in present]
        return fitting[0] if fitting else None

    def _state_of(self, handler: EventHandler) -> dict[str, Any]:
        if isinstance(handler, Stateful):
            return handler.state_dict(self._run)
        attributes = vars(handler)
        return {
            name: attributes[name]
            for row in _counters_of(handler)
            for name in row.names
            if name in attributes
        }

    def _load(self, handler: EventHandler, state: State) -> None:
        if isinstance(handler, Stateful):
            handler.load_state_dict(self._run, state)
            return
        vars(handler).update(state)
        for row in _counters_of(handler):
            row.go_on(self._run, handler)


def _states_by_handler(key: str, states: Sequence[State]) -> list[list[State]]:
    """Return, for each handler with this key, its states on all workers."""
    rows = [[state for _, state in by_worker[key]] for by_worker in states]
    return [list(row) for row in zip(*rows, strict=True)]


def handlers_part(run: Run) -> HandlerStates:
    """Return the states of all handlers but those that keep the run's random numbers."""
    return HandlerStates(run, (h for h in run.handlers if state_key(h) != RANDOM_STATE))


def random_state_part(run: Run) -> HandlerStates:
    """Return the states of the handlers that keep the run's random numbers."""
    return HandlerStates(run, (h for h in run.handlers if state_key(h) == RANDOM_STATE))


class _Counters(NamedTuple):
    """The attributes that hold the state of one of MXNet's handlers."""

    kind: type[EventHandler]
    names: tuple[str, ...]
    go_on: Callable[[Run, Any], None] = lambda _run, _handler: None


def _forget_that_it_has_stopped(_run: Run, handler: mx_estimator.StoppingHandler) -> None:
    handler.stop_training = False  # the run may have a greater number of epochs now


def _begin_to_time(_run: Run, handler: mx_estimator.LoggingHandler) -> None:
    handler.epoch_start = time.time()  # which it asks for at the epoch's end


def _stop_again(run: Run, handler: mx_estimator.EarlyStoppingHandler) -> None:
    if handler.stop_training:
        run.stop(StopReason.HANDLER)  # it had ended the run


_COUNTERS = (
    _Counters(
        mx_estimator.StoppingHandler,
        ("current_batch", "current_epoch"),
        _forget_that_it_has_stopped,
    ),
    _Counters(mx_estimator.ValidationHandler, ("current_batch", "current_epoch")),
    _Counters(
        mx_estimator.LoggingHandler,
        ("batch_index", "current_epoch", "processed_samples"),
        _begin_to_time,
    ),
    _Counters(
        mx_estimator.EarlyStoppingHandler,
        ("wait", "best", "stopped_epoch", "current_epoch", "stop_training"),
        _stop_again,
    ),
    _Counters(
        mx_estimator.CheckpointHandler,
        ("current_batch", "current_epoch", "best", "saved_checkpoints"),
    ),
)


def _counters_of(handler: EventHandler) -> list[_Counters]:
    return [row for row in _COUNTERS if isinstance(handler, row.kind)][:1]
