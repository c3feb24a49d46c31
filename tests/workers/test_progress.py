"""The progress limit: what stands still for longer prints its stacks and ends."""

import subprocess
import sys

import pytest
from gluon_svrg.workers import progress

pytestmark = pytest.mark.full

HANGS = """
import sys, time
from gluon_svrg.workers import progress
for _ in range(30):
    progress.beat()
    time.sleep(0.05)
if sys.argv[1] == "hang":
    def stands_still():
        time.sleep(60)
    stands_still()
progress.end()
time.sleep(1.5)
print("the end")
"""


def run(how, limit):
    command = [sys.executable, "-c", HANGS, how]
    env = {"GLUON_SVRG_PROGRESS_TIMEOUT": limit, "PATH": ""}
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=50)


def test_a_process_that_hangs_says_where_and_ends():
    done = run("hang", "1")
    assert done.returncode == 1
    assert "Timeout (0:00:01)!" in done.stderr
    assert "in stands_still" in done.stderr


def test_a_process_that_goes_on_and_one_that_is_done_are_left_alone():
    assert run("go on", "1").stdout == "the end\n"


@pytest.mark.parametrize("text", ["", "0", "-1"])
def test_without_a_limit_nothing_is_set(monkeypatch, text):
    monkeypatch.setenv("GLUON_SVRG_PROGRESS_TIMEOUT", text)
    monkeypatch.setattr(progress.faulthandler, "dump_traceback_later", None)
    progress.beat()
    progress.end()
