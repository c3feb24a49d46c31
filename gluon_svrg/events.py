"""The events of a run and the handlers that get them.

The loop of :class:`gluon_svrg.Estimator`, with each event where it fires::

    fit:
        train_begin
        until the run is to stop:
            epoch_begin
            safe_point
            for batch in train_data:
                batch_begin
                forward and backward pass
                gradient_ready
                batch_end           (its first handler takes the optimizer's step)
                [evaluate]          (if it is due after this batch)
                safe_point
            steps_due               (the step of an accumulation that the epoch's end cuts short)
            [evaluate]              (if it is due after this epoch)
            safe_point
            epoch_end
            safe_point
        train_end

    evaluate:
        epoch_begin
        for batch in val_data:
            batch_begin
            forward pass
            batch_end
        epoch_end

Every event gets the estimator; ``batch_begin`` also ``batch``; ``gradient_ready`` and
``batch_end`` also ``batch``, ``pred``, ``label`` and ``loss`` (lists, one item per context);
``exception_raised`` also ``exception``. A handler gets the events of those classes below that it
inherits from, in the order of the handlers' ``priority`` (lower values first; 0 by default), and in
list order for equal values.

What still happens after each way to stop, in addition to the remaining handlers of the same event:

==============================  =======  ========  =========  ======  =========  =========
way to stop                     more     evaluate  epoch_end  more    train_end  exception
                                batches                       epochs             _raised
==============================  =======  ========  =========  ======  =========  =========
``batch_end`` returns True      no       yes       yes        yes     yes        no
``epoch_end`` returns True      --       --        --         no      yes        no
``stop()`` in a batch           no       yes       yes        no      yes        no
signal, time limit in a batch   no       no        yes        no      yes        no
each of the three in an         no       aborted   yes        no      yes        no
evaluation
each of the three before the    no       no        no         no      yes        no
first batch of an epoch
an exception                    no       no        no         no      no         yes
==============================  =======  ========  =========  ======  =========  =========

``evaluate`` is not an event: the loop evaluates for each :class:`gluon_svrg.ValidationHandler` that
is due. ``estimator.position.phase`` is then ``Phase.EVALUATING``. Only these evaluations add
figures to the history and pass them to handlers. If a handler calls
``estimator.evaluate(other_data)``, this returns the figures and changes nothing.

``safe_point`` follows every ``epoch_begin`` and ``batch_end``. In an epoch that was not cut short
by ``stop()`` or by the number of batches, it also follows ``steps_due`` with its evaluation, and
``epoch_end``. At a safe point a run can end and be continued later. After an exception, only
``exception_raised`` fires.

Two long passes can come between two steps: SVRG's full pass and an evaluation. A stop interrupts
them after their current batch, and a resume repeats them from the beginning:

- SVRG's full pass: the epoch counts as not begun. The remaining handlers do not get its
  ``epoch_begin``, which fires again after the resume; a ``safe_point`` follows. Other passes that
  SVRG makes for a resume are interrupted, too.
- An evaluation: it gives no figures. At its ``safe_point`` the phase is still ``EVALUATING``, and a
  resume from there begins with the evaluation.

Two things are never interrupted: writing a checkpoint, and an evaluation for which a handler calls
``estimator.evaluate``.

With several workers, each runs this loop with its rows of every batch. A worker without a row gets
an empty batch (:func:`gluon_svrg.arrays.batch.is_empty`) and empty lists ``pred``, ``label`` and
``loss``. Before each ``safe_point`` the workers exchange all requests: handlers that returned
True, ``stop()``, ``roll_back()``, a signal, a time limit. A request on one worker takes effect on
all of them at the same point, also in a pass that is interrupted. After an exception on one worker,
the others raise a WorkerError. A handler that communicates with the other workers has to do so in
the same event on all of them.

The classes of the six MXNet events are MXNet's own, so MXNet's handlers run here unchanged. A
handler whose state must survive a resume also inherits from :class:`Stateful`.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from typing import Any, ClassVar, cast

from gluon_svrg._typing import State
from gluon_svrg.run import Run
from gluon_svrg.stops import Interrupted
from mxnet.gluon.contrib import estimator as mx_estimator
from mxnet.gluon.contrib.estimator.event_handler import (
    BatchBegin,
    BatchEnd,
    EpochBegin,
    EpochEnd,
    EventHandler,
    TrainBegin,
    TrainEnd,
)

__all__ = [
    "EVENTS",
    "BatchBegin",
    "BatchEnd",
    "EpochBegin",
    "EpochEnd",
    "EvaluationEnd",
    "EventHandler",
    "ExceptionRaised",
    "GradientReady",
    "HandlerList",
    "HasExclusiveTasks",
    "Interrupted",
    "NotFiniteError",
    "Order",
    "RequiresRun",
    "Run",
    "SafePoint",
    "State",
    "Stateful",
    "TakesDueSteps",
    "TrainBegin",
    "TrainEnd",
]


EventHandlers = EventHandler | Iterable[EventHandler] | None
"""The type of the argument `event_handlers`."""


class Order(float, Enum):
    """The priorities of this package's handlers: lower values are called earlier in an event.

    Your own handler may go between two of them: ``priority = Order.SVRG + 100``. A handler without
    a priority has 0.
    """

    SANITY_CHECK = -6000.0
    BATCH_PROCESSOR = -5000.0
    SCHEDULE = -4000.0
    SVRG = -3000.0
    GUARD = -2500.0
    STEP = -2000.0
    RUNNING_STATISTICS = -1900.0
    AVERAGE = -1500.0
    METRIC = -1000.0
    VALIDATION = -1000.0
    VARIANCE = 500.0
    HISTORY = 1000.0
    MONITOR = 2000.0
    LAST = float("inf")


class GradientReady(EventHandler):
    """Gets *gradient ready*: after the backward pass, before the optimizer's step.

    Here a handler may change the gradients.
    """

    def gradient_ready(self, estimator: Run, *args: Any, **kwargs: Any) -> None:
        """Get ``batch``, ``pred``, ``label`` and ``loss``."""


class TakesDueSteps(EventHandler):
    """Gets *steps due*: all batches of an epoch are done, and its evaluation comes next.

    Here a handler takes the pending step of an accumulation that the end of the epoch cuts short,
    and does what follows a step. So the evaluation uses the final weights of the epoch.
    """

    def steps_due(self, estimator: Run, *args: Any, **kwargs: Any) -> None:
        """Get the estimator alone."""


class SafePoint(EventHandler):
    """Gets *safe point*: between two steps, when all handlers have finished the last event.

    Here a checkpoint can be written. The event fires again if a stop was requested while it fired.
    ``estimator.position`` says which safe point it is. ``estimator.stop_reason`` is None unless
    this is the last safe point of the run.

    Attributes
    ----------
    may_request : bool
        Whether the handler may request a stop or a roll-back at a safe point. If no handler does,
        workers exchange no requests after this event.
    """

    may_request: ClassVar[bool] = True

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "safe_point" in vars(cls) and "may_request" not in vars(cls):
            cls.may_request = True  # the attribute of a base class is about its own method only

    def safe_point(self, estimator: Run, *args: Any, **kwargs: Any) -> None:
        """Get the estimator alone."""


class ExceptionRaised(EventHandler):
    """Gets *exception raised*: an exception, or Ctrl-C, has ended the run.

    Here a handler closes its files; afterwards the exception is raised again.
    """

    def exception_raised(self, estimator: Run, *args: Any, **kwargs: Any) -> None:
        """Get ``exception``."""


class Stateful(EventHandler):
    """Has a state that is saved in checkpoints.

    The state is plain data: None, numbers, strings, NumPy arrays, NDArrays (of any context; they
    come back on the CPU), and lists, tuples and dicts of them. It is read at a *safe point*, on all
    workers together; values that differ between workers are saved for each of them.

    Attributes
    ----------
    state_key : str or None
        The key of the state in a checkpoint. It must never change, even if the class is renamed or
        moved. With None, the default, the key is made from the module and name of the class.
    saves_control_variate : bool
        Whether the state contains the control variate that the handler has set by
        ``trainer.set_control_variate``. If no handler's state does, the log warns that a resumed
        run may have other weights.
    """

    state_key: ClassVar[str | None] = None
    saves_control_variate: ClassVar[bool] = False

    def state_dict(self, estimator: Run) -> State:
        """Return the state."""
        raise NotImplementedError(f"{type(self).__name__} has to define state_dict()")

    def load_state_dict(self, estimator: Run, state: State) -> None:
        """Continue from `state`, which `state_dict` returned in another run.

        Called after *train begin*, when network, trainer and ``estimator.position`` are restored.
        """
        raise NotImplementedError(f"{type(self).__name__} has to define load_state_dict()")

    def merged(self, states: Sequence[State], is_first: bool) -> State:
        """Return a worker's state on a resume with another number of workers.

        By default the first worker's state: most states are the same on all workers.

        Parameters
        ----------
        states : sequence of dict
            The state of each of the workers that wrote the checkpoint; do not change them.
        is_first : bool
            Whether the state is for the first worker of the resumed run.

        Raises
        ------
        ValueError
            If the states cannot be merged.
        """
        return states[0]


class RequiresRun(EventHandler):
    """Works only with :class:`gluon_svrg.Estimator`, which knows how far the run is.

    In a subclass, *train begin* raises ValueError for MXNet's own Estimator.
    """

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "train_begin" not in vars(cls):
            return
        train_begin = cls.train_begin  # type: ignore[attr-defined]

        @functools.wraps(train_begin)
        def checking(self: Any, estimator: Run, *args: Any, **kwargs: Any) -> Any:
            if isinstance(estimator, mx_estimator.Estimator) and not isinstance(estimator, Run):
                raise ValueError(
                    f"{type(self).__name__} does not work with {type(estimator).__module__}."
                    f"{type(estimator).__name__}: use gluon_svrg.Estimator, which takes the same "
                    "arguments"
                )
            return train_begin(self, estimator, *args, **kwargs)

        cls.train_begin = checking  # type: ignore[attr-defined]


class HasExclusiveTasks(EventHandler):
    """Does things that only one handler of a run may do, such as the optimizer's step."""

    def exclusive_tasks(self) -> list[str]:
        """Return the tasks, as they follow "both" in a message: ``["take the optimizer's step"]``.

        If two handlers return the same task, `fit` raises ValueError.
        """
        raise NotImplementedError(f"{type(self).__name__} has to define exclusive_tasks()")


class NotFiniteError(FloatingPointError):
    """A NaN or an infinity has occurred, and a handler has decided to end the run."""


EVENTS: dict[str, type[EventHandler]] = {
    "train_begin": TrainBegin,
    "epoch_begin": EpochBegin,
    "batch_begin": BatchBegin,
    "gradient_ready": GradientReady,
    "batch_end": BatchEnd,
    "safe_point": SafePoint,
    "steps_due": TakesDueSteps,
    "epoch_end": EpochEnd,
    "train_end": TrainEnd,
    "exception_raised": ExceptionRaised,
}
"""The handler class of each event, by the name of the event, which is also the method's name."""


Interceptor = Callable[[str, Sequence[EventHandler], Run, dict[str, Any]], list[EventHandler]]
"""Calls the handlers of an event in place of :meth:`HandlerList.notify`, with the same result."""


class EvaluationEnd(EventHandler):
    """Gets the end of each evaluation in a run."""

    def evaluation_end(self, estimator: Run) -> None:
        """Read the figures, ``estimator.last_evaluation``.

        The network still has the weights that were evaluated, such as an average, with the mean of
        running statistics. Called in the order of `priority`.
        """


# The exclusive tasks of MXNet's handlers, which this package's inherit, and of a base class here.
_EXCLUSIVE_TASKS: list[tuple[type[EventHandler], Callable[[Any], list[str]]]] = [
    (mx_estimator.GradientUpdateHandler, lambda _: ["take the optimizer's step"]),
    (
        mx_estimator.ValidationHandler,
        lambda handler: [f"compute the {getattr(handler, 'name', 'validation')} figures"],
    ),
    (
        mx_estimator.MetricHandler,
        lambda handler: [f"update the metric {metric.name!r}" for metric in handler.metrics],
    ),
    (
        mx_estimator.CheckpointHandler,
        lambda handler: [
            f"write {handler.model_prefix!r} into {os.path.realpath(handler.model_dir)!r}"
        ],
    ),
    (HasExclusiveTasks, lambda handler: handler.exclusive_tasks()),
]


_in_a_run: dict[int, EventHandler] = {}
"""Each handler of a `fit` that has not ended, by its id: not every handler can be hashed."""


def _check_tasks(handlers: Sequence[EventHandler]) -> None:
    """Raise ValueError if two handlers have the same exclusive task, or one is listed twice."""
    owners: dict[str, EventHandler] = {}
    for index, handler in enumerate(handlers):
        name = type(handler).__name__
        if any(handler is other for other in handlers[:index]):
            raise ValueError(
                f"the same {name} is among the handlers twice, and would get each event twice: "
                "give it once"
            )
        for kind, tasks_of in _EXCLUSIVE_TASKS:
            for task in tasks_of(handler) if isinstance(handler, kind) else ():
                other = owners.setdefault(task, handler)
                if other is not handler:
                    or_another = ", or another name" if hasattr(handler, "name") else ""
                    raise ValueError(
                        f"{type(other).__name__} and {name} both {task}: give one of them only"
                        f"{or_another}"
                    )


def handlers_in(event_handlers: EventHandlers) -> list[EventHandler]:
    """Return handlers that are given as None, as one, or as several."""
    if event_handlers is None:
        return []
    if isinstance(event_handlers, Iterable) and not isinstance(event_handlers, str | Mapping):
        return list(event_handlers)
    return [cast(EventHandler, event_handlers)]  # HandlerList raises if it is no handler


class HandlerList:
    """The handlers of a run, in the order in which an event calls them.

    Parameters
    ----------
    handlers : sequence of EventHandler
        Sorted by `priority`; equal ones keep their order.

    Raises
    ------
    ValueError
        If an item is not an EventHandler, or if two have the same exclusive task.

    Attributes
    ----------
    validations : list of EventHandler
        The ValidationHandlers, this package's and MXNet's, for which the loop evaluates.
    interceptor : callable or None
        Called in place of the handlers, with the event, the handlers, the estimator and the other
        arguments. It has to call the handlers itself. A profiler uses it to time the handlers.
    """

    def __init__(self, handlers: Sequence[EventHandler]) -> None:
        self.interceptor: Interceptor | None = None
        for handler in handlers:
            if isinstance(handler, type):
                raise ValueError(
                    f"event_handlers must hold EventHandlers, got the class {handler.__name__}: "
                    f"make one, {handler.__name__}(...)"
                )
            if not isinstance(handler, EventHandler):
                raise ValueError(
                    f"event_handlers must hold EventHandlers, got {handler!r}: inherit from the "
                    "classes of gluon_svrg.events whose events it is to get, or give a handler "
                    "such as gluon_svrg.SVRGHandler()"
                )
        _check_tasks(handlers)
        self._handlers = sorted(handlers, key=_priority)
        self._by_event = {
            event: [handler for handler in self._handlers if isinstance(handler, kind)]
            for event, kind in EVENTS.items()
        }
        kind = mx_estimator.ValidationHandler
        self.validations = [handler for handler in self._handlers if isinstance(handler, kind)]
        for event in ("batch_end", "epoch_end"):  # the loop evaluates
            others = [h for h in self._by_event[event] if not isinstance(h, kind)]
            self._by_event[event] = others

    def __iter__(self) -> Iterator[EventHandler]:
        """Iterate over the handlers."""
        return iter(self._handlers)

    def begin_run(self) -> None:
        """Reserve these handlers for this run until :meth:`end_run`: each has the state of one run.

        Raises
        ------
        RuntimeError
            If one of them already belongs to a run.
        """
        for handler in self._handlers:
            if id(handler) in _in_a_run:
                raise RuntimeError(
                    f"this {type(handler).__name__} belongs to a fit that has not ended yet: make "
                    "another one for this fit"
                )
        _in_a_run.update({id(handler): handler for handler in self._handlers})

    def end_run(self) -> None:
        """Allow other runs to use these handlers."""
        for handler in self._handlers:
            _in_a_run.pop(id(handler), None)

    def for_event(self, event: str) -> list[EventHandler]:
        """Return the handlers of `event`, in their order."""
        return list(self._by_event[event])

    def notify(
        self,
        event: str,
        estimator: Run,
        only: Sequence[EventHandler] | None = None,
        **details: Any,
    ) -> list[EventHandler]:
        """Call all handlers of `event`, or `only` these; return those with a true answer."""
        handlers = self._by_event[event] if only is None else only
        if self.interceptor is not None:
            return self.interceptor(event, handlers, estimator, details)
        return [handler for handler in handlers if getattr(handler, event)(estimator, **details)]

    def notify_safely(self, event: str, estimator: Run, **details: Any) -> None:
        """Call every handler of `event`; log exceptions, and continue with the next handler.

        Ctrl-C and SystemExit are raised after all handlers were called. If there are several, the
        last one is raised.
        """
        interruption: BaseException | None = None
        for handler in self._by_event[event]:
            try:
                getattr(handler, event)(estimator, **details)
            except Exception:
                estimator.logger.exception("%s.%s failed", type(handler).__name__, event)
            except BaseException as error:
                interruption = error
        if interruption is not None:
            raise interruption

    def describe(self) -> str:
        """Return the loop as text: each event, indented as in the loop, with its handlers."""
        depth = {"train_begin": 0, "train_end": 0, "exception_raised": 0}
        depth |= {"epoch_begin": 1, "steps_due": 1, "epoch_end": 1}
        lines = []
        for event, handlers in self._by_event.items():
            indent = "  " * depth.get(event, 2)
            lines.append(f"{indent}{event}")
            lines += [
                f"{indent}  - {type(handler).__name__} (priority {_priority(handler):g})"
                for handler in handlers
            ]
            if event == "batch_begin":
                lines.append(f"{indent}forward and backward pass")
            if event in ("batch_end", "steps_due") and self.validations:
                lines.append(f"{indent}evaluate, if it is due")
                lines += [
                    f"{indent}  - {type(handler).__name__} (priority {_priority(handler):g})"
                    for handler in self.validations
                ]
        return "\n".join(lines)


def _priority(handler: EventHandler) -> float:
    # MXNet's handlers carry a priority or none: this attribute is part of their protocol.
    return float(getattr(handler, "priority", 0))
