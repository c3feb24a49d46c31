"""How a process learns that it is one of several, and what is said if it cannot be."""

import json
import os
import subprocess
import sys

import pytest
from cluster import run_together
from gluon_svrg.workers import process
from workers import foreign_programs

pytestmark = pytest.mark.full

PROGRAMS = "workers.foreign_programs:"


def environment(**more):
    """Return the environment of a process that no launcher has started, and more."""
    launchers = ("PMI", "OMPI_", "SLURM_", "DMLC_", "TORCHELASTIC")
    own = {name: text for name, text in os.environ.items() if not name.startswith(launchers)}
    return own | {"PYTHONWARNINGS": "ignore", "OMP_NUM_THREADS": "1"} | more


@pytest.fixture
def told(monkeypatch):
    """Return what is said if `current` is called in an environment; None if nothing is."""

    def of(missing=(), **variables):
        monkeypatch.setattr(process, "_workers", [])
        for name in {*os.environ} - {*environment()}:
            monkeypatch.delenv(name)
        for name, text in variables.items():
            monkeypatch.setenv(name, text)
        for name in missing:
            monkeypatch.setitem(sys.modules, name, None)
        try:
            process.current()
        except (RuntimeError, ImportError) as error:
            return str(error)
        return None

    return of


def test_one_process_needs_no_mpi(told):
    missing = ["mpi4py", "mpi4py.MPI"]
    assert told(missing) is None
    assert told(missing, PMI_SIZE="1", PMI_RANK="0") is None
    assert told(missing, OMPI_COMM_WORLD_SIZE="1", OMPI_COMM_WORLD_RANK="0") is None


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"PMI_SIZE": "2"}, "2 processes, which needs"),
        ({"OMPI_COMM_WORLD_SIZE": "4"}, "4 processes, which needs"),
        ({"PMIX_RANK": "0"}, "this process as one of several, which needs"),
    ],
)
def test_several_without_mpi4py_are_told_what_to_install(told, variables, words):
    message = told(["mpi4py", "mpi4py.MPI"], **variables)
    assert words in message
    assert "pip install 'gluon-svrg[workers]'" in message


def test_mxnets_parameter_servers_are_one_sentence(told):
    for variables in ({"DMLC_ROLE": "worker"}, {"DMLC_NUM_WORKER": "2"}):
        message = told(**variables)
        assert "MXNet's parameter servers: in MXNet 1.9.1 they give wrong sums" in message
        assert "docs/howto/" in message
        assert "`mpiexec -n 4 python train.py`" in message


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        (
            {"SLURM_STEP_NUM_TASKS": "8"},
            "srun has started 8 processes without MPI, so each of them",
        ),
        (
            {"TORCHELASTIC_RUN_ID": "x", "WORLD_SIZE": "2"},
            "torchrun has started 2 processes without MPI, so",
        ),
    ],
)
def test_processes_that_would_each_train_alone_are_one_sentence(told, variables, words):
    message = told(**variables)
    assert words in message
    assert f"by `mpiexec -n {[*variables.values()][-1]} python train.py`" in message


def test_one_task_of_srun_is_one_process(told):
    assert told(SLURM_STEP_NUM_TASKS="1", WORLD_SIZE="2") is None


SINGLE = """
import json, logging
logging.basicConfig(format="%(message)s")
import gluon_svrg as gs, mxnet as mx
net = mx.gluon.nn.Dense(1, in_units=2)
net.initialize()
trainer = gs.SVRGTrainer(net.collect_params(), "sgd", kvstore="dist_sync")
print(type(trainer.workers).__name__)
"""


def run(code, **variables):
    command = [sys.executable, "-c", code]
    return subprocess.run(
        command, env=environment(**variables), capture_output=True, text=True, timeout=120
    )


def test_dist_sync_in_one_process_is_that_process_and_says_so():
    done = run(SINGLE)
    assert done.stdout == "SingleProcess\n"
    assert "kvstore='dist_sync' has no effect: this process is the only worker" in (done.stderr)


def test_a_launcher_whose_mpi_is_another_one_is_one_sentence():
    """As with `mpirun` of one MPI and mpi4py of another: each process is alone to it."""
    done = run(SINGLE, OMPI_COMM_WORLD_SIZE="3", OMPI_COMM_WORLD_RANK="1")
    assert done.returncode == 1
    assert "the launcher has started 3 processes, but mpi4py finds only one: it uses 'MPICH" in (
        done.stderr
    )


# --- Kvstores -------------------------------------------------------------------------------


def test_dist_sync_means_the_workers_of_the_job():
    """Worker 0 has gradients 1 and 1 (two samples), worker 1 has 4 (one sample): the mean is 2."""
    for rank, result in enumerate(run_together("workers.distributed_programs:everything", 2)):
        assert result["rank"] == rank
        assert result["full_gradients"] == [2.0, 2.0, 2.0]
        # A step from the snapshot itself goes along the full gradient, on both workers.
        assert result["weights"] == [9.0, 8.0, 7.0]
        assert "update_on_kvstore=True is for one worker: with several" in result["updates"]
        assert "got 'dist_async': with it, a worker steps with its own" in result["dist_async"]
        assert "kvstore must be one of 'dist_sync'" in result["p3store_dist"]


@pytest.fixture(scope="module")
def foreign():
    return run_together(PROGRAMS + "everything", 2)


def test_a_custom_kvstore(foreign):
    """It needs no more than what `gluon.Trainer` asks of one."""
    for rank, answer in enumerate(foreign):
        kind, own_rank, calls, weights, expected = answer["train"]
        assert (kind, own_rank) == ("MPIWorkers", rank)
        assert calls > 9
        assert weights == pytest.approx(expected, rel=1e-12)


def test_a_kvstore_that_does_not_add_up_is_one_sentence(foreign):
    for answer in foreign:
        lazy, mean, other = answer["refused"]
        for name, sums, said in (("Lazy", "[1.0, 1.0]", lazy), ("Mean", "[1.0, 1.0]", mean)):
            assert said.startswith(f"the kvstore {name} sums ones of 2 workers to {sums}:")
            assert "must write the sum over all workers, not their mean, into out" in said
        assert "of 7, but this process is worker" in other


def test_a_custom_kvstore_in_one_process():
    """It adds up over the contexts, as it would in a gluon.Trainer."""
    calls, weights = foreign_programs.alone()
    assert calls > 0
    assert weights == [pytest.approx([0.9, 0.9])] * 2


def test_a_process_that_a_worker_starts_is_none():
    for answer in run_together("workers.distributed_programs:child", 2):
        assert json.loads(answer) == ["SingleProcess", 1]
