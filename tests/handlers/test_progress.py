"""ProgressHandler: bars on a terminal, lines elsewhere, and nothing left open."""

import io
import re

import gluon_svrg as gs
import problems
import pytest
from gluon_svrg.events import BatchEnd


class Terminal(io.StringIO):
    def isatty(self):
        return True


def run(file, handlers=(), **duration):
    problem = problems.make("softmax")
    trainer = gs.SVRGTrainer(problem.net.collect_params(), "sgd", {"learning_rate": 0.25})
    estimator = gs.Estimator(problem.net, problem.loss, trainer=trainer)
    progress = gs.ProgressHandler(file=file)
    estimator.fit(
        problem.ndarrays(), event_handlers=[progress, *handlers], **(duration or {"epochs": 2})
    )
    return progress


def test_on_a_terminal_there_are_bars_and_a_line_an_epoch(capsys):
    terminal = Terminal()
    run(terminal)
    shown = terminal.getvalue()
    assert "training: 100%" in shown
    assert "epoch 1:" in shown
    lines = re.findall(r"epoch \d: training accuracy [\d.]+, training softmax.*, learning rate 0.25"
                       r" \([\d.]+ s, \d+/s\)", shown)  # fmt: skip
    assert len(lines) == 2
    assert capsys.readouterr().out == ""


def test_elsewhere_there_is_a_line_an_epoch_and_no_bar(capsys):
    file = io.StringIO()
    run(file)
    assert file.getvalue() == ""
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines] == ["epoch 0", "epoch 1"]


def test_batches_are_counted_where_batches_are_asked_for():
    terminal = Terminal()
    run(terminal, batches=7)
    assert re.search(r"training: 100%.* 7/7 ", terminal.getvalue())


def test_bars_are_closed_after_an_exception():
    class Fail(BatchEnd):
        def batch_end(self, estimator, *args, **kwargs):
            raise KeyError("broken")

    progress = gs.ProgressHandler(file=Terminal())
    problem = problems.make("softmax")
    trainer = gs.SVRGTrainer(problem.net.collect_params(), "sgd")
    estimator = gs.Estimator(problem.net, problem.loss, trainer=trainer)
    with pytest.raises(KeyError, match="broken"):
        estimator.fit(problem.ndarrays(), epochs=1, event_handlers=[progress, Fail()])
    assert progress._run_bar is None
    assert progress._epoch_bar is None
