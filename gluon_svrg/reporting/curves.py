"""The curves of a history, ready to be drawn, and the colours of all pictures."""

from __future__ import annotations

import math
import numbers
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Told apart with any kind of colour vision: the palette of Okabe and Ito (2008) without its
yellow, which is faint on white. Blue, vermilion, green, purple, orange, sky blue, black."""

# The average over an epoch and the ratio at points of it are in the same panel.
RATIO, RATIO_AT = "variance_ratio", "variance_ratio_at_"
SPLITS = ("training ", "validation ")
# A line with more points than this has no markers.
MAX_MARKERS = 60
# Panels whose label is not the name of the figure.
_LABELS = {
    "learning_rate": "learning rate",
    "coefficient": "SVRG coefficient",
    RATIO: "variance ratio",
    "seconds": "seconds per epoch",
}
_FROM_ZERO = ("learning rate", "SVRG coefficient", "seconds per epoch")
_NOT_DRAWN = (
    "epoch", "batches", "complete", "samples", "samples_per_second", "peak_memory_mib"
)  # fmt: skip
_LOSS = "loss"
_LOG_SCALE_FROM = 100  # the greatest value divided by the smallest

Rows: TypeAlias = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Curve:
    """One figure against the number of the epoch.

    Attributes
    ----------
    name : str
        As in the history.
    label : str
        Its name in the legend of the panel.
    colour : int
        The index of its colour in `COLOURS`.
    epochs, values : list of float
        Where the figure is a number; it may be NaN or infinite.
    """

    name: str
    label: str
    colour: int
    epochs: list[float]
    values: list[float]


@dataclass(frozen=True)
class Panel:
    """Curves that share their axes.

    Attributes
    ----------
    label : str
        What the vertical axis shows.
    curves : list of Curve
        At least one.
    has_legend : bool
        Whether the label alone would not tell what a curve is.
    is_log : bool
        Whether the vertical axis is logarithmic.
    top : float or None
        The greatest value to show on a vertical axis that begins at zero.
    note : str
        What the axis leaves out, or an empty text.
    """

    label: str
    curves: list[Curve]
    has_legend: bool = False
    is_log: bool = False
    top: float | None = None
    note: str = ""


def use_colours() -> None:
    """Let matplotlib draw with `COLOURS` from now on: for scripts, not for the package."""
    from matplotlib import rc

    rc("axes", prop_cycle=f"cycler(color={list(COLOURS)})")


def panels_of(rows: Rows) -> tuple[list[Panel], str]:
    """Return the panels of a history, and a line that names what is the same in all epochs.

    There is one panel for the losses, one for each other metric, and one each for the learning
    rate, the coefficient of SVRG, the variance ratio, the seconds per epoch, and other numbers. A
    learning rate or a coefficient that never changes is in the line instead.

    Parameters
    ----------
    rows : sequence of dict
        The history: one row per epoch.
    """
    names = dict.fromkeys(name for row in rows for name in row)
    points = {name: _points_of(rows, name) for name in names}
    drawn = [name for name in points if name not in _NOT_DRAWN and points[name][0]]
    metrics = [n for n in drawn if n not in _LABELS and not n.startswith(RATIO_AT)]
    names_of: dict[str, list[str]] = {}
    for name in sorted(metrics, key=lambda name: _LOSS not in name.lower()):
        label = _LOSS if _LOSS in name.lower() else _without_split(name).replace("_", " ")
        names_of.setdefault(label, []).append(name)
    names_of |= {label: [name] for name, label in _LABELS.items() if name in drawn}
    if _LABELS[RATIO] in names_of:
        names_of[_LABELS[RATIO]] += [n for n in drawn if n.startswith(RATIO_AT)]
    constants = []
    for name in ("learning_rate", "coefficient"):
        if name in drawn and len(set(points[name][1])) == 1 and len(names_of) > 1:
            constants.append(f"{_LABELS[name]} {points[name][1][0]:.4g}")
            del names_of[_LABELS[name]]
    panels = [_panel_of(label, names, points) for label, names in names_of.items()]
    return panels, ", ".join(constants)


def broken_off(rows: Rows) -> str:
    """Return a line that names the epochs that a stop has interrupted, or an empty text."""
    return ", ".join(
        f"epoch {row.get('epoch', index)} was broken off after {row['batches']} "
        f"batch{'es' * (row['batches'] != 1)}"
        for index, row in enumerate(rows)
        if row.get("complete") is False
    )


def epochs_of(rows: Rows) -> tuple[float, float]:
    """Return the ends of the horizontal axis, which is the same in all panels."""
    first, last = rows[0].get("epoch", 0), rows[-1].get("epoch", len(rows) - 1)
    margin = max(0.5, 0.03 * (last - first))
    return first - margin, last + margin


def _points_of(rows: Rows, name: str) -> tuple[list[float], list[float]]:
    """Return the epochs that have the figure as a number, and its values."""
    points = [
        (row.get("epoch", index), float(row[name]))
        for index, row in enumerate(rows)
        if isinstance(row.get(name), numbers.Real)
    ]
    return [epoch for epoch, _ in points], [value for _, value in points]


def _panel_of(
    label: str, names: list[str], points: Mapping[str, tuple[list[float], list[float]]]
) -> Panel:
    is_one_metric = len({_without_split(name) for name in names}) == 1
    curves = []
    for number, name in enumerate(names):
        split = next((s.strip() for s in SPLITS if name.startswith(s)), "")
        # Validation has the same colour in all panels, with and without training.
        colour = int(split == "validation") if is_one_metric else number % len(COLOURS)
        shown = (split or label) if is_one_metric else _label_of(name)
        curves.append(Curve(name, shown, colour, *points[name]))
    values = [value for curve in curves for value in curve.values]
    has_legend = len(names) > 1 or names[0].startswith(SPLITS)
    if label in (_LOSS, _LABELS[RATIO]) and _spans_decades(values):
        return Panel(label, curves, has_legend, is_log=True)
    is_from_zero = label in _FROM_ZERO and all(map(math.isfinite, values))
    if not is_from_zero or not min(values) >= 0 < max(values):
        return Panel(label, curves, has_legend)
    if label == _LABELS["seconds"] and _is_dwarfed_by_first(values):
        note = f"epoch {curves[0].epochs[0]:g}: {values[0]:.3g} s"
        return Panel(label, curves, has_legend, top=1.1 * max(values[1:]), note=note)
    return Panel(label, curves, has_legend, top=max(values))


def _without_split(name: str) -> str:
    for split in SPLITS:
        name = name.removeprefix(split)
    return name


def _label_of(name: str) -> str:
    if name.startswith(RATIO_AT):
        return f"at {name.removeprefix(RATIO_AT)} %"
    return "average" if name == RATIO else name


def _spans_decades(values: list[float]) -> bool:
    finite = [value for value in values if math.isfinite(value)]
    return bool(finite) and min(finite) > 0 and max(finite) >= _LOG_SCALE_FROM * min(finite)


def _is_dwarfed_by_first(values: list[float]) -> bool:
    """Return whether the first epoch, with its warm-up, is so slow that it hides the others."""
    return len(values) > 2 and values[0] > 3 * max(values[1:])
