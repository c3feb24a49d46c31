"""Messages and sums by MPI: those of one process, the same bits each time, and never a hang."""

import re

import pytest
from cluster import run_together

pytestmark = pytest.mark.full

PROGRAMS = "workers.mpi_programs:"


@pytest.fixture(scope="module", params=[(2, {}), (3, {"MPIR_CVAR_NOLOCAL": "1"}), (4, {})], ids=str)
def answers(request):
    """What the workers answer; of three, over the network, as between machines."""
    size, env = request.param
    return run_together(PROGRAMS + "everything", size, env=env)


@pytest.mark.long
def test_all_gather_what_each_gives(answers):
    size = len(answers)
    for answer in answers:
        plain, first, total, parts, one, none = answer["gathers"]
        assert plain == [{"rank": rank, "none": None, "é": [0.1, True]} for rank in range(size)]
        assert (first, one, none) == (10, True, False)
        assert total == sum(0.1 * (rank + 1) for rank in range(size))
        of_rank = [list(range(size)), *([n] * size for n in (235, 236, 237))]
        of_rank.append([5_000_000 * rank for rank in range(size)])
        assert parts == [
            [[length, [rank] if length else []] for rank, length in enumerate(lengths)]
            for lengths in of_rank
        ]


def test_sums_are_those_of_numpy_and_the_same_on_all(answers):
    for answer in answers:
        assert answer["kind"] == "MPIWorkers"
        assert answer["sums"] == answers[0]["sums"]
        for errors, _ in answer["sums"].values():
            assert errors <= len(answers) - 1  # a rounding each
        for dtype in ("float16", "float32", "float64"):
            assert len({answer["sums"][f"{dtype} {i}"][1] for i in range(3)}) == 1
    assert [answer["rank"] for answer in answers] == list(range(len(answers)))


def test_a_sum_may_begin_before_the_arrays_are_computed(answers):
    for answer in answers:
        (weights, biases), (first, second) = answer["chain"]
        assert weights == pytest.approx([first], rel=1e-6)
        assert biases == pytest.approx([second], rel=1e-6)


def test_integers_and_several_dtypes_at_once(answers):
    size = len(answers)
    ranks = sum(range(size))
    small = [size * 100 % 256, (size * 50 + 128) % 256 - 128]
    expected = [size * 2**53 + ranks, size / 2, ranks, size / 4, *small, size, size]
    for answer in answers:
        assert answer["kinds"] == [[value] for value in expected]


def test_a_broadcast_keeps_every_bit(answers):
    for answer in answers:
        assert answer["broadcasts"] == [True, [[1, 2, 3]], [1.0], [1.0]]


def test_arrays_in_the_layout_of_onednn_are_added(answers):
    for answer in answers:
        right, finite = answer["convolutions"]
        assert finite
        assert right == [True] * 3 or len(answers) > 2  # NumPy's order is another one


def test_what_is_no_sum_is_one_sentence(answers):
    for answer in answers:
        sparse, contexts, dtype = answer["refusals"]
        assert "array 0 of a sum is row_sparse: workers add dense arrays only" in sparse
        assert "are on cpu(0) and cpu(1): pass those of one context" in contexts
        assert dtype.startswith("array 0 of a sum is bool: workers add float32, float64,")


def test_nothing_is_left_of_the_start(answers):
    """What MPICH shares has no name that a killed process could leave behind."""
    for answer in answers:
        assert answer["leftovers"] == []
        assert answer["environment"] == []  # a process that a worker starts is none


def test_an_array_that_comes_twice_is_added_up_once(answers):
    size = len(answers)
    assert [answer["twice"] for answer in answers] == [[size**3, size**3]] * size


def test_a_worker_that_is_late_is_waited_for(answers):
    """Longer than the others take to tell where they wait."""
    size = len(answers)
    assert [answer["late"] for answer in answers] == [[2.0, list(range(size))]] * size


def test_the_bits_of_a_sum_do_not_depend_on_which_worker_comes_first(answers):
    assert len({digest for answer in answers for digest in answer["patterns"]}) == 1


def test_sums_begin_before_all_arrays_are_there(answers):
    size = float(len(answers))
    assert [a["overlap"] for a in answers] == [[[True, False], [size**2], [size**2]]] * len(answers)


def test_the_same_job_twice_has_the_same_bits():
    first, second = (run_together(PROGRAMS + "patterns", 4) for _ in range(2))
    assert first == second


# --- Workers that are not together any more --------------------------------------------------


@pytest.fixture
def heard(answers):
    """Return, of a case, what each worker raises; every later call raises it again."""

    def of(name):
        errors = []
        for answer in answers:
            kind, message, seconds, *again = answer["failures"][name]
            assert seconds < 10
            assert kind == "ValueError" or again == [message]
            errors.append((kind, message))
        return errors

    return of


# Who sees it first tells it to those that are about to see it.
PARTED = ("WorkerError", "PeerError")


def test_workers_at_different_places_are_an_error_on_all(heard):
    for kind, message in heard("at different places"):
        assert kind in PARTED
        assert message.startswith(
            "the workers are out of sync: worker 0 is at 'step 3', worker 1 is at 'the end of the "
        )
        assert "every worker must run the same code" in message


@pytest.mark.parametrize("name", ["fails in a message", "fails in a sum"])
def test_a_failure_is_heard_by_those_that_wait(heard, name):
    errors = heard(name)
    assert errors.pop(1) == ("ValueError", "no data")
    assert set(errors) == {("PeerError", "worker 1 has failed: ValueError: no data")}


def test_other_arrays_on_one_worker_are_one_sentence(heard):
    for kind, message in heard("other arrays"):
        assert kind in PARTED
        assert message == (
            "the workers sum different arrays: 2 on worker 0, 2 on worker 1; the first difference "
            "is float32 [3] on worker 0 and float32 [4] on worker 1. All workers need the same "
            "network"
        )


@pytest.mark.parametrize("name", ["the first adds once less", "the last adds once less"])
def test_a_sum_that_one_worker_leaves_out_is_told(answers, heard, name):
    """The others would wait for it for ever."""
    less = 0 if "first" in name else len(answers) - 1
    for kind, message in heard(name):
        assert kind in PARTED
        assert f"worker {less} waits at 'step' after 2 sums" in message
        assert re.search("worker . waits in sum 3", message)


def test_sums_in_another_order_are_told_at_the_next_message(answers, heard):
    for kind, message in heard("another order"):
        assert kind in PARTED
        told = re.findall(
            r"worker (\d) has done (\d) sums \(checksum of their arrays (\w+)\)", message
        )
        assert [int(rank) for rank, *_ in told] == list(range(len(answers)))
        assert {number for _, number, _ in told} == {"4"}
        assert len({digest for *_, digest in told}) == 2
        assert message.endswith(
            "and must step every trainer for each batch, even without a sample of it (found at "
            "'step')"
        )


def test_a_worker_that_does_not_come_is_named(heard):
    for kind, message in heard("does not come"):
        assert kind in PARTED
        assert message.startswith("worker 1 has not reached 'step' within 2 s: stopped")


# --- Processes that end -----------------------------------------------------------------------

ENDS = {"error": 1, "exit": 3, "SystemExit": 1}


@pytest.mark.parametrize("how", ENDS)
def test_a_worker_that_ends_takes_the_others_with_it(how):
    """MPI itself would wait for ever in its own end; only the cause has a traceback."""
    job = run_together(PROGRAMS + "ends", 3, how, check=False)
    assert job.code == ENDS[how]
    if how == "SystemExit":  # which nothing in Python hears of
        assert "worker 1 waits at 'the end of the script' after 1 sums" in "".join(job.err)
        return
    assert job.err[0] == job.err[2] == ""
    assert ("Traceback" in job.err[1]) == (how == "error")
    assert how == "exit" or "ValueError: no such file:\ndata.rec\n" in job.err[1]


def test_a_full_disk_of_the_first_worker_ends_all():
    job = run_together(PROGRAMS + "ends", 2, "full disk", check=False)
    assert job.code == 1
    assert "OSError: [Errno 28] No space left on device" in job.err[0]
    assert job.err[1] == ""


def test_a_worker_that_is_killed_takes_the_others_with_it():
    job = run_together(PROGRAMS + "ends", 3, "kill", check=False)
    assert job.code == 9
    assert "Traceback" not in "".join(job.err)


LIMIT = {"GLUON_SVRG_PROGRESS_TIMEOUT": "3"}


@pytest.mark.long
def test_a_worker_that_hangs_says_where():
    job = run_together(PROGRAMS + "ends", 3, "hang", check=False, env=LIMIT)
    assert job.code != 0
    assert "in hangs" in job.err[1]


@pytest.mark.long
def test_a_worker_that_is_stopped_is_named_by_the_others():
    job = run_together(PROGRAMS + "ends", 3, "stop", check=False, env=LIMIT)
    assert job.code == 1
    assert "worker 1 has not reached sum 2 within 3 s: stopped, hung, or slower than" in "".join(
        job.err
    )
