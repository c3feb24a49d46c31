"""Run mpiexec once, watch its processes, and find out why it ended."""

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

from gluon_svrg.launch.hosts import is_local
from gluon_svrg.launch.output import Output, log
from gluon_svrg.launch.signals import Signals, signal_name
from gluon_svrg.workers.parent_death import die_with_parent

HUNG = 124
"""The exit code of a job that makes no progress, the same as that of the command ``timeout``."""
POLL_INTERVAL = 0.5
"""Seconds between two checks of the processes on this machine."""
STOPPED_TIMEOUT = 10.0
"""Seconds after which a stopped process (SIGSTOP) counts as hung, since MPI does not notice it."""
HELPER_EXIT_TIMEOUT = 2.0
"""Seconds that mpiexec gets to notice the exit of its proxy or ssh. It never notices if that
process was killed, or if a worker on another host exits before MPI_Init on this host."""
SHUTDOWN_TIMEOUT = 10.0
"""Seconds that mpiexec gets to end all workers after one has reported a failure. It waits forever
for a host that does not answer."""
STACKS_TIMEOUT = 3.0
"""Seconds that all workers get to print their stacks after the first one. Their timers start at
different times, as each worker restarts its own at most once per second."""
_FAILURE_BLOCK = re.compile(r"=\s+PID (\d+) RUNNING AT (\S+)\n=\s+EXIT CODE: (\d+)")
_KILLED_BY = re.compile(r"EXIT STRING: .*\(signal (\d+)\)")
"""mpiexec prints this line only after a signal. The EXIT CODE of the block may be that of a worker
that mpiexec itself has killed."""
_MPIEXEC_FAILED = 255
"""The exit code of mpiexec if its proxy fails while it ends the workers. On another host this
happens every second time. Then there is no EXIT STRING, and the EXIT CODE of the block is the
number of the signal, or the exit code of a worker that has called `os._exit`. If a worker is killed
in MPI_Finalize, there is no block."""
_FATAL_SIGNALS = {
    *(signal.SIGILL, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE),
    *(signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM),
}
_PR_SET_CHILD_SUBREAPER = 36


@dataclass(frozen=True)
class Outcome:
    """How an attempt ended.

    Attributes
    ----------
    code : int
        0 after success; otherwise the exit code of the supervisor if this was the last attempt.
    message : str
        The reason of a failure.
    is_script_failure : bool
        Whether the script failed without being killed, so that it may fail again in the same way.
    """

    code: int
    message: str = ""
    is_script_failure: bool = False


class Attempt:
    """One run of mpiexec, or of the script itself if there is only one worker.

    Parameters
    ----------
    command : sequence of str
        The command.
    environment : mapping of str to str
        The environment variables of all processes.
    signals : Signals
        The signals that the supervisor receives.
    number : int
        The number of restarts so far.
    log_dir : path, optional
        The folder for a log file per worker.
    workers : int
        The number of workers; 0 if the command is the script itself, which then uses the terminal.
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
        self._size, self._is_plain_script = workers, workers == 0
        self._output = Output(self._on_report, log_dir, number)
        self._workers: dict[int, tuple[int, str]] = {}  # process and host, by rank
        self._failures: list[tuple[str, int, int, str]] = []  # kind, rank, exit code, reason
        self._done: set[int] = set()
        self._exited: list[int] = []  # ranks on this machine, in the order in which they exited
        self._first_exits = 0  # the number of these that the first poll found
        self._helpers: set[int] = set()  # mpiexec's process for each host: its proxy, or ssh
        self._since: dict[tuple[int, str], float] = {}  # when a process was first seen in a state
        self._hang_reason: str | None = None

    def run(self) -> Outcome:
        """Start the command, forward signals, and return when no process is left."""
        parent, pipe = os.getpid(), None if self._is_plain_script else subprocess.PIPE
        self._process = subprocess.Popen(
            self._command,
            env=self._environment,
            stdout=pipe,
            stderr=pipe,
            bufsize=0,
            start_new_session=True,  # otherwise Ctrl-C would reach it twice
            preexec_fn=lambda: die_with_parent(parent),
        )
        try:
            self._watch()
        finally:
            self._kill_processes()
            self._output.close()
        return self._outcome()

    def _watch(self) -> None:
        forwarded = 0
        with selectors.DefaultSelector() as selector:
            self._selector: selectors.BaseSelector | None = selector
            selector.register(self._signals, selectors.EVENT_READ, 0)
            for descriptor, stream in ((1, self._process.stdout), (2, self._process.stderr)):
                if stream is not None:
                    os.set_blocking(stream.fileno(), False)
                    selector.register(stream, selectors.EVENT_READ, descriptor)
            while self._process.poll() is None and self._hang_reason is None:
                for key, _ in selector.select(POLL_INTERVAL):
                    if key.data == 0:
                        self._signals.clear()
                    elif key.data < 0:
                        self._on_exit(key.fd, -1 - key.data)
                    elif not self._read(key.fd, key.data):
                        selector.unregister(key.fileobj)
                self._first_exits = self._first_exits or len(self._exited)
                if len(self._signals.received) > forwarded:
                    forwarded += 1
                    # mpiexec loses a signal that it gets before its workers have started.
                    if forwarded > 1 or len(self._workers) < self._size:
                        return
                    self._forward_signal(self._signals.received[0])
                if not self._is_plain_script:
                    self._check_processes(time.monotonic())
            # Read the rest, but do not wait for the end of the pipe: a process that has left the
            # job may keep it open.
            for key in list(selector.get_map().values()):
                if key.data < 0:
                    os.close(key.fd)
                while key.data > 0 and self._read(key.fd, key.data, is_last=True):
                    pass
            self._selector = None

    def _read(self, descriptor: int, stream: int, *, is_last: bool = False) -> bool:
        """Read some output; return whether there may be more."""
        try:
            data = os.read(descriptor, 1 << 16)
        except BlockingIOError:
            return not is_last
        self._output.feed(stream, data)
        return bool(data)

    def _forward_signal(self, number: int) -> None:
        log(
            f"{signal_name(number)}: the workers stop after this batch; a second signal stops them "
            "immediately"
        )
        # mpiexec forwards the other three signals to all workers; at SIGHUP it kills them.
        with suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGTERM if number == signal.SIGHUP else number)

    def _on_report(self, rank: int, host: str, text: str) -> None:
        """Process the report of a worker."""
        kind, _, content = text.partition(" ")
        if kind == "pid" and content.isdigit():
            self._workers[rank] = int(content), host
            if is_local(host) and self._selector is not None:
                # The descriptor becomes readable when the worker exits. The first worker to exit
                # is the cause, because mpiexec kills the others.
                try:
                    descriptor = os.pidfd_open(int(content))
                    self._selector.register(descriptor, selectors.EVENT_READ, -1 - rank)
                except ProcessLookupError:  # it has exited already
                    self._exited.append(rank)
                except OSError:  # an old kernel
                    pass
        elif kind == "done":
            self._done.add(rank)
        elif kind in ("failed", "peer_failed") and not self._output.timeouts:  # not a consequence
            code, _, reason = content.partition(" ")
            self._failures.append((kind, rank, int(code), reason))

    def _on_exit(self, descriptor: int, rank: int) -> None:
        assert self._selector is not None
        self._exited.append(rank)
        self._selector.unregister(descriptor)
        os.close(descriptor)

    # --- What mpiexec does not notice ------------------------------------------------------------

    def _check_processes(self, now: float) -> None:
        """Find out whether the job hangs in a way that mpiexec does not notice."""
        if self._failures or self._output.timeouts:
            timeout = STACKS_TIMEOUT if self._output.timeouts else SHUTDOWN_TIMEOUT
            if self._has_lasted(0, "failed", now, timeout):
                self._hang_reason = ""
            return
        mpiexec = self._process.pid
        if len(self._exited) == self._size:
            # Children of the workers may keep their output open, and mpiexec waits for its end.
            kill_descendants(keep=mpiexec)
        ranks = {pid: rank for rank, (pid, _) in self._workers.items()}
        helpers = children_of(mpiexec)
        self._helpers.update(helpers)
        names = {mpiexec: "mpiexec"} | dict.fromkeys(self._helpers, "mpiexec's own helper")
        for pid in (pid for helper in helpers for pid in children_of(helper)):
            names[pid] = f"worker {ranks[pid]}" if pid in ranks else "a worker before MPI_Init"
        all_done = len(self._done) == self._size
        for pid, name in names.items():
            state = state_of(pid)
            has_exited = pid in self._helpers and state in ("", "Z") and not all_done
            for key, applies, timeout, problem in (
                ("T", state == "T", STOPPED_TIMEOUT, "is stopped, perhaps by a SIGSTOP"),
                ("Z", has_exited, HELPER_EXIT_TIMEOUT, "exited before the workers"),
            ):
                if not applies:
                    self._since.pop((pid, key), None)
                elif self._has_lasted(pid, key, now, timeout):
                    self._hang_reason = f"{name} (process {pid}) {problem}"
                    return

    def _has_lasted(self, pid: int, key: str, now: float, seconds: float) -> bool:
        return now - self._since.setdefault((pid, key), now) >= seconds

    def _kill_processes(self) -> None:
        """Kill the remaining processes on this machine; on others they end with mpiexec."""
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
        if not self._is_plain_script and self._process.returncode:
            remove_shared_memory()

    # --- The outcome --------------------------------------------------------------------------

    def _outcome(self) -> Outcome:
        code = self._process.returncode
        if code == 0 and self._hang_reason is None:
            missing = sorted(set(range(self._size)) - self._done)
            if not missing:
                return Outcome(0)
            names = ", ".join(map(self._name, missing))
            text = "the job ended because a worker called os._exit(0), which MPI does not allow"
            return Outcome(1, f"{text}: {names}", True)
        if self._hang_reason:
            return Outcome(HUNG, self._hang_reason)
        if self._is_plain_script:
            return _outcome_of(f"the script (process {self._process.pid})", code)
        for kind in ("failed", "peer_failed"):  # the cause first
            for reported, rank, worker_code, reason in self._failures:
                if reported == kind:
                    return Outcome(worker_code, f"{self._name(rank)} failed: {reason}", True)
        if self._output.timeouts:
            return Outcome(HUNG, self._timeout_message())
        return self._outcome_from_mpiexec(code)

    def _outcome_from_mpiexec(self, code: int) -> Outcome:
        """Return the outcome from mpiexec's output, because a killed worker cannot report."""
        lines = list(self._output.mpiexec_lines)
        text = "\n".join(lines)
        block, signal_ = _FAILURE_BLOCK.search(text), _KILLED_BY.search(text)
        number = int(signal_[1]) if signal_ else 0
        exit_code = code
        if block and not signal_ and code == _MPIEXEC_FAILED:
            exit_code = int(block[3])
            number = exit_code if exit_code in _FATAL_SIGNALS else 0
        ranks = self._exited[: max(1, self._first_exits)]
        if block and len(ranks) != 1:  # if several were found together, mpiexec names the first
            named = int(block[1]), block[2]
            ranks = [rank for rank, process in self._workers.items() if process == named] or ranks
        if block and number:
            name = self._name(ranks[0]) if ranks else f"a worker on {block[2]}, before MPI started,"
            return _outcome_of(name, -number)
        if ranks and 0 < exit_code < 128:
            return _outcome_of(self._name(ranks[0]), exit_code)
        last = next((line for line in reversed(lines) if not line.startswith(("[", "="))), "")
        outcome = _outcome_of(f"mpiexec (process {self._process.pid})", code)
        suffix = f"; its last line: {last}" if last else ""
        is_script_failure = outcome.is_script_failure and code != _MPIEXEC_FAILED
        return Outcome(outcome.code, outcome.message + suffix, is_script_failure)

    def _is_over_hosts(self) -> bool:
        return len({host for _, host in self._workers.values()}) > 1

    def _name(self, rank: int) -> str:
        if rank not in self._workers:
            return f"worker {rank}"
        pid, host = self._workers[rank]
        return f"worker {rank} (process {pid}{f' on {host}' if self._is_over_hosts() else ''})"

    def _timeout_message(self) -> str:
        silent = sorted(self._workers.keys() - self._output.timeouts)
        text = "no step was completed within --progress-timeout"
        if silent:
            names = ", ".join(map(self._name, silent))
            return f"{text}; no stack was printed by {names}: perhaps stopped or disconnected"
        return f"{text}; the stacks above show where each worker was"


def _outcome_of(name: str, code: int) -> Outcome:
    """Return the outcome of a process with this exit code; a negative code means a signal."""
    if code >= 0:
        return Outcome(code, f"{name} exited with code {code}", True)
    why = " (by a user, or by the kernel because memory ran out)" if code == -signal.SIGKILL else ""
    return Outcome(128 - code, f"{name} was killed by {signal_name(-code)}{why}")


# --- Processes of this machine ---------------------------------------------------------------


def become_subreaper(prctl: object) -> None:
    """Become the parent of all descendants whose parents exit, so that they can be killed."""
    prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)  # type: ignore[operator]


def state_of(pid: int) -> str:
    """Return the state of a process as a letter, as ``ps`` does; "" if there is no such process."""
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


def kill_descendants(keep: int = 0) -> None:
    """Kill all descendants of this process, except the child `keep` and its descendants.

    Children of a killed process become children of this one, which is their subreaper.
    """
    end = time.monotonic() + SHUTDOWN_TIMEOUT  # a process in a system call may not end
    while time.monotonic() < end:
        children = [child for child in children_of(os.getpid()) if child != keep]
        if not children:
            return
        for child in children:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(child, signal.SIGKILL)
            with suppress(ChildProcessError):
                os.waitpid(child, os.WNOHANG)
        time.sleep(0.002)


def remove_shared_memory() -> None:
    """Remove files of MPICH's shared memory that no process uses.

    A job that is killed in MPI_Init leaves them.
    """
    files = {str(path) for path in Path("/dev/shm").glob("mpich_shm_*")}
    for folder in Path("/proc").glob("[0-9]*") if files else ():
        with suppress(OSError):
            maps = (folder / "maps").read_text(errors="replace")
            files = {name for name in files if name not in maps}
    for name in files:
        with suppress(OSError):
            os.unlink(name)
