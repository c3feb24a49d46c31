"""CheckpointHandler: when it writes, what it keeps, and what it refuses."""

import errno
import fcntl
import itertools
import json
import logging
import os
import platform
import re
import shutil
import stat
import tempfile
from types import SimpleNamespace

import gluon_svrg as gs
import mxnet as mx
import numpy as np
import problems
import pytest
from gluon_svrg.checkpoint import storage
from gluon_svrg.checkpoint.directory_lock import DirectoryLock
from gluon_svrg.checkpoint.storage import CheckpointKey
from gluon_svrg.data.training_data import training_data
from gluon_svrg.events import EpochBegin, EpochEnd
from gluon_svrg.run import Position, RunState
from gluon_svrg.stops import StopReason
from gluon_svrg.workers import SingleProcess
from mxnet import gluon
from mxnet.gluon import nn

NAN = float("nan")
RNG = np.random.default_rng(0)
BATCHES = [(RNG.normal(size=(4, 3)), RNG.integers(0, 2, 4)) for _ in range(3)]


class Turn(EpochBegin):
    """Tells the metrics which epoch it is."""

    def epoch_begin(self, estimator, *args, **kwargs):
        for metric in estimator.train_metrics:
            metric.epoch = estimator.position.epoch


def estimator_of(*metrics):
    net = nn.Dense(2, in_units=3, prefix="net_")
    net.initialize(mx.init.Normal(0.5))
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
    estimator = gs.Estimator(
        net, gluon.loss.SoftmaxCELoss(), list(metrics) or None, trainer=trainer
    )
    estimator.logger = logging.getLogger("test_checkpoint_handler")
    return estimator


def fit(handler, *metrics, epochs=3, data=BATCHES, **arguments):
    duration = {} if "batches" in arguments else {"epochs": epochs}
    handlers = [handler, Turn()] if metrics else [handler]
    return estimator_of(*metrics).fit(data, event_handlers=handlers, **duration, **arguments)


def names_in(folder):
    return [path.name for path in storage.list_checkpoints(folder).values()]


# When.


@pytest.mark.parametrize(
    ("periods", "duration", "expected"),
    [
        ({}, {"epochs": 3}, ["1-3", "2-6", "3-9"]),
        ({"every_n_epochs": 2}, {"epochs": 3}, ["2-6", "3-9"]),
        ({"every_n_epochs": 2}, {"epochs": 4}, ["2-6", "4-12"]),
        ({"every_n_epochs": 5}, {"epochs": 2}, ["2-6"]),  # the run's end
        (
            {"every_n_epochs": None, "every_n_batches": 2},
            {"epochs": 2},
            ["0-2", "1-4", "1-6", "2-6"],
        ),
        ({"every_n_batches": 4}, {"epochs": 2}, ["1-3", "1-4", "2-6"]),
        ({"every_n_batches": 3}, {"epochs": 1}, ["0-3", "1-3"]),
        ({}, {"batches": 5}, ["1-3", "1-5"]),
        ({"every_n_epochs": None, "every_n_batches": 5}, {"batches": 6}, ["1-5", "1-6"]),
        ({"every_n_epochs": 1, "every_n_batches": 4}, {"batches": 8}, ["1-3", "1-4", "2-6", "2-8"]),
    ],
)
def test_when_it_writes(periods, duration, expected, tmp_path):
    fit(gs.CheckpointHandler(tmp_path, keep_last=None, **periods), **duration)
    assert names_in(tmp_path) == ["epoch-{}-batch-{}".format(*n.split("-")) for n in expected]
    for name in names_in(tmp_path):
        key = storage.parse_name(tmp_path / name)
        position = storage.read(tmp_path / name).manifest["position"]
        assert (position["epoch"], position["batch"]) == (key.epoch, key.batch)


def test_batches_are_counted_from_the_beginning_of_the_run(tmp_path):
    periods = {"every_n_epochs": None, "every_n_batches": 4, "keep_last": None}
    fit(gs.CheckpointHandler(tmp_path, **periods), batches=5)
    fit(gs.CheckpointHandler(tmp_path, **periods), batches=9, resume="auto")
    assert names_in(tmp_path) == [
        "epoch-1-batch-4",
        "epoch-1-batch-5",
        "epoch-2-batch-8",
        "epoch-2-batch-9",
    ]


def test_what_the_manifest_says_for_people(tmp_path):
    metric = problems.Scripted([0.5])
    fit(gs.CheckpointHandler(tmp_path, monitor="training figure", mode="min"), metric, epochs=1)
    manifest = json.loads((tmp_path / "epoch-1-batch-3" / "manifest.json").read_text())
    assert manifest["monitor"] == {"name": "training figure", "value": 0.5}
    assert manifest["position"]["epoch"] == 1
    assert manifest["versions"] == {
        "gluon_svrg": gs.__version__,
        "mxnet": mx.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
    }


# What is kept: the handler on a run that trains nothing, against a list.


class Run:
    """What a handler sees of an Estimator: epochs of one batch, and a figure for each."""

    data, train_metrics, val_metrics = training_data(BATCHES), (), ()
    net = nn.HybridSequential()
    trainer = SimpleNamespace(_optimizer=SimpleNamespace(lr_scheduler=None))
    workers = SingleProcess()

    def __init__(self, handler, resumed_from=None):
        self.handlers = [handler]
        self.resumed_from = resumed_from
        self.logger = logging.getLogger("test_checkpoint_handler")
        self.history = [] if resumed_from is None else [{}] * resumed_from.key.epoch
        self.stop_reason = None
        self.state = RunState()
        self.position = Position()
        handler.train_begin(self)

    def metric_names(self):
        return ["figure", "other"]

    def has_evaluated(self, name):
        return False

    def epoch(self, value, **others):
        self.history.append({"epoch": len(self.history), "figure": value, **others})
        number = len(self.history)
        self.position = Position(number, number)
        self.handlers[0].safe_point(self)

    def end(self):
        self.handlers[0].train_end(self)


@pytest.fixture
def no_content(monkeypatch):
    monkeypatch.setattr(
        "gluon_svrg.checkpoint.handler.save_run", lambda _, note: ({"a": b"1"}, note)
    )
    monkeypatch.setattr("gluon_svrg.checkpoint.handler.manifest_info", lambda _: {})
    monkeypatch.setattr(os, "fsync", lambda _: None)


def best_of(values, mode):
    """The epochs (from 1), that of the best value first; of equal ones, the earlier."""
    sign = 1 if mode == "min" else -1
    known = [n for n, value in enumerate(values, 1) if value is not None and value == value]
    return sorted(known, key=lambda n: (sign * values[n - 1], n))


def kept(values, mode, keep_last, keep_best):
    numbers = range(1, len(values) + 1)
    if keep_last is None:
        return list(numbers)
    best = best_of(values, mode)[:keep_best] if mode else []
    return sorted({*numbers[-keep_last:], *best})


def check_retention(folder, values, mode, keep_last, keep_best, cut=None):
    """Write one checkpoint for each value; continue in another handler after `cut` of them."""

    def handler():
        monitor = {"monitor": "figure", "mode": mode} if mode else {}
        return gs.CheckpointHandler(folder, keep_last=keep_last, keep_best=keep_best, **monitor)

    writer = handler()
    run = Run(writer)
    for number, value in enumerate(values, 1):
        run.epoch(value)
        expected = kept(values[:number], mode, keep_last, keep_best)
        assert [key.epoch for key in storage.list_checkpoints(folder)] == expected
        best = best_of(values[:number], mode)[:keep_best] if mode else []
        assert writer.best == (folder / CheckpointKey(best[0], best[0]).name if best else None)
        if number == cut:
            resumed_from = storage.read_newest(folder, pytest.fail)
            run.end()
            writer = handler()
            run = Run(writer, resumed_from)
    run.end()
    assert all(path.name.startswith("epoch-") for path in folder.iterdir())


VALUES = {
    "falling": [5, 4, 3, 2, 1],
    "rising": [1, 2, 3, 4, 5],
    "a valley": [3, 1, 2, 5, 4],
    "equal": [1, 1, 1, 1],
    "negative and infinite": [-1, -3, float("inf"), -float("inf"), 0],
    "unknown": [NAN, None, 2, NAN, 1, None],
    "never known": [NAN, None, None, NAN],
}


@pytest.mark.parametrize("mode", ["min", "max", None])
@pytest.mark.parametrize("values", VALUES)
def test_what_is_kept(values, mode, tmp_path, no_content):
    cases = itertools.product([None, 1, 2, 10], [0, 1, 2] if mode else [1])
    for number, (keep_last, keep_best) in enumerate(cases):
        folder = tmp_path / str(number)
        check_retention(folder, VALUES[values], mode, keep_last, keep_best)


@pytest.mark.parametrize("seed", range(20))
def test_what_is_kept_at_random_and_across_a_resume(seed, tmp_path, no_content):
    rng = np.random.default_rng(seed)
    values = [float(v) if rng.random() > 0.2 else None for v in rng.integers(0, 5, 8)]
    keep_last, keep_best = int(rng.integers(1, 4)), int(rng.integers(0, 4))
    mode = ("min", "max")[seed % 2]
    check_retention(tmp_path, values, mode, keep_last, keep_best, cut=int(rng.integers(1, 8)))


def test_values_of_another_figure_are_not_compared(tmp_path, no_content):
    """After a resume with another monitor only what comes then is the best of it."""
    run = Run(gs.CheckpointHandler(tmp_path, monitor="figure", mode="max", keep_last=1))
    run.epoch(100.0)
    run.end()
    after = gs.CheckpointHandler(tmp_path, monitor="other", mode="max", keep_last=1)
    run = Run(after, storage.read_newest(tmp_path, pytest.fail))
    assert after.best is None
    run.epoch(1.0, other=0.5)
    run.end()
    assert after.best == tmp_path / "epoch-2-batch-2"
    assert names_in(tmp_path) == ["epoch-2-batch-2"]


@pytest.mark.parametrize(("mode", "best"), [("min", 2), ("max", 4)])
def test_the_best_of_a_real_run(mode, best, tmp_path):
    values = [3.0, 1.0, 2.0, 5.0, 4.0, 4.5]
    for epochs, resume in ((3, None), (6, "auto")):
        metric = problems.Scripted(values)
        handler = gs.CheckpointHandler(tmp_path, monitor="training figure", mode=mode, keep_last=1)
        fit(handler, metric, epochs=epochs, resume=resume)
    assert handler.best == tmp_path / f"epoch-{best}-batch-{3 * best}"
    assert names_in(tmp_path) == [handler.best.name, "epoch-6-batch-18"]


def test_in_mid_epoch_the_figure_is_that_so_far(tmp_path):
    """The training accuracy of the batches until then, each before its step."""
    handler = gs.CheckpointHandler(tmp_path, None, 1, "training accuracy", keep_last=None)
    estimator = estimator_of(mx.metric.Accuracy())
    labels = [(1, 0, 0, 0), (1, 1, 1, 1), (0, 0, 1, 0)]
    data = [(x, np.array(y)) for (x, _), y in zip(BATCHES, labels, strict=True)]
    nets = [nn.Dense(2, in_units=3) for _ in data]
    nets[0].initialize()
    theirs = estimator.net.collect_params().values()
    for param, other in zip(nets[0].collect_params().values(), theirs, strict=True):
        param.set_data(other.data())
    estimator.fit(data, epochs=1, event_handlers=handler)
    paths = list(storage.list_checkpoints(tmp_path).values())
    for net, path in zip(nets[1:], paths, strict=False):
        net.load_parameters(str(path / "net.params"))
    correct = [
        (net(mx.nd.array(x)).asnumpy().argmax(1) == y).sum()
        for net, (x, y) in zip(nets, data, strict=True)
    ]
    expected = [sum(correct[:n]) / (4 * n) for n in (1, 2, 3)]
    values = [storage.read_manifest(path)["monitor"]["value"] for path in paths]
    assert values == [*expected, expected[-1]]  # the last: at the epoch's end
    assert len(set(expected)) > 1


def test_the_defaults_keep_the_last_three(tmp_path):
    fit(gs.CheckpointHandler(tmp_path), epochs=5)
    assert names_in(tmp_path) == ["epoch-3-batch-9", "epoch-4-batch-12", "epoch-5-batch-15"]
    assert gs.CheckpointHandler(tmp_path).best is None


def test_a_checkpoint_that_another_program_removed(tmp_path, caplog):
    class Thief(EpochBegin):
        def epoch_begin(self, estimator, *args, **kwargs):
            if estimator.position.epoch == 2:
                storage.remove(tmp_path / "epoch-1-batch-3")

    estimator = estimator_of()
    estimator.fit(
        BATCHES, epochs=4, event_handlers=[gs.CheckpointHandler(tmp_path, keep_last=2), Thief()]
    )
    assert names_in(tmp_path) == ["epoch-3-batch-9", "epoch-4-batch-12"]
    assert not [r for r in caplog.records if r.levelno >= logging.WARNING]


def test_what_cannot_be_removed(tmp_path, monkeypatch, caplog):
    def refuse(path):
        raise OSError(errno.EBUSY, "Device or resource busy")

    monkeypatch.setattr(storage, "remove", refuse)
    fit(gs.CheckpointHandler(tmp_path, keep_last=1), epochs=2)
    assert names_in(tmp_path) == ["epoch-1-batch-3", "epoch-2-batch-6"]
    (warning,) = caplog.messages
    assert warning == (
        "the old checkpoint epoch-1-batch-3 cannot be removed ([Errno 16] Device or resource busy)"
    )


# What cannot be written.


def test_a_checkpoint_that_cannot_be_written_ends_no_run(tmp_path, monkeypatch, caplog):
    write, calls = storage.write, []

    def second_fails(folder, key, files, about):
        calls.append(key)
        if len(calls) in (2, 3):
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(folder, key, files, about)

    monkeypatch.setattr(storage, "write", second_fails)
    result = fit(gs.CheckpointHandler(tmp_path, keep_last=1), epochs=4)
    assert result.stop_reason is StopReason.EPOCHS_DONE
    assert names_in(tmp_path) == ["epoch-4-batch-12"]
    warnings = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert warnings == [
        f"the checkpoint {name} cannot be written into {str(tmp_path)!r} ([Errno 28] No space left "
        "on device): the older ones stay, and the run continues"
        for name in ("epoch-2-batch-6", "epoch-3-batch-9")
    ]
    calls.clear()
    caplog.clear()
    fit(gs.CheckpointHandler(tmp_path), epochs=6, resume="auto")
    assert names_in(tmp_path) == ["epoch-4-batch-12", "epoch-5-batch-15"]
    assert caplog.messages[-1] == (
        "the last checkpoint could not be written: epoch-6-batch-18: [Errno 28] No space left "
        "on device"
    )


# What is in the way.


def refuses(error, message, handler, **arguments):
    with pytest.raises(error, match=message):
        fit(handler, **arguments)


def test_the_folder_is_made(tmp_path):
    fit(gs.CheckpointHandler(str(tmp_path / "a" / "b")), epochs=1)
    assert names_in(tmp_path / "a" / "b") == ["epoch-1-batch-3"]


def test_the_directory_is_a_file(tmp_path):
    (tmp_path / "file").write_text("1")
    handler = gs.CheckpointHandler(tmp_path / "file")
    refuses(NotADirectoryError, r"directory '.*file' is a file: give a folder for", handler)
    below = gs.CheckpointHandler(tmp_path / "file" / "folder")
    refuses(PermissionError, r"directory '.*folder' cannot be written \(.*\): give a folder", below)
    assert (tmp_path / "file").read_text() == "1"


def test_the_directory_cannot_be_written(tmp_path, monkeypatch):
    def refuse(*args, **kwargs):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(tempfile, "TemporaryFile", refuse)
    message = (
        rf"directory '{tmp_path}' cannot be written \(\[Errno 13\] Permission denied\): give a "
        "folder in which checkpoints can be made"
    )
    refuses(PermissionError, message, gs.CheckpointHandler(tmp_path))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_directory_without_permission(tmp_path):
    tmp_path.chmod(0o500)
    refuses(PermissionError, "cannot be written", gs.CheckpointHandler(tmp_path))


class Does(EpochEnd):
    """Does something at the end of an epoch, before the checkpoint."""

    def __init__(self, epoch, action):
        self.epoch = epoch
        self.action = action

    def epoch_end(self, estimator, *args, **kwargs):
        if estimator.position.epoch == self.epoch:
            self.action()


def run_with(folder, action, epochs=4, **arguments):
    handlers = [gs.CheckpointHandler(folder, **arguments), Does(1, action)]
    gs.seed_everything(0)
    return estimator_of().fit(BATCHES, epochs=epochs, event_handlers=handlers), handlers[0]


def a_file(folder):
    shutil.rmtree(folder)
    folder.write_text("mine")


def another_run(folder):
    shutil.rmtree(folder)
    fit(gs.CheckpointHandler(folder), epochs=1)


LOSSES = {
    "removed": (shutil.rmtree, "was removed or renamed during the run: it is made again, without"),
    "renamed": (
        lambda folder: folder.rename(folder.with_name("elsewhere")),
        "was removed or renamed during the run: it is made again, without the older checkpoints",
    ),
    "removed with those above": (lambda folder: shutil.rmtree(folder.parent), "it is made again"),
    "empty": (lambda folder: [shutil.rmtree(path) for path in folder.iterdir()], None),
}


@pytest.mark.parametrize("name", LOSSES)
def test_a_directory_that_is_lost_in_mid_run_is_made_again(name, tmp_path, caplog):
    lose, message = LOSSES[name]
    folder = tmp_path / "above" / "run"
    with caplog.at_level(logging.WARNING, "test_checkpoint_handler"):
        result, handler = run_with(folder, lambda: lose(folder), monitor="training loss")
    assert result.stop_reason is StopReason.EPOCHS_DONE
    assert names_in(folder) == ["epoch-2-batch-6", "epoch-3-batch-9", "epoch-4-batch-12"]
    assert [message in line for line in caplog.messages] == ([] if message is None else [True])
    assert handler.best is None or handler.best.is_dir() or name == "empty"
    fit(gs.CheckpointHandler(folder), epochs=5, resume="auto")


@pytest.mark.parametrize(
    ("lose", "message"),
    [
        (a_file, "is a file: give a folder for the checkpoints): no older one is there, and the"),
        (another_run, "was exchanged for one with checkpoints of another run): the older ones st"),
    ],
)
def test_what_is_not_the_runs_own_is_left_alone(lose, message, tmp_path, caplog):
    folder = tmp_path / "run"
    with caplog.at_level(logging.WARNING, "test_checkpoint_handler"):
        result, _ = run_with(folder, lambda: lose(folder))
    assert result.stop_reason is StopReason.EPOCHS_DONE
    assert sum(message in line for line in caplog.messages) == 3  # at each checkpoint
    if lose is a_file:
        assert folder.read_text() == "mine"
    else:
        assert names_in(folder) == ["epoch-1-batch-3"]


def test_a_directory_that_another_run_has_made_meanwhile(tmp_path, caplog):
    folder, other = tmp_path / "run", DirectoryLock(tmp_path / "run")

    def lose():
        shutil.rmtree(folder)
        folder.mkdir()
        other.acquire()

    with caplog.at_level(logging.WARNING, "test_checkpoint_handler"):
        run_with(folder, lose)
    other.release()
    line = "is in use by another run, which has not ended: give each run .*: no older one is"
    assert sum(re.search(line, text) is not None for text in caplog.messages) == 3
    assert names_in(folder) == []


@pytest.mark.parametrize("name", ["ENOLCK", "EOPNOTSUPP", "ENOTSUP", "ENOSYS", "EINVAL", "EIO"])
def test_a_file_system_without_locks(name, tmp_path, monkeypatch, caplog):
    """One sentence says what is lost by it; all else is as ever."""
    number = getattr(errno, name)

    def refuse(*_):
        raise OSError(number, os.strerror(number))

    fit(gs.CheckpointHandler(tmp_path / "with"), epochs=3)
    monkeypatch.setattr(fcntl, "flock", refuse)
    with caplog.at_level(logging.WARNING, "test_checkpoint_handler"):
        fit(gs.CheckpointHandler(tmp_path / "without"), epochs=3)
    (line,) = caplog.messages
    assert re.search(
        rf"without' cannot be locked \(\[Errno {number}\] .*\): two runs that write into it at the "
        "same time are not told apart; give each run a directory of its own",
        line,
    )
    assert names_in(tmp_path / "without") == names_in(tmp_path / "with")
    fit(gs.CheckpointHandler(tmp_path / "without"), epochs=4, resume="auto")
    caplog.clear()
    _, _ = run_with(tmp_path / "lost", lambda: shutil.rmtree(tmp_path / "lost"))
    assert names_in(tmp_path / "lost") == ["epoch-2-batch-6", "epoch-3-batch-9", "epoch-4-batch-12"]
    assert sum("cannot be locked" in line for line in caplog.messages) == 1


@pytest.mark.parametrize("name", ["EINVAL", "EBADF", "ENOTSUP"])
def test_a_file_system_that_flushes_no_folders(name, tmp_path, monkeypatch, caplog):
    number, fsync = getattr(errno, name), os.fsync

    def of_files_only(descriptor):
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(number, os.strerror(number))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", of_files_only)
    with caplog.at_level(logging.WARNING, "test_checkpoint_handler"):
        fit(gs.CheckpointHandler(tmp_path), epochs=2)
    assert names_in(tmp_path) == ["epoch-1-batch-3", "epoch-2-batch-6"]
    assert caplog.messages == []


def test_what_is_there_already(tmp_path):
    fit(gs.CheckpointHandler(tmp_path), epochs=2)
    files = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    message = r"has checkpoints of a run already \('epoch-1-batch-3'\): continue it by fit\("
    refuses(FileExistsError, message, gs.CheckpointHandler(tmp_path))
    message = (
        r"has a later checkpoint \('epoch-2-batch-6'\) than the one to resume from "
        r"\('epoch-1-batch-3'\): give a new directory, or resume from the newest"
    )
    older = tmp_path / "epoch-1-batch-3"
    refuses(FileExistsError, message, gs.CheckpointHandler(tmp_path), resume=older)
    assert files == {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}


def test_what_a_process_that_died_has_left_goes(tmp_path):
    host = os.uname().nodename.replace(".", "_")
    (tmp_path / f".epoch-7-batch-21.{host}.{os.getpid()}-01234567-0.tmp").mkdir()
    fit(gs.CheckpointHandler(tmp_path), epochs=1)
    assert [path.name for path in tmp_path.iterdir()] == ["epoch-1-batch-3"]


def test_other_files_do_not_matter(tmp_path):
    (tmp_path / "notes.txt").write_text("1")
    (tmp_path / "epoch-1").mkdir()
    (tmp_path / "damaged-epoch-1-batch-3").mkdir()
    fit(gs.CheckpointHandler(tmp_path, keep_last=1), epochs=2)
    names = ["damaged-epoch-1-batch-3", "epoch-1", "epoch-2-batch-6", "notes.txt"]
    assert sorted(path.name for path in tmp_path.iterdir()) == names


# Arguments.


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"keep_last": 0}, ValueError, "keep_last must be a positive integer, got 0: that many of"),
        ({"keep_last": -1}, ValueError, "keep_last must be a positive integer, got -1"),
        ({"keep_last": 1.0}, TypeError, "keep_last must be a positive integer, got 1.0"),
        ({"keep_last": True}, TypeError, "keep_last must be a positive integer, got True"),
        (
            {"keep_best": -1},
            ValueError,
            "keep_best must be a non-negative integer, got -1: that many",
        ),
        ({"keep_best": None}, TypeError, "keep_best must be a non-negative integer, got None"),
        (
            {"every_n_epochs": 0},
            ValueError,
            "every_n_epochs must be a positive integer, got 0: a checkpoint is written every",
        ),
        ({"every_n_epochs": "1"}, TypeError, "every_n_epochs must be a positive integer, got '1'"),
        ({"every_n_batches": 0}, ValueError, "every_n_batches must be a positive integer, got 0"),
        (
            {"every_n_batches": 2.5},
            TypeError,
            "every_n_batches must be a positive integer, got 2.5",
        ),
        (
            {"every_n_epochs": None},
            ValueError,
            "every_n_epochs and every_n_batches are both None, so there would never be a check",
        ),
        (
            {"monitor": "training loss", "mode": "least"},
            ValueError,
            "mode must be 'auto', 'min' or 'max', got 'least'",
        ),
        ({"monitor": 3}, TypeError, "monitor must be the name of a metric or an EvalMetric, got 3"),
        (
            {"monitor": mx.metric.CompositeEvalMetric([mx.metric.Accuracy()])},
            ValueError,
            "monitor must be one figure, got",
        ),
    ],
)
def test_bad_arguments(arguments, error, message, tmp_path):
    with pytest.raises(error, match=re.escape(message)):
        gs.CheckpointHandler(tmp_path / "new", **arguments)
    assert not (tmp_path / "new").exists()


def test_a_monitor_that_is_not_there(tmp_path):
    message = (
        r"monitor='validation accuracy' is no metric of this run, which has 'training accuracy', "
        r"'training loss' \(and no val_data\): give one of them, or fit\(train_data, val_data\)$"
    )
    handler = gs.CheckpointHandler(tmp_path / "new", monitor="validation accuracy")
    with pytest.raises(ValueError, match=message):
        estimator_of(mx.metric.Accuracy()).fit(BATCHES, epochs=1, event_handlers=handler)
    assert not (tmp_path / "new").exists()
    with pytest.raises(
        ValueError,
        match=r"loss': did you mean 'validation loss'\?",
    ):
        estimator_of(mx.metric.Accuracy()).fit(
            BATCHES,
            BATCHES,
            epochs=1,
            event_handlers=gs.CheckpointHandler(tmp_path / "new", monitor="validation error"),
        )


def test_a_second_fit_needs_another_folder_or_a_resume(tmp_path):
    handler = gs.CheckpointHandler(tmp_path)
    fit(handler, epochs=1)
    refuses(FileExistsError, "has checkpoints of a run already", handler)
    fit(handler, epochs=2, resume="auto")
    assert names_in(tmp_path) == ["epoch-1-batch-3", "epoch-2-batch-6"]
