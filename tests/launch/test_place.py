"""One agent of a job on a machine: who comes second waits for the end of the first."""

import os
import secrets
import signal
import subprocess
import sys

import pytest
from gluon_svrg.launch.place import Place
from launching import ROOT, until

HOLDER = """
import sys, time
from gluon_svrg.launch.place import Place
own = Place(sys.argv[1])
print(own.take(), flush=True)
time.sleep(60)
"""


@pytest.fixture
def name():
    return secrets.token_hex(8)


@pytest.fixture
def holder(name):
    """A process that has the name."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, name],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout.readline() == "True\n"
        yield process
        process.kill()


def test_one_at_a_time(name):
    first, second, other = Place(name), Place(name), Place(f"{name}.1")
    assert [place.take() for place in (first, second, other, first)] == [True, False, True, True]
    first.close()
    assert second.take()
    assert not first.take()
    second.end_other()  # never itself
    for place in (first, second, other):
        place.close()


def test_the_name_is_free_when_its_process_has_ended(name, holder):
    own = Place(name)
    assert not own.take()
    holder.kill()
    until(own.take)
    own.close()


def test_who_is_stopped_is_ended(name, holder):
    own = Place(name)
    holder.send_signal(signal.SIGSTOP)
    assert not own.take()
    own.end_other()
    assert holder.wait(10) == -signal.SIGKILL
    until(own.take)
    own.end_other()
    own.close()


def test_nobody_has_it(name):
    Place(name).end_other()
