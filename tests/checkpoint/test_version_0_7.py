"""What version 0.7.0 wrote is read as it was: by one process (format 2) and by two (format 3)."""

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import exact_runs
import gluon_svrg as gs
import numpy as np
import pytest
from gluon_svrg.arrays.encoding import from_bytes
from gluon_svrg.checkpoint import storage
from gluon_svrg.checkpoint.parts import PositionPart
from gluon_svrg.rng import collect_rng_states, set_rng_states
from gluon_svrg.run import Position
from gluon_svrg.svrg.snapshot_schedule import Phase

DATA = Path(__file__).parents[1] / "data"
FILES = DATA / "version_0_7"


def resumed(kind, checkpoint, tmp_path, run="exact", *extra):
    """Continue from a checkpoint of version 0.7.0; return the weights' bits and the handlers."""
    shutil.copytree(FILES / kind / checkpoint, tmp_path / kind / checkpoint)
    estimator, data = getattr(exact_runs, f"{run}_estimator")()
    handlers = [*getattr(exact_runs, f"{run}_handlers")(tmp_path / kind), *extra]
    estimator.fit(data, epochs=exact_runs.EPOCHS, event_handlers=handlers, resume="auto")
    return exact_runs.bits_of(estimator), handlers


def expected(kind):
    return json.loads((FILES / f"{kind}.json").read_text())


def test_a_run_continues_to_the_same_bits(tmp_path):
    assert resumed("exact", "epoch-1-batch-6", tmp_path)[0] == expected("exact")
    new = storage.read(tmp_path / "exact" / "epoch-3-batch-12")
    assert new.manifest["format"] == storage.FORMAT == 4


def test_one_process_continues_the_run_of_two(tmp_path):
    """Its sums are exact in any order; one of two accumulated batches waits for its step."""
    step = gs.GradientUpdateHandler(accumulate=2)
    bits, _ = resumed("two_workers", "epoch-1-batch-5", tmp_path, "exact", step)
    assert bits == expected("two_workers")
    assert bits != expected("exact")


@pytest.mark.slow
def test_a_run_with_every_kind_of_state_continues(tmp_path):
    bits, _ = resumed("full", "epoch-1-batch-7", tmp_path, "full")
    for name, values in expected("full").items():
        # Another machine's kernels add up in another order: float32, 5 steps of lr 0.1.
        assert [float.fromhex(v) for v in bits[name]] == pytest.approx(
            [float.fromhex(v) for v in values], rel=1e-4, abs=1e-5
        )


@pytest.mark.slow
def test_a_run_continues_after_the_snapshot_of_its_trial(tmp_path):
    _, (svrg, *_) = resumed("full", "epoch-0-batch-1", tmp_path, "full")
    criterion = svrg.criterion
    assert (criterion.trial_epoch, criterion.snapshot_fraction) == (0, 0.25)
    assert (criterion.phase, criterion.times_off) == (Phase.SCHEDULED, 0)


def test_every_format_that_is_said_to_be_read_is_kept_here():
    """A fixture for each format: the rule of docs/howto/resume.md."""
    kept = {storage.read(path.parent).manifest["format"] for path in DATA.rglob("manifest.json")}
    assert kept | {storage.FORMAT} == set(range(storage.OLDEST_FORMAT, storage.FORMAT + 1))


def test_the_random_states_of_0_7_are_put_back():
    """Python's was a tuple of numbers."""
    own = collect_rng_states()
    try:
        version, numbers, gauss = own["python"]
        assert isinstance(numbers, np.ndarray)
        as_then = {**own, "python": (version, tuple(numbers.tolist()), gauss)}
        np.random.rand()
        set_rng_states(as_then)
        again = collect_rng_states()
        assert again["python"][1].tolist() == numbers.tolist()
        assert again["numpy"][1].tolist() == own["numpy"][1].tolist()
    finally:
        set_rng_states(own)


def test_a_handler_that_was_renamed_does_not_hear_an_epoch_end_twice():
    state = Position(epoch=1, batch=6, batch_in_epoch=3, is_cut=True).state_dict()
    run = SimpleNamespace(position=None)
    PositionPart(run).load_state_dict({**state, "heard": ["MetricHandler", "LogHandler"]})
    assert run.position.heard == ["MetricHandler", gs.HistoryFileHandler.__name__]


def test_a_random_state_is_saved_as_an_array(tmp_path):
    resumed("exact", "epoch-1-batch-6", tmp_path)
    meta, arrays = from_bytes(
        storage.read(tmp_path / "exact" / "epoch-3-batch-12").files["run.npz"]
    )
    assert sum(array.shape == (625,) for array in arrays.values()) == 2  # now, and at epoch begin
    assert len(json.dumps(meta)) < 8000
