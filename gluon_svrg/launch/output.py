"""Print the output of the workers line by line, each with its worker in front."""

from __future__ import annotations

import os
import re
import sys
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from gluon_svrg.workers.supervision import MARK

PREFIX = "\x1e%r@%h\x1f"
"""What mpiexec prints before each piece of output: the rank and its host."""
_PREFIX = re.compile(rb"\x1e(\d+)@([^\x1e\x1f]*)\x1f")
_PARTIAL_PREFIX = re.compile(rb"\x1e[^\x1f]{0,300}\Z")
_ABORT = re.compile(
    r"Abort\(\d+\) on node \d+ \(rank \d+ in comm \d+\): application called MPI_Abort"
)
"""What MPICH prints for a worker that has reported why it stops."""
_MAX_LINE_LENGTH = 1 << 16
"""Bytes after which an unfinished line is printed."""
_MPIEXEC_LINES = 60
"""Lines of mpiexec that are kept to find out why it failed."""


def log(text: str, *, is_cause: bool = False) -> None:
    """Print a message of the supervisor; the cause of a failure is printed in red."""
    color, reset = ("\x1b[1;31m", "\x1b[0m") if is_cause and sys.stderr.isatty() else ("", "")
    write(2, "".join(f"{color}launch: {line}{reset}\n" for line in text.splitlines()).encode())


def write(descriptor: int, data: bytes) -> None:
    """Write all of `data`; stop silently if the reader has gone."""
    with suppress(OSError):
        while data:
            data = data[os.write(descriptor, data) :]


class Output:
    """The output of one attempt.

    Parameters
    ----------
    on_report : callable
        Called with the rank, host and text of each report of a worker.
    log_dir : path, optional
        The folder for one log file per worker.
    attempt : int
        The number of restarts so far, which is part of the file names.

    Attributes
    ----------
    mpiexec_lines : deque of str
        The last lines of mpiexec and ssh, which are not printed.
    timeouts : set of int
        The ranks that have printed their stacks because of the progress limit.
    """

    def __init__(
        self, on_report: Callable[[int, str, str], None], log_dir: Path | None, attempt: int
    ) -> None:
        self.mpiexec_lines: deque[str] = deque(maxlen=_MPIEXEC_LINES)
        self.timeouts: set[int] = set()
        self._on_report, self._log_dir, self._attempt = on_report, log_dir, attempt
        self._logs: dict[int, int] = {}
        self._streams = {1: _LineSplitter(self._print_line), 2: _LineSplitter(self._print_line)}

    def feed(self, descriptor: int, data: bytes) -> None:
        """Add bytes that mpiexec has written to standard output (1) or standard error (2)."""
        self._streams[descriptor].feed(descriptor, data)

    def close(self) -> None:
        """Print unfinished lines, and close the log files."""
        for descriptor, stream in self._streams.items():
            stream.flush(descriptor)
        for log in self._logs.values():
            os.close(log)

    def _print_line(self, descriptor: int, rank: int, host: str, line: bytes) -> None:
        text = line.decode(errors="replace")
        if rank < 0:
            if text.strip():
                self.mpiexec_lines.append(text.strip())
            return
        if text.startswith(MARK):
            self._on_report(rank, host, text[1:])
            return
        if _ABORT.match(text):
            return
        if descriptor == 2 and text.startswith("Timeout ("):  # of faulthandler
            self.timeouts.add(rank)
        write(descriptor, f"[worker {rank}] ".encode() + line + b"\n")
        if self._log_dir is not None:
            if rank not in self._logs:
                path = self._log_dir / f"worker-{rank}-attempt-{self._attempt}.log"
                flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
                try:
                    self._logs[rank] = os.open(path, flags, 0o666)
                except OSError as error:
                    log(f"{path} cannot be written: {error.strerror}")
                    self._logs[rank] = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
            write(self._logs[rank], line + b"\n")


class _LineSplitter:
    """Joins pieces of output into lines.

    mpiexec prints `PREFIX` before each line, and before each part of a line that a worker writes in
    parts. Text without a prefix at the beginning of a line is from mpiexec itself: rank -1.
    """

    def __init__(self, on_line: Callable[[int, int, str, bytes], None]) -> None:
        self._on_line = on_line
        self._rest = b""
        self._owner = (-1, "")
        self._lines: dict[tuple[int, str], bytes] = {}

    def feed(self, descriptor: int, data: bytes) -> None:
        data = self._rest + data
        partial = _PARTIAL_PREFIX.search(data)
        cut = partial.start() if partial else len(data)
        data, self._rest = data[:cut], data[cut:]
        texts = _PREFIX.split(data)
        self._add(descriptor, texts[0])
        for rank, host, text in zip(texts[1::3], texts[2::3], texts[3::3], strict=True):
            self._owner = (int(rank), host.decode(errors="replace"))
            self._add(descriptor, text)

    def _add(self, descriptor: int, text: bytes) -> None:
        while text:
            line, end, text = text.partition(b"\n")
            owner = self._owner
            line = self._lines.pop(owner, b"") + line
            if end:
                line = line.removesuffix(b"\r")
                self._owner = (-1, "")
            if end or len(line) > _MAX_LINE_LENGTH:
                # Keep only the last state of a progress bar, which redraws its line after "\r".
                self._on_line(descriptor, *owner, line.rpartition(b"\r")[2])
            elif line:
                self._lines[owner] = line

    def flush(self, descriptor: int) -> None:
        self._add(descriptor, self._rest)
        for owner, line in self._lines.items():
            self._on_line(descriptor, *owner, line.rpartition(b"\r")[2])
        self._lines.clear()
