"""Trainings under the launcher: whatever fails, the bits are those of a run without failures."""

import json
import os
import re
import signal
import subprocess

import pytest
from launching import ROOT, Launched, launch, wait_for

pytestmark = [pytest.mark.full, pytest.mark.long]

pytest.importorskip("mpi4py")

TRAINING = ROOT / "tests" / "training_worker.py"
ONE_THREAD = {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
QUICKLY = ("--epochs", 2, "--slowly", 0)


def told(folder):
    """What each worker has written at its end; a set, as they should be equal."""
    return {path.read_text() for path in folder.glob("worker-*.json")}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """What becomes of a training that nothing happens to."""
    folder = tmp_path_factory.mktemp("whole")
    done = launch(folder, "-n", 2, "--max-restarts", 0, TRAINING, folder, *QUICKLY, env=ONE_THREAD)
    assert done.code == 0, done.err
    (text,) = told(folder)
    assert json.loads(text)["size"] == 2
    return text


def start(folder, *options, arguments=(), **settings):
    command = ["-n", 2, *options, TRAINING, folder, "--epochs", 2, *arguments]
    return Launched(folder, *command, env=ONE_THREAD, stderr=subprocess.STDOUT, **settings)


def test_kills_of_all_in_one_job(tmp_path, whole):
    """The helper that mpiexec has on each host is killed, too, and mpiexec itself."""
    slowly = ("--slowly", 0.1)  # it must not be over before the last one is killed
    with start(tmp_path, "--max-restarts", 4, arguments=slowly) as launched:
        victims = {"full_pass": 1, "checkpoint": 0}
        others = {"step": "hydra_pmi_proxy", "evaluation": "mpiexec.hydra"}
        for phase in ("full_pass", "checkpoint", "step", "evaluation"):
            wait_for(launched, f"phase {phase}")
            pids = launched.find("launch.worker")
            if phase in victims:
                ranks = [pid for pid in pids if is_rank(pid, victims[phase])]
            else:
                ranks = launched.find(others[phase])
            os.kill(ranks[0], signal.SIGKILL)
            wait_for(launched, "restarting all workers")
        assert launched.finish() == 0, launched.out
    assert told(tmp_path) == {whole}


def is_rank(pid, rank):
    """Whether a process is a worker of this rank, and not mpiexec, whose line names it, too."""
    with open(f"/proc/{pid}/environ", "rb") as file:
        return f"PMI_RANK={rank}".encode() in file.read().split(b"\0")


def test_the_supervisor_is_killed_and_started_again(tmp_path, whole):
    with start(tmp_path) as launched:
        wait_for(launched, "phase evaluation")
        launched.process.kill()
        assert launched.left() == []
    with start(tmp_path) as launched:
        assert launched.finish() == 0, launched.out
        assert "the run continues from the checkpoint" in launched.out
    assert told(tmp_path) == {whole}


def test_an_exception_on_one_worker(tmp_path, whole):
    with start(tmp_path, arguments=("--fail", 1, 10)) as launched:
        assert launched.finish() == 0, launched.out
    assert re.search(
        r"launch: worker 1 \(process \d+\) failed: ValueError: on one worker alone", launched.out
    )
    assert "restart 1 of at most 3" in launched.out
    assert "restart 2" not in launched.out
    assert launched.out.count("Traceback") == 1
    assert told(tmp_path) == {whole}


def test_a_worker_is_stopped(tmp_path, whole):
    """The other one ends itself, with its stack, when its step takes too long."""
    with start(tmp_path, "--progress-timeout", 4) as launched:
        wait_for(launched, "phase checkpoint")
        (pid,) = (pid for pid in launched.find("launch.worker") if is_rank(pid, 1))
        os.kill(pid, signal.SIGSTOP)
        assert launched.finish() == 0, launched.out
    assert re.search(
        r"no stack was printed by worker 1 \(process \d+\): perhaps stopped", launched.out
    )
    assert told(tmp_path) == {whole}


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGUSR1, 138)])
def test_a_signal_ends_all_at_one_batch_and_the_same_line_goes_on(number, code, tmp_path, whole):
    with start(tmp_path) as launched:
        wait_for(launched, "phase checkpoint")
        launched.process.send_signal(number)
        assert launched.finish() == code, launched.out
    (text,) = told(tmp_path)
    assert "a signal" in json.loads(text)["reason"]
    with start(tmp_path) as launched:
        assert launched.finish() == 0, launched.out
    assert told(tmp_path) == {whole}


def test_a_full_disk_on_the_first_worker_costs_its_checkpoints_alone(tmp_path, whole):
    with start(tmp_path, arguments=("--full-disk", 0)) as launched:
        assert launched.finish() == 0, launched.out
    assert "File too large" in launched.out
    assert told(tmp_path) == {whole}


@pytest.mark.parametrize(
    ("line", "said", "files"),
    [
        ("linear_regression.py --epochs 2", "SVRG: 2 epochs", {"curves.png", "metrics.csv"}),
        (
            "word_language_model.py --words 1500 --hidden 8 --epochs 1",
            "the grammar itself has a perplexity of",
            {"curves.png", "history.csv", "result.json", "sample.txt"},
        ),
    ],
)
def test_a_recipe_prints_and_writes_once(line, said, files, tmp_path):
    recipe, *options = line.split()
    out = tmp_path / "out"
    path = ROOT / "recipes" / recipe
    done = launch(tmp_path, "-n", 2, path, *options, "--out", out, env=ONE_THREAD)
    assert done.code == 0, done.err
    assert done.out.count(said) == 1
    assert "[worker 1]" not in done.out
    assert {path.name for path in out.iterdir()} == files


LATE = """
import time
from gluon_svrg import workers
if workers.current().is_first: time.sleep(14)
print("end", flush=True)
"""


def test_nobody_is_hurried_at_the_end_of_the_script(tmp_path):
    (tmp_path / "script.py").write_text(LATE)
    options = ("--max-restarts", 0, "--progress-timeout", 10)
    done = launch(tmp_path, "-n", 2, *options, tmp_path / "script.py", env=ONE_THREAD)
    assert (done.code, done.out.count("end")) == (0, 2), done.err
