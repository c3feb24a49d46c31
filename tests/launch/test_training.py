"""Trainings under the launcher: whatever fails, the bits are those of a run without failures."""

import json
import os
import re
import signal
import subprocess

import pytest
from launching import ROOT, Launched, launch, wait_for

TRAINING = ROOT / "tests" / "training_worker.py"
SOCKETS = ("--engine", "sockets")
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


def roles(launched):
    """The processes of a job by role."""
    found = {}
    for pid in launched.processes():
        with open(f"/proc/{pid}/environ", "rb") as file:
            values = dict(os.fsdecode(v).partition("=")[::2] for v in file.read().split(b"\0") if v)
        name = f"worker {values.get('GLUON_SVRG_RANK')}"
        if name == "worker None":
            name = values.get("DMLC_ROLE", "launcher")
        found[name] = pid
    return found


def start(folder, *options, arguments=(), **settings):
    command = ["-n", 2, *options, TRAINING, folder, "--epochs", 2, *arguments]
    return Launched(folder, *command, env=ONE_THREAD, stderr=subprocess.STDOUT, **settings)


def kill_in_turn(folder, names, *options):
    """Train to the end, and kill one of these in each phase."""
    phases = ("full_pass", "checkpoint", "step", "evaluation")
    slowly = ("--slowly", 0.1)  # it must not be over before the last one is killed
    with start(folder, "--max-restarts", len(names), *options, arguments=slowly) as launched:
        for role, phase in zip(names, phases, strict=True):
            wait_for(launched, f"phase {phase}")
            os.kill(roles(launched)[role], signal.SIGKILL)
            assert f"launch: {role}" in wait_for(launched, "was ended by SIGKILL")
            wait_for(launched, "launch: training again")
        assert launched.finish(120) == 0, launched.out


def test_kills_of_every_role_in_one_job(tmp_path, whole):
    kill_in_turn(tmp_path, ["server", "worker 0", "scheduler", "worker 1"])
    assert told(tmp_path) == {whole}


def test_kills_with_mpi(tmp_path, whole):
    """Two summands have one sum, so the bits are those of the servers, too."""
    pytest.importorskip("mpi4py")
    kill_in_turn(tmp_path, ["worker 1", "worker 0"] * 2, "--engine", "mpi")
    assert told(tmp_path) == {whole}


def test_the_launcher_is_killed_and_started_again(tmp_path, whole):
    with start(tmp_path, *SOCKETS) as launched:
        wait_for(launched, "phase evaluation")
        launched.process.kill()
        assert launched.left() == []
    with start(tmp_path, *SOCKETS) as launched:
        assert launched.finish(120) == 0, launched.out
        assert "the run continues from the checkpoint" in launched.out
    assert told(tmp_path) == {whole}


def test_an_exception_on_one_worker(tmp_path, whole):
    with start(tmp_path, arguments=("--fail", 1, 10)) as launched:
        assert launched.finish(120) == 0, launched.out
    assert re.search(
        r"worker 1 \(process \d+\) ended with exit code 1: ValueError: on one worker alone",
        launched.out,
    )
    assert "restart 1 of at most 3" in launched.out
    assert "restart 2" not in launched.out
    assert told(tmp_path) == {whole}


def test_a_worker_is_stopped(tmp_path, whole):
    with start(tmp_path, "--progress-timeout", 4) as launched:
        wait_for(launched, "phase checkpoint")
        os.kill(roles(launched)["worker 1"], signal.SIGSTOP)
        assert launched.finish(120) == 0, launched.out
    assert re.search(r"worker 1 \(process \d+\) is stopped", launched.out)
    assert told(tmp_path) == {whole}


def test_ctrl_c_ends_all_at_one_batch_and_the_same_line_goes_on(tmp_path, whole):
    with start(tmp_path, *SOCKETS) as launched:
        wait_for(launched, "phase checkpoint")
        launched.process.send_signal(signal.SIGINT)
        assert launched.finish(120) == 130, launched.out
    (text,) = told(tmp_path)
    assert "a signal" in json.loads(text)["reason"]
    with start(tmp_path, *SOCKETS) as launched:
        assert launched.finish(120) == 0, launched.out
    assert told(tmp_path) == {whole}


def test_a_full_disk_on_the_first_worker_costs_its_checkpoints_alone(tmp_path, whole):
    with start(tmp_path, *SOCKETS, arguments=("--full-disk", 0)) as launched:
        assert launched.finish(120) == 0, launched.out
    assert "File too large" in launched.out
    assert told(tmp_path) == {whole}


def test_a_recipe_prints_and_writes_once(tmp_path):
    recipe = ROOT / "recipes" / "linear_regression.py"
    out = tmp_path / "out"
    options = ["--epochs", 2, "--out", out]
    done = launch(tmp_path, "-n", 2, *SOCKETS, recipe, *options, env=ONE_THREAD)
    assert done.code == 0, done.err
    assert done.out.count("SVRG: 2 epochs") == 1
    assert "[worker 1]" not in done.out
    assert {path.name for path in out.iterdir()} == {"curves.png", "metrics.csv"}
