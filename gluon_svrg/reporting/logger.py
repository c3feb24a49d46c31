"""The logger of all runs, which prints its lines unless the program has configured logging."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO, TypeGuard

from gluon_svrg._typing import LOGGER, Verbose
from gluon_svrg.reporting.text_table import terminal_width, wrapped
from tqdm import tqdm
from tqdm.contrib import DummyTqdmFile

if TYPE_CHECKING:
    _StreamHandler = logging.StreamHandler[TextIO]
else:
    _StreamHandler = logging.StreamHandler

_PACKAGE = "gluon_svrg"
_NOTEBOOK_WIDTH = 100  # a notebook breaks longer lines by itself, in the middle of a word
_RECORD = logging.makeLogRecord({"name": "n", "levelname": "L", "msg": "m"})


class ConsoleHandler(_StreamHandler):
    """Prints the records that no other handler shows on the standard output.

    It is silent if the root logger has a handler (the program has configured its logging), or if
    another handler of the record's loggers writes to the standard output or error. Handlers that
    write to files do not matter. Progress bars of tqdm stay below its lines.

    The handler that ``logging.info()`` adds to a root logger without one does not count: MXNet
    calls that function, in FactorScheduler and in `npx.set_np`. It gets none of these lines, whose
    format would change in the middle of a run.
    """

    def __init__(self) -> None:
        logging.Handler.__init__(self)  # StreamHandler's would fix the stream of this moment
        self._stream: TextIO | None = None

    @property
    def stream(self) -> TextIO:
        """The present ``sys.stdout``, unless `setStream` has set another stream."""
        return sys.stdout if self._stream is None else self._stream

    @stream.setter
    def stream(self, stream: TextIO) -> None:
        self._stream = stream

    def emit(self, record: logging.LogRecord) -> None:
        """Print the record."""
        if not self.stream or self._is_replaced(record.name):  # pythonw has no standard output
            return
        with tqdm.external_write_mode(file=self.stream):
            super().emit(record)

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as text; on a terminal and in a notebook, long lines are broken."""
        text = super().format(record)
        if self.stream.isatty():
            width = terminal_width()
        elif type(self.stream).__module__ == "ipykernel.iostream":
            width = _NOTEBOOK_WIDTH
        else:
            return text
        return "\n".join(wrapped(line, width) for line in text.split("\n"))

    def _is_replaced(self, name: str) -> bool:
        found = _handlers_of(logging.getLogger(name))
        for logger, handler in found:
            if logger is logging.root and _is_from_basic_config(handler):
                handler.addFilter(_is_of_others)  # once: a second time changes nothing
        return any(
            logger is logging.root or _is_console(handler)
            for logger, handler in found
            if handler is not self and _is_of_others not in handler.filters
        )


def get_logger(name: str = LOGGER) -> logging.Logger:
    """Return the logger of all Estimators, or another one of the package, with a ConsoleHandler.

    Its level is that of the logger ``gluon_svrg``, which is INFO unless it was set to another.
    """
    package = logging.getLogger(_PACKAGE)
    if package.level == logging.NOTSET:
        package.setLevel(logging.INFO)
    logger = logging.getLogger(name)
    if not any(isinstance(handler, ConsoleHandler) for handler in logger.handlers):
        logger.addHandler(ConsoleHandler())
    return logger


@contextmanager
def suppress_info(logger: logging.Logger, verbose: Verbose) -> Iterator[None]:
    """If `verbose` is 0, log only warnings and errors of this thread."""
    if verbose != 0:
        yield
        return
    thread = threading.get_ident()

    def is_let_through(record: logging.LogRecord) -> bool:
        # A run in another thread uses the same logger.
        return record.levelno >= logging.WARNING or threading.get_ident() != thread

    logger.addFilter(is_let_through)
    try:
        yield
    finally:
        logger.removeFilter(is_let_through)


@contextmanager
def redirect_to_tqdm(logger: logging.Logger) -> Iterator[None]:
    """Let handlers that print write above tqdm's bars, as tqdm's `logging_redirect_tqdm`."""
    redirected = []
    for _, handler in _handlers_of(logger):
        if _is_console(handler) and not isinstance(handler, ConsoleHandler):
            stream = handler.stream
            above = DummyTqdmFile(stream)
            handler.setStream(above)
            redirected.append((handler, stream, above))
    try:
        yield
    finally:
        for handler, stream, above in redirected:
            if handler.stream is above:
                handler.setStream(stream)


def _is_from_basic_config(handler: logging.Handler) -> bool:
    """Return whether ``logging.info()`` has added it, by `basicConfig` without an argument.

    A program that calls `basicConfig` itself sets the level, a file, a format or a stream.
    """
    return (
        type(handler) is logging.StreamHandler
        and len(logging.root.handlers) == 1
        and logging.root.level == logging.WARNING
        and handler.stream is sys.stderr
        and handler.format(_RECORD) == logging.Formatter(logging.BASIC_FORMAT).format(_RECORD)
    )


def _is_of_others(record: logging.LogRecord) -> bool:
    """Return whether no ConsoleHandler prints the record."""
    handlers = _handlers_of(logging.getLogger(record.name))
    return not any(isinstance(handler, ConsoleHandler) for _, handler in handlers)


def _handlers_of(logger: logging.Logger) -> list[tuple[logging.Logger, logging.Handler]]:
    """Return (logger, handler) for each handler that a record of `logger` reaches."""
    found: list[tuple[logging.Logger, logging.Handler]] = []
    current: logging.Logger | None = logger
    while current is not None:
        found += [(current, handler) for handler in current.handlers]
        current = current.parent if current.propagate else None
    return found


def _is_console(handler: logging.Handler) -> TypeGuard[logging.StreamHandler[TextIO]]:
    return isinstance(handler, logging.StreamHandler) and (
        handler.stream is sys.stdout
        or handler.stream is sys.stderr
        or isinstance(handler.stream, DummyTqdmFile)
    )
