"""Files that are written aside: names of several threads and hosts, and errors that name a path."""

import errno
import importlib.util
import os
from threading import Thread

import pytest
from gluon_svrg import files
from gluon_svrg.linear import Chunks


def test_each_writer_has_a_name_of_its_own(tmp_path):
    names = [files.aside(tmp_path / "a.b").name for _ in range(3)]
    assert len(set(names)) == 3
    assert not any(map(files.is_left_over, names))


def test_processes_of_one_number_have_names_of_their_own(tmp_path):
    """As in two containers, or on two hosts, that write to one disk."""

    def loaded():
        spec = importlib.util.spec_from_file_location("files_of_a_process", files.__file__)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    assert loaded().aside(tmp_path / "a") != loaded().aside(tmp_path / "a")


def test_threads_that_write_one_file_do_not_mix(tmp_path):
    contents = [bytes([number]) * 100_000 for number in range(4)]
    failures = []

    def write(content):
        try:
            for _ in range(20):
                files.write_whole(tmp_path / "file", content)
                assert (tmp_path / "file").read_bytes() in contents
        except Exception as e:
            failures.append(e)

    threads = [Thread(target=write, args=(content,)) for content in contents]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert os.listdir(tmp_path) == ["file"]


@pytest.mark.parametrize("function", ["fsync", "replace"])
def test_each_error_names_a_path(function, tmp_path, monkeypatch):
    def fail(*_):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, function, fail)
    (tmp_path / "file").write_bytes(b"old")
    with pytest.raises(OSError, match=r"Input/output error: '.*file"):
        files.write_whole(tmp_path / "file", b"new")
    assert (tmp_path / "file").read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["file"]


def test_a_size_is_compared_before_the_bytes_are_read(tmp_path):
    with open(tmp_path / "file", "wb") as file:
        file.truncate(2**40)  # takes no space
    with pytest.raises(files.DamagedError, match="has 1099511627776 bytes, more than 100"):
        files.read_regular(tmp_path / "file", at_most=100)
    with pytest.raises(files.DamagedError, match="has 1099511627776 bytes, not 3"):
        files.read_regular(tmp_path / "file", 3)


@pytest.mark.parametrize("name", ["x.npy", "x.parquet"])
def test_a_pipe_is_not_waited_for(name, tmp_path):
    pytest.importorskip("pyarrow")
    os.mkfifo(tmp_path / name)
    read = Chunks.from_parquet if name.endswith("parquet") else lambda path: Chunks([path])
    with pytest.raises(ValueError, match="is no regular file"):
        read(str(tmp_path / name))
