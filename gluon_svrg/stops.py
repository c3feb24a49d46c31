"""StopRequests: the requests to end a run."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable

from gluon_svrg.events import EventHandler, MayStop, Run
from gluon_svrg.run import StopReason
from gluon_svrg.workers.progress import progress_limit

_URGENT = (StopReason.SIGNAL, StopReason.TIME_LIMIT)
_SURVIVES_ROLL_BACK = (StopReason.REQUESTED, *_URGENT)

BATCH_END = "batch end"
"""The label of the exchange at the end of each training batch."""


class StopRequests:
    """The requests to end a run that wait for its next safe point.

    A request may come at any moment, from any thread or signal. Over several workers it may come
    on one of them only. It counts for all of them, and at the same place: before each safe point,
    when they :meth:`synchronize`, or when all ask together whether to abort a long pass.

    Parameters
    ----------
    run : Run
        The run.
    handlers : iterable of EventHandler
        Its handlers. Those that are MayStop are polled for a reason to stop.

    Attributes
    ----------
    reason : StopReason or None
        Why the run ends at the next safe point: the first reason that was given. It is the same on
        all workers.
    """

    def __init__(self, run: Run, handlers: Iterable[EventHandler]) -> None:
        self._run = run
        self._workers = run.workers
        self._is_single_process = not run.workers.is_distributed
        self._may_stop = [handler for handler in handlers if isinstance(handler, MayStop)]
        self.reason: StopReason | None = None
        self._noted: StopReason | None = None  # on this worker; the others may not know it yet
        self._number = 0
        self._is_urgent = False
        self._progress_limit = progress_limit()

    def request(self, reason: StopReason) -> None:
        """Request the end of the run; may be called at any moment, also by a signal."""
        self._noted = self._noted or reason
        if self._is_single_process:
            self.reason = self._noted
        self._is_urgent |= reason in _URGENT
        self._number += 1

    def agree(self, reason: StopReason) -> None:
        """Request the end for a reason that all workers know: all of them call this."""
        self.request(reason)
        self.reason = self.reason or reason

    def is_requested(self) -> bool:
        """Return whether a stop was requested on this worker."""
        self.poll_handlers()
        return self._noted is not None or self._run.stop_reason is not None

    def is_requested_anywhere(self, label: str) -> bool:
        """Return whether a stop was requested on any worker; all workers call this together."""
        if self._progress_limit is not None:
            self._progress_limit.step_completed()
        return self._workers.all_any(self.is_requested(), label)

    def stop_check(self) -> Callable[[], bool]:
        """Return a function that says whether to abort a long pass that begins now.

        A signal or a time limit counts whenever it came, any other request only from now on. All
        workers call this together, and the function that it returns, too.
        """
        known = 0 if self._is_urgent else self._number
        numbers = itertools.count()

        def is_to_abort() -> bool:
            self.poll_handlers()
            if self._progress_limit is not None:
                self._progress_limit.step_completed()
            return self._workers.all_any(
                self._number > known, f"batch {next(numbers)} of the evaluation"
            )

        return is_to_abort

    def synchronize(self, label: str, answer: int, roll_back: str | None) -> tuple[int, str | None]:
        """Exchange stop and roll-back requests between workers; return the combined answer.

        Parameters
        ----------
        label : str
            The name of this exchange, which must be the same on all workers.
        answer : int
            The answer of this worker's handlers to the last event.
        roll_back : str or None
            Why this worker wants to go back to a checkpoint.

        Returns
        -------
        answer, roll_back
            The largest answer of all workers; the reason of the first worker that has one.
        """
        if self._progress_limit is not None:
            self._progress_limit.step_completed()
        if self._is_single_process:
            return answer, roll_back
        self.poll_handlers()
        noted = None if self._noted is None else self._noted.name
        votes = self._workers.all_gather_object([noted, answer, roll_back], label)
        reasons, answers, roll_backs = zip(*votes, strict=True)
        name = next(filter(None, reasons), None)
        if name is not None:
            self.reason = self.reason or StopReason[name]
        return max(answers), next((why for why in roll_backs if why is not None), None)

    def roll_back(self) -> None:
        """Forget requests that the repeated epochs will make again, as the run goes back."""
        if self._noted not in _SURVIVES_ROLL_BACK:
            self._noted = None
        if self.reason not in _SURVIVES_ROLL_BACK:
            self.reason = None

    def close(self) -> None:
        """End the run: the launcher's progress limit no longer applies."""
        if self._progress_limit is not None:
            self._progress_limit.cancel()

    def poll_handlers(self) -> None:
        """Let the handlers that may stop the run do so."""
        for handler in self._may_stop:
            handler.stop_if_due(self._run)
