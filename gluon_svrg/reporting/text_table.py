"""Text for a terminal: a number with four digits, and tables and lines that fit its width."""

from __future__ import annotations

import numbers
import re
import shutil
import textwrap
from collections.abc import Sequence

MAX_ITEMS = 3
# Of more rows than that, the first and last ones are shown.
MAX_ROWS = 60
_AT_EACH_END = 5
_GAP = "  "


class PrintedText(str):
    """A text that has been printed already: a notebook does not show it once more."""

    __slots__ = ()

    def _ipython_display_(self) -> None:
        pass


def cell(value: object) -> str:
    """Return a figure as a table shows it: whole numbers in full, others with four digits.

    None is an empty cell; of a list there are the first items.
    """
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, numbers.Integral):
        return f"{int(value):,}"
    if isinstance(value, numbers.Real):
        value = float(value)
        return f"{value:,.0f}" if 1000 <= abs(value) < 1e9 else f"{value:.4g}"
    if isinstance(value, list):
        dots = ["..."] if len(value) > MAX_ITEMS else []
        return f"[{', '.join([*map(cell, value[:MAX_ITEMS]), *dots])}]"
    return str(value)


def abridged(rows: Sequence[list[str]]) -> list[list[str]]:
    """Return all rows, or the first and last ones with a row of dots between them."""
    if len(rows) <= MAX_ROWS:
        return list(rows)
    return [*rows[:_AT_EACH_END], ["..."] * len(rows[0]), *rows[-_AT_EACH_END:]]


def terminal_width() -> int:
    """Return the number of columns of the terminal; 80 without one."""
    return shutil.get_terminal_size((80, 24)).columns


def wrapped(line: str, width: int) -> str:
    """Return a line broken after commas, so that no part is longer than `width` if possible."""
    lines = [""]
    for part in re.split(r"(?<=,) ", line):
        longer = f"{lines[-1]} {part}" if lines[-1] else part
        if len(longer) <= width:
            lines[-1] = longer
        else:
            # A part without a comma may be longer than a line.
            indent = "    " if lines[-1] else ""
            more = textwrap.wrap(
                part,
                width,
                initial_indent=indent,
                subsequent_indent="    ",
                break_long_words=False,
                break_on_hyphens=False,
            )
            lines = [*filter(None, lines), *more]
    return "\n".join(lines)


def text_table(header: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> str:
    """Return rows of cells as text, with the columns side by side or, if need be, in blocks.

    Each block begins with the first column. The words of the header are stacked if that makes a
    column narrower. No cell is cut: one that is wider than `width` makes a longer line.

    Parameters
    ----------
    header : sequence of str
        The names of the columns.
    rows : sequence of sequence of str
        At least one; each as long as `header`.
    width : int
        The greatest length of a line.
    """
    cells = [max(len(row[column]) for row in rows) for column in range(len(header))]
    heads = [
        textwrap.wrap(name, max(widest, *map(len, name.split()))) if name.strip() else [""]
        for name, widest in zip(header, cells, strict=True)
    ]
    widths = [max(widest, *map(len, head)) for widest, head in zip(cells, heads, strict=True)]
    blocks: list[list[int]] = []
    room = 0
    for column in range(1, len(widths)):
        room -= len(_GAP) + widths[column]
        if room < 0:
            blocks.append([0])
            room = width - widths[0] - len(_GAP) - widths[column]
        blocks[-1].append(column)
    return "\n\n".join(_block(columns, heads, rows, widths) for columns in blocks or [[0]])


def _block(
    columns: Sequence[int],
    heads: Sequence[Sequence[str]],
    rows: Sequence[Sequence[str]],
    widths: Sequence[int],
) -> str:
    """Return some of the columns as text."""
    height = max(len(heads[column]) for column in columns)
    stacked = {c: [""] * (height - len(heads[c])) + list(heads[c]) for c in columns}
    lines = [[stacked[c][line] for c in columns] for line in range(height)]
    lines += [[row[c] for c in columns] for row in rows]
    return "\n".join(
        _GAP.join(text.rjust(widths[c]) for text, c in zip(line, columns, strict=True)).rstrip()
        for line in lines
    )
