"""Sums by MPI: those of one process, the same bits each time, and no hang when a worker is gone."""

import json
import mmap
import os
import re
import sys
import sysconfig
from importlib import metadata
from pathlib import Path

import pytest
from cluster import TESTS, Process, finish, run_together
from gluon_svrg import workers
from gluon_svrg.workers import pmi

PROGRAMS = "workers.mpi_programs:"

try:
    pmi.check_installed()
except ImportError as error:
    pytest.skip(f"no MPI: {error}", allow_module_level=True)


@pytest.mark.parametrize(("size", "part", "of"), [(2, 2, 4), (3, 3, 4)])
def test_workers_equal_one_process(size, part, of):
    arguments = (size, str(part), str(of))
    for result in run_together("workers.equality:some", *arguments, engine="mpi", timeout=600):
        assert result["wrong"] == []
        assert result["number"] >= 90 // of


# What `srun` sets with PMIx, for an MPI that asks it and not these workers.
PMIX = {"PMIX_NAMESPACE": "slurm.1", "PMIX_RANK": "7", "PMI_FD": "999"}


@pytest.fixture(scope="module", params=[(2, PMIX), (3, {"MPIR_CVAR_NOLOCAL": "1"})], ids=str)
def answers(request):
    """What the workers answer; of three, over TCP, as between machines."""
    size, env = request.param
    return run_together(PROGRAMS + "everything", size, engine="mpi", env=env)


def test_sums_are_those_of_numpy_and_the_same_on_all(answers):
    for answer in answers:
        assert answer["kind"] == "MPIWorkers"
        assert answer["sums"] == answers[0]["sums"]
        for errors, _ in answer["sums"].values():
            assert errors <= len(answers) - 1  # a rounding each
        for dtype in ("float16", "float32", "float64"):
            assert len({answer["sums"][f"{dtype} {i}"][1] for i in range(3)}) == 1
    assert [answer["rank"] for answer in answers] == list(range(len(answers)))


def test_what_else_workers_do(answers):
    size = len(answers)
    ranks = sum(range(size))
    for answer in answers:
        (weights, biases), (first, second) = answer["chain"]
        assert weights == pytest.approx([first], rel=1e-6)
        assert biases == pytest.approx([second], rel=1e-6)
        expected = [size * 2**53 + ranks, size / 2, ranks, size / 4, size, size]
        assert answer["kinds"] == [[value] for value in expected]
        assert answer["broadcasts"] == [True, [[1, 2, 3]], [1.0], [1.0]]
        right, finite = answer["convolutions"]
        assert finite
        assert right == [True] * 3 or size > 2  # NumPy's order is another one
        assert "array 0 of a sum is row_sparse" in answer["refusals"][0]


def test_nothing_is_left_of_the_start(answers):
    """What MPICH shares has no name that a killed process could leave behind."""
    for answer in answers:
        assert answer["leftovers"] == []
        assert answer["environment"] == (sorted(PMIX) if len(answers) == 2 else [])


def test_nobody_listens_to_the_network_on_one_machine(answers):
    assert {host for answer in answers for host in answer["listens"]} <= {"127.0.0.1"}


def test_an_array_that_comes_twice_is_added_up_once():
    assert run_together(PROGRAMS + "twice", 2, engine="mpi") == [[8.0, 8.0]] * 2


def test_a_worker_that_ends_while_mpi_starts():
    """MPICH would crash, and leave its files."""
    env = {"MPIR_CVAR_NOLOCAL": "1"}  # on one machine they speak by memory alone
    before = set(os.listdir("/dev/shm"))
    processes = run_together(PROGRAMS + "dies_in_the_start", 2, engine="mpi", check=False, env=env)
    assert [process.returncode for process in processes] == [75, -9]
    assert "WorkerError: worker 1 is gone" in processes[0].err
    assert not [name for name in set(os.listdir("/dev/shm")) - before if name.startswith("mpich")]


def test_another_mpi_than_mpich_is_one_sentence():
    for message in run_together(PROGRAMS + "another_mpi", 2, engine="mpi"):
        assert "mpi4py has another MPI than MPICH, which was started: it is for" in message


def test_the_bits_of_a_sum_of_four_do_not_depend_on_who_comes_first():
    answers = run_together(PROGRAMS + "patterns", 4, engine="mpi")
    assert len({digest for answer in answers for digest in answer}) == 1


@pytest.mark.parametrize(
    ("how", "code", "message"),
    [
        ("error", 1, "worker 1 has failed: ValueError: on one worker alone"),
        ("kill", -9, "worker 1 is gone"),
    ],
)
def test_a_worker_that_ends_is_heard_of_in_a_sum(how, code, message):
    """MPI itself would wait for ever; no launcher is there to end it."""
    processes = run_together(PROGRAMS + "dies_in_a_sum", 3, how, engine="mpi", check=False)
    assert [process.returncode for process in processes] == [75, code, 75]
    for rank in (0, 2):
        assert message in processes[rank].err


def test_other_arrays_on_one_worker_are_one_sentence():
    processes = run_together("workers.store_programs:parted", 2, engine="mpi", check=False)
    for process in processes:
        assert process.returncode == 75
        assert "worker 1 adds 2 arrays, worker 0 2, and the first that differ are" in process.err


@pytest.mark.parametrize("late", [0, 2])
def test_workers_that_have_parted_in_their_sums_hear_of_it(late):
    """One of them has made one sum fewer: the others would wait for it for ever."""
    processes = run_together(PROGRAMS + "parted", 3, str(late), engine="mpi", check=False)
    for process in processes:
        assert process.returncode == 75, process.err
        told = re.findall(r"worker (\d) has added up (\d) t", process.err)
        numbers = dict(told[-2:])
        assert numbers.pop(str(late)) == "2"
        assert [*numbers.values()] == ["3"]


def test_a_worker_that_is_late_is_waited_for():
    """Longer than the others take to ask where it is."""
    assert run_together(PROGRAMS + "late", 3, engine="mpi") == [[12.0, [0, 1, 2]]] * 3


def test_sums_begin_before_all_arrays_are_there():
    answer = [[True, False], [4.0], [4.0]]
    assert run_together(PROGRAMS + "overlap", 2, engine="mpi") == [answer] * 2


def test_mpi_that_a_script_has_started_is_one_sentence():
    for size, message in run_together(PROGRAMS + "mpi_first", 2, engine="mpi"):
        assert size == 1
        assert "MPI knows 1 processes, and there are 2 workers" in message
        assert "let the script call gluon_svrg.workers.current() first" in message


def test_a_script_under_mpirun():
    """The environment asks for it, and any MPI will do."""
    mpirun = Path(sysconfig.get_path("scripts"), "mpiexec")
    if not mpirun.exists():
        pytest.skip(f"no {mpirun}")
    environment = os.environ | {
        "GLUON_SVRG_ENGINE": "mpi",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join([str(TESTS), str(TESTS.parent)]),
        "PYTHONWARNINGS": "ignore",
    }
    command = [str(mpirun), "-n", "2", sys.executable, TESTS / "cluster.py"]
    code = "import os, sys; os.execv(sys.argv[1], sys.argv[1:])"
    program = [*map(str, command), "workers.programs:gather"]
    process = Process(["-c", code, *program], environment)
    finish([process])
    assert process.returncode == 0, process.err
    answers = [json.loads(line) for line in process.out.splitlines()]
    assert len(answers) == 2
    for values, total, array, first in answers:
        assert values == [{"rank": 0, "text": ""}, {"rank": 1, "text": "x"}]
        assert total == 0.1 + 0.2
        assert array == [[3.0] * 3] * 2
        assert first == [5.0, 5.0]


@pytest.mark.parametrize(
    ("hosts", "mapping"),
    [
        ("a", "(vector,(0,1,1))"),
        ("aaa", "(vector,(0,1,3))"),
        ("aab", "(vector,(0,1,2),(1,1,1))"),
        ("abab", "(vector,(0,1,1),(1,1,1),(0,1,1),(1,1,1))"),
        ("bbaaac", "(vector,(0,1,2),(1,1,3),(2,1,1))"),
    ],
)
def test_which_process_is_on_which_machine(hosts, mapping):
    assert pmi.mapping_of(hosts) == mapping


def test_a_missing_package_is_one_sentence(monkeypatch):
    def missing(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", missing)
    with pytest.raises(
        ImportError, match=r"needs mpi4py and MPICH.*pip install 'gluon-svrg\[mpi\]"
    ):
        pmi.check_installed()


def test_the_name_of_a_mapped_file_may_be_any_bytes(tmp_path):
    """All that a process has mapped is looked through for MPICH's shared memory."""
    path = os.fsencode(tmp_path) + b"/\xff\x85"
    with open(path, "wb+") as file:
        file.write(b"x")
        file.flush()
        with mmap.mmap(file.fileno(), 1):
            assert path in Path("/proc/self/maps").read_bytes()
            pmi._unlink_shared_memory()


def test_the_class_is_public():
    assert workers.MPIWorkers.__mro__[1].__name__ == "SumWorkers"
