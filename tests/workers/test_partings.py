"""Workers that could part: they are kept together, or told, and never differ in silence."""

import numpy as np
import pytest
from cluster import run_together
from problems import has_bfloat16
from workers.parting_programs import WAYS

pytestmark = pytest.mark.full


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


def test_a_step_that_one_worker_leaves_out_is_told(results):
    for result in results:
        kind, message = result["left out"]
        assert kind in ("WorkerError", "PeerError")
        assert "the workers are out of sync" in message
        assert "'samples of a step" in message
