"""OperatorTrace: a trace of MXNet's operators, for Chrome and Perfetto."""

from __future__ import annotations

import json
import re
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import mxnet as mx
from gluon_svrg.files import write_whole
from gluon_svrg.reporting.timings import Span

_PHASES_PID = 1_000_000
_BEGIN_OF_LIST = re.compile(r'("traceEvents":\s*\[)\s*,')


class OperatorTrace:
    """Runs MXNet's profiler from the constructor to :meth:`finish`.

    MXNet has one profiler, whose settings these replace.
    """

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="gluon_svrg_trace_")
        self._file = Path(self._folder.name) / "mxnet.json"
        mx.profiler.set_config(
            profile_symbolic=True,
            profile_imperative=True,
            profile_memory=False,
            profile_api=False,
            aggregate_stats=False,
            continuous_dump=False,  # or MXNet refuses new settings later
            filename=str(self._file),
        )
        mx.nd.waitall()
        mx.profiler.set_state("run")

    def finish(self, path: Path, spans: Sequence[Span]) -> int:
        """Stop, and write the operators, and `spans` beside them, to `path`, as Chrome reads them.

        Returns
        -------
        int
            The number of operators.

        Raises
        ------
        OSError
            If the file cannot be written.
        """
        text = self._stopped()
        # From the second time in a process on, MXNet's list begins with a comma.
        events = _operators(json.loads(_BEGIN_OF_LIST.sub(r"\1", text))["traceEvents"])
        trace = {"traceEvents": events + _phases(spans), "displayTimeUnit": "ms"}
        write_whole(path, json.dumps(trace).encode("utf-8"))
        return sum(event["ph"] == "B" for event in events)

    def cancel(self) -> None:
        """Stop without writing a file."""
        self._stopped()

    def _stopped(self) -> str:
        mx.nd.waitall()
        mx.profiler.set_state("stop")
        mx.profiler.dump(finished=True)
        text = self._file.read_text(encoding="utf-8")
        self._folder.cleanup()
        return text


def _operators(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return MXNet's operators, each once, with threads that have small numbers.

    MXNet writes each twice, as a stretch of its thread (B, E) and as one that is not bound to any
    (b, e); and its numbers of threads are greater than what JSON readers keep exactly.
    """
    threads: dict[int, int] = {}
    kept = []
    for event in events:
        if event.get("ph") in ("B", "E"):
            thread = threads.setdefault(event["tid"], len(threads))
            kept.append({**event, "tid": thread})
        elif event.get("ph") == "M":
            kept.append(event)
    return kept


def _phases(spans: Sequence[Span]) -> list[dict[str, Any]]:
    """Return the phases as spans of a separate process, on MXNet's clock."""
    # MXNet counts microseconds of the system's clock.
    offset = time.time() - time.perf_counter()
    events: list[dict[str, Any]] = [
        {
            "name": span.name,
            "cat": "phase",
            "ph": "X",
            "ts": round(1e6 * (span.begin + offset)),
            "dur": round(1e6 * (span.end - span.begin)),
            "pid": _PHASES_PID,
            "tid": 0,
        }
        for span in spans
    ]
    name = {"name": "process_name", "ph": "M", "pid": _PHASES_PID, "args": {"name": "phases"}}
    return [name, *events] if events else []
