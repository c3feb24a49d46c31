"""A checkpoint on disk: whole or not at all, never wrong, and nothing in it is run."""

import errno
import hashlib
import io
import json
import logging
import os
import pickle
import re
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

import gluon_svrg as gs
import mxnet as mx
import numpy as np
import problems
import pytest
import runs
from gluon_svrg import files as disk_files
from gluon_svrg.arrays import params
from gluon_svrg.checkpoint import storage
from gluon_svrg.checkpoint.storage import Checkpoint, CheckpointKey
from gluon_svrg.files import DamagedError
from mxnet.gluon import nn
from problems import ONE, TWO

OLDER, NEWEST = "epoch-1-batch-3", "epoch-2-batch-6"
FILES = ("manifest.json", "net.params", "run.npz", "trainer.npz")


def estimator_of(seed=0, contexts=ONE, name="test_checkpoint"):
    net = nn.HybridSequential(prefix="net_")
    with net.name_scope():
        net.add(nn.Dense(4, in_units=6), nn.BatchNorm(in_channels=4), nn.Dropout(0.3))
        net.add(nn.Dense(3, in_units=4))
    mx.random.seed(seed)
    net.initialize(mx.init.Normal(0.5), ctx=contexts)
    return runs.estimator_of(net, params={"momentum": 0.9}, logger=name)


def batches():
    rng = np.random.default_rng(0)
    return [(rng.normal(size=(4, 6)), rng.integers(0, 3, 4)) for _ in range(3)]


def fit(estimator, directory, epochs, **arguments):
    handlers = [gs.SVRGHandler(gradient_table=True), gs.CheckpointHandler(directory)]
    return estimator.fit(batches(), epochs=epochs, event_handlers=handlers, **arguments)


def everything(net):
    """All parameters and auxiliary states on all contexts."""
    return [a.asnumpy() for param in net.collect_params().values() for a in param.list_data()]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The checkpoints after epochs 1 and 2 of 3, and the weights after the third."""
    folder = tmp_path_factory.mktemp("run")
    gs.seed_everything(0)
    fit(estimator_of(), folder / "cut", 2)
    gs.seed_everything(0)
    whole = estimator_of()
    fit(whole, folder / "whole", 3)
    return folder / "cut", everything(whole.net)


@pytest.fixture
def folder(run, tmp_path):
    """A copy of the two checkpoints."""
    return Path(shutil.copytree(run[0], tmp_path / "checkpoints"))


# What can happen to a file: functions that do it to the file at `path`, by name.


def truncated_to(length):
    return lambda path: path.write_bytes(path.read_bytes()[: length(path.stat().st_size)])


def flipped(position, bit):
    def flip(path):
        content = bytearray(path.read_bytes())
        content[position(len(content))] ^= 1 << bit
        path.write_bytes(content)

    return flip


def made_a_folder(path):
    path.unlink()
    path.mkdir()


def appended(content):
    return lambda path: path.write_bytes(path.read_bytes() + content)


def replaced_by(content):
    return lambda path: path.write_bytes(content)


def flips():
    """One bit at the first, the last, the middle, and 25 random bytes."""
    rng = np.random.default_rng(0)
    places = {"first": lambda n: 0, "last": lambda n: n - 1, "middle": lambda n: n // 2}
    for fraction in rng.random(25):
        places[f"at {fraction:.4f}"] = lambda n, f=fraction: int(f * n)
    return {
        f"a bit flipped, {name}": flipped(place, int(rng.integers(8)))
        for name, place in places.items()
    }


DAMAGE = {
    "truncated to 0": truncated_to(lambda n: 0),
    "truncated to 1": truncated_to(lambda n: 1),
    "truncated to half": truncated_to(lambda n: n // 2),
    "truncated by 1": truncated_to(lambda n: n - 1),
    "missing": Path.unlink,
    "a folder": made_a_folder,
    "a byte more": appended(b"\0"),
    "a line more": appended(b"\n"),
    "a page more": appended(bytes(4096)),
    "all zeros": lambda path: path.write_bytes(bytes(path.stat().st_size)),
    "of the older one": lambda path: shutil.copy(path.parent.parent / OLDER / path.name, path),
    **flips(),
}


def check_that_it_is_passed_over(folder, file, damage):
    """Damage the newest; it is no checkpoint any more, and the older one is found."""
    newest = folder / NEWEST
    before = (newest / file).read_bytes()
    DAMAGE[damage](newest / file)
    if (newest / file).is_file() and (newest / file).read_bytes() == before:
        pytest.fail("nothing was damaged")
    with pytest.raises(DamagedError) as caught:
        storage.read(newest)
    if file != "manifest.json" or damage != "of the older one":  # which is whole in itself
        assert str(caught.value).startswith(f"{file} ")
    assert len(str(caught.value)) < 300
    warnings = []
    found = storage.read_newest(folder, warnings.append)
    assert found.path == folder / OLDER
    assert warnings == [f"the checkpoint {str(newest)!r} is damaged and skipped: {caught.value}"]


@pytest.mark.slow
@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("file", FILES)
def test_a_damaged_file_is_noticed(file, damage, folder):
    check_that_it_is_passed_over(folder, file, damage)


@pytest.mark.parametrize("damage", ["missing", "a byte more", "a bit flipped, first"])
@pytest.mark.parametrize("content", [b"", b"a", bytes(100_000)], ids=len)
def test_a_file_of_any_length(content, damage, tmp_path):
    for number in (1, 2):
        storage.write(tmp_path, CheckpointKey(3 * number, number), {"b": content, "a": b"1"})
    if content or "flipped" not in damage:
        check_that_it_is_passed_over(tmp_path, "b", damage)


def test_what_is_said_of_a_damaged_file(tmp_path):
    path = storage.write(tmp_path, CheckpointKey(3, 1), {"a": b"12"})
    for content, message in (
        (b"1", "a has 1 bytes, not 2"),
        (b"123", "a has 3 bytes, not 2"),
        (b"13", r"a is corrupted \(SHA-256 mismatch\)"),
    ):
        (path / "a").write_bytes(content)
        with pytest.raises(DamagedError, match=f"^{message}$"):
            storage.read(path)


@pytest.mark.slow
def test_every_byte_of_a_manifest_counts(tmp_path):
    path = storage.write(tmp_path, CheckpointKey(3, 1), {"a": b"1"}, {"position": {"epoch": 1}})
    manifest = path / "manifest.json"
    content = manifest.read_bytes()
    for index in range(len(content)):
        flipped(lambda n, i=index: i, index % 8)(manifest)
        with pytest.raises(DamagedError, match=r"^manifest\.json"):
            storage.read(path)
        manifest.write_bytes(content)
    assert storage.read(path).files == {"a": b"1"}


@pytest.mark.parametrize(
    "damage", ["truncated to half", "a bit flipped, middle", "missing", "a folder", "a byte more"]
)
@pytest.mark.parametrize("file", FILES)
def test_a_run_goes_on_from_the_older_one(file, damage, folder, run, caplog):
    DAMAGE[damage](folder / NEWEST / file)
    estimator = estimator_of(seed=1)
    before = everything(estimator.net)
    with pytest.raises(ValueError, match=r"-batch-6' is damaged \(.*: resume from another, or"):
        fit(estimator, folder, 3, resume=folder / NEWEST)
    assert problems.same(everything(estimator.net), before)

    with caplog.at_level(logging.WARNING, "test_checkpoint"):
        result = fit(estimator, folder, 3, resume="auto")
    passed_over, renamed = [record.getMessage() for record in caplog.records]
    assert f"{NEWEST}' is damaged and skipped: {file}" in passed_over
    assert renamed == f"the damaged checkpoint '{NEWEST}' is now 'damaged-{NEWEST}'"
    assert problems.same(everything(estimator.net), run[1])
    assert [row["epoch"] for row in result.history] == [0, 1, 2]
    names = [OLDER, NEWEST, "epoch-3-batch-9"]
    assert sorted(path.name for path in folder.iterdir()) == [f"damaged-{NEWEST}", *names]
    assert [storage.read(folder / name).key.epoch for name in names] == [1, 2, 3]


def test_damaged_twice(folder, run):
    for _ in range(2):
        (folder / NEWEST / "run.npz").unlink()
        estimator = estimator_of(seed=1)
        fit(estimator, folder, 2, resume="auto")
    names = sorted(path.name for path in folder.iterdir())
    assert names == [f"damaged-2-{NEWEST}", f"damaged-{NEWEST}", OLDER, NEWEST]


def test_all_are_damaged(folder):
    for name in (OLDER, NEWEST):
        (folder / name / "manifest.json").write_text("{}")
    estimator = estimator_of(seed=1)
    before = everything(estimator.net)
    for where in ("auto", folder):
        with pytest.raises(ValueError) as caught:
            fit(estimator, folder, 3, resume=where)
        assert str(caught.value) == (
            f"all checkpoints in {str(folder)!r} are damaged (2, the newest {NEWEST!r}): start a "
            "new run with resume=None and another folder"
        )
    assert problems.same(everything(estimator.net), before)
    assert sorted(path.name for path in folder.iterdir()) == [OLDER, NEWEST]


@pytest.mark.parametrize("damage", ["empty", "a file"])
def test_a_folder_that_is_no_checkpoint_any_more(damage, folder):
    newest = folder / NEWEST
    shutil.rmtree(newest)
    newest.mkdir() if damage == "empty" else newest.write_bytes(b"1")
    with pytest.raises(DamagedError, match=r"^manifest\.json cannot be read"):
        storage.read(newest)
    warnings = []
    assert storage.read_newest(folder, warnings.append).path == folder / OLDER
    assert len(warnings) == (damage == "empty")


# Pickles and files that are not what the manifest vouches for.


class Trap:
    """Writes a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


def npz(**arrays):
    content = io.BytesIO()
    np.savez(content, **arrays)
    return content.getvalue()


def traps(marker):
    trap = np.array([Trap(marker)], dtype=object)
    text = np.frombuffer(b'{"state": {"array": "a"}, "format": "gluon_svrg.states/2"}', np.uint8)
    return {
        "pickle": pickle.dumps(Trap(marker)),
        "meta": npz(meta=trap),
        "array": npz(meta=text, a=trap),
    }


def forged(folder, manifest=None, **files):
    """Write the newest checkpoint again with another content and right checksums."""
    found = storage.read(folder / NEWEST)
    shutil.rmtree(found.path)
    files = {name: c for name, c in {**found.files, **files}.items() if c is not None}
    path = storage.write(folder, found.key, files)
    if manifest is not None:
        own = json.loads((path / "manifest.json").read_text())
        (path / "manifest.json").write_text(storage._text_of(manifest(own)))
    return path


@pytest.mark.parametrize("kind", ["pickle", "meta", "array"])
@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("vouched", [False, True])
def test_nothing_is_run(file, kind, vouched, folder, tmp_path):
    marker = tmp_path / "marker"
    trap = traps(marker)[kind]
    pickle.loads(traps(marker)["pickle"])
    assert marker.exists()  # the trap is one
    marker.unlink()
    path = folder / NEWEST
    if vouched and file != "manifest.json":
        forged(folder, **{file: trap})
    else:
        (path / file).write_bytes(trap)
    with pytest.raises(Exception):  # noqa: B017  # which one is the next test's matter
        fit(estimator_of(), folder, 3, resume=path)
    if not vouched and kind == "pickle":
        fit(estimator_of(), folder, 3, resume="auto")
    assert not marker.exists()


WRONG = {
    "pickle": lambda files, name: traps("marker")["pickle"],
    "object arrays": lambda files, name: traps("marker")["array"],
    "nothing": lambda files, name: b"",
    "zeros": lambda files, name: bytes(500),
    "cut": lambda files, name: files[name][:-30],
    "another file": lambda files, name: files[
        "trainer.npz" if name != "trainer.npz" else "run.npz"
    ],
    "an npz of something else": lambda files, name: npz(meta=np.frombuffer(b"{}", np.uint8)),
    "missing": lambda files, name: None,
}


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("file", FILES[1:])
def test_a_wrong_file_that_the_manifest_vouches_for(file, wrong, folder):
    files = storage.read(folder / NEWEST).files
    path = forged(folder, **{file: WRONG[wrong](files, file)})
    estimator = estimator_of(seed=1)
    before = everything(estimator.net)
    with pytest.raises(Exception) as caught:
        fit(estimator, folder, 3, resume=path)
    assert problems.same(everything(estimator.net), before)
    assert isinstance(caught.value, ValueError)
    assert str(path) in str(caught.value)  # it says which checkpoint
    assert file in str(caught.value)  # and which file
    assert "Traceback" not in str(caught.value)


def _with_file(name, manifest):
    return {**manifest, "files": {**manifest["files"], name: {"bytes": 0, "sha256": ""}}}


FORGED = {
    "no format": lambda m: {k: v for k, v in m.items() if k != "format"},
    "a format that is no number": lambda m: {**m, "format": "1"},
    "no files": lambda m: {k: v for k, v in m.items() if k != "files"},
    "files that are none": lambda m: {**m, "files": ["run.npz"]},
    "files without sizes": lambda m: {**m, "files": {"run.npz": {}}},
    **{
        f"a file called {name!r}": partial(_with_file, name)
        for name in ("../run.npz", "/run.npz", "a/b", "a\\b", "a\0b", "", ".", "..")
    },
}


@pytest.mark.parametrize("forgery", FORGED)
def test_a_manifest_of_another_form(forgery, folder):
    path = forged(folder, FORGED[forgery])
    with pytest.raises(DamagedError, match=r"^manifest\.json is not what a CheckpointHandler"):
        storage.read(path)


@pytest.mark.parametrize(
    ("number", "which"),
    [
        (
            storage.FORMAT + 1,
            f"a later version (9.8), and this version reads up to format {storage.FORMAT}",
        ),
        (storage.OLDEST_FORMAT - 1, "an earlier version (9.8), and this version reads from"),
    ],
)
def test_a_format_that_is_not_read_is_said(number, which, folder):
    def other(manifest):
        return {**manifest, "format": number, "versions": {"gluon_svrg": "9.8"}}

    path = forged(folder, other)
    message = (
        rf"the checkpoint '.*{NEWEST}' has the format {number}, of {re.escape(which)}.*: "
        "install that version"
    )
    with pytest.raises(ValueError, match=message):
        storage.read_newest(folder, pytest.fail)
    for where in ("auto", path, folder):
        with pytest.raises(ValueError, match=message) as caught:
            fit(estimator_of(), folder, 3, resume=where)
        assert not isinstance(caught.value, DamagedError)  # it is not passed over


# Writing.


def contents(folder):
    """All files below a folder, by relative path."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_what_is_written(tmp_path):
    files = {"a": b"1", "b": bytes(range(256)), "c": b""}
    path = storage.write(tmp_path, CheckpointKey(12, 3, True), files, {"position": {"epoch": 3}})
    assert path == tmp_path / "epoch-3-batch-12-begun"
    manifest = json.loads((path / "manifest.json").read_text())
    assert manifest["files"]["b"] == {
        "bytes": 256,
        "sha256": hashlib.sha256(files["b"]).hexdigest(),
    }
    assert (manifest["format"], manifest["position"]) == (storage.FORMAT, {"epoch": 3})
    assert storage.read(path) == Checkpoint(path, CheckpointKey(12, 3, True), manifest, files)
    assert [p.name for p in tmp_path.iterdir()] == [path.name]
    with pytest.raises(FileExistsError, match=r"the checkpoint '.*begun' exists already"):
        storage.write(tmp_path, CheckpointKey(12, 3, True), {"a": b"2"})
    assert storage.read(path).files == files


def no_space(*args, **kwargs):
    raise OSError(errno.ENOSPC, "No space left on device")


class FullFile(io.BytesIO):
    def write(self, content):
        no_space()


def nth_fails(function, number):
    calls = iter(range(1, 100))

    def call(*args, **kwargs):
        return no_space() if next(calls) == number else function(*args, **kwargs)

    return call


# fsync: two files, the manifest, the folder, the folder above.
FAILURES = {
    **{
        f"fsync {number}": lambda patch, n=number: patch.setattr(
            os, "fsync", nth_fails(os.fsync, n)
        )
        for number in (1, 2, 3, 4, 5)
    },
    "rename": lambda patch: patch.setattr(Path, "rename", no_space),
    "mkdir": lambda patch: patch.setattr(Path, "mkdir", no_space),
    **{
        f"open {number}": lambda patch, n=number: patch.setattr(
            disk_files, "open", nth_fails(open, n), raising=False
        )
        for number in (1, 2, 3)
    },
    "write": lambda patch: patch.setattr(
        disk_files, "open", lambda *args: FullFile(), raising=False
    ),
    "open folder": lambda patch: patch.setattr(os, "open", nth_fails(os.open, 1)),
}


@pytest.mark.parametrize("failure", FAILURES)
def test_a_failure_leaves_nothing(failure, tmp_path):
    storage.write(tmp_path, CheckpointKey(3, 1), {"a": b"1"})
    before = contents(tmp_path)
    with pytest.MonkeyPatch.context() as patch:
        FAILURES[failure](patch)
        with pytest.raises(OSError, match="No space left on device"):
            storage.write(tmp_path, CheckpointKey(6, 2), {"a": b"1", "b": b"2"})
    assert contents(tmp_path) == before
    assert [path.name for path in tmp_path.iterdir()] == [OLDER]
    storage.write(tmp_path, CheckpointKey(6, 2), {"a": b"1", "b": b"2"})  # with space again


FULL_DISK = """
import gluon_svrg as gs  # before MXNet
import logging, os, pathlib, resource, sys
import test_storage as test

def limit(size):
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

folder = pathlib.Path(sys.argv[1])
logging.basicConfig(stream=sys.stdout, format="%(message)s", level=logging.WARNING)
test.fit(test.estimator_of(), folder, 1)
before = test.contents(folder)
limit(4000)  # bytes a file: less than run.npz has
result = test.fit(test.estimator_of(), folder, 3, resume="auto")
assert result.stop_reason is gs.StopReason.EPOCHS_DONE
assert test.contents(folder) == before and os.listdir(folder) == [test.OLDER]
limit(resource.RLIM_INFINITY)
test.fit(test.estimator_of(), folder, 3, resume="auto")
print(sorted(os.listdir(folder)))
"""


@pytest.mark.full
def test_a_full_disk(tmp_path):
    """A real one, as far as a process can make one for itself."""
    folders = [*Path(__file__).parents[:2], Path(gs.__file__).parents[1]]
    path = os.pathsep.join(map(str, folders))
    child = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FULL_DISK, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert child.returncode == 0, child.stderr
    # The last path names a host, a process and a number.
    out = re.sub(r"(?<=too large): '[^']*/\.epoch-\d-batch-\d\.[^']*'", "", child.stdout)
    *warnings, names = out.splitlines()
    assert names == str([OLDER, NEWEST, "epoch-3-batch-9"])
    reason = "[Errno 27] File too large"
    assert warnings == [
        f"the checkpoint {NEWEST} cannot be written into {str(tmp_path)!r} ({reason}): the older "
        "ones stay, and the run continues",
        f"the checkpoint epoch-3-batch-9 cannot be written into {str(tmp_path)!r} ({reason}): the "
        "older ones stay, and the run continues",
        f"the last checkpoint could not be written: epoch-3-batch-9: {reason}",
    ]


def test_leftovers_of_dead_processes_are_removed(tmp_path):
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    host = os.uname().nodename.replace(".", "_")
    of_the_dead, of_no_process = (f"{host}.{pid}-01234567-0.tmp" for pid in (dead.pid, 10**20))
    removed = [
        f".epoch-1-batch-3.{of_the_dead}",
        f".epoch-1-batch-3-begun.{of_the_dead}",
        f".epoch-1-batch-3.{of_no_process}",
        f".epoch-1-batch-3.{host}.{os.getpid()}-01234567-0.tmp",  # of another with this number
    ]
    kept = [
        disk_files.aside(tmp_path / "epoch-1-batch-3").name,
        f".epoch-1-batch-3.another_host.{dead.pid}-01234567-0.tmp",
        f".epoch-1-batch-3.{host}.{os.getppid()}-01234567-0.tmp",
        f"epoch-1-batch-3.{of_the_dead}",
        f".epoch-1-batch-3.{of_the_dead}.old",
        f".epoch-1.{of_the_dead}",
        f".epoch-1-batch-3.{dead.pid}.tmp",
        "epoch-1-batch-3",
        "damaged-epoch-1-batch-3",
    ]
    for name in [*removed, *kept]:
        (tmp_path / name).mkdir()
        (tmp_path / name / "net.params").write_bytes(b"1")
    storage.remove_temporary_files(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(kept)


def test_what_is_removed_is_gone_as_a_whole(tmp_path, monkeypatch):
    path = storage.write(tmp_path, CheckpointKey(3, 1), {"a": b"1"})
    seen = []
    monkeypatch.setattr(shutil, "rmtree", lambda p, **_: seen.append(p.name))  # the process ends
    storage.remove(path)
    (name,) = seen
    assert name.startswith(f".{OLDER}.")
    assert name.endswith(".tmp")
    assert storage.list_checkpoints(tmp_path) == {}


# Names.


def test_checkpoints_are_found_by_their_numbers(tmp_path):
    keys = [
        CheckpointKey(9, 9),
        CheckpointKey(10, 9),  # after the last batch of epoch 9, before its end
        CheckpointKey(10, 10),
        CheckpointKey(10, 10, True),
        CheckpointKey(11, 10),
        CheckpointKey(100, 11),
        CheckpointKey(1000, 100),
    ]
    for key in np.random.default_rng(0).permutation(len(keys)):
        storage.write(tmp_path, keys[key], {"a": b"1"})
    others = [
        "epoch-1",
        "epoch-x-batch-1",
        "damaged-epoch-200-batch-2000",
        ".epoch-9-batch-9.1.tmp",
    ]
    for name in others:
        (tmp_path / name).mkdir()
    (tmp_path / "epoch-300-batch-3000").write_bytes(b"a file")
    assert list(storage.list_checkpoints(tmp_path)) == keys
    for key in keys:
        assert storage.parse_name(tmp_path / key.name) == key
    assert [storage.parse_name(tmp_path / name) for name in others] == [None] * len(others)
    for path in reversed(list(storage.list_checkpoints(tmp_path).values())):
        assert storage.read_newest(tmp_path, pytest.fail).path == path
        storage.remove(path)
    assert storage.read_newest(tmp_path, pytest.fail) is None
    assert storage.list_checkpoints(tmp_path / "no folder") == {}


def test_a_path_without_the_name_of_a_checkpoint(tmp_path):
    with pytest.raises(ValueError, match=r"best' is no checkpoint: one has a name like 'epoch-3-b"):
        storage.read(tmp_path / "best")


# The parameters are Gluon's.


@pytest.mark.parametrize("contexts", [ONE, TWO], ids=len)
@pytest.mark.parametrize("hybridized", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_gluon_reads_the_parameters(dtype, hybridized, contexts, tmp_path):
    def net_of(seed, ctx):
        net = nn.HybridSequential()
        net.add(nn.Conv2D(2, 3, in_channels=1), nn.BatchNorm(in_channels=2))
        net.add(nn.GlobalAvgPool2D(), nn.Dense(3, in_units=2))
        net.cast(dtype)
        mx.random.seed(seed)
        net.initialize(mx.init.Normal(0.5), ctx=ctx)
        if hybridized:
            net.hybridize()
        return net

    rng = np.random.default_rng(0)
    data = [(rng.normal(size=(4, 1, 5, 5)).astype(dtype), rng.integers(0, 3, 4).astype(dtype))]
    net = net_of(0, contexts)
    estimator = runs.estimator_of(net)
    estimator.fit(data, epochs=1, event_handlers=gs.CheckpointHandler(tmp_path))
    path = tmp_path / "epoch-1-batch-1" / "net.params"
    other = net_of(1, ONE)
    other.load_parameters(str(path), ctx=ONE)
    ours, theirs = net.collect_params().values(), other.collect_params().values()
    for own, read in zip(ours, theirs, strict=True):
        assert np.dtype(read.dtype) == np.dtype(dtype) or "batchnorm" in own.name
        assert np.array_equal(own.list_data()[0].asnumpy(), read.data().asnumpy())
    assert mx.nd.load(str(path)).keys() == net._collect_params_with_prefix().keys()


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int8", "int32", "int64"])
def test_the_parameters_are_what_mxnet_writes(dtype, tmp_path):
    """Byte for byte."""
    rng = np.random.default_rng(0)
    shapes = {"a": (3,), "b.weight": (2, 3, 4), "": (1,), "é": (1, 1)}
    arrays = {n: mx.nd.array(100 * rng.normal(size=s), dtype=dtype) for n, s in shapes.items()}
    mx.nd.save(str(tmp_path / "file"), arrays)
    assert params.to_bytes(arrays) == (tmp_path / "file").read_bytes()


def test_a_folder_that_was_renamed_is_damaged(tmp_path):
    path = storage.write(tmp_path, CheckpointKey(3, 1), {"a": b"1"})
    later = path.rename(tmp_path / CheckpointKey(9, 3).name)
    with pytest.raises(DamagedError, match=r"its folder was 'epoch-1-batch-3' when it was written"):
        storage.read(later)


def test_a_file_that_may_not_be_read_is_no_damage(tmp_path, monkeypatch):
    """Setting it aside for that would lose a good checkpoint."""
    storage.write(tmp_path, CheckpointKey(3, 1), {"a": b"1"})

    def refuse(path, *_, **__):
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(storage, "read_regular", refuse)
    with pytest.raises(PermissionError, match="Permission denied"):
        storage.read_newest(tmp_path, pytest.fail)
