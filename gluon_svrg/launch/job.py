"""Job: attempts, one after the other, until the workers have come to their end or it is no use."""

from __future__ import annotations

import itertools
import re
import signal
import time

from gluon_svrg.launch.attempt import Attempt, Failure
from gluon_svrg.launch.cluster import Cluster
from gluon_svrg.launch.hosts import UNAVAILABLE
from gluon_svrg.launch.keeper import Keeper
from gluon_svrg.launch.nodes import Lost, Nodes, ThisMachine
from gluon_svrg.launch.output import Terminal
from gluon_svrg.launch.plan import Options
from gluon_svrg.launch.processes import adopt
from gluon_svrg.launch.signals import Signals

_START = 20.0
"""Seconds in which a failure before the first step is one of the start."""
_MOST_CLASHES = 5
"""How often a port that somebody else has taken may be the reason of a start that costs nothing."""
_ERROR = re.compile(r"[\w.]+(Error|Exception|Interrupt|Exit)(:|$)")
"""The last line of a traceback, which is a reason; any other is not."""
_CLASH = re.compile(r"address already in use|bind failed|failed to bind", re.IGNORECASE)


class Job:
    """Processes that are started together, and all of them anew when one fails.

    Parameters
    ----------
    options : Options
        What is asked of it.
    """

    def __init__(self, options: Options) -> None:
        self._options = options
        self._terminal = Terminal()
        self._restarts = 0
        self._clashes = 0

    def run(self) -> int:
        """Run to the end and return the exit code; only one job a process, which is all its own."""
        adopt()
        keeper = Keeper()
        signals = Signals()
        nodes = self._nodes_of(keeper, signals)
        code = 1
        try:
            code = self._run(nodes, signals)
        except OSError as error:
            self._terminal.say(f"a process could not be started or watched: {error}")
        finally:
            nodes.close(code)
            keeper.close()
        return code

    def _nodes_of(self, keeper: Keeper, signals: Signals) -> Nodes:
        if self._options.across is None:
            return ThisMachine(keeper, is_alone=self._options.workers == 1)
        return Cluster(self._options, self._options.across, keeper, self._terminal, signals)

    def _run(self, nodes: Nodes, signals: Signals) -> int:
        failed_at: float | None = None
        of_start: tuple[int, str] | None = None
        for number in itertools.count():
            if lost := nodes.connect():
                return self._give_up_on(lost)
            attempt = Attempt(self._options, number, nodes, self._terminal, signals, failed_at)
            failure = None if signals.received else attempt.run()
            if signals.received:
                if failure is not None:
                    self._terminal.say(_sentence(failure))
                self._terminal.say(
                    "ended by a signal, and not started again: the same line goes on from the "
                    "newest checkpoint if the script calls fit with resume='auto'"
                )
                return 128 + signals.received[0]
            if failure is None:
                return 0
            before, of_start = of_start, _of_the_start(failure, attempt)
            way_on = self._way_on(failure, attempt, of_start is not None and of_start == before)
            ended = time.monotonic() - failure.at
            first = f"{_sentence(failure)}; seen within {failure.noticed:.2f} s, the others ended "
            self._terminal.say(f"{first}{ended:.2f} s later")
            if way_on is None:
                return self._give_up(failure, attempt)
            self._terminal.say(way_on)
            failed_at = failure.at
        raise AssertionError("a count has no end")

    def _way_on(self, failure: Failure, attempt: Attempt, as_before: bool) -> str | None:
        """Return what is said of the next start, or None if there is none."""
        if (
            not attempt.has_begun
            and self._clashes < _MOST_CLASHES
            and any(_CLASH.search(line) for line in failure.last_lines)
        ):
            self._clashes += 1
            return "somebody else has taken a port: everything is started again with others"
        if as_before or self._restarts == self._options.max_restarts:
            return None
        self._restarts += 1
        return (
            f"everything is started again: restart {self._restarts} of at most "
            f"{self._options.max_restarts}"
        )

    def _give_up_on(self, lost: Lost) -> int:
        said = f", and said last: {lost.last_lines[-1].strip()}" if lost.last_lines else ""
        self._terminal.say(f"{lost.name} {lost.what}{said}")
        return UNAVAILABLE

    def _give_up(self, failure: Failure, attempt: Attempt) -> int:
        """Say why there is no further start, and the last words of who failed; return its code."""
        if self._restarts < self._options.max_restarts:
            reason = (
                "it has failed twice in the same way before its first step, so it is not started "
                "again: mend what it says"
            )
        elif self._options.max_restarts == 0:
            reason = "it is not started again: --max-restarts is 0"
        else:
            reason = (
                f"no restart is left of --max-restarts {self._restarts}: mend what it says, and "
                "start the job again"
            )
        self._terminal.say(reason)
        if failure.last_lines:
            self._terminal.say(f"the last that {failure.name} said:")
            self._terminal.say("\n".join(f"  {line}" for line in failure.last_lines))
        return failure.code


def _sentence(failure: Failure) -> str:
    if failure.pid is None:
        said = f", and said last: {failure.last_lines[-1].strip()}" if failure.last_lines else ""
        return f"{failure.name} {failure.what}{said}"
    sentence = f"{failure.name} (process {failure.pid}) {failure.what}"
    if failure.code == 128 + signal.SIGKILL:
        return f"{sentence}, by somebody or for want of memory"
    last = failure.last_lines[-1].strip() if failure.is_by_itself and failure.last_lines else ""
    if _ERROR.match(last):
        return f"{sentence}: {last}"
    return f"{sentence}, and said last: {last}" if last else sentence


def _of_the_start(failure: Failure, attempt: Attempt) -> tuple[int, str] | None:
    """Return how an attempt failed that gave up before its first step; None for all others."""
    if attempt.has_begun or attempt.seconds > _START or not failure.is_by_itself:
        return None
    return failure.code, "".join(failure.last_lines[-1:])
