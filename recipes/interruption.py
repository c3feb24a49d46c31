"""Ctrl-C in a recipe: it reports what there is, and its exit code says that it was interrupted."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import TracebackType
from typing import Any, NoReturn, TypeVar

import gluon_svrg as gs

EXIT_CODE = 130  # of a program that was ended by SIGINT, by convention

Result = TypeVar("Result")


_print_traceback = sys.excepthook  # under the launcher this also ends the other workers


def _one_line(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Print one line if Ctrl-C comes during the imports, or if a package is not installed."""
    if issubclass(kind, KeyboardInterrupt):
        error, trace = KeyboardInterrupt("interrupted"), None
    elif issubclass(kind, ModuleNotFoundError):
        way_out = "pip install '.[recipes]' in the checkout"
        error, trace = ModuleNotFoundError(f"{error}: {way_out}"), None
    _print_traceback(type(error), error, trace)


sys.excepthook = _one_line


def run(main: Callable[[], Result]) -> Result:
    """Call the recipe's main; Ctrl-C where there is nothing to report yet ends with one line."""
    sys.excepthook = _print_traceback  # the imports are done
    try:
        return main()
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        raise SystemExit(EXIT_CODE) from None


def leave() -> NoReturn:
    """End with the exit code, once the first worker has written the report.

    The exit of one worker with a code other than 0 ends all.
    """
    gs.workers.current().barrier("the end of an interrupted recipe")
    raise SystemExit(EXIT_CODE)


class Interrupted(KeyboardInterrupt):
    """A signal has ended a training; `run` is what it had reached."""

    def __init__(self, run: Any) -> None:
        super().__init__()
        self.run = run


def raise_if_interrupted(result: gs.FitResult, run: Any) -> None:
    """Raise Interrupted if a signal has ended the training with this result."""
    if result.stop_reason is gs.StopReason.SIGNAL:
        raise Interrupted(run)
