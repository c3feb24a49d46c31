"""Let each call that changes a file fail in turn, as on a full or a broken disk.

The run writes checkpoints, logs and event files of TensorBoard, and exports its network over an
older model. After each failure the run has ended, or has raised an OSError that names a path; each
file is the old one or the new one, whole; and the run, continued without failures, ends with the
same weights and leaves nothing behind. ``make faults`` tries every call, and ends with 1 if there
is a finding.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import ctypes
import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path

PATIENCE = 60.0  # seconds until a run counts as hanging
# The errno of the call that fails, and whether all later calls fail; -1: half is written.
KINDS = {"ENOSPC": (errno.ENOSPC, 1), "EIO": (errno.EIO, 0), "short write": (-1, 0)}
SOURCE = Path(__file__).with_name("faults.c")


def compile_faults(folder: Path) -> Path:
    """Compile what is preloaded; raise OSError if there is no C compiler."""
    library = folder / "faults.so"
    command = ["cc", "-O1", "-shared", "-fPIC", "-o", str(library), str(SOURCE), "-ldl"]
    subprocess.run(command, check=True)
    return library


def train_and_export(folder: Path, resume: str | None = None) -> list[str]:
    """Train, with all that writes files, and export; return the weights."""
    import gluon_svrg as gs
    import mxnet as mx
    import numpy as np
    from mxnet import gluon

    gs.seed_everything(0)
    net = gluon.nn.Dense(2, in_units=3, prefix="net_")
    net.initialize()
    trainer = gs.SVRGTrainer(net.collect_params(), "nag", {"learning_rate": 0.1, "momentum": 0.9})
    estimator = gs.Estimator(net, gluon.loss.SoftmaxCELoss(), trainer=trainer)
    estimator.logger.disabled = True
    data = gs.data.ArrayLoader(np.eye(6, 3, dtype="f"), np.arange(6) % 2, batch_size=2)
    handlers = [
        gs.SVRGHandler(),
        gs.EMAHandler(0.5),
        gs.TensorBoardHandler(folder / "board", every_n_batches=1),
        gs.HistoryFileHandler(folder / "log.jsonl"),
        gs.HistoryFileHandler(folder / "log.csv"),
        gs.CheckpointHandler(folder / "checkpoints", keep_last=1),
    ]
    estimator.fit(data, epochs=3, event_handlers=handlers, resume=resume, verbose=0)
    gs.deploy.export(net, folder / "model", np.ones((1, 3), "f"), overwrite=True)
    mx.nd.waitall()
    return [p.data().asnumpy().tobytes().hex() for p in net.collect_params().values()]


def export_zeros(folder: Path) -> None:
    """Export the older model, whose scores are all 0."""
    import gluon_svrg as gs
    import mxnet as mx
    import numpy as np

    net = mx.gluon.nn.Dense(2, in_units=3, prefix="net_")
    net.initialize(mx.init.Zero())
    gs.deploy.export(net, folder / "model", np.ones((1, 3), "f"))


def check_files(folder: Path) -> None:
    """Raise AssertionError if a file is neither the old one nor the new one."""
    import gluon_svrg as gs
    import numpy as np
    from gluon_svrg.checkpoint import storage

    for path in (folder / "checkpoints").glob("epoch-*"):
        assert storage.read(path), f"{path.name} is damaged"
    if (folder / "log.jsonl").exists():
        lines = (folder / "log.jsonl").read_text().splitlines(keepends=True)
        assert all(json.loads(line) and line.endswith("\n") for line in lines), "log.jsonl"
    if (folder / "log.csv").exists():
        text = (folder / "log.csv").read_text()
        rows = list(csv.reader(text.splitlines()))
        assert len({len(row) for row in rows}) <= 1, "log.csv has half a row"
        assert text.endswith("\n") or not text, "log.csv ends within a row"
    scores = gs.deploy.Predictor(folder / "model")(np.ones((1, 3), "f"))
    assert np.isfinite(scores).all(), "the model has other numbers"


def continued(folder: Path, weights: list[str]) -> None:
    """Raise AssertionError if the run does not end as one that nothing has disturbed."""
    if not list((folder / "checkpoints").glob("epoch-*")):  # a new run, which replaces no log
        for name in ("log.jsonl", "log.csv"):
            (folder / name).unlink(missing_ok=True)
    assert train_and_export(folder, "auto") == weights, "other weights after a resume"
    left = [path.name for path in folder.rglob("*") if path.name.startswith(".")]
    left = [name for name in left if name != ".lock"]
    assert not left, f"left behind: {left}"
    rows = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    assert [row["epoch"] for row in rows] == [0, 1, 2], "log.jsonl lacks an epoch"


def outcome_of(work: Callable[[], object]) -> str:
    """Do `work` in a process of its own; return how that ended."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        told = "done"
        try:
            warnings.simplefilter("ignore")
            work()
        except OSError as e:
            told = f"OSError {e}"
        except BaseException as e:
            told = f"{type(e).__name__}: {e}"
        ctypes.CDLL(None).fault_arm(b"", 0, 0, 0)
        os.write(writing, told.encode()[:4000])
        os._exit(0)
    os.close(writing)
    end = time.monotonic() + PATIENCE
    while not os.waitpid(child, os.WNOHANG)[0]:
        if time.monotonic() > end:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            os.close(reading)
            return "it hangs"
        time.sleep(0.002)
    with os.fdopen(reading, "rb") as answer:
        return answer.read().decode(errors="replace") or "it crashed"


def one_case(folder: Path, at: int, kind: str, weights: list[str]) -> list[str]:
    """Let call number `at` fail; return what is wrong afterwards."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    findings = []
    code, sticky = KINDS[kind]

    def disturbed() -> None:
        export_zeros(folder)
        ctypes.CDLL(None).fault_arm(os.fsencode(folder), at, code, sticky)
        train_and_export(folder)

    outcome = outcome_of(disturbed)
    if outcome.startswith("OSError"):
        if str(folder) not in outcome:
            findings.append(f"no path: {outcome}")
    elif outcome != "done":
        findings.append(outcome)
    findings += [told for told in [outcome_of(lambda: check_files(folder))] if told != "done"]
    told = outcome_of(lambda: continued(folder, weights))
    return findings + [f"continued: {told}"] * (told != "done")


def work(every: int, first: int) -> int:
    """Try every `every`-th call, from number `first` on; return how many findings there are."""
    import gluon_svrg  # noqa: F401  # once, for all processes that are forked

    number_of_findings = 0
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary, "run")
        folder.mkdir()
        export_zeros(folder)
        results = Path(temporary, "results.json")

        def undisturbed() -> None:
            faults = ctypes.CDLL(None)
            faults.fault_arm(os.fsencode(folder), 0, errno.EIO, 0)
            weights = train_and_export(folder)
            results.write_text(json.dumps([faults.fault_count(), weights]))

        told = outcome_of(undisturbed)
        if told != "done":
            raise RuntimeError(f"without a failure the run ends with: {told}")
        calls, weights = json.loads(results.read_text())
        print(f"{calls} calls change a file", flush=True)
        for kind in KINDS:
            counts: Counter[str] = Counter()
            for at in range(first, calls + 1, every):
                findings = one_case(folder, at, kind, weights)
                counts["finding" if findings else "good"] += 1
                for finding in findings:
                    print(f"{kind} at {at}: {finding}", flush=True)
            number_of_findings += counts["finding"]
            print(f"{kind}: {dict(counts)}", flush=True)
    return number_of_findings


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--every", type=int, default=1, help="try every that many calls")
    parser.add_argument("--first", type=int, default=1, help="the number of the first call")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        return 1 if work(options.every, options.first) else 0
    with tempfile.TemporaryDirectory() as folder:
        environ = os.environ | {"LD_PRELOAD": str(compile_faults(Path(folder)))}
        command = [sys.executable, __file__, "--worker"]
        command += ["--every", str(options.every), "--first", str(options.first)]
        with contextlib.suppress(KeyboardInterrupt):
            return subprocess.run(command, env=environ, check=False).returncode
    return 130


if __name__ == "__main__":
    sys.exit(main())
