"""A run that is killed at any moment, and resumed until it is done, ends as the one that was not.

Parameters on every device, optimizer states and counts, and history: equal, bit for bit.
"""

import json
import os
import random
import shutil
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from forked import Forked

pytestmark = pytest.mark.full

WORKER = Path(__file__).parent / "kill_worker.py"
KILLS = 5  # a configuration
POINTS = [
    "gradient at the snapshot",
    "snapshot",
    "batch",
    "optimizer",
    "capture",
    "file",
    "flush",
    "rename",
    "removal",
    "restore",
]
CONFIGS = [
    {"optimizer": "nag", "table": None, "contexts": 1},
    {"optimizer": "sgd", "table": True, "contexts": 1},
    {"optimizer": "sgd", "table": False, "contexts": 2},
    {"optimizer": "lars", "table": None, "contexts": 2},
    {"optimizer": "lars", "table": True, "contexts": 2, "update_on_kvstore": False},
    {"optimizer": "lars", "table": False, "contexts": 1},
    {"optimizer": "adam", "table": None, "contexts": 2, "data": "DataLoader"},
    {"optimizer": "adam", "table": True, "contexts": 2},
    {"optimizer": "adam", "table": False, "contexts": 1, "data": "DataLoader"},
    {"optimizer": "sgd", "table": True, "contexts": 2, "everything": True},
]


def start(config, folder, out, *kill):
    # Two run at a time, and the net is tiny.
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return Forked(WORKER, json.dumps(config), folder, out, *kill, env=environment)


def finish(process):
    process.wait(timeout=300)
    process.end()
    assert process.returncode == 0, process.err[-3000:]


def kill_somewhere(rng, config, folder, out, counts):
    """Run, with a kill at a random moment; return where, or None if the run came to its end."""
    points = [name for name in POINTS if counts[name]]
    kind = rng.choice(["clock", *points])
    if kind == "clock":
        process = start(config, folder, out)
        latest = time.monotonic() + 300
        while not process.has_written() and time.monotonic() < latest:  # it says "begun"
            time.sleep(0.002)
        time.sleep(rng.uniform(0.0, 0.3))
        process.kill()
    else:
        # A resumed run restores once; of the rest, a part is to be left for the next time.
        most = 3 if kind == "restore" else max(1, counts[kind] // (KILLS + 1))
        process = start(config, folder, out, kind, rng.randint(1, most))
    process.wait(timeout=300)
    process.end()
    assert process.returncode in (0, -signal.SIGKILL), process.err[-3000:]
    return kind if process.returncode else None


def outcome(path):
    with np.load(path) as file:
        return {name: file[name] for name in file.files if name != "counts"}


def run_with_kills(config, folder):
    """Return where it was killed, after comparing with a run that was not."""
    finish(start(config, folder / "whole", folder / "whole.npz"))
    with np.load(folder / "whole.npz") as file:
        counts = json.loads(str(file["counts"])) | {"restore": 1}
    rng = random.Random(json.dumps(config))
    kills = []
    for _ in range(4 * KILLS):
        where = kill_somewhere(rng, config, folder / "killed", folder / "killed.npz", counts)
        if where is None:  # it came to its end before: the next kill is in another run
            shutil.rmtree(folder / "killed")
            continue
        kills.append(where)
        if len(kills) == KILLS:
            break
    finish(start(config, folder / "killed", folder / "killed.npz"))
    ours, theirs = outcome(folder / "killed.npz"), outcome(folder / "whole.npz")
    assert sorted(ours) == sorted(theirs)
    different = [name for name in ours if not np.array_equal(ours[name], theirs[name])]
    assert different == [], (config, kills, different)
    return kills


@pytest.fixture(scope="module")
def kills(tmp_path_factory):
    """Where each configuration was killed; two of them at a time."""
    folders = [tmp_path_factory.mktemp("kill") for _ in CONFIGS]
    with ThreadPoolExecutor(2) as threads:
        return [f.result() for f in [threads.submit(run_with_kills, c, p)
                                     for c, p in zip(CONFIGS, folders, strict=True)]]  # fmt: skip


def test_killed_runs_end_as_the_others(kills):
    places = [place for of_one in kills for place in of_one]
    assert len(places) == KILLS * len(CONFIGS)
    assert {"gradient at the snapshot", "file", "rename"} <= set(places)


def test_one_seed_gives_one_run(tmp_path):
    """In two processes: shuffled, dropout, SVRG, two contexts."""
    config = {"optimizer": "sgd", "table": False, "contexts": 2}
    processes = [start(config, tmp_path / name, tmp_path / f"{name}.npz") for name in "ab"]
    for process in processes:
        finish(process)
    ours, theirs = (outcome(tmp_path / f"{name}.npz") for name in "ab")
    assert [name for name in ours if not np.array_equal(ours[name], theirs[name])] == []
