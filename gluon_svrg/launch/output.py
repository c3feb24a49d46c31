"""What the processes of a job print: line by line, by whom; into log files; the last of it."""

from __future__ import annotations

import os
import time
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import Protocol

_KEPT = 100
"""Lines of each stream that are kept: a traceback of several exceptions is rarely longer."""
_LONGEST = 1 << 16
"""Bytes after which a line is shown though it has not ended."""

STDOUT, STDERR = 1, 2


class Terminal:
    """Writes whole lines to the launcher's own output; goes on without it once nobody reads it."""

    def __init__(self) -> None:
        self._gone: set[int] = set()

    def write(self, target: int, data: bytes) -> None:
        """Write to STDOUT or STDERR."""
        view = memoryview(data)
        while view and target not in self._gone:
            try:
                view = view[os.write(target, view) :]
            except BlockingIOError:  # whoever shares it has set it so
                time.sleep(0.01)
            except OSError:  # closed, or a terminal that was shut: no reason to lose the run
                self._gone.add(target)

    def say(self, text: str) -> None:
        """Write a line of the launcher's own."""
        self.write(
            STDERR,
            "".join(f"launch: {line}\n" for line in text.splitlines()).encode(
                "utf-8", "backslashreplace"
            ),
        )


class Log:
    """The log file of one process of one start; without a path, nothing."""

    def __init__(self, path: Path | None) -> None:
        self._descriptor: int | None = None
        if path is not None:
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
            self._descriptor = os.open(path, flags, 0o666)
            self.write(f"--- {time.strftime('%Y-%m-%d %H:%M:%S')}\n".encode())

    def write(self, data: bytes) -> None:
        """Append; a full disk is no reason to end the job."""
        if self._descriptor is not None:
            with suppress(OSError):
                os.write(self._descriptor, data)

    def close(self) -> None:
        """Close the file."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


class Stream:
    """One stream of a process: its lines go to the terminal, tagged, and its bytes into its log.

    Parameters
    ----------
    terminal : Terminal
        Where the lines go.
    target : int
        STDOUT or STDERR.
    tag : str
        What each line begins with; may be empty.
    log : Log
        Where the bytes go as they are.

    Attributes
    ----------
    known : set of bytes or None
        Lines that are not shown once more, where a program says the same at each try.
    """

    def __init__(self, terminal: Terminal, target: int, tag: str, log: Log) -> None:
        self.known: set[bytes] | None = None
        self._terminal = terminal
        self._target = target
        self._tag = tag.encode()
        self._log = log
        self._rest = b""
        self._kept: deque[bytes] = deque(maxlen=_KEPT)

    def feed(self, data: bytes) -> None:
        """Take what has come."""
        self._log.write(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > _LONGEST:
            lines.append(self._rest)
            self._rest = b""
        self._show(lines)

    def end(self) -> None:
        """Show what has no end of line, too: there is no more."""
        if self._rest:
            self._show([self._rest])
            self._rest = b""

    @property
    def last_lines(self) -> list[str]:
        """What was said last; of a traceback all lines."""
        return [line.decode(errors="replace") for line in self._kept]

    def _show(self, lines: list[bytes]) -> None:
        if lines:
            self._kept.extend(line.rstrip(b"\r") for line in lines)
            if self.known is not None:
                lines = [line for line in lines if line not in self.known]
                self.known.update(lines)
            tagged = b"".join(b"%b%b\n" % (self._tag, line) for line in lines)
            self._terminal.write(self._target, tagged)


class Sink(Protocol):
    """Who takes what comes through one pipe of a process."""

    def feed(self, data: bytes) -> None:
        """Take what has come."""

    def end(self) -> None:
        """Nothing more comes."""


class Output:
    """Both streams of one process of one start: tagged, and into its log.

    Parameters
    ----------
    terminal : Terminal
        Where the lines go.
    tag : str
        What each line begins with; may be empty.
    path : Path, optional
        Of its log.

    Attributes
    ----------
    stdout, stderr : Sink
        Who takes what comes.
    has_log : bool
        Whether there is one.
    """

    def __init__(self, terminal: Terminal, tag: str, path: Path | None) -> None:
        self._log = Log(path)
        self._streams = [Stream(terminal, target, tag, self._log) for target in (STDOUT, STDERR)]
        self.stdout: Sink
        self.stderr: Sink
        self.stdout, self.stderr = self._streams
        self.has_log = path is not None

    @property
    def last_lines(self) -> list[str]:
        """What was said last: a traceback, or a few lines; of its errors, if there are any."""
        stdout, stderr = self._streams
        return worth_telling(stderr.last_lines or stdout.last_lines)

    def close(self) -> None:
        """Close the log."""
        self._log.close()


def worth_telling(lines: list[str]) -> list[str]:
    """Return the traceback that `lines` end with, or the last few of them."""
    for number, line in enumerate(lines):
        if line.startswith("Traceback (most recent call last)"):
            return lines[number:]
    return lines[-10:]
