"""StopRequests: what has been asked of a run, from anywhere, at any moment."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable

from gluon_svrg.events import EventHandler, MayStop, Run
from gluon_svrg.run.position import StopReason
from gluon_svrg.workers import progress

_URGENT = (StopReason.SIGNAL, StopReason.TIME_LIMIT)
_SURVIVES_ROLL_BACK = (StopReason.REQUESTED, *_URGENT)

BATCH_END = "batch end"
"""Where a run stands at the end of each batch of the training."""


class StopRequests:
    """The requests to end a run that wait for its next safe point.

    Over several workers a request may come on one of them only, or on some sooner than on others.
    It counts for all of them, and at the same place: where they :meth:`exchange` what they know,
    before each safe point; or where all ask together if something long is to be broken off.

    Parameters
    ----------
    run : Run
        Which run.
    handlers : iterable of EventHandler
        Those of it that are MayStop are asked, too.

    Attributes
    ----------
    reason : StopReason or None
        Why the run is to end at the next safe point: the first reason that was given. Over several
        workers, that all of them know: the same on all.
    """

    def __init__(self, run: Run, handlers: Iterable[EventHandler]) -> None:
        self._run = run
        self._workers = run.workers
        self._is_single_process = not run.workers.are_several
        self._may_stop = [handler for handler in handlers if isinstance(handler, MayStop)]
        self.reason: StopReason | None = None
        self._noted: StopReason | None = None  # here, maybe not yet on the other workers
        self._number = 0
        self._is_urgent = False

    def add(self, reason: StopReason) -> None:
        """Note a request; may be called at any moment, by a signal as well."""
        self._noted = self._noted or reason
        if self._is_single_process:
            self.reason = self._noted
        self._is_urgent |= reason in _URGENT
        self._number += 1

    def decide(self, reason: StopReason) -> None:
        """Note a request that follows from what all workers know: they all make it here."""
        self.add(reason)
        self.reason = self.reason or reason

    def has_come(self) -> bool:
        """Return whether there was one, here."""
        self.ask()
        return self._noted is not None or self._run.stop_reason is not None

    def has_come_to_any(self, at: str) -> bool:
        """Return whether there was one on any worker; all ask this together, at the same place."""
        progress.beat()
        return self._workers.any(self.has_come(), at)

    def interruption(self) -> Callable[[], bool]:
        """Return what tells whether something long that begins now is to be broken off.

        A signal or a time limit counts whenever it came, any other request from now on. Over
        several workers all begin and all ask together.
        """
        known = 0 if self._is_urgent else self._number
        numbers = itertools.count()

        def is_broken_off() -> bool:
            self.ask()
            progress.beat()
            return self._workers.any(
                self._number > known, f"batch {next(numbers)} of the evaluation"
            )

        return is_broken_off

    def exchange(self, at: str, answer: int, roll_back: str | None) -> tuple[int, str | None]:
        """Let all workers know what was asked of any of them; one alone knows it.

        Parameters
        ----------
        at : str
            Where the run stands.
        answer : int
            What the handlers of this worker have answered to the event before.
        roll_back : str or None
            Why this worker is to go back to a checkpoint.

        Returns
        -------
        answer, roll_back
            The greatest answer of all; the reason of the first worker that has one.
        """
        progress.beat()
        if self._is_single_process:
            return answer, roll_back
        self.ask()
        noted = None if self._noted is None else self._noted.name
        votes = self._workers.gather_plain([noted, answer, roll_back], at)
        reasons, answers, roll_backs = zip(*votes, strict=True)
        name = next(filter(None, reasons), None)
        if name is not None:
            self.reason = self.reason or StopReason[name]
        return max(answers), next((why for why in roll_backs if why is not None), None)

    def roll_back(self) -> None:
        """Forget a request that comes again if it is still wanted, now that the run goes back."""
        if self._noted not in _SURVIVES_ROLL_BACK:
            self._noted = None
        if self.reason not in _SURVIVES_ROLL_BACK:
            self.reason = None

    def end(self) -> None:
        """Note that the run is over: the progress limit waits for nothing more."""
        progress.end()

    def ask(self) -> None:
        """Let the handlers that may stop the run do so."""
        for handler in self._may_stop:
            handler.stop_if_due(self._run)
