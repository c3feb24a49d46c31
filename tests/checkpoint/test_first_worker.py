"""What the first worker finds, or fails of, is everybody's."""

import logging
import os
import shutil

import pytest
from gluon_svrg.checkpoint import storage
from gluon_svrg.checkpoint.first_worker import read_on_first, run_on_first
from gluon_svrg.checkpoint.resume import find_checkpoint, find_rollback_checkpoint
from gluon_svrg.checkpoint.storage import Checkpoint, CheckpointKey
from gluon_svrg.files import DamagedError
from gluon_svrg.workers import SingleProcess
from thread_workers import on_threads

LOGGER = logging.getLogger("test_first_worker")
FILES = {"net.params": b"", "run.npz": bytes(range(256)) * 3, "worker-1.npz": b"\0\1"}


@pytest.mark.parametrize("result", [None, True, [1, "two", {"three": None}]])
def test_a_result(result):
    calls = []

    def make(workers):
        return run_on_first(workers, lambda: calls.append(workers.rank) or result, "here")

    assert on_threads(3, make) == [result] * 3
    assert calls == [0]
    assert run_on_first(SingleProcess(), lambda: result, "here") == result


class OwnError(FileExistsError):
    """Of a class that the others need not have."""


def undecodable():
    b"\xff".decode()


def raising(exception):
    def make():
        raise exception

    return make


ERRORS = {
    "FileExistsError": (raising(FileExistsError("it is there")), FileExistsError),
    "a class of one's own": (raising(OwnError("it is there")), FileExistsError),
    "DamagedError": (raising(DamagedError("torn")), ValueError),
    "with a number": (raising(OSError(28, "No space left on device")), OSError),
    "that takes more than a message": (undecodable, ValueError),
    "without a message": (raising(RuntimeError()), RuntimeError),
}


@pytest.mark.parametrize(("make", "kind"), ERRORS.values(), ids=ERRORS)
def test_an_error(make, kind):
    first, *others = on_threads(3, lambda workers: run_on_first(workers, make, "here"))
    assert isinstance(first, kind)
    for other in others:
        assert isinstance(other, kind)
        assert str(other) == str(first)


def test_a_checkpoint_is_sent_whole(tmp_path):
    path = storage.write(
        tmp_path, CheckpointKey(12, 3, True), FILES, {"workers": 2, "position": {"epoch": 3}}
    )
    read = storage.read(path)
    found = on_threads(3, lambda w: read_on_first(w, lambda: read if w.is_first else 1 / 0, "here"))
    assert found == [read] * 3
    assert found[2].files == FILES
    assert isinstance(found[1], Checkpoint)
    assert isinstance(found[1].key, CheckpointKey)
    assert on_threads(2, lambda w: read_on_first(w, lambda: None, "here")) == [None, None]


def located(tmp_path, resume="auto"):
    """Return what three workers find, of which the first alone has the folder."""

    def locate(workers):
        own = tmp_path if workers.is_first else tmp_path / "not there"
        return find_checkpoint(resume, [own], LOGGER, workers)

    return on_threads(3, locate)


def test_the_first_one_chooses(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    assert located(tmp_path) == [None] * 3
    assert caplog.messages == [f"no checkpoint in {tmp_path} yet: the run begins"]
    older = storage.write(tmp_path, CheckpointKey(1, 1), FILES)
    newest = storage.write(tmp_path, CheckpointKey(2, 2), FILES)
    (newest / "run.npz").write_bytes(b"torn")
    caplog.clear()
    first, *others = located(tmp_path)
    assert first.path == older
    assert others == [first, first]
    assert len(caplog.messages) == 1  # one damaged: told once
    shutil.rmtree(older)
    for error in located(tmp_path):
        assert isinstance(error, ValueError)
        assert "all checkpoints" in str(error)
    for error in located(tmp_path, os.fspath(tmp_path / "elsewhere")):
        assert isinstance(error, FileNotFoundError)


def test_a_roll_back(tmp_path):
    def locate(workers):
        return find_rollback_checkpoint(
            [tmp_path] if workers.is_first else [], "a NaN", LOGGER, workers
        )

    for error in on_threads(2, locate):
        assert isinstance(error, RuntimeError)
        assert str(error) == "a NaN; to go back needs a checkpoint that is written already"
    path = storage.write(tmp_path, CheckpointKey(1, 1), FILES)
    assert [found.path for found in on_threads(2, locate)] == [path, path]


def test_the_manifest_says_how_many_workers_wrote_it(tmp_path):
    for number in (1, 2):
        about = {"workers": number} if number > 1 else {}
        manifest = storage.read(
            storage.write(tmp_path, CheckpointKey(number, 0), FILES, about)
        ).manifest
        assert manifest["format"] == storage.FORMAT
        assert ("workers" in manifest) == (number > 1)
