"""The logger of all runs: in Python's hierarchy, seen once, and above the bars of a terminal."""

import fcntl
import io
import logging
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import threading

import gluon_svrg as gs
import mxnet as mx
import problems
import pytest
from gluon_svrg._typing import LOGGER
from gluon_svrg.events import EpochEnd
from gluon_svrg.reporting.logger import (
    ConsoleHandler,
    get_logger,
    redirect_to_tqdm,
    suppress_info,
)
from gluon_svrg.reporting.verbosity import check_verbose
from tqdm import tqdm

INFO, WARNING = logging.INFO, logging.WARNING


def make():
    problem = problems.make("softmax")
    trainer = gs.SVRGTrainer(problem.net.collect_params(), "sgd", {"learning_rate": 0.25})
    return gs.Estimator(problem.net, problem.loss, trainer=trainer), problem.ndarrays()


def fit(handlers=(), **arguments):
    estimator, data = make()
    estimator.fit(data, epochs=1, event_handlers=list(handlers), **arguments)
    return estimator


def epochs(text):
    return re.findall(r"epoch \d(?=: training)", text)


@pytest.mark.parametrize("is_terminal", [True, False])
def test_only_on_a_terminal_a_long_line_is_broken(is_terminal, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    handler, stream = ConsoleHandler(), io.StringIO()
    stream.isatty = lambda: is_terminal
    handler.setStream(stream)
    line = ", ".join(f"figure {k} is {k}" for k in range(10))
    lines = handler.format(logging.makeLogRecord({"msg": line})).split("\n")
    assert (len(lines) > 1, max(map(len, lines)) <= 60) == (is_terminal, is_terminal)
    assert " ".join(map(str.strip, lines)) == line


def test_in_a_notebook_a_long_line_is_broken():
    """Which would break it in the middle of a word."""
    stream = type("OutStream", (io.StringIO,), {"__module__": "ipykernel.iostream"})()
    handler = ConsoleHandler()
    handler.setStream(stream)
    line = ", ".join(f"figure {k} is {k}" for k in range(20))
    lines = handler.format(logging.makeLogRecord({"msg": line})).split("\n")
    assert 80 < max(map(len, lines)) <= 100
    assert " ".join(map(str.strip, lines)) == line


def test_a_line_is_seen_once_with_every_configuration(root_logger, capsys):
    """No handler, a stream at the root, a file at the root, a stream at one of the loggers."""
    fit()
    assert epochs(capsys.readouterr().out) == ["epoch 0"]
    for name in (None, "gluon_svrg", LOGGER):
        logger, text = logging.getLogger(name), io.StringIO()
        handler = logging.StreamHandler(sys.stderr)
        logger.addHandler(handler)
        fit()
        logger.removeHandler(handler)
        seen = capsys.readouterr()
        assert (epochs(seen.out), epochs(seen.err)) == ([], ["epoch 0"]), name
        # What is no terminal is written to besides, but for the root: that is the program's choice.
        handler = logging.StreamHandler(text)
        logger.addHandler(handler)
        fit()
        logger.removeHandler(handler)
        assert epochs(text.getvalue()) == ["epoch 0"]
        assert epochs(capsys.readouterr().out) == ([] if name is None else ["epoch 0"]), name


def test_basic_config_and_the_level_of_the_package_work(root_logger, tmp_path, capsys):
    logging.basicConfig(filename=tmp_path / "train.log", format="%(name)s | %(message)s")
    fit()
    logging.getLogger("gluon_svrg").setLevel(WARNING)
    estimator = fit()
    estimator.logger.warning("careful")
    root_logger.handlers[0].close()
    first, *rest = (tmp_path / "train.log").read_text().splitlines()
    assert first.startswith("gluon_svrg.estimator | epoch 0: training")
    assert rest == ["gluon_svrg.estimator | careful"]
    assert capsys.readouterr().out == ""


def test_a_level_that_is_set_before_stays(root_logger):
    logging.getLogger("gluon_svrg").setLevel(logging.ERROR)
    assert get_logger().getEffectiveLevel() == logging.ERROR
    logging.getLogger("gluon_svrg").setLevel(logging.NOTSET)
    assert get_logger().getEffectiveLevel() == INFO


def test_estimators_share_the_logger_and_one_handler(root_logger, capsys):
    first, second = fit(), fit()
    assert first.logger is second.logger is logging.getLogger("gluon_svrg.estimator")
    assert [type(handler) for handler in first.logger.handlers] == [ConsoleHandler]
    assert len(epochs(capsys.readouterr().out)) == 2


def test_what_code_for_mxnets_estimator_does_with_the_logger(root_logger, tmp_path, capsys):
    """A file besides, a level, a handler that is taken away, a stream that is set."""
    estimator, data = make()
    file = logging.FileHandler(tmp_path / "log")
    estimator.logger.addHandler(file)
    estimator.fit(data, epochs=1)
    file.close()
    assert len(epochs((tmp_path / "log").read_text())) == 1
    assert len(epochs(capsys.readouterr().out)) == 1
    estimator.logger.removeHandler(file)
    stream = io.StringIO()
    estimator.logger.handlers[0].setStream(stream)
    estimator.fit(data, epochs=1)
    assert len(epochs(stream.getvalue())) == 1
    estimator.logger.handlers.clear()
    estimator.fit(data, epochs=1)
    assert capsys.readouterr().out == ""


def test_verbose_0_shows_warnings_only(root_logger, capsys):
    class Warn(EpochEnd):
        def epoch_end(self, estimator, *args, **kwargs):
            estimator.logger.info("fine")
            estimator.logger.warning("careful")

    estimator = fit([Warn()], verbose=0)
    assert capsys.readouterr().out == "careful\n"
    assert estimator.logger.filters == []
    assert estimator.verbose == "auto"
    estimator.fit(make()[1], epochs=1)
    assert len(epochs(capsys.readouterr().out)) == 1


def test_a_quiet_run_leaves_the_other_threads_alone(root_logger, capsys):
    logger = get_logger()
    with suppress_info(logger, 0):
        logger.info("here")
        thread = threading.Thread(target=logger.info, args=("there",))
        thread.start()
        thread.join()
    assert capsys.readouterr().out == "there\n"


def test_a_quiet_run_that_fails_is_loud_afterwards(root_logger, capsys):
    class Fail(EpochEnd):
        def epoch_end(self, estimator, *args, **kwargs):
            raise KeyError("on purpose")

    with pytest.raises(KeyError):
        fit([Fail()], verbose=0)
    assert logging.getLogger(LOGGER).filters == []


@pytest.mark.parametrize(
    ("verbose", "bars", "lines"), [(0, 0, 0), (1, 1, 1), (2, 0, 1), ("auto", 0, 1), (True, 1, 1)]
)
def test_verbose_where_there_is_no_terminal(verbose, bars, lines, root_logger, capsys):
    estimator, data = make()
    handlers = [gs.SVRGHandler()]
    estimator.fit(data, data, epochs=1, event_handlers=handlers, verbose=verbose)
    seen = capsys.readouterr()
    assert len(epochs(seen.out)) == lines
    for bar in ("training: 100%", "epoch 0: ", "validation: "):
        assert (bar in seen.err) == bars, bar
    estimator.evaluate(data, verbose=verbose)
    assert ("validation: " in capsys.readouterr().err) == bars
    assert not tqdm._instances


@pytest.mark.parametrize("verbose", [3, -1, "all", None, 0.5])
def test_another_verbose_is_an_error(verbose):
    with pytest.raises(ValueError, match="verbose must be 'auto', 0, 1 or 2, got"):
        check_verbose(verbose)
    estimator, data = make()
    with pytest.raises(ValueError, match="verbose must be"):
        estimator.fit(data, epochs=1, verbose=verbose)


def test_an_evaluation_that_fails_leaves_no_bar_open():
    estimator, data = make()

    def broken():
        yield data[0]
        raise KeyError("on purpose")

    class Broken:
        def __iter__(self):
            return broken()

    with pytest.raises(KeyError, match="on purpose"):
        estimator.evaluate(Broken(), verbose=1)
    assert not tqdm._instances


def test_handlers_of_the_terminal_write_above_the_bars_and_stay(root_logger, capsys):
    handler = logging.StreamHandler(sys.stderr)
    handler.setLevel(WARNING)
    root_logger.addHandler(handler)
    logger = logging.getLogger(LOGGER)
    with tqdm(total=2, file=sys.stderr, ncols=40, desc="bar") as bar, redirect_to_tqdm(logger):
        bar.update()
        assert root_logger.handlers == [handler]  # with its level, formatter and filters
        logger.warning("above")
        logger.info("too low")
        bar.refresh()
    assert handler.stream is sys.stderr
    shown = screen(capsys.readouterr().err)
    assert shown[0] == "above"
    assert shown[1].startswith("bar: ")
    assert len(shown) == 2


def screen(text):
    """The lines that a terminal shows after `text`, which moves by \\r, \\n and one line up."""
    lines, row, column = [""], 0, 0
    for part in re.findall(r"\x1b\[A|\r|\n|[^\x1b\r\n]+", text):
        if part == "\x1b[A":
            row -= 1
        elif part == "\r":
            column = 0
        elif part == "\n":
            row, column = row + 1, 0
            lines += [""] * (row + 1 - len(lines))
        else:
            line = lines[row].ljust(column)
            lines[row] = line[:column] + part + line[column + len(part) :]
            column += len(part)
    return [line.rstrip() for line in lines if line.strip()]


SCRIPT = """
import logging, sys, time
import gluon_svrg as gs
import mxnet as mx
import problems

def run(**arguments):
    problem = problems.make("softmax")
    trainer = gs.SVRGTrainer(problem.net.collect_params(), "sgd", {"learning_rate": 0.25})
    estimator = gs.Estimator(problem.net, problem.loss, trainer=trainer)
    handlers = [gs.SVRGHandler()]
    estimator.fit(problem.ndarrays(), problem.ndarrays(), 3, handlers, **arguments)
    return estimator

file = logging.FileHandler(sys.argv[1])
logger = logging.getLogger("gluon_svrg.estimator")
logger.addHandler(file)
run()
print("*")
logger.removeHandler(file)
run(verbose=0)
print("*")
run(verbose=2)
print("*")
logging.basicConfig(format="root: %(message)s")
run().evaluate(problems.make("softmax").ndarrays())
"""


def in_terminal(script, *arguments, columns=50):
    """What a terminal gets from a script."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    tests = os.path.dirname(problems.__file__)
    environ = os.environ | {"OMP_NUM_THREADS": "1"}
    environ["PYTHONPATH"] = os.pathsep.join([os.path.dirname(tests), tests])
    command = [sys.executable, "-c", script, *map(str, arguments)]
    process = subprocess.Popen(command, stdin=slave, stdout=slave, stderr=slave, env=environ)
    os.close(slave)
    read = b""
    while True:
        try:
            part = os.read(master, 4096)
        except OSError:  # Linux says so when the process has ended
            part = b""
        if not part:
            break
        read += part
    os.close(master)
    assert process.wait() == 0, read.decode()
    return read.decode().replace("\r\n", "\n")


@pytest.mark.full
def test_on_a_terminal(tmp_path):
    """Epoch lines are in the file, too; each is seen once, above the bars; quiet is quiet."""
    text = in_terminal(SCRIPT, tmp_path / "train.log")
    assert len(epochs((tmp_path / "train.log").read_text())) == 3
    bars, silent, lines, configured = text.split("*\n")
    for bar in ("training:", "epoch 0:", "full gradient:", "validation:"):
        assert bar in bars, bar
    *above, last = screen(bars)
    assert epochs("\n".join(above)) == ["epoch 0", "epoch 1", "epoch 2"]
    assert all(line.startswith(("epoch ", "    ", "SVRG: gradient table on")) for line in above)
    assert re.match(r"training: 100%.* 3/3 ", last)
    assert silent == ""
    assert "\r" not in lines
    assert len(epochs(lines)) == 3
    *above, last = screen(configured)
    assert [line[:13] for line in above if "training" in line] == [
        f"root: epoch {i}" for i in range(3)
    ]
    assert re.match(r"training: 100%.* 3/3 ", last)


def test_after_mxnets_own_line_of_logging_the_format_stays(root_logger, capsys):
    """It gives the root logger a handler, which printed the lines of later epochs its own way."""
    problem = problems.make("softmax")
    scheduler = mx.lr_scheduler.FactorScheduler(5, 0.5, base_lr=0.1)
    trainer = gs.SVRGTrainer(problem.net.collect_params(), "sgd", {"lr_scheduler": scheduler})
    estimator = gs.Estimator(problem.net, problem.loss, trainer=trainer)
    estimator.fit(problem.ndarrays(), epochs=3)
    assert root_logger.handlers  # made by logging.info() of the scheduler
    estimator.logger.warning("careful")
    logging.getLogger("gluon_svrg.svrg.trainer").warning("of another logger")
    logging.getLogger("others").warning("of another library")
    seen = capsys.readouterr()
    assert epochs(seen.out) == ["epoch 0", "epoch 1", "epoch 2"]
    assert re.findall("^epoch", seen.out, re.MULTILINE) == ["epoch"] * 3
    assert "careful" in seen.out
    assert epochs(seen.err) == []
    assert "careful" not in seen.err
    assert "WARNING:gluon_svrg.svrg.trainer:of another logger" in seen.err
    assert "WARNING:others:of another library" in seen.err


@pytest.mark.parametrize("arguments", [{"level": INFO}, {"format": "%(message)s"}])
def test_a_program_that_configures_its_logging_by_itself_gets_all_lines(
    arguments, root_logger, capsys
):
    logging.basicConfig(**arguments)
    fit()
    seen = capsys.readouterr()
    assert (epochs(seen.out), epochs(seen.err)) == ([], ["epoch 0"])
