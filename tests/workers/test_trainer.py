"""A trainer over several workers: what it refuses, how it begins, what its full gradient is."""

import pytest
from cluster import run_together

pytestmark = pytest.mark.full

SIZE = 3


@pytest.fixture(scope="module")
def results():
    return run_together("workers.trainer_programs:everything", SIZE)


@pytest.fixture
def same(results):
    """Return what all workers returned, which is the same."""

    def of(name):
        first, *others = (result[name] for result in results)
        assert all(other == first for other in others), [first, *others]
        return first

    return of


def test_what_is_for_one_worker_is_refused(same):
    updates, compression, sparse = same("refusals")
    assert updates.startswith("update_on_kvstore=True is for one worker: with several")
    assert compression.startswith("compression_params={'type': '2bit'} is for one worker")
    assert "has stype 'default' and grad_stype 'row_sparse': workers sum dense" in sparse


def test_a_late_start_is_told(same):
    weights, said = same("a_late_start")
    # The gradient of worker r is r + 1: from the first worker's 1, two steps of 0.5 * 2.
    assert weights == [[-1.0, -1.0]]
    assert len(said) == 1
    assert "Call trainer.synchronize(net) before the first forward pass" in said[0]


def test_a_late_shape_does_not_stop_the_first_step(same):
    assert same("a_late_shape") == [[0.5, 0.5]]


def test_shapes_and_values_come_from_others(same):
    params = same("shapes_that_one_worker_knows")
    assert params[0][0] == [3, 4]
    for _, (first, second) in params:
        assert first == second


def test_each_parameter_is_given_once(results):
    for rank, result in enumerate(results):
        first, later = result["parameters_that_are_not_trained"]
        assert first == [7.0, 7.0]
        assert later == [rank + 7.0, rank + 7.0]


def test_a_failure_is_one_of_all(same):
    message = same("a_gradient_that_is_nan_on_one_worker")
    assert message.startswith("worker 1: the full gradient of parameter")
    assert "batch 1 (the first is 0)" in message


def test_all_halve_the_loss_scale(same):
    assert same("an_overflow_on_one_worker") == 2.0


def test_a_pass_is_broken_off_on_all(same):
    assert same("a_cancelled_pass") == 2


def test_masks_are_needed_if_any_worker_draws(same):
    assert same("masks_of_a_worker_without_a_row") == [True, SIZE + 1, SIZE + 1]


def test_moments_are_those_of_the_whole_batch(same):
    together, alone = same("moments")
    assert together == pytest.approx(alone, rel=1e-12)
    assert together[0] == 4 * 5


def test_the_full_gradient_is_averaged_once(same):
    """Worker r has r + 1 rows of r + 1: the mean of 1, 2, 2, 3, 3, 3."""
    for value in same("a_full_gradient_by_hand"):
        assert value == [[pytest.approx(14 / 6)] * 2]


def test_handlers_decide_as_in_one_process(same):
    together, alone = same("handlers_that_decide")
    assert together["counts"] == alone["counts"]
    assert together["given up"] == alone["given up"]
    assert together["given up"][1] > 0
    for name in ("ratios", "coefficients"):
        assert together[name] == pytest.approx(alone[name], rel=1e-9), name
        assert len(together[name]) > 3
