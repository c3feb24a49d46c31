"""Attempt: all processes of a job, started once, and watched until they have ended."""

from __future__ import annotations

import selectors
import signal
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from gluon_svrg.launch.environment import PEER_FAILED
from gluon_svrg.launch.hosts import UNAVAILABLE
from gluon_svrg.launch.nodes import Nodes, Running
from gluon_svrg.launch.output import Output, Terminal
from gluon_svrg.launch.plan import Options, Order, orders_of
from gluon_svrg.launch.signals import Signals

INTERVAL = 0.02
"""Seconds from one look at all processes to the next, if no signal tells of an end before."""
HUNG = 124
"""The exit code of a job without progress, as of the command ``timeout``."""
_CULPRIT_WAIT = 2.0
"""Seconds in which the worker that began may end after those that ended because of it."""
_CRASHES = (255, -signal.SIGABRT, -signal.SIGSEGV)
"""Exit codes of a process that crashes; MXNet's own handler makes 255 of it."""
_SERVER_WAIT = 10.0
"""Seconds that workers may go on without servers."""
_STOP_WAIT = 5.0
"""Seconds that workers have after a signal once one of them has ended badly."""


@dataclass(frozen=True)
class Failure:
    """Why an attempt has ended before its time.

    Attributes
    ----------
    name, pid : str and int or None
        The process that failed first; a machine has a name only.
    what : str
        What it did, as the end of a sentence that begins with its name.
    code : int
        What the launcher exits with if this was the last attempt.
    is_by_itself : bool
        Whether it gave up, and nobody killed it or lost patience.
    last_lines : list of str
        What it said last.
    noticed : float
        For how many seconds this was not seen, at most.
    at : float
        When it was seen, by `time.monotonic`.
    """

    name: str
    pid: int | None
    what: str
    code: int
    is_by_itself: bool
    last_lines: list[str]
    noticed: float
    at: float


class Attempt:
    """One start of all processes.

    Parameters
    ----------
    options : Options
        What is asked of the job.
    number : int
        How often it was started before.
    nodes, terminal, signals : Nodes, Terminal and Signals
        Those of the job.
    failed_at : float, optional
        When the attempt before was seen to fail: the first step tells how long ago that was.

    Attributes
    ----------
    has_begun : bool
        Whether a worker has taken a step.
    seconds : float
        How long it took, until all processes had ended.
    """

    def __init__(
        self,
        options: Options,
        number: int,
        nodes: Nodes,
        terminal: Terminal,
        signals: Signals,
        failed_at: float | None = None,
    ) -> None:
        self.has_begun = False
        self.seconds = 0.0
        self._options = options
        self._number = number
        self._nodes = nodes
        self._terminal = terminal
        self._signals = signals
        self._failed_at = failed_at
        self._processes: list[Running] = []
        self._selector = selectors.DefaultSelector()
        self._seen: dict[str, float] = {}
        self._looked = time.monotonic()

    def run(self) -> Failure | None:
        """Start and watch; return why it failed, or None if all workers came to their end.

        It is None after a signal to the launcher, too. No process is left when this returns.
        """
        begin = time.monotonic()
        try:
            self._start()
            failure = self._watch()
        finally:
            self._end()
            self.seconds = time.monotonic() - begin
        if failure is None:
            return None
        # It may have said something since.
        if failure.pid is None:
            lost = self._nodes.lost()
            return replace(failure, last_lines=lost.last_lines) if lost else failure
        culprit = next(one for one in self._processes if one.name == failure.name)
        return replace(failure, last_lines=culprit.last_lines)

    def _start(self) -> None:
        self._selector.register(self._signals, selectors.EVENT_READ)
        for descriptor, reader in self._nodes.readers().items():
            self._selector.register(descriptor, selectors.EVENT_READ, reader)
        layout = self._nodes.layout(self._options)
        is_alone = sum(layout.workers) == 1
        for order in orders_of(self._options, self._number, layout):
            process = self._nodes.start(order, self._output_of(order, is_alone))
            self._processes.append(process)
            for descriptor in process.readers:
                self._selector.register(descriptor, selectors.EVENT_READ, process)

    def _output_of(self, order: Order, is_alone: bool) -> Output:
        path: Path | None = None
        if self._options.log_dir is not None:
            name = f"{order.name.replace(' ', '-')}-attempt-{self._number}.log"
            path = self._options.log_dir / name
        return Output(self._terminal, "" if is_alone else f"[{order.name}] ", path)

    def _watch(self) -> Failure | None:
        """Return at the first failure, or when all workers have ended."""
        sent = 0
        while True:
            self._listen()
            now = time.monotonic()
            self._look(now)
            if len(self._signals.received) > sent:
                sent += 1
                if sent > 1:
                    return None
                self._pass_on(self._signals.received[0])
            codes = [worker.code for worker in self._workers]
            if not any(codes) and None not in codes:
                return None
            if sent:
                if None not in codes or self._is_late(
                    "a worker failed after the signal", any(self._codes), _STOP_WAIT
                ):
                    return None
            elif failure := (
                self._lost(now) or self._failed(now) or self._servers_gone(now) or self._silent(now)
            ):
                return failure
            self._looked = now

    def _listen(self) -> None:
        """Take what the processes say, until there is something to look at."""
        for key, _ in self._selector.select(INTERVAL):
            if key.fileobj is self._signals:
                self._signals.clear()
            elif not key.data.read(key.fd):
                self._selector.unregister(key.fd)
        if not self.has_begun and any(worker.progress.steps for worker in self._workers):
            self.has_begun = True
            if self._failed_at is not None:
                seconds = time.monotonic() - self._failed_at
                self._terminal.say(f"training again, {seconds:.1f} s after the failure")

    def _look(self, now: float) -> None:
        """See who has ended."""
        for process in self._processes:
            if process.name not in self._seen and process.poll() is not None:
                self._seen[process.name] = now

    @property
    def _workers(self) -> list[Running]:
        return [process for process in self._processes if process.is_worker]

    @property
    def _codes(self) -> list[int]:
        """The exit codes that there are."""
        return [process.code for process in self._processes if process.code is not None]

    def _lost(self, now: float) -> Failure | None:
        """Return the failure of a machine that is gone."""
        if (lost := self._nodes.lost()) is None:
            return None
        noticed = lost.noticed or now - self._looked
        return Failure(lost.name, None, lost.what, UNAVAILABLE, False, [], noticed, now)

    def _failed(self, now: float) -> Failure | None:
        """Return the failure of the process that ended first, if one has ended badly."""
        ended = [process for process in self._processes if process.code]
        failed = [process for process in ended if process.code != PEER_FAILED]
        # MPI may crash in a worker when another one is gone.
        crashes = _CRASHES if self._options.engine == "mpi" else ()
        first = [process for process in failed if process.code not in crashes]
        if not first and not self._is_late("the one that began", bool(ended), _CULPRIT_WAIT):
            return None
        process = min(first or failed or ended, key=lambda one: self._seen[one.name])
        code = process.code or 0
        what = f"was ended by {name_of(-code)}" if code < 0 else f"ended with exit code {code}"
        noticed = now - min(self._looked, self._seen[process.name])
        exit_code = 128 - code if code < 0 else code
        return Failure(process.name, process.pid, what, exit_code, code > 0, [], noticed, now)

    def _servers_gone(self, now: float) -> Failure | None:
        """Return the failure of a server that ended, though well, while workers run on."""
        gone = [one for one in self._processes if not one.is_worker and one.code is not None]
        if not self._is_late("servers are gone", bool(gone), _SERVER_WAIT):
            return None
        what = f"has ended, and the workers have gone on for {_SERVER_WAIT:g} s"
        return Failure(gone[0].name, gone[0].pid, what, 1, False, [], _SERVER_WAIT, now)

    def _silent(self, now: float) -> Failure | None:
        """Return the failure of a job in which a worker has not taken a step for too long."""
        limit = self._options.progress_timeout
        waiting = [
            worker
            for worker in self._workers
            if worker.code is None and worker.progress.is_training
        ]
        if not any(now - worker.progress.last > limit for worker in waiting):
            return None
        stopped = [p for p in self._processes if p.code is None and p.is_stopped]
        slowest = min(waiting, key=lambda worker: worker.progress.beats)
        process = (stopped or [slowest])[0]
        what = f"has taken no step for {limit:g} s (--progress-timeout)"
        if stopped:
            what = f"is stopped (by a SIGSTOP, perhaps), and no step was taken for {limit:g} s"
        elif all(worker.progress.beats == slowest.progress.beats for worker in waiting):
            what += (
                ", nor has any other worker: one of them hangs, and the others wait for it; or a "
                "step takes longer, which --progress-timeout has to be more than"
            )
        return Failure(process.name, process.pid, what, HUNG, False, [], limit, now)

    def _is_late(self, what: str, is_so: bool, limit: float) -> bool:
        """Return whether something has been so for longer than `limit` seconds."""
        now = time.monotonic()
        if not is_so:
            self._seen.pop(what, None)
        return is_so and now - self._seen.setdefault(what, now) >= limit

    def _pass_on(self, number: int) -> None:
        self._terminal.say(
            f"{name_of(number)}: the workers are told, and end by themselves; the same once more "
            "ends them at once"
        )
        for worker in self._workers:
            worker.send(signal.SIGTERM if number == signal.SIGHUP else number)

    def _end(self) -> None:
        """Kill all that is left, at once, and take what it has said.

        Servers have nothing to lose: no worker needs them any more.
        """
        self._nodes.end(self._processes)
        self._selector.close()
        for process in self._processes:
            process.close()


def name_of(number: int) -> str:
    """Return a signal's name."""
    with suppress(ValueError):
        return signal.Signals(number).name
    return f"signal {number}"
