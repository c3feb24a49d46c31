"""The argument `verbose`, and progress bars."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TextIO

from gluon_svrg._typing import Verbose
from tqdm.auto import tqdm


def check_verbose(verbose: object) -> Verbose:
    """Return `verbose`, with True and False as numbers; raise ValueError for any other value."""
    if verbose == "auto":
        return "auto"
    for known in (0, 1, 2):
        if isinstance(verbose, int) and verbose == known:
            return known
    raise ValueError(
        f"verbose must be 'auto', 0, 1 or 2, got {verbose!r}: 0 shows nothing but warnings, 1 bars "
        "and a line per epoch, 2 the lines alone, 'auto' bars on a terminal and in a notebook only"
    )


def shows_bars(verbose: Verbose, file: TextIO | None = None) -> bool:
    """Return whether bars are drawn, on `file` or the standard error."""
    if verbose != "auto":
        return verbose == 1
    stream = file or sys.stderr
    return _is_in_notebook() or (stream is not None and stream.isatty())


@contextmanager
def evaluation_bar(
    verbose: Verbose, total: int | None, batches: Iterable[object]
) -> Iterator[Iterable[object]]:
    """Return `batches`, with a progress bar that disappears at the end.

    Parameters
    ----------
    verbose : 'auto', 0, 1 or 2
        Whether there is a bar.
    total : int or None
        The number of batches, if it is known.
    batches : iterable
        All of them.
    """
    if not shows_bars(verbose):
        yield batches
        return
    with tqdm(batches, total=total, desc="validation", unit="batch", leave=False) as shown:
        yield shown


def _is_in_notebook() -> bool:
    """Return whether bars are notebook widgets, which show although no stream is a terminal."""
    notebook = sys.modules.get("tqdm.notebook")
    return notebook is not None and issubclass(tqdm, notebook.tqdm_notebook)
