"""The progress of a fit: a line per snapshot, and a bar with the number of correct digits."""

from __future__ import annotations

import logging
import math
import sys
from types import TracebackType

from tqdm.auto import tqdm

from provenglm.model.solution import Record, Solution
from provenglm.types import Verbose

_logger = logging.getLogger("provenglm")


def show(line: str) -> None:
    """Log a line at the level INFO; print it if the program has configured no logging."""
    if not _logger.hasHandlers():
        tqdm.write(line)
        return
    if _logger.level == logging.NOTSET:  # else a root logger at WARNING would hide it
        _logger.setLevel(logging.INFO)
    _logger.info(line)


class Progress:
    """Show the progress of a fit; a context manager that opens and closes the bar.

    Lines go to the logger ``provenglm``, or to the standard output if the program has not
    configured logging. The bar counts the digits that `tol` asks for, because the number of
    snapshots is not known in advance.

    Parameters
    ----------
    name : str
        Name of the estimator's class.
    verbose : 'auto', 0, 1 or 2
        0 shows nothing, 1 the bar and the lines, 2 the lines only. 'auto' is 1 in a terminal or a
        notebook, and 2 elsewhere.
    tol : float
        Relative gap at which the fit ends.
    """

    def __init__(self, name: str, verbose: Verbose, tol: float) -> None:
        self._name = name
        self._is_shown = verbose != 0
        self._has_bar = self._is_shown and _has_bar(verbose)
        self._digits = max(1.0, -math.log10(tol)) if tol > 0 else 16.0
        self._bar: tqdm | None = None
        self._first = math.nan

    def __enter__(self) -> Progress:
        if self._has_bar:
            self._bar = tqdm(
                total=self._digits,
                desc=self._name,
                leave=False,
                bar_format="{desc}: {n:.1f} of {total:.0f} digits |{bar}| {elapsed}{postfix}",
            )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.close()

    def __call__(self, record: Record) -> None:
        """Show a snapshot."""
        if math.isnan(self._first):
            self._first = record.objective
        if self._is_shown:
            show(line_of(self._name, record))
        if self._bar is not None:
            self._bar.n = min(max(self._bar.n, self._digits_of(record)), self._digits)
            self._bar.set_postfix_str(f"{record.passes:.0f} passes")

    def notice(self, text: str) -> None:
        """Show a message about work between two snapshots."""
        if self._is_shown:
            show(f"{self._name}: {text}")

    def end(self, solution: Solution) -> None:
        """Show the method and its reason, why the fit ended, and the distance to the optimum."""
        if self._is_shown:
            where = f"objective {solution.objective:.8g}, "
            where += distance("about", solution.decrement, solution.gap)
            seconds = solution.history[-1].seconds if solution.history else 0.0
            ended = f"ended after {seconds:.2f} s: {solution.reason.value}"
            show(f"{self._name}: {solution.method}, because {solution.why}; {ended}; {where}")

    def _digits_of(self, record: Record) -> float:
        done = self._first - record.objective
        left = min(record.gap, 10 * record.decrement)  # the bound or the estimate, with a margin
        if not (done > 0 and math.isfinite(left)):
            return 0.0
        return math.log10(done / left) if left > 0 else self._digits


def _has_bar(verbose: Verbose) -> bool:
    """Return whether to show a bar (on the standard error)."""
    if verbose != "auto":
        return verbose == 1
    # In a notebook no stream is a terminal, and tqdm's bar is a widget.
    notebook = sys.modules.get("tqdm.notebook")
    if notebook is not None and issubclass(tqdm, notebook.tqdm_notebook):
        return True
    return sys.stderr is not None and sys.stderr.isatty()


def line_of(name: str, record: Record) -> str:
    """Return one line with the cost so far and the distance to the optimum."""
    line = (
        f"{name}, snapshot {record.iteration}: {record.passes:.1f} passes, {record.seconds:.2f} s, "
        f"objective {record.objective:.8g}"
    )
    if not math.isfinite(min(record.decrement, record.gap)):
        return line
    return f"{line}, {distance('about', record.decrement, record.gap)}"


def distance(word: str, estimate: float, proven: float) -> str:
    """Return the distance to the optimum as text; the bound replaces a larger estimate."""
    estimate = min(estimate, proven)
    if not math.isfinite(estimate):
        return "at a distance from the optimum that is not known yet"
    far = f"{word} {estimate:.1e} above the optimum"
    return far if not math.isfinite(proven) else f"{far} (proven: at most {proven:.1e})"
