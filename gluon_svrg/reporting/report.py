"""A run as one HTML page: no script, no other file, no network."""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from gluon_svrg.metrics.monitor import Monitor
from gluon_svrg.reporting.curves import (
    COLOURS,
    MAX_MARKERS,
    SPLITS,
    Curve,
    Panel,
    Rows,
    broken_off,
    epochs_of,
    panels_of,
)
from gluon_svrg.reporting.history import History
from gluon_svrg.reporting.text_table import cell
from gluon_svrg.reporting.timings import PHASES
from gluon_svrg.reporting.versions import versions

# On a dark ground the first colour is the palette's sky blue and the second one its orange.
_DARK = ("#56B4E9", "#E69F00", "#2FBF96", "#E08FBF", "#F0E442", "#5C9CFF", "#FFFFFF")
# Beside its colour, a curve has a dash pattern and a marker of its own.
_DASHES = ("none", "6 3", "2 2.5", "9 3 2 3", "4 2", "1 3", "12 3")
_MARKERS = (
    "M-3 0a3 3 0 1 0 6 0a3 3 0 1 0-6 0z",  # circle
    "M-2.7-2.7h5.4v5.4h-5.4z",  # square
    "M0-4l4 4-4 4-4-4z",  # diamond
    "M0-4l3.7 6.4h-7.4z",  # triangle
)
_WIDTH, _HEIGHT = 420, 250
_LEFT, _RIGHT, _TOP, _BOTTOM = 60, 12, 10, 42
_DIGIT = 8  # the width of a digit of a label, at most
# Beyond that the difference of two values may overflow.
_LARGEST = 1e300

_STYLE = """
:root { color-scheme: light dark; --ground: #fff; --text: #1b1f24; --quiet: #565e68;
  --line: #d5dae0; --shade: #f4f6f8; --edge: #0005; LIGHT }
@media (prefers-color-scheme: dark) { :root { --ground: #15191e; --text: #e6e9ed;
  --quiet: #a3acb7; --line: #38404a; --shade: #1e242b; --edge: #fff6; DARK } }
* { box-sizing: border-box }
body { margin: 0 auto; max-width: 84rem; padding: 1.25rem clamp(.9rem, 3vw, 2.5rem) 3rem;
  background: var(--ground); color: var(--text); font: 16px/1.5 system-ui, sans-serif;
  overflow-wrap: break-word }
h1 { font-size: 1.7rem; line-height: 1.25; margin: .3em 0 .4em; overflow-wrap: anywhere }
h2 { font-size: 1.2rem; margin: 2.2em 0 .7em; padding-top: .7em; border-top: 1px solid var(--line) }
h3 { font-size: .95rem; margin: 0 0 .4em; overflow-wrap: anywhere }
p { margin: .35em 0 .7em; max-width: 48rem; overflow-wrap: anywhere }
.quiet { color: var(--quiet) }
.scroll { overflow-x: auto; border: 1px solid var(--line); border-radius: 6px; max-width: 100%;
  width: fit-content; background: /* a shadow at the side where columns are hidden */
  linear-gradient(to right, var(--ground), transparent) left / 2rem 100% no-repeat local,
  linear-gradient(to left, var(--ground), transparent) right / 2rem 100% no-repeat local,
  linear-gradient(to right, var(--edge), transparent) left / 1rem 100% no-repeat scroll,
  linear-gradient(to left, var(--edge), transparent) right / 1rem 100% no-repeat scroll }
.tall { max-height: 36rem; overflow-y: auto }
:focus-visible { outline: 2px solid var(--c0); outline-offset: 2px }
table { border-collapse: separate; border-spacing: 0; font-variant-numeric: tabular-nums;
  font-size: .9rem }
th, td { padding: .3em .75em; text-align: right; white-space: nowrap;
  border-bottom: 1px solid var(--line) }
tr:last-child > * { border-bottom: 0 }
thead tr > * { position: sticky; top: 0; z-index: 1; background: var(--shade); font-weight: 600;
  vertical-align: bottom; white-space: normal; min-width: 5em }
tr > :first-child { position: sticky; left: 0; text-align: left; background: var(--ground);
  font-weight: 600; min-width: 0 }
thead tr > :first-child { z-index: 2; background: var(--shade) }
.text td { text-align: left; white-space: normal; overflow-wrap: anywhere; min-width: 9em }
.text tr > :first-child { white-space: normal }
.share { min-width: 8rem; width: 16rem }
.share span { display: block; height: .8em; border-radius: 2px; background: var(--c0) }
.grid { display: grid; gap: 1.5rem;
  grid-template-columns: repeat(auto-fill, minmax(min(100%, 23rem), 1fr)) }
figure { margin: 0 }
figcaption { display: flex; flex-wrap: wrap; gap: .1em 1em; font-weight: 600; font-size: .95rem;
  align-items: baseline }
figcaption span { font-weight: 400; font-size: .85rem; white-space: nowrap }
figcaption svg { width: 2.3em; height: .8em; margin-right: .3em; overflow: visible }
figure > svg { display: block; width: 100%; height: auto }
svg text { fill: var(--quiet); font: 12px system-ui, sans-serif }
svg .rule { stroke: var(--line) }
svg .curve { fill: none; stroke-width: 1.8; stroke-linejoin: round }
svg .dot { stroke: none }
svg .hit { fill: transparent }
.cards { columns: 23rem; column-gap: 1.5rem }
.card { break-inside: avoid; border: 1px solid var(--line); border-radius: 6px;
  padding: .7rem .9rem; margin: 0 0 1rem }
dl { display: grid; grid-template-columns: fit-content(45%) 1fr; gap: .1em 1em; margin: 0;
  font-size: .9rem }
dt { color: var(--quiet); overflow-wrap: anywhere }
dd { margin: 0; overflow-wrap: anywhere }
img { max-width: 100%; height: auto }
pre { background: var(--shade); padding: .6em .9em; border-radius: 6px; overflow-x: auto }
@media (max-width: 40rem) { table { font-size: .85rem } th, td { padding: .3em .5em }
  thead tr > * { min-width: 0 } .share { min-width: 5rem } }
@media print { .tall { max-height: none } .scroll { overflow: visible } }
"""


def report_of(
    title: str,
    details: Mapping[str, object],
    *,
    ended: str,
    length: str,
    began: datetime | None,
    seconds: float,
    resumed_from: str,
    history: History,
    profile: History,
    settings: Mapping[str, Mapping[str, Any]],
) -> str:
    """Return the page of a run: see :meth:`gluon_svrg.FitResult.report`, and its attributes."""
    parts = [*_opening_of(ended, length, began, seconds)]
    if resumed_from:
        parts.append(
            f'<p class="quiet">It continued from the checkpoint {_text(resumed_from)}.</p>'
        )
    if broken := broken_off(history):
        parts.append(f"<p>Cut short: {_text(broken)}.</p>")
    groups = {name: value for name, value in details.items() if isinstance(value, Mapping)}
    single = {name: value for name, value in details.items() if name not in groups}
    if single:
        parts += ["<h2>Details</h2>", table_of_pairs("Details", single)]
    if history:
        panels, constants = panels_of(history)
        best = list(_best_of(history))
        if best:
            parts += ["<h2>Metrics</h2>", table("Metrics", best)]
        parts.append("<h2>Curves</h2>")
        if constants:
            parts.append(f"<p>The same in all epochs: {_text(constants)}.</p>")
        figures = [_figure_of(panel, epochs_of(history)) for panel in panels]
        parts += ['<div class="grid">', *figures, "</div>"]
        parts += ["<h2>Where the time went</h2>", *_time_of(history, profile)]
        # The metrics are what one looks for: on a phone only the first columns can be seen.
        names = sorted(history.names(), key=lambda name: (name != "epoch", not _is_metric(name)))
        rows = [{_heading(name): row.get(name) for name in names} for row in history]
        parts += ["<h2>Epochs</h2>", table("Epochs", rows)]
    if settings or groups:
        parts += ["<h2>Configuration</h2>", '<div class="cards">']
        parts += [*map(_card, groups, groups.values()), *_cards_of(settings), "</div>"]
    parts += ["<h2>Environment</h2>", table_of_pairs("Environment", versions())]
    return page(title, parts)


def _is_metric(name: str) -> bool:
    return name.startswith(SPLITS)


def _heading(name: str) -> str:
    return name.replace("_mib", " (MiB)").replace("_", " ")


def page(title: str, parts: Iterable[str]) -> str:
    """Return a page with the style of a report.

    Parameters
    ----------
    title : str
        Its heading, as plain text.
    parts : iterable of str
        What follows it, as HTML.
    """
    light, dark = (
        " ".join(f"--c{number}: {colour};" for number, colour in enumerate(colours))
        for colours in (COLOURS, _DARK)
    )
    style = _STYLE.replace("LIGHT", light).replace("DARK", dark)
    style += "".join(
        f"svg .s{n} {{ stroke: var(--c{n}); stroke-dasharray: {dash} }} "
        f"svg .f{n} {{ fill: var(--c{n}) }}\n"
        for n, dash in enumerate(_DASHES)
    )
    head = (
        '<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<link rel="icon" href="data:,">\n'  # or a browser asks the server for one
        f"<title>{_text(title)}</title>\n<style>{style}</style>"
    )
    body = "\n".join([f"<h1>{_text(title)}</h1>", *parts])
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n{head}\n</head>\n'
        f"<body>\n<main>\n{body}\n</main>\n</body>\n</html>\n"
    )


def table(title: str, rows: Rows) -> str:
    """Return a table with the columns of its first row, which scrolls if it is too wide.

    A number has four digits; all of them appear under the pointer.

    Parameters
    ----------
    title : str
        What it is called for readers who do not see it.
    rows : sequence of dict
        At least one.
    """
    names = list(rows[0])
    head = "".join(f'<th scope="col">{_text(name)}</th>' for name in names)
    lines = []
    for row in rows:
        first, *rest = (row.get(name) for name in names)
        cells = "".join(f"<td{_digits(value)}>{_text(cell(value))}</td>" for value in rest)
        lines.append(f'<tr><th scope="row">{_text(cell(first))}</th>{cells}</tr>')
    content = [f"<thead><tr>{head}</tr></thead>", "<tbody>", *lines, "</tbody>"]
    return _scrolling(title, content, "scroll tall")


def table_of_pairs(title: str, pairs: Mapping[str, object]) -> str:
    """Return a table of names and values.

    Parameters
    ----------
    title : str
        What it is called for readers who do not see it.
    pairs : mapping of str to object
        At least one; a value that is no number appears as its text.
    """
    lines = [
        f'<tr><th scope="row">{_text(name)}</th><td>{_text(cell(value))}</td></tr>'
        for name, value in pairs.items()
    ]
    return _scrolling(title, ["<tbody>", *lines, "</tbody>"], "scroll text")


def duration(seconds: float) -> str:
    """Return a time as text, in the units in which one would say it."""
    if seconds < 60:
        return f"{seconds:.2g} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours:,} h {minutes} min"


def _text(value: object) -> str:
    return html.escape(str(value))


def _digits(value: object) -> str:
    """Return the attribute that shows what the cell leaves out."""
    is_short = isinstance(value, (float, list)) and cell(value) != str(value)
    return f' title="{_text(value)}"' if is_short else ""


def _scrolling(title: str, content: Sequence[str], kind: str) -> str:
    """Return a table in a frame that scrolls, also by the keyboard."""
    return "\n".join(
        [
            f'<div class="{kind}" role="region" aria-label="{_text(title)}" tabindex="0">',
            "<table>",
            *content,
            "</table>",
            "</div>",
        ]
    )


def _opening_of(ended: str, length: str, began: datetime | None, seconds: float) -> Iterable[str]:
    reason = ended[0].upper() + ended[1:]
    yield f"<p><strong>{_text(reason)}</strong>: {_text(length)}.</p>"
    if began is not None:
        when = f"{began:%Y-%m-%d %H:%M:%S} {began.tzname()}"
        took = duration(seconds)
        yield f'<p class="quiet">This call of fit began at {_text(when)} and took {took}.</p>'


def _best_of(history: Rows) -> Iterable[dict[str, Any]]:
    """Return the last and the best value of each metric."""
    names = dict.fromkeys(name for row in history for name in row if name.startswith(SPLITS))
    for name in names:
        values = {
            row.get("epoch", index): row[name]
            for index, row in enumerate(history)
            if isinstance(row.get(name), (int, float))
        }
        if not values:
            continue
        monitor = Monitor(name)
        finite = {epoch: value for epoch, value in values.items() if math.isfinite(value)}
        row = {"metric": name, "last": list(values.values())[-1], "best": None, "in epoch": None}
        if finite and monitor.mode != "auto":
            row["in epoch"] = monitor.best_first(finite)[0]
            row["best"] = finite[row["in epoch"]]
        yield row


def _time_of(history: History, profile: History) -> Iterable[str]:
    if profile:
        epochs = [row["epoch"] for row in profile]
        which = f"epoch {epochs[0]}" if len(epochs) == 1 else f"{len(epochs)} profiled epochs"
        yield f"<p>By phase, in {_text(which)}.</p>"
        yield _shares_of(profile)
        return
    timed = [row for row in history if "seconds" in row]
    if not timed:
        yield "<p>The history has no seconds.</p>"
        return
    seconds = [row["seconds"] for row in timed]
    speeds = [row["samples_per_second"] for row in timed if "samples_per_second" in row]
    pairs = {
        "all epochs": duration(sum(seconds)),
        "an epoch on average": duration(sum(seconds) / len(seconds)),
        "from the fastest to the slowest": f"{duration(min(seconds))} to {duration(max(seconds))}",
    }
    if speeds:
        pairs["samples per second"] = f"{cell(min(speeds))} to {cell(max(speeds))}"
    yield table_of_pairs("Where the time went", pairs)
    yield '<p class="quiet">To see it by phase, pass a gluon_svrg.ProfilerHandler to fit.</p>'


def _shares_of(profile: Rows) -> str:
    """Return the phases with their shares, as numbers and as bars."""
    total, batches = (sum(row[name] for row in profile) for name in ("seconds", "batches"))
    columns = ("phase", "seconds", "share", "ms per batch")
    head = "".join(f'<th scope="col">{name}</th>' for name in columns) + "<td></td>"
    seconds_of = {phase: sum(row[phase] for row in profile) for phase in PHASES}
    longest = max(seconds_of.values()) or 1.0
    lines = []
    for phase, seconds in seconds_of.items():
        share = 100 * seconds / total if total else 0.0
        each = 1e3 * seconds / batches if batches else 0.0
        bar = f'<span style="width: {100 * seconds / longest:.1f}%"></span>'
        lines.append(
            f'<tr><th scope="row">{phase}</th><td>{seconds:.3f}</td><td>{share:.1f} %</td>'
            f'<td>{each:.3f}</td><td class="share">{bar}</td></tr>'
        )
    content = [f"<thead><tr>{head}</tr></thead>", "<tbody>", *lines, "</tbody>"]
    return _scrolling("Where the time went", content, "scroll")


def _cards_of(settings: Mapping[str, Mapping[str, object]]) -> Iterable[str]:
    """Return a card for each owner of settings, and one for the handlers without any."""
    others = {}
    for owner, values in settings.items():
        if values.keys() - {"priority"}:
            yield _card(owner, values)
        else:
            others[owner] = f"priority {values['priority']}" if values else ""
    if others:
        yield _card("Other handlers", others)


def _card(title: str, values: Mapping[str, object]) -> str:
    # A class may wrap after each dot of its name, an argument after each underscore.
    pairs = "".join(
        f"<dt>{_text(name).replace('_', '_<wbr>')}</dt>"
        f"<dd>{_text(value).replace('.', '.<wbr>')}</dd>"
        for name, value in values.items()
    )
    return f'<section class="card"><h3>{_text(title)}</h3><dl>{pairs}</dl></section>'


def _figure_of(panel: Panel, epochs: tuple[float, float]) -> str:
    """Return a panel as a figure with its caption."""
    keys = "".join(
        f'<span><svg viewBox="0 0 28 10" aria-hidden="true"><path class="curve s{c.colour}" '
        f'd="M0 5h28"/><path class="dot f{c.colour}" transform="translate(14 5)" '
        f'd="{_marker_of(c)}"/></svg>{_text(c.label)}</span>'
        for c in panel.curves
        if panel.has_legend
    )
    note = f'<span class="quiet">{_text(panel.note)}</span>' if panel.note else ""
    caption = f"<figcaption>{_text(panel.label)}{keys}{note}</figcaption>"
    about = f"{panel.label} by epoch: {', '.join(map(_words_of, panel.curves))}"
    shapes = _axes_of(panel, epochs)
    svg = f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{_text(about)}">'
    return "\n".join(["<figure>", caption, svg, *shapes, "</svg>", "</figure>"])


def _words_of(curve: Curve) -> str:
    return f"{curve.label} from {cell(curve.values[0])} to {cell(curve.values[-1])}"


def _marker_of(curve: Curve) -> str:
    return _MARKERS[curve.colour % len(_MARKERS)]


def _axes_of(panel: Panel, epochs: tuple[float, float]) -> Iterable[str]:
    """Return axes and curves as SVG."""
    values = [value for curve in panel.curves for value in curve.values if _is_drawn(value)]
    right, bottom = _WIDTH - _RIGHT, _HEIGHT - _BOTTOM
    middle = (_LEFT + right) / 2
    yield f'<text x="{middle:g}" y="{_HEIGHT - 6}" text-anchor="middle">epoch</text>'
    if not values:
        at = f'x="{middle:g}" y="{_HEIGHT / 2:g}" text-anchor="middle"'
        yield f"<text {at}>no finite value</text>"
        return

    def place(value: float) -> float:
        return math.log10(value) if panel.is_log else value

    low, high = _range_of(panel, [place(value) for value in values])
    ticks = list(_powers(low, high) if panel.is_log else _ticks(low, high, 5))
    left = max([_LEFT, *(_DIGIT * len(label) + 10 for _, label in ticks)])

    def x_of(epoch: float) -> float:
        return left + (right - left) * (epoch - epochs[0]) / (epochs[1] - epochs[0])

    def y_of(value: float) -> float:
        return bottom - (bottom - _TOP) * (place(value) - low) / (high - low)

    yield f'<path class="rule" d="M{left} {bottom}H{right}"/>'
    for tick, label in ticks:
        y = y_of(tick)
        yield f'<path class="rule" d="M{left} {y:.1f}H{right}"/>'
        yield f'<text x="{left - 7}" y="{y + 4:.1f}" text-anchor="end">{label}</text>'
    for tick, label in _ticks(*epochs, 7, least=1):
        x = x_of(tick)
        yield f'<path class="rule" d="M{x:.1f} {bottom}v4"/>'
        yield f'<text x="{x:.1f}" y="{bottom + 17}" text-anchor="middle">{label}</text>'
    for curve in panel.curves:
        yield from _curve_of(curve, [(x_of(e), e, v) for e, v in _points_of(curve)], y_of)


def _range_of(panel: Panel, values: list[float]) -> tuple[float, float]:
    """Return the ends of the vertical axis, on its scale."""
    if panel.top is not None:
        return 0.0, 1.08 * panel.top
    low, high = min(values), max(values)
    margin = 0.06 * (high - low) or 0.1 * abs(high) or 1.0
    return low - margin, high + margin


def _is_drawn(value: float) -> bool:
    return abs(value) < _LARGEST  # which is false of NaN, too


def _points_of(curve: Curve) -> Iterable[tuple[float, float]]:
    return zip(curve.epochs, curve.values, strict=True)


def _curve_of(
    curve: Curve, points: Sequence[tuple[float, float, float]], y_of: Any
) -> Iterable[str]:
    """Return a line, broken at what is not finite, and a marker for each point."""
    commands, is_down = [], False
    for x, _, value in points:
        if _is_drawn(value):
            commands.append(f"{'L' if is_down else 'M'}{x:.1f} {y_of(value):.1f}")
        is_down = _is_drawn(value)
    yield f'<path class="curve s{curve.colour}" d="{"".join(commands)}"/>'
    if len(points) > MAX_MARKERS:
        return
    for x, epoch, value in points:
        if _is_drawn(value):
            yield (
                f'<g transform="translate({x:.1f} {y_of(value):.1f})">'
                f'<path class="dot f{curve.colour}" d="{_marker_of(curve)}"/>'
                f'<circle class="hit" r="9"/>'
                f"<title>epoch {epoch:g}, {_text(curve.label)}: {cell(value)}</title></g>"
            )


def _ticks(low: float, high: float, most: int, least: float = 0.0) -> Iterable[tuple[float, str]]:
    """Return round numbers between two ends, and their labels.

    Parameters
    ----------
    low, high : float
        The ends.
    most : int
        How many there are at most.
    least : float
        The smallest step between two of them.
    """
    rough = max((high - low) / most, least)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= 0.999 * rough)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    largest = max(abs(first), abs(last), 1)
    digits = max(4, math.ceil(math.log10(largest)) + 1)
    for number in range(first, last + 1):
        value = number * step
        is_whole = step >= 1 and largest * step < 1e7
        yield value, f"{value:,.0f}" if is_whole else f"{value:.{digits}g}"


def _powers(low: float, high: float) -> Iterable[tuple[float, str]]:
    """Return the powers of ten between two logarithms, at most six, and their labels."""
    first, last = math.ceil(low - 1e-9), math.floor(high + 1e-9)
    step = max(1, math.ceil((last - first + 1) / 6))
    for exponent in range(first, last + 1, step):
        yield 10.0**exponent, f"{10.0**exponent:g}"
