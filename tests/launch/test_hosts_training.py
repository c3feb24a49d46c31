"""Trainings over several machines: the bits of one machine, whatever dies."""

import re
import subprocess
import time

import pytest
from launching import ROOT, Launched, launch, wait_for
from machines import SOCKETS, Lines, agents, environ, fake_ssh, kill

TRAINING = ROOT / "tests" / "training_worker.py"
ONE_THREAD = {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
RUN = ("--epochs", 2)


def told(folder):
    """What each worker has written at its end; a set, as they should be equal."""
    return {path.read_text() for path in folder.glob("worker-*.json")}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """What becomes of a training on one machine that nothing happens to."""
    folder = tmp_path_factory.mktemp("whole")
    line = ("-n", 2, *SOCKETS, "--max-restarts", 0, TRAINING, folder, *RUN, "--slowly", 0)
    done = launch(folder, *line, env=ONE_THREAD)
    assert done.code == 0, done.err
    (text,) = told(folder)
    return text


def worker(launched, rank):
    """The process of a worker."""
    for pid in launched.processes():
        if environ(pid).get("GLUON_SVRG_RANK") == str(rank):
            return pid
    raise AssertionError(f"no worker {rank}")


def test_two_hosts_with_servers_and_an_agent_that_is_killed(tmp_path, whole):
    """A scheduler on the first and a server on each: as one machine without servers, to the bit."""
    line = (*fake_ssh(tmp_path), "-n", 1, TRAINING, tmp_path, *RUN)
    with Launched(tmp_path, *line, env=ONE_THREAD, stderr=subprocess.STDOUT) as launched:
        wait_for(launched, "phase checkpoint")
        kill(agents(launched)["127.0.0.3"])
        said = wait_for(launched, r"launch: 127\.0\.0\.3 is gone: its agent has closed the connec")
        assert float(re.search(r"seen within (\d\.\d\d) s", said)[1]) < 1
        assert launched.finish(120) == 0, launched.out
    assert "launch: training again" in launched.out
    assert told(tmp_path) == {whole}


def test_a_worker_and_then_the_launcher_are_killed(tmp_path, whole):
    line = ("-n", 1, *SOCKETS, TRAINING, tmp_path, *RUN)
    lines = Lines(tmp_path, *line, env=ONE_THREAD, stderr=subprocess.STDOUT)
    with lines.start(0) as first, lines.start(1) as second:
        wait_for(first, "phase full_pass")
        kill(worker(second, 1))
        said = wait_for(first, r"launch: worker 1 on node 1 \(process \d+\) was ended by SIGKILL")
        assert float(re.search(r"seen within (\d\.\d\d) s", said)[1]) < 1
        wait_for(first, "launch: training again")
        wait_for(first, "phase evaluation")
        first.process.kill()
        begin = time.monotonic()
        assert second.finish() == 75
        assert time.monotonic() - begin < 5
        assert first.left() == second.left() == []
    with lines.start(0) as first, lines.start(1) as second:
        assert (first.finish(120), second.finish()) == (0, 0), first.out + second.out
        assert "the run continues from the checkpoint" in first.out
    assert told(tmp_path) == {whole}
