"""Loops of one's own: several workers have the weights of one process, or are refused."""

import pytest
from cluster import run_together
from workers.by_hand_programs import CASES
from workers.compare import assert_close

pytestmark = pytest.mark.full


@pytest.fixture(scope="module", params=[2, 3])
def results(request):
    return run_together("workers.by_hand_programs:everything", request.param)


@pytest.mark.parametrize("name", CASES)
def test_the_weights_are_those_of_one_process(results, name):
    _, alone = results[0][name]  # the first worker's weights are those that all begin with
    assert alone[-1] != alone[0] or len(alone) == 1
    for result in results:
        together, _ = result[name]
        assert together == results[0][name][0]  # bit for bit
        assert_close(together, alone, 1e-10)


def test_batches_that_are_not_divided_are_one_sentence(results):
    size = len(results)
    for result in results:
        for name in ("whole batches", "whole batches, by parts"):
            kind, message = result["refused"][name]
            assert kind == "RuntimeError"
            assert message == (
                f"this loop gives each of {size} workers the whole batch, which would train with "
                f"{size} times the learning rate: divide it by `for batch in "
                "gluon_svrg.data.share(train_data)`; if the loop gives each worker samples of its "
                "own already, set trainer.data_are_divided = True"
            )


def test_a_step_by_a_mean_is_one_sentence(results):
    parts = {2: [4, 4], 3: [2, 3, 3]}[len(results)]
    for result in results:
        kind, message = result["refused"]["the mean"]
        assert kind == "ValueError"
        assert message.startswith(
            f"batch_size must be the number of samples, got {[1] * len(results)} on the workers, "
            f"and there are 8 samples, {parts} of them on each"
        )


def test_a_loop_that_divides_by_itself_is_taken_as_it_is(results):
    for result in results:
        assert result["by hand"] == results[0]["by hand"]


def test_a_trainer_of_mxnets_own_is_told_once(results):
    for result in results[:1]:
        (line,) = result["plain"]
        assert line.startswith(
            f"gluon.Trainer does not sum the gradients of the {len(results)} workers"
        )
        assert line.endswith("use gluon_svrg.SVRGTrainer, which takes the same arguments")
    assert all(result["plain"] == [] for result in results[1:])
