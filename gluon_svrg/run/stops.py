"""StopRequests: what has been asked of a run, from anywhere, at any moment."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from gluon_svrg.events import EventHandler, MayStop, Run
from gluon_svrg.run.position import StopReason

_URGENT = (StopReason.SIGNAL, StopReason.TIME_LIMIT)
_SURVIVES_ROLL_BACK = (StopReason.REQUESTED, *_URGENT)


class StopRequests:
    """The requests to end a run that wait for its next safe point.

    Parameters
    ----------
    run : Run
        Which run.
    handlers : iterable of EventHandler
        Those of it that are MayStop are asked, too.

    Attributes
    ----------
    reason : StopReason or None
        Why the run is to end at the next safe point; the first that was given.
    """

    def __init__(self, run: Run, handlers: Iterable[EventHandler]) -> None:
        self.reason: StopReason | None = None
        self._run = run
        self._may_stop = [handler for handler in handlers if isinstance(handler, MayStop)]
        self._number = 0
        self._is_urgent = False

    def add(self, reason: StopReason) -> None:
        """Note a request; may be called at any moment, by a signal as well."""
        self.reason = self.reason or reason
        self._is_urgent |= reason in _URGENT
        self._number += 1

    def has_come(self) -> bool:
        """Return whether there was one."""
        self._ask()
        return self.reason is not None or self._run.stop_reason is not None

    def interruption(self) -> Callable[[], bool]:
        """Return what tells whether something long that begins now is to be broken off.

        A signal or a time limit counts whenever it came, any other request from now on.
        """
        known = 0 if self._is_urgent else self._number

        def is_broken_off() -> bool:
            self._ask()
            return self._number > known

        return is_broken_off

    def roll_back(self) -> None:
        """Forget a request that comes again if it is still wanted, now that the run goes back."""
        if self.reason not in _SURVIVES_ROLL_BACK:
            self.reason = None

    def _ask(self) -> None:
        for handler in self._may_stop:
            handler.stop_if_due(self._run)
