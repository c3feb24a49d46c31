"""History: the figures of each epoch."""

from __future__ import annotations

import html
import io
import math
from functools import partial
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from gluon_svrg.arguments import require
from gluon_svrg.reporting.curves import (
    COLOURS,
    MAX_MARKERS,
    Panel,
    broken_off,
    epochs_of,
    panels_of,
)
from gluon_svrg.reporting.text_table import abridged, cell, terminal_width, text_table
from gluon_svrg.workers import current
from mxnet.ndarray import NDArray

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MEASURED = ("seconds", "samples_per_second", "peak_memory_mib")
"""The figures that differ from run to run, even if all others are the same: they are measured."""


def to_python_number(value: object) -> Any:
    """Return an array with one element as a number, a longer one as a list, others unchanged.

    MXNet's metrics give NumPy's scalars, which NumPy 2 prints as ``np.float64(0.375)``.

    Parameters
    ----------
    value : object
        An NDArray (the call waits for it), a NumPy array or scalar, or anything else.
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
        """Return a history with the rows of the epochs before `epoch`."""
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
        """Return the last value of a figure, from the last epoch that has it.

        An epoch that Ctrl-C has interrupted has no validation metrics, for example.

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

    def __repr__(self) -> str:
        """Return the rows as a table that fits the terminal, with four digits of each number."""
        if not self:
            return "History: no epoch yet"
        header, *rows = self._cells()
        return text_table(header, abridged(rows), terminal_width())

    def _repr_html_(self) -> str:
        """Return the table that a notebook shows: a row per epoch, four digits of each number."""
        header, *rows = self._cells()
        lines = ["<table>", _html_row("th", header)]
        lines += [_html_row("td", row) for row in abridged(rows)]
        return "\n".join([*lines, "</table>"])

    def _cells(self) -> list[list[str]]:
        """Return header and rows as text."""
        names = self.names()
        rows = [[cell(row.get(name)) for name in names] for row in self]
        return [[name.replace("_", " ") for name in names], *rows]

    def plot(self, path: str | PathLike[str] | None = None, title: str | None = None) -> Figure:
        """Draw the figures against the number of the epoch.

        There is one panel for the losses, one for each other metric (training and validation
        together), and one each for the learning rate, the coefficient of SVRG, the variance ratio,
        the seconds per epoch, and the figures that your handlers have added, if the history has
        them. A line above the panels says which epoch was interrupted. A learning rate or
        coefficient that is the same in all epochs is given above the panels instead. The axis of a
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
        panels, constants = panels_of(self)
        if not panels:
            what = "no number to draw" if self else "no epoch yet, so there is nothing to draw"
            raise ValueError(f"the history has {what}: plot it after fit")
        columns = 2 if len(panels) == 4 else min(len(panels), 3)
        rows = math.ceil(len(panels) / columns)
        width = 6.4 if columns == 1 else 4.4 * columns
        height = 4.4 if columns == 1 else 3.2 * rows
        above = [line for line in (title, constants, broken_off(self)) if line]
        figure = new_figure(width, height + 0.3 * len(above), "History.plot")
        if above:
            figure.suptitle("\n".join(above))
        for number, panel in enumerate(panels, 1):
            _draw(figure.add_subplot(rows, columns, number), panel, epochs_of(self))
        if path is not None and current().is_first:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            figure.savefig(path, dpi=150)
        return figure


def _html_row(tag: str, cells: list[str]) -> str:
    return "<tr>" + "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in cells) + "</tr>"


def _draw(axes: Axes, panel: Panel, epochs: tuple[float, float]) -> None:
    for curve in panel.curves:
        axes.plot(
            curve.epochs,
            curve.values,
            label=curve.label if panel.has_legend else None,
            color=COLOURS[curve.colour],
            # Without markers a point with no neighbour would be invisible.
            marker="o" if len(curve.epochs) <= MAX_MARKERS else None,
            markersize=3.5,
            linewidth=1.3,
        )
    axes.set_xlabel("epoch")
    axes.set_ylabel(panel.label)
    axes.grid(alpha=0.3)
    axes.locator_params(axis="x", integer=True, min_n_ticks=1)
    axes.set_xlim(*epochs)
    if panel.is_log:
        axes.set_yscale("log")
    else:
        axes.ticklabel_format(axis="y", useOffset=False)
    if panel.top is not None:
        axes.set_ylim(-0.03 * panel.top, 1.08 * panel.top)
    if panel.note:
        axes.annotate(
            panel.note, (0.97, 0.93), xycoords="axes fraction", ha="right", fontsize="small"
        )
    if panel.has_legend:
        axes.legend(fontsize="small")


def new_figure(width: float, height: float, caller: str) -> Figure:
    """Return a figure of this size, in inches, without a window."""
    require("matplotlib.figure", "plot", caller)
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    # A notebook shows figures of pyplot only, and all else by this method.
    vars(figure)["_repr_png_"] = partial(_png_of, figure)
    return figure


def _png_of(figure: Figure) -> bytes:
    file = io.BytesIO()
    figure.savefig(file, format="png")
    return file.getvalue()
