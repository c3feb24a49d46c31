"""The code of docs/howto/search.md: a search that is killed ends as the one that was not."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from test_docs import ROOT, code_of

pytestmark = [pytest.mark.full, pytest.mark.long]

# Where it is killed: when this is there.
KILLS = ["search/trial-0/epoch-2-batch-44", "search/trial-2/epoch-1-batch-22", "search/trial-5"]


@pytest.fixture
def optuna():
    found = pytest.importorskip("optuna", reason="the extra search is not installed")
    found.logging.set_verbosity(found.logging.WARNING)
    return found


def start(folder):
    folder.mkdir(exist_ok=True)
    script = folder / "search.py"
    script.write_text(code_of(ROOT / "docs" / "howto" / "search.md"))
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(
        [sys.executable, script.name],
        cwd=folder,
        env=environment,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process):
    _, err = process.communicate(timeout=300)
    assert process.returncode == 0, err[-3000:]


def kill_when_there_is(path, folder):
    process = start(folder)
    while not (folder / path).exists():
        assert process.poll() is None, process.stderr.read()[-3000:]
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL


def result(optuna, folder):
    study = optuna.load_study(study_name="digits", storage=f"sqlite:///{folder}/search.db")
    trials = [(t.number, t.state, t.params, t.value, t.intermediate_values) for t in study.trials]
    return trials, study.best_trial.number


def test_a_killed_search_ends_with_the_same_trials(optuna, tmp_path):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    finish(start(whole))
    for path in KILLS:
        kill_when_there_is(Path(path), killed)
    finish(start(killed))
    ours, theirs = result(optuna, killed), result(optuna, whole)
    assert ours == theirs
    trials, _ = ours
    states = {state.name for _, state, *_ in trials}
    assert len(trials) == 6
    assert states == {"COMPLETE", "PRUNED"}
