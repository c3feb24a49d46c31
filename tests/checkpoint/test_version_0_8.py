"""What version 0.8.0 wrote is read as it was: checkpoints of interrupted runs, and models."""

import json
import shutil
from pathlib import Path

import gluon_svrg as gs
import interrupted_runs
import numpy as np
import pytest
from gluon_svrg import deploy
from gluon_svrg.checkpoint import storage, version_0_8
from gluon_svrg.optimizer.states import TrainerStates, trainer_states
from mxnet import gluon

FILES = Path(__file__).parents[1] / "data" / "version_0_8"


def resumed(name, checkpoint, tmp_path, contexts=1, *, evaluate_every=None):
    """Continue from a checkpoint; return what ends the run, and what ended that of 0.8."""
    shutil.copytree(FILES / name / checkpoint, tmp_path / checkpoint)
    estimator, train_data, val_data = interrupted_runs.estimator_and_data(contexts)
    evaluate_every = evaluate_every or interrupted_runs.EVALUATE_EVERY
    handlers = interrupted_runs.handlers_of(tmp_path, val_data, evaluate_every)
    result = estimator.fit(
        train_data, epochs=interrupted_runs.EPOCHS, event_handlers=handlers, resume="auto"
    )
    assert (result.stop_reason, result.epochs_run) == (gs.StopReason.NO_IMPROVEMENT, 3)
    whole = json.loads(
        (FILES / f"{'two_contexts' if contexts == 2 else 'unbroken'}.json").read_text()
    )
    return interrupted_runs.results_of(estimator, handlers), whole


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "checkpoint", "contexts", "evaluations"),
    [
        ("unbroken", "epoch-1-batch-6", 1, 3),
        ("unbroken", "epoch-2-batch-8", 1, 2),
        ("two_contexts", "epoch-1-batch-6", 2, 3),
        ("stopped_after_batch", "epoch-1-batch-5", 1, 4),
        ("stopped_at_epoch_end", "epoch-1-batch-8", 1, 3),
    ],
)
def test_a_run_continues_to_the_same_bits(name, checkpoint, contexts, evaluations, tmp_path):
    """An evaluation that was interrupted is made first, and then each of the others, once."""
    found, whole = resumed(name, checkpoint, tmp_path, contexts)
    assert found["weights"] == whole["weights"]
    assert found["average"] == whole["average"]
    assert found["losses"] == pytest.approx(whole["losses"][-evaluations:], rel=1e-12)


@pytest.mark.slow
def test_a_run_continues_between_two_evaluations_of_the_same_weights(tmp_path):
    """The one after the epoch's last batch was interrupted, that of the epoch's end not begun."""
    found, whole = resumed(
        "stopped_after_last_batch",
        "epoch-1-batch-8",
        tmp_path,
        evaluate_every=interrupted_runs.EVALUATE_AT_END,
    )
    assert found["weights"] == whole["weights"]
    assert found["average"] == whole["average"]
    assert sorted(set(found["losses"])) == pytest.approx([whole["losses"][i] for i in (2, 4)])


@pytest.mark.parametrize(
    ("name", "tolerance"),
    # The numbers of int8 depend on the instructions of the CPU.
    [("image", 1e-5), ("binary", 0), ("int8", 0.1)],
)
def test_a_model_gives_the_same_outputs(name, tolerance):
    samples = interrupted_runs.samples_of(name)
    predictor = deploy.Predictor(FILES / "models" / name)
    expected = json.loads((FILES / "models" / "outputs.json").read_text())[name]
    np.testing.assert_allclose(predictor.predict(samples), expected, rtol=0, atol=tolerance)
    card = deploy.read_card(FILES / "models" / name)
    assert card["versions"]["gluon_svrg"] == "0.8.0"
    names = ["no", "yes"] if name == "binary" else ["cat", "dog", "owl"]
    assert card["class_names"] == names
    best = [row[0].name for row in predictor.classes(samples)]
    assert best == (["yes", "no"] if name == "binary" else ["dog"] * 3)


def test_every_older_format_that_is_read_has_a_checkpoint_here():
    found = {storage.read_manifest(path.parent)["format"] for path in FILES.rglob("manifest.json")}
    assert found == set(range(storage.OLDEST_FORMAT, storage.FORMAT))


def test_the_file_of_a_worker_had_the_optimizers_states_as_bytes():
    net = gluon.nn.Dense(1, in_units=2)
    net.initialize()
    trainer = gs.SVRGTrainer(net.collect_params(), "sgd", {"momentum": 0.9})
    content = trainer_states(trainer).to_bytes()
    counts = dict.fromkeys(("epoch", "batch", "batch_in_epoch"), 0)
    states = {
        "trainer": {"states": np.frombuffer(content, np.uint8), "places": ["weight", "bias"]},
        "position": {**counts, "is_in_epoch": False, "is_cut": False},
        "history": {"history": []},
        "handlers": {"svrg": [["SVRGHandler", {"a": 1}]]},
        "random_state": {"random_state": [["RandomStateHandler", {"seed": 3}]]},
    }
    found = version_0_8.translated(states)
    assert TrainerStates(**found["trainer"]["states"]).to_bytes() == content
    assert version_0_8.translated({**states, "trainer": found["trainer"]}) == found
    assert found["trainer"]["places"] == ["weight", "bias"]
    assert found["handlers"]["random_state"] == [["RandomStateHandler", {"seed": 3}]]
    assert found["handlers"]["svrg"] == [["SVRGHandler", {"a": 1}]]
    assert "random_state" in states  # nothing given is changed
