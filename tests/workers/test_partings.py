"""Workers that could part: they are kept together, or told, and never differ in silence."""

import os
import subprocess
import sys
import time

import numpy as np
import pytest
from cluster import run_together
from problems import has_bfloat16
from workers.parting_programs import WAYS

FORK = """
import os, sys, time
import gluon_svrg as gs
import mxnet as mx

net = mx.gluon.nn.Dense(1, in_units=2)
net.initialize()
gs.SVRGTrainer(net.collect_params(), "sgd")
parent = os.getpid()
if os.fork() == 0:
    while os.getppid() == parent:
        time.sleep(0.01)
    open(sys.argv[1], "w").close()
os._exit(0)
"""


@pytest.fixture(scope="module")
def results():
    return run_together("workers.parting_programs:main", 2)


SCALED = pytest.mark.skipif(not has_bfloat16(), reason="this CPU has no bfloat16 in oneDNN")


@pytest.mark.parametrize("name", ["drawn", *WAYS, pytest.param("scaled", marks=SCALED)])
def test_workers_keep_the_same_weights(results, name):
    first, second = (result[name] for result in results)
    assert first == second


@pytest.mark.parametrize(
    ("name", "tolerance"),
    [*((name, 1e-6) for name in WAYS), pytest.param("scaled", 1e-2, marks=SCALED)],
)
def test_workers_equal_one_process(results, name, tolerance):
    several, one = results[0][name]
    for ours, theirs in zip(several, one, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=tolerance, atol=tolerance)


def test_workers_may_have_different_time_left(results):
    assert [result["limit"] for result in results] == ["EPOCHS_DONE"] * 2


def test_a_sum_that_one_worker_leaves_out_is_told():
    processes = run_together(
        "workers.parting_programs:two_trainers", 2, engine="dist_sync", check=False
    )
    for process in processes[:2]:
        assert process.returncode == 75
        assert "the workers have parted" in process.err
        assert "'gradients that are stale" in process.err  # asked before each sum of a trainer


def test_a_process_alone_may_fork_off_one_that_outlives_it(tmp_path):
    path = tmp_path / "lived"
    subprocess.run([sys.executable, "-c", FORK, str(path)], check=True, env=dict(os.environ))
    end = time.monotonic() + 20
    while not path.exists() and time.monotonic() < end:
        time.sleep(0.05)
    assert path.exists()
