"""ProgressHandler: bars on a terminal, lines elsewhere, and nothing left open."""

import io
import re
from functools import partial

import gluon_svrg as gs
import gluon_svrg.reporting.progress as module
import mxnet as mx
import problems
import pytest
import runs
from gluon_svrg.events import BatchEnd, EpochBegin, EpochEnd, SafePoint
from mxnet.gluon import nn
from mxnet.gluon.contrib.estimator import LoggingHandler
from tqdm import tqdm

LINE = (
    r"epoch \d: training accuracy [\d.]+, training loss [\d.]+, learning rate 0.25"
    r" \([\d.]+ s, \d+ samples/s\)"
)


class Terminal(io.StringIO):
    def isatty(self):
        return True


def run(file, handlers=(), **duration):
    problem = problems.make("softmax")
    estimator = runs.estimator_of(problem, lr=0.25)
    progress = gs.ProgressHandler(file=file)
    estimator.fit(
        problem.ndarrays(), event_handlers=[progress, *handlers], **(duration or {"epochs": 2})
    )
    return progress


def test_on_a_terminal_there_are_bars_and_a_line_an_epoch(root_logger, capsys):
    terminal = Terminal()
    run(terminal)
    shown = terminal.getvalue()
    assert "training: 100%" in shown
    assert "epoch 1:" in shown
    assert len(re.findall(LINE, capsys.readouterr().out)) == 2


def test_elsewhere_there_is_a_line_an_epoch_and_no_bar(root_logger, capsys):
    file = io.StringIO()
    run(file)
    assert file.getvalue() == ""
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines] == ["epoch 0", "epoch 1"]
    assert all(re.fullmatch(LINE, line) for line in lines)


def test_batches_are_counted_where_batches_are_asked_for():
    terminal = Terminal()
    run(terminal, batches=7)
    assert re.search(r"training: 100%.* 7/7 ", terminal.getvalue())


def test_the_line_has_what_handlers_have_added_and_the_coefficient(root_logger, capsys):
    class Add(EpochEnd):
        def epoch_end(self, estimator, *args, **kwargs):
            estimator.figures |= {"gradient_norm": 0.123456, "note": "warm"}

    run(io.StringIO(), [Add(), gs.SVRGHandler(coefficient=0.75)], epochs=1)
    (line,) = capsys.readouterr().out.splitlines()[-1:]
    assert ", gradient norm 0.1235, note warm, learning rate 0.25, coefficient 0.75 (" in line
    for name in ("samples 37", "peak", "seconds", "per_second", "per second"):
        assert name not in line
    assert line.count("coefficient") == 1


def test_the_line_is_short_with_the_variance_meter_and_with_arrays(root_logger, capsys):
    """It had 240 characters, with "variance ratio at 2, variance ratio, variance ratio at 11"."""

    class Add(EpochEnd):
        def epoch_end(self, estimator, *args, **kwargs):
            estimator.figures |= {
                "variance_ratio_at_2": 0.00123456,
                "variance_ratio": 0.3456,
                "variance_ratio_at_11": 0.56789,
                "norm": mx.nd.array([0.5]),
                "norms": mx.nd.arange(9),
            }

    run(io.StringIO(), [Add()], epochs=1)
    (line,) = capsys.readouterr().out.splitlines()
    assert (
        ", norm 0.5, norms [0, 1, 2, 3, ...], variance ratio 0.35 on average (measured 0.0" in line
    )


def test_bars_are_closed_after_an_exception():
    class Fail(BatchEnd):
        def batch_end(self, estimator, *args, **kwargs):
            raise KeyError("broken")

    progress = gs.ProgressHandler(file=Terminal())
    problem = problems.make("softmax")
    estimator = runs.estimator_of(problem, lr=0.01)
    with pytest.raises(KeyError, match="broken"):
        estimator.fit(problem.ndarrays(), epochs=1, event_handlers=[progress, Fail()])
    assert progress._run_bar is None
    assert progress._epoch_bar is None


class Counting(mx.metric.Accuracy):
    reads = 0

    def get_name_value(self):
        self.reads += 1
        return super().get_name_value()


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


@pytest.mark.parametrize(
    ("seconds", "reads"),
    [
        (0.0, 1),
        (0.25, 3),  # at 0, 0.5 and 1
        (0.5, 5),
        (2.0, 5),
    ],
)
def test_metrics_are_read_at_most_twice_a_second(seconds, reads, monkeypatch):
    """Fit five batches that take a given time, on a terminal that is drawn at each."""
    clock = Clock()
    monkeypatch.setattr(module, "monotonic", clock)
    monkeypatch.setattr(module, "tqdm", drawn_each_time())
    metric = Counting()

    class Watch(BatchEnd, EpochEnd):
        priority = -10

        def batch_end(self, estimator, *args, **kwargs):
            clock.now = seconds * estimator.position.batch

        def epoch_end(self, estimator, *args, **kwargs):
            assert metric.reads == reads

    problem = problems.make("softmax")
    estimator = runs.estimator_of(problem, train_metrics=metric, lr=0.01)
    handlers = [gs.ProgressHandler(file=Terminal()), Watch()]
    estimator.fit(problem.ndarrays(), epochs=1, event_handlers=handlers)


def drawn_each_time():
    drawn = partial(tqdm, mininterval=0, miniters=1, ncols=150)
    drawn.write = tqdm.write
    return drawn


def test_the_bar_of_the_epoch_shows_loss_and_metrics(monkeypatch):
    monkeypatch.setattr(module, "tqdm", drawn_each_time())
    terminal = Terminal()
    run(terminal, epochs=1)
    assert re.search(r"epoch 0: .* 3/5 .*, accuracy [\d.]+, loss [\d.]+\]", terminal.getvalue())


def test_without_a_terminal_no_metric_is_read_in_an_epoch():
    metric = Counting()
    problem = problems.make("softmax")
    estimator = runs.estimator_of(problem, train_metrics=metric, lr=0.01)
    estimator.fit(problem.ndarrays(), epochs=1)
    assert metric.reads == 1  # for the history


class Bars(EpochBegin, BatchEnd, EpochEnd, SafePoint):
    """Notes where the bars are at each safe point: of the run, and of the epoch."""

    def __init__(self, progress, stop_after=None, roll_back_after=None):
        self.progress = progress
        self.stop_after = stop_after
        self.roll_back_after = roll_back_after
        self.seen = []

    def batch_end(self, estimator, *args, **kwargs):
        batch = estimator.position.batch + 1
        if batch == self.stop_after:
            estimator.stop()
        if batch == self.roll_back_after:
            self.roll_back_after = None
            self.seen.append("back")
            estimator.roll_back("this is a test")

    def safe_point(self, estimator, *args, **kwargs):
        run_bar, epoch_bar = self.progress._run_bar, self.progress._epoch_bar
        if run_bar is None:
            return  # resumed after the last batch of an epoch: the bars come with its end
        at = None if epoch_bar is None else (epoch_bar.desc.rstrip(": "), epoch_bar.n)
        self.seen.append((run_bar.n, at))


def resumable():
    net = nn.Dense(3, in_units=6, prefix="dense_")
    mx.random.seed(3)
    net.initialize(mx.init.Normal(0.5))
    estimator = runs.estimator_of(net)
    return estimator, problems.make("softmax").ndarrays("float32")


def bars_of(directory, first=None, resume=None, duration=None, **bars):
    """Fit with checkpoints; return what the bars showed, and the terminal."""
    estimator, data = resumable()
    terminal = Terminal()
    progress = gs.ProgressHandler(file=terminal)
    checkpoints = gs.CheckpointHandler(directory, every_n_batches=7, keep_last=1)
    watch = Bars(progress, **bars)
    handlers = [checkpoints, watch, first or progress]
    duration = duration or {"epochs": 3}
    estimator.fit(data, event_handlers=handlers, resume=resume, **duration)
    assert progress._run_bar is None
    assert progress._epoch_bar is None
    return watch.seen, terminal.getvalue()


@pytest.mark.slow
@pytest.mark.parametrize("duration", [{"epochs": 3}, {"batches": 14}], ids=["epochs", "batches"])
@pytest.mark.parametrize("batches", [3, 5, 8])
def test_after_a_resume_the_bars_go_on_where_they_were(batches, duration, tmp_path):
    expected, _ = bars_of(tmp_path / "whole", duration=duration)
    before, _ = bars_of(tmp_path / "parts", duration=duration, stop_after=batches)
    after, shown = bars_of(tmp_path / "parts", resume="auto", duration=duration)
    # A stop in an epoch is followed by no safe point of that epoch's end.
    assert before + after == expected
    assert "training: 100%" in shown
    # Opened once, there.
    done = {3: 0, 5: 0, 8: 1}[batches] if "epochs" in duration else batches
    opened = re.findall(r"training: +\d+%[^\r]* (\d+)/\d+ \[00:00<\?, \?(?:epoch|batch)/s\]", shown)
    assert opened[:1] == [str(done)]
    assert set(opened) == {str(done)}


@pytest.mark.slow
@pytest.mark.parametrize("batches", [3, 5, 8])
def test_a_run_that_was_begun_without_bars_can_go_on_with_them(batches, tmp_path):
    expected, _ = bars_of(tmp_path / "whole")

    class Stop(BatchEnd):
        def batch_end(self, estimator, *args, **kwargs):
            if estimator.position.batch + 1 == batches:
                estimator.stop()

    estimator, data = resumable()
    checkpoints = gs.CheckpointHandler(tmp_path / "parts")
    handlers = [checkpoints, Stop(), LoggingHandler(metrics=estimator.train_metrics)]
    estimator.fit(data, epochs=3, event_handlers=handlers)
    after, shown = bars_of(tmp_path / "parts", resume="auto")
    assert after == expected[-len(after) :]
    assert "training: 100%" in shown


@pytest.mark.slow
def test_a_run_that_goes_back_has_its_bars_go_back(tmp_path):
    straight, _ = bars_of(tmp_path / "straight")
    seen, shown = bars_of(tmp_path / "back", roll_back_after=8)
    at = seen.index("back")
    assert seen[:at] + seen[at + 1 :] == straight
    assert len(re.findall(r"training: 100%[^\r]*3/3", shown)) >= 1


def test_a_resume_of_a_run_that_is_done_leaves_no_bar_open(tmp_path):
    bars_of(tmp_path)
    seen, shown = bars_of(tmp_path, resume="auto")
    assert seen == []
    assert "training: 100%" in shown
