"""Metrics over several workers are those of one process with the whole batches."""

import pytest
from cluster import run_together
from workers.compare import assert_close

pytestmark = pytest.mark.full


@pytest.fixture(scope="module", params=[2, 3])
def values(request):
    return run_together("workers.metric_programs:values", request.param)


@pytest.mark.parametrize("name", ["additive", "whole batches", "binary", "regression", "heads"])
def test_as_in_one_process(values, name):
    for together, contexts, alone, _ in values:
        assert together[name]["counts"] == alone[name]["counts"]
        assert_close(together[name], alone[name], 1e-12)
        assert_close(contexts[name], alone[name], 1e-12)


def test_the_same_bits_on_all_workers(values):
    (together, contexts, *_), *others = values
    for other in others:
        assert repr(other[:2]) == repr([together, contexts])


def test_a_read_in_between_waits_for_nobody(values):
    (seen, last), *others = [between for *_, between in values]
    assert len(seen) == 6
    assert all(other == [[], last] for other in others)
