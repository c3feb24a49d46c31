"""Loops of one's own: several workers have the weights of one process."""

import pytest
from cluster import run_together
from workers.by_hand_programs import CASES
from workers.compare import assert_close

pytestmark = [pytest.mark.full, pytest.mark.long]


@pytest.fixture(scope="module", params=[2, 3])
def results(request):
    return run_together("workers.by_hand_programs:everything", request.param)


@pytest.mark.parametrize("name", [*CASES, "by hand"])
def test_the_weights_are_those_of_one_process(results, name):
    _, alone = results[0][name]  # the first worker's weights are those that all begin with
    assert alone[-1] != alone[0] or len(alone) == 1
    for result in results:
        together, _ = result[name]
        assert together == results[0][name][0]  # bit for bit
        assert_close(together, alone, 1e-10)


def test_a_worker_without_a_row_is_told(results):
    for rank, result in enumerate(results):
        rows = [7 * (rank + 1) // len(results) - 7 * rank // len(results)] * 3
        if rank == len(results) - 1:  # which has the one row of the last batch
            assert result["too few"] == [*rows, 1]
        else:
            assert "this worker has no sample of batch 3" in result["too few"]


def test_a_trainer_of_mxnets_own_is_told_once(results):
    for result in results[:1]:
        (line,) = result["plain"]
        assert line.startswith(
            f"gluon.Trainer does not sum the gradients of the {len(results)} workers"
        )
        assert line.endswith("use gluon_svrg.SVRGTrainer, which takes the same arguments")
    assert all(result["plain"] == [] for result in results[1:])
