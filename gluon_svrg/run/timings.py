"""Where the time of a run goes: a clock that gives each moment to one phase, and the table."""

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
"""What a moment of an epoch may be spent on, in the order of the table."""


class Span(NamedTuple):
    """A stretch of time: its name, and its begin and end in seconds of ``time.perf_counter``."""

    name: str
    begin: float
    end: float


class PhaseClock:
    """Gives each moment since it was started to one phase: their sum is the time that has passed.

    Parameters
    ----------
    synchronize : bool
        Whether a phase ends only when MXNet, which computes in threads of its own, has done all
        that it was told to.

    Attributes
    ----------
    seconds : dict of str to float
        By phase.
    spans : list of Span or None
        Each stretch, while it is a list.
    """

    def __init__(self, synchronize: bool) -> None:
        self._synchronize = synchronize
        self.spans: list[Span] | None = None
        self.start()

    def start(self) -> None:
        """Begin with no time in any phase, when MXNet has done what it was told to before."""
        mx.nd.waitall()
        self.last = time.perf_counter()
        self.clear()

    def clear(self) -> None:
        """Begin with no time in any phase, at the end of the last stretch."""
        self.seconds = dict.fromkeys(PHASES, 0.0)

    def lap(self, phase: str, name: str | None = None) -> float:
        """Give the time since the last call to `phase`; return its seconds.

        Parameters
        ----------
        phase : str
            One of `PHASES`.
        name : str, optional
            What the span is called, by default as its phase.
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
    """Return the sums over `rows` as text: seconds, share, and milliseconds a batch of each phase.

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
