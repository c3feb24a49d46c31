"""History: the figures of each epoch."""

from __future__ import annotations

import html
import io
import math
import numbers
from functools import partial
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from gluon_svrg.workers import current
from mxnet.ndarray import NDArray

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MEASURED = ("seconds", "samples_per_second", "peak_memory_mib")
"""The figures that differ from run to run, even if all others are the same: they are measured."""

# The labels of panels that have a label of their own.
_LABELS = {
    "learning_rate": "learning rate",
    "coefficient": "SVRG coefficient",
    "variance_ratio": "variance ratio",
    "seconds": "seconds per epoch",
}
# The average over an epoch and the ratio at points of it are in the same panel.
RATIO, RATIO_AT = "variance_ratio", "variance_ratio_at_"
_FROM_ZERO = ("learning rate", "SVRG coefficient", "seconds per epoch")
_NOT_DRAWN = (
    "epoch", "batches", "complete", "samples", "samples_per_second", "peak_memory_mib"
)  # fmt: skip
_LOSS = "loss"
_SPLITS = ("training ", "validation ")
_MAX_MARKERS = 60
_LOG_SCALE_FROM = 100  # the greatest value divided by the smallest


def plain_figure(value: object) -> Any:
    """Return an array of one element as a number and a longer one as a list; all else as it is.

    MXNet's metrics give NumPy's scalars, which NumPy 2 prints as ``np.float64(0.375)``.

    Parameters
    ----------
    value : object
        An NDArray (which is waited for), a NumPy array or scalar, or anything else.
    """
    if isinstance(value, NDArray):
        value = value.asnumpy()
    if isinstance(value, (np.ndarray, np.generic)):
        return value.item() if value.size == 1 else value.tolist()
    return value


class History(list[dict[str, Any]]):
    """A list of rows, one dict per epoch, from the name of a figure to its value.

    A row has the figures of its epoch only: no validation metric if there was no evaluation.
    :class:`gluon_svrg.HistoryHandler` says what is in a row.
    """

    def before(self, epoch: int) -> History:
        """Return a history of the rows of the epochs before this one."""
        return History(row for row in self if row.get("epoch", epoch) < epoch)

    def names(self) -> list[str]:
        """Return the names of all figures, in the order in which they first appear."""
        return list(dict.fromkeys(name for row in self for name in row))

    def column(self, name: str) -> list[Any]:
        """Return one figure of all epochs.

        Parameters
        ----------
        name : str
            One of :meth:`names`.

        Returns
        -------
        list
            One value per epoch; None if an epoch has no such figure.

        Raises
        ------
        ValueError
            If no epoch has it.
        """
        names = self.names()
        if name not in names:
            there = f"it has {', '.join(map(repr, names))}" if names else "it has no epoch yet"
            raise ValueError(f"there is no figure {name!r} in the history: {there}")
        return [row.get(name) for row in self]

    def last(self, name: str) -> Any:
        """Return the last value of a figure: that of the last epoch which has it.

        An epoch without an evaluation has no validation metrics: one that Ctrl-C has broken off.

        Parameters
        ----------
        name : str
            One of :meth:`names`.

        Raises
        ------
        ValueError
            If no epoch has it.
        """
        return [value for value in self.column(name) if value is not None][-1]

    def _repr_html_(self) -> str:
        """Return the table that a notebook shows: a row per epoch, four digits of each number."""
        names = self.names()
        lines = ["<table>", _html_row("th", [name.replace("_", " ") for name in names])]
        lines += [_html_row("td", [_cell(row.get(name)) for name in names]) for row in self]
        return "\n".join([*lines, "</table>"])

    def plot(self, path: str | PathLike[str] | None = None, title: str | None = None) -> Figure:
        """Draw the figures against the number of the epoch.

        There is one panel for the losses, one for each other metric (training and validation
        together), and one each for the learning rate, the coefficient of SVRG, the variance ratio,
        the seconds per epoch, and the figures that your handlers have added, if the history has
        them. A line above the panels says which epoch was broken off. A learning rate or
        coefficient that is the same in all epochs is told above the panels instead. The axis of a
        loss or a variance ratio is logarithmic if its values are positive and span a factor of 100.
        The first epoch's seconds are a number in their panel if they would dwarf the others.
        `matplotlib.pyplot` is not used, so none of its windows or state changes.

        Parameters
        ----------
        path : str or path, optional
            The file to save it in as well: .png, .pdf, .svg, or another suffix that matplotlib
            knows. Parent folders are made. Of several workers the first one writes it.
        title : str, optional
            A title above all panels.

        Returns
        -------
        matplotlib.figure.Figure
            The figure; a notebook shows it.

        Raises
        ------
        ValueError
            If there is no epoch, or no number to draw.
        ImportError
            If matplotlib is not installed.
        """
        panels = self._panels()
        constants = self._take_constants(panels)
        if not panels:
            what = "no number to draw" if self else "no epoch yet, so there is nothing to draw"
            raise ValueError(f"the history has {what}: plot it after fit")
        columns = 2 if len(panels) == 4 else min(len(panels), 3)
        rows = math.ceil(len(panels) / columns)
        width = 6.4 if columns == 1 else 4.4 * columns
        height = 4.4 if columns == 1 else 3.2 * rows
        above = [line for line in (title, constants, self._broken_off()) if line]
        figure = new_figure(width, height + 0.3 * len(above), "History.plot")
        if above:
            figure.suptitle("\n".join(above))
        for number, (label, names) in enumerate(panels.items(), 1):
            self._draw(figure.add_subplot(rows, columns, number), label, names)
        if path is not None and current().is_first:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            figure.savefig(path, dpi=150)
        return figure

    def _panels(self) -> dict[str, list[str]]:
        """Return the names of the figures of each panel, by its label."""
        drawn = [n for n in self.names() if n not in _NOT_DRAWN and self._points(n)[0]]
        metrics = [n for n in drawn if n not in _LABELS and not n.startswith(RATIO_AT)]
        panels: dict[str, list[str]] = {}
        for name in sorted(metrics, key=lambda name: _LOSS not in name.lower()):
            label = _LOSS if _LOSS in name.lower() else _without_split(name).replace("_", " ")
            panels.setdefault(label, []).append(name)
        panels |= {label: [name] for name, label in _LABELS.items() if name in drawn}
        if _LABELS[RATIO] in panels:
            panels[_LABELS[RATIO]] += [n for n in drawn if n.startswith(RATIO_AT)]
        return panels

    def _broken_off(self) -> str:
        """Return a line that tells which epochs were broken off."""
        return ", ".join(
            f"epoch {row.get('epoch', index)} was broken off after {row['batches']} batches"
            for index, row in enumerate(self)
            if row.get("complete") is False
        )

    def _take_constants(self, panels: dict[str, list[str]]) -> str:
        """Take away the panels of what never changes, and return a line that tells it."""
        told = []
        for name in ("learning_rate", "coefficient"):
            values = set(self._points(name)[1])
            if _LABELS[name] in panels and len(values) == 1 and len(panels) > 1:
                told.append(f"{_LABELS[name]} {values.pop():.4g}")
                del panels[_LABELS[name]]
        return ", ".join(told)

    def _points(self, name: str) -> tuple[list[float], list[float]]:
        """Return the epochs that have the figure as a number, and its values."""
        points = [
            (row.get("epoch", index), float(row[name]))
            for index, row in enumerate(self)
            if isinstance(row.get(name), numbers.Real)
        ]
        return [epoch for epoch, _ in points], [value for _, value in points]

    def _draw(self, axes: Axes, label: str, names: list[str]) -> None:
        is_one_metric = len({_without_split(name) for name in names}) == 1
        values: list[float] = []
        for name in names:
            x, y = self._points(name)
            values += y
            split = next((s.strip() for s in _SPLITS if name.startswith(s)), None)
            axes.plot(
                x,
                y,
                label=split if is_one_metric else _label_of(name),
                # Validation has the same colour in all panels, with and without training.
                color={"training": "C0", "validation": "C1"}.get(split or "training")
                if is_one_metric
                else None,
                # Without markers a point with no neighbour would be invisible.
                marker="o" if len(x) <= _MAX_MARKERS else None,
                markersize=3.5,
                linewidth=1.3,
            )
        axes.set_xlabel("epoch")
        axes.set_ylabel(label)
        axes.grid(alpha=0.3)
        axes.locator_params(axis="x", integer=True, min_n_ticks=1)
        epochs = [row.get("epoch", index) for index, row in enumerate(self)]
        # All panels have the same epochs, even if a figure is missing in the first or last.
        margin = max(0.5, 0.03 * (epochs[-1] - epochs[0]))
        axes.set_xlim(epochs[0] - margin, epochs[-1] + margin)
        if label in (_LOSS, "variance ratio") and _spans_decades(values):
            axes.set_yscale("log")
        else:
            axes.ticklabel_format(axis="y", useOffset=False)
            if label in _FROM_ZERO and _are_finite(values) and min(values) >= 0 < max(values):
                greatest = max(values)
                if label == _LABELS["seconds"] and _is_dwarfed_by_first(values):
                    greatest = max(values[1:])
                    note = f"epoch {epochs[0]:g}: {values[0]:.3g} s"
                    axes.annotate(
                        note, (0.97, 0.93), xycoords="axes fraction", ha="right", fontsize="small"
                    )
                    greatest *= 1.1
                axes.set_ylim(-0.03 * greatest, 1.08 * greatest)
        if len(names) > 1 or names[0].startswith(_SPLITS):
            axes.legend(fontsize="small")


def _html_row(tag: str, cells: list[str]) -> str:
    return "<tr>" + "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in cells) + "</tr>"


def _cell(value: object) -> str:
    if value is None:
        return ""
    return f"{value:.4g}" if isinstance(value, numbers.Real) else str(value)


def _without_split(name: str) -> str:
    for split in _SPLITS:
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
    """Return whether the first epoch, which warms everything up, would hide the others."""
    return len(values) > 2 and values[0] > 3 * max(values[1:])


def _are_finite(values: list[float]) -> bool:
    return all(math.isfinite(value) for value in values)


def new_figure(width: float, height: float, caller: str) -> Figure:
    """Return a figure of that size, in inches, that belongs to no window."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as e:
        raise ImportError(
            f"{caller} needs matplotlib: install it with pip install 'gluon-svrg[plot]'"
        ) from e
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    # A notebook shows figures of pyplot only, and all else by this method.
    vars(figure)["_repr_png_"] = partial(_png_of, figure)
    return figure


def _png_of(figure: Figure) -> bytes:
    file = io.BytesIO()
    figure.savefig(file, format="png")
    return file.getvalue()
