"""The loop over several workers: every end of a run is of all of them, and as in one process."""

import pytest
from cluster import run_together
from gluon_svrg.run import Phase, Position
from workers.compare import assert_close

pytestmark = [pytest.mark.full, pytest.mark.long]

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
    "signal in an evaluation, resumed",
    "signal in an evaluation after a batch, resumed",
    "evaluations of averages",
    "MXNet's evaluations",
    "time limit",
    "true at batch end",
    "true at epoch end",
    "stop in a batch",
    "stop at a safe point",
    "stop in a batch, by a function",
    "stop at a safe point, by a function",
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
    assert {reasons[name] for name in CASES if name.startswith("stop")} == {"REQUESTED"}
    assert reasons["NaN, stop"] == "NOT_FINITE"


def test_the_places(runs):
    together, _ = runs[0]
    positions = {name: together[name]["position"] for name in CASES}
    assert positions["signal in a step"]["batch"] == 9
    assert positions["signal at different moments"]["batch"] == 10
    for way in ("", ", by a function"):
        assert positions[f"stop in a batch{way}"]["batch"] == 9
        assert positions[f"stop at a safe point{way}"]["batch"] == 8
    # A resume repeats the pass.
    assert positions["signal in a full pass"] == Position(epoch=1, batch=6).state_dict()
    in_evaluation = {
        "signal in an evaluation": Position(0, 6, 6, Phase.EVALUATING, is_trained=True),
        "signal in an evaluation, resumed": Position(1, 12, 6, Phase.EVALUATING, is_trained=True),
        "signal in an evaluation after a batch, resumed": Position(1, 8, 2, Phase.EVALUATING),
    }
    for name, position in in_evaluation.items():
        assert positions[name] == position.state_dict()


@pytest.mark.parametrize("name", [name for name in CASES if name.endswith("resumed")])
def test_a_resume_repeats_the_evaluation(runs, name):
    for together, _ in runs:
        assert together[name]["resumed"] == together[name]["undisturbed"]
