"""What version 0.1.0 wrote is read as it was, to the bit."""

import json
import shutil
from pathlib import Path

import exact_runs
import pytest

FILES = Path(__file__).parents[1] / "data" / "version_0_1"


def resumed(kind, checkpoint, tmp_path):
    """Go on from a checkpoint of version 0.1.0; return the Estimator at the run's end."""
    folder = tmp_path / kind
    shutil.copytree(FILES / kind, folder)
    estimator, data = getattr(exact_runs, f"{kind}_estimator")()
    handlers = getattr(exact_runs, f"{kind}_handlers")(folder)
    estimator.fit(
        data, epochs=exact_runs.EPOCHS, event_handlers=handlers, resume=folder / checkpoint
    )
    return estimator


def test_a_run_goes_on_to_the_same_bits(tmp_path):
    estimator = resumed("exact", "epoch-1-batch-6", tmp_path)
    assert exact_runs.bits_of(estimator) == json.loads((FILES / "exact.json").read_text())


def test_a_run_with_every_kind_of_state_goes_on(tmp_path):
    estimator = resumed("full", "epoch-1-batch-7", tmp_path)
    expected = json.loads((FILES / "full.json").read_text())
    for name, values in exact_runs.bits_of(estimator).items():
        # Another machine's kernels add up in another order: float32, 5 steps of lr 0.1.
        assert [float.fromhex(v) for v in values] == pytest.approx(
            [float.fromhex(v) for v in expected[name]], rel=1e-3, abs=1e-4
        )


@pytest.mark.parametrize("kind", ["exact", "full"])
def test_states_are_read_and_written_again_as_they_were(kind, tmp_path):
    estimator, data = getattr(exact_runs, f"{kind}_estimator")()
    if kind == "full":  # it infers its shapes
        estimator.fit(data, batches=1)
    estimator.trainer.load_states(FILES / f"{kind}.states")
    estimator.trainer.save_states(tmp_path / "again")
    estimator.trainer.load_states(tmp_path / "again")
    updater = estimator.trainer._updaters[0]
    assert updater.optimizer.num_update == {"exact": 12, "full": 6}[kind]
