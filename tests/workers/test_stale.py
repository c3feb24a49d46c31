"""Several workers leave alone what none of them uses, as one process does."""

import numpy as np
import pytest
from cluster import run_together
from handlers.test_stale import WEIGHTS, expected
from workers.compare import assert_close
from workers.stale_programs import CASES

pytestmark = [pytest.mark.full, pytest.mark.long]


@pytest.fixture(scope="module", params=[2, 3])
def results(request):
    return run_together("workers.stale_programs:everything", request.param)


@pytest.mark.parametrize("name", CASES)
def test_the_weights_are_those_of_one_process(results, name):
    way, svrg = CASES[name]
    for result in results:
        together, alone = result[name]
        assert together == results[0][name][0]
        assert_close(together, alone, 1e-10)
        assert_close(together, [w.tolist() for w in expected(**way, coefficient=len(svrg))], 1e-10)
        assert np.array_equal(together[2], WEIGHTS[2])


def test_by_default_they_end_the_job():
    with pytest.raises(AssertionError, match=r"give GradientUpdateHandler\(ignore_stale_grad=True"):
        run_together("workers.stale_programs:refused", 2)
