"""Checkpoints of several workers: as many go on to the same bits, others to rounding."""

import numpy as np
import pytest
from cluster import run_together
from gluon_svrg.checkpoint import storage
from workers import checkpoint_programs as programs

pytestmark = [pytest.mark.full, pytest.mark.long]

OTHER_NUMBER = (
    "WARNING: resume: a checkpoint of {} continues on {}: the results will be close, but not "
    "bitwise equal (order of sums, random numbers, BatchNorm's statistics)"
)


LATER = ["epoch-2-batch-12", "epoch-2-batch-9", "epoch-3-batch-12"]


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return tmp_path_factory.mktemp("cluster")


@pytest.fixture(scope="module")
def three(base):
    return run_together("workers.checkpoint_programs:three", 3, str(base))


@pytest.fixture(scope="module")
def two(base):
    job = run_together("workers.checkpoint_programs:two_that_crash", 2, str(base), check=False)
    return job.answers(code=9)


@pytest.fixture(scope="module")
def after(base, three, two):
    """What two workers of a new cluster make of what the others have left."""
    return run_together("workers.checkpoint_programs:two_that_go_on", 2, str(base))


def check_exact(results):
    for case, first in results[0].items():
        assert first["whole"]["history"], case
        for rank, result in enumerate(results):
            reason, stopped_at, share, again = result[case]["again"]
            # One worker asked for it, and all end after the same batch, each with its own state.
            assert (reason, stopped_at, share) == ("REQUESTED", 7, [rank, rank + 1]), case
            assert again == result[case]["whole"], (case, rank)
            for name in ("states", "history", "numpy"):
                assert result[case]["whole"][name] == first["whole"][name], (case, rank)
        # Each worker's masks are its own.
        assert len({tuple(result[case]["whole"]["next"]) for result in results}) == len(results)


def test_three_that_stop_go_on_to_the_same_bits(three):
    check_exact(three)


def test_two_that_stop_go_on_to_the_same_bits(two):
    check_exact(two)


def test_two_that_crash_go_on_to_the_same_bits(two, after):
    for rank in (0, 1):
        assert after[rank]["crash"] == two[rank]["sgd, table"]["whole"]


def test_only_the_first_touches_the_disk(base, three, after):
    names = {path.name: list(path.iterdir()) for path in base.iterdir()}
    assert sorted(names) == ["home-0", "home-1", "home-2"]
    assert names["home-1"] == names["home-2"] == []
    written = storage.read(base / "home-0/whole-0-of-2/epoch-1-batch-6")
    assert (written.manifest["workers"], written.manifest["format"]) == (2, storage.FORMAT)
    names = ["net.params", "run.npz", "trainer.npz", "training.params", "worker-1.npz"]
    assert sorted(written.files) == names
    assert len(written.files["worker-1.npz"]) < len(written.files["run.npz"]) / 2


@pytest.fixture(scope="module")
def alone():
    """The weights of one process that is never disturbed."""
    estimator = programs.estimator_of(noisy=False)
    programs.fit(estimator, programs.handlers("unused")[:-1])
    return programs.weights_of(estimator)


def check_close(weights, expected):
    for ours, theirs in zip(weights, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-10, atol=1e-12)


def test_three_then_two_then_one(base, after, alone, caplog):
    messages = after[0]["fewer"][0]
    assert OTHER_NUMBER.format("3 workers", 2) in messages
    assert not any("written by" in message for message in after[1]["fewer"][0])
    estimator = programs.estimator_of(noisy=False, seed=11)
    with programs.messages_of(estimator) as told:
        programs.fit(estimator, programs.handlers(base / "home-0/fewer"), resume="auto")
    assert OTHER_NUMBER.format("2 workers", 1) in told
    check_close(programs.weights_of(estimator), alone)


def test_one_then_two(after, alone):
    assert OTHER_NUMBER.format("1 worker", 2) in after[0]["one"][0]
    for result in after:
        check_close(result["one"][1], alone)


def test_a_full_disk(two, after):
    messages, there, outcome = after[0]["full disk"]
    warnings = [message for message in messages if message.startswith("WARNING")]
    assert len(warnings) == 2
    assert all("No space left on device" in warning for warning in warnings)
    assert there == LATER
    assert outcome == two[0]["sgd, table"]["whole"]
    messages, there, outcome = after[1]["full disk"]
    assert not any(message.startswith("WARNING") for message in messages)
    assert (there, outcome) == ([], two[1]["sgd, table"]["whole"])


def test_a_checkpoint_takes_two_gathers(after):
    """Whatever its handlers have to add up; also if it cannot be written."""
    (counts, bests, best, there, messages), second = (result["gathers"] for result in after)
    assert counts == second[0] == [2] * 7
    # The others know that one could not be written from the next one, or the run's end, on.
    assert second[1][3] == "epoch-2-batch-8" != bests[3]
    assert second[1][6] == "epoch-3-batch-12" != bests[6]
    assert bests[:3] + bests[4:6] == second[1][:3] + second[1][4:6]
    assert best == second[2] == bests[6]
    assert there == [best]
    warnings = [message for message in messages if message.startswith("WARNING")]
    assert len(warnings) == 3
    assert all("No space left on device" in warning for warning in warnings)
    assert "the last checkpoint could not be written: epoch-3-batch-12" in warnings[2]
    assert not any(message.startswith("WARNING") for message in second[4])


def test_a_damaged_file_of_a_worker(two, after):
    for rank, result in enumerate(after):
        assert result["damaged"][1] == two[rank]["sgd, table"]["whole"]
    warnings = [m for m in after[0]["damaged"][0] if m.startswith("WARNING")]
    assert "worker-1.npz has 4 bytes" in warnings[0]
    assert "is now 'damaged-epoch-3-batch-12'" in warnings[1]


def test_a_roll_back(after):
    for rank, result in enumerate(after):
        (first, run_on_first), (other, by_other) = result["roll back"]
        assert run_on_first == by_other
        assert run_on_first["history"] == after[0]["roll back"][0][1]["history"]
        for messages in (first, other):
            told = [m for m in messages if "the run goes back to the checkpoint" in m]
            assert len(told) == (rank == 0)


def test_a_nan_on_one_worker_writes_no_checkpoint(after):
    for rank, result in enumerate(after):
        messages, there = result["a NaN"]
        told = [m for m in messages if "no checkpoint" in m and "NaN" in m]
        if rank:
            assert (told, there) == ([], [])
        else:
            (message,) = told
            assert "epoch-1-batch-6 is written" in message
            assert message.endswith("(worker 1)")
            assert there == ["epoch-0-batch-3", *LATER]


def test_a_directory_with_another_run_is_an_error_on_all(after):
    first, second = (result["there already"] for result in after)
    assert first == second
    assert "has checkpoints of a run already" in first
