"""Runs over several workers that cannot be: one sentence on all of them, and never a hang."""

import pytest
from cluster import run_together
from workers.failing_programs import WRONG

pytestmark = pytest.mark.full


@pytest.fixture(scope="module")
def wrong():
    return run_together("workers.failing_programs:wrong", 2)


@pytest.mark.parametrize("name", WRONG)
def test_workers_that_would_not_do_the_same_are_told_so(wrong, name):
    (first, seconds), (second, _) = wrong
    assert first[name] == second[name]
    kind, message = first[name]
    assert kind == "ValueError"
    assert name in message
    assert seconds < 10 * len(WRONG)


def test_the_sentence(wrong):
    message = wrong[0][0]["batch_size of train_data"][1]
    assert message == (
        "worker 1 differs from worker 0 in batch_size of train_data, 7 instead of 8: every worker "
        "has to run the same script, with the same arguments, data and versions"
    )
    message = wrong[1][0]["list of handlers"][1]
    assert "from worker 0 in list of handlers, with SVRGHandler: every worker" in message


def test_an_error_on_one_worker_is_told_to_the_others():
    first, second = run_together("workers.failing_programs:failing", 2)
    assert second["in a step"] == ["KeyError", "'gone'"]
    assert first["in a step"] == ["PeerError", "worker 1 has failed: KeyError: 'gone'"]
    assert first["at an epoch's end"] == ["OSError", "disk full"]
    assert second["at an epoch's end"] == [
        "PeerError",
        "worker 0 has failed: OSError: disk full",
    ]
    assert first["before the start"][0] == "PeerError"
    assert "epochs must be a positive integer, got -1" in first["before the start"][1]
    for one in (first, second):
        assert one["unequal numbers of batches"][0] in ("WorkerError", "PeerError", "ValueError")
    assert first["NaN"] == second["NaN"]
    assert first["NaN"][0] == "NotFiniteError"
    assert "in batch 4 of epoch 0 (both count from 0) on worker 1" in first["NaN"][1]
    assert second["a metric"][0] == "ValueError"
    assert first["other steps"] == second["other steps"]
    kind, message = first["other steps"]
    assert kind == "RuntimeError"
    assert message.startswith("weights differ between workers 0 and 1 after epoch 0: 'dense")
    assert first["a file of another run"][0] == "FileExistsError"
    assert second["a file of another run"][0] == "PeerError"


def test_only_the_first_worker_shows_and_writes_and_who_failed_is_told(tmp_path):
    job = run_together("workers.failing_programs:output", 2, str(tmp_path), check=False)
    assert "epoch 1:" in job.out[0]
    assert "2 workers: each trains on its part of every batch" in job.out[0]
    assert "training" in job.err[0]
    assert not job.out[1]
    assert "batch/s" not in job.err[1]
    assert sorted(file.name for file in tmp_path.iterdir()) == ["log.csv", "trace.json"]
    assert job.code == 1
    assert "Traceback" not in job.err[0]
    assert "KeyError: 'gone'" in job.err[1].splitlines()


@pytest.fixture(scope="module", params=[2, 3])
def starts(request):
    return run_together("workers.failing_programs:starts", request.param)


def test_each_batch_restarts_the_progress_timer(starts):
    for pair, *_ in starts:
        for calls in pair:
            # 6 batches of the full pass, 6 of the training, 3 of the evaluation.
            assert calls.count("step_completed") >= 15
            assert calls.index("cancel") == len(calls) - 1


def test_the_default_trainer_knows_the_others(starts):
    trainers = [trainer for _, trainer, _ in starts]
    assert trainers == [trainers[0]] * len(starts)
    assert trainers[0][0] == "SVRGTrainer"


def test_all_begin_at_the_same_point(starts):
    (drawn, params, losses), *others = [start for *_, start in starts]
    for others_drawn, others_params, others_losses in others:
        assert others_drawn[:2] == drawn[:2]
        assert others_drawn[2] != drawn[2]  # within the network, each its own
        assert others_params == params  # BatchNorm's running statistics, too
        assert others_losses == losses
