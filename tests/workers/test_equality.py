"""Several workers compute what one process does, after every step."""

import pytest
from cluster import run_together

pytestmark = pytest.mark.full


@pytest.mark.parametrize(("size", "part", "of"), [(2, 0, 4), (3, 1, 4), (4, 5, 8)])
def test_workers_equal_one_process(size, part, of):
    for result in run_together("workers.equality:some", size, str(part), str(of)):
        assert result["wrong"] == []
        assert result["number"] >= 90 // of


def test_workers_equal_one_process_in_numpy_mode():
    for result in run_together("workers.equality:some_in_numpy_mode", 2):
        assert result["wrong"] == []
        assert result["number"] == 12
