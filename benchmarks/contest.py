"""Contests of solvers: each fit in a process of its own, in interleaved rounds.

A contestant's process prints a line of JSON that says what runs, then a `Point` a fit; any other
line adds to the first. `convex_peers.run` prints so.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import report
from convex_peers import Point

Key = TypeVar("Key", bound=Hashable)


class Rules(NamedTuple):
    """What all contestants of one contest are given."""

    target: float
    """The gap to be reached."""
    cap: int
    """Seconds that one fit may take."""
    make: str
    """The target of the Makefile, which installs what is missing."""


class Outcome(NamedTuple):
    """What one process printed: what ran, the points of its fits, and why it ended early."""

    head: dict[str, Any]
    points: list[Point]
    target: float
    failure: str

    @property
    def version(self) -> str:
        return self.head.get("version", "")

    @property
    def settings(self) -> str:
        return self.head.get("settings", "")

    def best(self) -> Point | None:
        """Return the quickest fit that reached the target."""
        reached = [point for point in self.points if point.gap <= self.target]
        return min(reached, key=lambda point: point.seconds, default=None)


class Result(NamedTuple):
    """All rounds of one contestant: the first round's outcome, and of all rounds the seconds."""

    first: Outcome
    seconds: list[float]
    heads: list[dict[str, Any]]
    """What each round's process said besides its points."""


Entrant = Callable[[int | None], Outcome]
"""Runs one contestant; is given the budget that reached the target before, if one has."""


def run_process(
    command: Sequence[str], rules: Rules, threads: int | None, budget: int | None = None
) -> Outcome:
    """Run one contestant with the rules' options; what it printed before an early end counts."""
    command = [*command, "--target", repr(rules.target), "--cap", str(rules.cap)]
    if budget is not None:
        command += ["--budget", str(budget)]
    cores = str(threads or os.cpu_count())
    environment = {**os.environ, "OMP_NUM_THREADS": cores, "OPENBLAS_NUM_THREADS": cores}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    points = [Point(**line) for line in lines if "budget" in line]
    head: dict[str, Any] = {}
    for line in lines:
        head |= {} if "budget" in line else line
    outcome = Outcome(head, points, rules.target, "")
    return outcome._replace(failure=failure_of(done, outcome, rules))


def failure_of(done: subprocess.CompletedProcess[str], outcome: Outcome, rules: Rules) -> str:
    """Say why the target was not reached, '' where it was."""
    if "missing" in outcome.head:
        return f"not installed (no {outcome.head['missing']}): `make {rules.make}`"
    if outcome.best():
        return ""
    late = any(point.seconds > rules.cap for point in outcome.points)
    if late or done.returncode == -signal.SIGALRM:
        return f"> {rules.cap}"
    if done.returncode or not outcome.points:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        return f"failed: {last[:120]}"
    return f"stands at {min(point.gap for point in outcome.points):.0e}"


def measure(entrants: Mapping[Key, Entrant], rounds: int) -> dict[Key, Result]:
    """Run the rounds, interleaved; the first searches the budgets that the others use."""
    results: dict[Key, Result] = {}
    for number in range(rounds):
        for key, entrant in entrants.items():
            results |= next_round(key, entrant, results.get(key), number)
    return results


def next_round(key: Key, entrant: Entrant, before: Result | None, number: int) -> dict[Key, Result]:
    """Run one contestant once more, unless it has failed; return all of its rounds."""
    if before and before.first.failure:
        return {}
    best = before.first.best() if before else None
    time.sleep(report.PAUSE)
    outcome = entrant(best.budget if best else None)
    first, seconds, heads = before or Result(outcome, [], [])
    best = outcome.best()
    took = f"{best.seconds:.3g} s" if best else outcome.failure
    print(f"round {number + 1}, {key}: {took}", file=sys.stderr, flush=True)
    seconds = seconds + ([best.seconds] if best else [])
    return {key: Result(first, seconds, [*heads, outcome.head])}


def frontier(points: list[Point]) -> list[Point]:
    """Return the points that no quicker one is better than."""
    kept: list[Point] = []
    for point in sorted(points, key=lambda point: point.seconds):
        if not kept or point.gap < kept[-1].gap:
            kept.append(point)
    return kept
