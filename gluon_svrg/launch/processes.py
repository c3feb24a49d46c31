"""Process: one process of a job, in a session of its own, which ends with the launcher."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from gluon_svrg.launch.environment import PROGRESS
from gluon_svrg.launch.keeper import Keeper
from gluon_svrg.launch.output import Sink
from gluon_svrg.launch.plan import Order

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_LIBC = ctypes.CDLL(None, use_errno=True)


class Progress:
    """What a worker has said of its steps.

    Attributes
    ----------
    steps : int
        How many there were.
    beats : int
        How often it said anything: at a step, or in a full pass or an evaluation.
    is_training : bool
        Whether more are due: from the first step to the end of a `fit`.
    last : float
        When it last said something, by `time.monotonic`.
    """

    def __init__(self) -> None:
        self.steps = 0
        self.beats = 0
        self.is_training = False
        self.last = time.monotonic()

    def feed(self, data: bytes) -> None:
        """Take what has come."""
        self.steps += data.count(b".")
        self.beats += len(data)
        self.is_training = not data.endswith(b"e")
        self.last = time.monotonic()

    def end(self) -> None:
        """Nothing more comes."""


class Streams(Protocol):
    """Where the output of a process goes."""

    @property
    def stdout(self) -> Sink:
        """Who takes what it prints."""

    @property
    def stderr(self) -> Sink:
        """Who takes its errors."""

    @property
    def last_lines(self) -> list[str]:
        """What was said last, as far as it is worth telling."""

    @property
    def has_log(self) -> bool:
        """Whether it goes into a file, too."""

    def close(self) -> None:
        """Nothing more comes."""


class Process:
    """A process that was started, with its output.

    Parameters
    ----------
    order : Order
        What to start.
    keeper : Keeper
        Who ends it if the launcher is killed.
    output : Streams
        Where its output goes.
    progress : Progress
        Who is told of its steps.
    is_alone : bool
        Whether it is the only one: then it has the launcher's own output, unless there is a log,
        and nobody counts its steps.

    Attributes
    ----------
    name : str
        As in ``worker 0``.
    is_worker : bool
        Whether it is one: else a server or the scheduler.
    code : int or None
        How it ended, as in `subprocess`: a negative number is a signal's.
    progress : Progress
        What it has said of its steps.
    readers : dict
        Who takes what comes through its pipes, by descriptor.
    """

    def __init__(
        self, order: Order, keeper: Keeper, output: Streams, progress: Progress, *, is_alone: bool
    ) -> None:
        self.name = order.name
        self.is_worker = order.is_worker
        self.code: int | None = None
        self.progress = progress
        self._keeper = keeper
        self._output = output
        self.readers: dict[int, Sink] = {}
        is_piped = not is_alone or output.has_log
        has_stdin = is_alone or self.name == "worker 0"
        environment, passed = dict(order.environment), []
        if self.is_worker and not is_alone:
            read, write = os.pipe()
            environment[PROGRESS] = str(write)
            passed.append(write)
            self._listen(read, self.progress)
        try:
            self._popen = subprocess.Popen(
                order.command,
                bufsize=0,
                env=environment,
                stdin=None if has_stdin else subprocess.DEVNULL,
                stdout=subprocess.PIPE if is_piped else None,
                stderr=subprocess.PIPE if is_piped else None,
                pass_fds=passed,
                start_new_session=True,
                preexec_fn=_ends_with(os.getpid()),
            )
        finally:
            for descriptor in passed:
                os.close(descriptor)
        keeper.add(self.pid)
        for pipe, stream in (
            (self._popen.stdout, output.stdout),
            (self._popen.stderr, output.stderr),
        ):
            if pipe is not None:
                self._listen(os.dup(pipe.fileno()), stream)
                pipe.close()

    @property
    def pid(self) -> int:
        """Its number, and its group's and session's."""
        return self._popen.pid

    @property
    def last_lines(self) -> list[str]:
        """What it said last, as far as it is worth telling."""
        return self._output.last_lines

    @property
    def is_stopped(self) -> bool:
        """Whether it runs no longer, and has not ended: by a SIGSTOP, or a debugger."""
        status = status_of(self.pid)
        return status is not None and status[0] in "Tt"

    def read(self, descriptor: int) -> bool:
        """Take what has come through one of its pipes; return whether more may come."""
        reader = self.readers[descriptor]
        try:
            data = os.read(descriptor, 1 << 16)
        except BlockingIOError:
            return True
        if data:
            reader.feed(data)
            return True
        reader.end()
        del self.readers[descriptor]
        os.close(descriptor)
        return False

    def poll(self) -> int | None:
        """Return its code if it has ended; what it has started is killed then."""
        if self.code is None:
            # It stays a zombie until its group is killed: the group's number is its own that long.
            flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
            if os.waitid(os.P_PID, self.pid, flags) is not None:
                self._reap()
        return self.code

    def send(self, number: int) -> None:
        """Send a signal to it alone."""
        if self.code is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """End it and all that it has started, at once."""
        if self.code is None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)

    def wait(self) -> None:
        """Wait for the end of it, after `kill`."""
        if self.code is None:
            os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
            self._reap()

    def close(self) -> None:
        """Take what is still in its pipes, without waiting for more, and close them."""
        for descriptor, reader in list(self.readers.items()):
            with suppress(BlockingIOError):
                while data := os.read(descriptor, 1 << 16):
                    reader.feed(data)
            reader.end()
            os.close(descriptor)
        self.readers = {}
        self._output.close()

    def _listen(self, descriptor: int, reader: Sink) -> None:
        os.set_blocking(descriptor, False)
        self.readers[descriptor] = reader

    def _reap(self) -> None:
        self.kill()
        self._keeper.remove(self.pid)
        self.code = self._popen.wait()


def _ends_with(parent: int) -> Callable[[], None]:
    """Return what a new process does first: it asks for a SIGKILL at the end of its parent."""

    def bind() -> None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:  # it has ended before
            os._exit(1)

    return bind


def adopt() -> None:
    """Become the parent of whatever a process of the job leaves behind: see `end_orphans`."""
    _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def end_orphans(spared: int) -> None:
    """Kill all children of this process but one: what has left the group it was started in."""
    end = time.monotonic() + 2.0
    while orphans := [pid for pid in _children() if pid != spared]:
        for pid in orphans:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
            with suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        if time.monotonic() > end:  # one hangs in the kernel
            return
        time.sleep(0.002)


def reap(spared: Collection[int]) -> None:
    """Take the ends of children that were adopted; somebody else waits for those of `spared`."""
    for pid in _children():
        if pid not in spared:
            with suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)


def _children() -> Iterator[int]:
    own = os.getpid()
    for folder in Path("/proc").glob("[0-9]*"):
        status = status_of(int(folder.name))
        if status is not None and status[1] == own:
            yield int(folder.name)


def status_of(pid: int) -> tuple[str, int] | None:
    """Return the state of a process (``T``: stopped) and its parent; None if there is none."""
    try:
        data = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    # The name, in parentheses, may have anything in it; it is cut at 15 bytes, within a character.
    state, parent = data.rpartition(b")")[2].split()[:2]
    return state.decode(), int(parent)
