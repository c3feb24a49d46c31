"""Numbers of the command line, checked as they are read."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable


def integer(least: int, most: int | None = None) -> Callable[[str], int]:
    """Return a type for ``add_argument``: an integer of at least `least`, up to `most`."""
    bound = f"of at least {least}" if most is None else f"from {least} to {most}"

    def read(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = least - 1
        if value < least or (most is not None and value > most):
            raise argparse.ArgumentTypeError(f"must be an integer {bound}, got {text!r}")
        return value

    return read


def number(least: float, above: bool = False) -> Callable[[str], float]:
    """Return a type for ``add_argument``: a finite number of at least `least`, or `above` it."""
    bound = f"{'above' if above else 'of at least'} {least:g}"

    def read(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not math.isfinite(value) or value < least or (above and value == least):
            raise argparse.ArgumentTypeError(f"must be a number {bound}, got {text!r}")
        return value

    return read


def named_number(text: str) -> tuple[str, float]:
    """Read ``NAME=NUMBER``."""
    name, _, value = text.partition("=")
    try:
        if name.isidentifier():
            return name, float(value)
    except ValueError:
        pass
    raise argparse.ArgumentTypeError(f"must be NAME=NUMBER, as eta=0.002, got {text!r}")


def number_or_auto(text: str) -> float | str:
    """Read a number, or ``auto``."""
    try:
        return text if text == "auto" else float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a number or auto, got {text!r}") from None


def positive_or_auto(text: str) -> float | str:
    """Read a number above 0, or ``auto``."""
    return text if text == "auto" else POSITIVE(text)


def show_defaults(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Return `parser`, whose ``--help`` has the default of each option, if it has one."""
    for action in parser._actions:
        is_told = "%(default)s" in (action.help or "")  # as argparse does for some
        has_one = (
            action.default not in (None, False, "", argparse.SUPPRESS) and action.default != []
        )
        if has_one and not is_told:
            action.help = f"{action.help or ''} (default: %(default)s)".strip()
    return parser


SEED = integer(0, 2**31 - 1)
POSITIVE = number(0, above=True)
