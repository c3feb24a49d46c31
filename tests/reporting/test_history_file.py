"""HistoryFileHandler: the file is the history, at every moment. TensorBoardHandler: its events."""

import csv
import errno
import io
import json
import math
import struct
import sys
from pathlib import Path

import gluon_svrg as gs
import mxnet as mx
import numpy as np
import problems
import pytest
import runs
from gluon_svrg.events import BatchEnd, EpochEnd, SafePoint
from gluon_svrg.reporting.history_file import HistoryFileHandler
from gluon_svrg.reporting.tensorboard import TensorBoardHandler
from mxnet.gluon import nn
from mxnet.gluon.contrib.estimator import ValidationHandler

SUFFIXES = [".csv", ".jsonl"]


def estimator_and_data():
    """An estimator whose parameters have the same names each time, and its data."""
    net = nn.Dense(3, in_units=6, prefix="dense_")
    mx.random.seed(3)
    net.initialize(mx.init.Normal(0.5))
    estimator = runs.estimator_of(net, train_metrics=mx.metric.Accuracy())
    return estimator, problems.make("softmax").ndarrays("float32")


def fit(handlers, epochs=3, every=None, resume=None):
    """Fit, with an evaluation every few epochs; return the history."""
    estimator, data = estimator_and_data()
    if every:
        handlers = [*handlers, ValidationHandler(data, estimator.evaluate, epoch_period=every)]
    return estimator.fit(data, epochs=epochs, event_handlers=handlers, resume=resume).history


def rows_in(path):
    """The rows of a file, read by Python's own csv and json; cells that are empty left out."""
    text = path.read_text()
    assert text.endswith("\n")
    if path.suffix == ".csv":
        lines = list(csv.DictReader(text.splitlines()))
        return [{k: float(v) for k, v in row.items() if v != ""} for row in lines]
    return [json.loads(line, parse_constant=pytest.fail) for line in text.splitlines()]


class Add(EpochEnd):
    """Adds figures to the rows of the epochs, from a list of them."""

    def __init__(self, figures):
        self.figures = figures

    def epoch_end(self, estimator, *args, **kwargs):
        estimator.figures |= self.figures[estimator.position.epoch]


class Watch(EpochEnd, BatchEnd, SafePoint):
    """Checks at each event that the file is the history; stops or goes back after a batch."""

    priority = math.inf

    def __init__(self, path, stop_after=None, roll_back_after=None, raise_after=None):
        self.path = path
        self.stop_after = stop_after
        self.roll_back_after = roll_back_after
        self.raise_after = raise_after
        self.lengths = []

    def batch_end(self, estimator, *args, **kwargs):
        batch = estimator.position.batch + 1
        if batch == self.stop_after:
            estimator.stop()
        if batch == self.raise_after:
            raise KeyError("broken")
        if batch == self.roll_back_after:
            self.roll_back_after = None
            estimator.roll_back("this is a test")

    def epoch_end(self, estimator, *args, **kwargs):
        self._check(estimator)

    def safe_point(self, estimator, *args, **kwargs):
        self._check(estimator)

    def _check(self, estimator):
        self.lengths.append(len(estimator.history))
        if estimator.history:
            assert rows_in(self.path) == estimator.history
        else:
            assert not self.path.exists()
        assert [p.name for p in self.path.parent.iterdir() if p.name.endswith(".tmp")] == []


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("every", [None, 1, 2])
def test_the_file_is_the_history_with_all_digits(suffix, every, tmp_path):
    path = tmp_path / "new" / "folder" / f"history{suffix}"
    history = fit([HistoryFileHandler(path), Watch(path)], epochs=4, every=every)
    assert rows_in(path) == history
    if suffix == ".csv":
        assert path.read_text().splitlines()[0].split(",") == history.names()
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_a_column_that_comes_later_is_empty_before(tmp_path):
    path = tmp_path / "history.csv"
    fit([HistoryFileHandler(path), Add([{}, {"b": 1}, {"a": 2.5}, {"b": 3}])], epochs=4)
    lines = [line.split(",")[-2:] for line in path.read_text().splitlines()]
    assert lines == [["b", "a"], ["", ""], ["1", ""], ["", "2.5"], ["3", ""]]


def test_rows_are_appended_where_the_columns_are_the_same(tmp_path, monkeypatch):
    written = []
    original = HistoryFileHandler._write_all

    def counted(self, history):
        written.append(len(history))
        original(self, history)

    monkeypatch.setattr(HistoryFileHandler, "_write_all", counted)
    path = tmp_path / "history.csv"
    fit([HistoryFileHandler(path), Add([{}, {}, {"b": 1}, {}])], epochs=4)
    assert written == [0, 1, 3]


@pytest.mark.parametrize(
    ("value", "cell", "json_value"),
    [
        (0.1, "0.1", 0.1),
        (1 / 3, "0.3333333333333333", 1 / 3),
        (5e-324, "5e-324", 5e-324),
        (np.float64(1e300), "1e+300", 1e300),
        (np.float32(0.1), "0.10000000149011612", 0.10000000149011612),
        (np.int64(2**53 + 1), "9007199254740993", 2**53 + 1),
        (math.nan, "", None),
        (np.float32("nan"), "", None),
        (math.inf, "inf", None),
        (-math.inf, "-inf", None),
        (None, "", None),
        (True, "1", True),
        ('a "b", c', '"a ""b"", c"', 'a "b", c'),
        ([1.5, math.nan], '"[1.5, null]"', [1.5, None]),
        (np.array([1, 2]), '"[1, 2]"', [1, 2]),
        ({"a": (1, np.float64(2))}, '"{""a"": [1, 2.0]}"', {"a": [1, 2.0]}),
        ({1}, "{1}", "{1}"),
    ],
)
def test_values(value, cell, json_value, tmp_path):
    handlers = [HistoryFileHandler(tmp_path / f"history{suffix}") for suffix in SUFFIXES]
    fit([*handlers, Add([{"x": value}])], epochs=1)
    table, lines = [(tmp_path / f"history{suffix}").read_text() for suffix in SUFFIXES]
    assert table.endswith(f",{cell}\n")
    assert json.loads(lines, parse_constant=pytest.fail)["x"] == json_value


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("stop_after", [3, 5, 8, 10, 13])
def test_after_a_resume_no_row_is_missing_and_none_is_there_twice(stop_after, suffix, tmp_path):
    path = tmp_path / f"history{suffix}"

    def handlers(**watch):
        checkpoints = gs.CheckpointHandler(tmp_path / "checkpoints")
        return [HistoryFileHandler(path), checkpoints, Watch(path, **watch)]

    fit(handlers(stop_after=stop_after), every=2)
    with path.open("a") as file:
        file.write("a row that a killed proc")
    history = fit(handlers(), every=2, resume="auto")
    assert rows_in(path) == history
    assert len(history) == 3


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_rows_after_the_checkpoint_go_at_the_resume(suffix, tmp_path):
    """Checkpoints every 2 epochs, and an exception in the fourth: the third is trained again."""
    path = tmp_path / f"history{suffix}"

    def handlers(**watch):
        checkpoints = gs.CheckpointHandler(tmp_path / "checkpoints", every_n_epochs=2)
        return [HistoryFileHandler(path), checkpoints, Watch(path, **watch)]

    with pytest.raises(KeyError, match="broken"):
        fit(handlers(raise_after=17), epochs=4)
    assert len(rows_in(path)) == 3
    watch = handlers()
    history = fit(watch, epochs=4, resume="auto")
    assert watch[-1].lengths[0] == 2  # the first thing that was there to see
    assert rows_in(path) == history
    assert len(history) == 4


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_run_that_goes_on_with_a_log_of_its_own_has_all_rows(suffix, tmp_path):
    """The run that wrote the checkpoint had no HistoryFileHandler."""
    estimator, data = estimator_and_data()
    estimator.fit(data, epochs=2, event_handlers=[gs.CheckpointHandler(tmp_path / "checkpoints")])
    path = tmp_path / f"history{suffix}"
    handlers = [HistoryFileHandler(path), gs.CheckpointHandler(tmp_path / "checkpoints")]
    history = fit(handlers, epochs=3, resume="auto")
    assert rows_in(path) == history
    assert len(history) == 3


def test_a_resume_of_a_run_that_is_done_writes_its_rows(tmp_path):
    checkpoints = gs.CheckpointHandler(tmp_path / "checkpoints")
    fit([checkpoints])
    history = fit([checkpoints, HistoryFileHandler(tmp_path / "history.csv")], resume="auto")
    assert rows_in(tmp_path / "history.csv") == history
    assert len(history) == 3


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("roll_back_after", [8, 12])
def test_rows_after_the_checkpoint_go_where_the_run_goes_back(suffix, roll_back_after, tmp_path):
    path = tmp_path / f"history{suffix}"
    watch = Watch(path, roll_back_after=roll_back_after)
    checkpoints = gs.CheckpointHandler(
        tmp_path / "checkpoints", every_n_epochs=None, every_n_batches=4
    )
    history = fit([HistoryFileHandler(path), checkpoints, watch], every=2)
    assert rows_in(path) == history
    assert len(history) == 3
    assert sorted(watch.lengths) != watch.lengths


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_new_run_does_not_replace_the_file_of_another(suffix, tmp_path):
    class Never(BatchEnd):
        def batch_end(self, estimator, *args, **kwargs):
            pytest.fail("there was training")

    path = tmp_path / f"history{suffix}"
    path.write_text("the work of a week")
    message = (
        r"history\.\w+' exists already and this run is a new one: give another path, continue the "
        r"run of the file by fit\(\.\.\., resume='auto'\), or replace the file by overwrite=True$"
    )
    with pytest.raises(FileExistsError, match=message):
        fit([HistoryFileHandler(path), Never()])
    assert path.read_text() == "the work of a week"
    history = fit([HistoryFileHandler(path, overwrite=True), Watch(path)], epochs=1)
    assert rows_in(path) == history


def test_a_second_fit_replaces_the_file_if_it_may(tmp_path):
    path = tmp_path / "history.csv"
    handler = HistoryFileHandler(path, overwrite=True)
    fit([handler], epochs=3)
    history = fit([handler, Watch(path)], epochs=2)
    assert rows_in(path) == history
    assert len(history) == 2


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_training_on_goes_on_in_the_file(suffix, tmp_path):
    path = tmp_path / f"history{suffix}"
    estimator, data = estimator_and_data()
    handler = HistoryFileHandler(path)
    estimator.fit(data, epochs=2, event_handlers=[handler])
    val = gs.ValidationHandler(data)  # columns that the first epochs do not have
    estimator.fit(data, epochs=3, initial_epoch=2, event_handlers=[handler, Watch(path)])
    more = [HistoryFileHandler(path), Watch(path), val]
    history = estimator.fit(data, epochs=4, initial_epoch=3, event_handlers=more).history
    assert rows_in(path) == history
    assert len(history) == 4


@pytest.mark.parametrize("rows", [1, 3], ids=["fewer", "more"])
def test_training_on_does_not_replace_the_file_of_another(rows, tmp_path):
    path = tmp_path / "history.csv"
    fit([HistoryFileHandler(path)], epochs=rows)
    before = path.read_bytes()
    estimator, data = estimator_and_data()
    estimator.fit(data, epochs=2)
    with pytest.raises(FileExistsError, match="exists already and this run is a new one"):
        estimator.fit(data, epochs=3, initial_epoch=2, event_handlers=[HistoryFileHandler(path)])
    assert path.read_bytes() == before


def test_a_file_that_is_gone_is_written_again(tmp_path):
    class Remove(EpochEnd):
        def epoch_end(self, estimator, *args, **kwargs):
            if estimator.position.epoch == 1:
                path.unlink()

    path = tmp_path / "history.csv"
    history = fit([HistoryFileHandler(path), Remove()])
    assert rows_in(path) == history


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("failing", ["_append", "_write_all"])
def test_a_full_disk_ends_no_run(failing, suffix, tmp_path, monkeypatch, capsys, root_logger):
    """The second epoch cannot be written, half a line is left: the third writes all."""
    path = tmp_path / f"history{suffix}"
    handler = HistoryFileHandler(path)
    original = getattr(HistoryFileHandler, failing)
    failed = []

    def fail_once(self, rows):
        if not failed and (failing == "_append" or len(rows) == 2):
            failed.append(True)
            with path.open("a") as file:
                file.write("1,0.")
            raise OSError(errno.ENOSPC, "No space left on device")
        original(self, rows)

    monkeypatch.setattr(HistoryFileHandler, failing, fail_once)
    history = fit([handler, Add([{}, {"b": 1.0} if failing == "_write_all" else {}, {}])])
    assert failed or suffix == ".jsonl"
    assert rows_in(path) == history
    shown = capsys.readouterr().out
    assert shown.count("cannot be written") == len(failed)
    assert not failed or "No space left on device): the run continues, and the next epoch" in shown


class FullDisk(io.FileIO):
    """A file on a disk that has room for half of what is written."""

    def write(self, content):
        super().write(content[: len(content) // 2])
        raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_full_disk_leaves_no_half_row(suffix, tmp_path, monkeypatch):
    path = tmp_path / f"history{suffix}"
    seen, opened = [], Path.open

    def full(path, mode="r", *arguments, **options):
        return FullDisk(path, mode) if mode == "ab" else opened(path, mode, *arguments, **options)

    class Look(EpochEnd):
        priority = gs.events.Order.LAST

        def epoch_end(self, estimator, *args, **kwargs):
            seen.append(rows_in(path))
            monkeypatch.setattr(Path, "open", full)

    history = fit([HistoryFileHandler(path), Look()], epochs=2)
    assert seen == [history[:1]] * 2


def test_a_folder_that_cannot_be_written_is_an_error_before_training(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(PermissionError, match=r"cannot be written .*: give one in a folder that"):
        fit([HistoryFileHandler(tmp_path / "file" / "history.csv")])


def test_a_folder_is_no_file(tmp_path):
    (tmp_path / "history.csv").mkdir()
    with pytest.raises(IsADirectoryError, match=r"is a folder: give the name of a file in it$"):
        fit([HistoryFileHandler(tmp_path / "history.csv", overwrite=True)])


@pytest.mark.parametrize("path", ["history.txt", "history", "csv", ".csv.gz"])
def test_another_suffix_is_an_error(path):
    with pytest.raises(ValueError, match=rf"must end in \.csv or \.jsonl, got '{path}': the suff"):
        HistoryFileHandler(path)


def test_a_suffix_may_be_upper_case(tmp_path):
    history = fit([HistoryFileHandler(tmp_path / "HISTORY.CSV")], epochs=1)
    assert (tmp_path / "HISTORY.CSV").read_text().splitlines()[0].split(",") == history.names()


def test_overwrite_is_a_bool():
    with pytest.raises(TypeError, match="overwrite must be a bool, got 'yes': it says whether"):
        HistoryFileHandler("history.csv", overwrite="yes")


# TensorBoard


class Writer:
    """Stands in for an event file, as TensorBoard reads it."""

    folders: dict
    is_open = 0

    def __init__(self, folder, purge_step, suffix):
        (folder / f"events.out.tfevents.1.host{suffix}").touch(exist_ok=False)
        self.shown = self.folders.setdefault(folder, {})
        for steps in self.shown.values():
            for step in [step for step in steps if step >= purge_step]:
                del steps[step]
        type(self).is_open += 1

    def add_scalar(self, tag, value, step):
        assert type(value) is float
        steps = self.shown.setdefault(tag, {})
        assert step not in steps
        steps[step] = value

    def close(self):
        type(self).is_open -= 1


@pytest.fixture
def shown(monkeypatch):
    """What TensorBoard shows: value by step, by tag, by folder."""
    file_class = type("Writer", (Writer,), {"folders": {}})
    monkeypatch.setattr("gluon_svrg.reporting.tensorboard._EventFile", file_class)
    yield file_class.folders
    assert file_class.is_open == 0


def scalars_of(history):
    return {
        f"epoch/{name.replace(' ', '_')}": {
            row["epoch"]: row[name] for row in history if name in row
        }
        for name in history.names()
        if name not in ("epoch", "note")
    }


class Note(BatchEnd):
    """Notes the accuracy after each batch, read by itself."""

    priority = 10

    def __init__(self):
        self.values = {}

    def batch_end(self, estimator, *args, **kwargs):
        metric, _ = estimator.train_metrics
        self.values[estimator.position.batch + 1] = metric.get()[1]


def test_epochs_and_batches_are_written_at_their_numbers(shown, tmp_path):
    note = Note()
    handler = TensorBoardHandler(tmp_path, every_n_batches=2)
    history = fit([handler, note, Add([{"note": "warm"}, {}, {}])], every=2)
    assert shown[tmp_path] == scalars_of(history)
    assert len(shown[tmp_path]["epoch/training_accuracy"]) == 3
    losses = shown[tmp_path / "batches"].pop("batch/training_loss")
    assert list(losses) == list(range(2, 15, 2))
    assert shown[tmp_path / "batches"] == {
        "batch/training_accuracy": {step: note.values[step] for step in range(2, 15, 2)},
        "batch/learning_rate": dict.fromkeys(range(2, 15, 2), 0.1),
    }


def test_without_a_number_of_batches_there_are_epochs_alone(shown, tmp_path):
    fit([TensorBoardHandler(tmp_path)])
    assert list(shown) == [tmp_path]


@pytest.mark.parametrize("stop_after", [3, 5, 8, 10, 13])
def test_after_a_resume_the_steps_go_on(stop_after, shown, tmp_path):
    fit([TensorBoardHandler(tmp_path / "whole", every_n_batches=2)])

    def handlers():
        checkpoints = gs.CheckpointHandler(tmp_path / "checkpoints")
        return [TensorBoardHandler(tmp_path / "parts", every_n_batches=2), checkpoints]

    fit([*handlers(), Stop(stop_after)])
    history = fit(handlers(), resume="auto")
    assert shown[tmp_path / "parts"] == scalars_of(history)
    assert shown[tmp_path / "parts" / "batches"] == shown[tmp_path / "whole" / "batches"]


class Stop(BatchEnd):
    def __init__(self, after):
        self.after = after

    def batch_end(self, estimator, *args, **kwargs):
        if estimator.position.batch + 1 == self.after:
            estimator.stop()


def test_what_was_written_after_the_checkpoint_is_hidden_where_the_run_goes_back(shown, tmp_path):
    class RollBack(BatchEnd):
        has = False

        def batch_end(self, estimator, *args, **kwargs):
            if estimator.position.batch + 1 == 8 and not self.has:
                self.has = True
                estimator.roll_back("this is a test")

    fit([TensorBoardHandler(tmp_path / "whole", every_n_batches=2)])
    checkpoints = gs.CheckpointHandler(
        tmp_path / "checkpoints", every_n_epochs=None, every_n_batches=4
    )
    handlers = [
        TensorBoardHandler(tmp_path / "back", every_n_batches=2),
        checkpoints,
        RollBack(),
    ]
    history = fit(handlers)
    assert shown[tmp_path / "back"] == scalars_of(history)
    assert shown[tmp_path / "back" / "batches"] == shown[tmp_path / "whole" / "batches"]


def test_a_new_run_takes_the_place_of_the_one_before(shown, tmp_path):
    handler = TensorBoardHandler(tmp_path, every_n_batches=2)
    fit([handler], epochs=3)
    history = fit([handler], epochs=2)
    assert shown[tmp_path] == scalars_of(history)
    assert max(shown[tmp_path / "batches"]["batch/learning_rate"]) == 10


def test_the_files_are_closed_after_an_exception(shown, tmp_path):
    class Fail(BatchEnd):
        def batch_end(self, estimator, *args, **kwargs):
            if estimator.position.batch == 7:
                raise KeyError("broken")

    with pytest.raises(KeyError, match="broken"):
        fit([TensorBoardHandler(tmp_path, every_n_batches=1), Fail()])
    assert list(shown[tmp_path]["epoch/samples"]) == [0]


@pytest.mark.parametrize(
    ("every", "error"), [(0, ValueError), (2.0, TypeError), (True, TypeError), ("1", TypeError)]
)
def test_a_wrong_number_of_batches_is_an_error(every, error, shown):
    with pytest.raises(error, match=f"every_n_batches must be a positive integer, got {every!r}"):
        TensorBoardHandler("runs", every_n_batches=every)


def test_without_the_library_the_error_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    with pytest.raises(
        ImportError,
        match=r"needs tensorboardX, which .*: install it with pip install 'gluon-svrg\[tens",
    ):
        TensorBoardHandler("runs")


def events_in(folder):
    """The scalars in the files of a folder as (file, tag, step, value), and where each begins."""
    from tensorboardX.proto.event_pb2 import Event

    scalars, begins = [], []
    for number, path in enumerate(sorted(folder.glob("events.*"))):
        content = path.read_bytes()
        while content:  # length, checksum, event, checksum
            (size,) = struct.unpack("<Q", content[:8])
            event = Event.FromString(content[12 : 12 + size])
            content = content[16 + size :]
            if event.HasField("session_log"):
                begins.append(event.step)
            scalars += [(number, v.tag, event.step, v.simple_value) for v in event.summary.value]
    return scalars, begins


def test_with_the_library_files_are_written_that_tensorboard_reads(tmp_path):
    pytest.importorskip(
        "tensorboardX",
        reason="tensorboardX is not installed: pip install 'gluon-svrg[tensorboard]'",
    )

    def handlers():
        checkpoints = gs.CheckpointHandler(tmp_path / "checkpoints")
        return [TensorBoardHandler(tmp_path / "log", every_n_batches=4), checkpoints]

    fit([*handlers(), Stop(8)])
    history = fit(handlers(), resume="auto")
    scalars, begins = events_in(tmp_path / "log")
    accuracies = [(step, value) for _, tag, step, value in scalars if tag.endswith("accuracy")]
    # The second epoch was cut short, and written again.
    assert [step for step, _ in accuracies] == [0, 1, 1, 2]
    assert begins == [0, 1]
    expected = history.column("training accuracy")
    assert [value for _, value in accuracies[2:]] == pytest.approx(expected[1:], rel=1e-6)
    scalars, begins = events_in(tmp_path / "log" / "batches")
    assert begins == [1, 9]
    steps = [(number, step) for number, tag, step, _ in scalars if tag.endswith("accuracy")]
    assert steps == [(0, 4), (0, 8), (1, 12)]
