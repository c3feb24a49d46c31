"""Why a run ends, and the requests to end it."""

from __future__ import annotations

import itertools
import logging
import math
import time
from collections.abc import Callable
from enum import Enum

from gluon_svrg._typing import LOGGER
from gluon_svrg.workers import Workers
from gluon_svrg.workers.progress import progress_limit

BATCH_END = "batch end"
"""The label of the exchange at the end of each training batch."""


class StopReason(Enum):
    """Why a run ended."""

    EPOCHS_DONE = "all epochs are done"
    BATCHES_DONE = "all batches are done"
    HANDLER = "a handler asked to stop"
    REQUESTED = "stop() was called"
    NO_IMPROVEMENT = "the monitored figure improved no longer"
    NOT_FINITE = "a loss, a gradient or a monitored figure was NaN or infinite"
    SIGNAL = "a signal (such as Ctrl-C or SIGTERM) asked to stop"
    TIME_LIMIT = "the time limit was reached"


class Interrupted(Exception):  # noqa: N818  # not an error: it was requested
    """A stop interrupted a long pass, which a resume repeats from its beginning."""

    def __init__(self) -> None:
        super().__init__("a stop was requested")


_URGENT = (StopReason.SIGNAL, StopReason.TIME_LIMIT)
_SURVIVES_ROLL_BACK = (StopReason.REQUESTED, *_URGENT)


class StopRequests:
    """The requests to end a run that wait for its next safe point.

    A request may come at any time, from any thread or signal handler. With several workers, it may
    come on only one of them. It takes effect on all workers at the same point: before a safe point,
    when they :meth:`synchronize`, or when all check together whether to abort a long pass.

    Parameters
    ----------
    workers : Workers
        The processes of the run.

    Attributes
    ----------
    reason : StopReason or None
        Why the run ends at the next safe point: the first reason that was given, the same on all
        workers.
    """

    def __init__(self, workers: Workers) -> None:
        self._workers = workers
        self._is_single_process = not workers.is_distributed
        self.reason: StopReason | None = None
        self._noted: StopReason | None = None  # on this worker; the others may not know of it yet
        self._number = 0
        self._is_urgent = False
        self._time_limit = self._deadline = math.inf
        self._progress_limit = progress_limit()

    def request(self, reason: StopReason) -> None:
        """Request the end of the run; may be called at any time, also by a signal handler."""
        self._noted = self._noted or reason
        if self._is_single_process:
            self.reason = self._noted
        self._is_urgent |= reason in _URGENT
        self._number += 1

    def request_after(self, seconds: float) -> None:
        """Request the end of the run after this time; the earliest of several limits applies.

        Parameters
        ----------
        seconds : float
            Wall-clock time, counted from now.
        """
        if time.monotonic() + seconds < self._deadline:
            self._time_limit, self._deadline = seconds, time.monotonic() + seconds

    def agree(self, reason: StopReason) -> None:
        """Request the end for a reason that all workers know; all of them must call this."""
        self.request(reason)
        self.reason = self.reason or reason

    def is_requested(self) -> bool:
        """Return whether a stop was requested on this worker."""
        self.check_deadline()
        return self._noted is not None

    def check(self, what: str, includes_earlier: bool = False) -> Callable[[], bool]:
        """Return a function that says whether to abort a long pass.

        All workers must call this method, and the function that it returns, together.

        Parameters
        ----------
        what : str
            The pass, the same on all workers: ``'the evaluation'``.
        includes_earlier : bool
            Whether every stop that was requested before the pass aborts it. By default, of the
            earlier requests only a signal and a time limit do; later requests always do.
        """
        known = 0 if self._is_urgent else self._number
        numbers = itertools.count()

        def is_to_abort() -> bool:
            self.check_deadline()
            self.step_completed()
            is_requested = self.is_requested() if includes_earlier else self._number > known
            return self._workers.all_any(is_requested, f"batch {next(numbers)} of {what}")

        return is_to_abort

    def synchronize(
        self, label: str, is_to_end: bool, roll_back: str | None
    ) -> tuple[bool, str | None]:
        """Exchange stop and roll-back requests between workers.

        Parameters
        ----------
        label : str
            The name of this exchange, which must be the same on all workers.
        is_to_end : bool
            Whether a handler of this worker has answered the last event with True.
        roll_back : str or None
            Why this worker wants to go back to a checkpoint.

        Returns
        -------
        is_to_end, roll_back
            Whether a handler of any worker has answered with True; the roll-back reason of the
            first worker that has one.
        """
        self.step_completed()
        self.check_deadline()
        if self._is_single_process:
            return is_to_end, roll_back
        noted = None if self._noted is None else self._noted.name
        votes = self._workers.all_gather_object([noted, is_to_end, roll_back], label)
        reasons, answers, roll_backs = zip(*votes, strict=True)
        name = next(filter(None, reasons), None)
        if name is not None:
            self.reason = self.reason or StopReason[name]
        return any(answers), next((why for why in roll_backs if why is not None), None)

    def roll_back(self) -> None:
        """Drop requests that the repeated epochs will make again, because the run goes back."""
        if self._noted not in _SURVIVES_ROLL_BACK:
            self._noted = None
        if self.reason not in _SURVIVES_ROLL_BACK:
            self.reason = None

    def step_completed(self) -> None:
        """Restart the timer of the launcher's progress limit."""
        if self._progress_limit is not None:
            self._progress_limit.step_completed()

    def close(self) -> None:
        """End the run: the launcher's progress limit no longer applies."""
        if self._progress_limit is not None:
            self._progress_limit.cancel()

    def check_deadline(self) -> None:
        """Request the end of the run if its time is over."""
        if self._deadline < math.inf and time.monotonic() >= self._deadline:
            self._deadline = math.inf
            self.request(StopReason.TIME_LIMIT)
            logging.getLogger(LOGGER).info(
                "the run ends: its time limit of %g s is reached", self._time_limit
            )
