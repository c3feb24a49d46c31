"""What an agent takes of a process that has ended."""

import fcntl
import os

import pytest
from gluon_svrg.launch.agent import _drain


class Ended:
    """A process that has ended, and one pipe of it."""

    def __init__(self):
        read, self.write = os.pipe()
        self.readers = {read: None}
        self.taken = self.reads = 0

    def read(self, descriptor):
        self.reads += 1
        self.taken += len(os.read(descriptor, 1 << 16))

    def close(self):
        for descriptor in (self.write, *self.readers):
            os.close(descriptor)


@pytest.fixture
def ended():
    ended = Ended()
    yield ended
    ended.close()


def test_a_full_pipe_is_taken_whole(ended):
    size = fcntl.fcntl(ended.write, fcntl.F_SETPIPE_SZ, 1 << 20)
    os.set_blocking(ended.write, False)
    assert os.write(ended.write, bytes(size)) == size
    _drain(ended)
    assert ended.taken == size


def test_what_it_has_left_behind_may_write_for_ever(ended, monkeypatch):
    def read(descriptor):
        Ended.read(ended, descriptor)
        os.write(ended.write, b"y\n")
        assert ended.reads < 1000

    monkeypatch.setattr(ended, "read", read)
    os.write(ended.write, b"y\n")
    _drain(ended)
