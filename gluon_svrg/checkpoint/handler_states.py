"""The states of a run's handlers, saved under their keys."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from gluon_svrg.class_names import class_key
from gluon_svrg.events import EventHandler, Run, State, Stateful
from gluon_svrg.stops import StopReason
from mxnet.gluon.contrib import estimator as mx_estimator


def save_handlers(run: Run) -> State:
    """Return, for each key, the class name and the state of each handler with this key.

    Only Stateful handlers and some of MXNet's have a state. Handlers with the same key keep their
    order.
    """
    filed: dict[str, list[list[Any]]] = {}
    for handler in _with_state(run):
        state = _state_of(run, handler)
        filed.setdefault(state_key(handler), []).append([type(handler).__name__, state])
    return filed


def load_handlers(run: Run, state: State) -> None:
    """Restore each handler; log handlers without a saved state and states without a handler."""
    handlers = _with_state(run)
    class_names = {type(handler).__name__ for handler in handlers}
    waiting = {key: list(saved) for key, saved in state.items()}
    for handler in handlers:
        saved = waiting.get(state_key(handler), [])
        index = _index_of(handler, saved, class_names)
        if index is not None:
            _load(run, handler, saved.pop(index)[1])
        else:
            run.logger.info(
                "resume: the checkpoint has no state of %s, which starts fresh",
                type(handler).__name__,
            )
    for saved in waiting.values():
        # A handler with an empty state is not missed.
        if any(content for _, content in saved):
            run.logger.warning(
                "resume: the checkpoint has the state of a %s, which this run does not have: "
                "it is ignored",
                saved[0][0],
            )


def merge_handlers(run: Run, states: Sequence[State]) -> State:
    """Let the handlers of this run merge the states; take worker 0's if a handler cannot.

    Raises
    ------
    ValueError
        If a handler says so.
    """
    owners: dict[str, Stateful] = {}
    for handler in run.handlers:
        if isinstance(handler, Stateful):
            owners.setdefault(state_key(handler), handler)
    merged: dict[str, list[list[Any]]] = {}
    for key, filed in states[0].items():
        owner = owners.get(key)
        on_workers = zip(*([state for _, state in by_key[key]] for by_key in states), strict=True)
        merged[key] = [
            [name, state if owner is None else owner.merged(each, run.workers.is_first)]
            for (name, state), each in zip(filed, on_workers, strict=True)
        ]
    return merged


def _with_state(run: Run) -> list[EventHandler]:
    return [h for h in run.handlers if isinstance(h, Stateful) or _counters_of(h)]


def _index_of(handler: EventHandler, saved: list[list[Any]], class_names: set[str]) -> int | None:
    """Return the index of the handler's state among the states under its key.

    Several classes may share a key. The first state of the handler's own class is taken, else
    one whose class is not among those of this run, because the class may have another name now.
    """
    names = [name for name, _ in saved]
    fitting = [i for i, name in enumerate(names) if name == type(handler).__name__]
    fitting += [i for i, name in enumerate(names) if name not in class_names]
    return fitting[0] if fitting else None


def _state_of(run: Run, handler: EventHandler) -> State:
    if isinstance(handler, Stateful):
        return handler.state_dict(run)
    attributes = vars(handler)
    return {
        name: attributes[name]
        for row in _counters_of(handler)
        for name in row.names
        if name in attributes
    }


def _load(run: Run, handler: EventHandler, state: State) -> None:
    if isinstance(handler, Stateful):
        handler.load_state_dict(run, state)
        return
    vars(handler).update(state)
    for row in _counters_of(handler):
        row.after_load(run, handler)


class _Counters(NamedTuple):
    """The attributes that hold the state of one of MXNet's handlers."""

    kind: type[EventHandler]
    names: tuple[str, ...]
    after_load: Callable[[Run, Any], None] = lambda _run, _handler: None


def _clear_stop(_run: Run, handler: mx_estimator.StoppingHandler) -> None:
    handler.stop_training = False  # the run may have a greater number of epochs now


def _start_clock(_run: Run, handler: mx_estimator.LoggingHandler) -> None:
    handler.epoch_start = time.time()  # which it asks for at the epoch's end


def _stop_again(run: Run, handler: mx_estimator.EarlyStoppingHandler) -> None:
    if handler.stop_training:
        run.stop(StopReason.HANDLER)  # it had ended the run


_COUNTERS = (
    _Counters(
        mx_estimator.StoppingHandler,
        ("current_batch", "current_epoch"),
        _clear_stop,
    ),
    _Counters(mx_estimator.ValidationHandler, ("current_batch", "current_epoch")),
    _Counters(
        mx_estimator.LoggingHandler,
        ("batch_index", "current_epoch", "processed_samples"),
        _start_clock,
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


def state_key(handler: object) -> str:
    """Return the key under which the state of `handler` is saved.

    This is the ``state_key`` that its class declares; for MXNet's own handlers a name such as
    ``mxnet.StoppingHandler``; for any other handler the :func:`class_key`.
    """
    if isinstance(handler, Stateful) and handler.state_key is not None:
        return handler.state_key
    handler_class = type(handler)
    if handler_class is getattr(mx_estimator, handler_class.__name__, None):
        return f"mxnet.{handler_class.__name__}"
    return class_key(handler)
