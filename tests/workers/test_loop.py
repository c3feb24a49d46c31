"""The loop over several workers: every end of a run is of all of them, and as in one process."""

import pytest
from cluster import run_together
from workers.compare import assert_close

pytestmark = pytest.mark.full

CASES = [
    "plain",
    "batches",
    "svrg",
    "few rows",
    "shapes unknown",
    "shapes unknown, svrg",
    "shapes unknown, checkpoints",
    "shapes unknown, both",
    "early stopping",
    "signal in a step",
    "signal at different moments",
    "signal in a full pass",
    "signal in an evaluation",
    "time limit",
    "true at batch end",
    "true at epoch end",
    "stop in a batch",
    "stop at a safe point",
    "NaN, roll back",
    "NaN, stop",
]


@pytest.fixture(scope="module", params=[2, 3])
def runs(request, tmp_path_factory):
    return run_together(
        "workers.loop_programs:runs", request.param, str(tmp_path_factory.mktemp("c")), timeout=400
    )


@pytest.mark.parametrize("name", CASES)
def test_all_workers_end_alike_and_as_one_process(runs, name):
    (first, alone), *others = runs
    for together, _ in others:
        assert repr(together[name]) == repr(first[name])
    assert_close(first[name], alone[name])


def test_the_reasons(runs):
    together, _ = runs[0]
    reasons = {name: together[name]["reason"] for name in CASES}
    assert {name: reason for name, reason in reasons.items() if "signal" in name} == dict.fromkeys(
        [name for name in CASES if "signal" in name], "SIGNAL"
    )
    assert reasons["time limit"] == "TIME_LIMIT"
    assert reasons["true at epoch end"] == "HANDLER"
    assert reasons["stop in a batch"] == reasons["stop at a safe point"] == "REQUESTED"
    assert reasons["NaN, stop"] == "NOT_FINITE"
    assert together["signal in a step"]["position"][1] == 9
    assert together["signal at different moments"]["position"][1] == 10
    assert together["signal in a full pass"]["position"] == [1, 6, 0, False]
    assert together["stop at a safe point"]["position"][1] == 8
