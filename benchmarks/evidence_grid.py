"""A learning rate for each method: a grid on one seed that grows, then the best on the others."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import evidence_common as common

FACTOR, MOST = 2.0, 6
# What of a result is to be small; None where the run diverged.
Figure = Callable[[common.Row], float | None]


def tried(results: common.Results, job: common.Row, figure: Figure) -> dict[float, float]:
    """Return the figure by learning rate, ascending, of the first seed's runs."""
    found = {}
    for row in results.rows:
        if all(row["job"].get(key) == value for key, value in {**job, "seed": 0}.items()):
            value = figure(row["result"])
            found[row["job"]["rate"]] = math.inf if value is None else value
    return dict(sorted(found.items()))


def best_rate(results: common.Results, job: common.Row, figure: Figure) -> float:
    found = tried(results, job, figure)
    return min(found, key=lambda rate: found[rate])


def missing_rate(found: dict[float, float], centre: float) -> float | None:
    """Return the next learning rate to try; None if the best is inside the grid, or it is full."""
    for rate in (centre / FACTOR, centre, centre * FACTOR):
        if rate not in found:
            return rate
    best, rates = min(found, key=lambda rate: found[rate]), list(found)
    if len(found) >= MOST or best not in (rates[0], rates[-1]):
        return None
    return best * FACTOR if best == rates[-1] else best / FACTOR


def jobs(
    part: str, job: common.Row, centre: float, seeds: int, figure: Figure
) -> Iterator[common.Row]:
    """Yield the grid on seed 0, one job when the last one's result is there, then the seeds."""
    while True:
        results = common.Results(part)
        found = tried(results, job, figure)
        rate = missing_rate(found, centre)
        if rate is None:
            break
        yield {**job, "seed": 0, "rate": rate}
        if rate not in tried(common.Results(part), job, figure):
            return  # the job was left out
    best = best_rate(results, job, figure)
    for seed in range(1, seeds):
        yield {**job, "seed": seed, "rate": best}


def runs(results: common.Results, job: common.Row, figure: Figure) -> list[common.Row]:
    """Return the results with the best learning rate."""
    return results.of(**job, rate=best_rate(results, job, figure))


def cell(found: dict[float, float]) -> str:
    """Return the best learning rate, and the others, as text."""
    best = min(found, key=lambda rate: found[rate])
    others = (
        f"{rate:g}" if math.isfinite(value) else f"{rate:g}: diverged"
        for rate, value in found.items()
        if rate != best
    )
    return f"{best:g} ({', '.join(others)})"
