"""What the recipes write about a run: JSON, tables in Markdown and CSV, a page of HTML."""

from __future__ import annotations

import base64
import csv
import html
import io
import json
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

Rows = Sequence[Mapping[str, Any]]

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2em auto; max-width: 75em; padding: 0 1em }
table { border-collapse: collapse; margin: 1em 0 }
th, td { border: 1px solid #ccc; padding: .25em .7em; text-align: right }
th:first-child, td:first-child { text-align: left }
th { background: #f3f3f3 }
code { background: #f3f3f3; padding: .3em .5em; display: inline-block }
img { max-width: 100% }
"""


def launch_line(recipe: str, arguments: Sequence[str] | None) -> str:
    """Return the line that starts the run again; `arguments` are those of ``main``."""
    given = sys.argv[1:] if arguments is None else arguments
    return shlex.join(["python", f"recipes/{Path(recipe).name}", *given])


def write_text(path: Path, text: str) -> None:
    """Write a file whole or not at all."""
    write_bytes(path, text.encode())


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file whole or not at all."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    beside.write_bytes(content)
    os.replace(beside, path)


def write_json(path: Path, value: Any) -> None:
    """Write `value`; what is no JSON, such as a path, as its text."""
    write_text(path, json.dumps(value, indent=2, default=str) + "\n")


def write_figure(path: Path, figure: Figure) -> None:
    """Write a picture as PNG."""
    content = io.BytesIO()
    figure.savefig(content, dpi=130, format="png")
    write_bytes(path, content.getvalue())


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
    lines += [[cell(row[name]) for name in names] for row in rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def cell(value: Any) -> str:
    """Return `value` as a table shows it."""
    if value is None:
        return "–"  # noqa: RUF001  # an en dash
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 1000 else f"{value:,.0f}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def write_html(
    path: Path,
    title: str,
    launch: str,
    tables: Mapping[str, Rows],
    pictures: Sequence[Path] = (),
    options: Mapping[str, Any] | None = None,
) -> None:
    """Write a page that needs no other file: launch line, tables by heading, pictures, options."""
    parts = [f"<h1>{html.escape(title)}</h1>", f"<p><code>{html.escape(launch)}</code></p>"]
    for heading, rows in tables.items():
        parts += [f"<h2>{html.escape(heading)}</h2>", _table(rows)]
    for picture in pictures:
        encoded = base64.b64encode(picture.read_bytes()).decode()
        parts.append(f'<p><img alt="{picture.stem}" src="data:image/png;base64,{encoded}"></p>')
    if options:
        rows = [{"option": name, "value": str(value)} for name, value in options.items()]
        parts += ["<h2>Options</h2>", _table(rows)]
    head = f'<meta charset="utf-8"><title>{html.escape(title)}</title><style>{_STYLE}</style>'
    write_text(path, f"<!doctype html>\n<html>{head}\n" + "\n".join(parts) + "\n</html>\n")


def _table(rows: Rows) -> str:
    names = list(rows[0])
    lines = ["<tr>" + "".join(f"<th>{html.escape(name)}</th>" for name in names) + "</tr>"]
    for row in rows:
        cells = "".join(f"<td>{html.escape(cell(row.get(name)))}</td>" for name in names)
        lines.append(f"<tr>{cells}</tr>")
    return "<table>\n" + "\n".join(lines) + "\n</table>"
