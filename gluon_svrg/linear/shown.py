"""What is shown of a fit: a line a snapshot, and a bar of the digits that are right."""

from __future__ import annotations

import math
from types import TracebackType

from gluon_svrg.linear.solution import Record, Solution
from gluon_svrg.run.logger import lines_above_bars, run_logger
from gluon_svrg.run.verbosity import Verbose, shows_bars
from tqdm.auto import tqdm

NAME = "gluon_svrg.linear"
"""The logger of the fits; its parent is that of the whole package."""


class Progress:
    """Hears of each snapshot; a context manager, which opens and closes the bar.

    Lines go through Python's logging, as those of :class:`gluon_svrg.Estimator`: on the standard
    output, unless the program has configured its logging. The bar is as long as the digits that
    `tol` asks for, since nobody knows how many snapshots it will take.

    Parameters
    ----------
    name : str
        The estimator's class.
    verbose : 'auto', 0, 1 or 2
        0 shows nothing, 1 the bar and the lines, 2 the lines, 'auto' the bar on a terminal or in a
        notebook only, and the lines.
    tol : float
        The relative gap at which the fit ends.
    """

    def __init__(self, name: str, verbose: Verbose, tol: float) -> None:
        self._name = name
        self._is_shown = verbose != 0
        self._has_bar = self._is_shown and shows_bars(verbose)
        self._digits = max(1.0, -math.log10(tol)) if tol > 0 else 16.0
        self._logger = run_logger(NAME)
        self._bar: tqdm | None = None
        self._first = math.nan
        self._redirection = lines_above_bars(self._logger)

    def __enter__(self) -> Progress:
        if self._has_bar:
            self._bar = tqdm(
                total=self._digits,
                desc=self._name,
                leave=False,
                bar_format="{desc}: {n:.1f} of {total:.0f} digits |{bar}| {elapsed}{postfix}",
            )
            self._redirection.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._redirection.__exit__(kind, error, trace)
            self._bar.close()

    def __call__(self, record: Record) -> None:
        """Show a snapshot."""
        if math.isnan(self._first):
            self._first = record.objective
        if self._is_shown:
            self._logger.info("%s", line_of(self._name, record))
        if self._bar is not None:
            self._bar.n = min(max(self._bar.n, self._digits_of(record)), self._digits)
            self._bar.set_postfix_str(f"{record.passes:.0f} passes")

    def end(self, solution: Solution) -> None:
        """Say which way was taken, why, and where it ended."""
        if self._is_shown:
            self._logger.info(
                "%s: %s, because %s; ended: %s",
                self._name,
                solution.method,
                solution.why,
                solution.reason.value,
            )

    def _digits_of(self, record: Record) -> float:
        done = self._first - record.objective
        left = min(record.gap, 10 * record.decrement)  # what ends the fit
        if not (done > 0 and math.isfinite(left)):
            return 0.0
        return math.log10(done / left) if left > 0 else self._digits


def line_of(name: str, record: Record) -> str:
    """Return one line: what it has cost so far, and how near the optimum it is."""
    line = (
        f"{name}, snapshot {record.iteration}: {record.passes:.1f} passes, {record.seconds:.2f} s, "
        f"objective {record.objective:.8g}"
    )
    if math.isfinite(record.decrement):
        line += f", about {record.decrement:.1e} above the optimum"
    if math.isfinite(record.gap):
        line += f" (proven: at most {record.gap:.1e})"
    return line
