"""How a job of communication.py is told that it is its turn.

A worker under a launcher has no standard input, so the turns come by named pipes.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path


class Job:
    """Processes that measure whenever they are told to.

    The first turn is to warm up.
    """

    def __init__(
        self, folder: Path, workers: int, processes: list[subprocess.Popen[bytes]]
    ) -> None:
        self._pipes = [
            (folder / f"go-{rank}", folder / f"seconds-{rank}") for rank in range(workers)
        ]
        self._processes = processes
        self.turn()

    def turn(self) -> list[float]:
        """Return what one turn measures: of each number that of the slowest worker."""
        for go, _ in self._pipes:
            go.write_text("go")
        found = [json.loads(seconds.read_text()) for _, seconds in self._pipes]
        return [max(some) for some in zip(*found, strict=True)]

    def close(self) -> None:
        for go, _ in self._pipes:
            go.write_text("end")
        for process in self._processes:
            process.wait()


def make(folder: Path, workers: int) -> None:
    """Make the pipes, before the processes are started."""
    for rank in range(workers):
        os.mkfifo(folder / f"go-{rank}")
        os.mkfifo(folder / f"seconds-{rank}")


def serve(folder: Path, rank: int, turn: Callable[[], list[float]]) -> None:
    """Measure for each ``go``."""
    while (folder / f"go-{rank}").read_text() == "go":
        (folder / f"seconds-{rank}").write_text(json.dumps(turn()))
