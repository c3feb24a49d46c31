"""The progress limit: a process without progress prints its stacks and exits."""

import subprocess
import sys

import gluon_svrg as gs
import pytest
from gluon_svrg import stops
from gluon_svrg.workers import progress
from problems import make
from runs import estimator_of

HANGS = """
import sys, time
from gluon_svrg.workers.progress import progress_limit
limit = progress_limit()
for _ in range(30):
    limit.step_completed()
    time.sleep(0.05)
if sys.argv[1] == "hang":
    def stands_still():
        time.sleep(60)
    stands_still()
limit.cancel()
time.sleep(1.5)
print("the end")
"""


def run(how, limit):
    command = [sys.executable, "-c", HANGS, how]
    env = {"GLUON_SVRG_PROGRESS_TIMEOUT": limit, "PATH": ""}
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=50)


@pytest.mark.full
def test_a_process_that_hangs_prints_its_stack_and_exits():
    done = run("hang", "1")
    assert done.returncode == 1
    assert "Timeout (0:00:01)!" in done.stderr
    assert "in stands_still" in done.stderr


@pytest.mark.full
def test_a_process_with_progress_and_one_that_is_done_are_not_ended():
    assert run("continue", "1").stdout == "the end\n"


@pytest.mark.parametrize("text", ["", "0", "-1", "inf", "nan", "soon", None])
def test_without_a_limit_no_timer_is_started(monkeypatch, text):
    monkeypatch.setattr(progress.faulthandler, "dump_traceback_later", None)
    if text is None:
        monkeypatch.delenv("GLUON_SVRG_PROGRESS_TIMEOUT", raising=False)
    else:
        monkeypatch.setenv("GLUON_SVRG_PROGRESS_TIMEOUT", text)
    assert progress.progress_limit() is None
    progress.start_timer()


def test_many_steps_a_second_restart_the_timer_a_few_times(monkeypatch):
    started, now = [], [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(
        progress.faulthandler,
        "dump_traceback_later",
        lambda seconds, exit: started.append((now[0], seconds, exit)),
    )
    limit = progress.ProgressLimit(10)
    for _ in range(1000):
        limit.step_completed()
        now[0] += 0.001
    assert started == [(100.0, 10, True), (pytest.approx(100.5, abs=2e-3), 10, True)]


@pytest.mark.parametrize("timeout", [None, 1000.0])
def test_a_fit_reads_the_limit_once(monkeypatch, timeout):
    reads = []
    monkeypatch.setattr(progress, "progress_timeout", lambda: reads.append(0) or timeout)
    monkeypatch.setattr(stops, "progress_limit", progress.progress_limit)
    problem = make("linear")
    estimator_of(problem).fit(problem.ndarrays(), epochs=2, verbose=0)
    assert len(reads) == 1


def test_each_batch_of_a_handlers_evaluation_restarts_the_timer(monkeypatch):
    class Limit:
        steps = 0

        def step_completed(self):
            self.steps += 1

        def cancel(self):
            pass

    limit = Limit()
    monkeypatch.setattr(stops, "progress_limit", lambda: limit)
    problem = make("linear")
    batches = problem.ndarrays()

    def evaluate(estimator):
        before = limit.steps
        estimator.evaluate(batches)
        assert limit.steps == before + len(batches)

    handler = gs.on("epoch_end", evaluate)
    estimator_of(problem).fit(batches, epochs=1, event_handlers=[handler], verbose=0)
    assert limit.steps > len(batches)
