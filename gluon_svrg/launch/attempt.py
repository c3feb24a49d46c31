"""Attempt: one run of mpiexec, watched until it has ended, and why it has ended."""

from __future__ import annotations

import os
import re
import selectors
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from gluon_svrg.launch.ends import end_with
from gluon_svrg.launch.hosts import is_here
from gluon_svrg.launch.output import Output, say
from gluon_svrg.launch.signals import Signals, name_of

HUNG = 124
"""The exit code of a job without progress, as of the command ``timeout``."""
INTERVAL = 0.5
"""Seconds between two looks at the processes on this machine."""
STOPPED_WAIT = 10.0
"""Seconds for which a process of the job may be stopped (SIGSTOP), which MPI does not notice."""
GONE_WAIT = 2.0
"""Seconds after which mpiexec has noticed the end of a proxy or ssh of its own, or never will: it
does not if that is killed, or if a worker on another host ends before MPI_Init on this one."""
END_WAIT = 10.0
"""Seconds in which mpiexec has ended all workers after one of them has said that it fails. It waits
for ever for a host that does not answer."""
STACKS_WAIT = 3.0
"""Seconds in which all workers have printed their stacks after the first: they count from their own
last step, or from one at most a second before."""
_BLOCK = re.compile(r"=\s+PID (\d+) RUNNING AT (\S+)\n=\s+EXIT CODE: (\d+)")
_SIGNAL = re.compile(r"EXIT STRING: .*\(signal (\d+)\)")
"""mpiexec prints this line only after a signal. The EXIT CODE of the block may be that of a worker
that it has killed itself."""
_MPIEXEC_FAILED = 255
"""mpiexec's own exit code, without an EXIT STRING, if a proxy fails while it ends the others: on
another host every second time. The EXIT CODE of the block is then the number of the signal, or the
exit code of a worker that has left by `os._exit`. There is no block if a worker that has come to
its end is killed in MPI_Finalize."""
_FATAL = {
    *(signal.SIGILL, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE),
    *(signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM),
}
_PR_SET_CHILD_SUBREAPER = 36


@dataclass(frozen=True)
class Outcome:
    """How an attempt has ended.

    Attributes
    ----------
    code : int
        0, or what the supervisor exits with if this was the last attempt.
    sentence : str
        Why, if not by a good end.
    is_by_itself : bool
        Whether the script gave up, so that it may do it again, and was not killed.
    """

    code: int
    sentence: str = ""
    is_by_itself: bool = False


class Attempt:
    """One run of mpiexec, or of the script itself if there is one worker.

    Parameters
    ----------
    command : sequence of str
        What to run.
    environment : mapping of str to str
        For all processes.
    signals : Signals
        Those of the supervisor.
    number : int
        How often the job was started before.
    log_dir : path, optional
        Where the output is written to, too.
    workers : int
        How many there are; 0 if the command is the script itself, which then has the terminal.
    """

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        signals: Signals,
        number: int,
        log_dir: Path | None,
        *,
        workers: int,
    ) -> None:
        self._command, self._environment, self._signals = command, environment, signals
        self._size, self._is_alone = workers, workers == 0
        self._output = Output(self._note, log_dir, number)
        self._workers: dict[int, tuple[int, str]] = {}  # process and host, by rank
        self._reasons: list[tuple[str, int, int, str]] = []  # word, rank, exit code, text
        self._done: set[int] = set()
        self._ended: list[int] = []  # ranks on this machine, in the order of their ends
        self._ended_first = 0  # how many of them were seen at the first look that saw any
        self._helpers: set[int] = set()  # of mpiexec, one per host: its proxy, or ssh
        self._seen: dict[tuple[int, str], float] = {}
        self._stuck: str | None = None

    def run(self) -> Outcome:
        """Start, hand signals on, and return when no process is left."""
        parent, pipe = os.getpid(), None if self._is_alone else subprocess.PIPE
        self._process = subprocess.Popen(
            self._command,
            env=self._environment,
            stdout=pipe,
            stderr=pipe,
            bufsize=0,
            start_new_session=True,  # or Ctrl-C would reach it twice
            preexec_fn=lambda: end_with(parent),
        )
        try:
            self._watch()
        finally:
            self._kill()
            self._output.close()
        return self._outcome()

    def _watch(self) -> None:
        sent = 0
        with selectors.DefaultSelector() as selector:
            self._selector: selectors.BaseSelector | None = selector
            selector.register(self._signals, selectors.EVENT_READ, 0)
            for descriptor, stream in ((1, self._process.stdout), (2, self._process.stderr)):
                if stream is not None:
                    os.set_blocking(stream.fileno(), False)
                    selector.register(stream, selectors.EVENT_READ, descriptor)
            while self._process.poll() is None and self._stuck is None:
                for key, _ in selector.select(INTERVAL):
                    if key.data == 0:
                        self._signals.clear()
                    elif key.data < 0:
                        self._note_end(key.fd, -1 - key.data)
                    elif not self._read(key.fd, key.data):
                        selector.unregister(key.fileobj)
                self._ended_first = self._ended_first or len(self._ended)
                if len(self._signals.received) > sent:
                    sent += 1
                    # mpiexec loses a signal that comes before its workers have begun.
                    if sent > 1 or len(self._workers) < self._size:
                        return
                    self._hand_on(self._signals.received[0])
                if not self._is_alone:
                    self._look(time.monotonic())
            # Its last words; a process that has left the job may hold the pipe open.
            for key in list(selector.get_map().values()):
                if key.data < 0:
                    os.close(key.fd)
                while key.data > 0 and self._read(key.fd, key.data, is_last=True):
                    pass
            self._selector = None

    def _read(self, descriptor: int, stream: int, *, is_last: bool = False) -> bool:
        """Take what was printed; return whether more may come."""
        try:
            data = os.read(descriptor, 1 << 16)
        except BlockingIOError:
            return not is_last
        self._output.feed(stream, data)
        return bool(data)

    def _hand_on(self, number: int) -> None:
        say(
            f"{name_of(number)}: the workers are told, and stop after this batch; the same again "
            "ends them at once"
        )
        # mpiexec hands the other three to all workers; it kills them at SIGHUP.
        with suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGTERM if number == signal.SIGHUP else number)

    def _note(self, rank: int, host: str, text: str) -> None:
        """Take what a worker tells the supervisor."""
        word, _, rest = text.partition(" ")
        if word == "process" and rest.isdigit():
            self._workers[rank] = int(rest), host
            if is_here(host) and self._selector is not None:
                # Readable at its end. The first to end is the cause: mpiexec kills the others.
                try:
                    descriptor = os.pidfd_open(int(rest))
                    self._selector.register(descriptor, selectors.EVENT_READ, -1 - rank)
                except ProcessLookupError:  # its line was read late
                    self._ended.append(rank)
                except OSError:  # of a kernel without such descriptors
                    pass
        elif word == "done":
            self._done.add(rank)
        elif word in ("why", "heard") and not self._output.timeouts:  # or it is a consequence
            code, _, reason = rest.partition(" ")
            self._reasons.append((word, rank, int(code), reason))

    def _note_end(self, descriptor: int, rank: int) -> None:
        assert self._selector is not None
        self._ended.append(rank)
        self._selector.unregister(descriptor)
        os.close(descriptor)

    # --- What mpiexec does not notice ------------------------------------------------------------

    def _look(self, now: float) -> None:
        """End a job that would never end."""
        if self._reasons or self._output.timeouts:
            wait = STACKS_WAIT if self._output.timeouts else END_WAIT
            if self._is_late(0, "failed", now, wait):
                self._stuck = ""
            return
        mpiexec = self._process.pid
        if len(self._ended) == self._size:
            # What they have started may hold their output open, for whose end mpiexec waits.
            kill_descendants(but=mpiexec)
        ranks = {pid: rank for rank, (pid, _) in self._workers.items()}
        helpers = children_of(mpiexec)
        self._helpers.update(helpers)
        names = {mpiexec: "mpiexec"} | dict.fromkeys(self._helpers, "mpiexec's own helper")
        for pid in (pid for helper in helpers for pid in children_of(helper)):
            names[pid] = f"worker {ranks[pid]}" if pid in ranks else "a worker before MPI_Init"
        is_over = len(self._done) == self._size
        for pid, name in names.items():
            state = state_of(pid)
            is_gone = pid in self._helpers and state in ("", "Z") and not is_over
            for key, is_so, limit, what in (
                ("T", state == "T", STOPPED_WAIT, "is stopped, perhaps by a SIGSTOP"),
                ("Z", is_gone, GONE_WAIT, "has ended before the workers"),
            ):
                if not is_so:
                    self._seen.pop((pid, key), None)
                elif self._is_late(pid, key, now, limit):
                    self._stuck = f"{name} (process {pid}) {what}"
                    return

    def _is_late(self, pid: int, key: str, now: float, limit: float) -> bool:
        return now - self._seen.setdefault((pid, key), now) >= limit

    def _kill(self) -> None:
        """Kill what is left on this machine; on others mpiexec's end does it."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        for stream in (self._process.stdout, self._process.stderr):
            if stream is not None:
                with suppress(OSError):
                    while data := os.read(stream.fileno(), 1 << 16):
                        self._output.feed(1 if stream is self._process.stdout else 2, data)
                stream.close()
        kill_descendants()
        if not self._is_alone and self._process.returncode:
            remove_shared_memory()

    # --- The sentence --------------------------------------------------------------------------

    def _outcome(self) -> Outcome:
        code = self._process.returncode
        if code == 0 and self._stuck is None:
            missing = sorted(set(range(self._size)) - self._done)
            if not missing:
                return Outcome(0)
            text = (
                "the workers were ended because one of them left by os._exit(0), which MPI forbids"
            )
            return Outcome(1, f"{text}: {', '.join(map(self._name, missing))}", True)
        if self._stuck:
            return Outcome(HUNG, self._stuck)
        if self._is_alone:
            return _ended(f"the script (process {self._process.pid})", code)
        for word in ("why", "heard"):
            for kind, rank, own_code, reason in self._reasons:
                if kind == word:
                    return Outcome(own_code, f"{self._name(rank)} failed: {reason}", True)
        if self._output.timeouts:
            return Outcome(HUNG, self._hang())
        return self._by_mpiexec(code)

    def _by_mpiexec(self, code: int) -> Outcome:
        """Return what mpiexec says: a worker that is killed cannot say why."""
        said = list(self._output.of_mpiexec)
        text = "\n".join(said)
        block, signal_ = _BLOCK.search(text), _SIGNAL.search(text)
        number = int(signal_[1]) if signal_ else 0
        exit_code = code
        if block and not signal_ and code == _MPIEXEC_FAILED:
            exit_code = int(block[3])
            number = exit_code if exit_code in _FATAL else 0
        ranks = self._ended[: max(1, self._ended_first)]
        if block and len(ranks) != 1:  # of several that were seen at once, mpiexec names the first
            own = int(block[1]), block[2]
            ranks = [rank for rank, process in self._workers.items() if process == own] or ranks
        if block and number:
            name = self._name(ranks[0]) if ranks else f"a worker on {block[2]}, before MPI started,"
            return _ended(name, -number)
        if ranks and 0 < exit_code < 128:
            return _ended(self._name(ranks[0]), exit_code)
        last = next((line for line in reversed(said) if not line.startswith(("[", "="))), "")
        outcome = _ended(f"mpiexec (process {self._process.pid})", code)
        suffix = f", and said last: {last}" if last else ""
        is_by_itself = outcome.is_by_itself and code != _MPIEXEC_FAILED
        return Outcome(outcome.code, outcome.sentence + suffix, is_by_itself)

    def _is_over_hosts(self) -> bool:
        return len({host for _, host in self._workers.values()}) > 1

    def _name(self, rank: int) -> str:
        if rank not in self._workers:
            return f"worker {rank}"
        pid, host = self._workers[rank]
        return f"worker {rank} (process {pid}{f' on {host}' if self._is_over_hosts() else ''})"

    def _hang(self) -> str:
        silent = sorted(self._workers.keys() - self._output.timeouts)
        text = "no step was taken for too long (--progress-timeout)"
        if silent:
            names = ", ".join(map(self._name, silent))
            return f"{text}; without a stack above, so perhaps stopped or cut off: {names}"
        return f"{text}; the stacks above show where each worker was"


def _ended(name: str, code: int) -> Outcome:
    """Return the outcome of a process that ended with this code; below 0 by a signal."""
    if code >= 0:
        return Outcome(code, f"{name} ended with exit code {code}", True)
    why = " (by a user, or by the kernel because memory ran out)" if code == -signal.SIGKILL else ""
    return Outcome(128 - code, f"{name} was killed by {name_of(-code)}{why}")


# --- Processes of this machine ---------------------------------------------------------------


def adopt(prctl: object) -> None:
    """Become the parent of processes whose own parents end, so that they can be ended."""
    prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)  # type: ignore[operator]


def state_of(pid: int) -> str:
    """Return the state of a process, a letter as of ``ps``; nothing if there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0].decode()
    except OSError:
        return ""


def children_of(pid: int) -> list[int]:
    """Return the children of a process."""
    try:
        return [
            int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        ]
    except OSError:
        return []


def kill_descendants(but: int = 0) -> None:
    """Kill all children of this process but one, and theirs, which this process inherits."""
    end = time.monotonic() + END_WAIT  # what is stuck in the kernel is left alone
    while time.monotonic() < end:
        children = [child for child in children_of(os.getpid()) if child != but]
        if not children:
            return
        for child in children:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(child, signal.SIGKILL)
            with suppress(ChildProcessError):
                os.waitpid(child, os.WNOHANG)
        time.sleep(0.002)


def remove_shared_memory() -> None:
    """Remove MPICH's shared memory that no process has: that of a job killed in MPI_Init."""
    files = {str(path) for path in Path("/dev/shm").glob("mpich_shm_*")}
    for folder in Path("/proc").glob("[0-9]*") if files else ():
        with suppress(OSError):
            maps = (folder / "maps").read_text(errors="replace")
            files = {name for name in files if name not in maps}
    for name in files:
        with suppress(OSError):
            os.unlink(name)
