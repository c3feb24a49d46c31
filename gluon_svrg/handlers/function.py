"""on(): a handler from a function."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from gluon_svrg.arguments import check_integer
from gluon_svrg.events import EVENTS, EventHandler, RequiresRun, Run
from gluon_svrg.run import EVENTS_OF_BATCHES, EVENTS_OF_EPOCHS


def on(
    event: str, function: Callable[..., object], every: int = 1, *, priority: float = 0
) -> EventHandler:
    """Return a handler that calls a function at an event, as Keras' LambdaCallback does.

    ::

        gs.on("epoch_end", lambda estimator: print(estimator.history[-1]), priority=2000)
        gs.on("batch_end", lambda estimator, loss: losses.append(loss[0].mean()), every=100)

    Parameters
    ----------
    event : str
        The name of an event, as in :mod:`gluon_svrg.events`: ``'epoch_end'``.
    function : callable
        Called with the estimator, and with those keyword arguments of the event that it has
        parameters for: ``loss``, or all of them with ``**details``. If it returns True at *batch
        end* or *epoch end*, it ends the epoch or the run, as any handler does. Another result
        changes nothing.
    every : int
        Call it every this many epochs at an event of epochs, or batches at an event of batches,
        counted from the beginning of the run, also after a resume.
    priority : float
        As of any handler: the lower, the earlier. The row of the epoch is in ``estimator.history``
        from 1000 on.

    Raises
    ------
    TypeError
        If `function` cannot be called, or `every` is no integer.
    ValueError
        If there is no such event, `every` is not positive, or it is above 1 at an event that is
        neither one of epochs nor one of batches.
    """
    if event not in EVENTS:
        raise ValueError(f"event must be one of {', '.join(map(repr, EVENTS))}, got {event!r}")
    if not callable(function):
        raise TypeError(
            f"function must be callable, got {function!r}: it is called with the estimator"
        )
    check_integer("every", every, 1, "the number of epochs or batches between two calls")
    if every > 1 and event not in EVENTS_OF_BATCHES + EVENTS_OF_EPOCHS:
        raise ValueError(
            f"every must be 1 at {event!r}, got {every!r}: only events of epochs and batches are "
            "counted"
        )
    bases = (_FunctionHandler, EVENTS[event])
    handler: Any = type(_FunctionHandler.__name__, bases, {event: _FunctionHandler.call})
    made: EventHandler = handler(event, function, every, float(priority))
    return made


class _FunctionHandler(RequiresRun):
    """Calls a function at an event."""

    def __init__(
        self, event: str, function: Callable[..., object], every: int, priority: float
    ) -> None:
        self.priority = priority
        self._event, self._function, self._every = event, function, every
        parameters = inspect.signature(function).parameters.values()
        self._takes_all = any(p.kind is p.VAR_KEYWORD for p in parameters)
        self._names = {
            p.name for p in parameters if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)
        }

    def call(self, estimator: Run, *args: Any, **details: Any) -> bool:
        """Call the function, if it is time; return whether it has returned True."""
        # With 1 it may be an event that is not counted.
        every = self._every
        if every > 1 and not estimator.position.is_due(self._event, every, every):
            return False
        known = {k: v for k, v in details.items() if self._takes_all or k in self._names}
        return self._function(estimator, **known) is True
