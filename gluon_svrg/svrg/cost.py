"""What SVRG costs, in forward and backward passes per sample."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from gluon_svrg.svrg.coefficient import OptimalCoefficient


class Settings(Protocol):
    """The arguments of an SVRGHandler that decide what it costs."""

    update_freq: int
    coefficient: float | Callable[[float], float] | OptimalCoefficient
    gradient_table: str | bool
    start_epoch: int
    stop_epoch: int | None


def passes_of(settings: Settings) -> list[str]:
    """Return lines that say how many passes per sample are added to the training's own."""
    if settings.coefficient == 0:
        return ["SVRG adds none: its coefficient is 0"]
    every = settings.update_freq
    lines = []
    for has_table in (True, False):
        if settings.gradient_table not in ("auto", has_table):
            continue
        others = 0 if has_table else 1  # the gradient at the snapshot, of each batch
        line = f"SVRG adds with{'' if has_table else 'out'} a gradient table: {others + 1}"
        if every > 1:
            line += (
                f" in an epoch with a snapshot (one in {every}), {others} in the others: "
                f"{others + 1 / every:.3g} on average"
            )
        lines.append(line)
    if settings.gradient_table == "auto":
        lines.append("gradient_table='auto' decides at the first snapshot, and logs what")
    if settings.start_epoch or settings.stop_epoch is not None:
        last = "" if settings.stop_epoch is None else f" to {settings.stop_epoch - 1}"
        lines.append(
            f"SVRG is on in the epochs from {settings.start_epoch}{last} (counted from 0), and "
            "adds none in the others"
        )
    if callable(settings.coefficient):
        lines.append("SVRG adds none while its coefficient, a schedule, is 0")
    return lines
