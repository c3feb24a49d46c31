"""What the recipes write about a run: JSON, tables in Markdown and CSV, a page of HTML."""

from __future__ import annotations

import base64
import csv
import html
import io
import json
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gluon_svrg.files import write_whole
from gluon_svrg.reporting.curves import use_colours
from gluon_svrg.reporting.report import page, table, table_of_pairs
from gluon_svrg.reporting.text_table import cell
from matplotlib.figure import Figure

Rows = Sequence[Mapping[str, Any]]

use_colours()  # in all pictures that a recipe draws


def launch_line(recipe: str, arguments: Sequence[str] | None) -> str:
    """Return the line that starts the run again; `arguments` are those of ``main``."""
    given = sys.argv[1:] if arguments is None else arguments
    return shlex.join(["python", f"recipes/{Path(recipe).name}", *given])


def write_text(path: Path, text: str) -> None:
    """Write a file whole or not at all."""
    write_whole(path, text.encode())


def write_json(path: Path, value: Any) -> None:
    """Write `value`; what is no JSON, such as a path, as its text."""
    write_text(path, json.dumps(value, indent=2, default=str) + "\n")


def write_figure(path: Path, figure: Figure) -> None:
    """Write a picture as PNG."""
    content = io.BytesIO()
    figure.savefig(content, dpi=130, format="png")
    write_whole(path, content.getvalue())


def write_csv(path: Path, rows: Rows) -> None:
    """Write a table with the columns of its first row, and all digits."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_text(path, text.getvalue())


def markdown(rows: Rows) -> str:
    """Return a table with the columns of its first row; the first one is to the left."""
    names = list(rows[0])
    lines = [names, [":--", *["--:"] * (len(names) - 1)]]
    lines += [[cell(row[name]) or "–" for name in names] for row in rows]  # noqa: RUF001
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def write_html(
    path: Path,
    title: str,
    launch: str,
    tables: Mapping[str, Rows],
    pictures: Sequence[Path] = (),
    options: Mapping[str, Any] | None = None,
) -> None:
    """Write a page that needs no other file: launch line, tables by heading, pictures, options."""
    parts = [f'<pre tabindex="0">{html.escape(launch)}</pre>']
    for heading, rows in tables.items():
        parts += [f"<h2>{html.escape(heading)}</h2>", table(heading, rows)]
    for picture in pictures:
        encoded = base64.b64encode(picture.read_bytes()).decode()
        parts.append(f'<div><img alt="{picture.stem}" src="data:image/png;base64,{encoded}"></div>')
    if options:
        parts += ["<h2>Options</h2>", table_of_pairs("Options", options)]
    write_text(path, page(title, parts))
