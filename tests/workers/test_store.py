"""Sums over ps-lite's servers: right, repeatable, and what is no sum is one sentence."""

import json
import re
import subprocess
import sys

import pytest
from cluster import MXNETS_SERVER, TESTS, answers_of, common_environment, finish, run_together
from forked import Forked
from mxnet import libinfo
from ports import free_port
from workers import foreign_programs

PROGRAMS = "workers.store_programs:"
# Fresh memory is not zero: what MXNet's server never initialises is true.
ROUNDS = {"MALLOC_PERTURB_": "1", "GLIBC_TUNABLES": "glibc.malloc.tcache_count=0"}


@pytest.fixture(scope="module")
def two():
    """What two workers and a server answer, and what the server has printed."""
    return results(2, 1)


@pytest.fixture(scope="module")
def three():
    return results(3, 2)


def results(size, servers):
    processes = run_together(
        PROGRAMS + "everything", size, engine="dist_sync", servers=servers, check=False
    )
    for process in processes[:size]:
        assert process.returncode == 0, process.err
    answers = [json.loads(process.out.splitlines()[-1]) for process in processes[:size]]
    return answers, [process.err for process in processes[size + 1 :]]


@pytest.fixture(params=["two", "three"])
def cluster(request):
    return request.getfixturevalue(request.param)


def test_sums_are_those_of_numpy_bit_for_bit(cluster):
    for answer in cluster[0]:
        assert {name: right for name, right in answer["sums"].items() if not all(right)} == {}
        assert len(answer["sums"]) == 12


def test_a_sum_may_begin_before_the_last_has_ended(cluster):
    for answer in cluster[0]:
        (weights, biases), (first, second) = answer["chain"]
        assert weights == pytest.approx([first], rel=1e-6)
        assert biases == pytest.approx([second], rel=1e-6)


def test_integers_and_several_dtypes_at_once(cluster):
    answers = cluster[0]
    size = len(answers)
    ranks = sum(range(size))
    for answer in answers:
        expected = [size * 2**53 + ranks, size / 2, ranks, size / 4, size, size]
        assert answer["kinds"] == [[value] for value in expected]


def test_a_broadcast_keeps_every_bit(cluster):
    for answer in cluster[0]:
        assert answer["broadcasts"] == [True, [[1, 2, 3]], [1.0], [1.0]]


def test_arrays_in_the_layout_of_onednn_are_added(cluster):
    """By a key of their own they end the server: "init ... first"."""
    for answer in cluster[0]:
        right, finite = answer["convolutions"]
        assert right == [True] * 3
        assert finite


def test_what_is_no_sum_is_one_sentence(cluster):
    for answer in cluster[0]:
        sparse, contexts = answer["refusals"]
        assert "array 0 of a sum is row_sparse: workers add dense arrays only" in sparse
        assert "are on cpu(0) and cpu(1): give those of one context" in contexts


def test_a_server_unpickles_nothing_and_goes_on(cluster):
    answers, servers = cluster
    for answer in answers:
        assert answer["after"] == [len(answers)] * 3
    for printed in servers:
        assert "refused command 0" in printed
        assert "unpickled" not in printed.replace("unpickles", "")


def test_a_server_loads_the_mxnet_library_and_no_python_of_it():
    """All workers wait for the servers, and MXNet's Python takes seconds."""
    code = (
        "import sys; from gluon_svrg.workers.server import mxnet_library\n"
        "print([name for name in sys.modules if name.split('.')[0] == 'mxnet'], mxnet_library())"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.split() == ["[]", libinfo.find_lib_path()[0]]


def test_the_bits_of_a_sum_of_three_do_not_depend_on_who_comes_first():
    answers = run_together(PROGRAMS + "patterns", 3, engine="dist_sync")
    assert len({digest for answer in answers for digest in answer["ours"]}) == 1
    # MXNet's own: as many as there are orders in which they come, a + b + c being b + a + c.
    assert 1 < len({digest for answer in answers for digest in answer["key"]}) <= 3


def test_other_arrays_on_one_worker_are_one_sentence():
    processes = run_together(PROGRAMS + "parted", 2, engine="dist_sync", check=False)
    for process in processes[:2]:
        assert process.returncode == 75
        assert "worker 1 adds 2 arrays, worker 0 2, and the first that differ are" in process.err
        assert process.err.splitlines()[-1].endswith(
            "float32 [4] and float32 [3]: all workers need the same network"
        )


def test_workers_that_have_parted_in_their_sums_hear_of_it():
    """A server would add what each has at another place: wrong numbers, and then a hang."""
    processes = run_together(PROGRAMS + "parted_in_sums", 3, engine="dist_sync", check=False)
    for process in processes[:3]:
        assert process.returncode == 75
        told = re.findall(r"worker (\d) has added up (\d) times \(of arrays (\w+)\)", process.err)
        assert [[int(rank), int(number)] for rank, number, _ in told] == [[0, 4], [1, 4], [2, 3]]
        assert len({bits for *_, bits in told}) == 3
        assert process.err.splitlines()[-1].endswith(
            "and to step each trainer for a batch of which it has no sample, too (seen at 'step')"
        )


def test_servers_that_round_float64_are_told_at_the_start():
    processes = run_together(
        PROGRAMS + "start", 2, engine="dist_sync", check=False, server_environment=ROUNDS
    )
    for process in processes[:2]:
        assert process.returncode == 75
        assert re.search("WorkerError: server 0 .* rounds float64 to float32", process.err)
        assert "MALLOC_PERTURB_=255 GLIBC_TUNABLES=glibc.malloc.tcache_count=0" in process.err


def test_a_cluster_by_hand_with_mxnets_own_servers():
    by_hand = {"GLUON_SVRG_WORKERS": "1"}
    answers = run_together(
        PROGRAMS + "by_hand", 2, engine="dist_sync", env=by_hand, server=MXNETS_SERVER
    )
    for answer in answers:
        assert answer["same"] == [True, True]
        assert answer["ranks"][0] == answer["ranks"][1]
        assert answer["ranks"][2:] == [0, 1]
        assert answer["sum"] == [3.0, 3.0]
        refused = answer["refused"]
        assert (
            "got 'dist_async': with it a worker steps by its own gradient"
            in (refused["dist_async"])
        )
        assert "kvstore must be one of 'dist_sync'" in refused["p3store_dist"]
        assert "compression_params must be None" in refused["compression"]
    assert {answer["ranks"][0] for answer in answers} == {0, 1}


def test_a_distributed_kvstore_without_a_cluster_is_one_sentence():
    (message,) = run_together(PROGRAMS + "no_cluster", 1)
    assert "DMLC_NUM_WORKER is not in the environment: start the script by" in message


def run_ring(program):
    """Run it on two processes that no launcher knows of."""
    environment = {"RING_SIZE": "2", "RING_PORT": str(free_port()), "GLUON_SVRG_WORKERS": "1"}
    command = [TESTS / "cluster.py", f"workers.foreign_programs:{program}"]
    processes = [
        Forked(*command, env=common_environment(1) | environment | {"RING_RANK": str(rank)})
        for rank in range(2)
    ]
    finish(processes)
    return processes


def test_a_kvstore_of_somebody_else():
    """It needs no more than what `gluon.Trainer` asks of one."""
    for rank, answer in enumerate(answers_of(run_ring("train"))):
        kind, own_rank, calls, weights, expected = answer
        assert (kind, own_rank) == ("StoreWorkers", rank)
        assert calls > 9
        assert weights == pytest.approx(expected, rel=1e-12)


def test_a_kvstore_of_somebody_else_in_one_process():
    """It adds up over the contexts, as it would in a gluon.Trainer."""
    calls, weights = foreign_programs.alone()
    assert calls > 0
    assert weights == [pytest.approx([0.9, 0.9])] * 2


def test_a_kvstore_that_leaves_the_mean_is_one_sentence():
    processes = run_ring("mean")
    assert [process.returncode for process in processes] == [1, 1]
    for process in processes:
        assert (
            "the kvstore Mean does not add up what its 2 workers give: its pushpull" in process.err
        )


def test_a_kvstore_that_does_not_add_up_is_one_sentence():
    processes = run_ring("wrong")
    assert [process.returncode for process in processes] == [75, 75]
    assert "the kvstore Lazy adds 1.0000000000009095 and 0 up to 0.0" in processes[1].err
    assert "its pushpull has to leave the sum over all workers in out" in processes[1].err


ENDS = {
    "error": (1, "worker 1 has failed: ValueError: no such file:"),
    "exit": (3, "worker 1 has failed: it has ended with exit code 3"),
    "kill": (-9, "worker 1 is gone"),
    "SystemExit": (75, "worker 1 is at 'the end of the script'"),
}


@pytest.mark.parametrize("how", ENDS)
def test_a_worker_that_ends_takes_the_others_with_it(how):
    """Over ps-lite, whose barrier at the end would wait for ever."""
    code, message = ENDS[how]
    processes = run_together(PROGRAMS + "fails", 2, how, engine="dist_sync", check=False)
    assert [process.returncode for process in processes[:2]] == [75, code]
    assert message in processes[0].err
