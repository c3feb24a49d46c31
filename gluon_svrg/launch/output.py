"""Output: what mpiexec hands on, put together to whole lines, each with its worker in front."""

from __future__ import annotations

import os
import re
import sys
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from gluon_svrg.launch.ends import MARK

PATTERN = "\x1e%r@%h\x1f"
"""What mpiexec is to put before each piece of output: the rank and its host."""
_PIECE = re.compile(rb"\x1e(\d+)@([^\x1e\x1f]*)\x1f")
_UNFINISHED = re.compile(rb"\x1e[^\x1f]{0,300}\Z")
_ABORT = re.compile(
    r"Abort\(\d+\) on node \d+ \(rank \d+ in comm \d+\): application called MPI_Abort"
)
"""What MPICH prints for a worker that has said why it ends."""
_LONGEST = 1 << 16
"""Bytes after which a line that does not end is shown in parts."""
_KEPT = 60


def say(text: str, *, is_cause: bool = False) -> None:
    """Print what the supervisor itself has to say; the cause of a failure stands out."""
    begin, end = ("\x1b[1;31m", "\x1b[0m") if is_cause and sys.stderr.isatty() else ("", "")
    write(2, "".join(f"{begin}launch: {line}{end}\n" for line in text.splitlines()).encode())


def write(descriptor: int, data: bytes) -> None:
    """Write all of it, unless nobody reads any longer."""
    with suppress(OSError):
        while data:
            data = data[os.write(descriptor, data) :]


class Output:
    """The output of one attempt.

    Parameters
    ----------
    told : callable
        Called with rank, host and text of each line that is for the supervisor.
    log_dir : path, optional
        Where each worker has a file of its own.
    attempt : int
        The number in the names of these files.

    Attributes
    ----------
    of_mpiexec : deque of str
        The last lines of mpiexec itself, and of ssh, which are not shown.
    timeouts : set of int
        The ranks that have printed their stack because a step took too long.
    """

    def __init__(
        self, told: Callable[[int, str, str], None], log_dir: Path | None, attempt: int
    ) -> None:
        self.of_mpiexec: deque[str] = deque(maxlen=_KEPT)
        self.timeouts: set[int] = set()
        self._told, self._log_dir, self._attempt = told, log_dir, attempt
        self._logs: dict[int, int] = {}
        self._streams = {1: _Stream(self._take), 2: _Stream(self._take)}

    def feed(self, descriptor: int, data: bytes) -> None:
        """Take some bytes of mpiexec's standard output (1) or standard error (2)."""
        self._streams[descriptor].feed(descriptor, data)

    def close(self) -> None:
        """Show lines that have no end, and close the files."""
        for descriptor, stream in self._streams.items():
            stream.end(descriptor)
        for log in self._logs.values():
            os.close(log)

    def _take(self, descriptor: int, rank: int, host: str, line: bytes) -> None:
        text = line.decode(errors="replace")
        if rank < 0:
            if text.strip():
                self.of_mpiexec.append(text.strip())
            return
        if text.startswith(MARK):
            self._told(rank, host, text[1:])
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
                    say(f"{path} cannot be written: {error.strerror}")
                    self._logs[rank] = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
            write(self._logs[rank], line + b"\n")


class _Stream:
    """Puts pieces of output together to lines.

    mpiexec puts `PATTERN` before each line, and before each part of a line if a worker writes it in
    parts. Without it, after the end of a line, mpiexec speaks for itself: rank -1.
    """

    def __init__(self, take: Callable[[int, int, str, bytes], None]) -> None:
        self._take = take
        self._rest = b""
        self._owner = (-1, "")
        self._lines: dict[tuple[int, str], bytes] = {}

    def feed(self, descriptor: int, data: bytes) -> None:
        data = self._rest + data
        unfinished = _UNFINISHED.search(data)
        cut = unfinished.start() if unfinished else len(data)
        data, self._rest = data[:cut], data[cut:]
        texts = _PIECE.split(data)
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
            if end or len(line) > _LONGEST:
                # A bar is drawn over and over from the begin of the line: its last state is shown.
                self._take(descriptor, *owner, line.rpartition(b"\r")[2])
            elif line:
                self._lines[owner] = line

    def end(self, descriptor: int) -> None:
        self._add(descriptor, self._rest)
        for owner, line in self._lines.items():
            self._take(descriptor, *owner, line.rpartition(b"\r")[2])
        self._lines.clear()
