"""PhaseClock: how long each phase of a run takes; the table of these times."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import mxnet as mx

PHASES = (
    "data",
    "forward and backward",
    "full pass",
    "correction",
    "step",
    "metrics",
    "validation",
    "checkpoint",
    "other",
)
"""The phases of an epoch, in the order of the table."""


class Span(NamedTuple):
    """A span of time: its name, begin and end, in seconds of ``time.perf_counter``."""

    name: str
    begin: float
    end: float


class PhaseClock:
    """Measures the time of each phase; they add up to the time since the start.

    Parameters
    ----------
    synchronize : bool
        Whether to wait at the end of a phase until MXNet, which computes asynchronously, has
        finished its operators.

    Attributes
    ----------
    seconds : dict of str to float
        The time of each phase.
    spans : list of Span or None
        If it is a list, each span is appended.
    """

    def __init__(self, synchronize: bool) -> None:
        self._synchronize = synchronize
        self.spans: list[Span] | None = None
        self.start()

    def start(self) -> None:
        """Wait for MXNet's earlier operators, and start with zero seconds in all phases."""
        mx.nd.waitall()
        self.last = time.perf_counter()
        self.clear()

    def clear(self) -> None:
        """Set the seconds of all phases to zero; the next span begins at the end of the last."""
        self.seconds = dict.fromkeys(PHASES, 0.0)

    def lap(self, phase: str, name: str | None = None) -> float:
        """Add the time since the last call to `phase`, and return it in seconds.

        Parameters
        ----------
        phase : str
            One of `PHASES`.
        name : str, optional
            The name of the span; by default that of its phase.
        """
        if self._synchronize:
            mx.nd.waitall()
        now = time.perf_counter()
        seconds = now - self.last
        self.seconds[phase] += seconds
        if self.spans is not None:
            self.spans.append(Span(name or phase, self.last, now))
        self.last = now
        return seconds


def table_of(rows: Sequence[Mapping[str, float]]) -> str:
    """Return the sums over `rows` as a table of seconds, share and milliseconds per batch.

    Parameters
    ----------
    rows : sequence of dict
        One for each epoch, with ``seconds``, ``batches`` and each of `PHASES`.
    """
    total, batches = (sum(row[name] for row in rows) for name in ("seconds", "batches"))
    lines = [f"{'phase':22}{'seconds':>10}{'share':>10}{'ms a batch':>12}"]
    for phase in (*PHASES, "all"):
        seconds = total if phase == "all" else sum(row[phase] for row in rows)
        share = 100 * seconds / total if total else 0.0
        each = 1e3 * seconds / batches if batches else 0.0
        lines.append(f"{phase:22}{seconds:10.3f}{share:8.1f} %{each:12.3f}")
    return "\n".join(lines)
